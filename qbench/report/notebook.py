"""What a notebook shows of a result: a heading, a sentence, one small table. No colours, so that it fits light and dark pages alike."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING

from qbench.report import text

if TYPE_CHECKING:
    from qbench.analysis.records import Analysis
    from qbench.comparison import Comparison
    from qbench.result import SearchResult
    from qbench.statistics import Statistics

ROWS = 12


def search(result: SearchResult) -> str:
    """Float, the uniform plans and the chosen plan side by side."""
    plans = [label for label, _ in text.side_by_side(result)]
    rows = [[f"{q.label}{', ' + q.unit if q.unit else ''}", *(f"{c.value} {c.interval}".strip() for c in q.cells)] for q in text.comparison(result)]
    said = [text.verdict(result), text.found(result), *(f"warning: {text.plain(w)}" for w in result.warnings)]
    return _block(text.asked(result), said, ["", *plans], rows)


def statistics(found: Statistics) -> str:
    """The tensors in which the largest value stands farthest above the 99.9th percentile of magnitudes, where calibrators differ most."""
    seen = [found[name] for name in found if found[name].count]
    ranked = sorted(((t.magnitude / max(abs(t.quantile(0.001)), abs(t.quantile(0.999)), 1e-30), t) for t in seen), key=lambda pair: -pair[0])
    rows = [[t.name, f"{t.minimum:.4g}", f"{t.maximum:.4g}", f"{t.mean:.4g}", f"{100 * t.zeros / t.count:.3g} %", f"{ratio:.3g}"] for ratio, t in ranked]
    said = [f"{len(found)} tensors, {found.samples} samples; key {found.key[:16]}", *(f"warning: {w}" for w in found.warnings())]
    return _block("Statistics", said, ["tensor", "min", "max", "mean", "zeros", "largest / 99.9 %"], rows)


def comparison(result: Comparison) -> str:
    """The plans, most accurate first."""
    from qbench.comparison import ranked
    from qbench.report import compare_text as words

    scale = words.scale_of(result)
    rows = [[r.precision.upper(), r.calibrator, r.scale, f"{scale.value(r.accuracy.value)} {scale.interval(r.accuracy.low, r.accuracy.high)}", scale.number(r.accuracy.drop),
             words.db(r.accuracy.sqnr_db), f"{r.worst.name} {words.db(r.worst.sqnr_db)}" if r.worst else ""] for r in ranked(result.rows)]
    said = [words.summary(result), *(f"warning: {text.plain(w)}" for w in result.warnings)]
    return _block(words.asked(result), said, ["precision", "calibrator", "scale", result.reference.accuracy.metric, f"drop, {scale.points or 'metric'}", "SQNR", "worst layer"], rows)


def analysis(found: Analysis) -> str:
    """The tensors of largest error, worst first."""
    from qbench.report import analysis_text as words

    rows = [[str(r.number), r.kernel, r.tensor, r.precision.upper(), r.isolated, r.accumulated, r.clipped] for r in words.rows(found)]
    said = [f"outputs: {words.outputs(found)}", *(f"warning: {text.plain(w)}" for w in found.warnings)]
    return _block(words.headline(found), said, ["", "kernel", "tensor", "precision", "alone, dB", "in all, dB", "clipped"], rows)


def _block(title: str, said: Sequence[str], heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    cells = [f"<th scope='row' style='text-align:left'>{_safe(row[0])}</th>" + "".join(f"<td>{_safe(c)}</td>" for c in row[1:]) for row in rows[:ROWS]]
    more = [f"and {len(rows) - ROWS} more rows"] if len(rows) > ROWS else []
    return "".join([
        f"<div><strong>{_safe(title)}</strong>", *(f"<div>{_safe(s)}</div>" for s in said if s),
        "<table><thead><tr>", *(f"<th scope='col'>{_safe(h)}</th>" for h in heads), "</tr></thead><tbody>", *(f"<tr>{c}</tr>" for c in cells), "</tbody></table>",
        *(f"<div>{m}</div>" for m in more), "</div>"])


def _safe(said: object) -> str:
    return escape(text.plain(said))
