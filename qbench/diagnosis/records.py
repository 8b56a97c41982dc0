"""What a diagnosis is made of: causes, hypotheses, trials, gaps, verdicts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from qbench.protocols import Array

if TYPE_CHECKING:
    import onnx

Tensors = Mapping[str, Array]
"""Tensor -> values of all samples, first axis samples."""


class Cause(StrEnum):
    """What may lie between two machines that should agree."""

    HEALTHY = "healthy"
    ROUNDING = "rounding mode"
    CHANNEL_ORDER = "channel order"
    NORMALISATION = "normalisation"
    LAYOUT = "layout"
    SATURATION = "saturation"
    OVERFLOW = "overflow"
    RANGE = "calibration range"
    PRECISION = "precision"
    STALE = "stale data"
    CACHE = "cache not flushed"
    ZEROS = "all zeros"
    NON_FINITE = "NaN or infinity"
    ZERO_POINT = "zero point or sign"
    SCALE = "scale"
    ORDER = "order of samples or outputs"
    LATENCY = "slower than predicted"
    CUT = "nothing found, search cut short"
    UNKNOWN = "unexplained"


@dataclass(frozen=True, slots=True)
class InputFault:
    """The other machine was fed something else. apply   feeds -> feeds; freedom   numbers that were fitted to what was observed"""

    name: str
    cause: Cause
    apply: Callable[[Tensors], Tensors]
    freedom: int = 0


@dataclass(frozen=True, slots=True)
class Edit:
    """The other machine computes something else.

    apply     model -> changed copy; where   the kernel or tensor, "" everywhere
    factor    a positive number that can be fitted, with what makes the same edit with another one; None: there is none
    """

    name: str
    cause: Cause
    apply: Callable[[onnx.ModelProto], onnx.ModelProto]
    where: str = ""
    freedom: int = 0
    factor: float = 1.0
    tune: Callable[[float], Edit] | None = None


@dataclass(frozen=True, slots=True)
class OutputFault:
    """The other machine hands over something else. apply   (predicted, observed) -> what would be seen; None: does not apply to them"""

    name: str
    cause: Cause
    apply: Callable[[Tensors, Tensors], Tensors | None]
    freedom: int = 0


@dataclass(frozen=True, slots=True)
class Trial:
    """One hypothesis, or two together, tried. left   share of the gap's energy that it leaves, 0: it explains all"""

    names: tuple[str, ...]
    causes: tuple[Cause, ...]
    left: float
    freedom: int = 0
    where: str = ""

    @property
    def explained(self) -> float:
        return max(0.0, 1.0 - self.left)

    def to_dict(self) -> dict[str, Any]:
        return {"hypothesis": list(self.names), "causes": [str(c) for c in self.causes], "explained": self.explained, "fitted": self.freedom, "where": self.where}


@dataclass(frozen=True, slots=True)
class Gap:
    """How far observed values lie from expected ones.

    sqnr_db     infinite when equal, -infinite when NaN or infinity is among them
    cosine      over all samples
    max_error, rms_error   in reals
    step        of the codes in which the tensor is stored; None where it is float
    """

    sqnr_db: float
    cosine: float
    max_error: float
    rms_error: float
    step: float | None = None

    @property
    def max_steps(self) -> float | None:
        """Largest error in steps."""
        return None if self.step is None else self.max_error / self.step

    def to_dict(self) -> dict[str, Any]:
        return {"sqnr_db": self.sqnr_db, "cosine": self.cosine, "max_error": self.max_error, "rms_error": self.rms_error, "max_steps": self.max_steps}


@dataclass(frozen=True, slots=True)
class LayerGap:
    """One tensor. isolated   of its part of the network on the other machine's own inputs; accumulated   on what came through the network;
    allowed   root mean square error that arithmetic alone may make; open   the isolated gap is wider"""

    tensor: str
    isolated: Gap
    accumulated: Gap
    allowed: float
    open: bool

    def to_dict(self) -> dict[str, Any]:
        return {"tensor": self.tensor, "isolated": self.isolated.to_dict(), "accumulated": self.accumulated.to_dict(), "allowed_rms": self.allowed, "open": self.open}


@dataclass(frozen=True)
class Stage:
    """One machine against the one before it.

    name      "float -> simulated", "simulated -> compiled", "compiled -> board" ...
    cause     the first cause; HEALTHY where the gap is no wider than arithmetic allows
    where     the first tensor at which the gap opens, and the kernel or tensor that a hypothesis names
    trials    best first
    """

    name: str
    cause: Cause
    causes: tuple[Cause, ...] = ()
    what: str = ""
    where: str = ""
    confidence: float = 0.0
    evidence: tuple[str, ...] = ()
    trials: tuple[Trial, ...] = ()
    layers: tuple[LayerGap, ...] = ()
    samples: tuple[int, ...] = ()
    notes: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        return {"stage": self.name, "cause": str(self.cause), "causes": [str(c) for c in self.causes], "what": self.what, "where": self.where,
                "confidence": self.confidence, "evidence": list(self.evidence), "trials": [t.to_dict() for t in self.trials],
                "layers": [g.to_dict() for g in self.layers], "samples": list(self.samples), "notes": list(self.notes)}


@dataclass(frozen=True)
class Diagnosis:
    """stages    in the order of the data; left_out   layer -> why it was not looked at"""

    model: str
    samples: int
    stages: tuple[Stage, ...]
    left_out: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @property
    def first(self) -> Stage | None:
        """The first stage at which the gap opens; without one the first that was not examined to its end; None when all are healthy."""
        return min((s for s in self.stages if s.cause is not Cause.HEALTHY), key=lambda s: s.cause is Cause.CUT, default=None)

    @property
    def cause(self) -> Cause:
        return self.first.cause if self.first else Cause.HEALTHY

    def to_dict(self) -> dict[str, Any]:
        from qbench.diagnosis.cures import CURES

        body = {"model": self.model, "samples": self.samples, "cause": str(self.cause), "stage": self.first.name if self.first else "",
                "stages": [s.to_dict() for s in self.stages], "left_out": dict(self.left_out), "notes": list(self.notes)}
        if self.first:
            cure = CURES[self.first.cause]
            body |= {"confirm": cure.confirm, "cure": cure.cure}
        return body
