"""TOML in, frozen `Target` out. Refuses unknown and missing keys and impossible values, so nothing downstream checks again."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from qbench.affine import Scheme
from qbench.cost.arena import ALLOCATORS
from qbench.cost.parameters import read_parameters
from qbench.cost.sharing import WAYS
from qbench.errors import TargetError, unknown
from qbench.fixed import CALIBRATED, STYLES
from qbench.network import Precision
from qbench.target import (
    Fact,
    Layout,
    MemoryRules,
    OperatingPoint,
    OperatorSupport,
    PowerBasis,
    PrecisionSupport,
    Provenance,
    QuantScheme,
    Target,
    ThermalRule,
)

FOLDER = Path(__file__).parent
RULE_SETS = ("", "rknn", "qnn", "coreml")
"""Names of the rule sets of `qbench.targets.rules`."""


def names() -> tuple[str, ...]:
    """Names of the targets that ship with qbench, sorted."""
    return tuple(sorted(p.stem for p in FOLDER.glob("*.toml")))


@cache
def aliases() -> Mapping[str, str]:
    """Other names of the shipped targets."""
    return {a: n for n in names() for a in _read(FOLDER / f"{n}.toml").get("aliases", [])}


def load(name: str) -> Target:
    """A shipped target by name or alias. Raises UnknownName, or TargetError when its file is broken."""
    found = aliases().get(name, name)
    if found not in names():
        raise unknown("target", name, (*names(), *sorted(aliases())))
    return _shipped(found)


@cache
def _shipped(name: str) -> Target:
    return load_file(FOLDER / f"{name}.toml")


def load_file(path: Path) -> Target:
    """A target from a file. Raises TargetError naming the file, the key, the value and what is expected."""
    return _target(_Table(str(path), "", _read(path)), path.stem)


def _read(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise TargetError(f"{path}: cannot be read ({error.strerror})") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise TargetError(f"{path}: is not TOML ({error})") from error


@dataclass(frozen=True, slots=True)
class _Table:
    """One table of the file, with the words for its errors."""

    path: str
    at: str
    body: Mapping[str, Any]

    def key(self, name: str) -> str:
        return f"{self.at}.{name}" if self.at else name

    def refuse(self, name: str, expected: str) -> TargetError:
        if name not in self.body:
            return TargetError(f"{self.path}: {self.key(name)} is missing; expected {expected}")
        return TargetError(f"{self.path}: {self.key(name)} is {self.body[name]!r}; expected {expected}")

    def only(self, *known: str) -> None:
        for name in self.body:
            if name not in known:
                raise TargetError(f"{self.path}: {self.key(name)} is {self.body[name]!r}; this key is unknown here, expected one of "
                                  f"{', '.join(known)}")

    def text(self, name: str, default: str | None = None) -> str:
        value = self.body.get(name, default)
        if not isinstance(value, str) or (default is None and not value.strip()):
            raise self.refuse(name, "text")
        return value

    def flag(self, name: str, default: bool | None = None) -> bool:
        value = self.body.get(name, default)
        if not isinstance(value, bool):
            raise self.refuse(name, "true or false")
        return value

    def number(self, name: str, low: float, high: float, hint: str = "") -> float:
        value = self.body.get(name)
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or not low <= value <= high:
            raise self.refuse(name, f"a number {low:g} to {high:g}{hint}")
        return float(value)

    def whole(self, name: str, low: int, high: int) -> int:
        value = self.number(name, low, high)
        if value != int(value):
            raise self.refuse(name, "a whole number")
        return int(value)

    def texts(self, name: str, default: Sequence[str] | None = None) -> tuple[str, ...]:
        value = self.body.get(name, default)
        if not isinstance(value, list | tuple) or not all(isinstance(v, str) and v for v in value):
            raise self.refuse(name, "a list of texts")
        return tuple(value)

    def table(self, name: str) -> _Table:
        value = self.body.get(name)
        if not isinstance(value, dict):
            raise self.refuse(name, "a table")
        return _Table(self.path, self.key(name), value)

    def tables(self, name: str) -> list[_Table]:
        value = self.body.get(name)
        if not isinstance(value, list) or not value or not all(isinstance(v, dict) for v in value):
            raise self.refuse(name, "one table or more")
        return [_Table(self.path, f"{self.key(name)}[{i}]", v) for i, v in enumerate(value)]


def _target(t: _Table, name: str) -> Target:
    t.only("name", "title", "aliases", "toolkits", "cost_model", "latency_factor_low", "latency_factor_high", "power_is_relative",
           "provenance", "operating_points", "operating_points_source", "precisions", "cpu_ops", "cpu_ops_source", "cost", "fixed_outputs",
           "fixed_outputs_source", "layout", "operators", "facts", "refused", "power", "voltage_bins",
           "voltage_bins_source", "thermal", "rules", "memory")
    if t.text("name") != name:
        raise t.refuse("name", f"{name!r}, the name of the file")
    toolkits = t.texts("toolkits")
    if not toolkits:
        raise t.refuse("toolkits", "at least one version")
    t.texts("aliases", ())
    points = _points(t)
    kind = t.text("cost_model")
    cost, sources = _cost(t.table("cost"))
    read_parameters(t.path, kind, cost)
    sources["operating_points"] = t.text("operating_points_source")
    cpu_ops = t.texts("cpu_ops", ())
    if cpu_ops:
        sources["cpu_ops"] = t.text("cpu_ops_source")
    rules = t.text("rules", "")
    if rules not in RULE_SETS:
        raise t.refuse("rules", f"one of {', '.join(s for s in RULE_SETS if s)}, or no such key")
    fixed_outputs = t.text("fixed_outputs", CALIBRATED)
    if fixed_outputs not in STYLES:
        raise t.refuse("fixed_outputs", f"one of {', '.join(s for s in STYLES if s)}, or no such key")
    if fixed_outputs:
        sources["fixed_outputs"] = t.text("fixed_outputs_source")
    bins = _bins(t, points) if "voltage_bins" in t.body else {}
    if bins:
        sources["voltage_bins"] = t.text("voltage_bins_source")
    power = _power(t.table("power")) if "power" in t.body else None
    if t.flag("power_is_relative") == bool(power) or bool(power) != bool(cost.get("base_watts")):
        raise t.refuse("power_is_relative", "false beside a [power] table and cost.base_watts, true without them")
    return Target(
        name=name, title=t.text("title"), toolkits=toolkits, precisions=_precisions(t, toolkits), operating_points=points, cost_model=kind,
        cost=cost, latency_factor_low=t.number("latency_factor_low", 0.01, 1.0, "; it multiplies the prediction"),
        latency_factor_high=t.number("latency_factor_high", 1.0, 100.0, "; it multiplies the prediction"),
        power_is_relative=t.flag("power_is_relative"), provenance=_provenance(t.table("provenance")), sources=sources, cpu_ops=cpu_ops,
        fixed_outputs=fixed_outputs, rules=rules, power=power, voltage_bins=bins, thermal=_thermal(t.table("thermal")) if "thermal" in t.body else None,
        layout=_layout(t.table("layout")) if "layout" in t.body else Layout(),
        memory=_memory(t.table("memory")) if "memory" in t.body else MemoryRules(),
        operators=_operators(t.table("operators")) if "operators" in t.body else None,
        facts=_facts(t.table("facts")) if "facts" in t.body else {}, refused=_refused(t) if "refused" in t.body else {})


def _provenance(t: _Table) -> Provenance:
    t.only("fitted_on", "validated_on", "interval")
    return Provenance(t.text("fitted_on"), t.text("validated_on"), t.text("interval"))


def _power(t: _Table) -> PowerBasis:
    t.only("what", "factor_low", "factor_high", "fitted_on", "validated_on", "interval")
    return PowerBasis(t.text("what"), t.text("fitted_on"), t.text("validated_on"), t.text("interval"),
                      t.number("factor_low", 0.01, 1.0, "; it multiplies the prediction"), t.number("factor_high", 1.0, 100.0, "; it multiplies the prediction"))


def _bins(t: _Table, points: Sequence[OperatingPoint]) -> dict[str, tuple[float, ...]]:
    """Volts of every operating point by silicon bin; the first bin is the one that the operating points carry."""
    table, found = t.table("voltage_bins"), dict[str, tuple[float, ...]]()
    for name, volts in table.body.items():
        if (not isinstance(volts, list) or len(volts) != len(points)
                or not all(isinstance(v, float) and 0.4 <= v <= 1.5 for v in volts) or volts != sorted(volts)):
            raise table.refuse(name, f"{len(points)} voltages of 0.4 to 1.5 that never fall, one per operating point")
        if not found and tuple(volts) != tuple(p.volts for p in points):
            raise table.refuse(name, "the voltages of operating_points, whose bin comes first")
        found[name] = tuple(volts)
    return found


def _thermal(t: _Table) -> ThermalRule:
    t.only("throttle_above_c", "release_below_c", "throttled_clock_hz", "cold_below_c", "cold_min_volts", "source")
    above, below = t.number("throttle_above_c", 0.0, 150.0), t.number("release_below_c", 0.0, 150.0)
    if below >= above:
        raise t.refuse("release_below_c", f"less than throttle_above_c, {above:g}")
    return ThermalRule(above, below, t.number("throttled_clock_hz", 1e6, 1e10, " hertz. Megahertz by mistake?"),
                       t.number("cold_below_c", -60.0, below), t.number("cold_min_volts", 0.4, 1.5, ". Millivolts by mistake?"), t.text("source"))


def _layout(t: _Table) -> Layout:
    t.only("native", "channel_align_bytes", "base_align_bytes", "width_align_elements")
    entries = {key: t.table(key) for key in t.body}
    for entry in entries.values():
        entry.only("value", "source")
    whole = {key: e.whole("value", 1, 1 << 24) for key, e in entries.items() if key != "native"}
    native = entries["native"].text("value") if "native" in entries else None
    return Layout(native, sources={key: e.text("source") for key, e in entries.items()}, **whole)


def _memory(t: _Table) -> MemoryRules:
    t.only("allocator", "shares", "runtime_ram_bytes", "ram_bytes", "flash_bytes")
    entries = {key: t.table(key) for key in t.body}
    for entry in entries.values():
        entry.only("value", "source")
    sizes = {key: e.whole("value", 0, 1 << 40) for key, e in entries.items() if key.endswith("_bytes")}
    allocator, ways = "", None
    if "allocator" in entries and (allocator := entries["allocator"].text("value")) not in ALLOCATORS:
        raise entries["allocator"].refuse("value", f"one of {', '.join(ALLOCATORS)}, or no such key")
    if "shares" in entries and not set(ways := entries["shares"].texts("value")) <= set(WAYS):
        raise entries["shares"].refuse("value", f"a list out of {', '.join(WAYS)}")
    return MemoryRules(allocator, ways, sources={key: e.text("source") for key, e in entries.items()}, **sizes)


def _operators(t: _Table) -> OperatorSupport:
    t.only("accelerated", "refused", "fallback", "source")
    return OperatorSupport(t.texts("accelerated"), t.texts("refused", ()), t.text("fallback", ""), t.text("source"))


def _refused(t: _Table) -> dict[str, str]:
    """Reason and source for each precision that the chip lacks, entries { reason = "...", source = "..." }."""
    table, found = t.table("refused"), {}
    table.only(*Precision)
    for key in table.body:
        entry = table.table(key)
        entry.only("reason", "source")
        found[key] = f"{entry.text('reason')}; source: {entry.text('source')}"
    return found


def _facts(t: _Table) -> dict[str, Fact]:
    """Entries { value = number or text, source = "..." }."""
    found = {}
    for key in t.body:
        entry = t.table(key)
        entry.only("value", "source")
        written = isinstance(entry.body.get("value"), str)
        found[key] = Fact(entry.text("value") if written else entry.number("value", 0.0, 1e15), entry.text("source"))
    return found


def _points(t: _Table) -> tuple[OperatingPoint, ...]:
    found: list[OperatingPoint] = []
    for p in t.tables("operating_points"):
        p.only("name", "clock_hz", "volts")
        clock = p.number("clock_hz", 1e6, 1e10, " hertz. Megahertz by mistake?")
        volts = p.number("volts", 0.4, 1.5, ". Millivolts by mistake?") if "volts" in p.body else None
        if found and clock <= found[-1].clock_hz:
            raise p.refuse("clock_hz", f"more than {found[-1].clock_hz:g}, the point before: clocks ascend")
        if any(p.text("name") == q.name for q in found):
            raise p.refuse("name", "a name that no point before it has")
        found.append(OperatingPoint(p.text("name"), clock, volts))
    return tuple(found)


def _precisions(t: _Table, toolkits: tuple[str, ...]) -> tuple[PrecisionSupport, ...]:
    found: list[PrecisionSupport] = []
    for p in t.tables("precisions"):
        p.only("precision", "macs_per_cycle", "scheme", "toolkits", "refused", "note", "source")
        name = p.text("precision")
        if name not in {str(x) for x in Precision} or any(name == str(f.precision) for f in found):
            raise p.refuse("precision", f"one of {', '.join(Precision)}, each at most once")
        precision = Precision(name)
        versions = p.texts("toolkits", ())
        if any(v not in toolkits for v in versions):
            raise p.refuse("toolkits", f"versions out of {', '.join(toolkits)}")
        if versions and set(versions) != set(toolkits):
            p.text("refused")                     # whoever uses another version is owed a reason
        if precision.is_float and "scheme" in p.body:
            raise p.refuse("scheme", "none: a float precision has no codes")
        found.append(PrecisionSupport(
            precision, p.number("macs_per_cycle", 1e-3, 1e6), None if precision.is_float else _scheme(p.table("scheme")), versions,
            p.text("refused", ""), p.text("note", ""), p.text("source")))
    if not any(f.precision.is_float for f in found):
        raise TargetError(f"{t.path}: precisions holds {', '.join(f.precision for f in found)}; expected a float one among them, "
                          f"{' or '.join(p for p in Precision if p.is_float)}: layers that no integer can hold run in it")
    return tuple(found)


def _scheme(t: _Table) -> QuantScheme:
    t.only("activation", "weight", "weight_per_channel", "bias_bits", "weight_block", "weight_axis")
    block = t.whole("weight_block", 2, 4096) if "weight_block" in t.body else 0
    return QuantScheme(_codes(t.table("activation")), _codes(t.table("weight")), t.flag("weight_per_channel"), t.whole("bias_bits", 8, 64), block, _weight_axis(t))


def _weight_axis(t: _Table) -> tuple[tuple[str, str], ...]:
    """Operators whose weights have no scale per output channel, entries OPERATOR = "tensor" or "input"."""
    if "weight_axis" not in t.body:
        return ()
    if not t.flag("weight_per_channel"):
        raise t.refuse("weight_axis", "no such key where weight_per_channel is false: every weight has one scale then")
    table = t.table("weight_axis")
    table.only("Conv", "ConvTranspose", "Gemm", "MatMul")
    for op, axis in table.body.items():
        if axis != "tensor" and (op, axis) != ("ConvTranspose", "input"):
            raise table.refuse(op, '"tensor", or for ConvTranspose "input"')
    return tuple(sorted(table.body.items()))


def _codes(t: _Table) -> Scheme:
    t.only("bits", "signed", "symmetric", "narrow", "power_of_two")
    return Scheme(t.whole("bits", 2, 16), t.flag("signed"), t.flag("symmetric"), t.flag("narrow", False), t.flag("power_of_two", False))


def _cost(t: _Table) -> tuple[dict[str, float], dict[str, str]]:
    """Numbers and sources of the `cost` table, whose entries are { value = ..., source = "..." }."""
    values, sources = {}, {}
    for key in t.body:
        entry = t.table(key)
        entry.only("value", "source")
        values[key] = entry.number("value", 0.0, 1e15)
        sources[f"cost.{key}"] = entry.text("source")
    return values, sources
