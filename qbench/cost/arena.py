"""Memory of many plans at once: the bytes alive at each step as a linear form of the precisions that a plan chooses.

The largest of the steps is a lower bound of the arena, and greedy placement reaches it on most networks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qbench.cost.kernel import CostModel
from qbench.cost.memory import Lifetime, MemoryPlan, aliases, lifetimes, live_bound, place
from qbench.network import Network, Precision

Floats = NDArray[np.float64]
Codes = NDArray[np.integer[Any]]


@dataclass(frozen=True, slots=True)
class Edge:
    """A tensor that one unit writes and another reads: stored once more when their precisions differ.

    first, last   steps between which the second copy lives
    """

    tensor: str
    producer: int
    consumer: int
    first: int
    last: int


def edges_of(network: Network) -> tuple[Edge, ...]:
    """One edge per tensor and unit that reads it without having written it; a graph input belongs to the unit that reads it first."""
    index = {u.name: i for i, u in enumerate(network.units)}
    step = {k.name: i for i, k in enumerate(network.kernels)}
    found = []
    for tensor, readers in network.consumers.items():
        if tensor not in network.tensors or network.tensors[tensor].dtype != "float32":
            continue
        owner = network.unit_of_kernel[network.producer.get(tensor, readers[0])]
        by_unit: dict[str, list[int]] = {}
        for r in readers:
            by_unit.setdefault(network.unit_of_kernel[r], []).append(step[r])
        found += [Edge(tensor, index[owner], index[u], min(at), max(at)) for u, at in by_unit.items() if u != owner]
    return tuple(found)


@dataclass(frozen=True)
class Arena:
    """Tensors of a network with their lifetimes, and their sizes per precision.

    stored   tensor, lifetime, unit whose precision it is stored in
    sizes    tensor -> bytes per precision
    live     [kept steps, units * precisions]: bytes alive, without second copies
    copies   [edges, kept steps]: 1 where an edge's second copy lives
    copy_bytes   [edges, precisions, precisions]: size of the second copy, 0 on the diagonal
    """

    edges: tuple[Edge, ...]
    stored: tuple[tuple[str, tuple[int, int], int], ...]
    sizes: dict[str, tuple[int, ...]]
    live: Floats
    copies: Floats
    copy_bytes: Floats

    @staticmethod
    def of(network: Network, model: CostModel, precisions: Sequence[Precision]) -> Arena:
        units = {u.name: i for i, u in enumerate(network.units)}
        edges = edges_of(network)
        stored = []
        for t, span in lifetimes(network).items():
            maker = network.producer.get(t) or next(iter(network.consumers.get(t, ())), None)
            if maker is not None:
                stored.append((t, span, units[network.unit_of_kernel[maker]]))
        names = sorted({t for t, _, _ in stored} | {e.tensor for e in edges})
        sizes = {t: tuple(model.tensor_bytes(network, t, p) for p in precisions) for t in names}
        steps, width = len(network.kernels), len(precisions)
        live, copies = np.zeros((steps, len(units), width)), np.zeros((len(edges), steps))
        for t, (first, last), u in stored:
            live[first:last + 1, u] += sizes[t]
        for e, edge in enumerate(edges):
            copies[e, edge.first:edge.last + 1] = 1.0
        flat = live.reshape(steps, -1)
        keep = _undominated(np.concatenate([flat, copies.T], axis=1))
        off = ~np.eye(width, dtype=bool)
        twice = np.array([off * np.array(sizes[e.tensor])[None, :] for e in edges], dtype=float).reshape(len(edges), width, width)
        return Arena(edges, tuple(stored), sizes, np.ascontiguousarray(flat[keep]), np.ascontiguousarray(copies[:, keep]), twice)

    def bound(self, codes: Codes) -> Floats:
        """Bytes that the arena of each plan in `codes` [plans, units] needs at least."""
        n, width = len(codes), self.copy_bytes.shape[1]
        chosen = np.zeros((n, self.live.shape[1]))
        chosen[np.arange(n)[:, None], np.arange(codes.shape[1]) * width + codes] = 1.0
        a, b = codes[:, [e.producer for e in self.edges]], codes[:, [e.consumer for e in self.edges]]
        alive = chosen @ self.live.T + self.copy_bytes[np.arange(len(self.edges)), a, b] @ self.copies
        found: Floats = alive.max(axis=1) if alive.shape[1] else np.zeros(n)
        return found

    def plan(self, network: Network, codes: Codes, weight_bytes: int, precisions: Sequence[Precision]) -> MemoryPlan:
        """Offsets of every tensor for one plan [units], second copies included."""
        buffers = [Lifetime(t, self.sizes[t][codes[u]], first, last) for t, (first, last), u in self.stored]
        buffers += [Lifetime(f"{e.tensor} as {precisions[codes[e.consumer]]} for {network.units[e.consumer].name}",
                             self.sizes[e.tensor][codes[e.consumer]], e.first, e.last)
                    for e in self.edges if codes[e.producer] != codes[e.consumer]]
        placed = place(buffers)
        return MemoryPlan(placed, weight_bytes, max((p.end_bytes for p in placed), default=0), live_bound(buffers), aliases(network))


def _undominated(rows: Floats) -> NDArray[np.intp]:
    """Indices of rows that no other row reaches in every column; of equal rows the first."""
    kept: list[int] = []
    for i in np.argsort(-rows.sum(axis=1), kind="stable"):
        if not any(np.all(rows[j] >= rows[i]) for j in kept):
            kept.append(int(i))
    return np.array(sorted(kept), dtype=np.intp)
