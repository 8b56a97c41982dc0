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
of the best known front: all plans of all methods and seeds together. "99 % after" are the evaluations and the passes with which a method first
reached 99 % of it, in the median of its seeds. The last column: after how many evaluations it was as good as nsga2 was in the end.
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
from qbench.evaluation import OnnxEvaluator, batch_size
from qbench.files import replacing
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
Point = tuple[float, int, float, float]
Curve = list[tuple[float, int, float]]


class Ledgered:
    """One method's view: an evaluator of its own, so that nobody profits from another's work. Notes (passes, evaluations, drop, milliseconds) of
    every plan on the whole set; an equal plan runs once."""

    def __init__(self, real: OnnxEvaluator, price: Callable[[Plan], float]) -> None:
        self.real, self.price = real, price
        self.known: dict[tuple[str, int], Accuracy] = {}
        self.trace: list[Point] = []

    @property
    def float_pass_equivalents(self) -> float:
        return self.real.float_pass_equivalents

    def evaluate(self, plan: Plan, samples: int | None = None) -> Accuracy:
        key = (plan.key, samples or 0)
        if key not in self.known:
            self.known[key] = self.real.evaluate(plan, samples)
            if samples is None and Precision.FP32 not in plan.precision.values():        # the float plan of a sensitivity is no answer
                self.trace.append((self.float_pass_equivalents, len(self.trace) + 1, self.known[key].drop, self.price(plan)))
        return self.known[key]


@dataclass
class Arena:
    """A network with everything that methods need. most   evaluations that a method may ask for"""

    name: str
    case: Case
    problem: Problem
    table: CostTable
    most: int

    def ledgered(self) -> Ledgered:
        evaluator = OnnxEvaluator(self.case.prepared, self.case.evaluation, self.case.metric)
        return Ledgered(evaluator, lambda plan: self.table.price(self.table.codes(plan)[None], plan.op_point)[0].latency_ms)

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
    problem = Problem(case.network, allowed, plans, case.data_key, (CALIBRATOR,), (Granularity.PER_CHANNEL,), (target.operating_point(None).name,), (),
                      Path(tempfile.mkdtemp(prefix="qbench-")), trials=most, step=batch_size(case.prepared.model, case.network), target=target.name, toolkit=toolkit)
    return Arena(name, case, problem, CostTable.build(case.network, target, toolkit), most)


# ------------------------------------------------------------------------------------------------ methods


def qbench(a: Arena, seed: int) -> Ledgered:
    from dataclasses import replace

    view = a.ledgered()
    run(replace(a.problem, seed=seed, trials=a.most), view, a.table, reference=view.real.reference())
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
    uniform = {Precision.INT8: view.evaluate(a.plan(space.uniform(Precision.INT8) or ()))}
    model = loss_model(space, a.table.precisions, found, uniform)
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
    drop = a.ledgered().evaluate(a.plan(space.uniform(Precision.INT8) or ())).drop
    return np.array([1.05 * max(drop, 0.002), 1.05 * slow.latency_ms])


def curve(trace: Sequence[Point], ref: Floats) -> Curve:
    """(passes, evaluations, hypervolume) after each evaluation; a plan better than float counts as lossless."""
    points = [(max(drop, 0.0), ms) for _, _, drop, ms in trace]
    return [(trace[i][0], trace[i][1], hypervolume(points[:i + 1], ref)) for i in range(len(points))]


def first(curve_: Curve, goal: float, column: int) -> float:
    return next((float(row[column]) for row in curve_ if row[2] >= goal), float("inf"))


@dataclass
class Store:
    """The runs of one network: method -> seed -> trace. Written to `file` after each run; what is there already is not run again."""

    file: Path | None
    name: str
    units: int = 0
    samples: int = 0
    reference: list[float] = field(default_factory=list)
    runs: dict[str, dict[str, list[Point]]] = field(default_factory=dict)

    @classmethod
    def open(cls, folder: Path | None, name: str) -> Store:
        file = folder / f"{name}.json" if folder else None
        return cls(file, **(json.loads(file.read_text()) if file and file.is_file() else {"name": name}))

    def write(self) -> None:
        if self.file:
            with replacing(self.file) as temporary:
                temporary.write_text(json.dumps({k: v for k, v in vars(self).items() if k != "file"}))

    def curves(self) -> dict[str, list[Curve]]:
        """Hypervolumes as shares of the best known front."""
        ref = np.array(self.reference)
        everything = [(max(drop, 0.0), ms) for runs in self.runs.values() for trace in runs.values() for _, _, drop, ms in trace]
        best = hypervolume(everything, ref)
        return {m: [[(p, n, v / best) for p, n, v in curve(trace, ref)] for trace in self.runs[m].values()] for m in METHODS if m in self.runs}


def table(store: Store) -> Iterator[str]:
    curves = store.curves()
    theirs = float(np.median([c[-1][2] for c in curves["nsga2"]])) if curves.get("nsga2") else 1.0
    yield f"\n## {store.name}: {store.units} units with a choice, {store.samples} samples"
    yield "| method | seeds | evaluations | passes | share of the best known front, median (least, most) | 95 % after | 99 % after | in passes | nsga2's end after |"
    yield "| --- | --- | --- | --- | --- | --- | --- | --- | --- |"
    for name, runs in curves.items():
        ends = [100 * c[-1][2] for c in runs]
        passes, count = (float(np.median([c[-1][i] for c in runs])) for i in (0, 1))
        to = [shown(median_first(runs, share, column)) for share, column in ((0.95, 1), (0.99, 1), (0.99, 0), (theirs, 1))]
        yield f"| {name} | {len(runs)} | {count:.0f} | {passes:.0f} | {np.median(ends):.1f} ({min(ends):.1f}, {max(ends):.1f}) | {' | '.join(to)} |"


def median_first(runs: Sequence[Curve], share: float, column: int) -> float:
    return float(np.median([first(c, share, column) for c in runs]))


def shown(x: float) -> str:
    return f"{x:.0f}" if np.isfinite(x) else "never"


def picture(stores: Sequence[Store], file: Path) -> None:
    """Share of the best known hypervolume over passes: the median of the seeds, and all of them faint."""
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, len(stores), figsize=(5 * len(stores), 4), sharey=True, squeeze=False, layout="constrained")
    for axis, store in zip(axes[0], stores, strict=True):
        for name, runs in store.curves().items():
            i = list(METHODS).index(name)
            ends = max(c[-1][0] for c in runs)
            grid = np.geomspace(5, ends, 300)
            shares = np.array([[max((v for p, _, v in c if p <= x), default=0.0) for x in grid] for c in runs])
            axis.plot(grid, 100 * np.median(shares, axis=0), color=f"C{i}", label=name, linewidth=2.5 if name == "qbench" else 1.2)
            axis.fill_between(grid, 100 * shares.min(axis=0), 100 * shares.max(axis=0), color=f"C{i}", alpha=0.1)
        axis.set(xscale="log", xlabel="passes of the float model", title=f"{store.name}: {store.units} units", ylim=(0, 101))
        axis.grid(alpha=0.3)
    axes[0][0].set_ylabel("hypervolume, % of the best known front")
    handles = {line.get_label(): line for axis in axes[0] for line in axis.lines}
    figure.legend(handles.values(), handles.keys(), loc="outside right upper")
    figure.savefig(file, dpi=110)


def case_of(folder: Path, limit: int | None = None) -> Case:
    """A folder of `fetch.py`: model.onnx, calibration.npz, evaluation.npz; metric from its `network.json` where there is one."""
    about = json.loads((folder / "network.json").read_text()) if (folder / "network.json").is_file() else {}
    return open_case(folder / "model.onnx", str(folder / "calibration.npz"), str(folder / "evaluation.npz"), metric=about.get("metric"), limit=limit)


def compete(name: str, case: Case, asked: argparse.Namespace) -> Store:
    a, store = arena(name, case, asked.evaluations), Store.open(asked.store, name)
    store.units, store.samples, store.reference = len(a.problem.space.free), len(case.evaluation), store.reference or reference(a).tolist()
    for method in asked.methods.split(","):
        a.most = asked.trials if method == "qbench" else asked.evaluations
        runs = store.runs.setdefault(method, {})
        for seed in range(asked.seeds if method in SEEDED else 1):
            if str(seed) not in runs:
                runs[str(seed)] = METHODS[method](a, seed).trace
                print(f"{name} {method} seed {seed}: {len(runs[str(seed)])} evaluations, {runs[str(seed)][-1][0]:.1f} passes", flush=True)
                store.write()
    return store


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("networks", nargs="*", help="names of samples, or folders; face and brain when none is given")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--evaluations", type=int, default=300, help="most that the samplers may ask for")
    parser.add_argument("--trials", type=int, default=24, help="of qbench's own search")
    parser.add_argument("--limit", type=int, default=None, help="samples of each data set")
    parser.add_argument("--methods", default=",".join(METHODS), help="separated by commas")
    parser.add_argument("--store", type=Path, help="folder that keeps the runs")
    parser.add_argument("--show", type=Path, nargs="+", help="files or folders of an earlier --store: shown, nothing is run")
    parser.add_argument("--plot", type=Path, help="the picture, .png or .svg")
    asked = parser.parse_args()
    stores = []
    if asked.show:
        for file in (f for path in asked.show for f in (sorted(path.glob("*.json")) if path.is_dir() else [path])):
            stores.append(Store(file, **json.loads(file.read_text())))
    for n in asked.networks or ([] if asked.show else ["face", "brain"]):
        sample = n in samples.names()
        case = open_case(sample=n, limit=asked.limit) if sample else case_of(Path(n), asked.limit)
        stores.append(compete(n if sample else Path(n).name, case, asked))
    for store in stores:
        print("\n".join(table(store)), flush=True)
    if asked.plot:
        picture(stores, asked.plot)


if __name__ == "__main__":
    main()
