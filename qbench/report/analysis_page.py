"""Writes analysis.html: findings first, then the error along the network, channels and histograms to choose from, and every number as a table.

The page needs no network. Without scripts the tables still hold every number; names come from the user's files and are escaped.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import qbench
from qbench.files import write_text
from qbench.report import analysis_text as words
from qbench.report import text
from qbench.report.page import breakable, coverage_rows, for_script, plotly_js, precision_mark

if TYPE_CHECKING:
    from qbench.analysis.records import Analysis, Check, Finding, StoredTensor, TensorError

_TOP = 15                     # rows shown at once; the rest is folded away
_KINDS = {
    "nonfinite": "NaN or infinity", "cut": "mixed ranges", "raise": "raise", "together": "all at once", "range": "range", "granularity": "scales",
    "weights": "weights", "collapse": "hidden collapse", "amplifies": "amplification", "constant": "constant", "unobserved": "never observed",
    "spread": "spread", "leave": "leave", "untried": "not tried", "fine": "fine"}


def write_analysis(analysis: Analysis, findings: Sequence[Finding], path: Path) -> None:
    """One HTML file at `path`, written under a temporary name and renamed."""
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("qbench.report", "."), autoescape=True, undefined=jinja2.StrictUndefined,
        trim_blocks=True, lstrip_blocks=True)
    write_text(path, environment.get_template("analysis.html.j2").render(context(analysis, findings)))


def context(analysis: Analysis, findings: Sequence[Finding]) -> dict[str, Any]:
    """What the template is given: texts, and the numbers of the plots as one JSON value."""
    library, licence = plotly_js()
    rows = words.rows(analysis)
    return {
        "version": qbench.__version__, "title": text.plain(analysis.model), "headline": words.headline(analysis), "outputs": words.outputs(analysis),
        "nothing": words.nothing(analysis, findings), "warnings": text.coded(analysis.warnings),
        "findings": [_finding(f) for f in findings], "top": _TOP,
        "rows": [{"row": r, "name": breakable(r.kernel), "tensor": breakable(r.tensor), "precision": precision_mark(r.precision)} for r in rows],
        "legend": list({p["css"]: p for p in (precision_mark(k.precision) for k in analysis.kernels)}.values()),
        "options": [(i, f"{i + 1}. {text.plain(k.name)}") for i, k in enumerate(analysis.kernels) if k.tensors],
        "stored": [(i, text.plain(s.tensor)) for i, s in enumerate(analysis.stored)],
        "parts": [p for k in analysis.kernels for t in k.tensors for p in _parts(t)],
        "mixed": [_mixed(g) for g in analysis.mixed], "weights": [_weight(w) for w in analysis.weights],
        "checks": [_check(c) for c in sorted(analysis.checks, key=lambda c: -c.gain_db)], "coverage": coverage_rows(analysis.coverage),
        "notes": [(text.plain(k), text.plain(v)) for k, v in analysis.notes.items()],
        "facts": _facts(analysis), "data": for_script(json.dumps(plot_data(analysis), separators=(",", ":"), ensure_ascii=False, allow_nan=False)),
        "library": library, "library_licence": licence,
    }


def _finding(finding: Finding) -> dict[str, str]:
    return {"kind": _KINDS.get(finding.kind, text.plain(finding.kind)), "css": "gain" if (finding.gain_db or 0.0) >= 0.5 else "plain",
            "gain": words.gain(finding), "text": text.plain(finding.text)}


def _parts(error: TensorError) -> list[dict[str, Any]]:
    return [{"tensor": breakable(error.tensor), "part": breakable(p.name), "channels": f"{p.channels[0]} to {p.channels[1] - 1}",
             "magnitude": f"{p.magnitude:.4g}", "isolated": words.db(p.isolated.sqnr_db), "accumulated": words.db(p.accumulated.sqnr_db),
             "dead": f"{p.dead} of {p.channels[1] - p.channels[0]}" if p.dead else "", "zeroed": words.share(p.accumulated.zeroed)}
            for p in error.parts]


def _mixed(group: Any) -> dict[str, Any]:
    return {"group": breakable(group.group), "kernel": breakable(group.kernel), "ratio": f"{group.ratio:.3g}", "blocked": text.plain(group.blocked),
            "sources": [{"tensor": breakable(s.tensor), "span": words.span(s.low, s.high), "codes": f"{s.codes:.3g}"} for s in group.sources]}


def _weight(w: Any) -> dict[str, Any]:
    return {"kernel": breakable(w.kernel), "weight": breakable(w.weight), "channels": w.channels, "largest": f"{w.largest:.3g}", "widest": w.widest,
            "median": f"{w.median:.3g}", "ratio": f"{w.ratio:.3g}", "scales": "per channel" if w.per_channel else "one", "codes": f"{w.codes:.3g}"}


def _check(check: Check) -> dict[str, Any]:
    name, before, after = check.part if check.kind != "without" else min(check.parts, key=lambda p: p[2])
    gain = "" if check.kind == "without" else f"{check.gain_db:+.1f}" if after < words.EXACT_DB else "exact"
    return {"kind": check.kind, "subject": breakable(check.subject), "change": text.plain(check.change), "part": breakable(name),
            "before": words.db(before), "after": words.db(after), "gain": gain,
            "others": "; ".join(text.plain(f"{n} {words.db(b)} to {words.db(a)}") for n, b, a in check.parts if n != name)}


def _facts(analysis: Analysis) -> list[tuple[str, str]]:
    return [("model", f"{text.plain(analysis.model)} ({analysis.model_key[:16]})"), ("plan", analysis.plan_key),
            ("target", text.plain(f"{analysis.target} {analysis.toolkit}".strip()) or "none"), ("calibrator", text.plain(analysis.calibrator)),
            ("scales", analysis.granularity), ("data", text.plain(analysis.data)), ("samples walked over", str(analysis.samples)),
            ("samples in the statistics", str(analysis.seen)),
            ("integers", "Q/DQ pairs run in float, as where a CPU's integer kernels saturate" if analysis.simulated
             else "as onnxruntime's integer kernels compute"),
            ("FP16", "float in the file that is run, as in the search")]


# -- numbers for the plots

def plot_data(analysis: Analysis) -> dict[str, Any]:
    """Kernels in execution order with their tensors' channels, and histograms with thresholds; None for exact and for missing."""
    place = {s.tensor: i for i, s in enumerate(analysis.stored)}
    groups: dict[str, int] = {}
    for i, s in enumerate(analysis.stored):
        groups.setdefault(s.group, i)
    kernels = [{"name": text.plain(k.name), "op": text.plain(k.op), "precision": k.precision, "tensors": [
        {"tensor": text.plain(t.tensor), "role": t.role, "alone": _shown(t.isolated.sqnr_db), "whole": _shown(t.accumulated.sqnr_db),
         "channels": [_shown(v) for v in t.channels_db], "channelsAlone": [_shown(v) for v in t.channels_alone_db], "magnitudes": list(t.magnitudes),
         "dead": list(t.dead), "deadAlone": list(t.dead_alone), "leftOut": text.plain(t.left_out),
         "parts": [[text.plain(p.name), *p.channels, _shown(p.accumulated.sqnr_db)] for p in t.parts],
         "stored": place.get(t.tensor, groups.get(t.group))}
        for t in k.tensors]} for k in analysis.kernels]
    worst = max((i for i, k in enumerate(analysis.kernels) if not k.is_float and k.worst is not None),
                key=lambda i: -_alone(analysis, i), default=next((i for i, k in enumerate(analysis.kernels) if k.tensors), 0))
    return {"kernels": kernels, "stored": [_stored(s) for s in analysis.stored], "selected": worst}


def _alone(analysis: Analysis, index: int) -> float:
    worst = analysis.kernels[index].worst
    return worst.isolated.sqnr_db if worst is not None else math.inf


def _shown(db: float) -> float | None:
    """One decimal; None for equal tensors."""
    return None if db >= words.EXACT_DB else round(max(db, -20.0), 1)


def _stored(s: StoredTensor) -> dict[str, Any]:
    return {"tensor": text.plain(s.tensor), "bits": s.bits, "low": s.low, "high": s.high, "bestLow": s.best_low, "bestHigh": s.best_high,
            "from": s.histogram.low, "to": s.histogram.high, "counts": list(s.histogram.counts),
            "said": text.plain(_said(s))}


def _said(s: StoredTensor) -> str:
    better = f"; with {words.span(s.best_low, s.best_high)} it would be {words.db(s.best_db)} dB" if s.best_db > s.noise_db else ""
    return (f"{s.tensor}: codes reach {words.span(s.low, s.high)} in steps of {s.step:.3g}, the data {words.span(s.seen_low, s.seen_high)}; "
            f"{words.share(s.clipped)} of the values clipped, which makes {words.share(s.clip_noise)} of the noise; storing it leaves "
            f"{words.db(s.noise_db)} dB{better}" + ("; constant over all the data" if s.constant else ""))
