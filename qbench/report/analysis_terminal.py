"""An analysis on the terminal: the verdict as paragraphs, and a table, worst first. rich is imported when first needed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from qbench.report import analysis_text as words
from qbench.report import text
from qbench.report.coverage_text import coverage_line

if TYPE_CHECKING:
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    from qbench.analysis.records import Analysis, Finding

_STYLE = {"good": "green", "fair": "", "poor": "yellow", "bad": "red"}
_WIDE, _MEDIUM = 140, 100


def _plain(value: object, style: str = "") -> Text:
    """Text that is not read as markup: names come from the user's files."""
    from rich.text import Text

    return Text(text.plain(value), style)


def headline(analysis: Analysis, plan: str) -> Text:
    """What was looked at, and the outputs as they ship."""
    line = _plain(words.headline(analysis)).append("\n").append(f"plan: {text.plain(plan)}; {text.plain(coverage_line(analysis.coverage))}\n", "dim")
    return line.append(f"outputs as they ship: {words.outputs(analysis)}\n", "bold")


def verdict_list(analysis: Analysis, findings: Sequence[Finding]) -> Group:
    """The findings, one numbered paragraph each, with its gain in front."""
    from rich.console import Group

    lines = [_plain(nothing)] if (nothing := words.nothing(analysis, findings)) else []
    for number, finding in enumerate(findings, start=1):
        gain = words.gain(finding)
        line = _plain(f"{number}. ", "bold")
        if gain:
            line.append(f"[{gain}] ", "bold green" if (finding.gain_db or 0.0) >= 0.5 else "dim")
        lines.append(line.append(text.plain(finding.text)))
    return Group(*lines)


def error_table(analysis: Analysis, width: int, most: int) -> Table:
    """At most `most` rows, worst first; on narrow terminals the least telling columns are left out. Numbers are never cut."""
    from rich import box
    from rich.table import Table

    rows = words.rows(analysis)
    columns = [("#", "number"), ("kernel", "kernel"), ("operators", "op"), ("prec.", "precision"), ("alone\ndB", "isolated"),
               ("in all\ndB", "accumulated"), ("worst\nchannel", "worst_channel"), ("dead\nchannels", "dead"),
               ("zeroed", "zeroed"), ("clipped", "clipped")]
    columns += [("codes reach", "range"), ("data", "seen")] if width >= _WIDE else []
    if width < _MEDIUM:
        columns = [c for c in columns if c[1] not in ("op", "zeroed", "number")]
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, show_edge=False, header_style="bold")
    for heading, field in columns:
        name = field in ("kernel", "op")
        table.add_column(heading, justify="left" if name or field == "precision" else "right", no_wrap=not name, overflow="fold",
                         min_width=10 if name else None)
    for row in rows[:most]:
        cells = []
        for _, field in columns:
            value = getattr(row, field)
            if field == "kernel" and row.role == "inner":
                value = f"{value} (inner {row.tensor})"
            cells.append(_plain(value, _STYLE[row.grade] if field == "accumulated" else "red" if field == "dead" else ""))
        table.add_row(*cells)
    return table


def hidden_rows(analysis: Analysis, most: int) -> str:
    """What the table leaves out, and how to see it; "" when nothing is."""
    left = len(words.rows(analysis)) - most
    if left <= 0:
        return ""
    return f"{left} more tensors, all better than these on their own or in float: --rows {most + left}, or all of them in the page (-o analysis.html)"
