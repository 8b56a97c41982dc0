"""How wrong a target's latencies were on networks that its constants had not seen, and what nobody checked."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Protocol

from qbench.network import Precision
from qbench.report import target_text as words
from qbench.report import text
from qbench.target import Target

FEW = 5
"""Designs, or rows of a precision, below which held-out errors say little."""
LEAST_INSIDE, ENOUGH = 0.7, 10
"""An 80 % interval that holds less than this share of at least so many rows is too narrow."""

RATIO_AIM = 0.15
"""Median error of the ratio of two precisions' latencies above which it is worth a warning."""


class HeldOut(Protocol):
    """One published latency and its prediction by constants that saw no network of the same design."""

    @property
    def network(self) -> str: ...
    @property
    def design(self) -> str: ...
    @property
    def precision(self) -> str: ...
    @property
    def measured_ms(self) -> float: ...
    @property
    def predicted_ms(self) -> float: ...
    @property
    def low_ms(self) -> float: ...
    @property
    def high_ms(self) -> float: ...


def error(row: HeldOut) -> float:
    """Relative: predicted / published - 1."""
    return row.predicted_ms / row.measured_ms - 1.0


def is_inside(row: HeldOut) -> bool:
    return row.low_ms <= row.measured_ms <= row.high_ms


@dataclass(frozen=True, slots=True)
class Errors:
    """Of some rows.

    median, worst   absolute relative errors
    bias            median of the signed ones: above 0 the prediction is too slow
    rank            correlation by rank; None for fewer than FEW rows, or where all are equal
    inside          rows within their interval
    """

    rows: int
    designs: int
    median: float
    worst: float
    bias: float
    rank: float | None
    inside: int

    @classmethod
    def of(cls, rows: Sequence[HeldOut]) -> Errors:
        """`rows`   at least one"""
        signed = [error(r) for r in rows]
        absolute = [abs(e) for e in signed]
        return cls(len(rows), len({r.design for r in rows}), median(absolute), max(absolute), median(signed), _rank(rows), sum(map(is_inside, rows)))

    @property
    def too_narrow(self) -> bool:
        return self.rows >= ENOUGH and self.inside < LEAST_INSIDE * self.rows


def _rank(rows: Sequence[HeldOut]) -> float | None:
    from scipy.stats import spearmanr

    measured, predicted = [r.measured_ms for r in rows], [r.predicted_ms for r in rows]
    if len(rows) < FEW or len(set(measured)) == 1 or len(set(predicted)) == 1:
        return None
    return float(spearmanr(measured, predicted)[0])


def ratio_errors(rows: Sequence[HeldOut], low: str, high: str) -> list[float]:
    """Absolute relative error of the ratio of two precisions' latencies, for each network published in both."""
    of = {(r.network, r.precision): r for r in rows}
    pairs = [(a, of[name, high]) for (name, p), a in sorted(of.items()) if p == low and (name, high) in of]
    return [abs((a.predicted_ms / b.predicted_ms) / (a.measured_ms / b.measured_ms) - 1.0) for a, b in pairs]


def precisions(rows: Sequence[HeldOut]) -> list[str]:
    """Those that occur, in the order of `Precision`."""
    return [p for p in Precision if any(r.precision == p for r in rows)]


def unvalidated(target: Target, rows: Sequence[HeldOut]) -> Iterator[tuple[str, str]]:
    """What no measurement checked, or too few did: a name and a sentence each."""
    if rows:
        yield from _designs(target, rows)
    else:
        yield "latency", f"no published latency was predicted with its design left out; the interval is {text.plain(target.provenance.interval)}"
    for p in target.precisions:
        own = [r for r in rows if r.precision == p.precision]
        note = f"; {text.plain(p.note)}" if p.note else ""
        if rows and not own:
            yield str(p.precision).upper(), f"offered, but no held-out row has it{note}"
        elif own and len(own) < FEW:
            yield str(p.precision).upper(), f"only {len(own)} held-out rows{note}"
        elif own and (e := Errors.of(own)).too_narrow:
            yield f"the interval for {str(p.precision).upper()}", f"it holds only {e.inside} of {e.rows} rows, not 80 %{note}"
    yield from _ratio(target, rows)
    if len(target.operating_points) > 1:
        yield "clocks", f"no row compares two; the {len(target.operating_points)} operating points are scaled by formula"
    yield "mixed plans and batches", "no row mixes precisions or takes more than one sample at a time: conversions and batches are formulas"
    if target.cost.get("cores", 1.0) > 1:
        yield "several cores", target.sources["cost.cores"]
    if target.cost_model == "npu" and not target.cost.get("load_bytes_per_s"):
        yield "first run", "no figure for loading and compiling"
    yield from _placement(target)
    yield from _watts(target)
    if not target.memory.allocator:
        yield "memory", "the toolchain's own placement of tensors is not public; the plan is the smallest found by qbench"
    assumed = [key for key, _, source in words.constants(target) if words.footing(source) == "assumed"]
    if assumed:
        yield f"{len(assumed)} of {len(target.cost)} constants", "assumed, taken over or not identified: see their table"


def _designs(target: Target, rows: Sequence[HeldOut]) -> Iterator[tuple[str, str]]:
    designs = sorted({r.design for r in rows})
    only = f"only {len(designs)} designs were" if len(designs) < FEW else f"{len(designs)} designs were"
    yield "networks of other kinds", f"{only} held out ({', '.join(map(text.plain, designs))}); the interval is {text.plain(target.provenance.interval)}"
    outside = sorted({d for d in designs if not any(is_inside(r) for r in rows if r.design == d)})
    if outside:
        yield "networks like " + ", ".join(outside), "every held-out row of these designs lies outside its interval"


def _ratio(target: Target, rows: Sequence[HeldOut]) -> Iterator[tuple[str, str]]:
    """INT8 against FP16: what a search for precisions turns on."""
    if rows and {Precision.INT8, Precision.FP16} <= {p.precision for p in target.precisions}:
        errors = ratio_errors(rows, "int8", "fp16")
        if not errors:
            yield "what INT8 gains over FP16", "no network is published in both"
        elif median(errors) > RATIO_AIM:
            yield "what INT8 gains over FP16", f"median error of the ratio {median(errors):.0%}: do not choose a precision by latency alone"


def _placement(target: Target) -> Iterator[tuple[str, str]]:
    if target.cost_model != "npu":
        return
    if target.operators is None and not target.rules:
        yield "operators", words.NO_TABLE if not target.cpu_ops else "beside those listed for the CPU, in no public table"
    elif words.footing(target.sources.get("cpu_ops", "")) == "assumed":
        yield "operators", target.sources["cpu_ops"]


def _watts(target: Target) -> Iterator[tuple[str, str]]:
    if target.power is None:
        yield "watts and millijoules", "no public figure of this unit: relative numbers that order plans"
    elif "unvalidated" in target.power.validated_on:
        yield "watts", target.power.validated_on
    without = sum(o.volts is None for o in target.operating_points)
    if without:
        yield "voltages", f"not public for {without} of {len(target.operating_points)} operating points: energy is not scaled with them"
    yield "heat", ("the throttle rule is the driver's; how hot the chip gets is the user's to give" if target.thermal
                   else "no public throttle rule; latencies are those of a chip that is not slowed down")
