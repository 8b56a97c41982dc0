"""Sensitivities from curvature against measured ones: what they cost, how well they agree, and which front a search finds from each.

usage: second_order.py FOLDER ... [--trials N] [--evaluation N] [--seeds N]

FOLDER is what networks/fetch.py made. INT8 or FP16 per unit, one calibrator, RK3588, as in search_efficiency.py. "passes" are passes of the float
model over the evaluation set. Hypervolume of (drop, latency) is a share of the best front of all runs shown.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
from scipy.stats import spearmanr
from search_efficiency import Arena, arena, curve, reference

from qbench.network import Precision
from qbench.search.run import run
from qbench.search.second_order import Increase
from qbench.search.sensitivity import Sensitivity, measure, noise
from qbench.workbench import Case, open_case
from qbench.workbench.second_order import FisherCurvature

sys.path.insert(0, str(Path(__file__).parent / "networks"))

import zoo


def opened(folder: Path, limit: int | None) -> Case:
    entry = zoo.entries(folder.parent, [folder.name])[0]
    return open_case(entry.model, str(entry.calibration), str(entry.evaluation), metric=entry.metric, input_shapes=entry.shapes or None, limit=limit)


def figures(a: Arena) -> tuple[list[Increase], list[Sensitivity], dict[str, tuple[float, float]]]:
    """Both kinds for INT8, and (passes, seconds) of each."""
    few, view = max(8, len(a.case.evaluation) // 6), a.ledgered()
    begun = time.perf_counter()
    measured = list(measure(a.problem.space, lambda plans: [view.evaluate(a.plan(p), few) for p in plans], lambda *x: None))
    costs = {"measured": (view.float_pass_equivalents, time.perf_counter() - begun)}
    curvature = FisherCurvature(a.case, a.cached.real.batch)
    begun = time.perf_counter()
    found = curvature({Precision.INT8: a.plan(a.problem.space.uniform(Precision.INT8) or ())})
    return found, measured, costs | {"fisher": (curvature.passes, time.perf_counter() - begun)}


def lines(folder: Path, trials: int, limit: int | None, seeds: int) -> Iterator[str]:
    a = arena(folder.name, opened(folder, limit), trials)
    found, measured, costs = figures(a)
    increase, seen = {i.unit: i.mean for i in found}, {s.unit: s.accuracy for s in measured}
    both = sorted(set(increase) & set(seen))
    drops = [seen[u].drop for u in both]
    by_drop = spearmanr([increase[u] for u in both], drops).statistic if len(set(drops)) > 1 else float("nan")
    by_noise = spearmanr([increase[u] for u in both], [noise(seen[u]) for u in both]).statistic
    volumes: dict[str, list[float]] = {"measured": [], "fisher": []}
    whole: dict[str, list[float]] = {"measured": [], "fisher": []}
    for seed in range(seeds):
        for kind, found_volumes in volumes.items():
            view = a.ledgered()
            curvature = FisherCurvature(a.case, a.cached.real.batch, seed=seed) if kind == "fisher" else None
            result = run(replace(a.problem, seed=seed, trials=trials, second_order=curvature), view, a.table, reference=a.cached.real.reference())
            found_volumes.append(curve(view.trace, reference(a))[-1][2])
            whole[kind].append(result.float_pass_equivalents)
    best = max(v for runs in volumes.values() for v in runs)
    for kind, (passes, seconds) in costs.items():
        agree = f"{by_drop:.2f} / {by_noise:.2f}" if kind == "fisher" else ""
        yield (f"| {folder.name} | {kind} | {len(both)} | {passes:.2f} | {seconds:.0f} | {agree} | {100 * np.median(volumes[kind]) / best:.1f} % | "
               f"{np.median(whole[kind]):.1f} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("--trials", type=int, default=24)
    parser.add_argument("--evaluation", type=int, default=None, help="samples at most, of both sets")
    parser.add_argument("--seeds", type=int, default=3)
    asked = parser.parse_args()
    print("| network | sensitivity | units | passes | seconds | rank correlation with drops / output noise | hypervolume | passes of the search |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    for folder in asked.folders:
        for line in lines(folder, asked.trials, asked.evaluation, asked.seeds):
            print(line, flush=True)


if __name__ == "__main__":
    main()
