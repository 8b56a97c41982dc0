"""A comparison of calibrators and scales as cells of its two tables, the same on the terminal and in the page."""

from __future__ import annotations

from dataclasses import dataclass

from qbench.comparison import FLOAT, Comparison, Ladder, Row, alike, differ, ladders, ranked
from qbench.report import text
from qbench.report.compare_text import db, scale_of, signed


@dataclass(frozen=True, slots=True)
class Cells:
    """One row of the table of all plans, as text; an interval is "" where it is not known."""

    rank: str
    calibrator: str
    scale: str
    precision: str
    accuracy: str
    accuracy_interval: str
    drop: str
    drop_interval: str
    against_best: str
    sqnr: str
    worst: str
    worst_db: str
    size: str
    latency: str
    latency_interval: str


def table_rows(result: Comparison) -> list[Cells]:
    """Every plan, best first, then float."""
    order = ranked(result.rows)
    return [*(cells(r, result, str(i), "best" if i == 1 else "same" if alike(r, order[0]) else "worse") for i, r in enumerate(order, start=1)),
            cells(result.reference, result, "", "")]


def cells(row: Row, result: Comparison, rank: str, against: str) -> Cells:
    scale, a, p = scale_of(result), row.accuracy, row.price
    quantized = row.precision != FLOAT
    drop, spread, sqnr = (scale.number(a.drop), scale.interval(a.drop_low, a.drop_high), db(a.sqnr_db)) if quantized else ("", "", "")
    return Cells(rank, text.plain(row.calibrator) if quantized else FLOAT, row.scale, row.precision.upper() if quantized else "",
                 scale.number(a.value), scale.interval(a.low, a.high), drop, spread, against, sqnr,
                 text.plain(row.worst.name) if row.worst else "", db(row.worst.sqnr_db) if row.worst else "", text.size(row.size_bytes),
                 text.significant(p.latency_ms), text.interval(p.latency_ms, p.latency_ms_low, p.latency_ms_high))


@dataclass(frozen=True, slots=True)
class Step:
    """What a finer scale gains over the coarser one."""

    label: str
    accuracy: str
    sqnr: str
    same: bool


@dataclass(frozen=True, slots=True)
class LadderCells:
    """One calibrator: scale -> (accuracy, SQNR), and the steps between neighbours."""

    precision: str
    calibrator: str
    values: dict[str, tuple[str, str]]
    steps: tuple[Step, ...]


def ladder_rows(result: Comparison) -> list[LadderCells]:
    """The first table: every calibrator with its scales side by side."""
    scale = scale_of(result)

    def one(ladder: Ladder) -> LadderCells:
        values = {s: (scale.number(r.accuracy.value), db(r.accuracy.sqnr_db)) for s, r in ladder.cells.items()}
        steps = tuple(Step(f"{b.scale} over {a.scale}", signed(b.accuracy.value - a.accuracy.value, text.Scale(scale.factor, scale.digits, "", "")),
                           f"{b.accuracy.sqnr_db - a.accuracy.sqnr_db:+.1f} dB", not differ(a, b)) for a, b in ladder.steps())
        return LadderCells(ladder.precision.upper(), text.plain(ladder.calibrator), values, steps)

    return [one(ladder) for ladder in ladders(result.rows)]
