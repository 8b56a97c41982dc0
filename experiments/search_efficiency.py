"""Does the search find a better front with fewer evaluations than others would?

    python experiments/search_efficiency.py                                   brain and fashion, 3 seeds
    python experiments/search_efficiency.py face DEST/efficientnet_lite0      a sample, and a folder that experiments/networks/fetch.py made

Every method assigns INT8 or FP16 to the same units, under the same calibrator, and is judged on the same evaluation samples; what differs is
which plans it asks for. A plan costs what it ran: the unit is one pass of the float model over the whole evaluation set. Equal plans are
evaluated once and cost once per method.

    qbench       this search, with the trials that it is given
    random       plans drawn evenly
    nsga2, tpe   Optuna's samplers, unseeded
    greedy       one unit at a time lowered, on the whole set; then lowered one after the other, the least sensitive first
                 (the scheme of AIMET's automatic mixed precision)
    revert       all in INT8, then the most sensitive unit back to FP16, one after the other (the scheme of NNCF's accuracy-aware control)
    milp         sensitivities on the first samples, then the exact front under their sum, nothing learnt

Reading: hypervolume of (drop, latency) below the reference, which is the slowest plan and the drop of all INT8 (at least 0.2 points), as a share
of the best known front: the union of all methods and seeds. "passes to 99 %" is the cost at which a method first reached 99 % of it; "-" means
never. The last column is the ratio to nsga2's evaluations.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from qbench import samples
from qbench.cost import CostTable
from qbench.evaluation import OnnxEvaluator
from qbench.network import Precision
from qbench.plan import Granularity, Plan
from qbench.protocols import Accuracy
from qbench.search import make_strategy
from qbench.search.pareto import hypervolume
from qbench.search.planner import Planner
from qbench.search.problem import Problem
from qbench.search.run import run
from qbench.search.sensitivity import least_lossy, loss_model, lowerings, measure
from qbench.search.space import Config, Costs, finest
from qbench.targets import load
from qbench.workbench.case import Case, open_case
from qbench.workbench.plans import Plans, schemes_of, statistics_of
from qbench.workbench.precisions import allowed_precisions

CALIBRATOR = "percentile:p=99.99"
Floats = NDArray[np.float64]


@dataclass
class Cached:
    """The Evaluator of all methods: a plan runs once, and is charged to every method that asks for it. Knows what it cost."""

    real: OnnxEvaluator
    known: dict[tuple[str, int], tuple[Accuracy, float]] = field(default_factory=dict)

    def look(self, plan: Plan, samples: int | None) -> tuple[Accuracy, float]:
        key = (plan.key, samples or 0)
        if key not in self.known:
            before = self.real.float_pass_equivalents
            self.known[key] = self.real.evaluate(plan, samples), self.real.float_pass_equivalents - before
        return self.known[key]


class Ledgered:
    """One method's view of the evaluator: counts its passes, and notes (passes, evaluations, drop, milliseconds) of whole-set plans."""

    def __init__(self, cached: Cached, price: Callable[[Plan], float]) -> None:
        self.cached, self.price = cached, price
        self.float_pass_equivalents = 0.0
        self.seen: set[tuple[str, int]] = set()
        self.trace: list[tuple[float, int, float, float]] = []

    def evaluate(self, plan: Plan, samples: int | None = None) -> Accuracy:
        found, passes = self.cached.look(plan, samples)
        if (plan.key, samples or 0) not in self.seen:
            self.seen.add((plan.key, samples or 0))
            self.float_pass_equivalents += passes
            if samples is None:
                self.trace.append((self.float_pass_equivalents, len(self.trace) + 1, found.drop, self.price(plan)))
        return found


@dataclass
class Arena:
    """A network with everything that methods need. most   evaluations that a method may ask for"""

    name: str
    case: Case
    problem: Problem
    table: CostTable
    cached: Cached
    most: int

    def ledgered(self) -> Ledgered:
        return Ledgered(self.cached, lambda plan: self.table.price(self.table.codes(plan)[None], plan.op_point)[0].latency_ms)

    def plan(self, precision: tuple[Precision, ...]) -> Plan:
        wanted = dict(zip(self.problem.space.units, precision, strict=True))
        return self.problem.make_plan(wanted, CALIBRATOR, Granularity.PER_CHANNEL, self.problem.op_points[0])

    def config(self, precision: tuple[Precision, ...]) -> Config:
        return Config(precision, CALIBRATOR, str(Granularity.PER_CHANNEL), self.problem.op_points[0])


def arena(name: str, case: Case, most: int) -> Arena:
    target = load("rk3588")
    toolkit = target.toolkit(None)
    statistics = statistics_of(case.prepared, case.calibration)
    allowed, _ = allowed_precisions(case.network, statistics, target, toolkit, (Precision.INT8, Precision.FP16))
    plans = Plans(case.network, statistics, schemes_of(target, toolkit), target.name, toolkit, target.fixed_outputs)
    evaluator = OnnxEvaluator(case.prepared, case.evaluation, case.metric)
    problem = Problem(case.network, allowed, plans, case.data_key, (CALIBRATOR,), (Granularity.PER_CHANNEL,), (target.operating_point(None).name,), (),
                      Path(tempfile.mkdtemp(prefix="qbench-")), trials=most, step=evaluator.batch, target=target.name, toolkit=toolkit)
    return Arena(name, case, problem, CostTable.build(case.network, target, toolkit), Cached(evaluator), most)


# ------------------------------------------------------------------------------------------------ methods


def qbench(a: Arena, seed: int) -> Ledgered:
    from dataclasses import replace

    view = a.ledgered()
    run(replace(a.problem, seed=seed, trials=a.most), view, a.table, reference=a.cached.real.reference())
    return view


def sampler(strategy: str) -> Callable[[Arena, int], Ledgered]:
    def method(a: Arena, seed: int) -> Ledgered:
        view, asking = a.ledgered(), make_strategy(strategy, a.problem.space, seed)
        for _ in range(4 * a.most):
            [config] = asking.ask(1)
            found = view.evaluate(a.plan(config.precision))
            price = a.table.price(a.problem.space.codes(config.precision, a.table.precisions)[None], config.op_point)[0]
            asking.tell([(config, Costs(found.drop, price.latency_ms, price.energy_mj))])
            if len(view.trace) >= a.most:
                break
        return view
    return method


def alone(a: Arena, view: Ledgered, samples: int | None) -> list[int]:
    """Units from the least to the most sensitive to INT8."""
    space = a.problem.space
    drops = {u: view.evaluate(a.plan(tuple(p if i == u else finest(space.allowed[i]) for i in range(len(space.units)))), samples).drop
             for u, p in lowerings(space)}
    return sorted(drops, key=lambda u: drops[u])


def greedy(a: Arena, seed: int) -> Ledgered:
    view, lowered = a.ledgered(), dict[int, Precision]()
    for u in alone(a, view, None):
        lowered[u] = Precision.INT8
        view.evaluate(a.plan(tuple(lowered.get(i, finest(options)) for i, options in enumerate(a.problem.space.allowed))))
    return view


def revert(a: Arena, seed: int) -> Ledgered:
    view = a.ledgered()
    space = a.problem.space
    now = list(space.uniform(Precision.INT8) or ())
    view.evaluate(a.plan(tuple(now)))
    for u in reversed(alone(a, view, None)):
        now[u] = Precision.FP16
        view.evaluate(a.plan(tuple(now)))
    return view


def milp(a: Arena, seed: int) -> Ledgered:
    view, space = a.ledgered(), a.problem.space
    few = max(8, len(a.case.evaluation) // 6)
    found = list(measure(space, lambda plans: [view.evaluate(a.plan(p), few) for p in plans], lambda *x: None))
    model = loss_model(space, a.table.precisions, found)
    planner = Planner(space, a.table, (), least_lossy(space, a.table.precisions))
    for codes in planner.front(a.problem.op_points[0], model, min(24, a.most)):
        view.evaluate(a.plan(tuple(Precision(a.table.precisions[c]) for c in codes)))
    return view


METHODS: dict[str, Callable[[Arena, int], Ledgered]] = {
    "qbench": qbench, "random": sampler("random"), "nsga2": sampler("nsga2"), "tpe": sampler("tpe"), "greedy": greedy, "revert": revert, "milp": milp}
SEEDED = ("qbench", "random", "nsga2", "tpe")


# ------------------------------------------------------------------------------------------------ judging


def reference(a: Arena) -> Floats:
    space = a.problem.space
    slow = a.table.price(a.problem.space.codes(space.uniform(Precision.FP16) or (), a.table.precisions)[None], a.problem.op_points[0])[0]
    drop, _ = a.cached.look(a.plan(space.uniform(Precision.INT8) or ()), None)
    return np.array([1.05 * max(drop.drop, 0.002), 1.05 * slow.latency_ms])


def curve(trace: Sequence[tuple[float, int, float, float]], ref: Floats) -> list[tuple[float, int, float]]:
    """(passes, evaluations, hypervolume) after each evaluation; a plan better than float counts as lossless."""
    points = [(max(drop, 0.0), ms) for _, _, drop, ms in trace]
    return [(trace[i][0], trace[i][1], hypervolume(points[:i + 1], ref)) for i in range(len(points))]


def first(curve_: Sequence[tuple[float, int, float]], goal: float, column: int) -> float:
    return next((float(row[column]) for row in curve_ if row[2] >= goal), float("inf"))


def table(a: Arena, curves: dict[str, list[list[tuple[float, int, float]]]]) -> Iterator[str]:
    best = max(c[-1][2] for runs in curves.values() for c in runs)
    goal = 0.99 * best
    theirs = float(np.median([first(c, goal, 1) for c in curves.get("nsga2", [])] or [np.nan]))
    yield f"\n## {a.name}: {len(a.problem.space.free)} units with a choice, {len(a.case.evaluation)} samples"
    yield "| method | hypervolume, end | passes, end | evaluations, end | passes to 99 % | evaluations to 99 % | of nsga2's |"
    yield "| --- | --- | --- | --- | --- | --- | --- |"
    for name, runs in curves.items():
        end = np.median([c[-1][2] for c in runs]) / best
        passes, count = (float(np.median([c[-1][i] for c in runs])) for i in (0, 1))
        to, evals = (float(np.median([first(c, goal, i) for c in runs])) for i in (0, 1))
        ratio = f"{evals / theirs:.2f}" if np.isfinite(evals) and np.isfinite(theirs) else ("< " + f"{evals / runs_most(curves):.2f}" if np.isfinite(evals) else "-")
        yield f"| {name} | {100 * end:.1f} % | {passes:.1f} | {count:.0f} | {shown(to)} | {shown(evals)} | {ratio} |"


def runs_most(curves: dict[str, list[list[tuple[float, int, float]]]]) -> int:
    """Evaluations that nsga2 had: where it never arrived, it would have needed more."""
    return max([c[-1][1] for c in curves.get("nsga2", [])] or [1])


def shown(x: float) -> str:
    return f"{x:.0f}" if np.isfinite(x) else "-"


def case_of(folder: Path, limit: int | None = None) -> Case:
    """A folder of `fetch.py`: model.onnx, calibration.npz, evaluation.npz; metric from its `network.json` where there is one."""
    about = json.loads((folder / "network.json").read_text()) if (folder / "network.json").is_file() else {}
    return open_case(folder / "model.onnx", str(folder / "calibration.npz"), str(folder / "evaluation.npz"), metric=about.get("metric"), limit=limit)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("networks", nargs="*", default=["brain", "fashion"], help="names of samples, or folders")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--evaluations", type=int, default=300, help="most that the samplers may ask for")
    parser.add_argument("--trials", type=int, default=24, help="of qbench's own search")
    parser.add_argument("--limit", type=int, default=None, help="samples of each data set")
    parser.add_argument("--methods", default=",".join(METHODS), help="separated by commas")
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    cases = [(n, open_case(sample=n, limit=asked.limit)) if n in samples.names() else (Path(n).name, case_of(Path(n), asked.limit)) for n in asked.networks]
    kept = {}
    for name, case in cases:
        a = arena(name, case, asked.evaluations)
        ref = reference(a)
        curves: dict[str, list[list[tuple[float, int, float]]]] = {}
        for method, go in ((m, METHODS[m]) for m in asked.methods.split(",")):
            a.most = asked.trials if method == "qbench" else asked.evaluations
            curves[method] = [curve(go(a, seed).trace, ref) for seed in range(asked.seeds if method in SEEDED else 1)]
        for line in table(a, curves):
            print(line, flush=True)
        kept[name] = {"reference": ref.tolist(), "curves": curves}
    if asked.json:
        asked.json.write_text(json.dumps(kept))


if __name__ == "__main__":
    main()
