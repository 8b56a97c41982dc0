"""One walk over the network: what each kernel, and each channel of what it writes, loses on its own and in the whole plan."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import PurePath

import numpy as np

from qbench.affine import Range
from qbench.analysis.channels import Layout, layout_of
from qbench.analysis.checks import Outputs
from qbench.analysis.energy import Sums, channel_db, channel_sums, comparable, dead_channels, error_of, joined
from qbench.analysis.groups import mixed_groups, weight_spreads
from qbench.analysis.records import Analysis, KernelError, Part, TensorError
from qbench.analysis.stored import stored_tensors, written_codes
from qbench.coverage import coverage
from qbench.metrics.fidelity import MOST_DB
from qbench.network import Network
from qbench.statistics import Statistics
from qbench.walk import Step, Values, Walk

MOST_CHANNELS = 4096
"""Longer axes than this count positions (anchors, tokens) rather than channels: they get no figure each."""
APART = 50.0
"""Neighbouring channels of a graph output whose magnitudes differ by more than this start a new part."""
MOST_RUNS = 8
"""More parts than this tell no story."""


@dataclass
class Seen:
    """Sums of one tensor while the walk goes on."""

    isolated: Sums | None = None
    accumulated: Sums | None = None
    axis: int | None = None

    def add(self, tensor: str, layout: Layout, reference: Values, isolated: Values, accumulated: Values) -> None:
        for r, alone, whole in zip(reference, isolated, accumulated, strict=True):
            self.axis = layout.axis_of(tensor, r[tensor].ndim)
            self.isolated = joined(self.isolated, channel_sums(r[tensor], alone[tensor], self.axis))
            self.accumulated = joined(self.accumulated, channel_sums(r[tensor], whole[tensor], self.axis))


@dataclass
class Measured:
    """What the walk found.

    outputs_db   accumulated SQNR of every tensor met so far
    odd          tensors that cannot be compared
    """

    kernels: list[KernelError] = field(default_factory=list)
    outputs_db: dict[str, float] = field(default_factory=dict)
    odd: list[str] = field(default_factory=list)


def analyze(walk: Walk, statistics: Statistics, *, best: Mapping[int, Mapping[str, Range]] | None = None, data: str = "",
            warnings: Sequence[str] = ()) -> tuple[Analysis, Outputs]:
    """The analysis without checks, and the outputs of the network to check proposals against.

    walk        over the plan to analyze; it is used up
    statistics  of the calibration data
    best        bits -> scale group -> range of least squared error, to tell what a calibrator loses
    """
    network, plan = walk.network, walk.plan
    covered = coverage(network, plan)
    reasons = {r.kernel: r.reason for r in covered.rows}
    layout = layout_of(walk.prepared.model)
    measured = Measured(outputs_db=dict.fromkeys(network.inputs, MOST_DB))
    for step in walk.steps():
        _take(measured, step, walk, layout, reasons.get(step.kernel.name, ""))
    outputs = Outputs(walk, {t.tensor: t for k in measured.kernels for t in k.tensors if t.tensor in network.outputs})
    odd = [f"tensor {t!r}: its shape depends on the values, so that float and quantized cannot be compared" for t in measured.odd]
    stored = stored_tensors(network, plan, walk.written, statistics, best or {})
    mixed = mixed_groups(network, walk.prepared.model, layout, written_codes(network, walk.written), statistics)
    return Analysis(
        PurePath(network.name).name, network.model_key, plan.key, plan.target, plan.toolkit, plan.calibrator, str(plan.granularity), data,
        walk.sample_count, statistics.samples, walk.simulate, plan.layers, tuple(outputs.before.items()), tuple(measured.kernels), stored,
        covered, mixed, weight_spreads(network, plan, walk.prepared.model),
        {s.tensor: s.seen_low for s in stored if s.constant}, dict(statistics.unobserved) if stored else {},
        notes=dict(plan.notes), warnings=(*warnings, *odd)), outputs


def _take(measured: Measured, step: Step, walk: Walk, layout: Layout, reason: str) -> None:
    kernel, network = step.kernel, walk.network
    unit = network.unit_of_kernel[kernel.name]
    rows = []
    for tensor, role in _worth_a_look(step):
        if not comparable(tensor, step.reference, step.isolated, step.accumulated):
            measured.odd.append(tensor)
            continue
        seen = Seen()
        seen.add(tensor, layout, step.reference, step.isolated, step.accumulated)
        rows.append(_tensor_error(tensor, role, seen, layout, network))
    measured.outputs_db |= {r.tensor: r.accumulated.sqnr_db for r in rows}
    measured.kernels.append(KernelError(
        kernel.name, kernel.op, unit, str(walk.plan.precision[unit]), reason, kernel.macs / network.macs if network.macs else 0.0,
        min((measured.outputs_db[t] for t in kernel.inputs if t in measured.outputs_db), default=MOST_DB), tuple(rows), kernel.inputs,
        tuple(t for t in kernel.outputs if t in network.outputs)))


def _worth_a_look(step: Step) -> list[tuple[str, str]]:
    """Float outputs, and the inner tensors that are stored in integers of their own, each with its role."""
    made = step.reference[0]
    return [(t, role) for names, role in ((step.kernel.outputs, "output"), (step.kernel.inner, "inner")) for t in names
            if t in made and made[t].dtype.kind == "f"]


def _tensor_error(tensor: str, role: str, seen: Seen, layout: Layout, network: Network) -> TensorError:
    alone, whole = seen.isolated, seen.accumulated
    assert alone is not None and whole is not None, "a walk holds at least one chunk"
    segments = [(s.name, s.start, s.stop) for s in layout.segments.get(tensor, ())]
    if not segments or segments[-1][2] != len(whole):
        segments = _runs(whole[:, 6]) if tensor in network.outputs and len(whole) <= MOST_CHANNELS else []
    parts = tuple(Part(name, (start, stop), float(whole[start:stop, 6].max()), error_of(alone[start:stop]), error_of(whole[start:stop]),
                       len(dead_channels(whole[start:stop]))) for name, start, stop in segments)
    many = len(whole) > MOST_CHANNELS
    named = seen.axis is not None and not many
    group = network.group_of.get(tensor)
    return TensorError(
        tensor, role, group.name if group is not None else "", seen.axis, error_of(alone), error_of(whole),
        channel_db(whole) if named else (), channel_db(alone) if named else (),
        tuple(float(f"{v:.4g}") for v in whole[:, 6]) if named else (), dead_channels(whole) if named else (), dead_channels(alone) if named else (),
        parts, f"axis {seen.axis} has {len(whole)} entries: positions, not channels" if many else "")


def _runs(magnitudes: Sums) -> list[tuple[str, int, int]]:
    """Neighbouring channels of like magnitude: (name, start, stop); [] where there is one such run, or no order in them."""
    alive = magnitudes > 0
    if not alive.any():
        return []
    logs = np.log(np.where(alive, magnitudes, np.median(magnitudes[alive])))
    ends = [0, *(int(i) + 1 for i in np.flatnonzero(np.abs(np.diff(logs)) > np.log(APART))), len(magnitudes)]
    if not 2 < len(ends) <= MOST_RUNS + 1:
        return []
    return [(f"channels {a} to {b - 1}" if b - 1 > a else f"channel {a}", a, b) for a, b in pairwise(ends)]
