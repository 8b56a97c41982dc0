"""Where the parts meet: calibrators, targets and search on one case. The command line calls these functions and prints.

    open_case(...)       a model with its data and metric, or a built-in sample
    statistics_of(...)   one pass over the calibration data, kept and re-used by content
    Plans                plans of any precision, calibrator and granularity from one set of statistics
    run_search(...)      the main job
    quantize(...)        a Q/DQ model from statistics or from a plan
    cost_of(...)         latency, energy and memory of a model on a target
"""

from qbench.workbench.case import Case, open_case, open_model
from qbench.workbench.jobs import SearchJob, cost_of, run_search
from qbench.workbench.plans import Plans, statistics_of
from qbench.workbench.precisions import allowed_precisions
from qbench.workbench.quantizing import quantize

__all__ = ["Case", "Plans", "SearchJob", "allowed_precisions", "cost_of", "open_case", "open_model", "quantize", "run_search", "statistics_of"]
