"""Where data change their layout, what that costs, and how to avoid it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from qbench.cost import CostTable, KernelRow
from qbench.cost.npu import NpuModel
from qbench.network import Kernel, Network, Precision
from qbench.target import OperatingPoint


@dataclass(frozen=True, slots=True)
class Conversion:
    """where     "input", "output" or "inside"
    tensor    that is converted, or the kernel that does it
    ms        predicted; None where the target has no constant for it
    charged   whether the predicted latency of the network holds it
    avoid     how to do without
    """

    where: str
    tensor: str
    what: str
    bytes: int
    ms: float | None
    charged: bool
    avoid: str


@dataclass(frozen=True, slots=True)
class Layouts:
    """native   what the target wants, "" where no public source says"""

    native: str
    conversions: tuple[Conversion, ...]
    ms_inside: float
    note: str


def layouts(table: CostTable, rows: tuple[KernelRow, ...], precision: Precision, point: OperatingPoint) -> Layouts:
    """rows   of `CostTable.kernel_table`"""
    native = table.target.layout.native or ""
    if not isinstance(table.model, NpuModel):
        return Layouts(native, (), 0.0, "the target computes in the layout of the model: nothing is converted")
    inside = tuple(_inside(table, table.model, rows))
    edges = tuple(_edges(table, table.model, precision, point))
    known = "" if native else "no public source says which layout the target wants; "
    priced = "inside: " + table.target.sources.get("cost.layout_bytes_per_s", "no constant")
    return Layouts(native, (*edges, *sorted(inside, key=lambda c: -(c.ms or 0.0))), sum(c.ms or 0.0 for c in inside), known + priced)


def _edges(table: CostTable, model: NpuModel, precision: Precision, point: OperatingPoint) -> Iterator[Conversion]:
    """Graph inputs and outputs: from float32 in the order of the model to the chip's layout, and back."""
    network, p = table.network, model.parameters
    for where, tensors in (("input", network.inputs), ("output", network.outputs)):
        for t in tensors:
            spec = network.tensors[t]
            if spec.dtype != "float32" or precision is Precision.FP32:
                continue
            moved = spec.elements * (4 + precision.activation_bytes)
            if p.edge_bytes_per_s:
                seconds, charged = spec.elements * precision.activation_bytes / p.edge_bytes_per_s, True
            elif model.charge_edges:
                seconds, charged = model.conversion(spec.elements, Precision.FP32, precision, point)[0], True
            else:
                seconds, charged = moved / p.cpu_bytes_per_s, False
            yield Conversion(where, t, f"float32 {list(spec.shape)} to {precision} in the chip's layout" if where == "input"
                             else f"{precision} in the chip's layout to float32 {list(spec.shape)}", moved, seconds * 1e3, charged, _edge(where, spec.shape))


def _edge(where: str, shape: tuple[int, ...]) -> str:
    if where == "output":
        return "read the output in the chip's layout and type, and decode there; cut a Transpose or Softmax at the end"
    return "hand over uint8 in the chip's own layout (zero-copy input), with mean and scale in the first convolution" if len(shape) == 4 else (
        "hand over the chip's own type")


def _inside(table: CostTable, model: NpuModel, rows: tuple[KernelRow, ...]) -> Iterator[Conversion]:
    for row in rows:
        kernel = table.network.kernel.get(row.name)
        if kernel is None or row.placement != "NPU":
            continue
        work = model.work(kernel, table.network, Precision(row.precision))[1]
        if work.layout_bytes:
            yield Conversion("inside", kernel.name, _words(kernel, table.network), int(work.layout_bytes), row.ms, True, _avoid(kernel, table.network, model, row))


def _words(kernel: Kernel, network: Network) -> str:
    ends = [list(network.tensors[t].shape) for t in (*kernel.inputs[:1], *kernel.outputs[:1])]
    return f"{kernel.op} {' to '.join(str(e) for e in ends)}"


def _avoid(kernel: Kernel, network: Network, model: NpuModel, row: KernelRow) -> str:
    maker = network.producer.get(kernel.inputs[0]) if kernel.inputs else None
    readers = network.consumers.get(kernel.outputs[0], ()) if kernel.outputs else ()
    if kernel.op == "Transpose":
        if any(network.kernel[r].op == "Transpose" for r in readers) or (maker and network.kernel[maker].op == "Transpose"):
            return "two Transposes meet: merge or cancel them"
        if kernel.inputs and kernel.inputs[0] in network.inputs:
            return "export the model with the channel order that the network computes in (NCHW), and drop this Transpose"
        if kernel.outputs and kernel.outputs[0] in network.outputs:
            return "cut it off and let the host index the output instead"
        return "keep the axes in order: move the Transpose over elementwise operators until it meets another, or fold it into weights"
    if kernel.kind in ("concat", "split") or kernel.op in ("Slice", "Gather"):
        step = int(model.parameters.atom_bytes // Precision(row.precision).activation_bytes)
        return f"give each part a multiple of {step} channels"
    if kernel.outputs and kernel.outputs[0] in network.outputs:
        return "cut it off: the host can reshape for nothing"
    return "keep four axes with the channels where they are; a Reshape that moves channels re-packs every value"
