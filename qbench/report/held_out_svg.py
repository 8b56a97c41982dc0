"""A scatter of published against predicted latency, both axes logarithmic, as one self-contained SVG."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape
from math import ceil, floor, log10

from qbench.report import text
from qbench.report.held_out import Errors, HeldOut, error, is_inside, precisions

WIDTH, HEIGHT = 640.0, 600.0
LEFT, RIGHT, TOP, BOTTOM = 72.0, 16.0, 64.0, 56.0
NAMED = 5
"""Rows outside the interval that get their name beside the mark, the farthest first."""
MARGIN = 1.25                  # factor of room beyond the outermost rows
COLOURS = {"int8": "#2f7de1", "int16": "#8a4fb0", "fp16": "#e0661c", "fp32": "#3f8f5b"}
STYLE = """text { font: 12px system-ui, sans-serif; fill: #222; } .title { font-size: 14px; font-weight: bold; } .dim { fill: #666; }
.grid { stroke: #e4e4e4; } .frame { fill: none; stroke: #999; } .band { fill: #999; fill-opacity: 0.18; } .equal { stroke: #666; stroke-dasharray: 5 4; }
.name { font-size: 11px; paint-order: stroke; stroke: #fff; stroke-width: 3px; }"""


class Axes:
    """Milliseconds to points of the drawing, the same span on both axes."""

    def __init__(self, rows: Sequence[HeldOut]) -> None:
        every = [v for r in rows for v in (r.measured_ms, r.predicted_ms)]
        self.low, self.high = min(every) / MARGIN, max(every) * MARGIN

    def share(self, ms: float) -> float:
        return log10(ms / self.low) / log10(self.high / self.low)

    def x(self, ms: float) -> float:
        return LEFT + self.share(ms) * (WIDTH - LEFT - RIGHT)

    def y(self, ms: float) -> float:
        return HEIGHT - BOTTOM - self.share(ms) * (HEIGHT - TOP - BOTTOM)

    def ticks(self) -> list[float]:
        """1, 2 and 5 of every decade, fewer where that were many."""
        decades = range(floor(log10(self.low)), ceil(log10(self.high)) + 1)
        for steps in ((1, 2, 5), (1, 3), (1,)):
            found = [s * 10.0**d for d in decades for s in steps if self.low <= s * 10.0**d <= self.high]
            if len(found) <= 10:
                break
        return found


def svg(rows: Sequence[HeldOut], low: float, high: float, title: str) -> str:
    """The drawing. low, high   80 % interval as factors on the prediction; rows   at least one"""
    axes = Axes(rows)
    parts = [*_frame(axes, title), _band(axes, low, high), *(m for r in rows for m in _mark(axes, r)), *_names(axes, rows), *_legend(rows, low, high)]
    body = "\n".join(parts)
    return (f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH:g}" height="{HEIGHT:g}" viewBox="0 0 {WIDTH:g} {HEIGHT:g}" role="img">\n'
            f"<title>{escape(title)}</title>\n<style>{STYLE}</style>\n"
            f'<rect width="{WIDTH:g}" height="{HEIGHT:g}" fill="#fff"/>\n{body}\n</svg>\n')


def _frame(axes: Axes, title: str) -> Iterator[str]:
    right, bottom = WIDTH - RIGHT, HEIGHT - BOTTOM
    for ms in axes.ticks():
        x, y = axes.x(ms), axes.y(ms)
        yield f'<path class="grid" d="M{x:.1f} {TOP:g}V{bottom:g}M{LEFT:g} {y:.1f}H{right:g}"/>'
        yield f'<text x="{x:.1f}" y="{bottom + 18:g}" text-anchor="middle">{ms:g}</text><text x="{LEFT - 8:g}" y="{y + 4:.1f}" text-anchor="end">{ms:g}</text>'
    yield f'<rect class="frame" x="{LEFT:g}" y="{TOP:g}" width="{right - LEFT:g}" height="{bottom - TOP:g}"/>'
    yield f'<text class="title" x="{LEFT:g}" y="22">{escape(title)}</text>'
    yield f'<text x="{(LEFT + right) / 2:g}" y="{HEIGHT - 14:g}" text-anchor="middle">predicted, ms (its design left out of the fit)</text>'
    yield f'<text transform="translate(18 {(TOP + bottom) / 2:g}) rotate(-90)" text-anchor="middle">published, ms</text>'


def _band(axes: Axes, low: float, high: float) -> str:
    """Where the published latency lies in 80 of 100 cases, and the line of a perfect prediction."""
    ends = ((axes.low, low), (axes.high, low), (axes.high, high), (axes.low, high))
    points = " ".join(f"{axes.x(ms):.1f},{axes.y(ms * factor):.1f}" for ms, factor in ends)
    left, right = f"{axes.x(axes.low):.1f} {axes.y(axes.low):.1f}", f"{axes.x(axes.high):.1f} {axes.y(axes.high):.1f}"
    return (f'<clipPath id="inside"><rect x="{LEFT:g}" y="{TOP:g}" width="{WIDTH - LEFT - RIGHT:g}" height="{HEIGHT - TOP - BOTTOM:g}"/></clipPath>\n'
            f'<g clip-path="url(#inside)"><polygon class="band" points="{points}"/><path class="equal" d="M{left}L{right}"/></g>')


def _shape(precision: str, x: float, y: float) -> str:
    """A circle, square, triangle or diamond: precisions differ without their colour too."""
    at = f'fill="{COLOURS[precision]}" fill-opacity="0.8" stroke="#fff" stroke-width="0.7"'
    if precision == "int8":
        return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4.5" {at}>'
    path = {"int16": "m-4-4h8v8h-8z", "fp16": "m0-5.5l5 9h-10z", "fp32": "m0-5.5l5.5 5.5l-5.5 5.5l-5.5-5.5z"}[precision]
    return f'<path d="M{x:.1f} {y:.1f}{path}" {at}>'


def _mark(axes: Axes, row: HeldOut) -> Iterator[str]:
    shape = _shape(row.precision, axes.x(row.predicted_ms), axes.y(row.measured_ms))
    tag = shape[1:].split()[0]
    yield (f"{shape}<title>{escape(text.plain(row.network))} {row.precision}: published {row.measured_ms:g} ms, predicted {row.predicted_ms:g} ms "
           f"({error(row):+.0%})</title></{tag}>")


def _names(axes: Axes, rows: Sequence[HeldOut]) -> Iterator[str]:
    """Names of the rows farthest outside, each where it covers no other name."""
    far = sorted((r for r in rows if not is_inside(r)), key=lambda r: (-abs(log10(r.predicted_ms / r.measured_ms)), r.network, r.precision))
    taken: list[tuple[float, float, float]] = []           # left, right, height
    for row in far[:NAMED]:
        name, x, y = f"{text.plain(row.network)} {row.precision}", axes.x(row.predicted_ms), axes.y(row.measured_ms)
        width, above = 6.2 * len(name), row.measured_ms > row.predicted_ms
        before = (above and x - 8 - width > LEFT) or x + 8 + width > WIDTH - RIGHT       # away from the band, where the other marks are
        left = x - 8 - width if before else x + 8
        if any(abs(y - b) < 12 and left < right and begin < left + width for begin, right, b in taken):
            continue
        taken.append((left, left + width, y))
        yield f'<text class="name" x="{x - 8 if before else x + 8:.1f}" y="{y + 4:.1f}" text-anchor="{"end" if before else "start"}">{escape(name)}</text>'


def _legend(rows: Sequence[HeldOut], low: float, high: float) -> Iterator[str]:
    y = TOP + 18
    for precision in precisions(rows):
        e = Errors.of([r for r in rows if r.precision == precision])
        shape = _shape(precision, LEFT + 16, y - 4)
        yield f"{shape[:-1]}/>"
        yield f'<text x="{LEFT + 28:g}" y="{y:g}">{precision.upper()}: {e.rows} rows, median error {e.median:.0%}, {e.inside} inside</text>'
        y += 18
    whole = Errors.of(rows)
    yield f'<text class="dim" x="{LEFT:g}" y="42">band: 80 % interval, x {low:.4g} to x {high:.4g} of the prediction; {whole.inside} of {whole.rows} rows inside</text>'
