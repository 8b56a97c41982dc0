"""What a search has evaluated, and the rule by which a hopeless plan is dropped on the way.

Every plan is looked at on growing numbers of the first samples before it may cost the whole set: a race, in which the evaluator goes
on where it stopped. Only whole-set accuracies are candidates and are compared with one another; a look decides whether a plan goes on.
Source: Hoeffding races: Maron and Moore 1997 (Artificial Intelligence Review 11), with paired errors for Hoeffding's bound.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from qbench.errors import QbenchError
from qbench.plan import Plan
from qbench.protocols import Accuracy, Price
from qbench.result import Candidate
from qbench.search.bench import Bench
from qbench.search.ledger import WHOLE
from qbench.search.problem import Events, Problem
from qbench.search.sensitivity import SIGMAS, standard_error
from qbench.search.space import Codes, Config, Costs, Variant


class TimeUp(Exception):
    """The problem's time limit has passed: finish with what there is."""


@dataclass(frozen=True)
class Evaluated:
    """A plan with its whole-set accuracy. looks   samples -> its accuracy on that many"""

    config: Config
    candidate: Candidate
    costs: Costs
    looks: Mapping[int, Accuracy]


@dataclass(frozen=True)
class Dropped:
    """A plan that was not evaluated on the whole set, and why. quick   its last look; None when it could not be evaluated at all"""

    config: Config
    price: Price
    quick: Accuracy | None
    reason: str


class Book:
    """Evaluates, names and keeps. `subset` samples make a quick look (WHOLE when the set is small), `rungs` are all the looks before the last."""

    def __init__(self, problem: Problem, bench: Bench, events: Events, reference: Accuracy) -> None:
        self.problem, self.bench, self.events = problem, bench, events
        self.reference = reference
        self.samples = reference.samples
        self.subset = _subset(problem, reference.samples)
        self.rungs = _rungs(self.subset, reference.samples, problem.step)
        self.evaluated: dict[Config, Evaluated] = {}
        self.dropped: dict[Config, Dropped] = {}
        self._plans: set[str] = set()
        self._names: set[str] = set()
        self._uses_memory = any(b.kind == "memory" for b in problem.budgets)

    @property
    def count(self) -> int:
        """Distinct plans evaluated on the whole set."""
        return len(self._plans)

    def known(self, config: Config) -> bool:
        config = self.bench.space.canonical(config)
        return config in self.evaluated or config in self.dropped

    def look(self, config: Config) -> Accuracy:
        """Accuracy on the first samples. Raises TimeUp."""
        [found] = self.look_all([config])
        if isinstance(found, QbenchError):
            raise found
        return found

    def look_all(self, configs: Sequence[Config]) -> list[Accuracy | QbenchError]:
        """The same for many, side by side where there is a pool. Raises TimeUp."""
        return self._look_all(configs, self.subset)

    def _look_all(self, configs: Sequence[Config], samples: int) -> list[Accuracy | QbenchError]:
        limit = self.problem.time_limit_s
        if limit is not None and self.bench.wall_s > limit:
            raise TimeUp
        return self.bench.look_all([(c, samples) for c in configs])

    def consider(self, config: Config, origin: str, name: str | None = None, always: bool = False) -> Evaluated | None:
        """Evaluates `config` unless it is known; None when it was dropped. `always` skips the quick look's verdict."""
        return self.consider_all([config], origin, [name], always)[0]

    def consider_all(self, configs: Sequence[Config], origin: str, names: Sequence[str | None] = (), always: bool = False) -> list[Evaluated | None]:
        """The same for many at once: the verdict on each goes by what was known before all of them. `names`, where there are any, are one each."""
        asked = [self.bench.space.canonical(c) for c in configs]
        called = dict(zip(reversed(asked), reversed(names), strict=True)) if names else {}
        new = [c for c in dict.fromkeys(asked) if c not in self.evaluated and (always or c not in self.dropped)]
        looks: dict[Config, dict[int, Accuracy]] = {c: {} for c in new}
        prices = {c: self.bench.price(c) for c in new}
        racing = new
        for samples in (*self.rungs, WHOLE):
            found = dict(zip(racing, self._look_all(racing, samples), strict=True)) if racing else {}
            racing = []
            for c, seen in found.items():
                reason = f"cannot be evaluated: {seen}" if isinstance(seen, QbenchError) else ""
                if isinstance(seen, Accuracy):
                    looks[c][samples] = seen
                    reason = "" if always or samples == WHOLE else self._verdict(seen, samples, prices[c])
                if reason:
                    self.dropped[c] = Dropped(c, prices[c], next(reversed(looks[c].values()), None), reason)
                    self.events.note(f"plan {self.bench.plan_key(c)} ({origin}) dropped: {reason}")
                elif samples == WHOLE:
                    self._accept(c, prices[c], looks[c], origin, called.get(c))
                else:
                    racing.append(c)
        return [self.evaluated.get(c) for c in asked]

    def costs_of(self, config: Config) -> Costs | None:
        """What a strategy is told of a known config: the whole-set loss, or that of the quick look which dropped it."""
        config = self.bench.space.canonical(config)
        if config in self.evaluated:
            return self.evaluated[config].costs
        gone = self.dropped.get(config)
        return self.bench.costs(gone.price, gone.quick) if gone is not None and gone.quick is not None else None

    def best(self) -> Evaluated | None:
        """The candidate that would be chosen now; None while none is feasible."""
        from qbench.search.choice import choose

        chosen = choose([e.candidate for e in self.evaluated.values() if e.candidate.feasible], self.problem)
        return next((e for e in self.evaluated.values() if e.candidate is chosen), None)

    def observations(self, variant: Variant) -> tuple[list[Codes], list[float], list[float]]:
        """Codes, loss and its standard error of everything seen under one variant, as far as the errors of plans on the same samples differ."""
        codes: list[Codes] = []
        loss: list[float] = []
        error: list[float] = []
        known: set[bytes] = set()
        for config, accuracy in self._seen():
            plain = all(p.is_float for p in config.precision)
            if (plain or config.variant == variant) and math.isfinite(accuracy.drop):
                row = self.bench.codes(config)
                if row.tobytes() not in known:
                    known.add(row.tobytes())
                    codes.append(row)
                    loss.append(max(accuracy.drop, 0.0))
                    error.append(standard_error(accuracy) * (OWN if accuracy.samples == self.samples else 1.0))
        return codes, loss, error

    def _seen(self) -> Sequence[tuple[Config, Accuracy]]:
        whole = [(c, e.candidate.accuracy) for c, e in self.evaluated.items()]
        return whole + [(c, d.quick) for c, d in self.dropped.items() if d.quick is not None]

    def _verdict(self, seen: Accuracy, samples: int, price: Price) -> str:
        """Why a plan is not worth more samples; "" when it may be.

        It falls to another that is no slower and no hungrier, and loses less by more than chance: the difference of two drops beyond its
        95 % limit. Their errors are added as if independent, though both are of the same samples: on the safe side.
        """
        if not math.isfinite(seen.drop):
            return f"its {seen.metric} is not a number on the first {seen.samples} of {self.samples} samples"
        floor = self.problem.max_drop
        if floor is not None and seen.drop_low > floor.allowed(seen.value + seen.drop):
            return f"on the first {seen.samples} of {self.samples} samples it loses at least {seen.drop_low:.4g}, and {floor.text} is allowed"
        feasible = all(v <= 0.0 for v in self.problem.constraints(price).values())
        for e in self.evaluated.values():
            other = e.candidate
            cheaper = other.price.latency_ms <= price.latency_ms and other.price.energy_mj <= price.energy_mj and (
                not self._uses_memory or other.price.peak_memory_bytes <= price.peak_memory_bytes)
            allowed = not feasible or all(b.met_by(other.price) for b in self.problem.budgets)
            if cheaper and allowed and _clearly_less(e.looks[samples], seen):
                return (f"on the first {seen.samples} of {self.samples} samples it loses {seen.drop:.4g} (at least {seen.drop_low:.4g}), "
                        f"while {other.name!r}, no slower and no hungrier, loses {e.looks[samples].drop:.4g} (at most {e.looks[samples].drop_high:.4g})")
        return ""

    def _accept(self, config: Config, price: Price, looks: Mapping[int, Accuracy], origin: str, name: str | None) -> None:
        accuracy = looks[WHOLE]
        plan = self.bench.plan(config)
        costs = self.bench.costs(price, accuracy)
        chosen = self._name(name)
        path = Path("plans") / f"{chosen}.json"
        plan.save(self.problem.out / path)
        candidate = Candidate(
            name=chosen, origin=origin, plan=path.as_posix(), plan_key=self.bench.plan_key(config), calibrator=config.calibrator, granularity=config.granularity,
            corrections=config.corrections, layers=plan.layers, accuracy=accuracy, price=price, feasible=self.problem.met(price, accuracy),
            sure=self.problem.sure(price, accuracy))
        found = Evaluated(config, candidate, costs, looks)
        self.dropped.pop(config, None)
        self.evaluated[config] = found
        self._plans.add(candidate.plan_key)
        self.bench.finish(config, costs, accuracy, origin, chosen)
        self.events.progress("candidates", min(self.count, self.problem.trials), self.problem.trials)
        self.events.candidate(candidate)

    def _name(self, wanted: str | None) -> str:
        name = wanted if wanted and wanted not in self._names else f"c{len(self._names):03d}"
        self._names.add(name)
        return name


def float_candidate(plan: Plan, accuracy: Accuracy, price: Price) -> Candidate:
    """The reference, as it stands in the result."""
    return Candidate("float", "reference", "", plan.key, "", "", plan.layers, accuracy, price, False, False)


SHARE = 1 / 6
"""Of the set in a quick look, and at most."""
PASSES = 8.0
"""Sensitivity as a whole may cost as much as this many passes over the set (less, with the float prefix reused)."""
OWN = 0.3
"""Of the error of a drop, the part that is not common to all plans on the same samples: only this blurs which of them is better there."""
GROWTH = 3
"""From one look to the next the samples grow by this factor."""


def _clearly_less(one: Accuracy, other: Accuracy) -> bool:
    """True when `one` loses less than `other` by more than the 95 % limit of the difference; False where an error is not known."""
    errors = standard_error(one), standard_error(other)
    return min(errors) > 0.0 and other.drop - one.drop > SIGMAS * math.hypot(*errors)


def _subset(problem: Problem, samples: int) -> int:
    """Samples of a quick look, in whole runs; WHOLE where that would save too little."""
    measured = sum(not p.is_float for allowed in problem.space.allowed for p in allowed)
    wanted = problem.subset or max(8, min(256, round(samples * min(SHARE, PASSES / max(measured, 1)))))
    wanted = math.ceil(wanted / problem.step) * problem.step
    return WHOLE if wanted > samples / 2 else wanted


def _rungs(subset: int, samples: int, step: int) -> tuple[int, ...]:
    """The looks that a plan must pass: `subset`, then GROWTH times as many, while at least as many again remain."""
    if subset == WHOLE:
        return ()
    found = [subset]
    while (more := math.ceil(found[-1] * GROWTH / step) * step) <= samples * 2 / 3:
        found.append(more)
    return tuple(found)
