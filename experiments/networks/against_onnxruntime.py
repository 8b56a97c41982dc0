"""The same networks, data and scheme quantized by qbench and by onnxruntime.quantization.quantize_static.

usage: against_onnxruntime.py DEST OUT [NAME ...] [--samples N] [--tool-calibrator SPEC ...]

Scheme of both: activations uint8 with zero point, weights int8 symmetric per channel, biases int32 (INT8 of the target
rk3588 in qbench; QDQ, QUInt8, QInt8, per_channel in onnxruntime). Both calibrate on the same first N samples, and both
files are run and scored by the same code (qbench.evaluation.OnnxEvaluator). onnxruntime's model goes through its own
recommended preparation: opset 17 where it is below 13, which per-channel needs, then quant_pre_process without symbolic
shapes, which assert on some of these networks.

Which operators are quantized differs, so onnxruntime appears twice: with its default list, and with the operators that
qbench quantizes in this network, as far as onnxruntime knows them. The second table says who quantizes what. A crash, a
time-out or an invalid file is a result and stands in the cell.

Methods are matched by what onnxruntime does, not by name. Its Entropy has 128 bins and 128 levels, and quantize_static
offers no other number: that clips nothing, so its counterpart is minmax. Its Percentile is symmetric unless told
otherwise: it drops the largest magnitudes, whatever their sign.

What onnxruntime made lies in OUT and is used again by a later run with the same samples. The tables show every network
of which OUT has results, so networks can be run one by one.
"""

from __future__ import annotations

import argparse
import json
import sys
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

import onnx
import onnx_ir as ir
import zoo
from quality import Bench, Row, reason, row_of

from qbench.metrics import paired_drop
from qbench.network import Precision
from qbench.plan import Plan
from qbench.protocols import Array, Metric

METHODS = {"MinMax": "minmax", "Entropy": "minmax", "Percentile": "percentile:sided=magnitude"}
"""Method of onnxruntime -> calibrator of qbench that does the same."""
PERCENTILE = 99.99
RESULT = "onnxruntime.json"
PER_CHANNEL_OPSET, RAISED_OPSET = 13, 17
LIMIT_S = 400  # for one quantization by onnxruntime
OWN = ("auto",)  # calibrators without a counterpart


@dataclass(frozen=True, slots=True)
class Operators:
    """Operator types of one network: what qbench quantizes, and what of it onnxruntime can and does by default."""

    network: str
    qbench: tuple[str, ...]
    only_qbench: tuple[str, ...]  # no quantizer for it in onnxruntime
    only_onnxruntime: tuple[str, ...]  # quantized by its default, not by qbench


@dataclass(frozen=True, slots=True)
class Lead:
    """How far qbench's auto is before the best of onnxruntime's methods and operator lists, chosen on the evaluation data.

    best              of greatest value; points, low, high: auto minus it, on the same samples, with the paired 95 % interval
    nearest           of greatest SQNR; db: auto minus it
    """

    network: str
    best: str
    points: float
    low: float
    high: float
    nearest: str
    db: float


@dataclass(frozen=True, slots=True)
class Comparison:
    """One network's results; `lead` is None where a tool has none."""

    rows: tuple[Row, ...]
    operators: Operators
    lead: Lead | None = None


# -- onnxruntime's half, in a process of its own because it may crash


def quantize_static(entry: zoo.Entry, method: str, types: Sequence[str], samples: int, goal: Path) -> None:
    """Write onnxruntime's Q/DQ model of `entry` to `goal`. `types` empty means its default operators."""
    from onnxruntime.quantization import CalibrationDataReader, CalibrationMethod, QuantFormat, QuantType
    from onnxruntime.quantization import quantize_static as theirs
    from onnxruntime.quantization.shape_inference import quant_pre_process

    class Reader(CalibrationDataReader):  # type: ignore[misc]
        def __init__(self) -> None:
            self.left = entry.samples(samples)

        def get_next(self) -> object:
            return next(self.left, None)

    with TemporaryDirectory() as name:
        raised, ready = Path(name) / "raised.onnx", Path(name) / "ready.onnx"
        onnx.save(_raised(onnx.load(entry.model)), raised)
        quant_pre_process(str(raised), str(ready), skip_symbolic_shape=True)
        theirs(
            str(ready),
            str(goal),
            Reader(),
            quant_format=QuantFormat.QDQ,
            per_channel=True,
            op_types_to_quantize=list(types) or None,
            activation_type=QuantType.QUInt8,
            weight_type=QuantType.QInt8,
            calibrate_method=CalibrationMethod[method],
            extra_options={"CalibPercentile": PERCENTILE} if method == "Percentile" else {},
        )


def _raised(model: onnx.ModelProto) -> onnx.ModelProto:
    version = next(o.version for o in model.opset_import if o.domain in ("", "ai.onnx"))
    return model if version >= PER_CHANNEL_OPSET else onnx.version_converter.convert_version(model, RAISED_OPSET)


def _apart(entry: zoo.Entry, method: str, types: Sequence[str], samples: int, goal: Path) -> str:
    """quantize_static in another process: "" when it wrote the file, else why not."""
    order = [
        sys.executable,
        __file__,
        "--quantize",
        str(entry.folder),
        method,
        ",".join(types),
        str(samples),
        str(goal),
    ]
    return zoo.apart(order, goal, LIMIT_S)


# -- the comparison


def compare(entry: zoo.Entry, samples: int, own: Sequence[str], out: Path) -> Comparison:
    """`plan` of a row is "TOOL METHOD"."""
    bench = Bench.open(entry, out / entry.name, samples)
    plans = {spec: bench.uniform(Precision.INT8, spec) for spec in dict.fromkeys((*METHODS.values(), *own))}
    operators = _operators(bench, plans["minmax"])
    found = [row_of(entry.name, "float", bench.evaluator.reference())]
    per_sample: dict[str, Array] = {}

    def add(row: Row) -> None:
        found.append(row)
        if not row.error and bench.evaluator.rows is not None:
            per_sample[row.plan] = bench.evaluator.rows

    for spec, plan in plans.items():
        add(ours(bench, spec, plan))
    same = tuple(t for t in operators.qbench if t not in operators.only_qbench)
    for method in METHODS:
        add(usual := replace(_theirs(bench, method, (), samples, out), plan=f"onnxruntime default {method}"))
        made = _theirs(bench, method, same, samples, out) if operators.only_onnxruntime else usual
        add(replace(made, plan=f"onnxruntime same {method}"))
    return Comparison(tuple(found), operators, _lead(bench.case.metric, found, per_sample))


def _lead(metric: Metric, found: Sequence[Row], per_sample: Mapping[str, Array]) -> Lead | None:
    """auto against the best of onnxruntime, once in points and once in dB; None where either tool has no result."""
    theirs = [r for r in found if r.plan.startswith("onnxruntime") and r.plan in per_sample]
    own = next((r for r in found if r.plan == "qbench auto" and r.plan in per_sample), None)
    if own is None or not theirs:
        return None
    best, nearest = max(theirs, key=lambda r: (r.value, r.sqnr_db)), max(theirs, key=lambda r: r.sqnr_db)
    lead, low, high = (100 * v for v in paired_drop(metric, per_sample[own.plan], per_sample[best.plan]))
    return Lead(own.network, best.plan, lead, low, high, nearest.plan, own.sqnr_db - nearest.sqnr_db)


def ours(bench: Bench, spec: str, plan: Plan) -> Row:
    try:
        return bench.row(f"qbench {spec}", plan)
    except Exception as error:  # noqa: BLE001   a failure is a result
        return Row(bench.entry.name, f"qbench {spec}", error=reason(error))


def _theirs(bench: Bench, method: str, types: Sequence[str], samples: int, out: Path) -> Row:
    """onnxruntime's model, made unless an earlier run left it; `types` empty means its default operators."""
    name = bench.entry.name
    goal = out / name / f"{method}-{samples}-{zlib.crc32(','.join(types).encode()):08x}.onnx"
    try:
        if not goal.is_file() and (failed := _apart(bench.entry, method, types, samples, goal)):
            return Row(name, "", error=failed)
        onnx.checker.check_model(str(goal))
        return row_of(name, "", bench.evaluator.evaluate_model(ir.load(goal)))
    except Exception as error:  # noqa: BLE001
        return Row(name, "", error=reason(error))


def _operators(bench: Bench, plan: Plan) -> Operators:
    from onnxruntime.quantization.registry import QDQRegistry, QLinearOpsRegistry

    network = bench.case.network
    types = {str(n.name): n.op_type for n in bench.case.prepared.model.graph}
    int8 = {
        types[n]
        for k in network.kernels
        for n in k.nodes
        if n in types and plan.precision[network.unit_of_kernel[k.name]] is Precision.INT8
    }
    known = set(QDQRegistry) | set(QLinearOpsRegistry)
    return Operators(
        bench.entry.name,
        tuple(sorted(int8)),
        tuple(sorted(int8 - known)),
        tuple(sorted((set(types.values()) & known) - int8)),
    )


def table(found: Sequence[Row], own: Sequence[str]) -> str:
    """One line per network and method: change of the metric in points and SQNR in dB, for the three ways."""
    at = {(r.network, r.plan): r for r in found}
    lines = []
    for network in dict.fromkeys(r.network for r in found):
        base = at[network, "float"]
        for method, spec in [*METHODS.items(), *((None, s) for s in own)]:
            ways = [
                at.get((network, f"qbench {spec}")),
                *(at.get((network, f"onnxruntime {k} {method}")) for k in ("default", "same")),
            ]
            value, names = base.error or f"{100 * base.value:.2f}", spec + (f" / {method}" if method else "")
            lines.append([network, base.metric, value, names, *map(_cell, ways)])
    ways_text = ("qbench", "onnxruntime, its operators", "onnxruntime, qbench's operators")
    return zoo.markdown(["network", "metric", "float", "method", *ways_text], lines)


def _cell(row: Row | None) -> str:
    return "" if row is None else row.error or f"{-100 * row.drop:+.2f} / {row.sqnr_db:.1f} dB"


def lead_table(found: Sequence[Lead]) -> str:
    """One line per network: auto against the best of onnxruntime's methods."""

    def short(plan: str) -> str:
        _, operators, method = plan.split()
        return f"{method}, {'its' if operators == 'default' else 'the same'} operators"

    return zoo.markdown(
        ["network", "onnxruntime's best in points", "auto minus it", "onnxruntime's best in dB", "auto minus it"],
        [
            [f.network, short(f.best), f"{f.points:+.2f} [{f.low:+.2f}, {f.high:+.2f}]", short(f.nearest), f"{f.db:+.1f} dB"]
            for f in found
        ],
    )


def operator_table(found: Sequence[Operators]) -> str:
    return zoo.markdown(
        ["network", "qbench quantizes", "of these onnxruntime cannot", "onnxruntime quantizes besides"],
        [[o.network, *(", ".join(x) for x in (o.qbench, o.only_qbench, o.only_onnxruntime))] for o in found],
    )


def main() -> int:
    if sys.argv[1:2] == ["--quantize"]:
        folder, method, types, samples, goal = sys.argv[2:]
        entry = next(e for e in zoo.entries(Path(folder).parent, [Path(folder).name]))
        quantize_static(entry, method, [t for t in types.split(",") if t], int(samples), Path(goal))
        return 0
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("dest", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument(
        "--samples",
        type=int,
        default=32,
        help="calibration samples of both; onnxruntime keeps every tensor of all of them",
    )
    parser.add_argument(
        "--tool-calibrator", action="append", help="further calibrators of qbench; default: auto"
    )
    asked = parser.parse_intermixed_args()
    own = tuple(asked.tool_calibrator or OWN)
    for entry in zoo.entries(asked.dest, asked.names):
        try:
            found = compare(entry, asked.samples, own, asked.out)
        except Exception as error:  # noqa: BLE001
            found = Comparison((Row(entry.name, "float", entry.metric, error=reason(error)),), Operators(entry.name, (), (), ()))
        (asked.out / entry.name).mkdir(parents=True, exist_ok=True)
        (asked.out / entry.name / RESULT).write_text(json.dumps(asdict(found), indent=1) + "\n", encoding="utf-8")
        print(f"{entry.name}: {len(found.rows)} rows", file=sys.stderr, flush=True)
    text = report([_read(p) for p in sorted(asked.out.glob(f"*/{RESULT}"))], own, asked.samples)
    (asked.out / "onnxruntime.md").write_text(text, encoding="utf-8")
    print(text)
    return 0


def _read(path: Path) -> Comparison:
    body = json.loads(path.read_text(encoding="utf-8"))
    lead = body["lead"]
    return Comparison(tuple(Row(**r) for r in body["rows"]), Operators(**body["operators"]), Lead(**lead) if lead else None)


def report(found: Sequence[Comparison], own: Sequence[str], samples: int) -> str:
    """The three tables as Markdown."""
    import onnxruntime

    text = [
        f"## onnxruntime {onnxruntime.__version__}, {samples} samples: change in points / SQNR of first output",
        table([r for c in found for r in c.rows], own),
        "## auto against the best of onnxruntime's methods, in points with the paired 95 % interval and in dB",
        lead_table([c.lead for c in found if c.lead]),
        "## Operators",
        operator_table([c.operators for c in found]),
    ]
    return "\n\n".join(text) + "\n"


if __name__ == "__main__":
    sys.exit(main())
