"""A measurement as a table in the terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from qbench.board import Measurement
from qbench.report import text

if TYPE_CHECKING:
    from rich.table import Table

FACTS = ("runtime", "librknnrt", "cpu", "board", "npu_driver", "governor", "clock_lock", "cores", "system")


def measurement_rows(found: Measurement) -> list[tuple[str, str]]:
    """(what, value) of everything that was seen; what the board does not show is left out."""
    ms = text.significant
    rows = [("runs", f"{len(found.samples_ms)}"),
            ("median, p90, p99", f"{ms(found.latency_ms)}, {ms(found.percentile(90))}, {ms(found.percentile(99))} ms"),
            ("load, first run", f"{ms(found.load_ms)}, {ms(found.first_run_ms)} ms")]
    rows += [(f"step {name}", f"{ms(value)} ms") for name, value in found.steps_ms.items()]
    if found.power_w is not None:
        idle = f", idle {ms(found.idle_w)} W" if found.idle_w is not None else ""
        ends = found.energy_mj_interval
        sure = f" [{ms(ends[0])}, {ms(ends[1])}], {len(found.power_readings)} readings" if ends else ""
        rows.append(("power", f"{ms(found.power_w)} W{idle} ({found.power_source}); {ms(found.energy_mj)} mJ an inference{sure}"))
    if found.temperature_c is not None:
        rows.append(("hottest", f"{found.temperature_c:.0f} C"))
    rows += [(f"clock {name}", f"{start / 1e6:.0f} MHz, {end / 1e6:.0f} MHz at the end") for name, (start, end) in found.clocks_hz.items()]
    return rows + [(key.replace("_", " "), found.facts[key]) for key in FACTS if key in found.facts]


def measurement_table(found: Measurement) -> Table:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True, style="dim")
    table.add_column(overflow="fold")
    for what, value in measurement_rows(found):
        table.add_row(Text(text.plain(what)), Text(text.plain(value)))
    return table
