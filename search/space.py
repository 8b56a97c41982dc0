"""What a search may vary, what a candidate costs, and the seam of a strategy.

    Config     one point: a precision per unit, a variant (how ranges and weights are made), an operating point
    Space      all points; knows which units are free and how a Config reads as codes for the pricer
    Costs      objectives (all minimised) and constraints (met when at most 0) of one Config
    Strategy   ask for candidates, tell their costs; evaluation belongs to the caller
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import product
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from qbench.network import Precision

Codes = NDArray[np.int64]


class Variant(NamedTuple):
    """How the integers of a plan are made. corrections   a spec as of `qbench quantize --correct`, "" for the default steps alone"""

    calibrator: str
    granularity: str
    corrections: str = ""


@dataclass(frozen=True, slots=True)
class Config:
    """precision    one per unit, in the order of Space.units"""

    precision: tuple[Precision, ...]
    calibrator: str
    granularity: str
    op_point: str
    corrections: str = ""

    @staticmethod
    def of(precision: tuple[Precision, ...], variant: Variant, op_point: str) -> Config:
        return Config(precision, variant.calibrator, variant.granularity, op_point, variant.corrections)

    @property
    def variant(self) -> Variant:
        return Variant(self.calibrator, self.granularity, self.corrections)

    @property
    def key(self) -> str:
        """Content key, 16 hex digits."""
        text = json.dumps([[str(p) for p in self.precision], *self.variant, self.op_point])
        return hashlib.sha256(text.encode()).hexdigest()[:16]


@dataclass(frozen=True)
class Space:
    """units     names in topological order, the pricer's order
    allowed      one tuple per unit, at least one precision each; the first one listed is no preference
    calibrators, granularities, op_points, corrections    at least one each; the first is the default
    """

    units: tuple[str, ...]
    allowed: tuple[tuple[Precision, ...], ...]
    calibrators: tuple[str, ...]
    granularities: tuple[str, ...]
    op_points: tuple[str, ...]
    corrections: tuple[str, ...] = ("",)

    def __post_init__(self) -> None:
        if len(self.units) != len(self.allowed):
            raise ValueError(f"{len(self.units)} units but {len(self.allowed)} tuples of precisions")
        if not all(self.allowed) or not (self.calibrators and self.granularities and self.op_points and self.corrections):
            raise ValueError("every unit needs a precision, and the space a calibrator, a granularity and an operating point")

    @cached_property
    def free(self) -> tuple[int, ...]:
        """Indices of the units that have a choice."""
        return tuple(i for i, a in enumerate(self.allowed) if len(a) > 1)

    @property
    def size(self) -> int:
        """Configs, before equal ones are merged."""
        count = len(self.variants) * len(self.op_points)
        for a in self.allowed:
            count *= len(a)
        return count

    def uniform(self, precision: Precision) -> tuple[Precision, ...] | None:
        """`precision` wherever a free unit allows it, and the least lossy one elsewhere; None if no unit allows it."""
        if not any(precision in a for a in self.allowed):
            return None
        return tuple(precision if precision in a else finest(a) for a in self.allowed)

    def canonical(self, config: Config) -> Config:
        """The same plan in one way only: without an integer unit, the variant says nothing."""
        return Config.of(config.precision, self.plain, config.op_point) if all(p.is_float for p in config.precision) else config

    @property
    def plain(self) -> Variant:
        """The default of everything."""
        return Variant(self.calibrators[0], self.granularities[0], self.corrections[0])

    @property
    def variants(self) -> tuple[Variant, ...]:
        return tuple(Variant(c, g, k) for k in self.corrections for g in self.granularities for c in self.calibrators)

    def holds(self, config: Config) -> bool:
        return (len(config.precision) == len(self.units)
                and all(p in a for p, a in zip(config.precision, self.allowed, strict=True))
                and config.calibrator in self.calibrators and config.granularity in self.granularities
                and config.op_point in self.op_points and config.corrections in self.corrections)

    def codes(self, precision: Sequence[Precision], names: Sequence[str]) -> Codes:
        """int64 [units]: indices into `names`, the pricer's precisions."""
        index = {name: i for i, name in enumerate(names)}
        return np.array([index[str(p)] for p in precision], np.int64)

    def every(self) -> Sequence[tuple[Precision, ...]]:
        """All assignments; for tests and small networks only."""
        return list(product(*self.allowed))


_LOSS_ORDER = (Precision.FP32, Precision.FP16, Precision.INT16, Precision.INT8)


def finest(allowed: Sequence[Precision]) -> Precision:
    """The one that loses least: float before integers, wide before narrow."""
    return min(allowed, key=_LOSS_ORDER.index)


@dataclass(frozen=True, slots=True)
class Costs:
    """loss      accuracy lost against the float model, in the metric's own unit
    constraints  name -> excess over the limit as a share of it; met when at most 0
    """

    loss: float
    latency_ms: float
    energy_mj: float
    constraints: Mapping[str, float] = field(default_factory=dict)

    @property
    def objectives(self) -> tuple[float, float, float]:
        return (self.loss, self.latency_ms, self.energy_mj)

    @property
    def feasible(self) -> bool:
        return all(v <= 0.0 for v in self.constraints.values())


class Strategy(Protocol):
    """Ask for candidates, tell their costs. What is asked next depends only on the space, the seed and what was told.

    So a search that is replayed with remembered evaluations goes the same way, and a strategy needs no storage.
    """

    def ask(self, n: int) -> list[Config]:
        """`n` configs of the space; may repeat ones that were told before."""
        ...

    def tell(self, results: Sequence[tuple[Config, Costs]]) -> None:
        """Costs of configs, asked for or not, one by one or many at once."""
        ...
