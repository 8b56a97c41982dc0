"""One machine against the one before it: where the gap opens first, and the hypothesis that explains it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isfinite
from time import monotonic

import numpy as np

from qbench.diagnosis.examine import LOCAL_S, SURE, Examination, Part, chosen, ranked
from qbench.diagnosis.gaps import db_text, gap, left, odd_text
from qbench.diagnosis.graph import Graph, laid_open, part
from qbench.diagnosis.input_faults import Normalisation, input_faults
from qbench.diagnosis.records import Cause, LayerGap, Stage, Tensors, Trial
from qbench.diagnosis.runs import Runner
from qbench.protocols import Array, Progress, silent

ENOUGH = 0.6
"""Share of the gap that a hypothesis without fitted numbers must explain to be named: others of its kind may differ in detail. With fitted numbers it is SURE."""
PLACED = 0.85
"""Between the two: for one without any other fitted number than the place that it names."""
FEWEST = 8
"""Differing values below which nothing is said within that."""


def compare(name: str, graph: Graph, feeds: Tensors, observed: Tensors, runner: Runner, *, others: Mapping[str, Tensors] | None = None,
            instead: Sequence[tuple[str, Tensors]] = (), known: Normalisation | None = None, notes: Sequence[str] = (), progress: Progress = silent,
            limit_s: float = LOCAL_S) -> Stage:
    """The machine that gave `observed` against `graph`, run by onnxruntime on `feeds`.

    observed   value of the graph -> [samples, ...], outputs and whatever else there is
    others     further correct ways to compute the same, by name; known   how the inputs were normalised
    limit_s    seconds for the search for one wrong place, where the observed tensors do not show it
    """
    count = len(next(iter(observed.values())))
    feeds = {k: v[:count] for k, v in feeds.items()}
    others = {k: {t: x[:count] for t, x in v.items()} for k, v in (others or {}).items()}
    order = sorted(observed, key=lambda t: graph.maker.get(t, -1))
    clean = runner.run(laid_open(graph, order), feeds)
    inner = [t for t in order if t not in graph.outputs]
    parts, read, cut = _parts(graph, feeds, observed, order, inner, runner, others, limit_s, progress)
    notes = [*notes, *filter(None, [cut])]
    layers = tuple(_layer(t, p, clean[t], graph) for p in parts for t in p.observed)
    first = next((p for p in parts if p.open), None)
    if first is None:
        return _magnified(name, parts, known, instead, layers, notes, progress) or _within(name, parts, layers, notes, progress, limit_s, cut)
    opened = [t for p in parts if p.open for t in p.observed]
    if set(first.observed) <= set(graph.outputs) and len(opened) > 1 and inner:
        first = _part(graph, feeds, read, opened, runner, others)
    tensor = next(iter(first.observed))
    examined = Examination(first, known, progress, instead if first.outside else (), limit_s)
    odd = _not_finite(first)
    if odd:
        return Stage(name, Cause.NON_FINITE, (Cause.NON_FINITE,), odd, tensor, 0.99, _numbers(first, examined.samples) + _half_facts(first), (), layers,
                     tuple(examined.samples), tuple(notes))
    return _verdict(name, first, tensor, examined, examined.run(), layers, notes)


def _parts(graph: Graph, feeds: Tensors, observed: Tensors, order: Sequence[str], inner: Sequence[str], runner: Runner, others: Mapping[str, Tensors], limit_s: float,
           progress: Progress) -> tuple[list[Part], Tensors, str]:
    """The part in front of every observed tensor, in network order; the tensors that parts read; and what was left out.

    Where time is short the rest is one part, from the last tensors that were looked at to the outputs.
    """
    if not inner:
        return [_part(graph, feeds, observed, order, runner, others)], observed, ""
    until, parts = monotonic() + limit_s, list[Part]()
    for number, t in enumerate(order):
        if number and monotonic() > until and t in inner:
            ends = [o for o in order[number:] if o in graph.outputs] or [order[-1]]
            read = {x: observed[x] for x in (*order[:number], *ends)}
            skipped = [x for x in order[number:] if x in inner and x not in ends]
            text = (f"{number} of {len(order)} tensors were held against their part of the network in {limit_s:g} s (--search-seconds); "
                    f"from {skipped[0]} on it is one part" if skipped else "")
            return [*parts, _part(graph, feeds, read, ends, runner, others)], read, text
        progress("layers", number, len(order))
        parts.append(_part(graph, feeds, observed, [t], runner, others))
    return parts, observed, ""


def _part(graph: Graph, feeds: Tensors, observed: Tensors, wanted: Sequence[str], runner: Runner, others: Mapping[str, Tensors]) -> Part:
    """The part in front of `wanted`, from the observed tensors before it; from the network's inputs where there is none."""
    model, reads = part(graph, [t for t in observed if t not in wanted], wanted)
    outside = set(reads) <= set(graph.inputs)
    given = {n: feeds[n] if n in graph.inputs else observed[n] for n in reads} or dict(feeds)
    whole = Graph(model, graph.by_stored)
    made = Part(whole, given, {t: observed[t] for t in wanted}, runner, outside)
    return made.prepare({k: dict(v) for k, v in others.items()} if set(reads) == set(graph.inputs) else None)


def _layer(t: str, p: Part, clean: Array, graph: Graph) -> LayerGap:
    step = graph.scale_of(t)
    return LayerGap(t, gap(p.clean[t], p.observed[t], step), gap(clean, p.observed[t], step), p.allowed[t], bool(p.open))


def _magnified(name: str, parts: Sequence[Part], known: Normalisation | None, instead: Sequence[tuple[str, Tensors]], layers: tuple[LayerGap, ...], notes: Sequence[str],
               progress: Progress) -> Stage | None:
    """A fault that hides behind what this network makes of single codes, and yet is explained without a fitted number; None without one."""
    for p in parts:
        if p.doubtful:
            examined = Examination(p, known, progress, instead if p.outside else ())
            best = examined.exact()
            if best is not None:
                rest = tuple(t for t in ranked(examined.trials) if t is not best)
                return _verdict(name, p, next(iter(p.observed)), examined, (best, *rest), layers, notes)
    return None


def _within(name: str, parts: Sequence[Part], layers: tuple[LayerGap, ...], notes: Sequence[str], progress: Progress, limit_s: float,
            cut: str) -> Stage:
    """Nothing is wider than arithmetic allows: healthy, unless one rounding mode, or sums of too few bits, explain what there is.

    cut   what was not examined so far, for want of time; "": nothing
    """
    for p in parts:
        differing = sum(int(np.count_nonzero(p.observed[t] != p.clean[t])) for t in p.observed)
        if differing < FEWEST or not p.graph.points:
            continue
        every = range(len(next(iter(p.observed.values()))))
        shares = [left(p.observed, way, p.clean, every) for way in p.other.values()]
        if min(shares, default=1.0) < ENOUGH:
            continue
        examined = Examination(p, progress=progress, limit_s=limit_s)
        trials = examined.hidden()
        best = chosen(trials)
        if best is not None and best.explained >= SURE:
            worst = next(iter(p.observed))
            fact = (f"{differing} values of {', '.join(p.observed)} differ; none of the ways to compute them here does it, "
                    f"and {best.names[0]!r} explains {best.explained:.1%} of it")
            return Stage(name, best.causes[0], best.causes, best.names[0], best.where or worst, min(best.explained, 0.99), (fact,), trials, layers, (), tuple(notes))
        cut = "; ".join(filter(None, [cut, examined.cut]))
        break
    worst_layer = min(layers, key=lambda g: g.accumulated.sqnr_db)
    widest = f"widest gap: {worst_layer.tensor}, {db_text(worst_layer.accumulated.sqnr_db)}{_steps(worst_layer.accumulated.max_steps)}"
    seen = "no gap wider than arithmetic allows"
    if cut:
        return Stage(name, Cause.CUT, (Cause.CUT,), f"{seen} in what was examined; {cut}", worst_layer.tensor, 0.0, (widest,), (), layers, (), tuple(notes))
    return Stage(name, Cause.HEALTHY, (), seen, "", 1.0, (widest,), (), layers, (), tuple(notes))


def _verdict(name: str, first: Part, tensor: str, examined: Examination, trials: tuple[Trial, ...], layers: tuple[LayerGap, ...], notes: Sequence[str]) -> Stage:
    best = trials[0] if trials else None
    notes = [*notes, *filter(None, [examined.cut]), *(f"not tried: {k}: {v}" for k, v in list(examined.failed.items())[:3])]
    facts = [*_numbers(first, examined.samples)]
    if best is None or best.explained < _needed(best):
        near = f"; the nearest, {' and '.join(best.names)!r}, explains {best.explained:.0%}" if best else ""
        grid = _grid(first)
        if grid and all(gap(first.clean[t], first.observed[t]).cosine > 0.9 for t in first.observed):
            return Stage(name, Cause.PRECISION, (Cause.PRECISION,), grid, tensor, 0.6, (*facts, grid), trials, layers, tuple(examined.samples), tuple(notes))
        return Stage(name, Cause.UNKNOWN, (), f"none of {len(trials)} hypotheses explains the gap{near}", tensor, 0.0, tuple(facts), trials, layers,
                     tuple(examined.samples), tuple(notes))
    rival = next((t for t in trials[1:] if t.causes[0] is not best.causes[0] and t.freedom <= best.freedom and not set(best.names) <= set(t.names)), None)
    facts.append(f"{' and '.join(best.names)}: explains {best.explained:.1%} of the gap" + (f"; next best cause: {rival.causes[0]} ({rival.names[0]}) with {rival.explained:.0%}"
                                                                                      if rival else ""))
    count = len(next(iter(first.observed.values())))
    if 0 < len(examined.samples) < count:
        facts.append(f"in {len(examined.samples)} of {count} samples: {', '.join(map(str, examined.samples[:12]))}; the others are right")
    apart = 1.0 - best.left / rival.left if rival is not None and rival.left > 0.0 else (1.0 if rival is None else 0.0)
    confidence = best.explained * (0.5 + 0.5 * max(0.0, min(1.0, apart))) * (0.9 if best.freedom > 1 else 1.0)
    where = best.where if best.where and best.where != "output" else tensor
    if where == tensor and len(first.graph.products) == 1 and not first.outside:
        where = f"{tensor}, made by {first.graph.products[0].name}"
    return Stage(name, best.causes[0], best.causes, " and ".join(best.names), where, min(confidence, 0.99), tuple(facts), trials, layers, tuple(examined.samples), tuple(notes))


def _needed(t: Trial) -> float:
    """Share of the gap from which a hypothesis is named."""
    return ENOUGH if t.freedom == 0 else PLACED if t.freedom == 1 and t.where != "output" else SURE


def _numbers(p: Part, samples: Sequence[int]) -> tuple[str, ...]:
    """Of the open part: distance, in steps where it has codes, and what would be allowed."""
    found = []
    for t in p.observed:
        g = gap(p.clean[t][samples], p.observed[t][samples], p.graph.scale_of(t))
        if isfinite(g.rms_error):
            unit = g.step or 1.0
            found.append(f"{t}: {db_text(g.sqnr_db)}, cosine {g.cosine:.4f}, error rms {g.rms_error / unit:.3g}, max {g.max_error / unit:.3g}{' steps' if g.step else ''}; "
                         f"arithmetic allows rms {p.allowed[t] / unit:.3g}")
        else:
            found.append(f"{t}: {odd_text(p.observed[t])}")
    return tuple(found)


def _not_finite(p: Part) -> str:
    for t, o in p.observed.items():
        if np.count_nonzero(~np.isfinite(o) & np.isfinite(p.clean[t])):
            return f"{t} holds {odd_text(o)}, the reference none"
    return ""


def _half_facts(p: Part) -> tuple[str, ...]:
    """The largest magnitude inside the part, where float16 would end."""
    names = [n.output[0] for n in p.graph.nodes if n.op_type not in ("QuantizeLinear", "Shape", "Constant") and n.output and n.output[0] not in p.graph.outputs]
    try:
        made = p.runner.run(laid_open(p.graph, names), p.feeds, samples=[0])
    except Exception:  # noqa: BLE001  integer values cannot be laid open as float: the fact is left out
        return ()
    most = max(((float(np.abs(v).max(initial=0.0)), k) for k, v in made.items() if v.dtype.kind == "f"), default=(0.0, ""))
    return (f"largest magnitude in this part: {most[0]:.4g} at {most[1]}; float16 ends at 65504",) if most[1] else ()


def _grid(p: Part) -> str:
    """That the observed values lie on at most 256 evenly spaced levels while the reference's do not; "" otherwise."""
    for t, o in p.observed.items():
        seen = np.unique(o)
        if p.graph.scale_of(t) is None and 2 < seen.size <= 256 < np.unique(p.clean[t]).size:
            steps = np.diff(seen)
            step = float(steps.min())
            if step > 0 and np.abs(steps / step - np.rint(steps / step)).max() < 0.02:
                return f"{t} has {seen.size} different values, all multiples of {step:.4g}: 8-bit codes, where the reference is float"
    return ""


def _steps(value: float | None) -> str:
    return "" if value is None else f", at most {value:.3g} steps"


# ------------------------------------------------------------------------------------------------ the other stages


def compare_inputs(feeds: Tensors, observed: Tensors, known: Normalisation | None = None) -> Stage:
    """The tensors that the board was given against those of the reference, exactly: the host's part of the way."""
    names = [k for k in observed if k in feeds and observed[k].shape[1:] == feeds[k].shape[1:]]
    odd = [f"input {k}: shape {list(observed[k].shape)}, expected {list(feeds[k].shape)}" for k in observed if k in feeds and k not in names]
    stage = "host tensor"
    if odd:
        return Stage(stage, Cause.LAYOUT, (Cause.LAYOUT,), odd[0], odd[0].split(":")[0], 0.9, tuple(odd))
    count = min((len(observed[k]) for k in names), default=0)
    clean, seen = ({k: np.asarray(x[k][:count], np.float32) for k in names} for x in (feeds, observed))
    wrong = [i for i in range(count) if any(gap(clean[k][i], seen[k][i]).rms_error > 1e-3 * float(clean[k].std() + 1e-12) for k in names)]
    if not wrong:
        return Stage(stage, Cause.HEALTHY, (), "the board was given the same inputs", "", 1.0)
    trials = [Trial((f.name,), (f.cause,), left(seen, f.apply(clean), clean, wrong), f.freedom, f.name.partition(":")[0]) for f in input_faults(clean, {}, known)]
    best = chosen(trials)
    facts = tuple(f"input {k}: {db_text(gap(clean[k][wrong], seen[k][wrong]).sqnr_db)}" for k in names)
    if best is None or best.explained < ENOUGH:
        return Stage(stage, Cause.UNKNOWN, (), "the board was given other inputs, and no hypothesis says how", f"input {names[0]}", 0.0, facts, ranked(trials), (), tuple(wrong))
    return Stage(stage, best.causes[0], best.causes, best.names[0], best.where, best.explained, (*facts, f"{best.names[0]}: explains {best.explained:.1%}"), ranked(trials), (), tuple(wrong))
