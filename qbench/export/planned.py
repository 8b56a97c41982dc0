"""What a plan demands, and what a Q/DQ file holds, in the words of the network."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from qbench.export.contents import Contents, Layer, StoredTensor
from qbench.graph import PreparedModel
from qbench.network import Kernel, Precision
from qbench.plan import Plan
from qbench.qdq import Written
from qbench.target import Target


def planned(prepared: PreparedModel, plan: Plan, written: Written, target: Target) -> Contents:
    """Precision and placement of every kernel, scale and zero point of every integer tensor that `plan` demands.

    prepared   with the plan's rewrites already made
    The scales are those of the Q/DQ model `written`, which is what was evaluated.
    """
    network = prepared.network
    layers = {k.name: Layer(p, demanded_placement(k, p, target)) for k in network.kernels for p in [plan.precision[network.unit_of_kernel[k.name]]]}
    return Contents(layers, read_tensors(written.model, written), "the plan and its Q/DQ model")


def demanded_placement(kernel: Kernel, precision: Precision, target: Target) -> str:
    """"NPU", or "" for what the target's rules (or, where it has none, its list) put on the CPU anyway and for kernels that move no values."""
    if kernel.kind == "reshape":
        return ""
    if target.on_cpu is not None:
        return "" if kernel.name in target.on_cpu.get(precision, {}) else "NPU"
    return "" if any(target.placement(op) == "CPU" for op in kernel.op.split("+")) else "NPU"


def read_qdq(model: ir.Model, prepared: PreparedModel, written: Written, plan: Contents) -> Contents:
    """The same, read from a Q/DQ model: a kernel is an integer layer when one of its results goes through a pair.

    model   a Q/DQ model whose values have the names that `written` lists
    plan    such a file does not tell FP16 from FP32: a float layer counts as the float that this wants
    """
    raw = {v: t for t, v in written.raw.items() if written.stored[t] != v}
    behind = {raw[s]: _stored(n).bits for n in model.graph if n.op_type == "QuantizeLinear" and (s := _source(n, set(raw))) is not None}
    layers, silent = {}, {}
    for kernel in prepared.network.kernels:
        tensors = (*kernel.outputs, *kernel.inner)
        if not any(t in prepared.network.group_of for t in tensors):
            silent[kernel.name] = "its results are no reals"
            continue
        bits = next((behind[t] for t in tensors if t in behind), 0)
        wanted = plan.layers[kernel.name].precision
        precision = Precision.INT8 if bits == 8 else Precision.INT16 if bits else wanted if wanted.is_float else Precision.FP16
        layers[kernel.name] = Layer(precision)
    return Contents(layers, read_tensors(model, written), "the Q/DQ model", silent)


def read_tensors(model: ir.Model, written: Written) -> dict[str, StoredTensor]:
    """Key -> scale and zero point of every pair and of every stored weight; int32 biases are left out, their scale follows."""
    names = {v: t for t, v in written.raw.items()} | {v: t for t, v in written.stored.items()}
    found: dict[str, StoredTensor] = {}
    for node in model.graph:
        if node.op_type == "QuantizeLinear" and (source := _source(node, set(names))) is not None:
            stored = _stored(node)
            found[f"{names[source]}:int{stored.bits}"] = stored
        elif node.op_type == "DequantizeLinear" and (codes := _constant(node, 0)) is not None and codes.dtype.itemsize <= 2:
            found[f"weight:{str(node.inputs[0].name).removesuffix('_q')}"] = _stored(node, codes)  # type: ignore[union-attr]
    return found


def _source(node: ir.Node, names: set[str]) -> str | None:
    """The value of `names` that a QuantizeLinear reads, through the Clip that narrow codes need."""
    value = node.inputs[0]
    while value is not None and str(value.name) not in names:
        maker = value.producer()
        if maker is None or maker.op_type != "Clip":
            return None
        value = maker.inputs[0]
    return None if value is None else str(value.name)


def _constant(node: ir.Node, index: int) -> NDArray[Any] | None:
    value = node.inputs[index] if index < len(node.inputs) else None
    return None if value is None or value.const_value is None else value.const_value.numpy()


def _stored(node: ir.Node, codes: NDArray[Any] | None = None) -> StoredTensor:
    scale, zero = _constant(node, 1), _constant(node, 2)
    assert scale is not None, f"{node.name} has a computed scale"
    if zero is None:
        zero = np.zeros(scale.shape, np.uint8 if codes is None else codes.dtype)
    return StoredTensor(zero.dtype.name, tuple(float(s) for s in scale.reshape(-1)), tuple(int(z) for z in zero.reshape(-1)))
