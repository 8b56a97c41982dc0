"""From a product to the limits of a search, line by line: battery -> a day -> an event -> an inference -> what is left of the chip.

A limit that the user gives takes the place of the preset's, and the line says so. What is ruled out names the line that does it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from qbench.cost import CostTable
from qbench.cost.battery import event_mwh_a_day, mj_an_event, months, mwh_a_day, standby_mwh_a_day
from qbench.errors import PrecisionUnavailable, PresetError
from qbench.network import Precision
from qbench.search.budget import Budget, Kind, MaxDrop
from qbench.search.preset import Event, Preset, Standby
from qbench.search.problem import Goal
from qbench.target import OperatingPoint, Target


@dataclass(frozen=True, slots=True)
class Given:
    """What the user asked for beside the preset; empty or None where the preset decides. off   floors switched off, by name"""

    budgets: tuple[Budget, ...] = ()
    max_drop: MaxDrop | None = None
    max_class_drop: MaxDrop | None = None
    off: tuple[str, ...] = ()
    precisions: tuple[Precision, ...] = ()
    operating_points: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Derivation:
    """lines   (topic, text) in order; numbered from 1 where they are shown

    operating_points   those that remain, the preferred one first
    """

    preset: Preset
    lines: tuple[tuple[str, str], ...]
    budgets: tuple[Budget, ...]
    max_drop: MaxDrop | None
    max_class_drop: MaxDrop | None
    precisions: tuple[Precision, ...]
    operating_points: tuple[str, ...]

    @property
    def texts(self) -> tuple[str, ...]:
        """"3. event: 43.8 mWh a day / 30 events x 3.6 J/mWh = 5260 mJ an event"."""
        return tuple(f"{i}. {topic}: {text}" for i, (topic, text) in enumerate(self.lines, start=1))

    def to_dict(self) -> dict[str, Any]:
        """What summary.json and `qbench presets --json` hold."""
        return {"name": self.preset.name, "title": self.preset.title, "story": self.preset.story, "key": self.preset.key,
                "goal": str(self.preset.goal), "derivation": list(self.texts), "budgets": [b.text for b in self.budgets],
                "max_drop": self.max_drop.text if self.max_drop else None,
                "max_class_drop": self.max_class_drop.text if self.max_class_drop else None,
                "precisions": [str(p) for p in self.precisions], "op_points": list(self.operating_points)}


@dataclass
class _Sheet:
    """The lines so far; `add` gives the number of the line, so that a later one can name it."""

    lines: list[tuple[str, str]] = field(default_factory=list)

    def add(self, topic: str, text: str) -> int:
        self.lines.append((topic, text))
        return len(self.lines)


def derive(preset: Preset, target: Target, table: CostTable, given: Given | None = None) -> Derivation:
    """Limits, precisions and operating points of `preset` on `target` for the network that `table` prices.

    Raises PresetError when the product contradicts itself, or the chip is left with no precision or no operating point.
    """
    given, sheet = given or Given(), _Sheet()
    budgets: dict[Kind, Budget] = {}
    source: dict[Kind, int] = {}

    def limit(topic: str, budget: Budget, text: str) -> None:
        own = next((b for b in given.budgets if b.kind is budget.kind), None)
        budgets[budget.kind] = own or budget
        source[budget.kind] = sheet.add(topic, f"{text}. Replaced by --budget {own.text}" if own else text)

    if preset.standby is not None and preset.event is not None:
        an_inference = _event_lines(sheet, preset.standby, preset.event)
        text = f"{an_inference:.4g} mJ an inference, as its mean over many events"
        if target.power_is_relative:
            sheet.add("energy", f"{text}. No public figure in watts exists for {target.name}: its joules only rank plans and cannot be held "
                      "against this limit. The search takes the least of them; give watt readings of your board (--power) to make it binding")
        else:
            limit("energy", Budget(Kind.ENERGY, an_inference), text)
    drop = _floor(sheet, "max-drop", preset, preset.floor.max_drop, given.max_drop, given.off)
    each = _floor(sheet, "max-class-drop", preset, preset.floor.max_class_drop, given.max_class_drop, given.off)
    if preset.deadline is not None:
        d = preset.deadline
        budget = Budget(Kind.LATENCY, d.limit_ms, d.worst_case)
        tail = (f"; the upper end of the predicted interval must keep it: with its factor {target.latency_factor_high:.3g} that leaves "
                f"{d.limit_ms / target.latency_factor_high:.4g} ms for the mean") if d.worst_case else ", as predicted in the mean"
        limit("latency", budget, f"at most {d.limit_ms:g} ms ({d.why}){tail}")
    if preset.memory_mb is not None:
        limit("memory", Budget(Kind.MEMORY, preset.memory_mb * 1e6), f"at most {preset.memory_mb:g} MB ({preset.memory_why})")
    for b in given.budgets:
        if b.kind not in budgets:
            budgets[b.kind], source[b.kind] = b, sheet.add(str(b.kind), f"--budget {b.text}; the preset has no limit of this kind")
    precisions = _precisions(sheet, preset, target, table.toolkit, given)
    points = _points(sheet, preset, target, table, precisions, budgets, source, given)
    _uniform_lines(sheet, preset, target, table, precisions, points[0], tuple(budgets.values()))
    goal = {Goal.ENERGY: "among the plans that keep every line, the one with the least energy: accuracy is a floor",
            Goal.ACCURACY: "among the plans that keep every line, one as accurate as the best of them; of equals the most frugal"}
    sheet.add("choice", goal[preset.goal])
    return Derivation(preset, tuple(sheet.lines), tuple(budgets.values()), drop, each, precisions, points)


def _event_lines(sheet: _Sheet, standby: Standby, event: Event) -> float:
    """mJ that one inference may take. Raises PresetError where nothing is left for it."""
    b = standby.battery
    sheet.add("battery", f"{b.capacity_mah:g} mAh x {b.volts:g} V x {b.usable_share:g} usable = {b.usable_mwh / 1e3:.4g} Wh ({standby.why})")
    all_day = mwh_a_day(b, standby.months)
    sheet.add("standby", f"to last {standby.months:g} months under {100 * b.self_discharge_share:g} % self-discharge a month: {all_day:.4g} mWh a day in all")
    asleep = standby_mwh_a_day(standby.current_ua, b.volts)
    left = all_day - asleep
    asleep_text = f"{standby.current_ua:g} uA x {b.volts:g} V x 24 h = {asleep:.4g} mWh a day"
    if left <= 0.0:
        raise PresetError(f"standby alone ({asleep_text}) empties the battery in {months(b, asleep):.3g} months, not {standby.months:g}: "
                          "lower standby_current_ua or standby_months, or take a larger battery")
    sheet.add("standby", f"asleep {asleep_text}; left {left:.4g} mWh a day")
    an_event = mj_an_event(left, event.per_day)
    sheet.add("event", f"{left:.4g} mWh a day / {event.per_day:g} events = {an_event:.4g} mJ an event ({event.why})")
    beside = sum(p.energy_mj for p in event.parts)
    parts = " + ".join(f"{p.what} {p.energy_mj:g}" for p in event.parts) or "nothing else"
    rest = an_event - beside
    if rest <= 0.0:
        lasts = months(b, asleep + event_mwh_a_day(beside, event.per_day))
        raise PresetError(f"an event may take {an_event:.4g} mJ, and {parts} = {beside:g} mJ leave nothing for the network: the battery would last "
                          f"{lasts:.3g} months, not {standby.months:g}, without any inference. Fewer events, cheaper parts or a larger battery")
    sheet.add("event", f"{parts} = {beside:g} mJ; left for the network {rest:.4g} mJ ({100 * rest / an_event:.0f} % of an event)")
    sheet.add("inference", f"{rest:.4g} mJ / {event.inferences:g} inferences an event = {rest / event.inferences:.4g} mJ")
    return float(f"{rest / event.inferences:.4g}")


TOPICS = {"max-drop": "accuracy", "max-class-drop": "worst class"}
"""Floors by the name of their option, and how their line begins."""


def _floor(sheet: _Sheet, name: str, preset: Preset, drop: float | None, own: MaxDrop | None, off: Sequence[str]) -> MaxDrop | None:
    """The preset's floor, or the user's in its place."""
    found = None if drop is None else MaxDrop(drop, worst=preset.floor.worst_case)
    text = f"the preset has no {name}"
    if found is not None:
        rule = "by the upper end of the paired 95 % interval" if found.worst else "as measured"
        what, why = ("the metric", f" ({preset.floor.why})") if name == "max-drop" else ("each class", "")
        text = f"{what} at most {100 * found.limit:g} points below float, {rule}{why}"
    if own is not None:
        text, found = f"{text}. Replaced by --{name} {own.text}", own
    elif name in off:
        text, found = f"{text}. Switched off by --{name} none", None
    sheet.add(TOPICS[name], text)
    return found


def _precisions(sheet: _Sheet, preset: Preset, target: Target, toolkit: str, given: Given) -> tuple[Precision, ...]:
    """Those that remain, in the preset's order; a line for each that does not."""
    if given.precisions:
        for p in given.precisions:
            target.support(p, toolkit)
        sheet.add("precisions", f"{_list(given.precisions)}, given by --precision instead of the preset's {_list(preset.precisions)}")
        return given.precisions
    number = sheet.add("precisions", f"{_list(preset.precisions)} ({preset.chip_why})")
    kept = []
    for p in preset.precisions:
        try:
            target.support(p, toolkit)
            kept.append(p)
        except PrecisionUnavailable as error:
            sheet.add("precisions", f"{p} is ruled out: {error}")
    for p in target.available(toolkit):
        if p not in preset.precisions:
            sheet.add("precisions", f"{p} is ruled out by line {number}: the product does not ask for it")
    if not kept:
        raise PresetError(f"preset {preset.name} allows {_list(preset.precisions)}, and {target.name} with toolkit {toolkit} offers "
                          f"{_list(target.available(toolkit))}: choose another target, or give --precision")
    return tuple(kept)


def _points(sheet: _Sheet, preset: Preset, target: Target, table: CostTable, precisions: Sequence[Precision], budgets: Mapping[Kind, Budget],
            source: Mapping[Kind, int], given: Given) -> tuple[str, ...]:
    """Operating points that remain, the preferred one first: the least energy, or for accuracy the fastest."""
    if given.operating_points:
        sheet.add("operating points", f"{_list(given.operating_points)}, given by --op-point")
        return tuple(target.operating_point(p).name for p in given.operating_points)
    points = [target.operating_point(p) for p in preset.operating_points] or list(target.operating_points)
    kept = _cool(sheet, preset, target, points)
    kept = _in_time(sheet, table, precisions, budgets, source, kept)
    least = {p.name: _least(table, precisions, p.name) for p in kept}
    for p in list(kept):
        above = [q for q in kept if q is not p and _dominated(table, precisions, p.name, q.name)]
        if above:
            better = min(above, key=lambda q: least[q.name][1])
            kept.remove(p)
            sheet.add("operating points", f"{p.name} is ruled out by {better.name}, where every plan is as fast and as frugal or better "
                      f"({least[p.name][1] / least[better.name][1]:.3g} x its energy, {least[p.name][0] / least[better.name][0]:.3g} x its time)")
    kept.sort(key=lambda p: least[p.name][1] if preset.goal is Goal.ENERGY else -p.clock_hz)
    order = "least energy first" if preset.goal is Goal.ENERGY else "fastest first"
    shown = ", ".join(f"{p.name}{f' at {p.volts:g} V' if p.volts else ''} ({least[p.name][1] / least[kept[0].name][1]:.3g} x the energy)" for p in kept)
    sheet.add("operating points", f"left, {order}: {shown}")
    return tuple(p.name for p in kept)


def _cool(sheet: _Sheet, preset: Preset, target: Target, points: list[OperatingPoint]) -> list[OperatingPoint]:
    """Points that the chip keeps when hot, where the product runs for hours."""
    if preset.deadline is None or not preset.deadline.sustained:
        return points
    rule = target.thermal
    if rule is None:
        sheet.add("heat", f"the speed must last for hours, and no public thermal rule of {target.name} is known: not checked; measure it")
        return points
    number = sheet.add("heat", f"the speed must last for hours, and above {rule.throttle_above_c:g} C the driver caps the clock at "
                       f"{rule.throttled_clock_hz / 1e6:g} MHz [{rule.source}]: only clocks up to there are counted on")
    hot = [p for p in points if p.clock_hz > rule.throttled_clock_hz]
    if len(hot) == len(points):
        raise PresetError(f"every operating point of {target.name} that preset {preset.name} allows ({_list([p.name for p in points])}) is above the "
                          f"{rule.throttled_clock_hz / 1e6:g} MHz that heat leaves: allow a slower one")
    for p in hot:
        sheet.add("operating points", f"{p.name} is ruled out by line {number}")
    return [p for p in points if p not in hot]


def _in_time(sheet: _Sheet, table: CostTable, precisions: Sequence[Precision], budgets: Mapping[Kind, Budget], source: Mapping[Kind, int],
             points: list[OperatingPoint]) -> list[OperatingPoint]:
    """Points at which a plan may keep the latency and energy limits; all of them where none can: the search then says what binds."""
    ruled: dict[str, str] = {}
    late = table.target.latency_factor_high
    for p in points:
        ms, mj = _least(table, precisions, p.name)
        for b in budgets.values():
            cap = b.latency_cap_ms
            value, most = (ms, cap) if cap is not None else (mj, b.limit) if b.kind is Kind.ENERGY else (0.0, 1.0)
            spread = late if b.worst else 1.0
            if most is not None and value * spread > most:
                unit = "mJ" if b.kind is Kind.ENERGY else "ms"
                end = " at the upper end" if b.worst else ""
                ruled[p.name] = f"{p.name} is ruled out by line {source[b.kind]} ({b.text}): no plan takes less than {value * spread:.4g} {unit}{end}"
                break
    if len(ruled) == len(points):
        sheet.add("operating points", "none can keep the limits, so all stay: the search says what binds. " + "; ".join(ruled.values()))
        return list(points)
    for text in ruled.values():
        sheet.add("operating points", text)
    return [p for p in points if p.name not in ruled]


def _mask(table: CostTable, precisions: Sequence[Precision]) -> np.ndarray[tuple[int, int], np.dtype[np.bool_]]:
    """[units, precisions]: what the product leaves to each unit; a unit that has to stay in float may take any float."""
    wanted = np.array([Precision(p) in precisions for p in table.precisions])
    mask = table.allowed & wanted
    return np.where(mask.any(1, keepdims=True), mask, table.allowed)


def _least(table: CostTable, precisions: Sequence[Precision], op_point: str) -> tuple[float, float]:
    """(ms, mJ) that no plan goes below: every unit at its best, no conversion charged."""
    mask, costs, (fixed_s, fixed_j) = _mask(table, precisions), table.unit_costs(op_point), table.fixed(op_point)
    return tuple(1e3 * (float(np.where(mask, x, np.inf).min(1).sum()) + fixed) for x, fixed in ((costs.seconds, fixed_s), (costs.joules, fixed_j)))  # type: ignore[return-value]


def _dominated(table: CostTable, precisions: Sequence[Precision], worse: str, better: str) -> bool:
    """No plan is faster or more frugal at `worse`: every entry that plans are summed from is at least as large there, and some larger."""
    mask, a, b = _mask(table, precisions), table.unit_costs(worse), table.unit_costs(better)
    pairs = [(x, y) for p, q in zip(table.pair_costs(worse), table.pair_costs(better), strict=True) for x, y in ((p.seconds, q.seconds), (p.joules, q.joules))]
    fixed = zip(table.fixed(worse), table.fixed(better), strict=True)
    every = [(a.seconds[mask], b.seconds[mask]), (a.joules[mask], b.joules[mask]), *pairs, *((np.array(x), np.array(y)) for x, y in fixed)]
    return all(bool((x >= y).all()) for x, y in every) and any(bool((x > y).any()) for x, y in every)


def _uniform_lines(sheet: _Sheet, preset: Preset, target: Target, table: CostTable, precisions: Sequence[Precision], op_point: str,
                   budgets: tuple[Budget, ...]) -> None:
    """What one precision throughout costs at the preferred point, and which limit it breaks."""
    prices = {p: table.price(table.uniform(p)[None], op_point)[0] for p in precisions}
    least = min(price.energy_mj for price in prices.values())
    for p, price in prices.items():
        broken = [b.text for b in budgets if not b.met_by(price)]
        energy = f"{price.energy_mj / least:.3g} x the least energy" if target.power_is_relative else f"{price.energy_mj:.3g} mJ"
        if target.energy_factors is not None:
            energy += f" [{price.energy_mj * target.energy_factors[0]:.3g}, {price.energy_mj * target.energy_factors[1]:.3g}]"
        lasts = ""
        if preset.standby is not None and preset.event is not None and not target.power_is_relative:
            lasts = f", the battery lasts {_lasts(preset.standby, preset.event, price.energy_mj):.3g} months"
        verdict = f"breaks {', '.join(broken)}, so not throughout" if broken else "keeps the limits on cost; accuracy is to be measured"
        sheet.add("precisions", f"{p} throughout at {op_point}: {price.latency_ms:.3g} ms [{price.latency_ms_low:.3g}, {price.latency_ms_high:.3g}], "
                  f"{energy}, {price.peak_memory_bytes / 1e6:.3g} MB{lasts}; {verdict}{_device(target, table, p)}")


def _device(target: Target, table: CostTable, precision: Precision) -> str:
    """What of the network a microcontroller cannot hold; "" when it can, or nothing is known."""
    plan, rules = table.memory(table.uniform(precision)), target.memory
    parts = (("RAM", plan.ram_bytes, rules.ram_bytes), ("flash", plan.weight_bytes, rules.flash_bytes))
    return "".join(f"; {target.name} does not hold it: {need / 1e3:.4g} KB for its {have / 1e3:.4g} KB of {where}"
                   for where, need, have in parts if have is not None and need > have)


def _lasts(standby: Standby, event: Event, inference_mj: float) -> float:
    """Months under events whose inferences take `inference_mj` each."""
    an_event = sum(p.energy_mj for p in event.parts) + event.inferences * inference_mj
    asleep = standby_mwh_a_day(standby.current_ua, standby.battery.volts)
    return months(standby.battery, asleep + event_mwh_a_day(an_event, event.per_day))


def _list(names: Sequence[object]) -> str:
    return ", ".join(str(n) for n in names)
