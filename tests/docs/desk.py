"""A user's folder with everything under the names that pages and help texts use, so that their command lines can be run as they stand."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import onnx
import pytest
from command_lines import run
from models import model, node
from PIL import Image

from qbench.runtime import Session
from qbench.samples import load_sample

PLACEHOLDERS = ("/data/", "MODEL", "TARGET", "COMMAND", "...")
OUTSIDE = {"dask://10.": "a scheduler", "postgresql://qbench@db": "a database server", "toolchain install": "downloads up to 1 GB",
           "replay:board.json": "a recording made up for that page", "minilm.onnx": "that network"}
"""What a line needs that no test has -> what it is. Such lines are parsed only."""
SMALL = {"search": "--limit 12 --trials 1 --no-track", "compare": "--limit 12 --calibrator minmax --scale per-channel", "measure": "--runs 3 --seconds 0", "ui": "--print",
         "analyze": "--samples 4 --checks 1", "diagnose": "--search-seconds 2"}
"""Added to a line so that it takes seconds: what it is an example of stays."""
COMPILED = ("rk3588", "ane-a17pro", "mediatek-apu")
"""Targets whose exporter runs in a vendor's environment."""


def needs(line: str) -> str:
    """What keeps a line from being run here; "" for nothing."""
    return next((what for words, what in {**OUTSIDE, **dict.fromkeys(PLACEHOLDERS, "a placeholder")}.items() if words in line), "")


def small(line: str) -> str:
    """The line with the small sample for the large one, and less to do."""
    command = line.split()[1]
    more = [] if "--check" in line or "--message" in line else SMALL.get(command, "").split()
    if command in ("search", "compare") and not any(w in line for w in ("--model", ".onnx", "--sample")) and not Path("qbench.toml").exists():
        more += ["--sample", "fashion"]
    if "--register" in line:
        more.remove("--no-track")
    line = line.replace("--sample brain", "--sample fashion")
    if "--sample fashion" in line:
        target = re.search(r"--target (\S+)", line)
        line = re.sub(r" plan\.json", f" plan-{target[1] if target else 'rk3588'}.json", line).replace("board.npz", "board-fashion.npz")
    return " ".join([line, *more])


def codes(line: str) -> tuple[int, ...]:
    """Exit codes that a line may end with here: no board answers, and no vendor's toolchain is installed."""
    command = line.split()[1]
    if "ssh://" in line or "--with rknn" in line or "toolchain check" in line:
        return (3,)
    if "--plan f.plan.json" in line:
        return (2,)                                             # of another chip, as the page says
    if command == "export" and any(t in line for t in COMPILED):
        return (0, 3)                                       # written and not compiled, or neither
    if command in ("search", "contract"):
        return (0, 1)                                       # limits and inputs are those of the example, the network is another
    if command == "doctor" or "ui --optuna" in line:
        return (0, 3)                                       # what this machine lacks
    return (2,) if "ui --store http" in line else (0,)      # --print: there is nothing to start


def run_line(line: str) -> tuple[int, str]:
    """Exit code of the line as `small` makes it, and the line."""
    line = small(line)
    return run(line), line


@contextmanager
def without_toolchains() -> Iterator[None]:
    """No vendor's toolchain is found: its own tests use it, and minutes of a compiler say nothing about a page."""
    with TemporaryDirectory() as empty, pytest.MonkeyPatch.context() as patch:
        patch.setenv("QBENCH_TOOLCHAINS", empty)
        for name in [n for n in os.environ if n.startswith("QBENCH_") and n != "QBENCH_TOOLCHAINS"]:
            patch.delenv(name)
        yield


POWER = '[[reading]]\nmodel = "net.onnx"\nop_point = "1000MHz"\nidle_w = 1.5\nbusy_w = 6.5\n'
METER = '''
import time
class Meter:
    name = "stand-in, invented readings"
    def start(self): self.began = time.monotonic()
    def stop(self): return [(0.01 * i, 5.0 + i % 2) for i in range(int((time.monotonic() - self.began) / 0.01))]
make = Meter
'''


def _network(size: int, channels: int) -> onnx.ModelProto:
    rng = np.random.default_rng(0)
    w = {"w0": rng.normal(0, 0.4, (4, channels, 3, 3)), "w1": rng.normal(0, 0.4, (4, 4, 3, 3)), "fc": rng.normal(0, 0.4, (4, 5))}
    nodes = [node("Conv", ["x", "w0"], ["a"], "first", strides=[4, 4]), node("Relu", ["a"], ["b"]), node("Conv", ["b", "w1"], ["c"], "second"),
             node("Relu", ["c"], ["d"]), node("GlobalAveragePool", ["d"], ["e"]), node("Flatten", ["e"], ["f"]), node("Gemm", ["f", "fc"], ["y"], "head")]
    return model(nodes, {"x": ["N", channels, size, size]}, {"y": ["N", 5]}, {k: v.astype(np.float32) for k, v in w.items()})


def lay(desk: Path, size: int, channels: int) -> None:
    """Fills the working folder `desk`: models, data, plans and results of earlier commands. size, channels   of the pictures"""
    rng = np.random.default_rng(1)
    onnx.save(_network(size, channels), str(desk / "net.onnx"))
    for name, sample in {"brain": "brain", "fashion": "fashion", "fashion_dsnet": "fashion", "yolov8n": "fashion"}.items():
        shutil.copy(load_sample(sample).model, desk / f"{name}.onnx")
    x, labels = rng.normal(size=(24, channels, size, size)).astype(np.float32), np.arange(24) % 5
    for name in ("calib", "calibration", "samples", "inputs"):
        np.savez(desk / f"{name}.npz", x=x[:8])
    for name in ("val", "validation"):
        np.savez(desk / f"{name}.npz", x=x[8:], labels=labels[8:])
    np.save(desk / "x.npy", x[:1])
    np.save(desk / "wrong.npy", x[:1].transpose(0, 2, 3, 1))
    (desk / "frame.raw").write_bytes(rng.integers(0, 256, size * size * channels, dtype=np.uint8).tobytes())
    for i, (picture, label) in enumerate(zip(rng.integers(0, 256, (24, size, size, channels), dtype=np.uint8), labels, strict=True)):
        place = desk / "calib" if i < 8 else desk / "val" / f"class{label}"
        place.mkdir(parents=True, exist_ok=True)
        Image.fromarray(picture.squeeze()).save(place / f"{i:03}.png")
    (desk / "power.toml").write_text(POWER)
    (desk / "meter.py").write_text(METER)
    _earlier(desk)
    (desk / "out" / "model.rknn").write_bytes(b"made elsewhere")


def _earlier(desk: Path) -> None:
    """What commands of before left behind; the working folder is `desk`."""
    for line in ("stats net.onnx --data calib.npz -o stats.npz", "stats net.onnx --data calib.npz -o shard1.npz", "stats net.onnx --data val.npz -o shard2.npz",
                 "quantize net.onnx --stats stats.npz -o model.qdq.onnx --save-plan plan.json", "export net.onnx --plan plan.json --target host -o out",
                 "search --model net.onnx --data calib.npz --eval-data val.npz --metric top1 --budget 9ms --trials 1 --no-track -o qbench-out/net-rk3588",
                 "search --sample fashion --limit 12 --budget 20ms --trials 1 --no-track -o qbench-out/brain-rk3588"):
        assert run(f"qbench --quiet {line}") == 0, line
    summary = desk / "qbench-out" / "brain-rk3588" / "summary.json"            # as if tracked: `qbench ui` needs to know where
    summary.write_text(json.dumps(json.loads(summary.read_text()) | {"mlflow": {"uri": "sqlite:///qbench-out/mlflow.db", "experiment": "qbench brain"}}))
    for target in ("host", "ascend310p", "ane-a17pro", "mediatek-apu", "rk3588"):
        assert run(f"qbench --quiet quantize --sample fashion --limit 8 --target {target} -o q.onnx --save-plan plan-{target}.json") == 0
    shutil.copy(desk / "plan-rk3588.json", desk / "f.plan.json")
    with np.load(desk / "samples.npz") as data:
        made: dict[str, Any] = dict(Session(desk / "model.qdq.onnx").run({"x": data["x"]}))
    np.savez(desk / "board.npz", **made)
    pictures = next(iter(load_sample("fashion").evaluation.batches(8))).feeds
    made = dict(Session(desk / "q.onnx").run(pictures))
    np.savez(desk / "board-fashion.npz", **made)


