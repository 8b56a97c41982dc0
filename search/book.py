"""What a search has evaluated, and the rule by which a hopeless plan is dropped after a quick look.

Every plan is looked at on the first samples before it may cost the whole set. Only whole-set accuracies are candidates and are
compared with one another; a quick look only decides whether a plan is worth that.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from qbench.errors import QbenchError
from qbench.plan import Plan
from qbench.protocols import Accuracy, Price
from qbench.result import Candidate
from qbench.search.bench import Bench
from qbench.search.ledger import WHOLE
from qbench.search.problem import Events, Problem
from qbench.search.sensitivity import standard_error
from qbench.search.space import Codes, Config, Costs


class TimeUp(Exception):
    """The problem's time limit has passed: finish with what there is."""


@dataclass(frozen=True)
class Evaluated:
    """A plan with its whole-set accuracy. quick   its accuracy on the first samples"""

    config: Config
    candidate: Candidate
    costs: Costs
    quick: Accuracy


@dataclass(frozen=True)
class Dropped:
    """A plan that was not evaluated on the whole set, and why. quick   None when it could not be evaluated at all"""

    config: Config
    price: Price
    quick: Accuracy | None
    reason: str


class Book:
    """Evaluates, names and keeps. `subset` samples make a quick look (WHOLE when the set is small)."""

    def __init__(self, problem: Problem, bench: Bench, events: Events, reference: Accuracy) -> None:
        self.problem, self.bench, self.events = problem, bench, events
        self.reference = reference
        self.samples = reference.samples
        self.subset = _subset(problem, reference.samples)
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
        limit = self.problem.time_limit_s
        if limit is not None and self.bench.wall_s > limit:
            raise TimeUp
        return self.bench.look_all([(c, self.subset) for c in configs])

    def consider(self, config: Config, origin: str, name: str | None = None, always: bool = False) -> Evaluated | None:
        """Evaluates `config` unless it is known; None when it was dropped. `always` skips the quick look's verdict."""
        return self.consider_all([config], origin, name, always)[0]

    def consider_all(self, configs: Sequence[Config], origin: str, name: str | None = None, always: bool = False) -> list[Evaluated | None]:
        """The same for many at once: the verdict on each goes by what was known before all of them."""
        asked = [self.bench.space.canonical(c) for c in configs]
        new = [c for c in dict.fromkeys(asked) if c not in self.evaluated and (always or c not in self.dropped)]
        quick = dict(zip(new, self.look_all(new), strict=True)) if new else {}
        prices = {c: self.bench.price(c) for c in new}
        reasons = {c: "" if always else self._verdict(q, prices[c]) for c, q in quick.items()}
        worth = [c for c in new if not isinstance(quick[c], QbenchError) and not reasons[c]]
        whole = dict(zip(worth, self.bench.look_all([(c, WHOLE) for c in worth]), strict=True))
        for c in new:
            first, last = quick[c], whole.get(c)
            failure = next((e for e in (first, last) if isinstance(e, QbenchError)), None)
            if isinstance(first, Accuracy) and isinstance(last, Accuracy):
                self._accept(c, prices[c], first, last, origin, name)
                continue
            reason = f"cannot be evaluated: {failure}" if failure else reasons[c]
            self.dropped[c] = Dropped(c, prices[c], first if isinstance(first, Accuracy) else None, reason)
            self.events.note(f"plan {self.bench.plan_key(c)} ({origin}) dropped: {reason}")
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

    def observations(self, calibrator: str, granularity: str) -> tuple[list[Codes], list[float], list[float]]:
        """Codes, loss and its standard error of everything seen under one calibrator and granularity."""
        codes: list[Codes] = []
        loss: list[float] = []
        error: list[float] = []
        known: set[bytes] = set()
        for config, accuracy in self._seen():
            plain = all(p.is_float for p in config.precision)
            if (plain or (config.calibrator == calibrator and config.granularity == granularity)) and math.isfinite(accuracy.drop):
                row = self.bench.codes(config)
                if row.tobytes() not in known:
                    known.add(row.tobytes())
                    codes.append(row)
                    loss.append(max(accuracy.drop, 0.0))
                    error.append(standard_error(accuracy))
        return codes, loss, error

    def _seen(self) -> Sequence[tuple[Config, Accuracy]]:
        whole = [(c, e.candidate.accuracy) for c, e in self.evaluated.items()]
        return whole + [(c, d.quick) for c, d in self.dropped.items() if d.quick is not None]

    def _verdict(self, quick: Accuracy | QbenchError, price: Price) -> str:
        """Why a plan is not worth the whole set; "" when it may be, or could not be looked at."""
        if isinstance(quick, QbenchError):
            return ""
        if not math.isfinite(quick.drop):
            return f"its {quick.metric} is not a number on the first {quick.samples} of {self.samples} samples"
        feasible = all(v <= 0.0 for v in self.bench.constraints(price).values())
        for e in self.evaluated.values():
            other = e.candidate
            cheaper = other.price.latency_ms <= price.latency_ms and other.price.energy_mj <= price.energy_mj and (
                not self._uses_memory or other.price.peak_memory_bytes <= price.peak_memory_bytes)
            allowed = not feasible or all(b.met_by(other.price) for b in self.problem.budgets)
            if cheaper and allowed and e.quick.drop_high < quick.drop_low:
                return (f"on the first {quick.samples} of {self.samples} samples it loses {quick.drop:.4g} (at least {quick.drop_low:.4g}), "
                        f"while {other.name!r}, no slower and no hungrier, loses {e.quick.drop:.4g} (at most {e.quick.drop_high:.4g})")
        return ""

    def _accept(self, config: Config, price: Price, quick: Accuracy, accuracy: Accuracy, origin: str, name: str | None) -> Evaluated:
        plan = self.bench.plan(config)
        costs = self.bench.costs(price, accuracy)
        chosen = self._name(name)
        path = Path("plans") / f"{chosen}.json"
        plan.save(self.problem.out / path)
        candidate = Candidate(
            name=chosen, origin=origin, plan=path.as_posix(), plan_key=self.bench.plan_key(config), calibrator=config.calibrator, granularity=config.granularity,
            layers=plan.layers, accuracy=accuracy, price=price, feasible=costs.feasible and math.isfinite(accuracy.drop),
            sure=self.problem.sure(price, accuracy))
        found = Evaluated(config, candidate, costs, quick)
        self.dropped.pop(config, None)
        self.evaluated[config] = found
        self._plans.add(candidate.plan_key)
        self.bench.finish(config, costs, accuracy, origin, chosen)
        self.events.progress("candidates", min(self.count, self.problem.trials), self.problem.trials)
        self.events.candidate(candidate)
        return found

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


def _subset(problem: Problem, samples: int) -> int:
    """Samples of a quick look; WHOLE where that would save too little."""
    measured = sum(not p.is_float for allowed in problem.space.allowed for p in allowed)
    wanted = problem.subset or max(8, min(256, round(samples * min(SHARE, PASSES / max(measured, 1)))))
    return WHOLE if wanted > samples / 2 else wanted
