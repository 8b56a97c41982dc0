"""What a target's file says, in words: the rows that `qbench targets NAME` and the pages of docs/targets both show."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import fields

from qbench.affine import Scheme
from qbench.report import text
from qbench.target import Layout, MemoryRules, QuantScheme, Target, ThermalRule

Row = tuple[str, ...]
NO_TABLE = "no public table: placement of every operator is unknown"
RELATIVE_POWER = "relative, unvalidated; no public figure in watts"
PRECISION_HEADINGS = ("", "MAC/cycle/core", "stored", "remarks", "source")
_UNITS = (("_bytes_per_s", "B/s"), ("_bytes_per_cycle", "B/cycle"), ("_bytes", "B"), ("_hz", "Hz"), ("_volts", "V"), ("_pj_per_byte", "pJ/B"), ("_pj", "pJ"),
          ("_ms", "ms"), ("_s", "s"), ("_w", "W"))
_ASSUMED = re.compile(r"assumed|not identified|not validated|taken over|unverified|not checked|not measured|not asked|no voltage|no public|extrapolated", re.IGNORECASE)


def number(key: str, value: float | str | Mapping[str, object]) -> str:
    """A figure with the unit that its key ends with; no digit of it is lost."""
    if not isinstance(value, int | float):
        return str(value)
    unit = next((u for end, u in _UNITS if key.endswith(end)), "")
    short = f"{value:.6g}"
    return f"{short if float(short) == value else repr(int(value) if value == int(value) else value)} {unit}".rstrip()


def grid(scheme: Scheme) -> str:
    """A quantization grid in words: "8 bit signed symmetric"."""
    words = [f"{scheme.bits} bit", "signed" if scheme.signed else "unsigned", "symmetric" if scheme.symmetric else "asymmetric"]
    return " ".join([*words, *(w for w, is_so in (("narrow", scheme.narrow), ("power of two", scheme.power_of_two)) if is_so)])


def toolkits(target: Target) -> str:
    return f"toolkit versions: {', '.join(target.toolkits)} (the last by default); latency model: {target.cost_model}"


def precision_rows(target: Target) -> list[Row]:
    """Under `PRECISION_HEADINGS`."""
    rows = list[Row]()
    for p in target.precisions:
        only = f"toolkit {', '.join(p.toolkits)} only; others: {p.refused or 'not listed'}" if p.toolkits else ""
        rows.append((str(p.precision), number("", p.macs_per_cycle), stored(p.scheme), "; ".join(filter(None, (only, p.note))), p.source))
    return rows


def stored(scheme: QuantScheme | None) -> str:
    """How the tensors of a precision are held. scheme   None for float"""
    if scheme is None:
        return "float"
    groups = f" or per group of {scheme.weight_block} input channels" if scheme.weight_block else ""
    others = "".join(f", those of {op} per {axis}" for op, axis in scheme.weight_axis)
    return (f"weights {grid(scheme.weight)} {'per channel' if scheme.weight_per_channel else 'per tensor'}{groups}{others}, "
            f"activations {grid(scheme.activation)}, bias {scheme.bias_bits} bit")


def refusals(target: Target) -> list[str]:
    return [f"no {p}: {text.plain(why)}" for p, why in target.refused.items()]


def fixed_outputs(target: Target) -> list[str]:
    """How outputs of Softmax and Sigmoid are stored, where the toolchain fixes it."""
    return [f"outputs of fixed range (Softmax, Sigmoid and their like) are stored in the style {target.fixed_outputs} [{target.sources['fixed_outputs']}]"] if target.fixed_outputs else []


def point_headings(target: Target) -> Row:
    return ("point", "MHz", "V", *target.voltage_bins)


def point_rows(target: Target) -> list[Row]:
    """Under `point_headings`: clock, volts, and the volts of each silicon bin."""
    return [(o.name, f"{o.clock_hz / 1e6:g}", f"{o.volts:g}" if o.volts else "not public", *(f"{volts[i]:g}" for volts in target.voltage_bins.values()))
            for i, o in enumerate(target.operating_points)]


def thermal(rule: ThermalRule) -> str:
    return (f"thermal rule: from {rule.throttle_above_c:g} C on at most {rule.throttled_clock_hz / 1e6:g} MHz, released at {rule.release_below_c:g} C; below "
            f"{rule.cold_below_c:g} C at least {rule.cold_min_volts:g} V [{text.plain(rule.source)}]")


def basis(target: Target) -> list[str]:
    """Latency: fitted on, validated on, interval."""
    p = target.provenance
    return [f"latency fitted on {text.plain(p.fitted_on)}", f"validation: {text.plain(p.validated_on)}",
            f"interval: x {target.latency_factor_low:.4g} to x {target.latency_factor_high:.4g} ({text.plain(p.interval)})"]


def power(target: Target) -> list[str]:
    """Whose watts, fitted on, validated on, interval."""
    w = target.power
    if w is None:
        return [f"power and energy: {RELATIVE_POWER}"]
    factors = "" if w.factor_low is None or w.factor_high is None else f" x {w.factor_low:.4g} to x {w.factor_high:.4g}"
    return [f"power: {text.plain(w.what)}; fitted on {text.plain(w.fitted_on)}; validation: {text.plain(w.validated_on)}",
            f"interval of power:{factors} ({text.plain(w.interval)})"]


def cited(record: Layout | MemoryRules) -> list[Row]:
    """Key, value and source of what a public source gives."""
    return [(f.name, _listed(f.name, getattr(record, f.name)), record.sources[f.name]) for f in fields(record) if f.name in record.sources]


def _listed(key: str, value: float | str | tuple[str, ...]) -> str:
    return (", ".join(value) or "nothing") if isinstance(value, tuple) else number(key, value)


def operators(target: Target) -> list[str]:
    """Where the toolchain runs ONNX operators, as far as a public table says; whatever is in no list is unknown."""
    if target.cost_model in ("mcu", "host"):
        return ["no NPU: every operator is a kernel of the core"]
    lines = []
    if target.cpu_ops:
        lines.append(f"on the CPU: {', '.join(target.cpu_ops)} [{text.plain(target.sources.get('cpu_ops', ''))}]")
    o = target.operators
    if o is None:
        by_rules = f"every other operator: by the rule set {target.rules}, which `qbench inspect` shows for a model" if target.rules else ""
        return [*lines, by_rules or ("every other operator: in no public table here" if lines else NO_TABLE)]
    lines.append(f"accelerated ({len(o.accelerated)}): {', '.join(o.accelerated)}")
    if o.refused:
        lines.append(f"refused ({len(o.refused)}): {', '.join(o.refused)}")
    return [*lines, f"the rest: {text.plain(o.fallback) or 'unknown'} [{text.plain(o.source)}]"]


def facts(target: Target) -> list[Row]:
    """Key, value and source of each figure that no model reads."""
    return [(k, number(k, f.value), f.source) for k, f in target.facts.items()]


def constants(target: Target) -> list[Row]:
    """Key, value and source of each constant of the cost model."""
    return [(k, number(k, v), target.sources.get(f"cost.{k}", "")) for k, v in target.cost.items()]


def footing(source: str) -> str:
    """What a source makes of its figure: "assumed" (nobody checked it on this chip), "fitted", or "documented or chosen"."""
    return "assumed" if _ASSUMED.search(source) else "fitted" if source.startswith("fitted") else "documented or chosen"
