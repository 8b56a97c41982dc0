"""Numbers and verdicts as the user reads them, the same on the terminal and in the report.

Every function takes what may be missing: None and non-finite numbers read "n/a".
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from qbench.protocols import ClassAccuracy
from qbench.result import Candidate, SearchResult
from qbench.warning_codes import code_of

MISSING = "n/a"
RELATIVE = "relative, unvalidated"
_ORDER = ("fp32", "int8", "int16", "fp16")
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


def plain(name: object) -> str:
    """A name from the user's files without control characters, so that it cannot steer a terminal or turn text around."""
    return _CONTROL.sub("\ufffd", str(name))


def coded(warnings: Iterable[str]) -> list[tuple[str, str]]:
    """Code ("" where a warning has none) and cleaned words of each."""
    return [(code_of(w), plain(w)) for w in warnings]


def some(names: Sequence[str], shown: int) -> str:
    """As in "a, b, c and 4 more": the first `shown` names, cleaned, and how many are left."""
    more = f" and {len(names) - shown} more" if len(names) > shown else ""
    return ", ".join(plain(n) for n in names[:shown]) + more


def finite(x: object) -> float | None:
    """`x` as a float, None unless it is a finite number."""
    return float(x) if isinstance(x, int | float) and math.isfinite(x) else None


def _decimals(x: float, digits: int) -> int:
    """Decimals that show `digits` significant digits of `x`, none for numbers of more digits."""
    return max(0, digits - 1 - math.floor(math.log10(abs(x)))) if x else digits - 1


def significant(x: object, digits: int = 3) -> str:
    """`x` with that many significant digits and no exponent: 12.9, 0.0312, 1234."""
    value = finite(x)
    return MISSING if value is None else f"{value:.{_decimals(value, digits)}f}"


def interval(x: object, low: object, high: object, digits: int = 3) -> str:
    """`[low, high]` with the decimals of `x`; "" when an end is missing."""
    value, a, b = finite(x), finite(low), finite(high)
    if value is None or a is None or b is None:
        return ""
    n = _decimals(value, digits)
    return f"[{a:.{n}f}, {b:.{n}f}]"


def size(n: object) -> str:
    """Bytes as MB or KB, powers of ten as on a data sheet."""
    value = finite(n)
    if value is None or value < 0:
        return MISSING
    for unit, factor in (("MB", 1e6), ("KB", 1e3)):
        if value >= factor:
            return f"{significant(value / factor)} {unit}"
    return f"{value:.0f} B"


def duration(seconds: object) -> str:
    """"48 s", "3 min 12 s"."""
    value = finite(seconds)
    if value is None:
        return MISSING
    if value < 60:
        return f"{value:.0f} s" if value >= 10 or value == int(value) else f"{value:.1f} s"
    return f"{int(value // 60)} min {int(value % 60)} s"


@dataclass(frozen=True, slots=True)
class Scale:
    """How a metric is written: `value * factor` with `digits` decimals and `unit` behind it; `points` is the unit of drops."""

    factor: float
    digits: int
    unit: str
    points: str

    def number(self, x: object) -> str:
        value = finite(x)
        text = MISSING if value is None else f"{value * self.factor:.{self.digits}f}"
        return text if text.strip("-0.") else text.removeprefix("-")

    def interval(self, low: object, high: object) -> str:
        if finite(low) is None or finite(high) is None:
            return ""
        return f"[{self.number(low)}, {self.number(high)}]"

    def value(self, x: object) -> str:
        return self._with(x, self.unit)

    def drop(self, x: object) -> str:
        return self._with(x, self.points)

    def _with(self, x: object, unit: str) -> str:
        number = self.number(x)
        return f"{number} {unit}" if unit and number != MISSING else number


def scale_of(result: SearchResult) -> Scale:
    """Percent for a metric whose every value lies in 0..1, decibels for one named so, else the metric's own numbers."""
    metric = result.reference.accuracy.metric.lower()
    if "db" in re.split(r"[^a-z]+", metric) or "sqnr" in metric or "psnr" in metric:
        return Scale(1.0, 2, "dB", "dB")
    values = [finite(c.accuracy.value) for c in (result.reference, *result.candidates)]
    if all(v is None or 0.0 <= v <= 1.0 for v in values):
        return Scale(100.0, 2, "%", "points")
    return Scale(1.0, 3, "", "")


def power_note(result: SearchResult) -> str:
    """What the watts are worth. Where the provenance does not say, they count as unvalidated."""
    note = result.provenance.get("power", RELATIVE)
    return RELATIVE if "relative" in note or "unvalidated" in note else note


def float_note(result: SearchResult) -> str:
    """Whose cost the float column shows, where the target has no 32-bit float; "" where it has."""
    if "fp32" in result.uniform or "fp16" not in result.uniform:
        return ""
    return "float: accuracy of the model as given, cost as all FP16"


def chosen_label(result: SearchResult) -> str:
    return "chosen" if result.feasible else "nearest"


def side_by_side(result: SearchResult) -> list[tuple[str, Candidate]]:
    """Float, the uniform plans that were evaluated, and the chosen plan: label and candidate."""
    ordered = sorted(result.uniform, key=lambda p: (_ORDER.index(p) if p in _ORDER else len(_ORDER), p))
    plans = [("float", result.reference), *((f"all {plain(p).upper()}", result.uniform[p]) for p in ordered)]
    return [*plans, (chosen_label(result), result.chosen)] if result.chosen else plans


def meets(c: Candidate, result: SearchResult) -> str:
    """"yes", "on the mean" (the interval's upper end does not), "no", or "no budget"."""
    if c is result.reference:
        return ""
    if not result.budgets:
        return "no budget"
    return "yes" if c.sure else "on the mean" if c.feasible else "no"


def layers(counts: Mapping[str, int]) -> str:
    """"42 INT8, 3 FP16"."""
    return ", ".join(f"{n} {plain(p).upper()}" for p, n in sorted(counts.items(), key=lambda i: (-i[1], i[0])) if n) or MISSING


@dataclass(frozen=True, slots=True)
class Cell:
    """One number and, below it, its interval."""

    value: str
    interval: str = ""


@dataclass(frozen=True, slots=True)
class Quantity:
    """One row of the comparison. `short` is its name where room is scarce; the unit stands in the row, not in the cells."""

    label: str
    short: str
    unit: str
    cells: tuple[Cell, ...]


def comparison(result: SearchResult) -> list[Quantity]:
    """The rows of the side-by-side table, one cell for each plan of `side_by_side`."""
    scale, plans = scale_of(result), [c for _, c in side_by_side(result)]
    accuracy = [c.accuracy for c in plans]
    prices = [c.price for c in plans]

    def row(label: str, short: str, unit: str, cells: Iterable[Cell]) -> Quantity:
        return Quantity(label, short, unit, tuple(cells))

    return [
        row(f"accuracy ({plain(result.reference.accuracy.metric)})", "accuracy", scale.unit,
            (Cell(scale.number(a.value), scale.interval(a.low, a.high)) for a in accuracy)),
        row("drop against float", "drop", scale.points,
            (Cell("") if c is result.reference else
             Cell(scale.number(c.accuracy.drop), scale.interval(c.accuracy.drop_low, c.accuracy.drop_high)) for c in plans)),
        *([row("largest drop of a class", "class drop", scale.points, (_worst_class(c, scale) if c is not result.reference else Cell("") for c in plans))]
          if any("class-drop" in b for b in result.budgets) else []),
        row("latency", "latency", "ms",
            (Cell(significant(p.latency_ms), interval(p.latency_ms, p.latency_ms_low, p.latency_ms_high)) for p in prices)),
        *([row("latency, measured", "measured", "ms", (measured_cell(c) for c in plans))] if any(c.measured for c in plans) else []),
        row(f"power ({power_note(result)})", "power", "W", (Cell(significant(p.power_w)) for p in prices)),
        row(f"energy ({power_note(result)})", "energy", "mJ", (Cell(significant(p.energy_mj)) for p in prices)),
        row("peak memory", "memory", "", (Cell(size(p.peak_memory_bytes)) for p in prices)),
        row("operating point", "clock", "", (Cell(plain(p.op_point) or MISSING) for p in prices)),
        row("layers", "layers", "", (Cell(layers(c.layers)) for c in plans)),
        row("meets the budget", "budget", "", (Cell(meets(c, result)) for c in plans)),
    ]


def measured_cell(c: Candidate) -> Cell:
    """Median and twice its standard error; what a recording said is marked."""
    m = c.measured
    if m is None:
        return Cell(MISSING)
    return Cell(significant(m.latency_ms) + (" (recorded)" if m.recorded else "") + (" (unsteady)" if m.unstable else ""),
                interval(m.latency_ms, m.latency_ms - 2.0 * m.error_ms, m.latency_ms + 2.0 * m.error_ms))


def _worst_class(c: Candidate, scale: Scale) -> Cell:
    worst = max(c.accuracy.classes, key=lambda k: k.drop, default=None)
    return Cell(MISSING) if worst is None else Cell(scale.number(worst.drop), f"{scale.interval(worst.drop_low, worst.drop_high)} {plain(worst.name)}")


def by_class(result: SearchResult) -> list[tuple[str, int, tuple[Cell, ...]]]:
    """Class by class: name, samples, and of each plan of `side_by_side` its value and its drop; the class that the last plan hurts most comes first."""
    scale, plans = scale_of(result), [{k.name: k for k in c.accuracy.classes} for _, c in side_by_side(result)]
    names = {name: k for plan in plans for name, k in plan.items()}
    last = plans[-1]

    def cell(k: ClassAccuracy | None) -> Cell:
        return Cell(MISSING) if k is None else Cell(scale.number(k.value), f"{scale.number(k.drop)} {scale.interval(k.drop_low, k.drop_high)}")

    order = sorted(names, key=lambda n: -last[n].drop if n in last else math.inf)
    return [(plain(n), names[n].samples, tuple(cell(plan.get(n)) for plan in plans)) for n in order]


def allowed_drop(budget: str, reference: float) -> float | None:
    """The drop that a text such as "max-drop 0.005", "max-drop 0.5%" or "max-drop 0.5%rel" allows, in the metric's own unit; None for
    other limits, that of single classes among them."""
    found = re.search(r"(?<!class-)drop\D*(\d+(?:\.\d*)?(?:[eE][+-]?\d+)?)\s*(%\s*rel|%|points?|pt)?", budget)
    if found is None:
        return None
    number = float(found[1]) / (100.0 if found[2] else 1.0)
    return number * abs(reference) if found[2] and found[2].endswith("rel") else number


def budget_text(budget: str, result: SearchResult) -> str:
    """A budget as the user reads it: an allowed drop in the unit of the metric, every other one as it was given."""
    drop = allowed_drop(budget.replace("class-drop", "drop"), finite(result.reference.accuracy.value) or math.nan)
    if finite(drop) is None:
        return plain(budget)
    of, rule = " of any class" if "class-drop" in budget else "", " worst-case" if budget.endswith("worst-case") else ""
    return f"drop{of} at most {scale_of(result).drop(drop)}{rule}"


def verified(result: SearchResult) -> str:
    """What reading the written model back found; "" when nothing was."""
    scale, names = scale_of(result), {"written": "the written model, read back", "fp16_emulated": "with FP16 rounding emulated"}
    return "; ".join(f"{names.get(k, plain(k))}: {plain(result.reference.accuracy.metric)} {scale.value(v)}" for k, v in result.verified.items())


def asked(result: SearchResult) -> str:
    """What the user wanted, as one phrase."""
    limits = ", ".join(budget_text(b, result) for b in result.budgets) or "no budget"
    return f"{plain(result.model)} on {plain(result.target)} ({plain(result.toolkit)}), {limits}"


def found(result: SearchResult) -> str:
    """The chosen plan in one sentence; "" when there is none."""
    c = result.chosen
    if c is None:
        return ""
    scale = scale_of(result)
    drop = finite(c.accuracy.drop)
    against = "" if drop is None else f", {scale.drop(abs(drop))} {'below' if drop >= 0 else 'above'} float"
    measured = f"{measured_cell(c).value} ms measured on {plain(c.measured.board)}, " if c.measured else ""
    return (f"{measured}{significant(c.price.latency_ms)} ms "
            f"{interval(c.price.latency_ms, c.price.latency_ms_low, c.price.latency_ms_high)} predicted, "
            f"{plain(c.accuracy.metric)} {scale.value(c.accuracy.value)}{against}; {layers(c.layers)}").replace("  ", " ")


def verdict(result: SearchResult) -> str:
    """Whether the budget is met, and if not what binds."""
    early = "Stopped before the search was done. " if result.partial else ""
    if not result.feasible:
        if result.binding is None:
            return early + "No evaluated plan meets the budget."
        return early + f"No plan meets the budget. What binds: {plain(result.binding.budget)}. Best possible: {plain(result.binding.possible)}."
    if result.chosen is None:
        return early + "No plan was evaluated."
    if not result.budgets:
        return early + "No budget was given: the most frugal plan that is as accurate as the best one."
    how = "measured" if result.chosen.measured else "predicted"
    if not result.chosen.sure:
        limits = ", ".join(plain(u) for u in result.unsure)
        return early + f"Meets the budget with its {how} mean; the far end of the interval does not" + (f" keep {limits}." if limits else ".")
    return early + f"Meets the budget, also with the upper end of the {how} interval."


def basis(result: SearchResult) -> str:
    """Where the predicted costs come from, as one sentence."""
    p = result.provenance
    spread = plain(p.get("interval", "80 % interval"))
    return (f"Latency: predicted, {spread}; fitted on {plain(p.get('fitted_on', 'data that was not recorded'))}; "
            f"validated on {plain(p.get('validated_on', 'nothing: unvalidated'))}. Power and energy: {power_note(result)}. "
            f"Accuracy: measured on {result.reference.accuracy.samples} samples, 95 % interval."
            + (f" {float_note(result)[0].upper()}{float_note(result)[1:]}." if float_note(result) else ""))


def row_number(row: Mapping[str, Any], key: str) -> float | None:
    """A finite number of a table row, None where it is missing."""
    return finite(row.get(key))
