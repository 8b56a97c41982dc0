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
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path

from qbench.targets.exporters.rknn_log import lines, parse

INSIDE = Path(__file__).parent / "rknn_inside.py"
COLUMNS = ("platform", "graph", "mode", "id", "op", "dtype", "target", "in_shape", "out_shape", "ddr_cycles", "npu_cycles", "total_cycles", "rw_kb", "name",
           "internal_kb", "weight_kb")


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
