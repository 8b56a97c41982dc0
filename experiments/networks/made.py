"""What a builder hands to fetch.py, and what several builders share."""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
from numpy.typing import NDArray
from packages import Package, unpacked
from PIL import Image

Array = NDArray[Any]
IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
PHOTOGRAPHS = (
    "astronaut.png",
    "chelsea.png",
    "coffee.png",
    "rocket.jpg",
    "motorcycle_left.png",
    "hubble_deep_field.jpg",
    "ihc.png",
    "china.jpg",
    "flower.jpg",
)
SKIMAGE = Package("pypi", "scikit-image==0.26.0", ("skimage/data/*.png", "skimage/data/*.jpg"))
SKLEARN = Package("pypi", "scikit-learn==1.9.1", ("sklearn/datasets/images/*.jpg",))


@dataclass(frozen=True)
class Made:
    """model        ONNX, as its publisher made it, but for the changes that its builder names
    calibration   model input name -> [samples, ...]
    evaluation    the same, and `labels`
    """

    model: onnx.ModelProto
    calibration: Mapping[str, Array]
    evaluation: Mapping[str, Array]
    metric: str
    note: str
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)


def session(model: onnx.ModelProto) -> ort.InferenceSession:
    """The model on the CPU, without onnxruntime's remarks."""
    options = ort.SessionOptions()
    options.log_severity_level = 3
    return ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


def batched(feeds: Mapping[str, Array], size: int) -> Iterator[dict[str, Array]]:
    """`feeds` in pieces of `size` samples."""
    count = len(next(iter(feeds.values())))
    for first in range(0, count, size):
        yield {k: v[first : first + size] for k, v in feeds.items()}


def outputs(model: onnx.ModelProto, feeds: Mapping[str, Array], size: int = 1) -> Array:
    """First output of `model` over all samples."""
    run = session(model)
    return np.concatenate([run.run(None, part)[0] for part in batched(feeds, size)])


def photographs(cache: Path) -> list[Image.Image]:
    """Photographs for calibration and backgrounds, none of which is in any evaluation set of pictures."""
    folders = [unpacked(SKIMAGE, cache) / "skimage/data", unpacked(SKLEARN, cache) / "sklearn/datasets/images"]
    paths = [next(f / name for f in folders if (f / name).is_file()) for name in PHOTOGRAPHS]
    return [Image.open(io.BytesIO(p.read_bytes())).convert("RGB") for p in paths]


def crop(picture: Image.Image, width: int, height: int, rng: np.random.Generator, least: float = 0.5) -> Image.Image:
    """A random window, resized to width x height; it spans `least` to all of the largest window that fits."""
    scale = min(picture.width / width, picture.height / height) * rng.uniform(least, 1.0)
    w, h = max(1, int(width * scale)), max(1, int(height * scale))
    left, top = int(rng.integers(0, picture.width - w + 1)), int(rng.integers(0, picture.height - h + 1))
    return picture.resize((width, height), Image.Resampling.BILINEAR, (left, top, left + w, top + h))


def normalised(picture: Image.Image, mean: tuple[float, ...], std: tuple[float, ...]) -> Array:
    """float32 [3, H, W], (pixel / 255 - mean) / std."""
    values = (np.asarray(picture, np.float32) / 255 - np.asarray(mean, np.float32)) / np.asarray(std, np.float32)
    return np.ascontiguousarray(values.transpose(2, 0, 1), np.float32)
