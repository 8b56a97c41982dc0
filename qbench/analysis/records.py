"""What an analysis holds: frozen, JSON-ready, and enough to write the verdict and the page from."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from importlib import import_module
from typing import Any

from qbench.coverage import Coverage
from qbench.metrics.fidelity import MOST_DB

UNUSED = 1e-4
"""A channel that stays below this share of the largest one carries nothing that a network was trained for."""


@dataclass(frozen=True, slots=True)
class Error:
    """One tensor of the quantized model against float, over all samples.

    sqnr_db   MOST_DB (200) for equal values, -MOST_DB for one that is not finite
    zeroed    share of the values that are not zero in float and exactly zero here, 0..1
    """

    sqnr_db: float
    cosine: float
    zeroed: float


@dataclass(frozen=True, slots=True)
class Part:
    """A run of channels with a meaning of its own: what one tensor brought into a Concat, or neighbours of like magnitude.

    channels    first and one past the last, along the tensor's channel axis
    magnitude   largest |x| in float
    dead        channels that are constant zero in the quantized network and not in float
    """

    name: str
    channels: tuple[int, int]
    magnitude: float
    isolated: Error
    accumulated: Error
    dead: int


@dataclass(frozen=True, slots=True)
class TensorError:
    """One tensor that a kernel writes.

    role            "output"; "inner" between two operators of the kernel, where it is stored in integers of its own
    group           its scale group, "" for one without
    axis            which axis counts its channels; None for tensors of one axis
    isolated        the kernel alone quantized, on the float model's activations
    accumulated     the whole plan
    channels_db     accumulated SQNR of each channel; channels_alone_db isolated. Empty where `left_out` says why
    magnitudes      largest |x| of each channel in float
    dead, dead_alone  channels that come out constant zero and are not in float: in the network, and by this kernel alone
    parts           what entered a Concat; runs of like magnitude at a graph output; empty for the others
    """

    tensor: str
    role: str
    group: str
    axis: int | None
    isolated: Error
    accumulated: Error
    channels_db: tuple[float, ...] = ()
    channels_alone_db: tuple[float, ...] = ()
    magnitudes: tuple[float, ...] = ()
    dead: tuple[int, ...] = ()
    dead_alone: tuple[int, ...] = ()
    parts: tuple[Part, ...] = ()
    left_out: str = ""

    def used(self, dbs: Sequence[float]) -> list[float]:
        """Of one figure a channel, those of the channels that reach at least UNUSED of the largest; [] where channels are not known."""
        least = UNUSED * max(self.magnitudes, default=0.0)
        return [db for db, m in zip(dbs, self.magnitudes, strict=True) if m > least] if dbs else []


@dataclass(frozen=True, slots=True)
class KernelError:
    """One kernel in execution order.

    unit        the part of the plan that decides its precision
    reason      why it is in float, where it is and a reason is known
    macs_share  of the network's multiply-accumulates, 0..1
    arrives_db  accumulated SQNR of its worst input; MOST_DB for the network's own inputs
    outputs     graph outputs among its tensors
    """

    name: str
    op: str
    unit: str
    precision: str
    reason: str
    macs_share: float
    arrives_db: float
    tensors: tuple[TensorError, ...]
    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()

    @property
    def is_float(self) -> bool:
        return self.precision in ("fp16", "fp32")

    @property
    def worst(self) -> TensorError | None:
        """The tensor whose isolated error is largest; None for a kernel without float tensors."""
        return min(self.tensors, key=lambda t: (t.isolated.sqnr_db, t.accumulated.sqnr_db), default=None)


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """A tensor that the plan stores in integers, as the calibration data's statistics see it.

    group        its scale group; `kernel` writes it, "" for a network input
    low, high    the reals that the codes reach; step is the scale
    seen_low, seen_high   extremes of the calibration data
    clipped      share of the values outside of the codes' reach, 0..1
    clip_noise   share of the quantization noise (squared error) that clipping makes, 0..1
    noise_db     SQNR of storing it with these codes; best_db the same with [best_low, best_high], the range of least squared error
    """

    tensor: str
    group: str
    kernel: str
    bits: int
    low: float
    high: float
    step: float
    zero_point: int
    seen_low: float
    seen_high: float
    clipped: float
    clip_noise: float
    noise_db: float
    best_low: float
    best_high: float
    best_db: float
    constant: bool
    histogram: Histogram


@dataclass(frozen=True, slots=True)
class Histogram:
    """Counts of equally wide bins over [low, high]."""

    low: float
    high: float
    counts: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class GroupSource:
    """A tensor whose values come into being in a scale group. codes: how many its range spans."""

    tensor: str
    low: float
    high: float
    codes: float

    @property
    def magnitude(self) -> float:
        return max(abs(self.low), abs(self.high))


@dataclass(frozen=True, slots=True)
class MixedGroup:
    """A scale group whose sources differ widely in range (BUG case B16).

    kernel, tensor   the Concat where they meet, and its output
    sources          largest first
    ratio            largest magnitude over smallest
    blocked          why the graph cannot be cut before the Concat, "" when it can
    """

    group: str
    unit: str
    kernel: str
    tensor: str
    inputs: tuple[str, ...]
    sources: tuple[GroupSource, ...]
    ratio: float
    blocked: str


@dataclass(frozen=True, slots=True)
class WeightSpread:
    """How unequal the output channels of a weight are.

    ratio        range of the widest channel over that of the median one
    widest       that channel
    per_channel  each channel has a scale of its own
    codes        how many codes the median channel spans, of 2**bits
    """

    kernel: str
    weight: str
    channels: int
    largest: float
    median: float
    ratio: float
    widest: int
    per_channel: bool
    bits: int
    codes: float


@dataclass(frozen=True, slots=True)
class Check:
    """A proposal that was carried out and run on the same samples.

    kind     "raise", "together", "noisiest", "range", "granularity", "cut"; "without": the float model without dead channels
    subject  what was changed, in words: units, a tensor, a scale group, a granularity
    change   what it became
    parts    (name, SQNR before, after) of each output, or of each part of it
    units    the units that were raised
    """

    kind: str
    subject: str
    change: str
    parts: tuple[tuple[str, float, float], ...]
    units: tuple[str, ...] = ()

    @property
    def part(self) -> tuple[str, float, float]:
        """The part that gains most. Above ENOUGH_DB more does not count: such a part is fine either way."""
        return max(self.parts, key=lambda p: (min(p[2], ENOUGH_DB) - min(p[1], ENOUGH_DB), p[2] - p[1]))

    @property
    def gain_db(self) -> float:
        _, before, after = self.part
        return after - before

    @property
    def useful_db(self) -> float:
        """The gain as far as anybody needs it: up to ENOUGH_DB."""
        _, before, after = self.part
        return min(after, ENOUGH_DB) - min(before, ENOUGH_DB)

    @property
    def loss(self) -> tuple[str, float, float] | None:
        """The part that loses most, None when none loses 0.5 dB below ENOUGH_DB."""
        name, before, after = min(self.parts, key=lambda p: min(p[2], ENOUGH_DB) - min(p[1], ENOUGH_DB))
        return (name, before, after) if min(before, ENOUGH_DB) - min(after, ENOUGH_DB) >= 0.5 else None


ENOUGH_DB = 50.0
"""An output this close to float (a third of a percent of its amplitude) needs no help."""


@dataclass(frozen=True)
class Analysis:
    """Everything that was measured. `qbench.analysis.verdict` turns it into sentences.

    data        name of the data set; samples: how many were walked over; seen: how many the statistics hold
    simulated   Q/DQ run in float, because this machine's integer kernels saturate
    layers      units per precision
    outputs     (part of an output, SQNR) of the whole model as it ships
    kernels     in execution order
    stored      tensors stored in integers, in network order
    constant    tensors stored in integers that held one value over all the calibration data -> that value
    unobserved  tensors without any value -> why
    coverage    precision and reason of every operator
    """

    model: str
    model_key: str
    plan_key: str
    target: str
    toolkit: str
    calibrator: str
    granularity: str
    data: str
    samples: int
    seen: int
    simulated: bool
    layers: Mapping[str, int]
    outputs: tuple[tuple[str, float], ...]
    kernels: tuple[KernelError, ...]
    stored: tuple[StoredTensor, ...]
    coverage: Coverage
    mixed: tuple[MixedGroup, ...] = ()
    weights: tuple[WeightSpread, ...] = ()
    constant: Mapping[str, float] = field(default_factory=dict)
    unobserved: Mapping[str, str] = field(default_factory=dict)
    checks: tuple[Check, ...] = ()
    notes: Mapping[str, str] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()

    @property
    def integer(self) -> tuple[KernelError, ...]:
        """Kernels that run in integers and write float tensors."""
        return tuple(k for k in self.kernels if not k.is_float and k.tensors)

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        shown: str = import_module("qbench.report.notebook").analysis(self)     # by name: the report knows this module, not the other way round
        return shown

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready; numbers that are not finite become None."""
        body: dict[str, Any] = finite(asdict(self))
        body["coverage"] = self.coverage.to_dict()
        body["outputs"] = [{"part": name, "sqnr_db": db} for name, db in self.outputs]
        for row, check in zip(body["checks"], self.checks, strict=True):
            row["parts"] = [{"part": name, "before_db": before, "after_db": after} for name, before, after in check.parts]
            row["gain_db"] = check.gain_db
        return body


@dataclass(frozen=True, slots=True)
class Finding:
    """One sentence or two of the verdict, with the numbers it rests on.

    kind      "raise", "together", "cut", "range", "granularity", "weights", "collapse", "amplifies", "constant",
              "unobserved", "spread", "nonfinite", "leave", "untried", "fine"
    subject   the unit, tensor or scale group that it is about
    gain_db   what a real run gained where it gains most; None when nothing was run
    """

    kind: str
    subject: str
    text: str
    gain_db: float | None = None


def finite(value: Any) -> Any:
    """`value` with tuples as lists and numbers that JSON does not have as None."""
    if isinstance(value, Mapping):
        return {str(k): finite(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [finite(v) for v in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value


def capped(db: float) -> float:
    """`db` inside +-MOST_DB; -MOST_DB for NaN."""
    return -MOST_DB if math.isnan(db) else min(MOST_DB, max(-MOST_DB, float(db)))
