"""What the ranges of all calibrators cost once the statistics exist, for a network of 100 tensors.

usage: calibrator_speed.py [--tensors 100] [--levels 256] [--repeats 3] [--symmetric]

Claim: every registered calibrator at its defaults, one after the other, on all tensors and all cores: under 1 s on two cores.
Read: "one core" is the sum over the tensors, "slowest" the tensor that took longest, "all cores" the wall time of
`qbench.calibrators.ranges` and "processor" the processor time that all its threads took together; each the best of the repeats.
A neighbour on the same cores adds to the wall time and hardly to the processor time: on a busy machine judge by the latter
over the number of cores; the first line says how busy it was. The statistics are as new, so the row "cells" is what the
first question to them costs: the edges of the cells, which they then keep. The compiled loops are loaded beforehand.
Tensors are made from 25,000 to 1,600,000 values of five kinds (normal, ReLU, SiLU, heavy tails, a classifier's logits);
the cost depends on the number of non-empty cells and on the kind, not on the number of values.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from qbench import calibrators
from qbench.runtime import default_threads
from qbench.statistics import TensorStatistics

LIMIT_S = 1.0


def tensors(count: int) -> list[TensorStatistics]:
    """Statistics of `count` tensors, each seen in 8 samples."""
    made = []
    for i in range(count):
        rng = np.random.default_rng(i)
        shape = (8, int(rng.integers(4, 65)), int(rng.integers(28, 57)), int(rng.integers(28, 57)))
        x = rng.lognormal(0.0, 1.0) * rng.normal(rng.normal(0.0, 0.3), 1.0, shape)
        kind = ("normal", "relu", "silu", "heavy", "relu")[i % 5]
        if i == count - 1:
            x, kind = 3.0 * rng.normal(size=(256, 1000)), "logits"
        elif kind == "relu":
            x = np.maximum(x, 0.0)
        elif kind == "silu":
            x = 3.0 * x / (1.0 + np.exp(-3.0 * x))
        elif kind == "heavy":
            x = x * rng.lognormal(0.0, 1.0, (1, shape[1], 1, 1))
        made.append(TensorStatistics.of(x.astype(np.float32), f"{kind} {i}"))
    return made


def fresh(seen: Sequence[TensorStatistics]) -> list[TensorStatistics]:
    """The same without what they keep of earlier questions."""
    return [replace(s) for s in seen]


def seconds(work: Callable[[], Any], clock: Callable[[], float] = time.perf_counter) -> float:
    start = clock()
    work()
    return clock() - start


def warmed(seen: Sequence[TensorStatistics]) -> list[TensorStatistics]:
    for s in seen:
        s.histogram()
        s.below(np.zeros(1))
    return list(seen)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--tensors", type=int, default=100)
    parser.add_argument("--levels", type=int, default=256)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--symmetric", action="store_true")
    given = parser.parse_args()
    seen = tensors(given.tensors)
    cells = sorted(s.codes.size for s in seen)
    print(f"{len(seen)} tensors of {cells[0]} to {cells[-1]} non-empty cells (median {cells[len(cells) // 2]}), {given.levels} levels, "
          f"{default_threads()} cores, load {os.getloadavg()[0]:.1f}")
    names = calibrators.names()
    made = {name: calibrators.make(name) for name in names}
    for calibrator in made.values():                    # loads what is compiled
        calibrator.range(seen[0], given.levels, given.symmetric)
        calibrator.range(seen[-1], given.levels, given.symmetric)
    one: dict[str, list[float]] = {}
    wall: dict[str, float] = {}
    processor: dict[str, float] = {}
    for _ in range(given.repeats):
        new = fresh(seen)
        rows = {"cells": [seconds(lambda s=s: warmed([s])) for s in new]}
        for name, calibrator in made.items():
            rows[name] = [seconds(lambda s=s, c=calibrator: c.range(s, given.levels, given.symmetric)) for s in new]
        for name, row in rows.items():
            one[name] = [min(a, b) for a, b in zip(one.get(name, row), row, strict=True)]
        for clock, best in ((time.perf_counter, wall), (time.process_time, processor)):
            new = fresh(seen)
            turn = {name: seconds(lambda c=c, new=new: calibrators.ranges(c, new, given.levels, given.symmetric), clock) for name, c in made.items()}
            turn["total"] = sum(turn.values())
            best.update({name: min(best.get(name, t), t) for name, t in turn.items()})
    print(f"\n{'':18s}{'one core ms':>12s}{'slowest ms':>12s}{'all cores ms':>14s}{'processor ms':>14s}")
    for name, row in one.items():
        spread = f"{1e3 * wall[name]:14.0f}{1e3 * processor[name]:14.0f}" if name in wall else ""
        print(f"{name:18s}{1e3 * sum(row):12.0f}{1e3 * max(row):12.2f}{spread}")
    print(f"{'total':18s}{1e3 * sum(map(sum, one.values())):12.0f}{'':12s}{1e3 * wall['total']:14.0f}{1e3 * processor['total']:14.0f}")
    share = processor["total"] / default_threads()
    verdict = "holds" if wall["total"] < LIMIT_S else "holds by processor time" if share < LIMIT_S else "does not hold"
    print(f"\nunder {LIMIT_S:g} s for all: {verdict} ({wall['total']:.2f} s of wall, {share:.2f} s of processor time a core)")


if __name__ == "__main__":
    main()
