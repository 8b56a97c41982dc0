"""The front as one plotly figure: accuracy against latency, energy as colour."""

from __future__ import annotations

import html
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import TYPE_CHECKING, Any

from qbench.report import text
from qbench.result import Candidate, SearchResult

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

# Blue over violet to orange at even lightness: told apart by colour-blind readers, and legible on light and dark pages alike.
_COLOURS = [[0.0, "#2f7de1"], [0.5, "#9a6fb0"], [1.0, "#ee7a30"]]
_EDGE = "#52514e"
_MS = {"ns": 1e-6, "us": 1e-3, "µs": 1e-3, "ms": 1.0, "s": 1e3}


@dataclass(frozen=True, slots=True)
class Limits:
    """The two budgets that the axes show, None where there is none: latency in ms, accuracy in the metric's own unit."""

    latency_ms: float | None
    accuracy: float | None


_NUMBER = r"(\d+(?:\.\d*)?(?:[eE][+-]?\d+)?)"


def limits(result: SearchResult) -> Limits:
    """Read back from the budgets' texts ("20ms", "30fps", "max-drop 0.005", "max-drop 0.5%rel"); other kinds draw no limit.

    The axis shows means: a limit on the worst case is drawn where the mean has to stay for it.
    """
    latency: list[float] = []
    floor: list[float] = []
    reference = text.finite(result.reference.accuracy.value)
    for budget in result.budgets:
        if found := re.search(_NUMBER + r"\s*(ns|us|µs|ms|s|fps)\b", budget):
            number, unit = float(found[1]), found[2]
            price = result.reference.price
            late = price.latency_ms_high / price.latency_ms if budget.endswith("worst-case") and price.latency_ms > 0.0 else 1.0
            latency.append((number * _MS[unit] if unit in _MS else 1e3 / number if number else math.inf) / late)
        elif reference is not None and (drop := text.allowed_drop(budget, reference)) is not None:
            floor.append(reference - drop)
    return Limits(min(latency, default=None), max(floor, default=None))


@dataclass(frozen=True, slots=True)
class _Group:
    """How one kind of candidate is drawn: `symbol` filled, or open for a plan that misses a budget."""

    name: str
    symbol: str
    size: int
    members: tuple[tuple[Candidate, str], ...]     # candidate, text beside its marker

    def symbols(self) -> list[str]:
        return [self.symbol if c.feasible or self.symbol.endswith("-open") else f"{self.symbol}-open" for c, _ in self.members]


def _drawable(c: Candidate) -> bool:
    return text.finite(c.accuracy.value) is not None and (text.finite(c.price.latency_ms) or 0.0) > 0.0


def _groups(result: SearchResult) -> list[_Group]:
    """Every drawable candidate once, in the most telling group it belongs to; the most telling group last, so on top."""
    chosen = text.chosen_label(result)
    kinds: list[tuple[str, str, int, list[tuple[Candidate, str]]]] = [
        (f"{chosen} plan", "star", 18, [(result.chosen, chosen)] if result.chosen else []),
        ("float reference", "diamond", 12, [(result.reference, "float")]),
        ("uniform plans", "square", 11, [(c, f"all {p.upper()}") for p, c in result.uniform.items()]),
        ("on the front", "circle", 10, [(c, "") for c in result.front]),
        ("other plans", "circle", 7, [(c, "") for c in result.candidates if c.feasible]),
        ("misses a budget", "x-thin-open", 8, [(c, "") for c in result.candidates]),
    ]
    seen: set[str] = set()
    groups: list[_Group] = []
    for name, symbol, size, members in kinds:
        new = {c.name: (c, label) for c, label in members if _drawable(c) and c.name not in seen}
        seen |= new.keys()
        if new:
            groups.append(_Group(name, symbol, size, tuple(new.values())))
    return groups[::-1]


def _hover(c: Candidate, result: SearchResult) -> str:
    """The plan as lines; names come from the user's files and are escaped, since plotly reads a few tags."""
    scale, a, p = text.scale_of(result), c.accuracy, c.price
    lines = [
        f"{c.name} ({c.origin})",
        f"{a.metric} {scale.value(a.value)} {scale.interval(a.low, a.high)}",
        f"drop {scale.drop(a.drop)} {scale.interval(a.drop_low, a.drop_high)}",
        f"latency {text.significant(p.latency_ms)} ms {text.interval(p.latency_ms, p.latency_ms_low, p.latency_ms_high)}",
        *([f"measured {text.measured_cell(c).value} ms on {c.measured.board}"] if c.measured else []),
        f"energy {text.significant(p.energy_mj)} mJ, power {text.significant(p.power_w)} W ({text.power_note(result)})",
        f"peak memory {text.size(p.peak_memory_bytes)}, {p.op_point}",
        f"{text.layers(c.layers)}",
        f"{c.calibrator}, {c.granularity}",
        f"meets the budget: {text.meets(c, result)}",
    ]
    return "<br>".join(html.escape(text.plain(line)) for line in lines)


def _staircase(result: SearchResult) -> tuple[list[float], list[float]]:
    """Latency and accuracy of the front members that no other beats in these two, fastest first."""
    best, xs, ys = -math.inf, [], []
    members = [c for c in result.front if _drawable(c)]
    for c in sorted(members, key=lambda c: (c.price.latency_ms, -c.accuracy.value)):
        if c.accuracy.value > best:
            best = c.accuracy.value
            xs.append(c.price.latency_ms)
            ys.append(best)
    return xs, ys


def _corners(xs: Sequence[float], ys: Sequence[float]) -> list[tuple[float, float]]:
    """Of the line through a staircase's points: level first, then up."""
    return [corner for i, (x, y) in enumerate(zip(xs, ys, strict=True)) for corner in ([(x, ys[i - 1])] if i else []) + [(x, y)]]


def _span(values: list[float], margin: float = 0.1) -> list[float]:
    low, high = min(values), max(values)
    pad = (high - low) * margin or abs(high) * 0.05 or 1.0
    return [low - pad, high + pad]


def _views(result: SearchResult, drawn: list[Candidate], limit: Limits, factor: float) -> tuple[dict[str, Any], dict[str, Any]]:
    """Axis ranges that show the plans worth a look, and those that show all. Equal unless outliers would squash the picture.

    A plan is an outlier when it lies 8 times as far from the best accuracy, or takes 2.5 times as long, as the middle plan. They
    are left out only where that doubles the room of the others.
    """
    xs, ys = [c.price.latency_ms for c in drawn], [c.accuracy.value * factor for c in drawn]
    top, slow = max(ys), 2.5 * median(xs)
    reach = max(8.0 * (top - median(ys)), 1e-9)
    near = [c for c in drawn if c is result.chosen or (c.accuracy.value * factor >= top - reach and c.price.latency_ms <= slow)]
    if not any(2.0 * (max(part) - min(part)) < max(whole) - min(whole) for part, whole in (
            ([c.price.latency_ms for c in near], xs), ([c.accuracy.value * factor for c in near], ys))):
        near = drawn
    x_extra = [limit.latency_ms] if limit.latency_ms and limit.latency_ms <= 2 * max(xs) else []
    y_extra = [limit.accuracy * factor] if limit.accuracy is not None and limit.accuracy * factor >= top - reach else []

    def ranges(shown: list[Candidate]) -> dict[str, Any]:
        return {"xaxis.range": _span([*(c.price.latency_ms for c in shown), *x_extra]),
                "yaxis.range": _span([*(c.accuracy.value * factor for c in shown), *y_extra])}

    return ranges(near), ranges(drawn)


def _scale_of_energy(drawn: list[Candidate]) -> dict[str, Any]:
    """plotly's colour scale over the energies that occur; empty when there are none."""
    energies = [e for c in drawn if (e := text.finite(c.price.energy_mj)) is not None]
    if not energies:
        return {}
    low, high = min(energies), max(energies)
    return {"colorscale": _COLOURS, "cmin": low, "cmax": high if high > low else low + 1.0}


def _colour_bar(colours: dict[str, Any]) -> dict[str, Any]:
    """A trace without points that carries the colour bar, so that hiding a kind of plan keeps it."""
    bar = {"title": {"text": "energy, mJ", "side": "right"}, "thickness": 12, "len": 1.0, "outlinewidth": 0}
    return {"type": "scatter", "mode": "markers", "x": [None], "y": [None], "showlegend": False, "hoverinfo": "skip",
            "marker": {"color": [colours["cmin"]], "showscale": True, "colorbar": bar, **colours}}


def _labels(groups: list[_Group], view: dict[str, Any], factor: float, line: Sequence[tuple[float, float]]) -> dict[str, tuple[str, str]]:
    """Name of a candidate -> text beside its mark and where it stands. Marks that would write over one another share one text.

    line   corners of the front's line, in the axes' units: texts keep off it and off the marks where they can
    """
    (x0, x1), (y0, y1) = view["xaxis.range"], view["yaxis.range"]

    def share(ms: float, value: float) -> tuple[float, float]:
        return (ms - x0) / (x1 - x0), (value - y0) / (y1 - y0)

    taken = [share(c.price.latency_ms, c.accuracy.value * factor) for g in groups for c, _ in g.members]
    for (xa, ya), (xb, yb) in pairwise([share(*corner) for corner in line]):
        taken += [(xa + (xb - xa) * i / 50, ya + (yb - ya) * i / 50) for i in range(51)]
    placed: list[tuple[float, float, list[str], str]] = []
    for group in groups[::-1]:
        for c, label in group.members:
            if not label:
                continue
            x, y = share(c.price.latency_ms, c.accuracy.value * factor)
            near = next((p for p in placed if abs(p[0] - x) < _APART[0] and abs(p[1] - y) < _APART[1]), None)
            if near is not None:
                near[2].append(label)
            else:
                placed.append((x, y, [label], c.name))
    return {name: ("<br>".join(html.escape(text.plain(label)) for label in labels), _spot(x, y, labels, taken)) for x, y, labels, name in placed}


_APART = (0.1, 0.07)
"""Shares of the plot's width and height within which two texts would touch."""
_LETTER, _LINE, _OFF = 0.013, 0.05, 0.02
"""Of the plot: width of a letter, height of a line, and from a mark's middle to its text; between those on a desk and on a phone."""
_SPOTS = {"top right": (1, 1), "top left": (-1, 1), "bottom right": (1, -1), "bottom left": (-1, -1), "top center": (0, 1), "bottom center": (0, -1)}


def _spot(x: float, y: float, labels: Sequence[str], taken: Sequence[tuple[float, float]]) -> str:
    """The place beside a mark where its text covers least: plotly's word. `x`, `y` and `taken` are shares of the plot.

    The chosen plan's bars run through it in both directions, so its text stands at a corner.
    """
    wide, high = _LETTER * max(map(len, labels)), _LINE * len(labels)

    def covered(spot: tuple[int, int]) -> float:
        left, low = x + (spot[0] - 1) * wide / 2, y + _OFF if spot[1] > 0 else y - _OFF - high
        beyond = max(0.0, -left, left + wide - 1.0) + max(0.0, -low, low + high - 1.0)
        return sum(left <= u <= left + wide and low <= v <= low + high for u, v in taken) + 1000.0 * beyond

    corner = labels[0] in ("chosen", "nearest")
    return min((name for name, at in _SPOTS.items() if at[0] or not corner), key=lambda name: covered(_SPOTS[name]))


def _trace(group: _Group, result: SearchResult, factor: float, colours: dict[str, Any], labels: dict[str, tuple[str, str]]) -> dict[str, Any]:
    members = [c for c, _ in group.members]
    energies = [text.finite(c.price.energy_mj) for c in members]
    body: dict[str, Any] = {
        "type": "scatter", "name": group.name, "mode": "markers+text",
        "x": [c.price.latency_ms for c in members], "y": [c.accuracy.value * factor for c in members],
        "text": [labels.get(c.name, ("", ""))[0] for c in members],
        "textposition": [labels.get(c.name, ("", "top center"))[1] for c in members], "cliponaxis": False,
        "hovertext": [_hover(c, result) for c in members], "hoverinfo": "text",
        "marker": {"symbol": group.symbols(), "size": group.size, "color": [_EDGE if e is None else e for e in energies] if colours else _EDGE, **colours,
                   "line": {"width": 2 if group.symbol.endswith("-open") else 1, "color": _EDGE}},
    }
    if group.symbol == "star":
        a, p = members[0].accuracy, members[0].price
        body["error_y"] = _error((a.drop - a.drop_low) * factor, (a.drop_high - a.drop) * factor)
        body["error_x"] = _error(p.latency_ms_high - p.latency_ms, p.latency_ms - p.latency_ms_low)
    return body


def _error(above: float, below: float) -> dict[str, Any]:
    """An interval as plotly's error bar; hidden where an end is missing."""
    if not (math.isfinite(above) and math.isfinite(below)):
        return {"visible": False}
    return {"type": "data", "symmetric": False, "array": [max(above, 0.0)], "arrayminus": [max(below, 0.0)],
            "thickness": 1, "width": 5, "color": _EDGE}


def _region(limit: Limits, everything: dict[str, Any], factor: float) -> list[dict[str, Any]]:
    """The part of the plane that meets the drawn budgets, as one shaded rectangle with a dashed edge."""
    if limit.latency_ms is None and limit.accuracy is None:
        return []
    (x0, x1), (y0, y1) = everything["xaxis.range"], everything["yaxis.range"]
    wide, high = (x1 - x0), (y1 - y0)
    return [{"type": "rect", "name": "feasible", "layer": "below", "x0": min(0.0, x0) - 5 * wide,
             "x1": limit.latency_ms if limit.latency_ms is not None else x1 + 5 * wide,
             "y0": limit.accuracy * factor if limit.accuracy is not None else y0 - 5 * high, "y1": y1 + 5 * high,
             "fillcolor": "rgba(46,125,50,0.10)", "line": {"dash": "dash", "width": 1.5, "color": "#2e7d32"}}]


def _buttons(near: dict[str, Any], everything: dict[str, Any]) -> list[dict[str, Any]]:
    if near == everything:
        return []
    return [{"type": "buttons", "direction": "right", "x": 0, "xanchor": "left", "y": 1.02, "yanchor": "bottom", "showactive": True,
             "pad": {"t": 2, "r": 2}, "buttons": [{"label": "near the front", "method": "relayout", "args": [near]},
                                       {"label": "all plans", "method": "relayout", "args": [everything]}]}]


def front_figure(result: SearchResult) -> Figure:
    """Accuracy (up) against predicted latency (right) of everything evaluated; energy is the colour, hovering shows the plan.

    Symbols tell the kinds apart without colour. The shaded part meets the latency budget and the largest drop. Plans without a
    finite accuracy or latency are left out, and the title of the horizontal axis counts them. The chosen plan carries two intervals:
    that of its latency, and the paired one of its drop, which is what comparing plans needs.
    """
    import plotly.graph_objects as go

    scale, limit, groups = text.scale_of(result), limits(result), _groups(result)
    drawn = [c for g in groups for c, _ in g.members]
    every = {c.name: c for c in (result.reference, *result.uniform.values(), *result.candidates, *result.front)}
    missing = sum(not _drawable(c) for c in every.values())
    figure = go.Figure()
    if drawn:
        near, everything = _views(result, drawn, limit, scale.factor)
        xs, ys = _staircase(result)
        figure.add_scatter(x=xs, y=[y * scale.factor for y in ys], mode="lines", line={"shape": "hv", "width": 3, "color": "rgba(47,125,225,0.45)"},
                           hoverinfo="skip", name="best accuracy within a latency")
        colours, labels = _scale_of_energy(drawn), _labels(groups, near, scale.factor, _corners(xs, [y * scale.factor for y in ys]))
        figure.add_traces([*([_colour_bar(colours)] if colours else []), *(_trace(g, result, scale.factor, colours, labels) for g in groups)])
        figure.update_layout(shapes=_region(limit, everything, scale.factor), updatemenus=_buttons(near, everything),
                             xaxis_range=near["xaxis.range"], yaxis_range=near["yaxis.range"])
    _label(figure, result, scale, missing)
    return figure


def _label(figure: Figure, result: SearchResult, scale: text.Scale, missing: int) -> None:
    metric = html.escape(text.plain(result.reference.accuracy.metric))
    left_out = f"<br>{missing} not drawn: numbers missing" if missing else ""
    axis = {"gridcolor": "#e1e0d9", "linecolor": "#898781", "zeroline": False, "ticks": "outside", "tickcolor": "#898781"}
    figure.update_layout(
        template="none", paper_bgcolor="#ffffff", plot_bgcolor="#ffffff", height=520, margin={"l": 64, "r": 12, "t": 48, "b": 120},
        font={"family": "system-ui, sans-serif", "size": 13, "color": "#0b0b0b"}, hoverlabel={"align": "left"},
        legend={"orientation": "h", "y": -0.2, "yanchor": "top", "x": 0})
    figure.update_xaxes(title={"text": f"predicted latency, ms{left_out}"}, **axis)
    figure.update_yaxes(title={"text": f"{metric}, {scale.unit}" if scale.unit else metric, "standoff": 12}, automargin=True, **axis)
