"""Where the parts meet: calibrators, targets and search on one case. The command line calls these functions and prints.

    open_case(...)       a model with its data and metric, or a built-in sample
    statistics_of(...)   one pass over the calibration data, kept and re-used by content
    Plans                plans of any precision, calibrator and granularity from one set of statistics
    run_search(...)      the main job
    quantize(...)        a Q/DQ model from statistics or from a plan
    cost_of(...)         latency, energy and memory of a model on a target
    advise(...)          what would make it cheaper, each step priced

Names are imported when first used: a price needs neither onnxruntime nor the search.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from qbench.workbench.advising import advise
    from qbench.workbench.case import Case, open_case
    from qbench.workbench.costing import CostOptions, cost_of
    from qbench.workbench.jobs import SearchJob, run_search
    from qbench.workbench.plans import Plans, statistics_of
    from qbench.workbench.precisions import allowed_precisions
    from qbench.workbench.quantizing import quantize

_WHERE = {
    "Case": "case", "CostOptions": "costing", "Plans": "plans", "SearchJob": "jobs", "advise": "advising", "allowed_precisions": "precisions",
    "cost_of": "costing", "open_case": "case", "quantize": "quantizing", "run_search": "jobs", "statistics_of": "plans",
}

__all__ = [
    "Case", "CostOptions", "Plans", "SearchJob", "advise", "allowed_precisions", "cost_of", "open_case", "quantize", "run_search", "statistics_of",
]


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module 'qbench.workbench' has no attribute {name!r}")
    return getattr(import_module(f"qbench.workbench.{_WHERE[name]}"), name)
