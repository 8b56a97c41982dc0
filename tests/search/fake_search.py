"""A network, an evaluator and a pricer without any model: losses are planted, so that the right answer is known.

Run as a script (`python fake_search.py FOLDER PAUSE_AT SIGNAL_FILE`) it searches and, at evaluation number PAUSE_AT, writes SIGNAL_FILE
and waits for ever: the tests of resuming kill it there.
"""

from __future__ import annotations

import itertools
import json
import math
import signal
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qbench.network import Kernel, Network, Precision, ScaleGroup, TensorSpec, Unit
from qbench.plan import Granularity, Plan
from qbench.protocols import Accuracy, Price
from qbench.search.budget import Budget
from qbench.search.problem import Problem

Floats = NDArray[np.float64]
FLOAT_VALUE = 0.93


def chain(units: int, skip: tuple[int, int] | None = None, fixed: tuple[int, ...] = ()) -> Network:
    """`units` kernels in a row, one a unit; `skip` (a, b) lets b read a's output too."""
    names = [f"conv{i}" for i in range(units)]
    tensors = {t: TensorSpec(t, (1, 8, 8, 8), "float32") for t in ["image", *(f"{n}.out" for n in names)]}
    kernels = []
    for i, n in enumerate(names):
        reads = ["image" if i == 0 else f"{names[i - 1]}.out"]
        if skip is not None and skip[1] == i:
            reads.append(f"{names[skip[0]]}.out")
        kernels.append(Kernel(n, "Conv", "conv", (n,), tuple(reads), (f"{n}.out",), macs=1000 * (i + 1), weights=100))
    return Network("fake", "ab" * 32, ("image",), (f"{names[-1]}.out",), tensors, tuple(kernels),
                   tuple(Unit(n, (n,), i not in fixed, "planted" if i in fixed else "") for i, n in enumerate(names)),
                   tuple(ScaleGroup((t,), (t,)) for t in tensors))


@dataclass(frozen=True)
class Units:
    seconds: Floats
    joules: Floats
    weight_bytes: Floats


@dataclass(frozen=True)
class Pair:
    a: int
    b: int
    seconds: Floats
    joules: Floats


@dataclass
class FakeCosts:
    """Prices by table; peak memory is the largest sum of two neighbours, which no linear programme holds. `speed` per point."""

    units: tuple[str, ...]
    precisions: tuple[str, ...]
    seconds: Floats
    joules: Floats
    size: Floats
    pairs: tuple[Pair, ...] = ()
    speed: Mapping[str, float] = field(default_factory=lambda: {"1000MHz": 1.0})
    fixed_s: float = 1e-3

    @property
    def op_points(self) -> tuple[str, ...]:
        return tuple(self.speed)

    def unit_costs(self, op_point: str) -> Units:
        f = self.speed[op_point]
        return Units(self.seconds / f, self.joules * f, self.size * 0.0)

    def pair_costs(self, op_point: str) -> tuple[Pair, ...]:
        f = self.speed[op_point]
        return tuple(Pair(p.a, p.b, p.seconds / f, p.joules * f) for p in self.pairs)

    def price(self, codes: NDArray[np.int64], op_point: str) -> list[Price]:
        return [self._one(row, op_point) for row in codes]

    def _one(self, row: NDArray[np.int64], op_point: str) -> Price:
        f, index = self.speed[op_point], np.arange(len(row))
        s = self.fixed_s + float(self.seconds[index, row].sum() + sum(p.seconds[row[p.a], row[p.b]] for p in self.pairs)) / f
        j = float(self.joules[index, row].sum() + sum(p.joules[row[p.a], row[p.b]] for p in self.pairs)) * f
        held = self.size[index, row]
        peak = float((held[1:] + held[:-1]).max()) if len(row) > 1 else float(held[0])
        return Price(s * 1e3, s * 0.9e3, s * 1.1e3, j * 1e3, j / s, int(peak), op_point)


def costs(network: Network, precisions: tuple[str, ...] = ("int8", "fp16"), seed: int = 0,
          speed: Mapping[str, float] | None = None) -> FakeCosts:
    """FP16 takes twice the time, energy and memory of INT8, INT16 one and a half; a conversion takes 0.02 ms."""
    rng = np.random.default_rng(seed)
    n, factor = len(network.units), np.array([{"int8": 1.0, "int16": 1.5, "fp16": 2.0, "fp32": 4.0}[p] for p in precisions])
    other = 1.0 - np.eye(len(precisions))
    pairs = tuple(Pair(i, i + 1, 2e-5 * other, 1e-5 * other) for i in range(n - 1))
    return FakeCosts(tuple(u.name for u in network.units), precisions, rng.uniform(2e-4, 8e-4, (n, 1)) * factor,
                     rng.uniform(1e-4, 4e-4, (n, 1)) * factor, rng.uniform(1e5, 4e5, (n, 1)).round() * factor, pairs,
                     speed or {"1000MHz": 1.0})


@dataclass(frozen=True)
class Planted:
    """Loss of lowering each unit, of pairs lowered together (added), and factors of the calibrators.

    single    unit index -> loss at INT8; INT16 loses a hundredth of it, FP16 nothing
    pairs     (a, b) -> added when both are INT8
    mixed     (a, b) -> added when a is INT8 and b is not: an error that b's range would have clipped
    """

    single: Mapping[int, float]
    pairs: Mapping[tuple[int, int], float] = field(default_factory=dict)
    mixed: Mapping[tuple[int, int], float] = field(default_factory=dict)
    calibrators: Mapping[str, float] = field(default_factory=lambda: {"minmax": 1.0, "percentile:p=99.9": 0.7})

    def loss(self, precision: tuple[Precision, ...], calibrator: str) -> float:
        low = {i for i, p in enumerate(precision) if p is Precision.INT8}
        total = sum(v for i, v in self.single.items() if i in low)
        total += sum(0.01 * v for i, v in self.single.items() if precision[i] is Precision.INT16)
        total += sum(v for (a, b), v in self.pairs.items() if a in low and b in low)
        total += sum(v for (a, b), v in self.mixed.items() if a in low and b not in low)
        return max(total, 0.0) * self.calibrators[calibrator]


def like_brain(units: int = 12) -> Planted:
    """Keeping only unit 1 in float costs 19 points, keeping 0 and 1 removes the loss: one at a time has the wrong sign."""
    small = {i: 0.0002 + 0.0001 * (i % 3) for i in range(2, units)}
    return Planted({**small, 0: 0.006, 1: 0.012}, mixed={(0, 1): 0.19})


class FakeEvaluator:
    """Accuracy of planted losses. Samples differ by a factor that is 1 in the mean over the whole set; `noise` is the interval."""

    def __init__(self, planted: Planted, samples: int = 48, noise: float = 0.0, spread: float = 0.2,
                 before: Callable[[int], None] = lambda number: None) -> None:
        self.planted, self.samples, self.noise, self.before = planted, samples, noise, before
        weights = 1.0 + spread * np.sin(1.7 * np.arange(samples))
        self.weights: Floats = weights / weights.mean()
        self.log: list[tuple[str, int]] = []

    def evaluate(self, plan: Plan, samples: int | None = None) -> Accuracy:
        n = min(samples or self.samples, self.samples)
        self.before(len(self.log))
        self.log.append((plan.key, n))
        loss = self.planted.loss(tuple(plan.precision.values()), plan.calibrator)
        drop = float(loss * self.weights[:n].mean())
        wide = 1.96 * (self.noise / math.sqrt(n) + 0.1 * loss / math.sqrt(n))
        value = FLOAT_VALUE - drop
        return Accuracy("dice", value, value - 0.01, value + 0.01, n, drop, drop - wide, drop + wide,
                        -10.0 * math.log10(loss * 0.1 + 1e-7), 1.0, math.nan, 0.01 * n)


def make_plan(network: Network) -> Any:
    def made(precision: Mapping[str, Precision], calibrator: str, granularity: Granularity, op_point: str) -> Plan:
        return Plan(network.model_key, "fake", "1", op_point, calibrator, granularity, dict(precision), {}, {})

    return made


def problem(out: Path, network: Network, budgets: tuple[str, ...] = (), *, precisions: tuple[Precision, ...] = (Precision.INT8, Precision.FP16),
            calibrators: tuple[str, ...] = ("minmax", "percentile:p=99.9"), op_points: tuple[str, ...] = ("1000MHz",), **more: Any) -> Problem:
    allowed = {u.name: precisions if u.quantizable else tuple(p for p in precisions if p.is_float) for u in network.units}
    return Problem(network, allowed, make_plan(network), "data", calibrators, (Granularity.PER_CHANNEL,), op_points,
                   tuple(Budget.parse(b) for b in budgets), out, **more)


def best_possible(problem: Problem, costs: FakeCosts, planted: Planted) -> float:
    """Least planted loss of any plan within the budgets, by trying all."""
    space = problem.space
    rows = np.array([space.codes(p, costs.precisions) for p in space.every()])
    losses = [min(planted.loss(p, c) for c in space.calibrators) for p in space.every()]
    return min(loss for o in problem.op_points for loss, price in zip(losses, costs.price(rows, o), strict=True)
               if all(b.met_by(price) for b in problem.budgets))


def middle_budget(costs: FakeCosts, share: float) -> str:
    """A latency budget at `share` of the way from the fastest uniform plan to the slowest."""
    uniform = [p.latency_ms for p in costs.price(np.array([[c] * len(costs.units) for c in range(len(costs.precisions))]), costs.op_points[0])]
    return f"{min(uniform) + share * (max(uniform) - min(uniform)):.4f}ms"


def main(folder: str, pause_at: str, signal_file: str) -> None:
    """Searches in `folder`; at evaluation `pause_at` of this process says so and stands still."""
    from qbench.search.run import run

    def before(number: int) -> None:
        if number == int(pause_at):
            Path(signal_file).write_text("here")
            signal.pause()

    network = chain(12)
    priced = costs(network)
    found = run(resumable(Path(folder), network, priced), FakeEvaluator(like_brain(), before=before), priced)
    Path(folder, "answer.json").write_text(json.dumps(answer(found)))


def resumable(folder: Path, network: Network, priced: FakeCosts) -> Problem:
    return problem(folder, network, (middle_budget(priced, 0.4),), trials=24, storage=f"sqlite:///{folder}/study.db")


def answer(result: Any) -> dict[str, Any]:
    """What must be the same after a resume."""
    body = result.to_dict()
    return {k: body[k] for k in ("chosen", "front", "candidates", "sensitivity", "uniform", "evaluated", "float_pass_equivalents", "warnings")}


def every(*choices: int) -> list[tuple[int, ...]]:
    return list(itertools.product(*(range(n) for n in choices)))


if __name__ == "__main__":
    main(*sys.argv[1:])
