"""Fetch the networks: one folder each, with model.onnx, calibration.npz, evaluation.npz and network.json.

usage: fetch.py DEST [NAME ...]        DEST lies outside the repository; without names all networks are made

Placeholder docstring, the table is written at the end.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path

import audio
import filetypes
import language
import numpy as np
import ocr
import onnx
import shipped
import vision
import zoo
from made import Array, Made

BUILDERS: Mapping[str, Callable[[Path], Made]] = {
    "basic_pitch": audio.basic_pitch, "blazeface": shipped.blazeface, "brain": shipped.brain,
    "efficientnet_lite0": vision.efficientnet_lite0, "fashion": shipped.fashion, "magika": filetypes.magika, "minilm": language.minilm,
    "mobilefacenet": vision.mobilefacenet, "posenet": vision.posenet, "ppocr_cls": ocr.direction, "ppocr_det": ocr.detection,
    "ppocr_rec": ocr.recognition, "selfie": vision.selfie, "silero_if": audio.silero_if, "silero_ifless": audio.silero_ifless,
    "silero_lstm": audio.silero_lstm,
}


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("dest", type=Path)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"some of: {', '.join(BUILDERS)}")
    parser.add_argument("--again", action="store_true", help="make networks again that are there already")
    asked = parser.parse_args()
    dest: Path = asked.dest.resolve()
    if dest.is_relative_to(Path(__file__).resolve().parents[2]):
        parser.error(f"{dest} lies inside the repository; these files do not belong there")
    if unknown := set(asked.names) - set(BUILDERS):
        parser.error(f"no network {', '.join(sorted(unknown))}; known: {', '.join(BUILDERS)}")
    failed = [name for name in asked.names or BUILDERS if not _make(name, dest, asked.again)]
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


def _make(name: str, dest: Path, again: bool) -> bool:
    folder = dest / name
    if (folder / zoo.RECORD).is_file() and not again:
        print(f"{name}: there already")
        return True
    start = time.perf_counter()
    try:
        made = BUILDERS[name](dest / "packages")
        write(made, folder)
    except Exception:                                   # one network less is a result; the others go on
        traceback.print_exc()
        return False
    count = {k: len(next(iter(v.values()))) for k, v in (("calibration", made.calibration), ("evaluation", made.evaluation))}
    print(f"{name}: {count['calibration']} calibration and {count['evaluation']} evaluation samples, {time.perf_counter() - start:.0f} s", flush=True)
    return True


def write(made: Made, folder: Path) -> None:
    """All files of one network; the record comes last."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    onnx.checker.check_model(made.model)
    onnx.save(made.model, folder / zoo.MODEL)
    _save(folder / zoo.CALIBRATION, made.calibration)
    _save(folder / zoo.EVALUATION, made.evaluation)
    zoo.Entry(folder, made.metric, made.note, made.shapes).save()


def _save(path: Path, arrays: Mapping[str, Array]) -> None:
    with open(path, "wb") as opened:
        np.savez(opened, **arrays)  # type: ignore[arg-type]


if __name__ == "__main__":
    sys.exit(main())
