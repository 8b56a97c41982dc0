"""The same networks and data calibrated by qbench and by AIMET (aimet-onnx 2.42.0), each by min-max and by least noise.

usage: against_aimet.py DEST OUT AIMET_PYTHON [NAME ...] [--samples N] [--calibrator SPEC ...]

AIMET_PYTHON is the interpreter of an environment of AIMET's own. What works on a CPU (1.7 GB):

    python3.11 -m venv AIMET
    AIMET/bin/pip install torch==2.13.0 onnx onnxruntime onnx_ir onnxscript onnx2torch
    AIMET/bin/pip install --no-deps aimet-onnx==2.42.0
    AIMET/bin/pip install Jinja2 PyYAML jsonschema pandas psutil scipy tqdm osqp pybind11 scikit-learn bokeh hvplot

torch comes first so that pip settles on one build; bokeh and hvplot are needed by `import aimet_onnx` itself.

Both start from qbench's prepared model, BatchNorm folded, so that only the numerics differ. Both quantize weights to
int8, symmetric and per channel, and activations to uint8 with zero point (AIMET: default_config_per_channel.json). What
stays different: AIMET's scheme also chooses the ranges of the weights; AIMET quantizes the output of every operator,
also where qbench stays in float; AIMET's weights reach -128, qbench's stop at -127. AIMET's model is its own export,
`sim.to_onnx_qdq()`, run and scored by the same code as qbench's. Failures stand in the cells.

`post_training_tf` of older versions is `min_max` now; `post_training_tf_enhanced` minimises the noise of rounding and
of clipping, clipping counted three times.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import onnx_ir as ir
import zoo
from against_onnxruntime import ours
from quality import Bench, Row, reason, row_of

from qbench import qdq
from qbench.network import Precision

SCHEMES = ("min_max", "post_training_tf_enhanced", "post_training_percentile")
SPECS = ("minmax", "sqnr:clip=3.0", "percentile:sided=magnitude", "auto")
"""qbench's calibrators: of the same ideas as SCHEMES, in their order, and its own."""
LIMIT_S = 600


def compare(entry: zoo.Entry, specs: Sequence[str], samples: int, python: Path, out: Path) -> list[Row]:
    """Rows of both tools; `plan` is "qbench SPEC" or "aimet SCHEME"."""
    bench = Bench.open(entry, out / entry.name, samples)
    prepared = out / entry.name / "prepared.onnx"
    prepared.write_bytes(qdq.to_bytes(bench.case.prepared.model))
    found = [row_of(entry.name, "float", bench.evaluator.reference())]
    found += [ours(bench, spec, bench.uniform(Precision.INT8, spec)) for spec in specs]
    return found + [_theirs(bench, scheme, prepared, samples, python) for scheme in SCHEMES]


def _theirs(bench: Bench, scheme: str, prepared: Path, samples: int, python: Path) -> Row:
    name, goal = f"aimet {scheme}", prepared.with_name(f"aimet-{scheme}.onnx")
    if failed := _apart(python, prepared, bench.entry.calibration, samples, scheme, goal):
        return Row(bench.entry.name, name, error=failed)
    try:
        return row_of(bench.entry.name, name, bench.evaluator.evaluate_model(ir.load(goal)))
    except Exception as error:  # noqa: BLE001   a failure is a result
        return Row(bench.entry.name, name, error=reason(error))


def _apart(python: Path, model: Path, data: Path, samples: int, scheme: str, goal: Path) -> str:
    """ "" when AIMET wrote `goal`, else why not."""
    inside = Path(__file__).with_name("aimet_inside.py")
    order = [str(python), str(inside), str(model), str(data), str(samples), scheme, str(goal)]
    return zoo.apart(order, goal, LIMIT_S)


def table(found: Sequence[Row]) -> str:
    """Networks down; change of the metric in points and SQNR in dB."""
    names, plans = (
        list(dict.fromkeys(r.network for r in found)),
        list(dict.fromkeys(r.plan for r in found if r.plan != "float")),
    )
    at = {(r.network, r.plan): r for r in found}

    def cell(row: Row | None) -> str:
        return "" if row is None else row.error or f"{-100 * row.drop:+.2f} / {row.sqnr_db:.1f} dB"

    lines = []
    for name in names:
        base = at[name, "float"]
        lines.append(
            [name, base.metric, base.error or f"{100 * base.value:.2f}", *(cell(at.get((name, p))) for p in plans)]
        )
    return zoo.markdown(["network", "metric", "float", *plans], lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("dest", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("aimet_python", type=Path, help="interpreter of an environment with aimet-onnx")
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--samples", type=int, default=32, help="calibration samples of both")
    parser.add_argument("--calibrator", action="append", help="spec of qbench; may be repeated")
    asked = parser.parse_intermixed_args()
    specs = tuple(asked.calibrator or SPECS)
    found: list[Row] = []
    for entry in zoo.entries(asked.dest, asked.names):
        try:
            found += compare(entry, specs, asked.samples, asked.aimet_python, asked.out)
        except Exception as error:  # noqa: BLE001
            found.append(Row(entry.name, "float", entry.metric, error=reason(error)))
        print(f"{entry.name}: done", file=sys.stderr, flush=True)
        asked.out.mkdir(parents=True, exist_ok=True)
        (asked.out / "aimet.json").write_text(json.dumps([asdict(r) for r in found], indent=1) + "\n", encoding="utf-8")
        (asked.out / "aimet.md").write_text(
            f"## AIMET, {asked.samples} calibration samples\n\n{table(found)}\n", encoding="utf-8"
        )
    print(table(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
