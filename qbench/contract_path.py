"""The way of a frame to a model's input: what each step moves, on which engine, and ways that save steps.

A step's time on a target is the bytes it moves over a rate from the target's file; no board has confirmed any of them, so each is
unvalidated and its interval is that of a specification-only figure.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from qbench.contract import Contract
from qbench.data.preprocessing import Preprocessing
from qbench.errors import InputError
from qbench.target import Target

FACTOR = 3.0
"""Either way: the interval of a figure that rests on an assumed rate."""
ENGINES = {
    "rknn": ("RGA, the 2D engine beside the NPU", "resize and NV12 to RGB are calls of librga (imresize, imcvtcolor; github.com/airockchip/librga, 2024)"),
}
"""Rules of a target -> its 2D engine, and where that is written. Others: no public source here, so nothing is priced."""


@dataclass(frozen=True, slots=True)
class Step:
    """engine   "CPU" or the 2D engine; bytes_moved   read and written
    host_ms     (low, median, high) measured on this machine; None: not a step of the CPU
    target_ms   (low, middle, high) estimated; None where no rate bounds it; of an engine the lower bound alone is known, high is infinite
    """

    name: str
    engine: str
    bytes_moved: int
    host_ms: tuple[float, float, float] | None = None
    target_ms: tuple[float, float, float] | None = None

    def to_dict(self) -> dict[str, Any]:
        target = None if self.target_ms is None else [None if v == float("inf") else v for v in self.target_ms]
        return {"step": self.name, "engine": self.engine, "bytes_moved": self.bytes_moved, "host_ms": self.host_ms, "target_ms": target}


@dataclass(frozen=True, slots=True)
class Way:
    """needs   what must be so for it; basis   what its figures rest on"""

    name: str
    steps: tuple[Step, ...]
    needs: str = ""
    basis: str = ""

    @property
    def bytes_moved(self) -> int:
        return sum(s.bytes_moved for s in self.steps)

    @property
    def host_ms(self) -> float | None:
        """Sum of the medians; None where a step does not run on a CPU."""
        times = [s.host_ms[1] for s in self.steps if s.host_ms is not None]
        return sum(times) if len(times) == len(self.steps) else None

    def to_dict(self) -> dict[str, Any]:
        return {"way": self.name, "needs": self.needs, "basis": self.basis, "bytes_moved": self.bytes_moved, "host_ms": self.host_ms, "steps": [s.to_dict() for s in self.steps]}


def ways(contract: Contract, frame: tuple[int, int], target: Target) -> tuple[Way, ...]:
    """Four ways from a frame of (height, width) pixels to the input, the usual one first. Raises InputError for an input that is no prepared picture."""
    how = contract.preprocessing
    if how is None:
        raise InputError(f"input {contract.name!r}: nobody said how pixels become values; give --preprocess, and a model whose input is a picture")
    height, width = _size(contract)
    channels, source = 1 if how.colour == "gray" else 3, frame[0] * frame[1]
    pixels = height * width * channels
    rate = target.cost.get("cpu_bytes_per_s")

    def step(name: str, moved: int) -> Step:
        ms = None if rate is None or name == "decode" else 1e3 * moved / rate
        return Step(name, "CPU", moved, None, None if ms is None else (ms / FACTOR, ms, ms * FACTOR))

    decode, resize = step("decode", source * 3), step("resize", source * channels + pixels)
    order = [step("colour order", 2 * pixels)] if how.colour == "bgr" else []
    real = [step("normalise", 5 * pixels), *([step("layout", 8 * pixels)] if how.layout == "nchw" and channels > 1 else [])]
    basis = (f"{rate / 1e9:g} GB/s of the target's CPU: {target.sources.get('cost.cpu_bytes_per_s', '')}; unvalidated, a factor of {FACTOR:g} either way; "
             "decoding is arithmetic and has no public figure, so it is measured here and not estimated there") if rate else "no rate of the target's CPU is public: bytes only"
    found = [
        Way("the host prepares float32", (decode, resize, *order, *real, step("copy", 8 * pixels)), "", basis),
        Way("8-bit pixels, the compiled model normalises", (decode, resize, *order, step("copy", 2 * pixels)), "--as pixels; mean and std given to the compiler, and nowhere else", basis),
        Way("8-bit pixels, written into the device's buffer", (decode, resize, *order), "--as pixels --zero-copy; rows as far apart as the runtime says (w_stride)", basis)]
    if target.rules in ENGINES:
        engine, written = ENGINES[target.rules]
        moved = source * 3 // 2 + pixels
        dram = target.cost.get("dram_bytes_per_s")
        least = None if dram is None else 1e3 * moved / dram
        found.append(Way("NV12 frame, resized and converted by the 2D engine, zero copy",
                         (Step("NV12 to RGB and resize", engine.partition(",")[0], moved, None, None if least is None else (least, least, float("inf"))),),
                         "a camera or hardware decoder that gives NV12, a buffer shared by its file descriptor, cache maintenance by the driver",
                         f"{written}; at least its bytes over the DRAM rate ({target.sources.get('cost.dram_bytes_per_s', '')}), no public time of the engine; unvalidated"))
    return tuple(found)


def timed(found: Sequence[Way], time_of: Callable[[str], tuple[float, float, float]]) -> tuple[Way, ...]:
    """The same with the CPU's steps as measured here; each step is timed once. time_of   step -> (low, median, high) in ms"""
    known: dict[tuple[str, int], tuple[float, float, float]] = {}

    def measured(s: Step) -> Step:
        if s.engine != "CPU":
            return s
        key = (s.name, s.bytes_moved)
        if key not in known:
            known[key] = time_of(s.name if s.name != "copy" else f"copy {s.bytes_moved // 2}")
        return replace(s, host_ms=known[key])
    return tuple(replace(w, steps=tuple(measured(s) for s in w.steps)) for w in found)


def _size(contract: Contract) -> tuple[int, int]:
    a = (1, 2) if contract.layout == "NHWC" else (2, 3)
    return contract.shape[a[0]], contract.shape[a[1]]


def sized(how: Preprocessing, contract: Contract) -> Preprocessing:
    """The pipeline with the size of the input, where it left that open."""
    return replace(how, size=_size(contract))
