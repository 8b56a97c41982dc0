"""The same model at another input size: shapes are inferred anew, and a model whose own constants fix the size is refused."""

from __future__ import annotations

from math import prod

import onnx_ir as ir

from qbench.errors import ModelError
from qbench.graph import PreparedModel, specialised
from qbench.graph.kernels import build_network
from qbench.graph.quiet import quiet
from qbench.network import Kernel, Network


def picture(network: Network) -> str | None:
    """Name of the one input that is a picture [N, C, H, W] with few channels; None when there is none, or more than one."""
    found = [t for t in network.inputs if len(network.tensors[t].shape) == 4 and network.tensors[t].shape[1] <= 4]
    return found[0] if len(found) == 1 else None


def resized(prepared: PreparedModel, height: int, width: int) -> Network:
    """The network with its picture at another size. Raises ModelError saying which node fixes the size."""
    network = prepared.network
    name = picture(network)
    assert name is not None
    model = prepared.model.clone()
    for node in model.graph.all_nodes():
        for value in node.outputs:
            value.shape = None
    batch, channels = network.tensors[name].shape[:2]
    shapes = {t: network.tensors[t].shape for t in network.inputs} | {name: (batch, channels, height, width)}
    for value in model.graph.inputs:
        value.shape = ir.Shape(shapes[str(value.name)])
    with quiet("onnx_ir"):      # it logs a traceback where shapes contradict one another; here that is an answer
        try:
            found = build_network(specialised(PreparedModel(model, network), shapes), network.name, network.model_key, {})
        except ModelError as error:
            raise ModelError(f"the model does not fit {height} x {width} ({str(error).split(' has no static')[0].split('. ')[0]})") from error
    if [k.name for k in found.kernels] != [k.name for k in network.kernels]:
        raise ModelError("other operators remain at that size: constants of the model hold its shape")
    for k in found.kernels:
        _refuse_fixed(k, found)
    return found


def _refuse_fixed(k: Kernel, network: Network) -> None:
    """A reshape to constant sizes, a product with weights, or a table of positions no longer fits."""
    shapes = [network.tensors[t].shape for t in (*k.inputs, *k.outputs)]
    if k.op in ("Reshape", "Flatten") and len(shapes) == 2 and prod(shapes[0]) != prod(shapes[1]):
        raise ModelError(f"{k.op} {k.name!r} holds a fixed shape")
    if k.kind == "matmul" and k.weights and k.groups == 1 and k.weights != k.in_channels * k.out_channels:
        raise ModelError(f"{k.op} {k.name!r} has weights for the size that the model has now")
    if any(min(s, default=1) < 1 for s in shapes):
        raise ModelError(f"nothing is left at {k.name!r}")
