"""The per-layer table that rknn-toolkit2 prints when it builds, for your version of it and your graphs.

    python experiments/harvest_rknn_cycles.py --python TOOLKIT_ENV/bin/python --graphs FOLDER -o cycles.csv
    python experiments/harvest_rknn_cycles.py --log build.txt -o cycles.csv          reads a log that you have already

The toolkit needs an environment of its own (it wants onnx 1.18 and protobuf 4):

    pip install "numpy==1.26.4" "protobuf==4.25.4" psutil ruamel.yaml scipy tqdm "opencv-python-headless<4.12" fast-histogram \\
        "onnx==1.18.0" onnxruntime torch "setuptools<81"
    pip install --no-deps rknn-toolkit2==2.5.0

FOLDER holds `.onnx` or `.onnx.xz` files, opset 19 or less. A graph that the toolkit refuses is named with its last words and left out.
The result has the columns of experiments/data/rknn_cycles.csv.xz, so rknn_cycles.py can be pointed at it.
"""

from __future__ import annotations

import argparse
import csv
import lzma
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

INSIDE = Path(__file__).parent / "rknn_inside.py"
COLUMNS = ("platform", "graph", "mode", "id", "op", "dtype", "target", "in_shape", "out_shape", "ddr_cycles", "npu_cycles", "total_cycles", "rw_kb", "name",
           "internal_kb", "weight_kb")
SHAPES = r"(?:\\|\([\d,]*\)(?:,\([\d,]*\))*(?:,\.\.\.)?)"
LAYER = re.compile(rf"^(\d+)\s+(\S+)\s+(\S+)\s+(NPU|CPU|GPU)\s+({SHAPES})\s+({SHAPES})\s+(\d+)/(\d+)/(\d+)\s+(\d+)\s*(.*?)\s*$")
TENSOR = re.compile(r"^(\d+)\s+(\S+)\s+(.+?)\s+(\S+)\s+(\S+)\s+(\([\d,]*\))\s+(\([\d,]*\))\s+\|\s*(0x[0-9a-f]+)[ *](0x[0-9a-f]+)\s+(0x[0-9a-f]+)")
NOISE = re.compile(r"\x1b\[[\d;]*m|^[A-Z] RKNN: \[[\d:.]+\] ?", re.MULTILINE)
MEMORY = {"internal_kb": re.compile(r"Total Internal Memory Size: ([\d.]+)KB"), "weight_kb": re.compile(r"Total Weight Memory Size: ([\d.]+)KB")}


@dataclass(frozen=True, slots=True)
class PlacedTensor:
    """One line of the toolkit's feature table: a tensor and where it lies. reader   index of the layer that reads it"""

    reader: int
    name: str
    dtype: str
    shape: str
    native_shape: str
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Build:
    """What the log of one build says: layers as rows of COLUMNS (without platform, graph and mode), memory, tensors."""

    layers: tuple[dict[str, str], ...]
    tensors: tuple[PlacedTensor, ...]

    @property
    def total_cycles(self) -> int:
        return sum(int(row["total_cycles"]) for row in self.layers)


def lines(text: str) -> list[str]:
    """Lines of a log without colours, time stamps and progress bars."""
    return [line.rstrip() for line in NOISE.sub("", text.replace("\r", "\n")).split("\n")]


def parse(text: str) -> Build:
    """The tables of one verbose build. Raises ValueError when the log holds no layer table or no memory sizes."""
    body = lines(text)
    names = ("id", "op", "dtype", "target", "in_shape", "out_shape", "ddr_cycles", "npu_cycles", "total_cycles", "rw_kb", "name")
    layers = [dict(zip(names, m.groups(), strict=True)) for line in body if (m := LAYER.match(line))]
    found = {key: m.group(1) for key, pattern in MEMORY.items() for line in body if (m := pattern.search(line))}
    if not layers or len(found) < len(MEMORY):
        raise ValueError("the log holds no 'Network Layer Information Table' with memory sizes; build with RKNN(verbose=True)")
    tensors = []
    for line in body:
        if m := TENSOR.match(line):
            tensors.append(PlacedTensor(int(m[1]), m[3], m[4], m[6], m[7], int(m[8], 16), int(m[9], 16)))
    return Build(tuple(row | found for row in layers), tuple(tensors))


def build(python: Path, model: Path, mode: str, platform: str, seconds: float = 1800.0) -> str:
    """Log of one build. Raises RuntimeError with the toolkit's last words."""
    with tempfile.TemporaryDirectory() as folder:
        plain = Path(folder) / "graph.onnx"
        plain.write_bytes(lzma.decompress(model.read_bytes()) if model.suffix == ".xz" else model.read_bytes())
        done = subprocess.run([os.path.abspath(python), str(INSIDE), str(plain), mode, platform, folder], cwd=folder, capture_output=True, text=True, errors="replace",
                              timeout=seconds, check=False)
    log = done.stdout + done.stderr
    if done.returncode:
        last = [line for line in lines(log) if line][-3:]
        raise RuntimeError(f"exit status {done.returncode}; last words: {' | '.join(last)[-400:]}")
    return log


def rows_of(log: str, graph: str, mode: str, platform: str) -> list[dict[str, str]]:
    return [{"platform": platform, "graph": graph, "mode": mode} | row for row in parse(log).layers]


def harvest(python: Path, models: Iterable[Path], modes: Sequence[str], platform: str) -> list[dict[str, str]]:
    """Rows of every graph that the toolkit builds; the others are named on standard error."""
    rows = []
    for model in models:
        graph = model.name.removesuffix(".xz").removesuffix(".onnx")
        for mode in modes:
            try:
                found = rows_of(build(python, model, mode, platform), graph, mode, platform)
            except (RuntimeError, ValueError, subprocess.TimeoutExpired) as error:
                print(f"{graph} {mode}: left out: {error}", file=sys.stderr)
                continue
            rows += found
            print(f"{graph} {mode}: {len(found)} layers, {sum(int(r['total_cycles']) for r in found):,} cycles", file=sys.stderr)
    return rows


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", type=Path, help="interpreter of the toolkit's environment")
    parser.add_argument("--graphs", type=Path, help="folder of .onnx or .onnx.xz files")
    parser.add_argument("--log", type=Path, help="a recorded log instead of a build")
    parser.add_argument("--only", nargs="*", default=[], help="names of graphs; default: all of the folder")
    parser.add_argument("--mode", nargs="*", default=["int8", "fp16"], choices=["int8", "fp16"])
    parser.add_argument("--platform", default="rk3588")
    parser.add_argument("-o", "--output", type=Path, required=True)
    options = parser.parse_args(argv)
    if options.log:
        rows = rows_of(options.log.read_text(encoding="utf-8", errors="replace"), options.log.stem, options.mode[0], options.platform)
    elif options.python and options.graphs:
        models = sorted(m for m in options.graphs.iterdir() if m.name.endswith((".onnx", ".onnx.xz")))
        wanted = [m for m in models if not options.only or m.name.removesuffix(".xz").removesuffix(".onnx") in options.only]
        rows = harvest(options.python, wanted, options.mode, options.platform)
    else:
        parser.error("give --python and --graphs, or --log")
    with open(options.output, "w", newline="", encoding="utf-8") as goal:
        out = csv.DictWriter(goal, COLUMNS)
        out.writeheader()
        out.writerows(rows)
    return 0 if rows else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
