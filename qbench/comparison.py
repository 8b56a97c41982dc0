"""What a comparison of calibrators and scales hands back: compare.json, the terminal tables and the page are views of this record."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from importlib import import_module
from itertools import pairwise
from math import hypot, isfinite, isnan
from typing import Any

from qbench.protocols import Accuracy, Price
from qbench.warning_codes import code_of

SCALES = ("global", "per-layer", "per-channel", "per-group")
"""Coarse to fine."""
FLOAT = "float"


@dataclass(frozen=True, slots=True)
class Layer:
    """A kernel, and the SQNR of its outputs in dB against float, in the network as it is quantized."""

    name: str
    sqnr_db: float


@dataclass(frozen=True, slots=True)
class Row:
    """One measured plan.

    scale        how far one scale reaches, one of SCALES; "" for float
    worst        the kernel of lowest SQNR; None when no kernel runs in integers
    size_bytes   of the model file, weights included
    layers       units per precision
    plan         path of its plan.json relative to the result folder; "" for float
    note         what the calibrator has to say of its choice
    """

    precision: str
    calibrator: str
    scale: str
    accuracy: Accuracy
    worst: Layer | None
    size_bytes: int
    price: Price
    layers: Mapping[str, int]
    plan: str = ""
    plan_key: str = ""
    note: str = ""


@dataclass(frozen=True, slots=True)
class VendorRow:
    """A network in the vendor's simulator: quantized by its own toolkit, or by a plan of ours.

    maker      "qbench" or the toolkit with its version; name   its algorithm, or the plan
    value, low, high   the metric with its 95 % interval; sqnr_db   of all outputs against float
    cycles     of the toolkit's own table; build_s   seconds of the build; on_cpu   layers that it puts on the CPU
    layers     the toolkit's accuracy analysis, a row a layer; empty where it was not run
    refused    why there are no figures; "" where there are
    """

    maker: str
    name: str
    metric: str = ""
    value: float = float("nan")
    low: float = float("nan")
    high: float = float("nan")
    samples: int = 0
    sqnr_db: float = float("nan")
    cycles: int = 0
    weight_kb: float = 0.0
    build_s: float = 0.0
    on_cpu: tuple[str, ...] = ()
    layers: tuple[Mapping[str, Any], ...] = ()
    refused: str = ""


@dataclass(frozen=True, slots=True)
class TensorRange:
    """An activation tensor, or a group that shares a scale, under one scale for all.

    low, high    its own range
    bits_lost    log2 of how much coarser its steps are than with a scale of its own
    codes        how many of the codes its range still covers
    readers      kernels that read it
    macs_share   their share of the network's multiply-accumulates
    coarse_db, fine_db   SQNR at the outputs of its readers with the one scale and with its own, all else as in float but their integer weights
    """

    name: str
    low: float
    high: float
    bits_lost: float
    codes: float
    readers: tuple[str, ...]
    macs_share: float
    coarse_db: float
    fine_db: float

    @property
    def extra_noise(self) -> float:
        """Noise over signal that the one scale adds there."""
        return _extra(self.coarse_db, self.fine_db)


@dataclass(frozen=True, slots=True)
class WeightSpread:
    """A layer under one scale for its whole weight tensor.

    spread       magnitude of the largest output channel over that of the median one
    bits_lost    log2 of it: what the median channel loses
    coarse_db, fine_db   SQNR of the layer's output on float inputs, with one scale and with one per channel; noise over signal is taken
                 per output channel and averaged, so that a large channel hides nothing
    """

    kernel: str
    unit: str
    channels: int
    spread: float
    bits_lost: float
    coarse_db: float
    fine_db: float
    macs_share: float

    @property
    def extra_noise(self) -> float:
        """Noise over signal that one scale adds."""
        return _extra(self.coarse_db, self.fine_db)


@dataclass(frozen=True, slots=True)
class Check:
    """What was won back by giving only `names` the finer scale.

    kind   "widest": the tensors that set the one scale; "noisiest": those it adds most noise to; "weights": layers
    won    share of the gap, in accuracy where it is clear there, else in dB; more than 1 where the whole step loses by the rest
    """

    kind: str
    names: tuple[str, ...]
    accuracy: Accuracy
    won: float


@dataclass(frozen=True, slots=True)
class Gap:
    """The step from a coarse scale to a finer one under one calibrator, and where it comes from.

    accuracy, sqnr_db   finer minus coarser, in the metric's own unit and in dB
    clear               the difference in accuracy is more than chance, see `differ`
    bits                of the codes
    whole               the range of the one scale; owners: the widest tensors, which set it; freed_bits: what all others would
                        gain if these had a scale of their own
    tensors, layers     every tensor and every layer with its loss, most extra noise first
    """

    precision: str
    calibrator: str
    coarse: str
    fine: str
    accuracy: float
    sqnr_db: float
    clear: bool
    bits: int
    whole: tuple[float, float] = (0.0, 0.0)
    owners: tuple[TensorRange, ...] = ()
    freed_bits: float = 0.0
    tensors: tuple[TensorRange, ...] = ()
    layers: tuple[WeightSpread, ...] = ()
    checks: tuple[Check, ...] = ()


@dataclass(frozen=True)
class Comparison:
    """rows           every plan that was measured, in the order of measuring; `ranked` sorts them
    gaps           explained steps, for the best calibrator of each precision
    calibrators    as asked for, in order
    layer_samples  evaluation samples on which layers were compared
    partial        stopped by the user before it was done
    """

    model: str
    sample: bool
    target: str
    toolkit: str
    reference: Row
    rows: tuple[Row, ...]
    gaps: tuple[Gap, ...]
    calibrators: tuple[str, ...]
    layer_samples: int
    wall_s: float
    provenance: Mapping[str, str]
    warnings: tuple[str, ...] = ()
    partial: bool = False
    unmeasured: Mapping[str, str] = field(default_factory=dict)
    """What was asked for and not measured -> why."""
    vendor: tuple[VendorRow, ...] = ()
    """The vendor's own results and ours, in the vendor's simulator; see `beaten`."""

    @property
    def best(self) -> Row | None:
        return next(iter(ranked(self.rows)), None)

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        shown: str = import_module("qbench.report.notebook").comparison(self)     # by name: the report knows this module, not the other way round
        return shown

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready; non-finite numbers become null."""
        order = ranked(self.rows)
        body = {
            "model": self.model, "sample": self.sample, "target": self.target, "toolkit": self.toolkit, "metric": self.reference.accuracy.metric,
            "samples": self.reference.accuracy.samples, "layer_samples": self.layer_samples, "partial": self.partial, "wall_s": self.wall_s,
            "reference": row_json(self.reference),
            "scales": [_ladder_json(ladder) for ladder in ladders(self.rows)],
            "rows": [{"rank": i, "not_distinguishable": alike(r, order[0]), **row_json(r)} for i, r in enumerate(order, start=1)],
            "gaps": [_gap_json(g) for g in self.gaps], "provenance": dict(self.provenance), "warnings": list(self.warnings), "warning_codes": [code_of(w) for w in self.warnings],
            "unmeasured": dict(self.unmeasured), "vendor": [asdict(v) for v in self.vendor],
        }
        found: dict[str, Any] = finite(body)
        return found


@dataclass(frozen=True, slots=True)
class Ladder:
    """One calibrator at one precision: scale -> row, coarse to fine."""

    precision: str
    calibrator: str
    cells: Mapping[str, Row]

    def steps(self) -> list[tuple[Row, Row]]:
        """Neighbouring scales that were both measured, the coarser first."""
        return list(pairwise(self.cells.values()))


def ladders(rows: Sequence[Row]) -> list[Ladder]:
    """The rows by precision and calibrator, in the order of measuring."""
    keys = dict.fromkeys((r.precision, r.calibrator) for r in rows)
    return [Ladder(p, c, {s: r for s in SCALES for r in rows if (r.precision, r.calibrator, r.scale) == (p, c, s)}) for p, c in keys]


def ranked(rows: Sequence[Row]) -> list[Row]:
    """Most accurate first; of equally accurate ones the one of higher SQNR, then the smaller file, then the order of measuring."""
    def worth(row: Row) -> tuple[float, float, int]:
        a = row.accuracy
        return (-a.value if not isnan(a.value) else float("inf"), -a.sqnr_db if not isnan(a.sqnr_db) else float("inf"), row.size_bytes)

    return sorted(rows, key=worth)


def alike(row: Row, other: Row) -> bool:
    """Whether the paired intervals of the two drops overlap; also where one is not known."""
    a, b = row.accuracy, other.accuracy
    if any(isnan(x) for x in (a.drop_low, a.drop_high, b.drop_low, b.drop_high)):
        return True
    return a.drop_low <= b.drop_high and b.drop_low <= a.drop_high


def differ(row: Row, other: Row) -> bool:
    """Whether the difference of the two drops is clear: larger than the root of the sum of squares of the half widths of their intervals.

    Intervals that only just overlap can still differ clearly. Both drops are paired with float on the same samples, which makes their
    errors alike and the rule a cautious one; where an interval is not known, nothing is clear.
    Source: Schenker and Gentleman 2001, The American Statistician 55(3).
    """
    halves = [(r.accuracy.drop_high - r.accuracy.drop_low) / 2.0 for r in (row, other)]
    return bool(abs(row.accuracy.value - other.accuracy.value) > hypot(*halves))


def beaten(rows: Sequence[VendorRow]) -> tuple[tuple[VendorRow, VendorRow], ...]:
    """Rows of ours, each with the best row of the vendor that has no more cycles and a better SQNR."""
    done = [r for r in rows if not r.refused]
    theirs = sorted((r for r in done if r.maker != "qbench"), key=lambda r: -r.sqnr_db)
    found = ((ours, next((t for t in theirs if t.cycles <= ours.cycles and t.sqnr_db > ours.sqnr_db), None)) for ours in done if ours.maker == "qbench")
    return tuple((ours, t) for ours, t in found if t is not None)


def row_json(row: Row) -> dict[str, Any]:
    a, p = row.accuracy, row.price
    return {
        "precision": row.precision, "calibrator": row.calibrator, "scale": row.scale,
        "accuracy": a.value, "accuracy_low": a.low, "accuracy_high": a.high, "metric": a.metric, "samples": a.samples,
        "drop": a.drop, "drop_low": a.drop_low, "drop_high": a.drop_high, "sqnr_db": a.sqnr_db, "cosine": a.cosine, "kl": a.kl,
        "worst_layer": row.worst.name if row.worst else None, "worst_layer_db": row.worst.sqnr_db if row.worst else None,
        "size_bytes": row.size_bytes, "latency_ms": p.latency_ms, "latency_ms_low": p.latency_ms_low, "latency_ms_high": p.latency_ms_high,
        "op_point": p.op_point, "layers": dict(row.layers), "plan": row.plan, "plan_key": row.plan_key, "note": row.note, "simulated": a.simulated,
    }


def _ladder_json(ladder: Ladder) -> dict[str, Any]:
    def step(a: Row, b: Row) -> dict[str, Any]:
        return {"from": a.scale, "to": b.scale, "accuracy": b.accuracy.value - a.accuracy.value,
                "sqnr_db": b.accuracy.sqnr_db - a.accuracy.sqnr_db, "clear": differ(a, b)}

    return {"precision": ladder.precision, "calibrator": ladder.calibrator, "steps": [step(a, b) for a, b in ladder.steps()],
            "cells": {s: {"accuracy": r.accuracy.value, "drop": r.accuracy.drop, "sqnr_db": r.accuracy.sqnr_db} for s, r in ladder.cells.items()}}


def _gap_json(gap: Gap) -> dict[str, Any]:
    def tensor(t: TensorRange) -> dict[str, Any]:
        return {"name": t.name, "low": t.low, "high": t.high, "bits_lost": t.bits_lost, "codes": t.codes, "readers": list(t.readers),
                "macs_share": t.macs_share, "coarse_db": t.coarse_db, "fine_db": t.fine_db}

    return {
        "precision": gap.precision, "calibrator": gap.calibrator, "coarse": gap.coarse, "fine": gap.fine, "accuracy": gap.accuracy,
        "sqnr_db": gap.sqnr_db, "clear": gap.clear, "bits": gap.bits, "whole": list(gap.whole), "freed_bits": gap.freed_bits,
        "owners": [tensor(t) for t in gap.owners], "tensors": [tensor(t) for t in gap.tensors],
        "layers": [{"kernel": w.kernel, "unit": w.unit, "channels": w.channels, "spread": w.spread, "bits_lost": w.bits_lost,
                    "coarse_db": w.coarse_db, "fine_db": w.fine_db, "macs_share": w.macs_share} for w in gap.layers],
        "checks": [{"kind": c.kind, "names": list(c.names), "accuracy": c.accuracy.value, "drop": c.accuracy.drop, "sqnr_db": c.accuracy.sqnr_db,
                    "won": c.won} for c in gap.checks],
    }


def _extra(coarse_db: float, fine_db: float) -> float:
    return float(10.0 ** (-coarse_db / 10.0) - 10.0 ** (-fine_db / 10.0))


def finite(x: Any) -> Any:
    """`x` with null in place of every number that JSON does not have."""
    if isinstance(x, dict):
        return {k: finite(v) for k, v in x.items()}
    if isinstance(x, list | tuple):
        return [finite(v) for v in x]
    if isinstance(x, float) and not isfinite(x):
        return None
    return x
