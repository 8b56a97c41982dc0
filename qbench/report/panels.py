"""Panels of the report beside front, plan and kernels: memory over time, predicted against measured, calibrators, activations and their codes.

All are drawn as SVG or bars in the template, so they need no script, print, and take their colours from the page.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from qbench.report import text
from qbench.report.cost_page import buffers
from qbench.report.cost_terminal import arena_line
from qbench.result import Candidate, SearchResult

OPEN = 3
"""Histograms shown at once; the rest is folded away."""
LARGEST = 20
"""Rows of the table of buffers."""
WIDTH, HEIGHT = 960.0, 100.0


def memory(plan: Mapping[str, Any] | None, kernels: int) -> dict[str, Any] | None:
    """Rectangles of the memory plan (`qbench.report.cost_page.buffers`) and its largest buffers as rows; None where a search stored none."""
    if not plan or not plan["buffers"]:
        return None
    largest = sorted(plan["buffers"], key=lambda b: -b["size"])
    rows = [(text.plain(b["name"]), text.size(b["size"]), f"{b['first'] + 1} to {b['last'] + 1}", f"{b['offset']:,}") for b in largest[:LARGEST]]
    return {"line": arena_line(plan).removeprefix("memory: "), "buffers": buffers(plan, kernels), "rows": rows, "left": len(largest) - len(rows)}


def measured(result: SearchResult) -> dict[str, Any] | None:
    """One row a plan that a board measured, on a common axis from zero; None where none was."""
    found = [c for c in result.candidates if c.measured is not None]
    longest = max((v for c in found if c.measured for v in (c.measured.latency_ms, text.finite(c.price.latency_ms_high) or 0.0)), default=0.0)
    return {"longest": text.significant(longest), "rows": [_measured(c, longest) for c in sorted(found, key=lambda c: c.price.latency_ms)]} if found else None


def _measured(c: Candidate, longest: float) -> dict[str, str]:
    m, p = c.measured, c.price
    assert m is not None
    inside = p.latency_ms_low <= m.latency_ms <= p.latency_ms_high
    return {"name": text.plain(c.name), "board": text.plain(m.board), "predicted": f"{text.significant(p.latency_ms)} {text.interval(p.latency_ms, p.latency_ms_low, p.latency_ms_high)}",
            "measured": f"{text.measured_cell(c).value} {text.measured_cell(c).interval}", "ratio": f"{p.latency_ms / m.latency_ms:.2f}",
            "inside": "yes" if inside else "no", "left": _percent(p.latency_ms_low / longest), "width": _percent((p.latency_ms_high - p.latency_ms_low) / longest),
            "dot": _percent(m.latency_ms / longest)}


def calibrators(result: SearchResult) -> dict[str, Any] | None:
    """How the calibrators did with every layer at the narrowest uniform precision, and at their best; None where only one was tried.

    A calibrator whose uniform plan was not evaluated on the whole set has no bar.
    """
    names = list(dict.fromkeys(c.calibrator for c in result.candidates if c.calibrator))
    if len(names) < 2:
        return None
    scale = text.scale_of(result)
    narrow = next((p for p in ("int8", "int16", "fp16") if p in result.uniform), "int8")
    same = {n: _best([c for c in result.candidates if c.calibrator == n and set(c.layers) == {narrow}]) for n in names}
    ends = [v for c in same.values() if c for v in (c.accuracy.drop, c.accuracy.drop_low, c.accuracy.drop_high) if text.finite(v) is not None]
    low, high = min([0.0, *ends]), max([0.0, *ends])
    span = high - low or 1.0
    rows = []
    for name in sorted(names, key=lambda n: c.accuracy.drop if (c := same[n]) else math.inf):
        c, members = same[name], [c for c in result.candidates if c.calibrator == name]
        best = _best(members)
        rows.append({
            "name": text.plain(name), "plans": str(len(members)), "best": scale.value(best.accuracy.value) if best else text.MISSING, "best_plan": text.plain(best.name) if best else "",
            "value": scale.value(c.accuracy.value) if c else "not evaluated", "drop": scale.number(c.accuracy.drop) if c else "",
            "interval": scale.interval(c.accuracy.drop_low, c.accuracy.drop_high) if c else "",
            "bar": {"left": _percent((c.accuracy.drop_low - low) / span), "width": _percent((c.accuracy.drop_high - c.accuracy.drop_low) / span),
                    "dot": _percent((c.accuracy.drop - low) / span)} if c and scale.interval(c.accuracy.drop_low, c.accuracy.drop_high) else None})
    return {"precision": narrow.upper(), "points": scale.points or "metric", "low": scale.number(low), "high": scale.number(high), "zero": _percent(-low / span), "rows": rows}


def _best(members: Sequence[Candidate]) -> Candidate | None:
    return max((c for c in members if text.finite(c.accuracy.value) is not None), key=lambda c: c.accuracy.value, default=None)


def histograms(stored: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Bars on a logarithmic scale with the ends of the codes, and a row for each calibrator. stored   of `qbench.workbench.panels`"""
    return [_histogram(s) for s in stored]


def _histogram(s: Mapping[str, Any]) -> dict[str, Any]:
    low, high, counts = s["histogram"]["low"], s["histogram"]["high"], s["histogram"]["counts"]
    step, top = (high - low) / len(counts) or 1.0, math.log10(max(max(counts), 1)) + 0.3
    bars = []
    for i, n in enumerate(counts):
        a, b = low + i * step, low + (i + 1) * step
        if n:
            tall = (math.log10(n) + 0.3) / top * HEIGHT
            outside = b <= s["low"] or a >= s["high"]
            bars.append({"x": f"{i * WIDTH / len(counts):.1f}", "width": f"{WIDTH / len(counts) - 0.6:.1f}", "y": f"{HEIGHT - tall:.1f}", "height": f"{tall:.1f}",
                         "css": "out" if outside else "in", "text": f"{a:.4g} to {b:.4g}: {n:,} values{', clipped' if outside else ''}"})
    return {"tensor": text.plain(s["tensor"]), "kernel": text.plain(s["kernel"] or "network input"), "bars": bars, "from": f"{low:.4g}", "to": f"{high:.4g}",
            "low": f"{s['low']:.4g}", "high": f"{s['high']:.4g}", "bits": s["bits"], "lines": [f"{_place(v, low, high):.1f}" for v in (s["low"], s["high"])],
            "clipped": _share(s["clipped"]), "clip_noise": _share(s["clip_noise"]), "db": f"{s['noise_db']:.1f}",
            "rows": [(text.plain(c["spec"]), f"{c['low']:.4g} to {c['high']:.4g}", f"{c['noise_db']:.1f}") for c in sorted(s["calibrators"], key=lambda c: -c["noise_db"])]}


def _place(v: float, low: float, high: float) -> float:
    return min(max((v - low) / (high - low or 1.0), 0.001), 0.999) * WIDTH


def _share(x: float) -> str:
    return "none" if x == 0.0 else f"{text.significant(100 * x, 2)} %" if x >= 1e-5 else "below 0.001 %"


def _percent(share: float) -> str:
    return f"{min(max(share, 0.0), 1.0) * 100:.2f}%" if math.isfinite(share) else "0.00%"
