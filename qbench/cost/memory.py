"""Where every tensor lives: offsets in one arena, by lifetime. Planned, not optimal: the problem is NP-hard.

Source: greedy by size, best fit: Pisarchyk and Lee 2020 (arXiv 2001.03288), section 5.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from qbench.network import Kernel, Network

IN_PLACE_OPS = frozenset({"Reshape", "Flatten", "Squeeze", "Unsqueeze", "Identity", "Dropout"})


@dataclass(frozen=True, slots=True)
class Lifetime:
    """A buffer that is needed from the step that writes it to the last that reads it, both included."""

    name: str
    size_bytes: int
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class Placed:
    buffer: Lifetime
    offset_bytes: int

    @property
    def end_bytes(self) -> int:
        return self.offset_bytes + self.buffer.size_bytes


@dataclass(frozen=True)
class MemoryPlan:
    """Peak memory of one plan of precisions.

    arena_bytes        activations, graph inputs and outputs included
    lower_bound_bytes  of the arena: no order of buffers in memory can beat it
    aliases            tensor -> tensor whose bytes it shares
    """

    placed: tuple[Placed, ...]
    weight_bytes: int
    arena_bytes: int
    lower_bound_bytes: int
    aliases: Mapping[str, str]

    @property
    def peak_bytes(self) -> int:
        return self.weight_bytes + self.arena_bytes


def live_bound(buffers: Sequence[Lifetime]) -> int:
    """Largest sum of sizes alive at one step."""
    steps = sorted({b.first for b in buffers})
    return max((sum(b.size_bytes for b in buffers if b.first <= s <= b.last) for s in steps), default=0)


def place(buffers: Sequence[Lifetime]) -> tuple[Placed, ...]:
    """Offsets of all buffers: largest first, each into the tightest gap that is free during its life."""
    done: list[Placed] = []
    for buffer in sorted(buffers, key=lambda b: (-b.size_bytes, b.first, b.name)):
        others = sorted((p for p in done if p.buffer.first <= buffer.last and buffer.first <= p.buffer.last),
                        key=lambda p: p.offset_bytes)
        best, best_gap, cursor = None, 0, 0
        for p in others:
            gap = p.offset_bytes - cursor
            if gap >= buffer.size_bytes and (best is None or gap < best_gap):
                best, best_gap = cursor, gap
            cursor = max(cursor, p.end_bytes)
        done.append(Placed(buffer, cursor if best is None else best))
    return tuple(done)


def aliases(network: Network) -> dict[str, str]:
    """Tensors that share the bytes of another: outputs of kernels that only rename axes."""
    found: dict[str, str] = {}
    for k in network.kernels:
        if in_place(k) and len(k.inputs) == 1 and len(k.outputs) == 1:
            found[k.outputs[0]] = found.get(k.inputs[0], k.inputs[0])
    return found


def in_place(kernel: Kernel) -> bool:
    """Whether a kernel moves no data at all."""
    return kernel.kind == "reshape" and all(op in IN_PLACE_OPS for op in kernel.op.split("+"))


def lifetimes(network: Network) -> dict[str, tuple[int, int]]:
    """First and last step of every tensor that has bytes of its own; steps are positions in `network.kernels`."""
    step = {k.name: i for i, k in enumerate(network.kernels)}
    end = len(network.kernels) - 1
    shared = aliases(network)
    span: dict[str, tuple[int, int]] = {}
    for t in (*network.inputs, *(o for k in network.kernels for o in k.outputs)):
        first = step[network.producer[t]] if t in network.producer else 0
        uses = [step[c] for c in network.consumers.get(t, ())]
        last = end if t in network.outputs else max(uses, default=first)
        owner = shared.get(t, t)
        if owner in span:
            first, last = min(first, span[owner][0]), max(last, span[owner][1])
        span[owner] = first, last
    return span
