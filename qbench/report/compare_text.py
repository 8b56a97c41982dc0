"""A comparison of calibrators and scales in words, the same on the terminal, in the page and in compare.json."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from qbench.comparison import (
    Check,
    Comparison,
    Gap,
    Row,
    TensorRange,
    WeightSpread,
    beaten,
    differ,
    finite,
    ladders,
    ranked,
)
from qbench.protocols import Price
from qbench.report import text

FEW_BITS = 4.0
HALF = 0.5
NAMED = 3
"""Tensors or layers that a sentence names."""
VENDOR = "cycles: of the toolkit's own table; build: seconds; both ours and theirs from the same calibration samples"
VENDOR_HEADS = ("by", "what", "accuracy", "SQNR", "cycles", "build s", "worst layer")
_ONE_SCALE = {"global": "one scale for all activations", "per-layer": "one scale per tensor", "per-channel": "per-channel weight scales",
              "per-group": "per-group weight scales"}


def scale_of(result: Comparison) -> text.Scale:
    """How the metric is written: percent for values in 0..1, decibels for one named so, else its own numbers."""
    metric = result.reference.accuracy.metric.lower()
    if "db" in re.split(r"[^a-z]+", metric) or "sqnr" in metric or "psnr" in metric:
        return text.Scale(1.0, 2, "dB", "dB")
    values = [text.finite(r.accuracy.value) for r in (result.reference, *result.rows)]
    return text.Scale(100.0, 2, "%", "points") if all(v is None or 0.0 <= v <= 1.0 for v in values) else text.Scale(1.0, 3, "", "")


def json_body(result: Comparison) -> dict[str, Any]:
    """What compare.json holds: the numbers, and the sentences made of them."""
    body = result.to_dict()
    for gap, entry in zip(result.gaps, body["gaps"], strict=True):
        entry["text"] = explained(gap, result)
    found: dict[str, Any] = finite({"summary": summary(result), **body})
    return found


def db(x: object) -> str:
    """A number of decibels with its unit; "equal" for outputs without a difference."""
    value = text.finite(x)
    if value is None:
        return "equal" if x == float("inf") else text.MISSING
    return f"{value if abs(value) >= 0.05 else 0.0:.1f} dB"


def asked(result: Comparison) -> str:
    """What was compared, as one phrase."""
    precisions = ", ".join(dict.fromkeys(r.precision.upper() for r in result.rows))
    return f"{text.plain(result.model)} on {text.plain(result.target)} ({text.plain(result.toolkit)}), {precisions}: {len(result.rows)} plan{'s' if len(result.rows) != 1 else ''}"


def summary(result: Comparison) -> str:
    """What to use and why, in one sentence; "" before anything was measured."""
    best = result.best
    if best is None:
        return ""
    scale, a = scale_of(result), best.accuracy
    ladder = next(x for x in ladders(result.rows) if (x.precision, x.calibrator) == (best.precision, best.calibrator))
    first = f"{text.plain(best.calibrator)} with {_ONE_SCALE[best.scale]} at {best.precision.upper()}: {text.plain(a.metric)} {scale.value(a.value)}"
    first += "" if scale.unit == "dB" else f", {below_float(best, result)}"
    rows = list(ladder.cells.values())
    here = rows.index(best)
    costs = [_no_better(row, best, result) for row in rows[here + 1:]] + [_cost(rows[i], rows[i + 1], result) for i in reversed(range(here))]
    others = [_other(precision, result) for precision in dict.fromkeys(r.precision for r in result.rows) if precision != best.precision]
    early = "Stopped before it was done. " if result.partial else ""
    return early + "; ".join([first, *costs, *others])


def below_float(row: Row, result: Comparison) -> str:
    """"0.58 points below float", and whether that is more than chance."""
    scale, a = scale_of(result), row.accuracy
    drop = text.finite(a.drop)
    if drop is None:
        return "drop against float unknown"
    side = "below" if drop >= 0 else "above"
    chance = a.drop_low <= 0.0 <= a.drop_high
    return f"{scale.drop(abs(drop))} {side} float" + (" (not distinguishable)" if chance else "")


def _other(precision: str, result: Comparison) -> str:
    """The best row of a precision that is not the best one's."""
    row = ranked([r for r in result.rows if r.precision == precision])[0]
    below = "" if scale_of(result).unit == "dB" else f", {below_float(row, result)}"
    value = scale_of(result).value(row.accuracy.value)
    return f"best at {precision.upper()}: {text.plain(row.calibrator)} with {_ONE_SCALE[row.scale]}, {value}{below}"


def _cost(row: Row, finer: Row, result: Comparison) -> str:
    """What a coarser scale costs with the same calibrator, against the next finer one."""
    scale = scale_of(result)
    lost, lost_db = finer.accuracy.value - row.accuracy.value, finer.accuracy.sqnr_db - row.accuracy.sqnr_db
    what = _ONE_SCALE[row.scale]
    if not differ(row, finer) or not scale.number(lost).strip("-0."):
        return f"{what} in place of {_ONE_SCALE[finer.scale]} makes no difference that these samples could show ({scale.drop(lost)}, {db(lost_db)})"
    if lost < 0:
        return f"{what} in place of {_ONE_SCALE[finer.scale]} gains {scale.drop(-lost)}"
    gap = next((g for g in result.gaps if g.coarse == row.scale and (g.precision, g.calibrator) == (row.precision, row.calibrator)), None)
    why = because(gap) if gap is not None else ""
    return f"{what} in place of {_ONE_SCALE[finer.scale]} costs {scale.drop(lost)}" + (f", because {why}" if why else "")


def _no_better(row: Row, best: Row, result: Comparison) -> str:
    lost = scale_of(result).drop(best.accuracy.value - row.accuracy.value)
    return f"{_ONE_SCALE[row.scale]} {'gives' if 'one' in _ONE_SCALE[row.scale] else 'give'} no more ({lost} less)"


def because(gap: Gap) -> str:
    """The main ground of a gap, as a clause."""
    if gap.layers:
        w = gap.layers[0]
        return f"in {listed([w.kernel])} {_uneven(gap, w)}"
    if gap.owners:
        verbs = ("sets", "takes") if len(gap.owners) == 1 else ("set", "take")
        return (f"{listed([t.name for t in gap.owners])} {verbs[0]} the scale and {verbs[1]} {gap.freed_bits:.1f} of {gap.bits} bits "
                "from every other tensor")
    if gap.tensors:
        return f"{_half(gap)}, felt most behind {listed([gap.tensors[0].name])}"
    return ""


def _uneven(gap: Gap, w: WeightSpread) -> str:
    return f"the largest output channel is {ratio(w.spread)} times the median one, which keeps {kept(gap.bits, w.bits_lost)} of {gap.bits} bits"


def _half(gap: Gap) -> str:
    return f"half of the {len(gap.tensors)} tensors lose {median(t.bits_lost for t in gap.tensors):.1f} of {gap.bits} bits or more"


def title(gap: Gap, result: Comparison) -> str:
    scale = scale_of(result)
    sure = "" if gap.clear else "; in accuracy no more than chance"
    return (f"{gap.fine} against {gap.coarse}, {text.plain(gap.calibrator)} at {gap.precision.upper()}: {signed(gap.accuracy, scale)} and "
            f"{gap.sqnr_db:+.1f} dB{sure}")


def explained(gap: Gap, result: Comparison) -> list[str]:
    """Where a gap comes from: one sentence on what, one or more on where, one on what was tried."""
    where = _weights(gap) if gap.layers else _ranges(gap) if gap.tensors else ["Nothing that could explain it was found."]
    tried = _tried(gap)
    return [title(gap, result), *where, *([tried] if tried else [])]


def _ranges(gap: Gap) -> list[str]:
    low, high = gap.whole
    whole = f"The one scale has to cover [{low:.4g}, {high:.4g}]"
    if gap.owners:
        whole += (f", the range of {listed([t.name for t in gap.owners])}; without {'it' if len(gap.owners) == 1 else 'them'} "
                  f"every other tensor would keep {gap.freed_bits:.1f} bits more.")
    else:
        whole += "; no few tensors set it, several are about as wide."
    poor = sum(gap.bits - t.bits_lost < FEW_BITS for t in gap.tensors)
    narrow = ", ".join(_tensor(t, gap.bits) for t in sorted(gap.tensors, key=lambda t: -t.bits_lost)[:NAMED])
    few = f", {poor} keep less than {FEW_BITS:.0f}" if poor else ""
    lines = [whole, f"H{_half(gap)[1:]}{few}. Narrowest: {narrow}."]
    if noisy := [t for t in gap.tensors[:NAMED] if t.extra_noise > 0.0]:
        lines.append("It is felt most in the layers that read " + ", ".join(
            f"{listed([t.name])} ({db(t.coarse_db)} at their outputs instead of {db(t.fine_db)})" for t in noisy) + ".")
    return lines


def _tensor(t: TensorRange, bits: int) -> str:
    readers = f", read by {100 * t.macs_share:.2g} % of the MACs" if t.macs_share else ""
    return f"{listed([t.name])} (keeps {kept(bits, t.bits_lost)} bits, {t.codes:.2g} codes{readers})"


def _weights(gap: Gap) -> list[str]:
    w = gap.layers[0]
    if w.extra_noise <= 0.0:
        return ["On float inputs no layer is the worse for one scale."]
    lines = [f"Most is lost in {listed([w.kernel])} ({100 * w.macs_share:.2g} % of the MACs): {_uneven(gap, w)}; {_instead(w)}."]
    if more := [x for x in gap.layers[1:NAMED] if x.extra_noise > 0.0]:
        lines.append("Then " + ", ".join(f"{listed([x.kernel])} (channels {ratio(x.spread)} to 1, {_instead(x)})" for x in more) + ".")
    return lines


def _instead(w: WeightSpread) -> str:
    return f"on float inputs its channels have {db(w.coarse_db)} instead of {db(w.fine_db)}"


def _tried(gap: Gap) -> str:
    """What comes back of the gap when only some of them get the finer scale."""
    kinds = {kind: [c for c in gap.checks if c.kind == kind] for kind in dict.fromkeys(c.kind for c in gap.checks)}
    parts = []
    for kind, checks in kinds.items():
        what = "per-channel scales in" if kind == "weights" else "a scale of its own for" if len(checks[0].names) == 1 else "scales of their own for"
        verb = "brings" if what.startswith("a ") else "bring"
        parts.append(", ".join([f"{what} {_suspects(checks[0])} alone {verb} {won(checks[0])}", *(f"{_suspects(c)} {won(c)}" for c in checks[1:])]))
    if not parts:
        return ""
    few = max((s for c in gap.checks if (s := text.finite(c.won)) is not None), default=0.0) < HALF
    return (f"Tried, as share of the gap in {'accuracy' if gap.clear else 'decibels'} that comes back: {'; '.join(parts)}."
            + (" So it is not the work of a few: many lose a little, together." if few else ""))


def _suspects(check: Check) -> str:
    count = len(check.names)
    if count == 1 or check.kind == "widest":
        return listed(check.names)
    return f"the first {count} of these layers" if check.kind == "weights" else f"the first {count} of these tensors"


def won(check: Check) -> str:
    return "n/a" if (share := text.finite(check.won)) is None else f"{100 * share if abs(share) >= 0.005 else 0:.0f} %"


def kept(bits: int, lost: float) -> str:
    return f"{max(0.0, bits - lost):.1f}"


def ratio(x: float) -> str:
    return f"{x:.3g}" if x < 1000 else f"{x:,.0f}"


def listed(names: Sequence[str]) -> str:
    """"'a'", "'a' and 'b'", "'a', 'b' and 'c'"."""
    quoted = [f"'{text.plain(n)}'" for n in names]
    return quoted[0] if len(quoted) == 1 else f"{', '.join(quoted[:-1])} and {quoted[-1]}"


def signed(x: object, scale: text.Scale) -> str:
    """A difference of the metric with its sign and unit."""
    value = text.finite(x)
    if value is None:
        return text.MISSING
    number = f"{value * scale.factor:+.{scale.digits}f}"
    return f"{number} {scale.points}".strip()


def vendor_cells(result: Comparison) -> list[tuple[str, ...]]:
    """By whom, what, accuracy, SQNR, cycles, seconds, and the layer that the toolkit's own analysis finds worst by itself; texts, a row each."""
    found: list[tuple[str, ...]] = []
    scale = scale_of(result)
    for r in result.vendor:
        figures = ("refused", "", "", "", "") if r.refused else (scale.value(r.value), db(r.sqnr_db), f"{r.cycles:,}", f"{r.build_s:.0f}", _worst(r.layers))
        found.append((text.plain(r.maker), text.plain(r.name), *figures))
    return found


def _worst(layers: Sequence[Mapping[str, Any]]) -> str:
    worst = min(layers, key=lambda row: float(row["single_cos"]), default=None)
    return "" if worst is None else f"{text.plain(str(worst['name']))} (cosine {float(worst['single_cos']):.5f})"


def vendor_remarks(result: Comparison) -> list[str]:
    """Refusals, and every row of ours that one of the vendor's beats at no more cycles."""
    refused = [f"{text.plain(r.maker)} {text.plain(r.name)}: {text.plain(r.refused)}" for r in result.vendor if r.refused]
    lost = [f"{text.plain(ours.name)} loses to {text.plain(theirs.name)}: {db(ours.sqnr_db)} at {ours.cycles:,} cycles, {db(theirs.sqnr_db)} at {theirs.cycles:,}"
            for ours, theirs in beaten(result.vendor)]
    return [*refused, *lost]


def latency_note(result: Comparison) -> str:
    """What the predicted latencies of the rows have in common, in words."""
    p = result.provenance
    basis = f"predicted for {text.plain(result.target)}, {text.plain(p.get('interval', '80 % interval'))}"
    by_precision: dict[str, set[float]] = {}
    for row in result.rows:
        by_precision.setdefault(row.precision, set()).add(round(row.price.latency_ms, 9))
    if any(len(v) > 1 for v in by_precision.values()):
        return f"latency: {basis}; it differs between the plans of one precision, because not all keep the same layers in integers"
    parts = []
    for precision in by_precision:
        parts.append(f"{precision.upper()} {milliseconds(next(r.price for r in result.rows if r.precision == precision))}")
    return (f"latency: {', '.join(parts)} for every calibrator and scale: the cost model prices precisions, not scales; "
            f"float, as all FP16 where the chip has no 32-bit float, {milliseconds(result.reference.price)}; {basis}")


def milliseconds(p: Price) -> str:
    """Predicted latency with its interval."""
    return f"{text.significant(p.latency_ms)} ms {text.interval(p.latency_ms, p.latency_ms_low, p.latency_ms_high)}".strip()


def same_latency(result: Comparison) -> bool:
    return len({(r.precision, round(r.price.latency_ms, 9)) for r in result.rows}) == len({r.precision for r in result.rows})


def basis(result: Comparison) -> str:
    """What the figures rest on, as one paragraph."""
    p, a = result.provenance, result.reference.accuracy
    return (f"Accuracy: measured on {text.plain(p.get('evaluated on', f'{a.samples} samples'))}, 95 % intervals; drops are paired with float on "
            f"the same samples; calibrated on {text.plain(p.get('calibrated on', 'data that were not recorded'))}. \"same\" or \"=\" beside a row: its "
            "drop interval overlaps that of the best row. SQNR: of the output that the metric reads; worst layer: the kernel of lowest SQNR against float on "
            f"{result.layer_samples} evaluation samples. Size: the model file. {text.plain(p.get('accuracy', ''))}.")
