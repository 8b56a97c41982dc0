"""Look at the data once: a fixed-size, mergeable sketch per tensor, from which every calibrator is answered later."""

from qbench.statistics.collect import collect
from qbench.statistics.sketch import TensorStatistics
from qbench.statistics.store import Source, Statistics, content_key, merge

__all__ = ["Source", "Statistics", "TensorStatistics", "collect", "content_key", "merge"]
