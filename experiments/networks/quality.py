"""What quantization by qbench costs on real networks: every calibrator at INT8, then INT16, FP16 and a mixed plan.

usage: quality.py DEST OUT [NAME ...] [--calibrator SPEC ...]

DEST is what fetch.py filled. OUT gets quality.json and quality.md, and statistics that later runs use again. Every
network also goes through the command line (stats, quantize at three precisions); each written file must load and run in
plain onnxruntime and score exactly what the library measured. A network that fails is a row with the reason.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import cycle
from pathlib import Path

import onnx_ir as ir
import onnxruntime as ort
import zoo

from qbench import calibrators, targets
from qbench.data import take
from qbench.evaluation import OnnxEvaluator
from qbench.metrics import Fidelity
from qbench.network import Network, Precision
from qbench.plan import Granularity, Plan
from qbench.protocols import Accuracy, Array
from qbench.workbench import Case, Plans, allowed_precisions, statistics_of
from qbench.workbench.auto import choose_on
from qbench.workbench.plans import schemes_of

TARGET = "rk3588"
BASE = "minmax"  # calibrator of INT16 and of the mixed plan
EXTRA = ("percentile:p=99.9",)  # specs beside each calibrator's defaults
PRECISIONS = ("int8", "int16", "fp16")
MIXED = (Precision.INT8, Precision.INT16, Precision.FP16)


@dataclass(frozen=True, slots=True)
class Row:
    """One plan of one network. Accuracies in the metric's own unit; `error` instead of figures when it failed.

    int8_macs   share of the multiply-accumulates that run in 8 bit
    """

    network: str
    plan: str
    metric: str = ""
    samples: int = 0
    value: float = float("nan")
    low: float = float("nan")
    high: float = float("nan")
    drop: float = float("nan")
    drop_low: float = float("nan")
    drop_high: float = float("nan")
    sqnr_db: float = float("nan")
    int8_macs: float = 0.0
    seconds: float = 0.0
    error: str = ""


@dataclass(frozen=True, slots=True)
class Passage:
    """How one network went through the command line: step -> "" when fine, else the reason."""

    network: str
    steps: Mapping[str, str]


class Recorder(OnnxEvaluator):
    """Remembers the metric's rows of the last model, so that two models can be compared on the same samples."""

    rows: Array | None = None

    def _accuracy(self, rows: Array, fidelity: Fidelity, seconds: float) -> Accuracy:
        self.rows = rows
        return super()._accuracy(rows, fidelity, seconds)


@dataclass(frozen=True)
class Bench:
    """One network, ready for any plan."""

    entry: zoo.Entry
    case: Case
    plans: Plans
    allowed: Mapping[str, tuple[Precision, ...]]
    evaluator: Recorder

    @classmethod
    def open(cls, entry: zoo.Entry, keep: Path, samples: int | None = None) -> Bench:
        """Calibrated on the first `samples`; statistics come from the folder `keep` when they are there."""
        case = entry.case()
        if samples is not None:
            case = replace(case, calibration=take(case.calibration, samples))
        keep.mkdir(parents=True, exist_ok=True)
        target = targets.load(TARGET)
        toolkit = target.toolkit(None)
        statistics = statistics_of(case.prepared, case.calibration, keep=keep)
        allowed, _ = allowed_precisions(case.network, statistics, target, toolkit)
        evaluator = Recorder(case.prepared, case.evaluation, case.metric)
        return cls(
            entry,
            case,
            Plans(case.network, statistics, schemes_of(target, toolkit), target.name, toolkit),
            allowed,
            evaluator,
        )

    def uniform(self, precision: Precision, calibrator: str) -> Plan:
        """Every unit at `precision`, or in float where it cannot."""
        return self._plan({u: _nearest(precision, options) for u, options in self.allowed.items()}, calibrator)

    def mixed(self) -> Plan:
        """INT8, INT16 and FP16 take turns, unit by unit: as many conversions as a plan can have."""
        turns = zip(self.allowed.items(), cycle(MIXED), strict=False)
        return self._plan({u: _nearest(precision, options) for (u, options), precision in turns}, BASE)

    def _plan(self, precision: Mapping[str, Precision], calibrator: str) -> Plan:
        plans = self.plans
        if calibrators.is_auto(calibrator):
            choice = choose_on(
                self.case.calibration,
                self.case.prepared,
                plans,
                precision,
                Granularity.PER_CHANNEL,
                spec=calibrator,
                metric=self.case.metric,
            )
            plans = replace(plans, choices=choice.by_group)
        return plans(precision, calibrator, Granularity.PER_CHANNEL, "")

    def row(self, name: str, plan: Plan) -> Row:
        """The plan's figures, measured."""
        return row_of(self.entry.name, name, self.evaluator.evaluate(plan), int8_macs(self.case.network, plan))


def _nearest(precision: Precision, options: Sequence[Precision]) -> Precision:
    return precision if precision in options else next((p for p in options if p.is_float), options[-1])


def int8_macs(network: Network, plan: Plan) -> float:
    """Share of the network's multiply-accumulates in 8-bit units."""
    narrow = sum(k.macs for k in network.kernels if plan.precision[network.unit_of_kernel[k.name]] is Precision.INT8)
    return narrow / max(network.macs, 1)


def row_of(network: str, plan: str, found: Accuracy, share: float = 0.0) -> Row:
    return Row(
        network,
        plan,
        found.metric,
        found.samples,
        found.value,
        found.low,
        found.high,
        found.drop,
        found.drop_low,
        found.drop_high,
        found.sqnr_db,
        share,
        found.seconds,
    )


def rows(entry: zoo.Entry, specs: Sequence[str], keep: Path) -> Iterable[Row]:
    """Float, every calibrator at INT8, INT16, FP16, mixed; a plan that fails gives its reason."""
    try:
        bench = Bench.open(entry, keep)
    except Exception as error:  # noqa: BLE001   whatever stops this network is its result
        yield Row(entry.name, "float", entry.metric, error=reason(error))
        return
    yield row_of(entry.name, "float", bench.evaluator.reference())
    makers: dict[str, Callable[[], Plan]] = {f"int8 {s}": partial(bench.uniform, Precision.INT8, s) for s in specs}
    makers |= {
        "int16": partial(bench.uniform, Precision.INT16, BASE),
        "fp16": partial(bench.uniform, Precision.FP16, BASE),
        "mixed": bench.mixed,
    }
    for name, make in makers.items():
        try:
            yield bench.row(name, make())
        except Exception as error:  # noqa: BLE001
            yield Row(entry.name, name, entry.metric, error=reason(error))


def reason(error: BaseException) -> str:
    """One line."""
    return f"{type(error).__name__}: {(str(error).strip().splitlines() or [''])[0][:160]}"


def passage(entry: zoo.Entry, folder: Path) -> Passage:
    """stats and quantize as commands, then each file in plain onnxruntime."""
    folder.mkdir(parents=True, exist_ok=True)
    stored = folder / "stats.npz"
    steps = {
        "stats": command(
            "stats", str(entry.model), "--data", str(entry.calibration), "-o", str(stored), *entry.shape_options
        )
    }
    if steps["stats"]:
        return Passage(entry.name, steps)
    for precision in PRECISIONS:
        goal = folder / f"{precision}.onnx"
        said = command(
            "quantize",
            str(entry.model),
            "--stats",
            str(stored),
            "--calibrator",
            BASE,
            "--precision",
            precision,
            "-o",
            str(goal),
            "--target",
            TARGET,
            *entry.shape_options,
        )
        steps[precision] = said or runs(goal, entry)
    return Passage(entry.name, steps)


def command(*arguments: str) -> str:
    """ "" when `qbench ARGUMENTS` exits with 0, else its last line."""
    done = subprocess.run([sys.executable, "-m", "qbench", *arguments], capture_output=True, text=True, check=False)
    return (
        ""
        if done.returncode == 0
        else f"exit {done.returncode}: {(done.stderr.strip().splitlines() or ['nothing said'])[-1][:160]}"
    )


def runs(model: Path, entry: zoo.Entry) -> str:
    """ "" when the file loads and gives outputs for the first calibration sample, else why not."""
    options = ort.SessionOptions()
    options.log_severity_level = 3
    try:
        session = ort.InferenceSession(str(model), options, providers=["CPUExecutionProvider"])
        session.run(None, next(entry.samples(1)))
    except Exception as error:  # noqa: BLE001   onnxruntime raises many kinds
        return reason(error)
    return ""


def same_score(entry: zoo.Entry, folder: Path, keep: Path, measured: Sequence[Row]) -> str:
    """ "" when the INT8 file of the command line scores what the library measured, else both values."""
    want = next((r for r in measured if r.plan == f"int8 {BASE}" and not r.error), None)
    if want is None:
        return f"no int8 {BASE} row to compare with"
    bench = Bench.open(entry, keep)
    found = bench.evaluator.evaluate_model(ir.load(folder / "int8.onnx"))
    return (
        ""
        if found.value == want.value and found.sqnr_db == want.sqnr_db
        else f"file {found.value:.6f}, library {want.value:.6f}"
    )


def quality_table(found: Sequence[Row]) -> str:
    """Networks down, plans across: value in percent with its interval, and the change against float in points."""
    return _table(
        found,
        lambda r: (
            f"{percent(r.value)} [{percent(r.low)}, {percent(r.high)}]"
            + ("" if r.plan == "float" else f" {-100 * r.drop:+.2f}")
        ),
    )


def sqnr_table(found: Sequence[Row]) -> str:
    """Networks down, plans across: SQNR of the first output in dB."""
    return _table([r for r in found if r.plan != "float"], lambda r: f"{r.sqnr_db:.1f}")


def percent(value: float) -> str:
    return f"{100 * value:.1f}"


def _table(found: Sequence[Row], cell: Callable[[Row], str]) -> str:
    names, plans = list(dict.fromkeys(r.network for r in found)), list(dict.fromkeys(r.plan for r in found))
    at = {(r.network, r.plan): r for r in found}
    metrics = {r.network: r.metric for r in found if r.metric}

    def text(network: str, plan: str) -> str:
        row = at.get((network, plan))
        return "" if row is None else row.error or cell(row)

    return zoo.markdown(
        ["network", "metric", *plans], [[n, metrics.get(n, ""), *(text(n, p) for p in plans)] for n in names]
    )


def passage_table(found: Sequence[Passage]) -> str:
    """Networks down, steps across; "ok" or the reason."""
    steps = list(dict.fromkeys(s for p in found for s in p.steps))
    return zoo.markdown(
        ["network", *steps],
        [[p.network, *((p.steps[s] or "ok") if s in p.steps else "not reached" for s in steps)] for p in found],
    )


def default_specs() -> tuple[str, ...]:
    """Each calibrator that qbench knows, at its defaults, and EXTRA."""
    return (*calibrators.names(), *EXTRA)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("dest", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--calibrator", action="append", help="spec; may be repeated; default: every known one")
    parser.add_argument("--skip-cli", action="store_true", help="leave out the passage through the command line")
    asked = parser.parse_intermixed_args()
    specs = tuple(asked.calibrator or default_specs())
    measured: list[Row] = []
    passages: list[Passage] = []
    for entry in zoo.entries(asked.dest, asked.names):
        start, folder = time.perf_counter(), asked.out / entry.name
        folder.mkdir(parents=True, exist_ok=True)
        own = list(rows(entry, specs, folder))
        measured += own
        if not asked.skip_cli:
            passages.append(passed := passage(entry, folder))
            if passed.steps.get("int8") == "":
                passages[-1] = Passage(
                    entry.name, {**passed.steps, "same score": same_score(entry, folder, folder, own)}
                )
        print(f"{entry.name}: {len(own)} plans, {time.perf_counter() - start:.0f} s", file=sys.stderr, flush=True)
        _write(asked.out, measured, passages)
    print((asked.out / "quality.md").read_text(encoding="utf-8"))
    return 0


def _write(out: Path, measured: Sequence[Row], passages: Sequence[Passage]) -> None:
    body = {"rows": [asdict(r) for r in measured], "passages": [asdict(p) for p in passages]}
    (out / "quality.json").write_text(json.dumps(body, indent=1) + "\n", encoding="utf-8")
    text = [
        "## Metric in percent, 95 % interval, change against float in points",
        quality_table(measured),
        "## SQNR of the first output, dB",
        sqnr_table(measured),
    ]
    text += ["## Through the command line", passage_table(passages)] if passages else []
    (out / "quality.md").write_text("\n\n".join(text) + "\n", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
