"""Real networks through the vendors' toolchains: export, compile, simulate, read back; or the refusal, word for word.

    python experiments/export_networks.py ZOO [NAME ...]       ZOO: made by experiments/networks/fetch.py

For each network and target: an INT8 plan (minmax, a scale per channel), `qbench export` with two real samples, and one line of a Markdown table.
Needs the toolchains rknn and qnn (qbench toolchain install NAME). About a minute a line on two cores.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

NETWORKS = {
    "efficientnet_lite0": "classifier", "fashion": "classifier", "blazeface": "detector", "brain": "segmentation", "selfie": "segmentation", "ppocr_rec": "OCR",
    "ppocr_cls": "OCR", "silero_ifless": "audio", "silero_if": "audio", "minilm": "transformer", "mobilefacenet": "embedding", "posenet": "key points",
    "magika": "file types",
}
TARGETS = ("rk3588", "hexagon-8gen3")
SECONDS, SAMPLES = 900, 2


def qbench(*args: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "qbench", *map(str, args)], capture_output=True, text=True, timeout=SECONDS, check=False)


def line(zoo: Path, name: str, target: str, work: Path) -> str:
    """One row of the table."""
    here, about = zoo / name, json.loads((zoo / name / "network.json").read_text(encoding="utf-8"))
    shapes = [a for k, v in about["shapes"].items() for a in ("--input-shape", f"{k}={','.join(map(str, v))}")]
    with np.load(here / "calibration.npz") as stored:
        np.savez(work / "few.npz", **{k: stored[k][:SAMPLES] for k in stored.files})
    common = (here / "model.onnx", *shapes, "--target", target)
    head = f"| {name} | {NETWORKS.get(name, '')} | {target} |"
    plan = work / "plan.json"
    made = qbench("quantize", *common, "--data", here / "calibration.npz", "-o", work / "q.onnx", "--save-plan", plan)
    if made.returncode:
        return f"{head} no plan | {last(made)} |  |  |"
    try:
        done = qbench("export", *common, "--data", work / "few.npz", "--plan", plan, "-o", work / "out", "--json")
    except subprocess.TimeoutExpired:
        return f"{head} stopped after {SECONDS} s |  |  |  |"
    if done.returncode:
        what = {2: "refused before it was built", 3: "refused by the toolchain, or not the plan"}.get(done.returncode, f"exit {done.returncode}")
        return f"{head} {what} | {last(done)} |  |  |"
    body: dict[str, Any] = json.loads(done.stdout)
    back, facts = body["read_back"], body["facts"]
    layers = ", ".join(f"{v} {k}" for k, v in body["layers"].items())
    cycles = f"{facts['total_cycles']:,}" if "total_cycles" in facts else ""
    return (f"{head} compiled: {layers} | {'; '.join(map(simulated, body['simulations']))} | {back['compared']} equal, {back['silent']} not told | {cycles} |")


def simulated(row: dict[str, Any]) -> str:
    """What one simulation says, in few words."""
    steps = "" if row["lsb"] is None else f"{row['lsb']:.3g} steps" + ("" if row["limit_lsb"] is None else f" (allowed {row['limit_lsb']:.3g})")
    sqnr = "equal" if row["sqnr_db"] in (None, float("inf")) else f"{row['sqnr_db']:.1f} dB"
    return f"{row['what'].rpartition(', ')[2]}: {', '.join(filter(None, (steps, sqnr)))}" + (f" [{row['note']}]" if row["note"] else "")


def last(done: subprocess.CompletedProcess[str]) -> str:
    """The message of the error, at most a few hundred characters."""
    text = " ".join(done.stderr[done.stderr.rfind("qbench: "):].split()).removeprefix("qbench: ").replace("|", "/")
    return text if len(text) <= 400 else text[:400] + " ..."


def main(zoo: Path, names: list[str]) -> int:
    print("| network | kind | target | result | simulator against onnxruntime, or the refusal | layers and tensors read back | cycles |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for name in names or NETWORKS:
        for target in TARGETS:
            with tempfile.TemporaryDirectory() as work:
                print(line(zoo, name, target, Path(work)), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2:]))
