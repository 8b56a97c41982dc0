"""From pixels to what a network is fed: size, colour order, scale, mean, deviation, layout. Spelled out, never guessed.

    value = (pixel * scale - mean) / std          per channel, in the order of `colour`
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps, UnidentifiedImageError

from qbench.errors import DataError, InputError
from qbench.protocols import Array

COLOURS = ("rgb", "bgr", "gray")
LAYOUTS = ("nchw", "nhwc")
FITS = ("stretch", "crop")
EXAMPLE = "size=224x224,colour=rgb,mean=0.485/0.456/0.406,std=0.229/0.224/0.225,layout=nchw"
SPELLINGS = {"color": "colour", "grey": "gray"}


@dataclass(frozen=True, slots=True)
class Preprocessing:
    """size    (height, width) in pixels, or None to keep each picture's own
    fit     "stretch" to the size, or "crop": the middle part that has the size's aspect ratio, scaled to it
    colour  "rgb", "bgr" or "gray"; the order of mean and std follows it
    scale   multiplies the pixel before the mean is taken away; 1/255 brings 8-bit pixels to 0..1
    mean, std   one number, or one per channel
    layout  "nchw" or "nhwc"

    Bilinear with antialiasing (Pillow); a photograph is turned as its EXIF orientation says.
    """

    size: tuple[int, int] | None = None
    fit: str = "stretch"
    colour: str = "rgb"
    scale: float = 1 / 255
    mean: tuple[float, ...] = (0.0,)
    std: tuple[float, ...] = (1.0,)
    layout: str = "nchw"

    def __post_init__(self) -> None:
        for name, known in (("colour", COLOURS), ("layout", LAYOUTS), ("fit", FITS)):
            if getattr(self, name) not in known:
                raise InputError(f"preprocessing: {name}={getattr(self, name)}; known: {', '.join(known)}")
        channels = 1 if self.colour == "gray" else 3
        for name, numbers in (("mean", self.mean), ("std", self.std)):
            if len(numbers) not in (1, channels) or not np.isfinite(numbers).all():
                raise InputError(f"preprocessing: {name} is {numbers}; colour={self.colour} wants 1 or {channels} finite numbers")
        if min(self.std) <= 0 or not (np.isfinite(self.scale) and self.scale > 0):
            raise InputError(f"preprocessing: std and scale must be above 0, got std={self.std}, scale={self.scale}")
        if self.size is not None and min(self.size) < 1:
            raise InputError(f"preprocessing: size={self.size[0]}x{self.size[1]}; height and width must be at least 1")

    @property
    def text(self) -> str:
        """The spec that `parse` reads back to an equal record."""
        parts = [] if self.size is None else [f"size={self.size[0]}x{self.size[1]}"]
        parts += [f"fit={self.fit}", f"colour={self.colour}", f"scale={self.scale!r}"]
        parts += [f"{k}={'/'.join(repr(float(v)) for v in getattr(self, k))}" for k in ("mean", "std")]
        return ",".join([*parts, f"layout={self.layout}"])

    def open(self, path: Path) -> Array:
        """The picture in `path` as float32, [C, H, W] or [H, W, C]. Raises DataError when it cannot be decoded."""
        try:
            with Image.open(path) as file:
                picture = ImageOps.exif_transpose(file)
                return self._finish(self._resized(self._coloured(picture)))
        except (UnidentifiedImageError, OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
            raise DataError(f"{path}: cannot be read as a picture ({error}); remove it or save it again as PNG or JPEG") from error

    def pixels(self, pixels: Array) -> Array:
        """The same for decoded pixels: uint8 [H, W], [H, W, 1], or [H, W, 3] in RGB order."""
        if pixels.ndim == 3 and pixels.shape[2] == 1:
            pixels = pixels[..., 0]
        if pixels.ndim not in (2, 3) or (pixels.ndim == 3 and pixels.shape[2] != 3):
            raise DataError(f"pixels of shape {'x'.join(map(str, pixels.shape))}: wanted HxW, HxWx1 or HxWx3 (RGB)")
        return self._finish(self._resized(self._coloured(Image.fromarray(pixels))))

    def _coloured(self, picture: Image.Image) -> Image.Image:
        if self.colour != "gray":
            return picture.convert("RGB")
        if picture.mode.startswith(("I", "F")):                 # 16-bit and float pictures keep their depth
            return Image.fromarray(np.asarray(picture, np.float32))
        return picture.convert("L")

    def _resized(self, picture: Image.Image) -> Image.Image:
        if self.size is None:
            return picture
        height, width = self.size
        if self.fit == "crop":
            return ImageOps.fit(picture, (width, height), Image.Resampling.BILINEAR)
        return picture.resize((width, height), Image.Resampling.BILINEAR)

    def _finish(self, picture: Image.Image) -> Array:
        x: NDArray[np.float32] = np.asarray(picture, np.float32)
        x = x[..., None] if x.ndim == 2 else x
        x = x[..., ::-1] if self.colour == "bgr" else x
        y = (x * np.float32(self.scale) - np.array(self.mean, np.float32)) / np.array(self.std, np.float32)
        return np.ascontiguousarray(y.transpose(2, 0, 1) if self.layout == "nchw" else y)


def parse(text: str) -> Preprocessing:
    """Reads "size=224x224,colour=rgb,mean=0.485/0.456/0.406,..."; what is left out keeps its default. size is HEIGHTxWIDTH."""
    found: dict[str, Any] = {}
    known = [f.name for f in fields(Preprocessing)]
    for part in filter(None, (p.strip() for p in text.split(","))):
        key, equals, value = (p.strip() for p in part.partition("="))
        key, value = SPELLINGS.get(key, key), SPELLINGS.get(value, value)
        if not equals or key not in known or key in found:
            why = "given twice" if key in found else f"known: {', '.join(known)}"
            raise InputError(f"preprocessing {text!r}: cannot read {part!r} ({why}); for example {EXAMPLE}")
        try:
            found[key] = _value(key, value)
        except (ValueError, ZeroDivisionError) as error:
            raise InputError(f"preprocessing {text!r}: {key}={value!r} is not understood; for example {EXAMPLE}") from error
    return Preprocessing(**found)


def _value(key: str, value: str) -> Any:
    if key == "size":
        height, width = value.lower().split("x")
        return int(height), int(width)
    if key == "scale":                                          # "1/255" as well as "0.0039"
        above, _, below = value.partition("/")
        return float(above) / float(below or 1)
    return tuple(float(v) for v in value.split("/")) if key in ("mean", "std") else value.lower()
