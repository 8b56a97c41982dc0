"""The quantized model against float: every layer alone and accumulated, and whether the range of one tensor is to blame."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from statistics import median
from time import monotonic

import numpy as np

from qbench.affine import Range
from qbench.diagnosis.examine import LOCAL_S, chosen, ranked
from qbench.diagnosis.gaps import db_text, gap, left, odd_text
from qbench.diagnosis.graph import Graph, Point, laid_open, part
from qbench.diagnosis.places import range_to
from qbench.diagnosis.records import Cause, LayerGap, Stage, Tensors, Trial
from qbench.diagnosis.runs import Runner
from qbench.protocols import Array, Progress, silent

BROKEN_DB = 12.0
"""SQNR of the worst output below which a quantization is looked at for a single cause: noise is a sixteenth of the signal."""
SINGLE = 0.75
"""Share of the noise that one tensor's range must be responsible for."""
SUSPECTS = 8
WIDE = 2.0
"""Times what the data fills, from which a range is mentioned as too wide: a bit is lost. A power of two as scale alone may cost that much."""
FAR = 2.5
"""Times what the calibration data needs, from which it is named as the cause. Samples alone name none: others may fill the range."""
APART = 1.8
"""Times the usual width in this network: few samples fill no range, but they fail to fill the ranges of all layers alike."""
MATTERS = 0.02
"""Share of the outputs' noise that must go with the narrower range for it to be mentioned; and it must go in most samples for it to be named."""
CODOMAINS = {"Softmax": 1.0, "Sigmoid": 1.0, "HardSigmoid": 1.0, "Tanh": 2.0}
"""Width of what the operator can give: a range of just that width is chosen, not calibrated."""


@dataclass(frozen=True, slots=True)
class Calibrated:
    """What the ranges are held against.

    groups   tensor -> tensors whose values share its range; seen   tensor -> what the calibration data had there; {}: unknown
    """

    groups: Mapping[str, Sequence[str]] = field(default_factory=dict)
    seen: Mapping[str, Range] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Width:
    """Of the range of a point: times what `data`, the range below, needs."""

    point: Point
    times: float
    data: Range


def quantization(name: str, graph: Graph, feeds: Tensors, reference: Tensors, runner: Runner, calibrated: Calibrated = Calibrated(), limit_s: float = LOCAL_S,
                 progress: Progress = silent) -> Stage:
    """The gaps of every stored tensor, and whether one tensor's range is to blame.

    reference   value of the quantized graph -> what the float model has there
    limit_s     seconds for the layers alone, those where the gap grows most first; and as many for the ranges
    """
    order = sorted((t for t in reference if t in graph.maker), key=lambda t: graph.maker[t])
    made = runner.run(laid_open(graph, order), feeds)
    layers, notes = _layers(graph, feeds, reference, made, order, runner, limit_s, progress)
    outputs = {o: reference[o] for o in graph.outputs if o in reference}
    have = {o: made[o] for o in outputs}
    worst = min((gap(outputs[o], have[o]).sqnr_db, o) for o in outputs)
    facts: tuple[str, ...] = tuple(f"{o}: {db_text(gap(outputs[o], have[o]).sqnr_db)} from float, cosine {gap(outputs[o], have[o]).cosine:.4f}" for o in outputs)
    for o, wanted in outputs.items():
        if not np.isfinite(have[o]).all() and np.isfinite(wanted).all():
            return Stage(name, Cause.NON_FINITE, (Cause.NON_FINITE,), f"{o} holds {odd_text(have[o])}", o, 0.99, facts, (), layers, (), notes)
    known = {p.raw: feeds[p.raw] for p in graph.points if p.raw in feeds} | {p.raw: reference[p.stored] for p in graph.points if p.stored in reference}
    trials: list[Trial] = []
    if worst[0] < BROKEN_DB:
        suspects = sorted((p for p in graph.points if p.raw in known), key=lambda p: _stored_db(p, known[p.raw]))[:SUSPECTS]
        trials = [_with_range(graph, p, Range(float(known[p.raw].min()), float(known[p.raw].max())).including_zero(), feeds, outputs, have, runner) for p in suspects]
        best = chosen([t for p, t in zip(suspects, trials, strict=True) if _clips(p, known[p.raw])])
        if best is not None and best.explained >= SINGLE:
            return Stage(name, Cause.RANGE, (Cause.RANGE,), f"{best.where}: {best.names[0]}", best.where, best.explained,
                         (*facts, f"with the range that the samples have there the noise falls by {best.explained:.0%}"), ranked(trials), layers, (), notes)
    wide = _too_wide(graph, feeds, known, outputs, have, runner, calibrated)
    if wide is not None and not wide.why_not:
        return Stage(name, Cause.RANGE, (Cause.RANGE,), f"{wide.trial.where}: {wide.facts[0]}", wide.trial.where, wide.sure, (*facts, *wide.facts), (wide.trial,), layers, (), notes)
    if wide is not None:
        notes = (*notes, f"{wide.trial.where}: {wide.facts[0]}, and with the narrower range the outputs' noise falls by {wide.trial.explained:.0%}{wide.why_not}")
    if worst[0] < BROKEN_DB:
        blame = "no single range clips so much" if wide is None else "one range may be too wide (see the note)"
        text = f"the outputs are {db_text(worst[0])} from float and {blame}: `qbench analyze` tells which layers need more bits"
        return Stage(name, Cause.HEALTHY, (), text, "", 0.5, facts, ranked(trials), layers, (), notes)
    return Stage(name, Cause.HEALTHY, (), "the gap of a quantization without a single cause", "", 1.0, facts, (), layers, (), notes)


def _layers(graph: Graph, feeds: Tensors, reference: Tensors, made: Tensors, order: Sequence[str], runner: Runner, limit_s: float,
            progress: Progress) -> tuple[tuple[LayerGap, ...], tuple[str, ...]]:
    """Each layer on what the float model has in front of it; where time is short, those where the accumulated gap grows most, and a note of what was left out."""
    after = {t: gap(reference[t], made[t], graph.scale_of(t)) for t in order}
    growth = {t: after[order[i - 1]].sqnr_db - after[t].sqnr_db if i and after[t].sqnr_db < inf else 0.0 for i, t in enumerate(order)}
    until, alone = monotonic() + limit_s, {}
    for number, t in enumerate(sorted(order, key=lambda t: -growth[t] if growth[t] == growth[t] else 0.0)):
        if number and monotonic() > until:
            break
        progress("layers alone", number, len(order))
        model, reads = part(graph, [x for x in order if x != t], [t])
        value = runner.run(model, {n: feeds[n] if n in graph.inputs else reference[n] for n in reads} or dict(feeds))[t]
        alone[t] = gap(reference[t], value, graph.scale_of(t))
    layers = tuple(LayerGap(t, alone[t], after[t], 0.0, False) for t in order if t in alone)
    missing = [t for t in order if t not in alone]
    if not missing:
        return layers, ()
    more = f" and {len(missing) - 4} more" if len(missing) > 4 else ""
    text = f"{len(alone)} of {len(order)} layers were run alone in {limit_s:g} s (--search-seconds), those where the gap grows most; left out: {', '.join(missing[:4])}{more}"
    return layers, (f"float -> simulated: {text}",)


def _with_range(graph: Graph, p: Point, wanted: Range, feeds: Tensors, outputs: Tensors, have: Tensors, runner: Runner) -> Trial:
    """The outputs' noise with another range of one tensor."""
    e = range_to(graph, p, wanted.low, wanted.high)
    changed = runner.run(e.apply(graph.model), feeds)
    return Trial((e.name,), (e.cause,), left(outputs, {o: changed[o] for o in outputs}, have, range(len(next(iter(outputs.values()))))), 0, p.raw)


# ------------------------------------------------------------------------------------------------ ranges that are too wide


@dataclass(frozen=True, slots=True)
class TooWide:
    """why_not   what speaks against naming it as the cause; "": it is"""

    trial: Trial
    facts: tuple[str, ...]
    sure: float
    why_not: str


def _too_wide(graph: Graph, feeds: Tensors, known: Tensors, outputs: Tensors, have: Tensors, runner: Runner, calibrated: Calibrated) -> TooWide | None:
    """The range that is far wider than its data needs, and than the ranges of the others are, and costs most; None where there is none."""
    every = _widths(graph, known, calibrated)
    usual = median([w.times for w in every]) if every else 1.0
    suspects = [w for w in every if w.times >= WIDE and w.times >= APART * usual and not _is_codomain(graph, w.point)]
    trials = [(w, _with_range(graph, w.point, w.data, feeds, outputs, have, runner)) for w in suspects[:SUSPECTS]]
    if not trials:
        return None
    told = [pair for pair in trials if pair[0].point.raw in calibrated.seen]
    wide, best = min(told or trials, key=lambda pair: pair[1].left)
    if best.explained < MATTERS:
        return None
    p, value = wide.point, known[wide.point.raw]
    of = "the calibration data needs" if told else "these samples need"
    text = (f"its range is {wide.times:.1f} times what {of}: [{_end(p, p.qmin):.4g}, {_end(p, p.qmax):.4g}] for values of [{wide.data.low:.4g}, {wide.data.high:.4g}]")
    why_not = ("; other samples may fill it: --stats tells what the calibration data had" if not told else
               f"; it is named as the cause from {FAR:g} times on" if wide.times < FAR else
               "" if _gains(graph, wide, feeds, outputs, have, runner) else "; not in most of the samples")
    facts = (text, f"the other ranges are {usual:.2f} times what their data needs (median of {len(every)})",
             f"{p.raw} stored alone: {db_text(_stored_db(p, value))}; with the narrower range {db_text(_stored_db(_narrowed(p, wide.data), value))}",
             f"with the narrower range the outputs' noise falls by {best.explained:.0%}")
    return TooWide(best, facts, min(0.99, 1.0 - usual / wide.times), why_not)


def _gains(graph: Graph, wide: Width, feeds: Tensors, outputs: Tensors, have: Tensors, runner: Runner) -> bool:
    """Whether more than half of the samples come closer to float with the narrower range."""
    changed = runner.run(range_to(graph, wide.point, wide.data.low, wide.data.high).apply(graph.model), feeds)
    count = len(next(iter(outputs.values())))
    return 2 * sum(left(outputs, {o: changed[o] for o in outputs}, have, [i]) < 1.0 for i in range(count)) > count


def _clips(p: Point, x: Array) -> bool:
    """Whether values lie beyond what the codes reach, by more than a step."""
    return bool(float(x.min()) < _end(p, p.qmin) - p.scale or float(x.max()) > _end(p, p.qmax) + p.scale)


def _widths(graph: Graph, known: Tensors, calibrated: Calibrated) -> list[Width]:
    """The range of every stored tensor against the data of all tensors that share it, widest first; what is zero throughout is left out."""
    found = []
    for p in graph.points:
        shared = [t for t in (calibrated.groups.get(p.raw) or (p.raw,)) if t in calibrated.seen or t in known]
        if not shared or (p.raw not in known):
            continue
        ranges = [calibrated.seen.get(t) or Range(float(known[t].min()), float(known[t].max())) for t in shared]
        data = Range(min(r.low for r in ranges), max(r.high for r in ranges)).including_zero()
        if 2 * p.zero_point in (p.qmin + p.qmax, p.qmin + p.qmax + 1):                   # symmetric: the larger side gives the range
            data = Range(-max(-data.low, data.high), max(-data.low, data.high))
        needed = data.high - data.low
        if needed > 0.0 and np.isfinite(needed):
            found.append(Width(p, p.scale * (p.qmax - p.qmin) / needed, data))
    return sorted(found, key=lambda w: -w.times)


def _is_codomain(graph: Graph, p: Point) -> bool:
    maker = graph.nodes[graph.maker[p.raw]].op_type if p.raw in graph.maker else ""
    width = CODOMAINS.get(maker)
    return width is not None and abs(p.scale * (p.qmax - p.qmin) - width) <= 0.02 * width


def _end(p: Point, code: int) -> float:
    return (code - p.zero_point) * p.scale


def _narrowed(p: Point, wanted: Range) -> Point:
    """The same tensor with codes over another range."""
    scale = max((wanted.high - wanted.low) / (p.qmax - p.qmin), 1e-30)
    return Point(p.node, p.raw, p.stored, p.scale_name, scale, int(np.clip(round(p.qmin - wanted.low / scale), p.qmin, p.qmax)), p.dtype)


def _stored_db(p: Point, x: Array) -> float:
    """SQNR of a tensor that is stored in the codes of a point."""
    codes = np.clip(np.rint(x / np.float32(p.scale)) + p.zero_point, p.qmin, p.qmax)
    return gap(x, (codes - p.zero_point) * p.scale).sqnr_db
