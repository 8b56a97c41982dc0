"""Predictions of networks left out of the fit beside what was published: one file for all targets, which the fit scripts write.

    python experiments/validation.py         prints how good they are, target by target

A row is one published latency; `predicted_ms` comes from constants that have seen no network of the same design, `low_ms` and `high_ms`
are the 80 % interval that the target file states.
"""

from __future__ import annotations

import csv
import io
import lzma
from collections.abc import Iterable
from dataclasses import dataclass, fields
from pathlib import Path

import numpy as np
from scipy.stats import spearmanr

FILE = Path(__file__).parent / "data" / "validation.csv.xz"


@dataclass(frozen=True, slots=True)
class Prediction:
    """One held-out prediction."""

    target: str
    network: str
    design: str
    precision: str
    measured_ms: float
    predicted_ms: float
    low_ms: float
    high_ms: float


def read() -> list[Prediction]:
    """All rows; none where the file does not exist yet."""
    if not FILE.exists():
        return []
    with lzma.open(FILE, "rt", newline="") as file:
        return [Prediction(r["target"], r["network"], r["design"], r["precision"], *(float(r[k]) for k in ("measured_ms", "predicted_ms", "low_ms", "high_ms")))
                for r in csv.DictReader(file)]


def replace(rows: Iterable[Prediction]) -> None:
    """Writes the file with the rows of the targets in `rows` exchanged."""
    new = list(rows)
    targets = {r.target for r in new}
    every = sorted([r for r in read() if r.target not in targets] + new, key=lambda r: (r.target, r.network, r.precision))
    names = [f.name for f in fields(Prediction)]
    text = io.StringIO()
    out = csv.writer(text, lineterminator="\n")
    out.writerow(names)
    out.writerows([v if isinstance(v, str) else f"{v:.5g}" for v in (getattr(r, n) for n in names)] for r in every)
    FILE.write_bytes(lzma.compress(text.getvalue().encode(), preset=9))


def main() -> None:
    rows = read()
    print(f"{'target':18}{'rows':>5}{'median':>8}{'rank':>7}{'inside':>8}   networks left out with their whole design")
    for target in sorted({r.target for r in rows}):
        own = [r for r in rows if r.target == target]
        error = np.abs([r.predicted_ms / r.measured_ms - 1 for r in own])
        rank = spearmanr([r.measured_ms for r in own], [r.predicted_ms for r in own])[0] if len(own) > 2 else float("nan")
        inside = np.mean([r.low_ms <= r.measured_ms <= r.high_ms for r in own])
        print(f"{target:18}{len(own):5}{np.median(error):8.1%}{rank:7.3f}{inside:8.0%}")


if __name__ == "__main__":
    main()
