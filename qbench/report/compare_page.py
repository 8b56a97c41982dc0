"""Writes compare.html: the verdict, scales side by side with a plot and the reasons, every plan, what each tensor and layer loses.

The page needs no network. Without scripts the tables still hold every number; names come from the user's files and are escaped.
"""

from __future__ import annotations

import html
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import qbench
from qbench.comparison import SCALES, Check, Comparison, Gap, Row, TensorRange, WeightSpread, ladders
from qbench.files import write_text
from qbench.report import compare_cells as cells
from qbench.report import compare_text as words
from qbench.report import text
from qbench.report.page import breakable, for_script, plotly_js

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

_NAMED = 4                    # names in a cell
_TOP = 12                     # rows shown at once; the rest is folded away
_SAID_ELSEWHERE = {"command", "fitted_on", "validated_on", "interval", "accuracy"}
# Blue, orange, green, violet, brown, teal, red, grey at like lightness; the symbols tell them apart without colour.
_COLOURS = ("#2f7de1", "#d9622b", "#3a8f5c", "#8468d4", "#9a6b3a", "#1f8f9a", "#c23b52", "#77756d")
_SYMBOLS = ("circle", "square", "diamond", "star", "triangle-up", "cross", "triangle-down", "hexagon")
_GLYPHS = {"triangle-up": "\u25b2", "cross": "\u271a", "triangle-down": "\u25bc", "hexagon": "\u2b22"}
"""Signs of the symbols that the page's script does not know; they stand in the names."""
_DODGE = 0.32
"""Width over which the calibrators of one scale are spread, in units of the distance between scales."""
_FAR = 4.0


def write_comparison(result: Comparison, path: Path) -> None:
    """One HTML file at `path`, written under a temporary name and renamed."""
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("qbench.report", "."), autoescape=True, undefined=jinja2.StrictUndefined,
        trim_blocks=True, lstrip_blocks=True)
    write_text(path, environment.get_template("compare.html.j2").render(context(result)))


def context(result: Comparison) -> dict[str, Any]:
    """What the template is given: texts, and lengths of bars in percent."""
    library, licence = plotly_js()
    rows = cells.ladder_rows(result)
    scale, p = words.scale_of(result), result.provenance
    return {
        "version": qbench.__version__, "asked": words.asked(result), "summary": words.summary(result), "partial": result.partial,
        "model": text.plain(result.model), "tiles": _tiles(result), "metric": text.plain(result.reference.accuracy.metric), "unit": scale.unit,
        "points": scale.points or "metric", "float": scale.number(result.reference.accuracy.value), "sample": result.sample,
        "scales": [s for s in SCALES if any(s in r.values for r in rows)],
        "steps": list(dict.fromkeys(s.label for r in rows for s in r.steps)), "ladders": rows, "several": len({r.precision for r in rows}) > 1,
        "figure": for_script(scale_figure(result).to_json()), "library": library, "library_licence": licence,
        "gaps": [_gap(g, result) for g in result.gaps], "unmeasured": [(text.plain(k), text.plain(v)) for k, v in result.unmeasured.items()],
        "rows": [{"cells": c, "worst": breakable(c.worst)} for c in cells.table_rows(result)], "notes": _notes(result.rows), "top": _TOP,
        "vendor": words.vendor_cells(result), "vendor_heads": words.VENDOR_HEADS, "vendor_basis": words.VENDOR, "vendor_remarks": words.vendor_remarks(result),
        "priced": not words.same_latency(result),
        "latency": words.latency_note(result), "basis": words.basis(result), "warnings": text.coded(result.warnings),
        "command": text.plain(p.get("command", "")), "wall": text.duration(result.wall_s),
        "plan": text.plain(result.best.plan) if result.best else "",
        "fitted": f"fitted on {text.plain(p.get('fitted_on', ''))}; validated on {text.plain(p.get('validated_on', 'nothing: unvalidated'))}",
        "provenance": [(text.plain(k), text.plain(v)) for k, v in p.items() if k not in _SAID_ELSEWHERE and not k.startswith("sample")],
        "about": [(text.plain(k.removeprefix("sample_")), text.plain(v)) for k, v in p.items() if k.startswith("sample")],
    }


def _tiles(result: Comparison) -> list[dict[str, str]]:
    """The best row's few numbers that decide."""
    row = result.best
    if row is None:
        return []
    scale, a, p = words.scale_of(result), row.accuracy, row.price
    return [
        {"label": "best", "value": text.plain(row.calibrator), "note": f"{row.scale}, {row.precision.upper()}"},
        {"label": text.plain(a.metric), "value": scale.value(a.value), "note": scale.interval(a.low, a.high)},
        {"label": "drop against float", "value": scale.drop(a.drop), "note": scale.interval(a.drop_low, a.drop_high)},
        {"label": "output SQNR", "value": words.db(a.sqnr_db), "note": f"worst layer {words.db(row.worst.sqnr_db)}" if row.worst else ""},
        {"label": "model file", "value": text.size(row.size_bytes), "note": f"float {text.size(result.reference.size_bytes)}"},
        {"label": "latency", "value": f"{text.significant(p.latency_ms)} ms",
         "note": text.interval(p.latency_ms, p.latency_ms_low, p.latency_ms_high)},
    ]


def _notes(rows: Sequence[Row]) -> list[str]:
    return [text.plain(f"{r.precision.upper()}, {r.scale}: {r.note}") for r in rows if r.note]


def _gap(gap: Gap, result: Comparison) -> dict[str, Any]:
    title, *lines = words.explained(gap, result)
    most = max((w.fine_db - w.coarse_db for w in gap.layers), default=0.0)
    return {"title": title, "lines": lines, "bits": gap.bits, "tensors": [_tensor(t, gap.bits) for t in gap.tensors],
            "layers": [_layer(w, most) for w in gap.layers], "checks": [_check(c, result) for c in gap.checks]}


def _tensor(t: TensorRange, bits: int) -> dict[str, Any]:
    return {"name": breakable(t.name), "range": f"{t.low:.4g} to {t.high:.4g}", "lost": f"{t.bits_lost:.1f}", "codes": f"{t.codes:.3g}",
            "width": _percent(t.bits_lost, bits), "coarse": words.db(t.coarse_db), "fine": words.db(t.fine_db),
            "readers": text.plain(", ".join(t.readers)), "macs": f"{100 * t.macs_share:.2g} %"}


def _layer(w: WeightSpread, most: float) -> dict[str, Any]:
    return {"name": breakable(w.kernel), "channels": w.channels, "spread": words.ratio(w.spread), "lost": f"{w.bits_lost:.1f}",
            "coarse": words.db(w.coarse_db), "fine": words.db(w.fine_db), "width": _percent(w.fine_db - w.coarse_db, most),
            "macs": f"{100 * w.macs_share:.2g} %"}


def _check(c: Check, result: Comparison) -> dict[str, Any]:
    more = f" and {len(c.names) - _NAMED} more" if len(c.names) > _NAMED else ""
    return {"what": ", ".join(text.plain(n) for n in c.names[:_NAMED]) + more, "count": len(c.names), "kind": _KINDS[c.kind], "won": words.won(c),
            "accuracy": words.scale_of(result).number(c.accuracy.value), "sqnr": words.db(c.accuracy.sqnr_db)}


_KINDS = {"widest": "widest tensors", "noisiest": "tensors of most noise", "weights": "layers per channel"}


def _percent(value: float, largest: float) -> str:
    """Length of a bar for CSS; only ever digits, a point and a percent sign."""
    return f"{max(0.0, min(1.0, value / largest if largest > 0 and math.isfinite(value) else 0.0)) * 100:.2f}%"


def scale_figure(result: Comparison) -> Figure:
    """Accuracy (up) of every calibrator at each scale (right), coarse to fine, with the paired interval of its drop; a dashed line is float."""
    import plotly.graph_objects as go

    scale, lines = words.scale_of(result), ladders(result.rows)
    scales = [s for s in SCALES if any(s in x.cells for x in lines)]
    several = len({x.precision for x in lines}) > 1
    figure = go.Figure()
    reference = text.finite(result.reference.accuracy.value)
    if reference is not None:
        figure.add_scatter(x=[-0.5, len(scales) - 0.5], y=[reference * scale.factor] * 2, mode="lines", name="float", hoverinfo="skip",
                           line={"dash": "dash", "width": 1.5, "color": "#77756d"})
    for number, ladder in enumerate(lines):
        rows = [r for r in ladder.cells.values() if text.finite(r.accuracy.value) is not None]
        shift = _DODGE * ((number + 0.5) / len(lines) - 0.5)
        label = f"{ladder.precision.upper()} {ladder.calibrator}" if several else ladder.calibrator
        colour, symbol = _COLOURS[number % len(_COLOURS)], _SYMBOLS[number % len(_SYMBOLS)]
        figure.add_scatter(
            x=[scales.index(r.scale) + shift for r in rows], y=[r.accuracy.value * scale.factor for r in rows], mode="lines+markers",
            name=html.escape(f"{_GLYPHS.get(symbol, '')} {text.plain(label)}".strip()),
            line={"width": 1.5, "color": colour, "dash": "solid" if number < len(_COLOURS) else "dot"},
            marker={"symbol": symbol, "size": 9, "color": colour, "line": {"width": 1, "color": "#52514e"}},
            error_y=_errors(rows, scale.factor), hovertext=[_hover(r, result) for r in rows], hoverinfo="text")
    values = [r.accuracy.value * scale.factor for r in result.rows if text.finite(r.accuracy.value) is not None]
    everything = _span([*values, *([reference * scale.factor] if reference is not None else [])])
    near = _near(values, reference * scale.factor if reference is not None else None)
    axis = {"gridcolor": "#e1e0d9", "linecolor": "#898781", "zeroline": False, "ticks": "outside", "tickcolor": "#898781"}
    figure.update_layout(
        template="none", paper_bgcolor="#ffffff", plot_bgcolor="#ffffff", height=460, margin={"l": 64, "r": 12, "t": 34, "b": 64},
        font={"family": "system-ui, sans-serif", "size": 13, "color": "#0b0b0b"}, hoverlabel={"align": "left"}, yaxis_range=everything,
        updatemenus=_views(everything, near))
    figure.update_xaxes(title={"text": "how far one scale reaches"}, tickvals=list(range(len(scales))), ticktext=scales,
                        range=[-0.5, len(scales) - 0.5], **axis)
    metric = html.escape(text.plain(result.reference.accuracy.metric))
    figure.update_yaxes(title={"text": f"{metric}, {scale.unit}" if scale.unit else metric}, **axis)
    return figure


def _errors(rows: Sequence[Row], factor: float) -> dict[str, Any]:
    """The paired interval of each drop around the accuracy; none where an end is missing."""
    above = [max(0.0, (r.accuracy.drop - r.accuracy.drop_low) * factor) if math.isfinite(r.accuracy.drop_low) else 0.0 for r in rows]
    below = [max(0.0, (r.accuracy.drop_high - r.accuracy.drop) * factor) if math.isfinite(r.accuracy.drop_high) else 0.0 for r in rows]
    return {"type": "data", "symmetric": False, "array": above, "arrayminus": below, "thickness": 1, "width": 3, "color": "#52514e"}


def _hover(row: Row, result: Comparison) -> str:
    c = cells.cells(row, result, "", "")
    lines = [f"{c.calibrator}, {c.scale}, {c.precision}", f"{row.accuracy.metric} {c.accuracy} {c.accuracy_interval}",
             f"drop {c.drop} {c.drop_interval}", f"output SQNR {c.sqnr}", f"worst layer {c.worst} {c.worst_db}",
             f"{c.size}, {c.latency} ms {c.latency_interval}"]
    return "<br>".join(html.escape(text.plain(line)) for line in lines)


def _span(values: Sequence[float]) -> list[float]:
    if not values:
        return [0.0, 1.0]
    low, high = min(values), max(values)
    pad = (high - low) * 0.08 or abs(high) * 0.05 or 1.0
    return [low - pad, high + pad]


def _near(values: Sequence[float], reference: float | None) -> list[float] | None:
    """The part around the best plans; None where all lie there."""
    if not values:
        return None
    top = max([*values, *([reference] if reference is not None else [])])
    gaps = sorted(top - v for v in values)
    reach = _FAR * max(gaps[len(gaps) // 3], gaps[0], 1e-9)
    shown = [v for v in values if top - v <= reach]
    return None if not shown or len(shown) == len(values) else _span([*shown, top])


def _views(everything: list[float], near: list[float] | None) -> list[dict[str, Any]]:
    if near is None:
        return []
    return [{"type": "buttons", "direction": "right", "x": 0, "xanchor": "left", "y": 1.02, "yanchor": "bottom", "showactive": True, "buttons": [
        {"label": "all plans", "method": "relayout", "args": [{"yaxis.range": everything}]},
        {"label": "near the best", "method": "relayout", "args": [{"yaxis.range": near}]}]}]
