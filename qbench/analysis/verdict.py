"""The verdict in words: what to change, why, and what it gained when it was tried; ordered by that gain."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from qbench.analysis import words
from qbench.analysis.ablation import collapsed
from qbench.analysis.proposals import (
    FALLS_DB,
    MOST_OF,
    POOR_DB,
    SPREAD,
    WORTH_DB,
    amplification_db,
    best_raises,
    feeding_units,
    gain_alone,
    is_spread,
    noisy_units,
    own_noise,
    poor_ranges,
)
from qbench.analysis.records import (
    Analysis,
    Check,
    Finding,
    KernelError,
    MixedGroup,
    StoredTensor,
    TensorError,
    WeightSpread,
)
from qbench.metrics.fidelity import MOST_DB

FINE_DB = 25.0
"""A unit that leaves this much on its own (6 % of its amplitude are noise) is not to blame."""
FEW_CODES = 16.0
"""A tensor whose range spans fewer codes than this has less than four bits."""
HIDDEN_DB = 6.0
"""A tensor whose middle channel is this much worse than the whole hides its error."""
HIDES_DB = 15.0
"""From here on a whole tensor looks as if it worked."""
MISSED_DB = 40.0
"""An output that float keeps this close without some channels does not need them."""
ORDER = ("nonfinite", "cut", "raise", "range", "granularity", "weights", "collapse", "amplifies", "constant", "unobserved", "spread")


def verdict(analysis: Analysis) -> tuple[Finding, ...]:
    """What an engineer should do with this plan, the largest measured gain first; () for a plan without any integer kernel.

    A finding with a gain was run; one without tells what the numbers show.
    """
    if not analysis.integer:
        return ()
    found = [*_not_finite(analysis), *_cuts(analysis), *_raises(analysis), *_ranges(analysis), *_granularities(analysis), *_collapses(analysis),
             *_amplifies(analysis), *_weights(analysis), *_constant(analysis), *_unobserved(analysis), *_spread(analysis)]
    ordered = sorted(found, key=lambda f: (f.kind != "nonfinite", f.gain_db is None, -(f.gain_db or 0.0), ORDER.index(f.kind)))
    last = max((i for i, f in enumerate(ordered) if f.kind == "raise"), default=-1)
    rest = () if any(f.kind == "spread" for f in found) else (*_leave(analysis), *_fine(analysis, found))
    return (*ordered[:last + 1], *_together(analysis), *ordered[last + 1:], *rest)


# -- what was tried

def _raises(analysis: Analysis) -> Iterable[Finding]:
    worth = [c for c in best_raises(analysis.checks) if c.useful_db >= WORTH_DB]
    for check in worth:
        if not _explained(analysis, check) and not any(set(check.units) < set(c.units) for c in worth):
            kernels = [k for k in analysis.kernels if k.unit in check.units]
            other = next((c for c in analysis.checks if c.kind == "raise" and c.units == check.units and c.change != check.change), None)
            beside = f"; {other.change.upper()} gives {words.signed(other.gain_db)}" if other is not None else ""
            macs = sum(k.macs_share for k in kernels)
            several = len(check.units) > 1
            both = (f" Alone the best of them gains {words.signed(gain_alone(check, analysis.checks))}: what passes between two units is "
                    "stored by both." if several else "")
            work = f" {words.percent(macs)} of the MACs are in {'them' if several else 'it'}." if macs else ""
            text = (f"Raise {words.names(check.units)} from {words.precisions(kernels)} to {check.change.upper()}: {words.gain(check)}{beside}."
                    f"{both} {_why(kernels)}{work}{_cheaper(analysis, check, kernels)}")
            yield Finding("raise", check.subject, text, check.gain_db)


def _cheaper(analysis: Analysis, check: Check, kernels: Sequence[KernelError]) -> str:
    """A range that alone gives most of what a raise gives costs nothing on the chip."""
    touched = {t for k in kernels for t in (*k.inputs, *(e.tensor for e in k.tensors))}
    free = max((c for c in analysis.checks if c.kind == "range" and c.subject in touched), key=lambda c: c.gain_db, default=None)
    if free is None or free.gain_db < MOST_OF * check.gain_db:
        return ""
    return f" Try the range of {free.subject!r} first: it alone gains {words.signed(free.gain_db)} and costs nothing."


def _explained(analysis: Analysis, check: Check) -> bool:
    """Whether another finding tells of this raise: as a way out for a mixed group, or for what an amplifying kernel is fed."""
    mixed = {m.unit for m in analysis.mixed if _shares_badly(m)}
    amplifier = _amplifier(analysis)
    return set(check.units) <= mixed or (amplifier is not None and check.units == feeding_units(analysis, [amplifier]))


def _together(analysis: Analysis) -> Iterable[Finding]:
    best = max((c.gain_db for c in analysis.checks if c.kind == "raise"), default=0.0)
    for check in (c for c in analysis.checks if c.kind == "together"):
        more = check.gain_db >= best + WORTH_DB
        yield Finding("together", check.subject, f"All of these at once ({words.names(check.units)}): {words.gain(check)}"
                      + ("." if more else ", no more than the best of them alone: raise that one first and look again."), check.gain_db)


def _spread(analysis: Analysis) -> Iterable[Finding]:
    """A poor output without a culprit."""
    if not is_spread(analysis, analysis.checks):
        return
    steps = [c for c in analysis.checks if c.kind == "noisiest"]
    best = max((c.gain_db for c in analysis.checks if c.kind == "raise"), default=0.0)
    alone = sorted(k.worst.isolated.sqnr_db for k in analysis.integer if k.worst is not None)
    text = (f"The error is spread: on their own the {len(alone)} integer kernels leave {words.plain(alone[0])} to {words.db(alone[-1])}, "
            f"half of them less than {words.db(alone[len(alone) // 2])}, and no single unit gains more than {words.signed(best)} at the output.")
    for c in steps:
        macs = sum(k.macs_share for k in analysis.kernels if k.unit in c.units)
        text += (f" {'Raising the' if c is steps[0] else 'The'} {c.subject} ({words.percent(macs)} of the MACs) to {c.change.upper()}: "
                 f"{words.gain(c)}.")
    yield Finding("spread", analysis.outputs[0][0], text, max((c.gain_db for c in steps), default=None))


def _why(kernels: Sequence[KernelError]) -> str:
    """The numbers behind a raise: the worst kernel alone, and how the error moves across it."""
    kernel = max(kernels, key=own_noise)
    worst = kernel.worst
    if worst is None:
        return ""
    text = f"On its own {kernel.name!r} ({kernel.op}) leaves {words.db(worst.isolated.sqnr_db)}"
    alone = sorted(worst.used(worst.channels_alone_db))
    if alone and worst.isolated.sqnr_db - alone[len(alone) // 2] >= HIDDEN_DB:
        text += f" as a whole, but half of its channels are below {words.db(alone[len(alone) // 2])}"
    arrives, leaves = kernel.arrives_db, worst.accumulated.sqnr_db
    if arrives < MOST_DB and arrives - leaves >= 3.0:
        text += f"; across it the accumulated SQNR falls from {words.plain(arrives)} to {words.db(leaves)}"
    dead = len(worst.dead_alone)
    return text + (f"; {dead} of its {len(worst.channels_db)} channels come out constant zero" if dead else "") + "."


def _shares_badly(group: MixedGroup) -> bool:
    return group.sources[-1].codes < FEW_CODES


def _cuts(analysis: Analysis) -> Iterable[Finding]:
    for group in (g for g in analysis.mixed if _shares_badly(g)):
        large, small = group.sources[0], group.sources[-1]
        error = _tensor(analysis, group.tensor)
        kernel = _kernel(analysis, group.kernel)
        text = (f"Scale group {group.group!r} mixes ranges {words.times(group.ratio)} apart: {large.tensor!r} reaches {large.magnitude:.4g}, "
                f"{small.tensor!r} {small.magnitude:.4g}, and they meet in {kernel.op if kernel else 'Concat'} {group.kernel!r}. "
                f"One scale for both leaves {small.tensor!r} {small.codes:.2g} codes{_hidden(error)}.")
        cut = next((c for c in analysis.checks if c.kind == "cut" and c.subject == group.group), None)
        raises = [c for c in analysis.checks if c.kind == "raise" and c.units == (group.unit,)]
        if group.blocked:
            text += f" (a) Cutting the graph before {group.kernel!r} is no way out: {group.blocked}."
        else:
            text += (f" (a) Cut the graph before {group.kernel!r} and let {words.names(group.inputs)} leave as outputs of their own, at the same "
                     "precision" + (f": {words.gain(cut, '')}." if cut is not None else "."))
        text += f" (b) Or keep the graph and raise unit {group.unit!r}" + (
            ": " + "; ".join(f"to {c.change.upper()}, {words.gain(c)}" for c in raises) if raises else " to INT16 or FP16") + "."
        gains = [c.gain_db for c in ([cut] if cut is not None else raises)]
        yield Finding("cut", group.group, text, max(gains, default=None))


def _hidden(error: TensorError | None) -> str:
    """The collapse that the whole tensor's figure hides."""
    if error is None or not error.parts:
        return ""
    worst = min(error.parts, key=lambda p: p.accumulated.sqnr_db)
    many = worst.channels[1] - worst.channels[0]
    dead = f", {worst.dead} of its {many} channels exactly zero" if worst.dead else ""
    return (f": {worst.name!r} comes out at {words.db(worst.accumulated.sqnr_db)}{dead}, while {error.tensor!r} as a whole shows "
            f"{words.db(error.accumulated.sqnr_db)}")


def _ranges(analysis: Analysis) -> Iterable[Finding]:
    stored = {s.tensor: s for s in analysis.stored}
    for check in (c for c in analysis.checks if c.kind == "range" and c.useful_db >= WORTH_DB):
        if (tensor := stored.get(check.subject)) is not None:
            text = f"{_range_fault(analysis, tensor)} With {tensor.best_low:.4g} to {tensor.best_high:.4g} instead: {words.gain(check)}."
        else:
            text = (f"Calibrator {analysis.calibrator} {_range_faults(analysis)}. With ranges of least squared error for all of them: "
                    f"{words.gain(check)}. Compare calibrators: qbench compare.")
        yield Finding("range", check.subject, text, check.gain_db)


def _range_faults(analysis: Analysis) -> str:
    """"clips 3 tensors too much and leaves the range of 2 tensors too wide"."""
    poor = poor_ranges(analysis)
    clipped = sum(s.clip_noise > 0.5 for s in poor)
    faults = [f"clips {words.count(clipped, 'tensor')} too much"] if clipped else []
    faults += [f"leaves the range of {words.count(len(poor) - clipped, 'tensor')} too wide"] if clipped < len(poor) else []
    return " and ".join(faults)


def _range_fault(analysis: Analysis, s: StoredTensor) -> str:
    loss = f"storing it so leaves {words.db(s.noise_db)}, and could leave {words.db(s.best_db)}"
    if s.clip_noise > 0.5:
        return (f"Calibrator {analysis.calibrator} clips {s.tensor!r} too much: its codes reach {s.low:.4g} to {s.high:.4g}, the data "
                f"{s.seen_low:.4g} to {s.seen_high:.4g}; {words.percent(s.clipped)} of the values lie beyond and make "
                f"{words.percent(s.clip_noise)} of the noise; {loss}.")
    used = max(s.seen_high, 0.0) - min(s.seen_low, 0.0)
    why = "for a few values far out" if s.high - s.low < 1.3 * used else f"while these data stay within {s.seen_low:.4g} to {s.seen_high:.4g}"
    return f"The range of {s.tensor!r} is too wide: {s.low:.4g} to {s.high:.4g} in steps of {s.step:.3g}, {why}; {loss}."


def _granularities(analysis: Analysis) -> Iterable[Finding]:
    for check in (c for c in analysis.checks if c.kind == "granularity" and c.useful_db >= WORTH_DB):
        spread = next((w for w in analysis.weights if not w.per_channel and w.ratio >= SPREAD), None)
        why = f" {_unequal(spread)}" if spread is not None and check.change == "per-channel" else ""
        yield Finding("granularity", check.subject, f"Use {check.change} scales instead of {check.subject}: {words.gain(check)}.{why}", check.gain_db)


# -- what the numbers show

def _not_finite(analysis: Analysis) -> Iterable[Finding]:
    bad = next(((k, t) for k in analysis.kernels for t in k.tensors if t.accumulated.sqnr_db <= -MOST_DB), None)
    if bad is not None:
        kernel, error = bad
        text = (f"{kernel.op} {kernel.name!r} writes NaN or infinity in the quantized network, where float does not: its inputs arrive with "
                f"{words.db(kernel.arrives_db)}, alone it is at {words.db(error.isolated.sqnr_db)}. Keep it and what feeds it in float.")
        yield Finding("nonfinite", kernel.name, text)


def _collapses(analysis: Analysis) -> Iterable[Finding]:
    """Channels that a kernel itself turns into zeros, one finding a scale group, those that matter most first.

    Where the float model was run without them and did not miss them, nothing is said.
    """
    told = {m.group for m in analysis.mixed if _shares_badly(m)}
    tried = {c.subject: min(c.parts, key=lambda p: p[2]) for c in analysis.checks if c.kind == "without"}
    found = [(k, e) for k, e in collapsed(analysis) if e.group not in told and (not tried or e.tensor in tried)]
    found.sort(key=lambda f: tried[f[1].tensor][2] if f[1].tensor in tried else 0.0)
    for kernel, error in found[:words.FEW_NAMES]:
        if error.tensor in tried and tried[error.tensor][2] >= MISSED_DB:
            continue
        stored = next((s for s in analysis.stored if s.group == error.group), None)
        reach = max(error.magnitudes[c] for c in error.dead_alone)
        step = f", one step is {stored.step:.3g}" if stored is not None else ""
        missed = ""
        if error.tensor in tried:
            name, _, after = tried[error.tensor]
            missed = f" The network needs them: without them float itself is at {words.db(after)} in output {name!r}."
        hides = " and hides it" if error.isolated.sqnr_db >= HIDES_DB else ""
        cure = ("One scale for all tensors is too coarse here." if analysis.granularity == "global"
                else f"Equalize the channels (cle), or raise unit {kernel.unit!r} and its neighbours.")
        text = (f"{len(error.dead_alone)} of {len(error.channels_db)} channels of {error.tensor!r} ({kernel.op} {kernel.name!r}) come out constant "
                f"zero and are not in float (there they reach {reach:.3g}{step}): {words.numbers(error.dead_alone)}. The whole tensor shows "
                f"{words.db(error.isolated.sqnr_db)}{hides}.{missed} {cure}")
        yield Finding("collapse", error.tensor, text)


def _amplifier(analysis: Analysis) -> KernelError | None:
    """The kernel that makes most of what comes in, where that is much."""
    kernel = max(analysis.kernels, key=amplification_db, default=None)
    return kernel if kernel is not None and amplification_db(kernel) >= FALLS_DB else None


def _amplifies(analysis: Analysis) -> Iterable[Finding]:
    kernel = _amplifier(analysis)
    if kernel is None:
        return
    worst = min(kernel.tensors, key=lambda t: t.accumulated.sqnr_db)
    feeding = feeding_units(analysis, [kernel])
    check = max((c for c in analysis.checks if c.kind == "raise" and c.units == feeding), key=lambda c: c.gain_db, default=None)
    text = (f"{kernel.op} {kernel.name!r} amplifies the error: its inputs arrive with {words.db(kernel.arrives_db)}, alone it leaves "
            f"{words.db(worst.isolated.sqnr_db)}, yet its output shows {words.db(worst.accumulated.sqnr_db)}. What helps is to raise what feeds it")
    if check is not None and check.useful_db < WORTH_DB:
        return
    gain = None if check is None else check.gain_db
    tried = "" if check is None else f": {check.change.upper()}, {words.gain(check)}"
    yield Finding("amplifies", kernel.name, f"{text}{f' ({words.names(feeding)})' if feeding else ''}{tried}.", gain)


def _weights(analysis: Analysis) -> Iterable[Finding]:
    """Weights under one scale, unless a finer granularity was run and told of them."""
    if any(c.kind == "granularity" and c.change == "per-channel" and c.useful_db >= WORTH_DB for c in analysis.checks):
        return
    for w in [w for w in analysis.weights if not w.per_channel and w.ratio >= SPREAD and w.codes < FEW_CODES * 2][:words.FEW_NAMES]:
        yield Finding("weights", w.kernel, f"{_unequal(w)} Use per-channel scales where the target takes them, or equalize (cle).")


def _unequal(w: WeightSpread) -> str:
    return (f"Weights {w.weight!r} of {w.kernel!r} share one scale, and channel {w.widest} reaches {w.largest:.3g}, {words.times(w.ratio)} the "
            f"median channel's {w.median:.3g}: the median channel keeps {w.codes:.3g} of {1 << w.bits} codes.")


def _constant(analysis: Analysis) -> Iterable[Finding]:
    if analysis.constant:
        named = [f"{t!r} ({v:.4g})" for t, v in analysis.constant.items()]
        text = (f"{words.count(len(named), 'tensor')} stored in integers held one value over all {analysis.seen} calibration samples: "
                f"{words.some(named)}. Their scales say nothing about other data: calibrate on data that move them, or keep them in float.")
        yield Finding("constant", next(iter(analysis.constant)), text)


def _unobserved(analysis: Analysis) -> Iterable[Finding]:
    if analysis.unobserved:
        named = [f"{t!r} ({why})" for t, why in analysis.unobserved.items()]
        text = f"{words.count(len(named), 'tensor')} without a range, kept in float: {words.some(named)}."
        yield Finding("unobserved", next(iter(analysis.unobserved)), text)


def _leave(analysis: Analysis) -> Iterable[Finding]:
    """Noisy units that gain nothing: a large error of its own need not matter at the output."""
    useful = {u for c in analysis.checks if c.kind == "raise" and c.useful_db >= WORTH_DB for u in c.units} | {m.unit for m in analysis.mixed}
    for check in best_raises(analysis.checks):
        kernels = [k for k in analysis.integer if k.unit in check.units]
        if len(check.units) == 1 and kernels and not useful & set(check.units):
            worst = max(kernels, key=own_noise).worst
            if worst is not None and worst.isolated.sqnr_db < 30.0:
                text = (f"Leave {words.names(check.units)} at {words.precisions(kernels)}: on its own it shows {words.db(worst.isolated.sqnr_db)}, "
                        f"but at {check.change.upper()} the output gains {words.signed(check.gain_db)} only.")
                yield Finding("leave", check.subject, text, check.gain_db)


def _fine(analysis: Analysis, found: Sequence[Finding]) -> Iterable[Finding]:
    """What may stay as it is; where nothing was tried, what to try."""
    outputs = "Outputs as they ship: " + ", ".join(f"{name!r} {words.db(db)}" for name, db in analysis.outputs[:words.FEW_NAMES]) + "."
    alone: dict[str, float] = {}
    for kernel in analysis.integer:
        alone[kernel.unit] = min([alone.get(kernel.unit, MOST_DB), *(t.isolated.sqnr_db for t in kernel.tensors)])
    named = {u for c in analysis.checks if c.kind == "raise" and c.useful_db >= WORTH_DB for u in c.units}
    fine = [u for u, db in alone.items() if db >= FINE_DB and u not in named]
    least = min((db for u, db in alone.items() if u in fine), default=MOST_DB)
    text = f"{len(fine)} of {len(alone)} integer units are fine as they are: on their own they leave {words.db(least)} or more."
    poor = min((db for _, db in analysis.outputs), default=MOST_DB) < POOR_DB
    if not any(c.kind == "raise" for c in analysis.checks) and (poor or len(fine) < len(alone)):
        worst = noisy_units(analysis)[:words.FEW_NAMES]
        promising = ", ".join(f"{u!r} ({words.db(alone[u])} alone)" for u in worst)
        yield Finding("untried", ", ".join(worst), f"No layer was tried at a higher precision; the most promising: {promising}.")
    elif not found:
        text = (f"No change that was tried helps. {text}" if poor else f"Nothing is worth changing. {text}")
    if fine:
        yield Finding("fine", ", ".join(fine), f"{text} {outputs}")


def _tensor(analysis: Analysis, name: str) -> TensorError | None:
    return next((t for k in analysis.kernels for t in k.tensors if t.tensor == name), None)


def _kernel(analysis: Analysis, name: str) -> KernelError | None:
    return next((k for k in analysis.kernels if k.name == name), None)
