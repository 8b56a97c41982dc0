"""Steps at run time: the operating point and the cores."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from qbench.advice.records import Answer, Consent, Inapplicable, Subject, Trial
from qbench.advice.setup import npu, priced
from qbench.cost.modes import SCALABLE


def operating_point(subject: Subject) -> Iterator[Answer]:
    """The clock held fixed: at the point of least energy, and at the fastest."""
    setup = subject.setup
    points = setup.target.operating_points
    if len(points) == 1:
        yield Inapplicable(f"{setup.target.name} has one known point, {points[0].name}: no public table")
        return
    tried = {o: priced(replace(setup, point=o)) for o in points}
    frugal = min(points, key=lambda o: tried[o].energy_j or 0.0)
    volts = "" if all(o.volts for o in points) else "; no public voltages, so energy does not fall with the clock"
    if frugal is not setup.point and setup.cores == 1:
        yield Trial(f"hold the clock at {frugal.name}, the least energy per inference", Consent.EXACT, lambda s: replace(s, point=frugal), together=False,
                    note=f"saves energy, not time; clocks unvalidated{volts}")
    if points[-1] is not setup.point:
        yield Trial(f"hold the clock at {points[-1].name}, the fastest", Consent.EXACT, lambda s: replace(s, point=points[-1]))
    else:
        slow = points[-2]
        yield Trial(f"hold the clock at {points[-1].name}, against the next lower point, {slow.name}", Consent.EXACT, lambda s: replace(s, point=slow), counted=True,
                    note="clocks unvalidated")


def cores(subject: Subject) -> Iterator[Answer]:
    model = npu(subject.setup)
    count = int(model.parameters.cores) if model else 1
    if count == 1:
        yield Inapplicable("the chip's file gives one core for one inference" if model else "the CPU model takes all threads already")
        return
    scalable = sum(set(c.op.split("+")) <= SCALABLE for c in subject.now.kernels)
    yield Trial(f"one inference on {count} cores: {scalable} of {len(subject.now.kernels)} kernels spread", Consent.EXACT, lambda s: replace(s, cores=count),
                note="unvalidated, at best: users report from hardly any gain to nearly all of it; energy not priced")
