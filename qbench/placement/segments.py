"""Parts of the network that leave the NPU: each costs a hand-over there and back, so their number matters more than their work.

A segment is a set of neighbouring CPU kernels that can run in one go: no way leads from one of its members through the NPU to another.
Neighbours are joined along the edges in execution order until no two segments can be joined.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from qbench.cost import CostModel, KernelRow
from qbench.cost.npu import NpuModel
from qbench.network import Network, Precision
from qbench.placement.record import Placement
from qbench.target import OperatingPoint


@dataclass(frozen=True, slots=True)
class Crossing:
    """A tensor that goes from one side to the other. bytes   at the precision in use"""

    tensor: str
    bytes: int


@dataclass(frozen=True, slots=True)
class Segment:
    """Kernels that run on the CPU in one go.

    returns   True where the NPU goes on behind it, False at the end of the network
    refused   members that stop the conversion: they have to be cut out or rewritten first
    ms        hand-over included
    npu_ms    the same kernels if the NPU took them
    """

    kernels: tuple[str, ...]
    ops: tuple[str, ...]
    enters: tuple[Crossing, ...]
    leaves: tuple[Crossing, ...]
    returns: bool
    refused: tuple[str, ...]
    ms: float
    npu_ms: float


@dataclass(frozen=True, slots=True)
class Fallback:
    """segments    known CPU parts
    npu_parts   pieces that the NPU's share falls into
    possible    further segments if every operator of unknown support fell back; None: nothing is known of any
    ms          of all segments; the predicted latency of the network holds them
    split       kernels of which the toolchain puts a part on the CPU: priced as on the NPU
    note        why there is nothing to say, or what the prices rest on
    """

    segments: tuple[Segment, ...]
    npu_parts: int
    possible: int | None
    ms: float
    split: tuple[str, ...]
    note: str


def fallback(network: Network, kernels: Mapping[str, Placement], model: CostModel, rows: Sequence[KernelRow], precision: Precision, point: OperatingPoint,
             basis: str) -> Fallback:
    """What the rows have on the CPU.

    kernels   placement of each by the rules; rows   of `CostTable.kernel_table`; basis   source of the CPU constants
    """
    if not isinstance(model, NpuModel):
        return Fallback((), 0, 0, 0.0, (), "the target has no NPU: everything runs on its core, nothing is handed over")
    away = {r.name: r for r in rows if r.placement == "CPU" and r.name in kernels}
    if not away and all(p is Placement.UNKNOWN for p in kernels.values()):
        return Fallback((), 0, None, 0.0, (), "no public operator table exists for this target: which operators fall back cannot be told")
    doubtful = {*away, *(k for k, p in kernels.items() if p is Placement.UNKNOWN)}
    parts = parts_of(network, away)
    found = tuple(_segment(network, part, kernels, away, model, precision, point) for part in parts)
    return Fallback(found, len(parts_of(network, {k.name for k in network.kernels} - set(away))), max(0, len(parts_of(network, doubtful)) - len(parts)),
                    sum(s.ms for s in found), tuple(k for k, p in kernels.items() if p is Placement.PARTLY), f"prices: {basis}" if found else "")


def parts_of(network: Network, members: Collection[str]) -> list[tuple[str, ...]]:
    """`members` (kernels) as connected sets that no way through other kernels leads out of and back into; no two of them could be one."""
    names = [k.name for k in network.kernels]
    order = {n: i for i, n in enumerate(names)}
    above, below = _reach(network, order)
    edges = [(order[network.producer[t]], order[k.name]) for k in network.kernels if k.name in members for t in k.inputs
             if network.producer.get(t) in members]
    part = {order[m]: _Part(1 << order[m], above[order[m]], below[order[m]]) for m in members}
    merged = True
    while merged:
        merged = False
        for a, b in edges:
            both = part[a].joined(part[b])
            if part[a] is not part[b] and not both.above & both.below & ~both.members:
                part.update({i: both for i in _bits(both.members)})
                merged = True
    whole = sorted({p.members for p in part.values()}, key=lambda m: m & -m)
    return [tuple(names[i] for i in _bits(m)) for m in whole]


@dataclass(frozen=True, slots=True)
class _Part:
    """Kernels as bits: the members, all that lead to one of them, all that one of them leads to."""

    members: int
    above: int
    below: int

    def joined(self, other: _Part) -> _Part:
        return _Part(self.members | other.members, self.above | other.above, self.below | other.below)


def _bits(number: int) -> list[int]:
    """Positions of the ones, ascending."""
    return [i for i, digit in enumerate(reversed(f"{number:b}")) if digit == "1"]


def _reach(network: Network, order: Mapping[str, int]) -> tuple[list[int], list[int]]:
    """Kernels before and after each, as bits."""
    above, below = [0] * len(order), [0] * len(order)
    for i, k in enumerate(network.kernels):
        for t in k.inputs:
            if t in network.producer:
                j = order[network.producer[t]]
                above[i] |= above[j] | 1 << j
    for i in reversed(range(len(order))):
        for t in network.kernels[i].outputs:
            for reader in network.consumers.get(t, ()):
                j = order[reader]
                below[i] |= below[j] | 1 << j
    return above, below


def _segment(network: Network, part: tuple[str, ...], placed: Mapping[str, Placement], away: Mapping[str, KernelRow], model: NpuModel, precision: Precision,
             point: OperatingPoint) -> Segment:
    kernels = [network.kernel[n] for n in part]
    made = {t for k in kernels for t in (*k.outputs, *k.inner)}
    read = dict.fromkeys(t for k in kernels for t in k.inputs if t not in made)
    enters = [t for t in read if network.producer.get(t) not in away]
    readers = {t: network.consumers.get(t, ()) for k in kernels for t in k.outputs}
    leaves = [t for t, names in readers.items() if t in network.outputs or any(n not in away for n in names)]
    returns = any(n not in away for names in readers.values() for n in names)
    on_npu = sum(model.all_on_npu().kernel(k, network, Precision(away[k.name].precision), point).seconds for k in kernels)
    return Segment(part, tuple(dict.fromkeys(op for k in kernels for op in k.op.split("+"))), _crossings(network, enters, precision),
                   _crossings(network, leaves, precision), returns, tuple(n for n in part if placed[n] is Placement.REFUSED),
                   sum(away[n].ms for n in part), on_npu * 1e3)


def _crossings(network: Network, tensors: Iterable[str], precision: Precision) -> tuple[Crossing, ...]:
    return tuple(Crossing(t, bytes_of(network, t, precision)) for t in tensors)


def bytes_of(network: Network, tensor: str, precision: Precision) -> int:
    """Of a tensor as it crosses: float values in `precision`, others in their own type."""
    spec = network.tensors[tensor]
    if spec.dtype in ("float32", "object"):
        return spec.elements * precision.activation_bytes
    return spec.elements * np.dtype(spec.dtype).itemsize
