"""Product presets: what a product must do, as TOML in and a frozen `Preset` out. `qbench.search.derivation` turns it into limits.

The loader refuses unknown and missing keys and impossible values, so nothing downstream checks again.
"""

from __future__ import annotations

import hashlib
import json
import math
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from qbench.cost.battery import Battery
from qbench.errors import PresetError, unknown
from qbench.network import Precision
from qbench.search.problem import Goal

FOLDER = Path(__file__).parent / "presets"


@dataclass(frozen=True, slots=True)
class Floor:
    """Most that may be lost against float: of the metric, and of any one class of it. worst_case   with the upper end of the interval"""

    max_drop: float                        # in the unit of a metric in 0..1
    max_class_drop: float | None
    worst_case: bool
    why: str


@dataclass(frozen=True, slots=True)
class Deadline:
    """Milliseconds of one inference. sustained   at a clock that the chip keeps when it is hot"""

    limit_ms: float
    worst_case: bool
    sustained: bool
    why: str


@dataclass(frozen=True, slots=True)
class Standby:
    """The battery, and how long it must last while `current_ua` is drawn all the time."""

    battery: Battery
    months: float
    current_ua: float
    why: str


@dataclass(frozen=True, slots=True)
class Part:
    """What an event takes beside the network."""

    what: str
    energy_mj: float
    why: str


@dataclass(frozen=True, slots=True)
class Event:
    """What wakes the product, how often, and how many inferences it runs then."""

    per_day: float
    inferences: float
    why: str
    parts: tuple[Part, ...]


@dataclass(frozen=True, slots=True)
class Preset:
    """key   content key of the file; operating_points   names, () for all of the chip"""

    name: str
    title: str
    story: str
    goal: Goal
    floor: Floor
    deadline: Deadline | None
    memory_mb: float | None
    memory_why: str
    standby: Standby | None
    event: Event | None
    precisions: tuple[Precision, ...]
    operating_points: tuple[str, ...]
    chip_why: str
    key: str


def names() -> tuple[str, ...]:
    """Names of the presets that ship with qbench, sorted."""
    return tuple(sorted(p.stem for p in FOLDER.glob("*.toml")))


def load(name: str) -> Preset:
    """A shipped preset by name, or the user's by the path of its file. Raises UnknownName, or PresetError when the file is wrong."""
    if name in names():
        return load_file(FOLDER / f"{name}.toml")
    if name.endswith(".toml") or "/" in name:
        return load_file(Path(name))
    raise unknown("preset", name, names(), ", or the path of a .toml file of your own")


def load_file(path: Path) -> Preset:
    """A preset from a file. Raises PresetError naming the file, the key, the value and what is expected."""
    try:
        body = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise PresetError(f"{path}: cannot be read ({error.strerror})") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise PresetError(f"{path}: is not TOML ({error})") from error
    return _preset(_Table(str(path), "", body), hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()[:16])


@dataclass(frozen=True, slots=True)
class _Table:
    """One table of the file, with the words for its errors."""

    path: str
    at: str
    body: Mapping[str, Any]

    def refuse(self, name: str, expected: str) -> PresetError:
        said = f"is {self.body[name]!r}" if name in self.body else "is missing"
        return PresetError(f"{self.path}: {self.at}{name} {said}; expected {expected}")

    def only(self, *known: str) -> None:
        for name in self.body:
            if name not in known:
                raise PresetError(f"{self.path}: {self.at}{name} is {self.body[name]!r}; this key is unknown here, expected one of {', '.join(known)}")

    def text(self, name: str) -> str:
        value = self.body.get(name)
        if not isinstance(value, str) or not value.strip():
            raise self.refuse(name, "text")
        return value

    def flag(self, name: str) -> bool:
        value = self.body.get(name)
        if not isinstance(value, bool):
            raise self.refuse(name, "true or false")
        return value

    def number(self, name: str, low: float, high: float, hint: str = "") -> float:
        value = self.body.get(name)
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or not low <= value <= high:
            raise self.refuse(name, f"a number {low:g} to {high:g}{hint}")
        return float(value)

    def one_of(self, name: str, known: tuple[str, ...]) -> str:
        value = self.text(name)
        if value not in known:
            raise self.refuse(name, f"one of {', '.join(known)}")
        return value

    def texts(self, name: str) -> tuple[str, ...]:
        value = self.body.get(name)
        if not isinstance(value, list) or not all(isinstance(v, str) and v for v in value) or len(set(value)) != len(value):
            raise self.refuse(name, "a list of texts, none twice")
        return tuple(value)

    def table(self, name: str) -> _Table:
        value = self.body.get(name)
        if not isinstance(value, dict):
            raise self.refuse(name, "a table")
        return _Table(self.path, f"{self.at}{name}.", value)

    def optional(self, name: str) -> _Table | None:
        return self.table(name) if name in self.body else None


def _preset(t: _Table, key: str) -> Preset:
    t.only("name", "title", "story", "goal", "accuracy", "latency", "memory", "battery", "event", "chip")
    memory, latency, battery, event = (t.optional(name) for name in ("memory", "latency", "battery", "event"))
    if (battery is None) != (event is None):
        raise t.refuse("event" if event is None else "battery", "[battery] and [event] together: one says what there is, the other what it is spent on")
    if memory is not None:
        memory.only("limit_mb", "why")
    chip = t.table("chip")
    chip.only("precisions", "operating_points", "why")
    precisions = chip.texts("precisions")
    if not precisions or not set(precisions) <= set(Precision):
        raise chip.refuse("precisions", f"at least one of {', '.join(Precision)}")
    return Preset(
        name=t.text("name"), title=t.text("title"), story=t.text("story"), goal=Goal(t.one_of("goal", tuple(Goal))),
        floor=_floor(t.table("accuracy")), deadline=_deadline(latency) if latency else None,
        memory_mb=memory.number("limit_mb", 1e-3, 1e6) if memory else None, memory_why=memory.text("why") if memory else "",
        standby=_standby(battery) if battery else None, event=_event(event) if event else None,
        precisions=tuple(Precision(p) for p in precisions), operating_points=chip.texts("operating_points"), chip_why=chip.text("why"), key=key)


def _floor(t: _Table) -> Floor:
    t.only("max_drop_percent", "max_class_drop_percent", "worst_case", "why")
    hint = " points of a metric in 0..1"
    each = t.number("max_class_drop_percent", 0.0, 100.0, hint) / 100.0 if "max_class_drop_percent" in t.body else None
    return Floor(t.number("max_drop_percent", 0.0, 100.0, hint) / 100.0, each, t.flag("worst_case"), t.text("why"))


def _deadline(t: _Table) -> Deadline:
    t.only("limit_ms", "worst_case", "sustained", "why")
    return Deadline(t.number("limit_ms", 1e-3, 1e7), t.flag("worst_case"), t.flag("sustained"), t.text("why"))


def _standby(t: _Table) -> Standby:
    t.only("capacity_mah", "volts", "usable_share", "self_discharge_percent_a_month", "standby_months", "standby_current_ua", "why")
    battery = Battery(t.number("capacity_mah", 1.0, 1e6, " mAh. Ah by mistake?"), t.number("volts", 0.5, 1000.0, ". Millivolts by mistake?"),
                      t.number("usable_share", 0.01, 1.0, ". Percent by mistake?"),
                      t.number("self_discharge_percent_a_month", 0.0, 99.0) / 100.0)
    return Standby(battery, t.number("standby_months", 0.01, 1200.0), t.number("standby_current_ua", 0.0, 1e7), t.text("why"))


def _event(t: _Table) -> Event:
    t.only("per_day", "inferences", "why", "parts")
    rows = t.body.get("parts", [])
    if not isinstance(rows, list) or not all(isinstance(r, dict) for r in rows):
        raise t.refuse("parts", "tables, each with what, energy_mj and why")
    parts = []
    for i, row in enumerate(rows):
        p = _Table(t.path, f"{t.at}parts[{i}].", row)
        p.only("what", "energy_mj", "why")
        parts.append(Part(p.text("what"), p.number("energy_mj", 0.0, 1e9), p.text("why")))
    return Event(t.number("per_day", 1e-3, 1e7), t.number("inferences", 1e-3, 1e7), t.text("why"), tuple(parts))
