"""qbench's INT8 and mixed plans beside what rknn-toolkit2 itself makes of the same networks: normal, kl, mmse, auto_hybrid; all in its own simulator.

    python experiments/rknn_compare.py ZOO [NAME ...]       ZOO: made by experiments/networks/fetch.py

Ours, per network: the better of two calibrators (int8); the same weights rounded by AdaRound (adaround); and the plan that `qbench search` finds for a
fifth more latency than all INT8 (mixed). All of them and the toolkit calibrate on the same CALIBRATED samples; JUDGED others are enough for SQNR, too few
for accuracies.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from qbench.comparison import VendorRow, beaten

NETWORKS = ("fashion", "blazeface", "ppocr_cls", "posenet", "efficientnet_lite0")
CALIBRATED, JUDGED, TRIALS = 32, 16, 6
TARGET = "rk3588"
CALIBRATORS = ("mse", "percentile:p=99.99")
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
    metric = "sqnr" if about["metric"].startswith("scores:") else about["metric"]         # scores.py is not known to the command line
    for part, count in (("calibration", CALIBRATED), ("evaluation", JUDGED)):
        with np.load(here / f"{part}.npz") as stored:
            np.savez(work / f"{part}.npz", **{k: stored[k][:count] for k in stored.files})
    data = ("--data", work / "calibration.npz", *shapes)
    judged = (*data, "--eval-data", work / "evaluation.npz", "--metric", metric)
    plans = []
    for label, make in (("adaround", lambda: qbench("quantize", here / "model.onnx", *data, "--target", TARGET, "--calibrator", "mse", "-c", "adaround:iterations=500",
                                                    "-o", work / "adaround.onnx", "--save-plan", work / "adaround.json")),
                        ("mixed", lambda: searched(here / "model.onnx", judged, work))):
        try:
            make()
            plans += ["--plan", work / f"{label}.json"]
        except RuntimeError as error:
            print(f"{name}, {label}: {error}", file=sys.stderr, flush=True)
    body = qbench("compare", here / "model.onnx", *judged, "--target", TARGET, *(a for c in CALIBRATORS for a in ("--calibrator", c)), "--scale", "per-channel",
                  "--with", "rknn", *plans, "-o", work / "compare", "--json")
    (work / "compare.json").write_text(json.dumps(body), encoding="utf-8")
    return [VendorRow(**{**row, "sqnr_db": float("inf") if row["sqnr_db"] is None else row["sqnr_db"], "on_cpu": tuple(row["on_cpu"])}) for row in body["vendor"]]


def searched(model: Path, judged: tuple[Any, ...], work: Path) -> None:
    """mixed.json: the best plan within MORE_LATENCY times the predicted latency of all INT8."""
    cost = qbench("cost", model, "--target", TARGET, "--precision", "int8", *judged[2:judged.index("--eval-data")], "--json")
    budget = MORE_LATENCY * cost[0]["latency_ms"]
    qbench("search", "--model", model, *judged, "--target", TARGET, "--budget", f"{budget:.4f}ms", "--trials", TRIALS, "-o", work / "search", "--json")
    (work / "mixed.json").write_text((work / "search" / "plan.json").read_text(encoding="utf-8"), encoding="utf-8")


def lines(name: str, rows: list[VendorRow]) -> list[str]:
    """Of the table, and one that says what beats us."""
    found = []
    for r in rows:
        figures = f"{r.refused.replace('|', '/')[:200]} |  |  | " if r.refused else f"{r.metric} {r.value:.4f} | {r.sqnr_db:.1f} | {r.cycles:,} | {r.build_s:.0f}"
        found.append(f"| {name} | {r.maker} | {r.name} | {figures} |")
    lost = [f"{ours.name} ({ours.sqnr_db:.1f} dB) by {theirs.name} ({theirs.sqnr_db:.1f} dB)" for ours, theirs in beaten(rows)]
    return [*found, f"| {name} | | beaten at no more cycles: | {'; '.join(lost) or 'none'} |  |  |  |"]


def main(zoo: Path, names: list[str]) -> int:
    print("| network | by | what | accuracy | SQNR dB | toolkit's cycles | build s |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for name in names or NETWORKS:
        with tempfile.TemporaryDirectory() as work:
            try:
                print("\n".join(lines(name, rows_of(zoo, name, Path(work)))), flush=True)
            except RuntimeError as error:
                print(f"| {name} | | {str(error).replace('|', '/')[:300]} |  |  |  |  |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2:]))
