"""For any budget: is the chosen plan ever worse than the best uniform plan, greedy, or the programme alone?

    python experiments/search_budgets.py face --points 6

Budgets lie evenly between the fastest and the slowest uniform plan. The others are asked once, without a budget (see search_efficiency.py), and may
then show for each budget their most accurate plan within it; qbench searches anew for each. Prints drops in the metric's unit with the 95 % interval
of qbench's plan: "worse" means that another's drop lies below that interval.
"""

from __future__ import annotations

import argparse
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
from search_efficiency import Arena, arena, case_of, greedy, milp, revert

from qbench import samples
from qbench.network import Precision
from qbench.search.budget import Budget
from qbench.search.run import run
from qbench.workbench.case import open_case


def others(a: Arena) -> dict[str, list[tuple[float, float]]]:
    """Method -> (drop, milliseconds) of every plan that it asked for."""
    uniform = a.ledgered()
    for p in (Precision.INT8, Precision.FP16):
        uniform.evaluate(a.plan(a.problem.space.uniform(p) or ()))
    views = {"uniform": uniform, "greedy": greedy(a, 0), "revert": revert(a, 0), "milp": milp(a, 0)}
    return {name: [(drop, ms) for _, _, drop, ms in view.trace] for name, view in views.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("networks", nargs="*", default=["face"], help="names of samples, or folders that experiments/networks/fetch.py made")
    parser.add_argument("--points", type=int, default=6)
    parser.add_argument("--trials", type=int, default=24)
    parser.add_argument("--limit", type=int, default=None)
    asked = parser.parse_args()
    for n in asked.networks:
        case = open_case(sample=n, limit=asked.limit) if n in samples.names() else case_of(Path(n), asked.limit)
        a = arena(n, case, 100)
        known = others(a)
        ends = [ms for _, ms in known["uniform"]]
        print(f"\n## {Path(n).name}: {len(a.problem.space.free)} units with a choice, {len(case.evaluation)} samples, {case.metric.name}")
        print(f"| budget | qbench: drop, ms, passes | interval | {' | '.join(known)} | worse than |")
        print("| --- | --- | --- |" + " --- |" * (len(known) + 1), flush=True)
        for ms in np.linspace(min(ends), max(ends), asked.points + 1)[1:]:
            budget = Budget.parse(f"{ms:.4f}ms")
            view = a.ledgered()
            found = run(replace(a.problem, budgets=(budget,), trials=asked.trials), view, a.table, reference=view.real.reference())
            assert found.chosen is not None
            mine = found.chosen.accuracy
            best = {name: min((drop for drop, cost in plans if cost <= budget.limit), default=math.nan) for name, plans in known.items()}
            worse = [name for name, drop in best.items() if drop < mine.drop_low]
            print(f"| {ms:.3f} ms | {mine.drop:.5f}, {found.chosen.price.latency_ms:.3f}, {found.float_pass_equivalents:.0f} | [{mine.drop_low:.5f}, {mine.drop_high:.5f}] | "
                  + " | ".join("-" if math.isnan(d) else f"{d:.5f}" for d in best.values()) + f" | {', '.join(worse) or 'none'} |", flush=True)


if __name__ == "__main__":
    main()
