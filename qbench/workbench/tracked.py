"""What the tracking store is told of a search beside its candidates: the data sets, the weights of each unit, the models of the front."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

from qbench import qdq
from qbench.plan import Plan
from qbench.result import SearchResult
from qbench.tracking import Models
from qbench.workbench.case import Case


def about(case: Case) -> dict[str, Any]:
    """weights: elements per unit, biases left out; datasets: name, digest, context and samples of each."""
    kernel = case.network.kernel
    sets = (("calibration", case.calibration), ("evaluation", case.evaluation))
    return {"weights": {u.name: sum(kernel[k].weights for k in u.kernels) for u in case.network.units},
            "datasets": [{"name": d.name, "digest": d.key[:36], "context": context, "samples": len(d)} for context, d in sets]}


def front_models(result: SearchResult, folder: Path, case: Case) -> Models:
    """Writers of the Q/DQ models of the front and of the chosen plan: the same files that were evaluated."""
    plans = {c.name: c.plan for c in (*result.front, *([result.chosen] if result.chosen else [])) if c.plan}
    return {name: partial(_write, case, folder / plan) for name, plan in plans.items()}


def _write(case: Case, plan: Path, path: Path) -> None:
    qdq.save(qdq.write(case.prepared, Plan.load(plan)).model, path)
