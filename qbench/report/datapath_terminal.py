"""The ways of a frame to an input, for the terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import isfinite
from typing import TYPE_CHECKING

from rich import box
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from qbench.report.text import significant

if TYPE_CHECKING:
    from qbench.contract_path import Step, Way


def datapath_page(found: Sequence[Way], target: str) -> Iterator[RenderableType]:
    for number, way in enumerate(found, 1):
        total = f"{way.bytes_moved / 1e6:.3g} MB moved" + (f", {significant(way.host_ms)} ms here" if way.host_ms is not None else "")
        yield Text(f"\n{number}. {way.name}: {total}", "bold")
        table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
        for column in ("step", "engine", "MB", "ms here (10th, 90th percentile)", f"ms on {target}, estimated"):
            table.add_column(column, justify="left" if column in ("step", "engine") else "right", overflow="fold")
        for s in way.steps:
            table.add_row(s.name, s.engine, f"{s.bytes_moved / 1e6:.3g}", _here(s), _there(s))
        yield table
        if way.needs:
            yield Text(f"needs: {way.needs}", "dim")
        if number == 1 or way.basis != found[number - 2].basis:
            yield Text(f"rests on: {way.basis}", "dim")


def _here(s: Step) -> str:
    return "-" if s.host_ms is None else f"{significant(s.host_ms[1])} ({significant(s.host_ms[0])}, {significant(s.host_ms[2])})"


def _there(s: Step) -> str:
    if s.target_ms is None:
        return "unknown"
    low, middle, high = s.target_ms
    return f"{significant(middle)} [{significant(low)}, {significant(high)}]" if isfinite(high) else f"at least {significant(low)}"
