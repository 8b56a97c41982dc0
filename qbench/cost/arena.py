"""Memory of many plans at once: the bytes alive at each step as a linear form of the precisions that a plan chooses.

The largest of the steps is a lower bound of the arena that `plan` then lays out. Where a kernel's operands may share bytes, or where the
toolchain takes several launches, that kernel's step counts only what lives past it on both sides.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qbench.cost.kernel import CostModel
from qbench.cost.memory import Lifetime, MemoryPlan, height, live_bound, place, place_as_run
from qbench.cost.parameters import NpuParameters
from qbench.cost.rknn_buffers import bounds_of, buffers_of
from qbench.cost.sharing import DEFAULT, apart, lifetimes, shared, shares
from qbench.network import Network, Precision
from qbench.target import MemoryRules

Floats = NDArray[np.float64]
Codes = NDArray[np.integer[Any]]
RKNN = "rknn-toolkit2"
"""Allocator whose buffers and order `qbench.cost.rknn_buffers` knows."""
ALLOCATORS = (RKNN,)


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

    rules: MemoryRules
    parameters: NpuParameters | None
    edges: tuple[Edge, ...]
    stored: tuple[tuple[str, tuple[int, int], int], ...]
    sizes: dict[str, tuple[int, ...]]
    live: Floats
    copies: Floats
    copy_bytes: Floats

    @staticmethod
    def of(network: Network, model: CostModel, precisions: Sequence[Precision], rules: MemoryRules) -> Arena:
        parameters = getattr(model, "parameters", None)
        rknn = parameters if rules.allocator == RKNN and isinstance(parameters, NpuParameters) else None
        units = {u.name: i for i, u in enumerate(network.units)}
        edges, spans = edges_of(network), lifetimes(network)
        stored = []
        for t, span in spans.items():
            maker = network.producer.get(t) or next(iter(network.consumers.get(t, ())), None)
            if maker is not None:
                stored.append((t, span, units[network.unit_of_kernel[maker]]))
        names = sorted({t for t, _, _ in stored} | {e.tensor for e in edges})
        steps, width = len(network.kernels), len(precisions)
        if rknn:
            counted = spans
            loose, sizes, doubles = bounds_of(network, precisions, names, rknn)
        else:
            counted = apart(network)
            loose = {i for i, k in enumerate(network.kernels) if shares(k)}
            sizes = doubles = {t: tuple(model.tensor_bytes(network, t, p) for p in precisions) for t in names}
        live, copies = np.zeros((steps, len(units), width)), np.zeros((len(edges), steps))
        for t, _, u in stored:
            live[_counted(*counted[t], loose), u] += sizes[t]
        for e, edge in enumerate(edges):
            copies[e, _counted(edge.first, edge.last, loose)] = 1.0
        flat = live.reshape(steps, -1)
        keep = _undominated(np.concatenate([flat, copies.T], axis=1))
        off = ~np.eye(width, dtype=bool)
        twice = np.array([off * np.array(doubles[e.tensor])[None, :] for e in edges], dtype=float).reshape(len(edges), width, width)
        return Arena(rules, rknn, edges, tuple(stored), sizes, np.ascontiguousarray(flat[keep]), np.ascontiguousarray(copies[:, keep]), twice)

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
        runtime = self.rules.runtime_ram_bytes
        unit = {u.name: int(c) for u, c in zip(network.units, codes, strict=True)}
        readers = {k: unit[u] for k, u in network.unit_of_kernel.items()}
        if self.parameters:
            buffers, aliases = buffers_of(network, {k: precisions[c] for k, c in readers.items()}, self.parameters)
            placed = place_as_run(buffers)
            return MemoryPlan(placed, weight_bytes, height(placed), live_bound(buffers), aliases, RKNN, runtime, height(place(buffers)[0]))
        sizes = {t: self.sizes[t][codes[u]] for t, _, u in self.stored}
        copies = [Lifetime(f"{e.tensor} as {precisions[codes[e.consumer]]} for {network.units[e.consumer].name}",
                           self.sizes[e.tensor][codes[e.consumer]], e.first, e.last)
                  for e in self.edges if codes[e.producer] != codes[e.consumer]]
        stored_in = {t: int(codes[u]) for t, _, u in self.stored}
        ways = DEFAULT if self.rules.shares is None else self.rules.shares
        found = []
        for allowed in dict.fromkeys((ways, tuple(w for w in ways if w not in ("concat", "split")))):
            buffers, aliases = shared(network, sizes, stored_in, readers, allowed)
            placed, strategy = place([*buffers, *copies])
            found.append(MemoryPlan(placed, weight_bytes, height(placed), live_bound([*buffers, *copies]), aliases, strategy, runtime, height(placed)))
        return min(found, key=lambda m: m.arena_bytes)


def _counted(first: int, last: int, loose: Collection[int]) -> list[int]:
    """Steps of a lifetime that a bound may count: at its ends only those whose kernel keeps all its operands apart."""
    return [s for s in range(first, last + 1) if s not in loose or first < s < last]


def _undominated(rows: Floats) -> NDArray[np.intp]:
    """Indices of rows that no other row reaches in every column; of equal rows the first. Nothing in `rows` is negative."""
    kept: list[int] = []
    tried = np.empty_like(rows)                      # the kept ones, in the order of `kept`
    for i in np.argsort(-rows.sum(axis=1), kind="stable"):
        alive = np.flatnonzero(rows[i])              # in the other columns any row reaches it
        if not (tried[:len(kept), alive] >= rows[i, alive]).all(axis=1).any():
            tried[len(kept)] = rows[i]
            kept.append(int(i))
    return np.array(sorted(kept), dtype=np.intp)
