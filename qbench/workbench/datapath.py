"""The steps from a picture to a model's input, timed on this machine: Pillow decodes and resizes, numpy does the rest, as `Preprocessing` does it."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
from PIL import Image, UnidentifiedImageError

from qbench.contract import Contract
from qbench.contract_path import Way, sized, timed, ways
from qbench.data.preprocessing import Preprocessing
from qbench.errors import DataError, InputError
from qbench.target import Target

RUNS, LEAST_S = 7, 0.05
"""Timed runs of a step at least, and seconds of all of them together."""
MOST_PIXELS = 64 << 20


def data_path(contract: Contract, target: Target, frame: str, picture: Path | None = None) -> tuple[Way, ...]:
    """The ways from a frame to an input, priced for `target` and timed here.

    frame     "1920x1080", width x height as cameras are named; picture   a real one, decoded instead of a made-up one; then frame may be ""
    Raises InputError for a frame that does not parse or an input that is no picture, DataError for a picture that cannot be read.
    """
    encoded, size = _encoded(frame, picture)
    found = ways(contract, size, target)
    how = contract.preprocessing
    assert how is not None
    return timed(found, _Timer(encoded, sized(how, contract)))


def _encoded(frame: str, picture: Path | None) -> tuple[bytes, tuple[int, int]]:
    """(bytes of a picture file, (height, width))."""
    if picture is not None:
        try:
            data = picture.read_bytes()
            with Image.open(io.BytesIO(data)) as file:
                return data, (file.height, file.width)
        except (OSError, UnidentifiedImageError) as error:
            raise DataError(f"{picture}: cannot be read as a picture ({error})") from error
    width, cross, height = frame.lower().partition("x")
    if not (cross and width.isdecimal() and height.isdecimal() and 0 < int(width) * int(height) <= MOST_PIXELS):
        raise InputError(f"--frame {frame!r} cannot be read; expected WIDTHxHEIGHT in pixels, as in 1920x1080")
    size = int(height), int(width)
    # smooth colours with a little noise: JPEG sizes as of photographs
    rng = np.random.default_rng(0)
    y, x = np.mgrid[0:size[0], 0:size[1]]
    plain = np.stack([128 + 100 * np.sin(x / 97.0 + c) * np.cos(y / 61.0 - c) for c in range(3)], -1) + rng.normal(0.0, 6.0, (*size, 3))
    stream = io.BytesIO()
    Image.fromarray(np.clip(plain, 0, 255).astype(np.uint8)).save(stream, "JPEG", quality=90)
    return stream.getvalue(), size


class _Timer:
    """Times a step on the values that the steps before it make."""

    def __init__(self, encoded: bytes, how: Preprocessing) -> None:
        self.encoded, self.how = encoded, how
        assert how.size is not None
        self.decoded = self._decode()
        self.small = self._resize()
        self.pixels = np.asarray(self.small)
        self.real = self._normalise()

    def __call__(self, step: str) -> tuple[float, float, float]:
        """(10th percentile, median, 90th percentile) in ms."""
        what, _, size = step.partition(" ") if step.startswith("copy") else (step, "", "")
        work: Callable[[], Any] = {"decode": self._decode, "resize": self._resize, "normalise": self._normalise, "colour order": self._reorder, "layout": self._transpose,
                                   "copy": lambda: None}[what]
        if what == "copy":
            source, sink = np.ones(int(size), np.uint8), np.empty(int(size), np.uint8)
            work = lambda: np.copyto(sink, source)
        work()
        times: list[float] = []
        while len(times) < RUNS or sum(times) < LEAST_S:
            began = perf_counter()
            work()
            times.append(perf_counter() - began)
        low, middle, high = np.percentile(times, [10, 50, 90]) * 1e3
        return float(low), float(middle), float(high)

    def _decode(self) -> Image.Image:
        with Image.open(io.BytesIO(self.encoded)) as file:
            return file.convert("L" if self.how.colour == "gray" else "RGB")

    def _resize(self) -> Image.Image:
        assert self.how.size is not None
        return self.decoded.resize(self.how.size[::-1], Image.Resampling.BILINEAR)

    def _reorder(self) -> np.ndarray[Any, Any]:
        return np.ascontiguousarray(self.pixels[..., ::-1])

    def _normalise(self) -> np.ndarray[Any, Any]:
        x = np.asarray(self.pixels, np.float32)
        return np.asarray((x * np.float32(self.how.scale) - np.array(self.how.mean, np.float32)) / np.array(self.how.std, np.float32))

    def _transpose(self) -> np.ndarray[Any, Any]:
        return np.ascontiguousarray(self.real.transpose(2, 0, 1))
