"""Where every tensor lives: offsets in one arena, by lifetime. Planned, not optimal: the problem is NP-hard.

Source: greedy by size and by breadth, best fit: Pisarchyk and Lee 2020 (arXiv 2001.03288), sections 4 and 5.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random

TRIALS = 20_000                 # hill climbing places about this many buffers in all, at most 200 times the whole plan


@dataclass(frozen=True, slots=True)
class Lifetime:
    """A buffer that is needed from the step that writes it to the last that reads it, both included."""

    name: str
    size_bytes: int
    first: int
    last: int

    def meets(self, other: Lifetime) -> bool:
        return self.first <= other.last and other.first <= self.last


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
    lower_bound_bytes  of the arena: no placement of these buffers can beat it
    aliases            tensor -> tensor whose bytes it lies in
    strategy           what placed them: one of STRATEGIES, or the allocator of the target's toolchain
    runtime_bytes      RAM that the runtime takes for itself, where a source says; 0 unknown
    smallest_bytes     arena of the best placement of the same buffers that is known here
    """

    placed: tuple[Placed, ...]
    weight_bytes: int
    arena_bytes: int
    lower_bound_bytes: int
    aliases: Mapping[str, str]
    strategy: str = ""
    runtime_bytes: int = 0
    smallest_bytes: int = 0

    @property
    def peak_bytes(self) -> int:
        """All of it in one memory."""
        return self.weight_bytes + self.arena_bytes + self.runtime_bytes

    @property
    def ram_bytes(self) -> int:
        """Where weights stay in flash."""
        return self.arena_bytes + self.runtime_bytes

    @property
    def gap(self) -> float:
        """How far the arena lies above its lower bound, as a share of the bound."""
        return self.arena_bytes / self.lower_bound_bytes - 1.0 if self.lower_bound_bytes else 0.0


def live_bound(buffers: Sequence[Lifetime]) -> int:
    """Largest sum of sizes alive at one step ("breadth")."""
    return max((b for _, b in _breadths(buffers)), default=0)


def _breadths(buffers: Sequence[Lifetime]) -> list[tuple[int, int]]:
    """(step, bytes alive) at every step that a buffer begins at."""
    return [(s, sum(b.size_bytes for b in buffers if b.first <= s <= b.last)) for s in sorted({b.first for b in buffers})]


def height(placed: Sequence[Placed]) -> int:
    """Bytes of the arena."""
    return max((p.end_bytes for p in placed), default=0)


# ---------------------------------------------------------------------------------------------------------- placing

def place_in(order: Sequence[Lifetime]) -> tuple[Placed, ...]:
    """Offsets of all buffers, in this order, each into the tightest gap that is free during its life."""
    done: list[Placed] = []
    for buffer in order:
        others = sorted((p for p in done if p.buffer.meets(buffer)), key=lambda p: p.offset_bytes)
        best, best_gap, cursor = None, 0, 0
        for p in others:
            gap = p.offset_bytes - cursor
            if gap >= buffer.size_bytes and (best is None or gap < best_gap):
                best, best_gap = cursor, gap
            cursor = max(cursor, p.end_bytes)
        done.append(Placed(buffer, cursor if best is None else best))
    return tuple(done)


def by_size(buffers: Sequence[Lifetime]) -> list[Lifetime]:
    """Largest first."""
    return sorted(buffers, key=lambda b: (-b.size_bytes, b.first, b.name))


def by_breadth(buffers: Sequence[Lifetime]) -> list[Lifetime]:
    """The buffers of the fullest step first, then those of the next one; largest first within a step."""
    rank: dict[str, int] = {}
    for i, (step, _) in enumerate(sorted(_breadths(buffers), key=lambda s: -s[1])):
        for b in buffers:
            if b.first <= step <= b.last:
                rank.setdefault(b.name, i)
    return sorted(buffers, key=lambda b: (rank[b.name], -b.size_bytes, b.first, b.name))


def hill_climb(order: Sequence[Lifetime], bound: int) -> tuple[Placed, ...]:
    """The placement after moving, one at a time, buffers that end at the top of the arena forward in the order. Same answer every time."""
    rng, best, placed = Random(0), list(order), place_in(order)
    for _ in range(min(200, TRIALS // max(1, len(order)))):
        top = height(placed)
        if top <= bound:
            break
        highest = rng.choice([i for i, p in enumerate(placed) if p.end_bytes == top])
        trial = best.copy()
        trial.insert(rng.randrange(highest) if highest else rng.randrange(len(trial)), trial.pop(highest))
        tried = place_in(trial)
        if height(tried) <= top:
            best, placed = trial, tried
    return placed


def place(buffers: Sequence[Lifetime]) -> tuple[tuple[Placed, ...], str]:
    """The smallest of three placements, and the name of the strategy that found it; the simplest one where they tie."""
    bound = live_bound(buffers)
    found = {"greedy by size": place_in(by_size(buffers)), "greedy by breadth": place_in(by_breadth(buffers))}
    name = min(found, key=lambda n: height(found[n]))
    if height(found[name]) > bound:
        climbed = hill_climb([p.buffer for p in found[name]], bound)
        if height(climbed) < height(found[name]):
            return climbed, "hill climbing"
    return found[name], name


def place_as_run(buffers: Sequence[Lifetime]) -> tuple[Placed, ...]:
    """Offsets given one after the other as an inference runs: each buffer into the tightest hole, the last hole grows when none fits."""
    done: list[Placed] = []
    live: list[Placed] = []
    top = 0
    for buffer in sorted(buffers, key=lambda b: b.first):
        live = sorted((p for p in live if p.buffer.last >= buffer.first), key=lambda p: p.offset_bytes)
        holes, cursor = [], 0
        for p in live:
            holes.append((p.offset_bytes - cursor, cursor))
            cursor = max(cursor, p.end_bytes)
        fitting = [h for h in (*holes, (top - cursor, cursor)) if h[0] >= buffer.size_bytes]
        spot = Placed(buffer, min(fitting)[1] if fitting else cursor)
        live.append(spot)
        done.append(spot)
        top = max(top, spot.end_bytes)
    return tuple(done)
