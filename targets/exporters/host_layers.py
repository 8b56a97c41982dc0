"""What a runtime on this machine's CPU made of a plan: which layers really run in integer kernels, and which between their pairs in float."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import onnx_ir as ir

from qbench.export import Consent, Contents, Job, Layer, StoredTensor
from qbench.graph.values import moves_values
from qbench.network import Kernel, Precision
from qbench.targets.exporters.qnn_readback import quantizers

INTEGER_EVERYWHERE = frozenset({"Conv", "Conv+Relu", "MatMul"})
"""Kernels that onnxruntime and OpenVINO compute in integers on any CPU: one of them in float is a fault, not a limit of the runtime."""
MOVED = "it moves values: its codes are those of its neighbours, and the runtime removed it or its pair"
LEAST_SQNR_DB = 10.0
"""Of the runtime's outputs from those of the plan as written: rounding ties travel in deep networks (12.5 dB was found after 140 layers on noise),
what is computed wrongly lies below 0 dB."""


@dataclass(frozen=True, slots=True)
class Ran:
    """integer   the kernel computes in integers; how   the runtime's word for it"""

    integer: bool
    how: str


@dataclass(frozen=True)
class Names:
    """Where a tensor's numbers stand in the Q/DQ model: names of the initializers of scale and zero point."""

    scale: str
    zero: str


def stored_names(job: Job) -> dict[str, Names]:
    """Key -> names, of every pair and every weight that the plan demands."""
    found = {key: _names(node) for key, node in quantizers(job)}
    for node in job.written.model.graph:
        if node.op_type == "DequantizeLinear" and node.inputs[0] is not None and node.inputs[0].is_initializer():
            found[f"weight:{str(node.inputs[0].name).removesuffix('_q')}"] = _names(node)
    return {key: names for key, names in found.items() if key in job.demanded.tensors}


def _names(node: ir.Node) -> Names:
    scale, zero = (node.inputs[i] if len(node.inputs) > i else None for i in (1, 2))
    return Names("" if scale is None else str(scale.name), "" if zero is None else str(zero.name))


@dataclass(frozen=True)
class Reading:
    """contents   what was read; consent   layers that are computed in float between their pairs; integer, simulated   names of kernels"""

    contents: Contents
    consent: Mapping[str, Consent]
    integer: tuple[str, ...]
    simulated: tuple[str, ...]


def reading(job: Job, ran: Mapping[str, Ran], tensors: Mapping[str, StoredTensor], source: str) -> Reading:
    """Plan and runtime side by side.

    ran   kernel -> how it runs; a kernel that it does not name was not found
    An integer layer that runs in float between its own pairs gives the values of the plan, at the price of float: that is announced, not
    hidden, where the runtime has no integer kernel of the kind; a layer of INTEGER_EVERYWHERE is not excused. A float layer without weights between
    integers, which the runtime computes on codes, is announced too.
    """
    network, demanded = job.prepared.network, job.demanded
    layers: dict[str, Layer] = {}
    silent = dict(_silent_tensors(job, tensors))
    consent: dict[str, Consent] = {}
    for kernel in network.kernels:
        wanted, found = demanded.layers[kernel.name].precision, ran.get(kernel.name)
        if not any(t in network.group_of for t in (*kernel.outputs, *kernel.inner)):
            silent[kernel.name] = "its results are no reals"
        elif found is None:
            if moves(job, kernel):
                silent[kernel.name] = MOVED
        elif found.integer:
            layers[kernel.name] = Layer(Precision.INT8 if wanted.is_float else wanted)
            if wanted.is_float and not kernel.weights and (moves(job, kernel) or all(_becomes_codes(job, t) for t in kernel.outputs)):
                consent[kernel.name] = Consent(Layer(Precision.INT8), f"it stands between integers and has no weights: the runtime computes it on the codes "
                                                                      f"({found.how}) that its readers would make of its result")
        else:
            layers[kernel.name] = Layer(wanted if wanted.is_float else Precision.FP32)
            if not wanted.is_float and _paired(job, kernel, wanted, tensors) and not _plain(job, kernel, wanted):
                consent[kernel.name] = Consent(Layer(Precision.FP32), f"no integer kernel of this runtime takes {kernel.op} here ({found.how}): "
                                                                      "computed in float between its pairs, the same values")
    integer = tuple(k.name for k in network.kernels if k.name in ran and ran[k.name].integer)
    simulated = tuple(k for k, c in consent.items() if c.instead == Layer(Precision.FP32))
    return Reading(Contents(layers, tensors, source, silent), consent, integer, simulated)


def moves(job: Job, kernel: Kernel) -> bool:
    """It computes nothing: every result is one of its inputs' values."""
    nodes = {str(n.name): n for n in job.prepared.model.graph}
    return kernel.kind == "reshape" or all(n in nodes and moves_values(nodes[n]) for n in kernel.nodes)


def _becomes_codes(job: Job, tensor: str) -> bool:
    """It is stored as integers for a reader, if only behind layers that move it: its codes are in the plan."""
    network = job.prepared.network
    readers = [network.kernel[k] for k in network.consumers.get(tensor, ())]
    return f"{tensor}:int8" in job.demanded.tensors or (bool(readers) and all(moves(job, k) and all(_becomes_codes(job, t) for t in k.outputs) for k in readers))


def _plain(job: Job, kernel: Kernel, precision: Precision) -> bool:
    """Every runtime has an integer kernel for it: a Relu goes into one only where 0 is the lowest code of its result."""
    stored = [s for t in kernel.outputs if (s := job.demanded.tensors.get(f"{t}:{precision}")) is not None]
    return kernel.op in INTEGER_EVERYWHERE and (not kernel.activation or not any(step for s in stored for step in s.steps))


def _paired(job: Job, kernel: Kernel, precision: Precision, tensors: Mapping[str, StoredTensor]) -> bool:
    """Every pair that the plan puts behind the kernel is there."""
    keys = [f"{t}:{precision}" for t in kernel.outputs if f"{t}:{precision}" in job.demanded.tensors]
    return all(k in tensors for k in keys)


def _silent_tensors(job: Job, tensors: Mapping[str, StoredTensor]) -> Iterator[tuple[str, str]]:
    """Pairs that the runtime removed beside a layer that moves values: another tensor of the same scale group holds the same codes."""
    groups = job.prepared.network.group_of
    held = {(groups[t].name, bits) for key in tensors for t, _, bits in [key.rpartition(":")] if t in groups}
    for key in job.demanded.tensors:
        tensor, _, bits = key.rpartition(":")
        if key not in tensors and tensor in groups and len(groups[tensor].tensors) > 1 and (groups[tensor].name, bits) in held:
            yield key, MOVED
