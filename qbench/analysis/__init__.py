"""Where a quantized network loses, kernel by kernel and channel by channel, and what would help.

    analyze(walk, statistics)    measures: isolated and accumulated error, ranges, groups, weights
    run_checks(...)              tries the changes that promise most, on the same samples
    verdict(analysis)            says it in words
"""

from qbench.analysis.measure import analyze
from qbench.analysis.proposals import Options, run_checks
from qbench.analysis.records import Analysis, Finding
from qbench.analysis.verdict import verdict

__all__ = ["Analysis", "Finding", "Options", "analyze", "run_checks", "verdict"]
