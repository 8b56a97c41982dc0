"""The report of a search: one self-contained HTML page, and the figure of its front."""

from qbench.report.front import front_figure
from qbench.report.page import write_report

__all__ = ["front_figure", "write_report"]
