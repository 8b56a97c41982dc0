"""The cost of every kernel at every precision and operating point, computed once; plans are priced by looking up and adding.

    latency(plan) = fixed + sum over units u of unit[u, p_u] + sum over pairs (a, b) of pair[a, b][p_a, p_b]

exactly, and likewise for energy, so that a linear program over the same entries has the same optimum.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from qbench.cost.arena import Arena, Codes, Edge, Floats, edges_of
from qbench.cost.kernel import CostModel, KernelCost
from qbench.cost.memory import MemoryPlan
from qbench.cost.model import cost_model
from qbench.errors import ModelError, PlanError
from qbench.network import Network, Precision
from qbench.plan import Plan, check_fits
from qbench.protocols import Price
from qbench.target import OperatingPoint, Target

CHUNK = 4096                    # plans priced at a time, so that memory stays bounded


@dataclass(frozen=True, slots=True)
class UnitCosts:
    """Per unit and precision, [units, precisions]: seconds, joules (static power included), bytes of weights."""

    seconds: Floats
    joules: Floats
    weight_bytes: Floats


@dataclass(frozen=True, slots=True)
class PairCost:
    """Conversions between units `a` (writes) and `b` (reads), indices into `units`: [precision of a, precision of b]."""

    a: int
    b: int
    seconds: Floats
    joules: Floats


@dataclass(frozen=True, slots=True)
class PriceArrays:
    """Prices of many plans at one operating point, one entry per plan."""

    latency_s: Floats
    latency_low_s: Floats
    latency_high_s: Floats
    energy_j: Floats
    power_w: Floats
    peak_bytes: Floats


@dataclass(frozen=True, slots=True)
class KernelRow:
    """One line of `qbench cost`. mj   millijoules, its share of the static power included"""

    name: str
    op: str
    unit: str
    precision: str
    ms: float
    bound: str
    dram_bytes: float
    macs: int
    utilisation: float
    placement: str
    mj: float


@dataclass(frozen=True)
class CostTable:
    """Built by `CostTable.build`; answers the `Pricer` protocol.

    kernels       [kernel][precision][operating point]
    edge_seconds, edge_joules  [points, edges, precisions, precisions], static power left out of the joules
    """

    network: Network
    target: Target
    toolkit: str
    model: CostModel
    available: tuple[Precision, ...]
    kernels: tuple[tuple[tuple[KernelCost, ...], ...], ...]
    edges: tuple[Edge, ...]
    edge_seconds: Floats
    edge_joules: Floats

    @staticmethod
    def build(network: Network, target: Target, toolkit: str | None = None, model: CostModel | None = None) -> CostTable:
        """Prices every kernel of `network`, by the target's own model where none is given.

        Raises TargetError for an unknown toolkit version, ModelError for a network that computes nothing.
        """
        if not network.kernels:
            raise ModelError(f"model {network.name!r} has no operator left once its constants are folded: there is nothing to price")
        version = target.toolkit(toolkit)
        model, have, points = model or cost_model(target, version), target.available(version), target.operating_points
        kernels = tuple(tuple(tuple(model.kernel(k, network, p, o) for o in points) for p in have) for k in network.kernels)
        edges = edges_of(network)
        pairs = np.zeros((2, len(points), len(edges), len(have), len(have)))
        for o, point in enumerate(points):
            for e, edge in enumerate(edges):
                for i, p in enumerate(have):
                    for j, q in enumerate(have):
                        if p is not q:
                            pairs[:, o, e, i, j] = model.conversion(network.tensors[edge.tensor].elements, p, q, point)
        return CostTable(network, target, version, model, have, kernels, edges, pairs[0], pairs[1])

    # ------------------------------------------------------------------------------------------------ names

    @cached_property
    def units(self) -> tuple[str, ...]:
        return tuple(u.name for u in self.network.units)

    @cached_property
    def precisions(self) -> tuple[str, ...]:
        return tuple(str(p) for p in self.available)

    @cached_property
    def op_points(self) -> tuple[str, ...]:
        return tuple(p.name for p in self.target.operating_points)

    @cached_property
    def allowed(self) -> NDArray[np.bool_]:
        """[units, precisions]: False where a unit has to stay in float."""
        return np.array([[u.quantizable or p.is_float for p in self.available] for u in self.network.units], dtype=bool).reshape(
            len(self.units), len(self.available))

    def codes(self, plan: Plan) -> NDArray[np.int64]:
        """[units] of the plan as indices into `precisions`.

        Raises PlanError when the plan is for another model, PrecisionUnavailable when it holds a precision that the chip or
        the toolkit version lacks.
        """
        check_fits(plan, self.network, constants=False)
        for precision in dict.fromkeys(plan.precision.values()):
            self.target.support(precision, self.toolkit)
        return np.array([self.available.index(plan.precision[u]) for u in self.units], dtype=np.int64)

    def uniform(self, precision: Precision) -> NDArray[np.int64]:
        """[units]: `precision` wherever it is allowed, else the target's first float precision."""
        self.target.support(precision, self.toolkit)
        code = self.available.index(precision)
        floats = [i for i, p in enumerate(self.available) if p.is_float]
        return np.array([code if ok[code] else floats[0] for ok in self.allowed], dtype=np.int64)

    # ------------------------------------------------------------------------------------------------ linear parts

    def fixed(self, op_point: str) -> tuple[float, float]:
        """Seconds and joules of an inference that no precision changes."""
        point = self.target.operating_point(op_point)
        return self.model.model_overhead_s, self.model.model_overhead_s * self.model.static_watts(point)

    def unit_costs(self, op_point: str) -> UnitCosts:
        o = self._point(op_point)
        static = self.model.static_watts(self.target.operating_points[o])
        return UnitCosts(self._unit_seconds[o], self._unit_joules[o] + static * self._unit_seconds[o], self._unit_weights)

    def pair_costs(self, op_point: str) -> tuple[PairCost, ...]:
        """One entry per ordered pair of units that share a tensor; both of its matrices have zeros on the diagonal."""
        o = self._point(op_point)
        static = self.model.static_watts(self.target.operating_points[o])
        found: dict[tuple[int, int], tuple[Floats, Floats]] = {}
        for e, edge in enumerate(self.edges):
            s, j = found.get((edge.producer, edge.consumer), (0.0, 0.0))
            seconds = self.edge_seconds[o, e]
            found[edge.producer, edge.consumer] = s + seconds, j + self.edge_joules[o, e] + static * seconds
        return tuple(PairCost(a, b, s, j) for (a, b), (s, j) in found.items())

    # ------------------------------------------------------------------------------------------------ plans

    def price_arrays(self, codes: Codes, op_point: str) -> PriceArrays:
        """Prices of `codes` [plans, units]. Memory is the lower bound of the arena plus weights; `memory` plans one exactly."""
        codes = np.atleast_2d(np.asarray(codes))
        self._check(codes)
        parts = [self._price(codes[i:i + CHUNK], self._point(op_point)) for i in range(0, len(codes), CHUNK)]
        seconds, joules, peak = (np.concatenate([p[i] for p in parts]) if parts else np.zeros(0) for i in range(3))
        safe = np.maximum(seconds, 1e-30)
        return PriceArrays(seconds, seconds * self.target.latency_factor_low, seconds * self.target.latency_factor_high,
                           joules, joules / safe, peak)

    def price(self, codes: NDArray[np.int64], op_point: str) -> Sequence[Price]:
        a = self.price_arrays(codes, op_point)
        rows = zip((a.latency_s * 1e3).tolist(), (a.latency_low_s * 1e3).tolist(), (a.latency_high_s * 1e3).tolist(),
                   (a.energy_j * 1e3).tolist(), a.power_w.tolist(), a.peak_bytes.tolist(), strict=True)
        return [Price(ms, low, high, mj, w, int(b), op_point) for ms, low, high, mj, w, b in rows]

    def kernel_costs(self, codes: Codes, op_point: str) -> tuple[KernelCost, ...]:
        """Cost of every kernel of one plan, in execution order; `codes` [units]. Static power and conversions are left out."""
        o = self._point(op_point)
        return tuple(costs[codes[self._unit_of[k.name]]][o] for k, costs in zip(self.network.kernels, self.kernels, strict=True))

    def kernel_precisions(self, codes: Codes) -> tuple[Precision, ...]:
        """Precision of every kernel of one plan, in execution order; `codes` [units]."""
        return tuple(self.available[codes[self._unit_of[k.name]]] for k in self.network.kernels)

    def kernel_table(self, plan: Plan | Codes, op_point: str) -> tuple[KernelRow, ...]:
        """Every kernel and every conversion of one plan; their `ms` and `mj` add up to the plan's price."""
        codes = self.codes(plan) if isinstance(plan, Plan) else np.asarray(plan)
        self._check(codes[None])
        o = self._point(op_point)
        static = self.model.static_watts(self.target.operating_points[o])
        rows = [KernelRow(cost.name, cost.op, self.network.unit_of_kernel[k.name], str(precision), cost.seconds * 1e3, cost.bound, cost.dram_bytes,
                          cost.macs, cost.utilisation, cost.placement, (cost.joules + static * cost.seconds) * 1e3)
                for k, precision, cost in zip(self.network.kernels, self.kernel_precisions(codes), self.kernel_costs(codes, op_point), strict=True)]
        return (*rows, *self._conversion_rows(codes, o, static), *self._edge_rows(codes, o, static))

    def memory(self, plan: Plan | Codes) -> MemoryPlan:
        """Offsets of every tensor under one plan, second copies at conversions included."""
        codes = self.codes(plan) if isinstance(plan, Plan) else np.asarray(plan)
        self._check(codes[None])
        weights = int(self._unit_weights[np.arange(len(codes)), codes].sum())
        return self._arena.plan(self.network, codes, weights, self.available)

    # ------------------------------------------------------------------------------------------------ inside

    def _point(self, op_point: str) -> int:
        return self.target.operating_points.index(self.target.operating_point(op_point))

    def _check(self, codes: Codes) -> None:
        if codes.shape[1:] != (len(self.units),):
            raise PlanError(f"codes have shape {codes.shape}; expected [plans, {len(self.units)}], one column per unit")
        if codes.size and not (codes.min() >= 0 and codes.max() < len(self.available)):
            raise PlanError(f"codes lie in {codes.min()}..{codes.max()}; expected indices into {', '.join(self.precisions)}")

    @cached_property
    def _unit_of(self) -> dict[str, int]:
        index = {u: i for i, u in enumerate(self.units)}
        return {k: index[u] for k, u in self.network.unit_of_kernel.items()}

    @cached_property
    def _edge_conversions(self) -> tuple[tuple[str, int], ...]:
        """Graph inputs with the unit that reads them first, and outputs with the unit that writes them."""
        if not self.model.charge_edges:
            return ()
        ends = [(t, self._unit_of[self.network.consumers[t][0]]) for t in self.network.inputs if t in self.network.consumers]
        ends += [(t, self._unit_of[self.network.producer[t]]) for t in self.network.outputs if t in self.network.producer]
        return tuple((t, u) for t, u in ends if self.network.tensors[t].dtype == "float32")

    def _edge_cost(self, tensor: str, precision: Precision, point: OperatingPoint) -> tuple[float, float]:
        """Seconds and joules of turning a graph input from float into `precision`, or an output back."""
        if precision is Precision.FP32:
            return 0.0, 0.0
        return self.model.conversion(self.network.tensors[tensor].elements, Precision.FP32, precision, point)

    @cached_property
    def _unit_arrays(self) -> tuple[Floats, Floats]:
        points = self.target.operating_points
        seconds, joules = np.zeros((2, len(points), len(self.units), len(self.available)))
        for k, costs in zip(self.network.kernels, self.kernels, strict=True):
            u = self._unit_of[k.name]
            seconds[:, u] += np.array([[c.seconds for c in row] for row in costs]).T
            joules[:, u] += np.array([[c.joules for c in row] for row in costs]).T
        for tensor, u in self._edge_conversions:
            for o, point in enumerate(points):
                for i, p in enumerate(self.available):
                    s, j = self._edge_cost(tensor, p, point)
                    seconds[o, u, i] += s
                    joules[o, u, i] += j
        return seconds, joules

    @property
    def _unit_seconds(self) -> Floats:
        return self._unit_arrays[0]

    @property
    def _unit_joules(self) -> Floats:
        return self._unit_arrays[1]

    @cached_property
    def _unit_weights(self) -> Floats:
        found = np.zeros((len(self.units), len(self.available)))
        for k in self.network.kernels:
            found[self._unit_of[k.name]] += [self.model.weight_bytes(k, p) for p in self.available]
        return found

    @cached_property
    def _arena(self) -> Arena:
        return Arena.of(self.network, self.model, self.available, self.target.memory)

    def _price(self, codes: Codes, o: int) -> tuple[Floats, Floats, Floats]:
        """Seconds, joules and peak bytes of `codes` [plans, units]."""
        units, edges = np.arange(len(self.units)), np.arange(len(self.edges))
        a = codes[:, [e.producer for e in self.edges]]
        b = codes[:, [e.consumer for e in self.edges]]
        seconds = self._unit_seconds[o][units, codes].sum(axis=1) + self.edge_seconds[o][edges, a, b].sum(axis=1) + self.model.model_overhead_s
        joules = self._unit_joules[o][units, codes].sum(axis=1) + self.edge_joules[o][edges, a, b].sum(axis=1)
        joules = joules + self.model.static_watts(self.target.operating_points[o]) * seconds
        peak = self._unit_weights[units, codes].sum(axis=1) + self._arena.bound(codes)
        return seconds, joules, peak

    def _conversion_rows(self, codes: Codes, o: int, static: float) -> list[KernelRow]:
        rows = []
        for e, edge in enumerate(self.edges):
            p, q = codes[edge.producer], codes[edge.consumer]
            if p != q:
                s, j = float(self.edge_seconds[o, e, p, q]), float(self.edge_joules[o, e, p, q])
                moved = self.network.tensors[edge.tensor].elements * sum(self.available[c].activation_bytes for c in (p, q))
                rows.append(KernelRow(f"convert {edge.tensor}", "Convert", self.units[edge.consumer],
                                      f"{self.precisions[p]} to {self.precisions[q]}", s * 1e3, "dram", moved, 0, 0.0,
                                      "NPU" if self.target.cost_model == "npu" else "CPU", (j + static * s) * 1e3))
        return rows

    def _edge_rows(self, codes: Codes, o: int, static: float) -> list[KernelRow]:
        """Conversions at the graph's edges and the overhead of an inference, where the target charges them."""
        point = self.target.operating_points[o]
        rows = []
        for tensor, u in self._edge_conversions:
            s, j = self._edge_cost(tensor, self.available[codes[u]], point)
            if s > 0.0:
                rows.append(KernelRow(f"convert {tensor}", "Convert", self.units[u], self.precisions[codes[u]], s * 1e3, "dram",
                                      self.network.tensors[tensor].elements * (4 + self.available[codes[u]].activation_bytes), 0, 0.0, "CPU",
                                      (j + static * s) * 1e3))
        if self.model.model_overhead_s > 0.0:
            s = self.model.model_overhead_s
            rows.append(KernelRow("start of an inference", "", "", "", s * 1e3, "overhead", 0.0, 0, 0.0, "CPU", static * s * 1e3))
        return rows
