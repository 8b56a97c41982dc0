"""The program that goes to the board with an artefact: feeds the golden input, checks the golden output."""

from __future__ import annotations

HEAD = '''"""Runs the exported model on its golden input and compares with the golden output. Written by qbench export.

    python run.py            needs numpy and the vendor's runtime; exit status 0 when the outputs agree, 1 when they do not
"""

import json
import sys
from pathlib import Path

import numpy as np


'''
TAIL = '''

def main():
    folder = Path(__file__).resolve().parent
    manifest = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
    golden = np.load(folder / manifest["golden"]["file"])
    feeds = {name: golden["in:" + name] for name in manifest["golden"]["inputs"]}
    outputs = infer(folder, feeds)
    worst = 0
    for output, got in zip(manifest["golden"]["outputs"], outputs):
        want = np.asarray(golden["out:" + output["name"]], np.float64)
        got = np.asarray(got, np.float64).reshape(want.shape)
        apart = float(np.abs(got - want).max()) if want.size else 0.0
        bad = not apart <= output["tolerance"]            # not: NaN is bad, too
        worst |= bad
        print(f"{output['name']}: largest difference {apart:.6g}, allowed {output['tolerance']:.6g}: {'WRONG' if bad else 'ok'}")
    if len(outputs) != len(manifest["golden"]["outputs"]):
        print(f"{len(outputs)} outputs, expected {len(manifest['golden']['outputs'])}: WRONG")
        worst = 1
    return int(worst)


if __name__ == "__main__":
    sys.exit(main())
'''


def board_script(infer: str) -> str:
    """Source of run.py. infer   source of `def infer(folder, feeds)`, with its own imports inside"""
    return HEAD + infer.strip("\n") + "\n" + TAIL
