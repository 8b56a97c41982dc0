"""Where the gap between two scales comes from: computed from ranges and weights, then tried by giving only the suspects the finer scale."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import reduce
from itertools import pairwise
from math import isfinite, log2

import numpy as np
import onnx_ir as ir

from qbench.affine import Range, affine
from qbench.comparison import Check, Gap, Row, TensorRange, WeightSpread, differ
from qbench.graph import PreparedModel
from qbench.network import Kernel, Network, Precision
from qbench.plan import Granularity, Plan
from qbench.protocols import Accuracy, Array, Progress, silent
from qbench.qdq.layout import channel_axis, weight_of
from qbench.walk import Values, Walk
from qbench.workbench.readers import Errors, reading_errors

Evaluate = Callable[[Plan], Accuracy]
MOST_OWNERS = 4
OWNED_BITS = 1.0
"""Tensors count as those that set the one scale when the others would gain this much without them."""
ENOUGH = 0.9
"""Share of the gap at which the search for suspects ends."""
MOST_CHECKS = 6
MOST_DB = 200.0


def range_gap(prepared: PreparedModel, coarse: tuple[Row, Plan], fine: tuple[Row, Plan], samples: Sequence[dict[str, Array]],
              evaluate: Evaluate, progress: Progress = silent) -> Gap:
    """From one scale for all activations to one for each tensor."""
    plan = coarse[1]
    whole = reduce(Range.union, plan.ranges.values())
    errors = reading_errors(Walk(prepared, fine[1], samples), {"one": dict.fromkeys(plan.ranges, whole), "own": plan.ranges}, progress)
    tensors = tensor_ranges(prepared.network, plan, errors)
    owners, freed = widest(plan, tensors)
    gap = replace(_gap(coarse, fine), whole=(whole.low, whole.high), tensors=tensors, owners=owners, freed_bits=freed)
    checks: list[tuple[str, Sequence[TensorRange], dict[str, Range]]] = []
    if owners:
        rest = [r for g, r in plan.ranges.items() if g not in {t.name for t in owners}]
        checks.append(("widest", owners, _own(plan, owners, reduce(Range.union, rest))))
    noisy = [t for t in tensors if t.extra_noise > 0.0 and t.bits_lost > 0.0]
    checks += [("noisiest", noisy[:count], _own(plan, noisy[:count], whole)) for count in _doubling(len(noisy))]
    plans = [(kind, [t.name for t in some], replace(plan, granularity=Granularity.PER_LAYER, ranges=ranges)) for kind, some, ranges in checks]
    return replace(gap, checks=_run(plans, gap, coarse[0], evaluate, progress))


def weight_gap(prepared: PreparedModel, coarse: tuple[Row, Plan], fine: tuple[Row, Plan], samples: Sequence[dict[str, Array]],
               evaluate: Evaluate, progress: Progress = silent) -> Gap:
    """From one scale for each weight tensor to one for each output channel."""
    layers = weight_spreads(prepared, coarse[1], fine[1], samples, progress)
    gap = replace(_gap(coarse, fine), layers=layers)
    units = list(dict.fromkeys(w.unit for w in layers if w.extra_noise > 0.0))
    checks = [("weights", units[:count], only_per_channel(coarse[1], units[:count])) for count in _doubling(len(units))]
    return replace(gap, checks=_run(checks, gap, coarse[0], evaluate, progress))


def tensor_ranges(network: Network, plan: Plan, errors: Errors) -> tuple[TensorRange, ...]:
    """The scale groups of `plan`, most extra noise under one scale first; those that are zero throughout lose nothing and are left out.

    errors   scale group -> "one" and "own" -> noise over signal at its readers
    """
    scheme = next(iter(plan.schemes.values())).activation
    whole = affine(reduce(Range.union, plan.ranges.values()), scheme).scale if plan.ranges else 1.0
    found = []
    for group, own in plan.ranges.items():
        if own.magnitude == 0.0:
            continue
        coarser = whole / affine(own, scheme).scale
        readers = tuple(dict.fromkeys(k.name for t in _tensors(network, group) for k in network.kernels if t in (*k.inputs, *k.inner)))
        share = sum(network.kernel[k].macs for k in readers) / max(network.macs, 1)
        found.append(TensorRange(group, own.low, own.high, max(0.0, log2(coarser)), min(scheme.levels, scheme.levels / coarser), readers, share,
                                 *(_db(errors.get(group, {}).get(which, 0.0)) for which in ("one", "own"))))
    return tuple(sorted(found, key=lambda t: (-t.extra_noise, -t.bits_lost)))


def _tensors(network: Network, group: str) -> tuple[str, ...]:
    return network.group_of[group].tensors


def widest(plan: Plan, tensors: Sequence[TensorRange]) -> tuple[tuple[TensorRange, ...], float]:
    """The few tensors that set the one scale, and the bits that all others would gain without them.

    Of the first 1 to 4 tensors by width, and no more than half of all, as many as make the largest single step; none where the step is
    less than a bit: then the tensors are of a kind.
    """
    scheme = next(iter(plan.schemes.values())).activation
    by_width = sorted(tensors, key=lambda t: t.bits_lost)
    unions = [reduce(Range.union, [Range(t.low, t.high) for t in by_width[n:]]) for n in range(min(MOST_OWNERS, len(by_width) // 2) + 1)]
    scales = [affine(r, scheme).scale for r in unions]
    steps = [log2(a / b) for a, b in pairwise(scales)]
    if not steps or max(steps) < OWNED_BITS:
        return (), 0.0
    count = int(np.argmax(steps)) + 1
    return tuple(by_width[:count]), log2(scales[0] / scales[count])


def _doubling(count: int) -> list[int]:
    """1, 2, 4, 8 ... up to half of them."""
    return [2**n for n in range(MOST_CHECKS) if 2**n <= max(1, count // 2)] if count else []


def _own(plan: Plan, tensors: Sequence[TensorRange], rest: Range) -> dict[str, Range]:
    """Ranges in which `tensors` have their own and all others share `rest`."""
    mine = {t.name for t in tensors}
    return {g: r if g in mine else rest for g, r in plan.ranges.items()}


def weight_spreads(prepared: PreparedModel, coarse: Plan, fine: Plan, samples: Sequence[dict[str, Array]],
                   progress: Progress = silent) -> tuple[WeightSpread, ...]:
    """The integer layers with weights, most extra noise under one scale first."""
    network = prepared.network
    one, each = Walk(prepared, coarse, samples), Walk(prepared, fine, samples)
    nodes = {str(n.name): n for n in prepared.model.graph}
    found = []
    for number, kernel in enumerate(network.kernels):
        progress("weights of each layer", number, len(network.kernels))
        reference = one.run_float(kernel)
        anchor = next((nodes[n] for n in kernel.nodes if n in nodes and channel_magnitudes(nodes[n]) is not None), None)
        magnitudes = channel_magnitudes(anchor) if anchor is not None else None
        if anchor is not None and magnitudes is not None and not one.in_float(kernel):
            axis = 1 if anchor.op_type.startswith("Conv") else -1
            outputs = [t for t in kernel.outputs if network.tensors[t].dtype == "float32"]
            errors = []
            for walk in (one, each):
                made = _before_storing(walk, kernel, outputs, one.float_values)
                errors.append(channel_noise([(r[t], m[t]) for r, m in zip(reference, made, strict=True) for t in outputs], axis))
            alive = magnitudes[magnitudes > 0.0]
            spread = float(alive.max() / np.median(alive)) if alive.size else 1.0
            found.append(WeightSpread(kernel.name, network.unit_of_kernel[kernel.name], magnitudes.size, spread, log2(spread),
                                      _db(errors[0]), _db(errors[1]), kernel.macs / max(network.macs, 1)))
        one.advance(kernel, reference, reference)
    return tuple(sorted(found, key=lambda w: -w.extra_noise))


def channel_magnitudes(node: ir.Node) -> Array | None:
    """Largest magnitude of each output channel's weights; None for a node without weights that have channels."""
    weight = weight_of(node)
    axis = channel_axis(weight) if weight is not None else None
    if weight is None or axis is None:
        return None
    value = node.inputs[weight.index]
    assert value is not None and value.const_value is not None
    data = np.abs(value.const_value.numpy().astype(np.float32))
    return np.asarray(np.moveaxis(data, axis, 0).reshape(data.shape[axis], -1).max(axis=1, initial=0.0))


def _before_storing(walk: Walk, kernel: Kernel, outputs: Sequence[str], values: Values) -> Values:
    """Outputs of the integer kernel as it computes them: the codes in which they are stored are not the weights' doing."""
    raw = {t: walk.written.raw[t] for t in outputs}
    part = walk.quantized_part(kernel, list(raw.values()))
    return walk.run_quantized(kernel, values) if part is None else walk.run(part, kernel, values, raw)


def channel_noise(pairs: Sequence[tuple[Array, Array]], axis: int) -> float:
    """Noise over signal of each channel along `axis`, mean over the channels that have a signal: a large channel hides nothing.

    pairs   float and quantized, one a chunk
    """
    noise, signal = np.zeros(1), np.zeros(1)
    for reference, made in pairs:
        r = np.moveaxis(reference, axis, 0).reshape(reference.shape[axis], -1).astype(np.float64)
        d = np.moveaxis(made, axis, 0).reshape(r.shape) - r
        noise, signal = noise + np.einsum("ci,ci->c", d, d), signal + np.einsum("ci,ci->c", r, r)
    return float(np.mean(noise[signal > 0.0] / signal[signal > 0.0])) if np.any(signal > 0.0) else 0.0


def only_per_channel(plan: Plan, units: Sequence[str]) -> Plan:
    """`plan` with per-channel weights in `units` alone.

    Both kinds are stored alike but for the weights, so the second one takes the place of the other integer precision in the plan.
    """
    [(name, scheme)] = plan.schemes.items()
    other = Precision.INT16 if name == Precision.INT8 else Precision.INT8
    precision = {u: other if u in units and not p.is_float else p for u, p in plan.precision.items()}
    schemes = {name: replace(scheme, weight_per_channel=False), str(other): replace(scheme, weight_per_channel=True)}
    return replace(plan, granularity=Granularity.PER_CHANNEL, precision=precision, schemes=schemes)


def _gap(coarse: tuple[Row, Plan], fine: tuple[Row, Plan]) -> Gap:
    a, b = coarse[0], fine[0]
    bits = next(iter(coarse[1].schemes.values())).activation.bits
    return Gap(b.precision, b.calibrator, a.scale, b.scale, b.accuracy.value - a.accuracy.value, b.accuracy.sqnr_db - a.accuracy.sqnr_db,
               differ(a, b), bits)


def _run(plans: Sequence[tuple[str, Sequence[str], Plan]], gap: Gap, coarse: Row, evaluate: Evaluate, progress: Progress) -> tuple[Check, ...]:
    """The checks one after the other, until one wins the gap back."""
    done: list[Check] = []
    for number, (kind, names, plan) in enumerate(plans):
        progress("where the gap comes from", number, len(plans))
        found = evaluate(plan)
        step, whole = ((found.value - coarse.accuracy.value, gap.accuracy) if gap.clear else (found.sqnr_db - coarse.accuracy.sqnr_db, gap.sqnr_db))
        won = step / whole if whole and isfinite(whole) else float("nan")
        done.append(Check(kind, tuple(names), found, won))
        if won >= ENOUGH:
            break
    return tuple(done)


def _db(error: float) -> float:
    return float(np.clip(-10.0 * np.log10(error), -MOST_DB, MOST_DB)) if 0.0 < error < float("inf") else -MOST_DB if error else MOST_DB


__all__ = ["Evaluate", "channel_magnitudes", "only_per_channel", "range_gap", "tensor_ranges", "weight_gap", "weight_spreads", "widest"]
