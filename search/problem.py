"""What a search is given, beside the evaluator and the pricer, and what it says on the way."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from pathlib import Path
from typing import Protocol

from qbench.network import Network, Precision
from qbench.plan import Granularity, Plan
from qbench.protocols import Accuracy, Price, Progress, silent
from qbench.result import Candidate
from qbench.search.budget import Budget, MaxDrop, worst_class
from qbench.search.second_order import Curvature
from qbench.search.space import Space

RULES = 5
"""Goes up when the same seed leads elsewhere, so that an old study is not continued under new rules."""


class Goal(StrEnum):
    """What decides between plans that keep every limit."""

    ACCURACY = "accuracy"          # as accurate as the best one, then frugal
    ENERGY = "energy"              # the least energy: accuracy is a floor


class MakePlan(Protocol):
    """Builds the plan of one choice: ranges by `calibrator` from statistics that were collected before."""

    def __call__(self, precision: Mapping[str, Precision], calibrator: str, granularity: Granularity, op_point: str) -> Plan: ...


@dataclass(frozen=True)
class Problem:
    """
    allowed      unit -> precisions it may take, every unit of the network; FP16 only where it cannot overflow
    make_plan    also called with FP32 for any unit: the float reference and sensitivities need it
    corrected    spec of corrections that the search may choose -> builder of plans that have them
    data_key     content key of calibration and evaluation data, metric and whatever else decides an accuracy
    calibrators, granularities, op_points   at least one each; the first is preferred where nothing else decides
    out          result folder; plans go to out/plans
    max_class_drop   most that any single class may lose; needs a metric with classes
    preset       content key of the preset that the limits come from, or ""
    storage      URL of the database that outlives a kill ("sqlite:///..."), or None
    trials       distinct plans to evaluate on the whole set
    subset       samples of a quick look; None: chosen from the size of the set and of the network
    step         samples of one run of the evaluator: looks are whole runs, so that it can go on from there
    second_order foresees the sensitivities from curvature; None: they are measured, unit by unit
    measured     boards will decide between the candidates: the search does not end where predictions alone say that it could
    time_limit_s stop proposing after this long; where it strikes depends on the machine, so it costs reproducibility
    """

    network: Network
    allowed: Mapping[str, tuple[Precision, ...]]
    make_plan: MakePlan
    data_key: str
    calibrators: tuple[str, ...]
    granularities: tuple[Granularity, ...]
    op_points: tuple[str, ...]
    budgets: tuple[Budget, ...]
    out: Path
    max_drop: MaxDrop | None = None
    max_class_drop: MaxDrop | None = None
    goal: Goal = Goal.ACCURACY
    preset: str = ""
    seed: int = 0
    trials: int = 40
    strategy: str = "nsga2"
    storage: str | None = None
    subset: int | None = None
    step: int = 1
    corrected: Mapping[str, MakePlan] = field(default_factory=dict)
    second_order: Curvature | None = None
    measured: bool = False
    time_limit_s: float | None = None
    sample: bool = False
    target: str = ""
    toolkit: str = ""
    model: str = ""
    provenance: Mapping[str, str] = field(default_factory=dict)

    @cached_property
    def space(self) -> Space:
        units = tuple(u.name for u in self.network.units)
        return Space(units, tuple(self.allowed[u] for u in units), self.calibrators,
                     tuple(str(g) for g in self.granularities), self.op_points, ("", *self.corrected))

    @property
    def limits(self) -> tuple[str, ...]:
        """Budgets and the allowed drop, as the user reads them."""
        drop = (f"max-drop {self.max_drop.text}",) if self.max_drop else ()
        each = (f"max-class-drop {self.max_class_drop.text}",) if self.max_class_drop else ()
        return (*(b.text for b in self.budgets), *drop, *each)

    def constraints(self, price: Price, accuracy: Accuracy | None = None) -> dict[str, float]:
        """Excess over each budget and, with an accuracy, over the allowed drops; met when at most 0."""
        found: dict[str, float] = {}
        for b in self.budgets:
            found[str(b.kind)] = max(found.get(str(b.kind), -math.inf), b.excess(price))
        if accuracy is not None and self.max_drop is not None:
            found["drop"] = self.max_drop.excess(accuracy)
        floor = self.max_class_drop
        if accuracy is not None and floor is not None and (worst := worst_class(floor, accuracy)) is not None:
            found["class-drop"] = floor.excess(worst)
        return found

    def met(self, price: Price, accuracy: Accuracy) -> bool:
        """Every limit is met, and the accuracy is a number."""
        return math.isfinite(accuracy.drop) and all(v <= 0.0 for v in self.constraints(price, accuracy).values())

    def sure(self, price: Price, accuracy: Accuracy) -> bool:
        """Every limit is met also with the unfavourable end of its interval."""
        return (all(b.sure_by(price) for b in self.budgets) and (self.max_drop is None or self.max_drop.sure_by(accuracy))
                and (self.max_class_drop is None or all(self.max_class_drop.sure_by(c) for c in accuracy.classes)))

    @cached_property
    def study_name(self) -> str:
        """Content key: the same problem continues the same study. The number of trials does not count, so it can be raised."""
        body = [RULES, self.network.model_key, self.data_key, self.target, self.toolkit, self.limits, self.space.units,
                self.space.allowed, self.calibrators, self.space.granularities, self.op_points, self.space.corrections, self.seed, self.strategy, self.subset,
                self.goal, self.preset, *(["second order"] if self.second_order else [])]
        return "qbench-" + hashlib.sha256(json.dumps(body).encode()).hexdigest()[:16]


@dataclass(frozen=True)
class Events:
    """What hangs on a search: tracking, the terminal. Called in the thread of the search; must be quick.

    candidate    a plan was evaluated on the whole set (after a resume: also those remembered)
    note         one sentence about something the user should be able to look up: a plan dropped, a coupling found
    """

    candidate: Callable[[Candidate], None] = lambda candidate: None
    note: Callable[[str], None] = lambda text: None
    progress: Progress = silent
