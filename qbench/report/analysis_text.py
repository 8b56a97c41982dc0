"""An analysis as rows of texts, the same for the terminal and the page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from qbench.report import text

if TYPE_CHECKING:
    from qbench.analysis.records import Analysis, Finding, KernelError, StoredTensor, TensorError

EXACT_DB = 200.0
"""What stands for equal tensors in an analysis."""
GOOD_DB, FAIR_DB, POOR_DB = 35.0, 25.0, 15.0
"""Where the colours change: about 2, 6 and 18 % of a tensor's amplitude are noise there."""


def db(value: object) -> str:
    """"31.2", "exact" for equal tensors, "not finite" for NaN or infinity."""
    number = text.finite(value)
    if number is None:
        return text.MISSING
    if abs(number) >= EXACT_DB:
        return "exact" if number > 0 else "not finite"
    shown = f"{number:.1f}"
    return "0.0" if shown == "-0.0" else shown


def grade(value: object) -> str:
    """"good", "fair", "poor", "bad" by SQNR."""
    number = text.finite(value)
    if number is None or number < POOR_DB:
        return "bad"
    return "good" if number >= GOOD_DB else "fair" if number >= FAIR_DB else "poor"


def share(value: object) -> str:
    """A share as percent: "0", "0.03 %", "12 %", "100 %"."""
    number = text.finite(value)
    if number is None:
        return text.MISSING
    if number == 0:
        return "0"
    percent = 100.0 * number
    digits = ".0f" if percent >= 9.95 else ".1f" if percent >= 0.95 else ".1g"
    return f"{percent:{digits}} %" if percent >= 0.001 else "< 0.001 %"


def span(low: object, high: object) -> str:
    """"-1.25 to 6.02"."""
    a, b = text.finite(low), text.finite(high)
    return text.MISSING if a is None or b is None else f"{a:.4g} to {b:.4g}"


@dataclass(frozen=True, slots=True)
class Row:
    """One tensor of one kernel.

    number   of the kernel in execution order, from 1
    dead     channels constant zero in the quantized network and not in float, "3 of 16"; "" where there are none
    """

    number: int
    kernel: str
    op: str
    unit: str
    precision: str
    tensor: str
    role: str
    isolated: str
    accumulated: str
    cosine: str
    grade: str
    worst_channel: str
    dead: str
    zeroed: str
    range: str
    seen: str
    clipped: str
    clip_noise: str
    reason: str
    macs: str


def rows(analysis: Analysis) -> list[Row]:
    """Every tensor, worst first: by isolated error among integer kernels, then the float ones in execution order."""
    stored = {s.tensor: s for s in analysis.stored}
    groups: dict[str, StoredTensor] = {}
    for s in analysis.stored:
        groups.setdefault(s.group, s)
    found = [(k.is_float, 0.0 if k.is_float else t.isolated.sqnr_db, i, row(i, k, t, stored.get(t.tensor) or groups.get(t.group)))
             for i, k in enumerate(analysis.kernels, start=1) for t in k.tensors]
    return [r for *_, r in sorted(found, key=lambda f: f[:3])]


def row(number: int, kernel: KernelError, error: TensorError, stored: StoredTensor | None) -> Row:
    integer = not kernel.is_float
    channels = error.used(error.channels_db)
    return Row(
        number, text.plain(kernel.name), text.plain(kernel.op), text.plain(kernel.unit), kernel.precision, text.plain(error.tensor), error.role,
        db(error.isolated.sqnr_db), db(error.accumulated.sqnr_db), f"{error.accumulated.cosine:.6f}", grade(error.accumulated.sqnr_db),
        db(min(channels)) if channels else text.MISSING, f"{len(error.dead)} of {len(error.channels_db)}" if error.dead else "",
        share(error.accumulated.zeroed), span(stored.low, stored.high) if stored and integer else "",
        span(stored.seen_low, stored.seen_high) if stored and integer else "", share(stored.clipped) if stored and integer else "",
        share(stored.clip_noise) if stored and integer else "", text.plain(kernel.reason), share(kernel.macs_share))


def headline(analysis: Analysis) -> str:
    """What was looked at, on what."""
    target = f" for {analysis.target}" if analysis.target else ""
    how = "; Q/DQ run in float" if analysis.simulated else ""
    return text.plain(f"{analysis.model}{target}: {text.layers(analysis.layers)}, {analysis.calibrator}, {analysis.granularity}; "
                      f"{analysis.samples} samples of {analysis.data} walked over, {analysis.seen} in the statistics{how}")


def outputs(analysis: Analysis) -> str:
    """The network's outputs as they ship: "y 31.2 dB, y: scores 12.0 dB"."""
    return ", ".join(text.plain(f"{name} {db(value)}") + ("" if abs(value) >= EXACT_DB else " dB") for name, value in analysis.outputs)


def gain(finding: Finding) -> str:
    """"+5.5 dB", "to exact" for more than any tensor can show, "" for a finding that was not tried."""
    if finding.gain_db is None:
        return ""
    return "exact" if finding.gain_db >= EXACT_DB / 2 else f"{finding.gain_db:+.1f} dB"


def nothing(analysis: Analysis, findings: Sequence[Finding]) -> str:
    """What to say where there is no finding; "" where there is one."""
    return "" if findings or analysis.integer else "Every unit of this plan is in float: there is no quantization error to explain."
