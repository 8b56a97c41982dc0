"""Mixed precision by qbench and by AIMET-ONNX (automatic mixed precision, 2.42.0): same networks, data, precisions, cost model and judge.

usage: against_aimet_amp.py AIMET_PYTHON FOLDER ... [--drop POINTS] [--calibration N] [--evaluation N] [--repeats N] [--json FILE]

AIMET_PYTHON is the interpreter of an environment of AIMET's own (made as in networks/against_aimet.py), FOLDER what networks/fetch.py made.

AIMET gets the loss that it may make (`--drop`) and lowers group after group from FP16 to INT8 as far as that allows; both of its phases use
the task metric on the evaluation set, phase 2 its default, binary search. Its plan's predicted latency on RK3588 is then the budget of
`qbench search --precision int8 --precision fp16`. Of AIMET's plan two accuracies are shown: in its own simulation, and as a qbench plan,
under the calibrator that the search chose, so that nothing but the assignment differs. A unit is INT8 there when AIMET holds in INT8 every
tensor that it reads. Runs alternate; seconds are of the work alone, without imports, and the search's include its report.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from qbench import qdq
from qbench.cost import CostTable
from qbench.evaluation import OnnxEvaluator
from qbench.network import Precision
from qbench.plan import Granularity, Plan
from qbench.targets import load
from qbench.workbench import Case, SearchJob, open_case, run_search
from qbench.workbench.plans import Plans, schemes_of, statistics_of
from qbench.workbench.precisions import allowed_precisions

sys.path.insert(0, str(Path(__file__).parent / "networks"))

import zoo

TARGET = "rk3588"
LIMIT_S = 1800


@dataclass(frozen=True)
class Row:
    """One plan of one network. Drops in the metric's unit, with their paired 95 % interval; evaluations in passes over the evaluation set.

    own   accuracy in AIMET's own simulation, to be read beside the float model's `value`
    """

    network: str
    plan: str
    value: float
    drop: float
    drop_low: float
    drop_high: float
    latency_ms: float
    int8: int
    seconds: tuple[float, ...] = ()
    evaluations: float = 0.0
    own: float | None = None


@dataclass(frozen=True)
class Match:
    """One network with data and everything that judges a plan of it."""

    name: str
    case: Case
    evaluator: OnnxEvaluator
    table: CostTable
    plans: Plans
    op_point: str
    allowed: Mapping[str, Sequence[Precision]]

    @classmethod
    def open(cls, entry: zoo.Entry, place: Path, calibration: int, evaluation: int) -> Match:
        """The first samples of both sets are written to `place`, so that both tools read the same files."""
        for name, source, count in (("calibration", entry.calibration, calibration), ("evaluation", entry.evaluation, evaluation)):
            with np.load(source, allow_pickle=False) as arrays:
                np.savez(place / f"{name}.npz", **{k: arrays[k][:count] for k in arrays.files})
        case = open_case(entry.model, str(place / "calibration.npz"), str(place / "evaluation.npz"), metric=entry.metric, input_shapes=entry.shapes or None)
        (place / "prepared.onnx").write_bytes(qdq.to_bytes(case.prepared.model))
        target = load(TARGET)
        toolkit = target.toolkit(None)
        statistics = statistics_of(case.prepared, case.calibration)
        allowed, _ = allowed_precisions(case.network, statistics, target, toolkit, (Precision.INT8, Precision.FP16))
        plans = Plans(case.network, statistics, schemes_of(target, toolkit), target.name, toolkit, target.fixed_outputs)
        return cls(entry.name, case, OnnxEvaluator(case.prepared, case.evaluation, case.metric), CostTable.build(case.network, target, toolkit), plans,
                   target.operating_point(None).name, allowed)

    def plan(self, precision: Mapping[str, Precision], calibrator: str) -> Plan:
        return self.plans(precision, calibrator, Granularity.PER_CHANNEL, self.op_point)

    def latency_ms(self, plan: Plan) -> float:
        return self.table.price(self.table.codes(plan)[None], plan.op_point)[0].latency_ms

    def row(self, name: str, plan: Plan, **more: Any) -> Row:
        a = self.evaluator.evaluate(plan)
        return Row(self.name, name, a.value, a.drop, a.drop_low, a.drop_high, self.latency_ms(plan), plan.layers.get("int8", 0), **more)


def compare(python: Path, entry: zoo.Entry, asked: argparse.Namespace) -> Iterator[Row]:
    """The float model, AIMET's plan and the search's plan of one network."""
    with tempfile.TemporaryDirectory(prefix="qbench-") as folder:
        place = Path(folder)
        match = Match.open(entry, place, asked.calibration, asked.evaluation)
        theirs, ours = [aimet(python, match, place, asked)], []
        wanted = assignment(match, theirs[0]["int8"])
        budget = f"{1.00001 * match.latency_ms(match.plan(wanted, 'minmax')):.6f}ms"
        for n in range(asked.repeats):
            if n:
                theirs.append(aimet(python, match, place, asked))
            begun = time.perf_counter()
            job = SearchJob(match.case, TARGET, (budget,), precisions=("int8", "fp16"), trials=asked.trials, track=False, out=place / f"search{n}")
            ours.append((run_search(job), time.perf_counter() - begun))
        found, chosen = ours[0][0], ours[0][0].chosen
        assert chosen is not None, "AIMET's own plan meets the budget"
        base = match.evaluator.reference()
        yield Row(match.name, "float", base.value, 0.0, 0.0, 0.0, float("nan"), 0, evaluations=1.0)
        seconds = tuple(t["seconds"] for t in theirs)
        for spec in dict.fromkeys((chosen.calibrator, "minmax")):
            yield match.row(f"AIMET AMP, {spec}", match.plan(wanted, spec), seconds=seconds, evaluations=theirs[0]["evaluations"], own=theirs[0]["accuracy"])
        yield match.row(f"qbench search, {chosen.calibrator}", Plan.load(place / "search0" / chosen.plan), seconds=tuple(s for _, s in ours),
                        evaluations=found.float_pass_equivalents)


def aimet(python: Path, match: Match, place: Path, asked: argparse.Namespace) -> dict[str, Any]:
    """What AIMET chose and what that took. Raises SystemExit with its last line when it fails."""
    job = {"model": str(place / "prepared.onnx"), "calibration": str(place / "calibration.npz"), "evaluation": str(place / "evaluation.npz"),
           "metric": match.case.metric.name, "batch": match.evaluator.batch, "scheme": asked.scheme, "drop": asked.drop / 100.0, "out": str(place / "amp.json")}
    (place / "job.json").write_text(json.dumps(job))
    root = Path(__file__).parent.parent
    inside = str(Path(__file__).with_name("aimet_amp_inside.py"))
    if failed := zoo.apart(["env", f"PYTHONPATH={root}", str(python), inside, str(place / "job.json")], place / "amp.json", LIMIT_S):
        raise SystemExit(f"{match.name}: AIMET: {failed}")
    found: dict[str, Any] = json.loads((place / "amp.json").read_text())
    return found


def assignment(match: Match, int8: Mapping[str, bool]) -> dict[str, Precision]:
    """Unit -> precision: INT8 where every tensor that it reads and AIMET quantizes is INT8 there; one that reads none goes by what feeds it."""
    nodes = {str(n.name): n for n in match.case.prepared.model.graph}
    found: dict[str, Precision] = {}
    known = dict(int8)
    for unit in match.case.network.units:
        members = [nodes[n] for k in unit.kernels for n in match.case.network.kernel[k].nodes]
        said = [known[str(v.name)] for n in members for v in n.inputs if v is not None and str(v.name) in known]
        lowered = bool(said) and all(said)
        known |= {str(v.name): lowered for n in members for v in n.outputs if str(v.name) not in known}
        wish = Precision.INT8 if lowered else Precision.FP16
        options = match.allowed[unit.name]
        found[unit.name] = wish if wish in options else options[0]
    return found


def table(rows: Sequence[Row]) -> str:
    def cells(r: Row) -> list[str]:
        drop = "" if r.plan == "float" else f"{100 * r.drop:+.2f} [{100 * r.drop_low:+.2f}, {100 * r.drop_high:+.2f}]"
        return [r.network, r.plan, f"{100 * r.value:.2f}", drop, "" if r.own is None else f"{100 * r.own:.2f}", "" if r.plan == "float" else f"{r.latency_ms:.4f}",
                str(r.int8), f"{r.evaluations:.1f}", " / ".join(f"{s:.0f}" for s in r.seconds)]

    return zoo.markdown(["network", "plan", "metric", "drop, points", "in AIMET's sim", "ms, predicted", "INT8 units", "passes", "seconds"], map(cells, rows))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("aimet_python", type=Path)
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("--drop", type=float, default=0.5, help="points that AIMET may lose")
    parser.add_argument("--calibration", type=int, default=64, help="samples")
    parser.add_argument("--evaluation", type=int, default=2000, help="samples at most")
    parser.add_argument("--scheme", default="min_max", help="AIMET's quantization scheme")
    parser.add_argument("--trials", type=int, default=24)
    parser.add_argument("--repeats", type=int, default=2, help="runs of each tool, alternating")
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    rows: list[Row] = []
    for folder in asked.folders:
        load_before = os.getloadavg()[0]
        rows += compare(asked.aimet_python, zoo.entries(folder.parent, [folder.name])[0], asked)
        print(f"{folder.name}: load average {load_before:.1f} before, {os.getloadavg()[0]:.1f} after, {os.cpu_count()} cores", file=sys.stderr, flush=True)
    print(table(rows))
    if asked.json:
        asked.json.write_text(json.dumps([asdict(r) for r in rows], indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
