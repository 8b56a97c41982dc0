"""Writes report.html: every number is prepared here as text, the templates only place it.

The page needs no network. plotly.js is inlined once, compressed (2.0 MB instead of 4.8 MB), and unpacked by the browser; without
scripts the tables still hold every number. Names come from the user's files and are escaped by the template engine.
"""

from __future__ import annotations

import base64
import gzip
import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import qbench
from qbench.coverage import Coverage, coverage_from_dict
from qbench.files import write_text
from qbench.report import text
from qbench.report.coverage_text import coverage_line, reasons
from qbench.report.coverage_text import name as operator
from qbench.report.front import front_figure
from qbench.result import Candidate, SearchResult

_TOP = 15                     # rows shown at once; the rest is folded away
_SAID_ELSEWHERE = {"command", "power", "fitted_on", "validated_on", "interval"}


def write_report(result: SearchResult, kernels: Sequence[Mapping[str, Any]], path: Path, plan_strip: Sequence[Mapping[str, Any]],
                 memory: Mapping[str, Any] | None = None, stored: Sequence[Mapping[str, Any]] = ()) -> None:
    """One HTML file at `path`.

    kernels     chosen plan, one row a kernel in execution order: name, op, unit, precision, ms, bound, dram_bytes, placement, mj
    plan_strip  chosen plan, one row a unit in execution order: unit, precision, ms, drop, quantizable, reason
    memory      the chosen plan's memory, as `qbench cost --json` has it; stored   its worst activations, of `qbench.workbench.panels`
    Of `result.provenance` the keys command, power, fitted_on, validated_on and interval have their place; keys that begin with
    "sample_" are printed with the sample's caveats, all others in the table of provenance.
    """
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("qbench.report", "."), autoescape=True, undefined=jinja2.StrictUndefined,
        trim_blocks=True, lstrip_blocks=True)
    write_text(path, environment.get_template("report.html.j2").render(context(result, kernels, plan_strip, memory, stored)))


def context(result: SearchResult, kernels: Sequence[Mapping[str, Any]], plan_strip: Sequence[Mapping[str, Any]],
            memory: Mapping[str, Any] | None = None, stored: Sequence[Mapping[str, Any]] = ()) -> dict[str, Any]:
    """What the template is given: texts, and lengths of bars in percent."""
    from qbench.report import panels

    library, licence = plotly_js()
    figure = front_figure(result)
    return {
        "result": result, "version": qbench.__version__,
        "asked": text.asked(result), "found": text.found(result), "verdict": text.verdict(result), "basis": text.basis(result),
        "effort": _effort(result), "warnings": text.coded(result.warnings), "verified": text.verified(result), "power_note": text.power_note(result), "tiles": _tiles(result),
        "preset": _preset(result), "classes": text.by_class(result),
        "plans": [label for label, _ in text.side_by_side(result)], "comparison": text.comparison(result),
        "figure": for_script(figure.to_json()) if figure.data else "", "library": library, "library_licence": licence,
        "front": [_candidate(c, result) for c in _front_rows(result)],
        "strip": _strip(plan_strip, result), "bounds": _bounds(kernels), "kernels": _kernels(kernels),
        "coverage": coverage_rows(coverage_from_dict(result.coverage)) if result.coverage else None,
        "sensitivity": _sensitivity(result), "top": _TOP,
        "memory": panels.memory(memory, len(kernels)), "measured": panels.measured(result), "calibrators": panels.calibrators(result),
        "histograms": panels.histograms(stored), "histograms_open": panels.OPEN,
        "command": text.plain(result.provenance.get("command", "")),
        "provenance": _entries(result, sample=False), "sample": _entries(result, sample=True),
    }


def _preset(result: SearchResult) -> dict[str, Any] | None:
    """Of a search under a preset: its name, title and the lines without their numbers, which the page's list makes."""
    if not result.preset:
        return None
    return {"name": text.plain(result.preset["name"]), "title": text.plain(result.preset["title"]), "story": text.plain(result.preset["story"]),
            "lines": [text.plain(line).partition(". ")[2] for line in result.preset["derivation"]]}


@lru_cache(maxsize=1)
def plotly_js() -> tuple[str, str]:
    """plotly.js as base64 of gzip (the same bytes every time), and the licence notice at its head."""
    from plotly.offline import get_plotlyjs

    source = get_plotlyjs()
    notice = source[:source.index("*/")] if source.startswith("/*") else ""
    lines = [line.strip("/* \t") for line in notice.splitlines()]
    packed = gzip.compress(source.encode(), compresslevel=9, mtime=0)
    return base64.b64encode(packed).decode(), ". ".join(line for line in lines if line)


def for_script(data: str) -> str:
    """JSON that may stand inside a script element whatever strings it holds."""
    return data.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def _effort(result: SearchResult) -> str:
    parts = [f"{result.evaluated} plans evaluated"]
    if text.finite(result.wall_s) is not None:
        parts.append(f"in {text.duration(result.wall_s)}")
    if text.finite(result.float_pass_equivalents) is not None:
        parts.append(f"with the work of {text.significant(result.float_pass_equivalents)} passes of the float model")
    return " ".join(parts)


def _tiles(result: SearchResult) -> list[dict[str, str]]:
    """The chosen plan's few numbers that decide."""
    c = result.chosen
    if c is None:
        return []
    scale, a, p = text.scale_of(result), c.accuracy, c.price
    return [
        {"label": text.plain(a.metric), "value": scale.value(a.value), "note": scale.interval(a.low, a.high)},
        {"label": "drop against float", "value": scale.drop(a.drop), "note": scale.interval(a.drop_low, a.drop_high)},
        {"label": "latency", "value": f"{text.significant(p.latency_ms)} ms",
         "note": text.interval(p.latency_ms, p.latency_ms_low, p.latency_ms_high)},
        *([{"label": "measured", "value": f"{text.measured_cell(c).value} ms", "note": text.plain(c.measured.board)}] if c.measured else []),
        {"label": "energy", "value": f"{text.significant(p.energy_mj)} mJ", "note": text.power_note(result)},
        {"label": "peak memory", "value": text.size(p.peak_memory_bytes), "note": ""},
    ]


def _front_rows(result: SearchResult) -> list[Candidate]:
    """Front, then every other candidate, fastest first within both."""
    def by_latency(c: Candidate) -> float:
        latency = text.finite(c.price.latency_ms)
        return float("inf") if latency is None else latency

    front = {c.name for c in result.front}
    everything = {c.name: c for c in (result.reference, *result.uniform.values(), *result.candidates, *result.front)}
    return sorted(everything.values(), key=lambda c: (c.name not in front, by_latency(c)))


def _candidate(c: Candidate, result: SearchResult) -> dict[str, str]:
    scale, a, p = text.scale_of(result), c.accuracy, c.price
    return {
        "name": text.plain(c.name), "origin": text.plain(c.origin), "front": "yes" if c.name in {f.name for f in result.front} else "",
        "chosen": text.chosen_label(result) if result.chosen and c.name == result.chosen.name else "",
        "accuracy": f"{scale.number(a.value)} {scale.interval(a.low, a.high)}", "drop": scale.number(a.drop),
        "latency": f"{text.significant(p.latency_ms)} {text.interval(p.latency_ms, p.latency_ms_low, p.latency_ms_high)}"
                   + (f", measured {text.measured_cell(c).value}" if c.measured else ""),
        "energy": text.significant(p.energy_mj), "memory": text.size(p.peak_memory_bytes), "op_point": text.plain(p.op_point),
        "layers": text.layers(c.layers), "how": text.plain(f"{c.calibrator}, {c.granularity}"), "meets": text.meets(c, result),
    }


def breakable(name: object) -> list[str]:
    """A name in pieces after which a line may break: "/block1/", "conv" for "/block1/conv"."""
    return re.split(r"(?<=[/_.+:])(?=[^/_.+:])", text.plain(name))


def _root(x: float) -> float:
    """Signed square root: small drops stay visible beside one that is a hundred times as large."""
    return math.copysign(math.sqrt(abs(x)), x)


def _percent(value: float | None, largest: float) -> str:
    """Length of a bar for CSS; only ever digits, a point and a percent sign."""
    return f"{max(0.0, min(1.0, (value or 0.0) / largest if largest > 0 else 0.0)) * 100:.2f}%"


def precision_mark(name: object) -> dict[str, str]:
    """Text, short text and style class of a precision; an unknown one is drawn plain."""
    known = {"int8": "8", "int16": "16", "fp16": "F16", "fp32": "F32"}
    low = str(name).lower()
    return {"label": text.plain(name).upper(), "short": known.get(low, "?"), "css": low if low in known else "other"}


def _strip(rows: Sequence[Mapping[str, Any]], result: SearchResult) -> dict[str, Any]:
    """One column a layer: time upward, precision in the middle, drop downward."""
    scale = text.scale_of(result)
    slowest = max((text.row_number(r, "ms") or 0.0 for r in rows), default=0.0)
    worst = max((abs(text.row_number(r, "drop") or 0.0) for r in rows), default=0.0)
    columns = []
    for i, row in enumerate(rows, start=1):
        drop = text.row_number(row, "drop")
        fixed = not row.get("quantizable", True)
        columns.append({
            "unit": text.plain(row.get("unit", "")), "parts": breakable(row.get("unit", "")), "precision": precision_mark(row.get("precision", "?")),
            "ms": text.significant(row.get("ms")), "drop": scale.number(drop), "fixed": fixed,
            "reason": text.plain(row.get("reason") or ""), "index": i,
            "height": _percent(text.row_number(row, "ms"), slowest), "depth": _percent(_root(abs(drop or 0.0)), _root(worst)), "gain": (drop or 0.0) < 0,
        })
    return {"columns": columns, "slowest": text.significant(slowest), "worst": scale.drop(worst), "points": scale.points or "metric",
            "summary": text.layers(Counter(text.plain(r.get("precision", "?")).lower() for r in rows)),
            "legend": list({p["css"]: p for p in (precision_mark(r.get("precision", "?")) for r in rows)}.values())}


def _bounds(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Total time by what binds it, longest first; `css` numbers the pattern."""
    totals: dict[str, float] = {}
    for row in rows:
        totals[str(row.get("bound", "?"))] = totals.get(str(row.get("bound", "?")), 0.0) + (text.row_number(row, "ms") or 0.0)
    whole = sum(totals.values())
    ordered = sorted(totals.items(), key=lambda i: -i[1])
    return {"total": text.significant(whole), "parts": [
        {"label": text.plain(name), "ms": text.significant(ms), "share": _percent(ms, whole), "css": i % 5,
         "percent": f"{100 * ms / whole:.0f} %" if whole else text.MISSING} for i, (name, ms) in enumerate(ordered)]}


def _kernels(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Slowest first. The bar's class is that of the kernel's bound in `_bounds`."""
    slowest = max((text.row_number(r, "ms") or 0.0 for r in rows), default=0.0)
    css = {part["label"]: part["css"] for part in _bounds(rows)["parts"]}
    ordered = sorted(rows, key=lambda r: -(text.row_number(r, "ms") or 0.0))
    return [{
        "name": breakable(r.get("name", "")), "op": breakable(r.get("op", "")), "precision": precision_mark(r.get("precision", "?")),
        "ms": text.significant(r.get("ms")), "bound": text.plain(r.get("bound", "?")), "css": css[text.plain(r.get("bound", "?"))],
        "dram": text.size(r.get("dram_bytes")), "placement": text.plain(r.get("placement", "")), "mj": text.significant(r.get("mj")),
        "width": _percent(text.row_number(r, "ms"), slowest)} for r in ordered]


def coverage_rows(found: Coverage) -> dict[str, Any]:
    """The line that sums it up, the reasons with how many operators each holds, and every operator."""
    return {"line": text.plain(coverage_line(found)),
            "reasons": [(text.plain(why), text.some(names, _TOP), len(names)) for why, names in reasons(found).items()],
            "rows": [{"name": breakable(operator(r)), "op": text.plain(r.op), "precision": precision_mark(r.precision),
                      "macs": f"{r.macs:,}" if r.macs else "", "reason": text.plain(r.reason)} for r in found.rows]}


def _sensitivity(result: SearchResult) -> dict[str, Any]:
    """Largest drop first; `left`, `width` and `dot` place the interval and its middle on one common axis that holds zero."""
    scale = text.scale_of(result)
    rows = sorted(result.sensitivity, key=lambda r: -(text.row_number(r, "drop") or 0.0))
    ends = [v for r in rows for k in ("drop", "drop_low", "drop_high") if (v := text.row_number(r, k)) is not None]
    low, high = min([0.0, *ends]), max([0.0, *ends])

    def at(x: float | None) -> str:
        return _percent(_root(x or 0.0) - _root(low), _root(high) - _root(low))

    return {"points": scale.points or "metric", "zero": at(0.0), "low": scale.number(low), "high": scale.number(high), "rows": [{
        "unit": breakable(r.get("unit", "")), "precision": precision_mark(r.get("precision", "?")), "drop": scale.number(r.get("drop")),
        "interval": scale.interval(r.get("drop_low"), r.get("drop_high")), "saved": text.significant(r.get("ms_saved")),
        "left": at(text.row_number(r, "drop_low")), "dot": at(text.row_number(r, "drop")),
        "width": _percent(_root(text.row_number(r, "drop_high") or 0.0) - _root(text.row_number(r, "drop_low") or 0.0),
                          _root(high) - _root(low)),
    } for r in rows]}


def _entries(result: SearchResult, sample: bool) -> list[tuple[str, str]]:
    """Provenance as label and text: what concerns the sample, or the rest."""
    return [(key.removeprefix("sample_").replace("_", " ") or "sample", str(value)) for key, value in result.provenance.items()
            if key.startswith("sample") is sample and key not in _SAID_ELSEWHERE]


