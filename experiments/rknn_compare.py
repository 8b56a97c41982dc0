"""qbench's INT8 and mixed plans beside what rknn-toolkit2 itself makes of the same networks: normal, kl, mmse, auto_hybrid; all in its own simulator.

    python experiments/rknn_compare.py ZOO [NAME ...]       ZOO: made by experiments/networks/fetch.py

Ours, per network: the best of four calibrators (int8); INT8 with channels equalized and biases corrected (corrected); with channels equalized and weights
rounded by AdaRound (adaround); what `qbench search` makes of these calibrators and corrections, INT8 throughout (searched); and what it finds for a fifth
more latency than all INT8, in any precision (mixed). All of them and the toolkit calibrate on the same CALIBRATED samples; all are judged by SQNR on JUDGED others (accuracies of so
few are all alike); the search judges its plans by SEARCHED further ones.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from qbench.comparison import VendorRow, beaten

NETWORKS = ("fashion", "blazeface", "brain", "ppocr_cls", "posenet", "minilm")
SLOW = ("posenet", "minilm")
"""Without AdaRound, which takes half an hour there."""
MASKED = ("minilm",)
"""With attention masks: a search varies no corrections beside them, and the embedding must stay in float."""
AT_LOGITS = ("ppocr_cls",)
"""Judged in front of its Softmax: of probabilities that are 1 in float, decibels are those of one or two samples."""
CALIBRATED, JUDGED, SEARCHED, TRIALS = 32, 32, 16, 12
CORRECTED = ("-c", "cle", "-c", "bias")
TARGET = "rk3588"
CALIBRATORS = ("minmax", "mse", "percentile:p=99.99", "mse:tail=exponential")
MORE_LATENCY = 1.2
SECONDS = 1500


def qbench(*args: object) -> Any:
    """What the command says in JSON. Raises RuntimeError with its error."""
    done = subprocess.run([sys.executable, "-m", "qbench", *map(str, args)], capture_output=True, text=True, timeout=SECONDS, check=False)
    if done.returncode not in (0, 1):
        raise RuntimeError(" ".join(done.stderr[done.stderr.rfind("qbench: "):].split()))
    return json.loads(done.stdout) if done.stdout.startswith(("{", "[")) else None


def rows_of(zoo: Path, name: str, work: Path) -> list[VendorRow]:
    """Ours and the toolkit's."""
    here, about = zoo / name, json.loads((zoo / name / "network.json").read_text(encoding="utf-8"))
    shapes = [a for k, v in about["shapes"].items() for a in ("--input-shape", f"{k}={','.join(map(str, v))}")]
    for part, source, first, count in (("calibration", "calibration", 0, CALIBRATED), ("judged", "evaluation", 0, JUDGED), ("searched", "evaluation", JUDGED, SEARCHED)):
        with np.load(here / f"{source}.npz") as stored:
            np.savez(work / f"{part}.npz", **{k: stored[k][first:first + count] for k in stored.files})
    model = logits(here / "model.onnx", work / "logits.onnx") if name in AT_LOGITS else here / "model.onnx"
    data = ("--data", work / "calibration.npz", *shapes)
    sqnr = ("--metric", "sqnr")
    plans = []
    steps = {"corrected": CORRECTED, "adaround": ("-c", "cle", "-c", "adaround:iterations=500"), "searched": CORRECTED, "mixed": CORRECTED}
    left_out = {"adaround": SLOW, "searched": MASKED}
    for label in (n for n in steps if name not in left_out.get(n, ())):
        try:
            if label in ("searched", "mixed"):
                searched(model, shapes, (*data, "--eval-data", work / "searched.npz", *sqnr, *(() if name in MASKED else CORRECTED)), work, label)
            else:
                qbench("quantize", model, *data, "--target", TARGET, "--calibrator", CALIBRATORS[-1], *steps[label], "-o", work / f"{label}.onnx",
                       "--save-plan", work / f"{label}.json")
            plans += ["--plan", work / f"{label}.json"]
        except RuntimeError as error:
            print(f"{name}, {label}: {error}", file=sys.stderr, flush=True)
    body = qbench("compare", model, *data, "--eval-data", work / "judged.npz", *sqnr, "--target", TARGET, *(a for c in CALIBRATORS for a in ("--calibrator", c)), "--scale", "per-channel",
                  "--with", "rknn", *plans, "-o", work / "compare", "--json")
    (work / "compare.json").write_text(json.dumps(body), encoding="utf-8")
    return [VendorRow(**{**row, "sqnr_db": float("inf") if row["sqnr_db"] is None else row["sqnr_db"], "on_cpu": tuple(row["on_cpu"])}) for row in body["vendor"]]


def logits(model: Path, cut: Path) -> Path:
    """`cut`: the model without the Softmax at its end and what is behind it."""
    proto = onnx.load(model)
    nodes = list(proto.graph.node)
    at = max(i for i, n in enumerate(nodes) if n.op_type == "Softmax")
    proto.graph.output[0].name = nodes[at].input[0]
    del proto.graph.node[at:]
    onnx.save(proto, cut)
    return cut


def searched(model: Path, shapes: list[str], data: tuple[Any, ...], work: Path, label: str) -> None:
    """LABEL.json: the best INT8 plan, or the best plan within MORE_LATENCY times the predicted latency of all INT8."""
    limits: tuple[str, ...] = ("--precision", "int8")
    if label == "mixed":
        cost = qbench("cost", model, "--target", TARGET, "--precision", "int8", *shapes, "--json")
        limits = ("--budget", f"{MORE_LATENCY * cost[0]['latency_ms']:.4f}ms")
    qbench("search", "--model", model, *data, *(a for c in CALIBRATORS for a in ("--calibrator", c)), "--target", TARGET, *limits, "--trials", TRIALS,
           "-o", work / label, "--json")
    (work / f"{label}.json").write_text((work / label / "plan.json").read_text(encoding="utf-8"), encoding="utf-8")


def lines(name: str, rows: list[VendorRow]) -> list[str]:
    """Of the table, and one that says what beats us."""
    found = []
    for r in rows:
        figures = f"{r.refused.replace('|', '/')[:200]} |  | " if r.refused else f"{r.sqnr_db:.1f} | {r.cycles:,} | {r.build_s:.0f}"
        found.append(f"| {name} | {r.maker} | {r.name} | {figures} |")
    lost = [f"{ours.name} ({ours.sqnr_db:.1f} dB) by {theirs.name} ({theirs.sqnr_db:.1f} dB)" for ours, theirs in beaten(rows)]
    return [*found, f"| {name} | | beaten at no more cycles: | {'; '.join(lost) or 'none'} |  |  |"]


def main(zoo: Path, names: list[str]) -> int:
    print("| network | by | what | SQNR dB | toolkit's cycles | build s |")
    print("| --- | --- | --- | --- | --- | --- |")
    for name in names or NETWORKS:
        with tempfile.TemporaryDirectory() as work:
            try:
                print("\n".join(lines(name, rows_of(zoo, name, Path(work)))), flush=True)
            except RuntimeError as error:
                print(f"| {name} | | {str(error).replace('|', '/')[:300]} |  |  |  |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2:]))
