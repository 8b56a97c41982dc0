"""Budgets with units: text in, a comparison with a Price out.

    20ms 0.5s 800us      latency of one inference, at most       1.5W 900mW     power, at most
    8mJ 0.01J 500uJ      energy of one inference, at most        64MB 32MiB     peak memory, at most (MB = 10^6, MiB = 2^20)
    30fps                inferences a second, at least
    20ms worst-case      also the unfavourable end of the predicted interval must keep it: latency, energy and rate

`text` is canonical: it parses back to an equal Budget.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from enum import StrEnum

from qbench.errors import BudgetError
from qbench.protocols import Accuracy, ClassAccuracy, Price

Loss = Accuracy | ClassAccuracy
"""What has a value, and a drop against float with its interval."""

ACCEPTED = "accepted are 20ms, 800us, 0.5s, 1.5W, 900mW, 8mJ, 500uJ, 0.01J, 64MB, 512KB, 32MiB, 1GB and 30fps"
DROP_ACCEPTED = "accepted are 0.5% or 0.5pt (points of a metric in 0..1), 0.005 (the metric's own unit) and 0.5%rel (of the float value)"
ROUNDING = 1e-12
"""Of the difference of two accuracies in binary: 0.79 - 0.785 is 0.005 and 4e-17, and 0.5% are kept."""
WORST = "worst-case"
"""Said behind a limit that also the unfavourable end of an interval must keep."""


class Kind(StrEnum):
    LATENCY = "latency"            # ms
    POWER = "power"                # W
    ENERGY = "energy"              # mJ
    MEMORY = "memory"              # bytes
    RATE = "rate"                  # inferences per second, the one with a lower limit


def _powers(pairs: Sequence[tuple[str, str]]) -> Mapping[str, Decimal]:
    return {unit: Decimal(factor) for unit, factor in pairs}


# unit -> factor to the kind's own unit, in the order in which `text` tries them
_UNITS: Mapping[Kind, Mapping[str, Decimal]] = {
    Kind.LATENCY: _powers([("s", "1000"), ("ms", "1"), ("us", "0.001")]),
    Kind.POWER: _powers([("W", "1"), ("mW", "0.001"), ("uW", "0.000001")]),
    Kind.ENERGY: _powers([("J", "1000"), ("mJ", "1"), ("uJ", "0.001")]),
    Kind.MEMORY: _powers([("GB", "1e9"), ("MB", "1e6"), ("KB", "1e3"), ("GiB", str(2**30)), ("MiB", str(2**20)),
                          ("KiB", str(2**10)), ("B", "1")]),
    Kind.RATE: _powers([("fps", "1")]),
}
_KIND_OF: Mapping[str, Kind] = {unit: kind for kind, units in _UNITS.items() for unit in units}
_BY_LOWER: Mapping[str, str] = {unit.lower(): unit for kind in (Kind.LATENCY, Kind.MEMORY, Kind.RATE) for unit in _UNITS[kind]}
_NUMBER = re.compile(r"\s*(\d+(?:\.\d*)?|\.\d+)(?:[eE]([+-]?\d{1,2}))?\s*(.*?)\s*", re.ASCII | re.DOTALL)


def _split(text: str, accepted: str) -> tuple[Decimal, str]:
    """Positive number and the unit behind it. Raises BudgetError."""
    found = _NUMBER.fullmatch(text)
    comma = re.match(r"\s*\d+,\d", text) is not None
    if found is None or comma:
        hint = ": write the decimals with a point" if comma else ""
        raise BudgetError(f"{text!r} is not a positive number with a unit{hint}; {accepted}")
    value = Decimal(found[1]).scaleb(int(found[2] or 0))
    if not 0 < value <= 10**15:
        raise BudgetError(f"{text!r} must be greater than 0 and at most 10^15; {accepted}")
    return value, found[3]


def _rule(text: str) -> tuple[str, bool]:
    """The limit without the word WORST, and whether it was there."""
    bare = text.rstrip()
    return (bare.removesuffix(WORST), True) if bare.endswith(f" {WORST}") else (text, False)


def _number(value: Decimal) -> str:
    return format(value.normalize(), "f")


@dataclass(frozen=True, slots=True)
class Budget:
    """A limit on one predicted quantity. `limit` in the kind's own unit: ms, W, mJ, bytes, inferences per second.

    worst   the unfavourable end of the prediction's interval counts, not its mean
    """

    kind: Kind
    limit: float
    worst: bool = False

    @staticmethod
    def parse(text: str) -> Budget:
        """Raises BudgetError, saying what is accepted."""
        bare, worst = _rule(text)
        value, unit = _split(bare, ACCEPTED)
        unit = unit.replace("µ", "u").replace("μ", "u")
        if unit not in _KIND_OF:
            unit = _BY_LOWER.get(unit.lower(), unit)
        if unit not in _KIND_OF:
            hint = " (m for milli: mW, mJ)" if unit in ("MW", "MJ") else ""
            raise BudgetError(f"budget {text!r} has {'no unit' if not unit else f'the unknown unit {unit!r}'}{hint}; {ACCEPTED}")
        kind = _KIND_OF[unit]
        if worst and kind in (Kind.POWER, Kind.MEMORY):
            raise BudgetError(f"budget {text!r}: {kind} has no interval, so no worst case; leave {WORST} out")
        return Budget(kind, float(value * _UNITS[kind][unit]), worst)

    @property
    def text(self) -> str:
        """Canonical text: the largest unit that leaves a number of at least 1."""
        return self.show(self.limit) + (f" {WORST}" if self.worst else "")

    def show(self, value: float) -> str:
        """`value`, in the kind's own unit, in the words of a budget."""
        exact = Decimal(repr(float(value)))
        units = _UNITS[self.kind]
        if self.kind is Kind.MEMORY:
            whole = int(exact)
            for unit in ("GiB", "MiB", "KiB"):
                if exact == whole and whole and whole % int(units[unit]) == 0 and whole % 1000:
                    return f"{whole // int(units[unit])}{unit}"
            units = {u: f for u, f in units.items() if "i" not in u}
        for unit, factor in units.items():
            if exact >= factor:
                return f"{_number(exact / factor)}{unit}"
        return f"{_number(exact / factor)}{unit}"

    def value(self, price: Price) -> float:
        """What `price` says about this budget's quantity, in its own unit: the mean, or under `worst` the unfavourable end."""
        return self._mean(price) * self._spread(price) if self.worst else self._mean(price)

    def _mean(self, price: Price) -> float:
        if self.kind is Kind.RATE:
            return 1000.0 / price.latency_ms
        return {Kind.LATENCY: price.latency_ms, Kind.POWER: price.power_w, Kind.ENERGY: price.energy_mj,
                Kind.MEMORY: float(price.peak_memory_bytes)}[self.kind]

    def excess(self, price: Price) -> float:
        """How far the prediction is beyond the limit, as a share of it; at most 0 when the budget is met."""
        value = self.value(price)
        return self.limit / value - 1.0 if self.kind is Kind.RATE else value / self.limit - 1.0

    def _spread(self, price: Price) -> float:
        """Unfavourable end over mean. Energy grows with the time at constant power, so it has the factor of the latency;
        power and memory have no interval."""
        late = price.latency_ms_high / price.latency_ms if price.latency_ms > 0.0 else 1.0
        return {Kind.LATENCY: late, Kind.ENERGY: late, Kind.RATE: 1.0 / late}.get(self.kind, 1.0)

    def met_by(self, price: Price) -> bool:
        """With the predicted mean, or under `worst` with the unfavourable end of the interval."""
        return self.excess(price) <= 0.0

    def sure_by(self, price: Price) -> bool:
        """Also with the unfavourable end of the interval."""
        value = self._mean(price) * self._spread(price)
        return value >= self.limit if self.kind is Kind.RATE else value <= self.limit

    @property
    def latency_cap_ms(self) -> float | None:
        """The limit as milliseconds for latency and rate, None for the others. Under `worst` no mean beyond it can keep it."""
        if self.kind is Kind.LATENCY:
            return self.limit
        return 1000.0 / self.limit if self.kind is Kind.RATE else None


def parse_budgets(texts: Sequence[str]) -> tuple[Budget, ...]:
    """In the order given. Raises BudgetError for a text that cannot be read and for two of one kind."""
    budgets = tuple(Budget.parse(text) for text in texts)
    for i, b in enumerate(budgets):
        for other in budgets[:i]:
            if other.kind is b.kind:
                raise BudgetError(f"two budgets for {b.kind}: {other.text} and {b.text}; keep one")
    return budgets


@dataclass(frozen=True, slots=True)
class MaxDrop:
    """The accuracy that may be lost against the float model.

    limit     in the metric's own unit (0.005 is half a point of a metric in 0..1), or a share of the float value if `relative`
    worst     the upper end of the drop's paired interval counts, not the drop that was measured
    """

    limit: float
    relative: bool = False
    worst: bool = False

    @staticmethod
    def parse(text: str) -> MaxDrop:
        """Raises BudgetError, saying what is accepted."""
        bare, worst = _rule(text)
        if re.fullmatch(r"\s*0+(\.0*)?\s*(%|pt|%rel)?\s*", bare):
            return MaxDrop(0.0, bare.strip().endswith("rel"), worst)
        value, unit = _split(bare, DROP_ACCEPTED)
        if unit in ("%", "pt", "%rel", "% rel"):
            limit = float(value / 100)
        elif unit == "":
            limit = float(value)
        else:
            raise BudgetError(f"max-drop {text!r} has the unknown unit {unit!r}; {DROP_ACCEPTED}")
        if unit and limit > 1.0:
            raise BudgetError(f"max-drop {text!r} is more than everything; {DROP_ACCEPTED}")
        return MaxDrop(limit, unit.endswith("rel"), worst)

    @property
    def text(self) -> str:
        """Canonical text: parses back to an equal MaxDrop."""
        exact = Decimal(repr(self.limit))
        return (f"{_number(exact * 100)}%rel" if self.relative else _number(exact)) + (f" {WORST}" if self.worst else "")

    def allowed(self, float_value: float) -> float:
        """The largest drop, in the metric's own unit."""
        return self.limit * abs(float_value) if self.relative else self.limit

    def excess(self, accuracy: Loss) -> float:
        """Drop beyond what is allowed, in the metric's own unit; at most 0 when the floor is kept."""
        beyond = (accuracy.drop_high if self.worst else accuracy.drop) - self.allowed(accuracy.value + accuracy.drop)
        return 0.0 if abs(beyond) <= ROUNDING else beyond

    def met_by(self, accuracy: Loss) -> bool:
        return self.excess(accuracy) <= 0.0

    def sure_by(self, accuracy: Loss) -> bool:
        """Also with the upper end of the drop's interval."""
        return accuracy.drop_high <= self.allowed(accuracy.value + accuracy.drop)


def worst_class(floor: MaxDrop, accuracy: Accuracy) -> ClassAccuracy | None:
    """The class that breaks `floor` most, or comes nearest to it; None where the accuracy was not taken class by class."""
    return max(accuracy.classes, key=floor.excess, default=None)
