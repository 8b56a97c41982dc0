"""What the command line shows: tables, warnings and progress. Nothing here computes; rich is imported when first needed.

Numbers are never cut. Where a table does not fit, it gets narrower by steps: plans across instead of down, closer columns,
intervals on two lines, unimportant columns left out; names fold.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from qbench.protocols import Progress, silent
from qbench.report import text
from qbench.result import SearchResult
from qbench.target import Target
from qbench.warning_codes import code_of

if TYPE_CHECKING:
    from rich.console import Console, Group, RenderableType
    from rich.table import Table
    from rich.text import Text

CHANGES_WIDTH = 140                # columns that a table with a change on every line needs
PATIENCE_S = 2.0              # work that takes less shows no bar
_STYLE = {"yes": "green", "on the mean": "yellow", "no": "red"}


def _plain(value: object, style: str = "") -> Text:
    """Text that is not read as markup: names come from the user's files."""
    from rich.text import Text

    return Text(str(value), style)


def _columns(width: int | None) -> int:
    """`width`, or that of the terminal (80 when there is none)."""
    import shutil

    return width or shutil.get_terminal_size((80, 24)).columns


def _width_of(table: Table) -> int:
    """Columns that `table` needs when nothing folds."""
    from rich.console import Console

    console = Console(width=1000)
    return console.measure(table).maximum


def _first_fitting(layouts: Sequence[Callable[[], Table]], width: int) -> Table:
    """The first layout that fits; the last, narrowest one when none does."""
    for layout in layouts[:-1]:
        if _width_of(table := layout()) <= width:
            return table
    return layouts[-1]()


def plain_table(caption: str = "", gap: int = 1) -> Table:
    """An empty table in the manner of all of them: a rule below the heading, nothing else. gap   blanks between columns"""
    from rich import box
    from rich.table import Table

    return Table(box=box.SIMPLE_HEAD, padding=(0, gap, 0, 0), pad_edge=False, show_edge=False, header_style="bold",
                 caption=_plain(caption, "dim") if caption else None, caption_justify="left")


def summary_table(result: SearchResult, width: int | None = None) -> Table:
    """Float, the uniform plans and the chosen plan side by side, laid out for `width` columns (default: the terminal's)."""
    across = [partial(_plans_across, result, comma) for comma in (", ", ",", ",\n")]
    return _first_fitting((partial(_plans_down, result), *across), _columns(width))


def _caption(result: SearchResult) -> str:
    p = result.provenance
    spread = text.plain(p.get("interval", "80 % interval"))
    notes = (f"latency: predicted, {spread}", f"power, energy: {text.power_note(result)}", text.float_note(result))
    return "; ".join(filter(None, notes))


def _plans_down(result: SearchResult) -> Table:
    """One plan a row, value and interval on one line."""
    rows, plans = text.comparison(result), text.side_by_side(result)
    table = plain_table(_caption(result))
    table.add_column("plan", no_wrap=True)
    for q in rows:
        heading = f"{q.short}, {q.unit}" if q.unit else q.short
        table.add_column(heading, justify="left" if q.short in ("layers", "budget") else "right", no_wrap=True)
    for i, (label, _) in enumerate(plans):
        cells = [_plain(f"{q.cells[i].value} {q.cells[i].interval}".strip(), _STYLE.get(q.cells[i].value, "")) for q in rows]
        table.add_row(_plain(label), *cells, style="bold" if _is_last(i, result) else "")
    return table


def _plans_across(result: SearchResult, comma: str) -> Table:
    """One quantity a row, the interval below its value; `comma` stands between the interval's ends."""
    plans, tall = text.side_by_side(result), comma.endswith("\n")
    table = plain_table(_caption(result), gap=0 if comma == "," else 1)
    table.add_column("", no_wrap=True)
    for i, (label, _) in enumerate(plans):
        table.add_column(_plain(label.replace(" ", "\n") if tall else label), justify="right", no_wrap=True, style="bold" if _is_last(i, result) else "")
    for q in text.comparison(result):
        cells = []
        for cell in q.cells:
            value = cell.value.replace(", ", "\n") if q.short == "layers" else cell.value.replace("on the ", "on the\n")
            spread = cell.interval.replace(", ", comma)
            both = _plain(value, _STYLE.get(cell.value, ""))
            cells.append(both.append(f"\n{spread}", "dim") if spread else both)
        table.add_row(_plain(f"{q.short}\n{q.unit}" if q.unit and any(c.interval for c in q.cells) else f"{q.short} {q.unit}".strip()), *cells)
    return table


def _is_last(i: int, result: SearchResult) -> bool:
    """Whether column or row `i` is the chosen plan."""
    return result.chosen is not None and i == len(text.side_by_side(result)) - 1


def headline(result: SearchResult) -> Text:
    """What was asked, whether it is met, and what was found: two or three lines, then what would help."""
    sure = result.chosen is not None and result.chosen.sure
    lines = _plain("").append(text.asked(result) + "\n", "bold")
    lines.append(text.verdict(result), "red" if not result.feasible else "green" if sure or not result.budgets else "yellow")
    lines.append(f"\n{text.found(result)}" if result.chosen else "")
    for relaxation in result.binding.relaxations if result.binding else ():
        lines.append(f"\n  would help: {text.plain(relaxation)}")
    return lines


def warning_list(warnings: Sequence[str]) -> Group:
    """The warnings, one paragraph each; nothing when there are none."""
    from rich.console import Group

    return Group(*(_plain("").append(f"warning{f' {c}' if (c := code_of(w)) else ''}: ", "bold yellow").append(text.plain(w)) for w in warnings))


def kernel_table(rows: Sequence[Mapping[str, Any]], width: int | None = None, relative_power: bool = True) -> Table:
    """Time, traffic and energy of each kernel in execution order, with the sum below. Names fold, numbers do not.

    rows    name, op, precision, ms, bound, dram_bytes, placement, mj; where known utilisation, and change {what, saved_ms}
    """
    columns = _columns(width)
    keys = ["name", "op", "precision", "ms", "bound", "dram_bytes", "utilisation", "placement", "mj", "change"]
    if columns < CHANGES_WIDTH or not any(r.get("change") for r in rows):
        keys.remove("change")
    if columns < 100:
        keys = [k for k in keys if k not in ("placement", "mj", "utilisation") or (k == "placement" and len({r.get(k) for r in rows}) > 1)]
    heading = {"name": "kernel", "op": "operators", "dram_bytes": "DRAM", "placement": "on", "mj": "mJ", "precision": "prec.", "utilisation": "array",
               "change": "one change that would save most"}
    table = plain_table(f"mJ: {text.RELATIVE}" if relative_power and "mj" in keys else "")
    for key in keys:
        number = key in ("ms", "dram_bytes", "mj", "utilisation")
        folds = key in ("name", "op", "change")
        table.add_column(heading.get(key, key), justify="right" if number else "left", no_wrap=not folds, overflow="fold", min_width=10 if folds else None)
    for row in rows:
        table.add_row(*(_plain(_kernel_cell(key, row.get(key))) for key in keys))
    table.add_section()
    sums = {key: sum(text.row_number(r, key) or 0.0 for r in rows) for key in ("ms", "dram_bytes", "mj")}
    if all(row.get("mj") is None for row in rows):
        sums.pop("mj")
    table.add_row(*(_plain(_kernel_cell(key, sums.get(key, f"{len(rows)} kernels" if key == "name" else None))) for key in keys), style="bold")
    return table


def _kernel_cell(key: str, value: object) -> str:
    if key == "dram_bytes":
        return text.size(value)
    if key == "utilisation":                         # kernels without multiply-accumulates use none
        return f"{100 * value:.0f} %" if isinstance(value, float) and value > 0 else ""
    if key == "change":
        return change_text(value) if isinstance(value, Mapping) else ""
    return text.significant(value) if key in ("ms", "mj") else text.plain("" if value is None else value)


def change_text(change: Mapping[str, Any]) -> str:
    """What one change saves on one kernel."""
    return f"{text.plain(change['what'])}: -{text.significant(change['saved_ms'], 2)} ms"


def targets_table(targets: Sequence[Target], width: int | None = None) -> Table:
    """What can be searched for: precisions with the newest toolkit, operating points, and what the latency model rests on."""
    columns = _columns(width)
    table = plain_table()
    table.add_column("target", no_wrap=True)
    table.add_column("what", overflow="fold")
    table.add_column("precisions", overflow="fold", min_width=9)
    table.add_column("clock", overflow="fold", min_width=9)
    if columns >= 100:
        table.add_column("toolkit", overflow="fold")
    table.add_column("latency", overflow="fold")
    for t in targets:
        cells = [t.name, t.title, ", ".join(p.upper() for p in t.available()), _clocks(t)]
        cells += [t.toolkit(None)] if columns >= 100 else []
        table.add_row(*(_plain(text.plain(c)) for c in [*cells, _trust(t, whole=len(targets) == 1)]))
    return table


def _trust(target: Target, whole: bool) -> str:
    """The interval as factors, and what the prediction was checked on: all of it, or the first clause where many are listed."""
    checked = target.provenance.validated_on
    clause = checked if whole else checked.partition(";")[0].partition(". ")[0].partition(", largest")[0]
    return f"x {target.latency_factor_low:.2g} to {target.latency_factor_high:.2g}: {clause}"


def _clocks(target: Target) -> str:
    points = target.operating_points
    return points[0].name if len(points) == 1 else f"{points[0].name} to {points[-1].name} ({len(points)})" if points else text.MISSING


@contextmanager
def progress(console: Console, clock: Callable[[], float] = time.monotonic) -> Iterator[Progress]:
    """A Progress that draws a bar with the time left for each kind of work that runs longer than two seconds.

    Silent when `console` is no terminal; rich itself honours NO_COLOR. Calls may come from any thread.
    """
    if not console.is_terminal or console.is_dumb_terminal:
        yield silent
        return
    bars, one_at_a_time = _bars(console, clock), threading.Lock()
    known: dict[str, tuple[Any, int]] = {}                  # work -> its bar, and how far it was

    def show(what: str, done: int, total: int) -> None:
        with one_at_a_time:
            task, before = known.get(what, (None, 0))
            if task is None:
                task = bars.add_task(text.plain(what), total=total or None)
            elif done < before:                             # the same work begins again
                bars.reset(task)
            bars.update(task, completed=done, total=total or None)
            known[what] = task, done

    with bars:
        yield show


def _bars(console: Console, clock: Callable[[], float]) -> Any:
    """rich's Progress, showing only work that has run for `PATIENCE_S` and is not done; it disappears at the end."""
    from rich import progress as rich_progress

    class Patient(rich_progress.Progress):
        def get_renderables(self) -> Iterator[RenderableType]:
            yield self.make_tasks_table([t for t in self.tasks if not t.finished and (t.elapsed or 0.0) >= PATIENCE_S])

    class TimeLeft(rich_progress.ProgressColumn):
        """From the recent speed; before rich knows one, from the average since the start."""

        def render(self, task: rich_progress.Task) -> Text:
            left = task.time_remaining
            if left is None and task.total and task.completed and task.elapsed:
                left = task.elapsed * (task.total - task.completed) / task.completed
            return _plain("" if left is None else f"{text.duration(round(left))} left", "progress.remaining")

    return Patient(
        rich_progress.SpinnerColumn(), rich_progress.TextColumn("{task.description}", markup=False), rich_progress.BarColumn(bar_width=24),
        rich_progress.MofNCompleteColumn(), TimeLeft(), console=console, transient=True,
        get_time=clock, refresh_per_second=5, speed_estimate_period=300.0)
