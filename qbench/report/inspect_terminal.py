"""An inspection on the terminal: parts one below the other. rich is imported when first needed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from qbench.report import inspect_text as words
from qbench.report import text

if TYPE_CHECKING:
    from rich.console import Group, RenderableType
    from rich.table import Table
    from rich.text import Text

    from qbench.inspection.record import Inspection

_STYLE = {"NPU": "green", "CPU": "red", "refused": "bold red", "CPU+NPU": "yellow", "unknown": "yellow"}
_NARROW = 14                    # what a column of words needs at least


def _plain(value: object, style: str = "") -> Text:
    """Text that is not read as markup: names come from the user's files."""
    from rich.text import Text

    return Text(text.plain(value), style)


def report(i: Inspection, whole_model: bool) -> Group:
    """One target. whole_model   with the parts that do not depend on it"""
    from rich.console import Group

    shown: list[RenderableType] = []
    for part in words.parts(i, whole_model):
        shown += [_plain(part.title, "bold").append(f": {part.said}", "not bold")]
        if part.rows:
            shown.append(_table(part))
        if part.note:
            shown.append(_plain(part.note, "dim"))
        shown.append(_plain(""))
    return Group(_plain(words.headline(i), "bold"), _plain(words.basis(i), "dim"), _plain(""), *shown)


def _table(part: words.Part) -> Table:
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, show_edge=False, header_style="bold")
    for number, head in enumerate(part.heads):
        right = number in part.numbers
        longest = max((len(r[number]) for r in part.rows), default=0)
        table.add_column(head, justify="right" if right else "left", no_wrap=right, overflow="fold", min_width=None if right else min(longest, _NARROW))
    for row in part.rows:
        table.add_row(*(_plain(cell, _STYLE.get(cell, "")) for cell in row))
    return table
