"""Sizes of the picture side by side, for the terminal."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.table import Table
from rich.text import Text

from qbench.terminal import plain_table


def resolution_table(found: Mapping[str, Any], metric: str) -> Table:
    """Rows of `Resolutions.to_dict`; the chosen size is marked."""
    table = plain_table(f"{metric}: what is lost against float at the first size; latency and energy are predicted")
    for name in ("size", "", "lost by the size", "lost in all", "95 % interval", "latency ms", "energy mJ", "folder, or why not"):
        table.add_column(name, justify="right" if name and name not in ("size", "folder, or why not") else "left")
    for row in found["resolutions"]:
        numbers = [_number(row["float_drop"]), _number(row["drop"]), f"[{_number(row['drop_low'])}, {_number(row['drop_high'])}]" if row["drop"] is not None else "",
                   _number(row["latency_ms"]), _number(row["energy_mj"])]
        table.add_row(row["size"], "chosen" if row["size"] == found["chosen"] else "", *numbers, Text(row["why_not"] or row["folder"]))
    return table


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.4g}"
