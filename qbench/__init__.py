"""qbench: give it a network, calibration data and a product requirement; it finds, proves and delivers a mixed-precision plan.

    case = qbench.open_case("net.onnx", "calibration.npz", "validation.npz", metric="top1")
    result = qbench.run_search(qbench.SearchJob(case, "rk3588", ("20ms",)))
    print(result.chosen.accuracy.value, result.chosen.price.latency_ms)

Names are imported when first used, so that `import qbench` stays light.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from qbench.calibrators import make as make_calibrator
    from qbench.data import ArrayDataset, open_dataset
    from qbench.errors import QbenchError
    from qbench.evaluation import OnnxEvaluator
    from qbench.graph import load_network
    from qbench.graph.load import from_module
    from qbench.network import Network, Precision
    from qbench.plan import Granularity, Plan
    from qbench.result import SearchResult
    from qbench.samples import load_sample
    from qbench.statistics import Statistics, collect
    from qbench.targets import load as load_target
    from qbench.workbench import Case, SearchJob, cost_of, open_case, quantize, run_search

__version__ = "0.1.0"

_WHERE = {
    "ArrayDataset": "qbench.data", "Case": "qbench.workbench", "Granularity": "qbench.plan", "Network": "qbench.network",
    "OnnxEvaluator": "qbench.evaluation", "Plan": "qbench.plan", "Precision": "qbench.network", "QbenchError": "qbench.errors",
    "SearchJob": "qbench.workbench", "SearchResult": "qbench.result", "Statistics": "qbench.statistics", "collect": "qbench.statistics",
    "cost_of": "qbench.workbench", "from_module": "qbench.graph.load", "load_network": "qbench.graph", "load_sample": "qbench.samples",
    "load_target": "qbench.targets:load", "make_calibrator": "qbench.calibrators:make", "open_case": "qbench.workbench",
    "open_dataset": "qbench.data", "quantize": "qbench.workbench", "run_search": "qbench.workbench",
}

__all__ = [
    "ArrayDataset", "Case", "Granularity", "Network", "OnnxEvaluator", "Plan", "Precision", "QbenchError", "SearchJob", "SearchResult",
    "Statistics", "collect", "cost_of", "from_module", "load_network", "load_sample", "load_target", "make_calibrator", "open_case",
    "open_dataset", "quantize", "run_search",
]


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module 'qbench' has no attribute {name!r}")
    module, _, attribute = _WHERE[name].partition(":")
    return getattr(import_module(module), attribute or name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
