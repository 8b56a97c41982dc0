"""What rknn-toolkit2 does together with its neighbours: residual Adds, Concats that are never built, GELUs that are spelled out."""

from __future__ import annotations

from collections.abc import Mapping

from qbench.cost.rknn_tokens import projects
from qbench.cost.sharing import is_view
from qbench.cost.work import FREE_ACTIVATIONS
from qbench.network import Kernel, Network, Precision

LONGEST_GELU = 10               # kernels


def _depths(network: Network) -> dict[str, int]:
    """Kernels on the longest way from the inputs to each tensor."""
    depth: dict[str, int] = {}
    for k in network.kernels:
        d = 1 + max((depth.get(t, 0) for t in k.inputs), default=0)
        depth |= dict.fromkeys(k.outputs, d)
    return depth


def swaps(network: Network) -> dict[str, str]:
    """Kernels with a residual Add whose other operand is a convolution nearer to the input: that one runs last and adds."""
    depth, found = _depths(network), dict[str, str]()
    for k in network.kernels:
        if k.kind not in ("conv", "depthwise") or not k.op.startswith("Conv+Add") or len(k.inputs) != 2:
            continue
        other = network.kernel.get(network.producer.get(k.inputs[1], ""))
        if (other is not None and other.kind == "conv" and other.op == "Conv" and network.consumers[k.inputs[1]] == (k.name,)
                and k.inputs[1] not in network.outputs and depth.get(other.inputs[0], 0) < depth.get(k.inputs[0], 0)):
            found[k.name] = other.name
    return found


def joined_by_addition(network: Network) -> dict[str, tuple[str, ...]]:
    """Concats that the toolkit avoids: where one convolution reads the whole and has less than half its channels, it runs part by part."""
    found = {}
    for k in network.kernels:
        if k.kind != "concat" or not k.outputs or len(set(k.inputs)) != len(k.inputs) or k.outputs[0] in network.outputs:
            continue
        y, readers = k.outputs[0], network.consumers.get(k.outputs[0], ())
        shape = network.tensors[y].shape
        parts = [network.tensors[t].shape for t in k.inputs]
        by_channel = len(shape) == 4 and all(len(s) == 4 and s[2:] == shape[2:] for s in parts) and sum(s[1] for s in parts) == shape[1]
        if not by_channel or len(readers) != 1:
            continue
        reader = network.kernel[readers[0]]
        if reader.kind == "conv" and reader.groups == 1 and reader.inputs[0] == y and 2 * reader.out_channels < shape[1]:
            found[y] = k.inputs
    return found


def gelus(network: Network) -> dict[str, str]:
    """Kernels of a spelled GELU (Erf or Tanh and what is around it) behind a convolution or a product, and the tensor that they map."""
    found: dict[str, str] = {}
    for k in network.kernels:
        if k.kind not in ("conv", "depthwise", "matmul") or len(k.outputs) != 1:
            continue
        x, region = k.outputs[0], list[Kernel]()
        closed: list[Kernel] = []
        known, waiting = {x}, list(network.consumers.get(x, ()))
        while waiting and len(region) < LONGEST_GELU:
            ready = [n for n in waiting if set(network.kernel[n].inputs) <= known and network.kernel[n].kind in ("eltwise", "activation")]
            if not ready:
                break
            k = network.kernel[ready[0]]
            region.append(k)
            known.update(k.outputs)
            waiting = list(dict.fromkeys(n for t in known for n in network.consumers.get(t, ()) if n not in {r.name for r in region}))
            if {t for n in waiting for t in network.kernel[n].inputs if t in known} <= set(k.outputs):
                closed = list(region)
        if any(op in ("Erf", "Tanh") for r in closed for op in r.op.split("+")) and len(closed) > 2:
            found |= dict.fromkeys((r.name for r in closed), x)
    return found


def folded_adds(network: Network, precision: Mapping[str, Precision]) -> dict[str, list[str]]:
    """Projections that take up what directly follows: views, a product with a constant, the residual Add at the end. precision   kernel -> one"""
    found = {}
    for i, k in enumerate(network.kernels):
        if not projects(k, network) or len(k.inputs) != 1 or k.activation not in FREE_ACTIVATIONS or len(k.outputs) != 1:
            continue
        chain = list[str]()
        for reader in network.kernels[i + 1:]:
            last = network.kernel[chain[-1]] if chain else k
            if network.consumers.get(last.outputs[0], ()) != (reader.name,) or precision[reader.name] is not precision[k.name]:
                break
            chain.append(reader.name)
            if reader.op == "Add" and len(reader.inputs) == 2 and len(chain) > 1:
                found[k.name] = chain
            if not (is_view(reader) or reader.op == "Transpose" or (reader.op == "Mul" and len(reader.inputs) == 1)):
                break
    return found
