"""A comparison on the terminal: the verdict, scales side by side, why they differ, and every plan, best first. rich is imported when first needed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from qbench.comparison import SCALES, Comparison
from qbench.report import compare_cells as cells
from qbench.report import compare_text as words
from qbench.report import text

if TYPE_CHECKING:
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

_WIDE = 132
_MARK = {"same": "="}


def _plain(value: object, style: str = "") -> Text:
    """Text that is not read as markup: names come from the user's files."""
    from rich.text import Text

    return Text(text.plain(value) if "\n" not in str(value) else "\n".join(text.plain(v) for v in str(value).split("\n")), style)


def _table(title: str, caption: str, gap: int = 1) -> Table:
    from rich import box
    from rich.table import Table

    return Table(box=box.SIMPLE_HEAD, padding=(0, gap, 0, 0), pad_edge=False, show_edge=False, header_style="bold", title=_plain(title, "bold"),
                 title_justify="left", caption=_plain(caption, "dim"), caption_justify="left")


def headline(result: Comparison) -> Text:
    return _plain(words.asked(result) + "\n", "bold").append(words.summary(result), "green")


def ladder_table(result: Comparison) -> Table:
    """The first table: one calibrator a row, accuracy over SQNR for each scale, then what each finer scale gains."""
    rows, scale = cells.ladder_rows(result), words.scale_of(result)
    several = len({r.precision for r in rows}) > 1
    scales = [s for s in SCALES if any(s in r.values for r in rows)]
    steps = list(dict.fromkeys(s.label for r in rows for s in r.steps))
    reference = result.reference.accuracy
    unit = f" in {scale.unit}" if scale.unit else ""
    points = f" ({scale.points})" if scale.points else ""
    what = f"{text.plain(reference.metric)}{unit}, float {scale.number(reference.value)}, and output SQNR"
    table = _table(f"One scale for all, per layer, per channel: {what}",
                   f"right: what the finer scale gains{points}; = no more than chance in accuracy")
    table.add_column("calibrator", overflow="fold")
    for s in scales:
        table.add_column(s, justify="right", no_wrap=True)
    for label in steps:
        table.add_column(label.replace(" over ", "\nover "), justify="right", no_wrap=True)
    for row in rows:
        gains = {s.label: s for s in row.steps}
        shown = [f"{row.values[s][0]}\n{row.values[s][1]}" if s in row.values else "" for s in scales]
        shown += [f"{gains[g].accuracy}{' =' if gains[g].same else ''}\n{gains[g].sqnr}" if g in gains else "" for g in steps]
        table.add_row(_plain(row.calibrator + (f"\n{row.precision}" if several else "")), *(_plain(c) for c in shown))
    return table


def explanations(result: Comparison) -> Group:
    """Why the scales differ, one block a step."""
    from rich.console import Group

    lines = []
    for gap in result.gaps:
        first, *rest = words.explained(gap, result)
        lines.append(_plain(f"\nWhy {first}", "bold"))
        lines += [_plain(f"  {line}") for line in rest]
    lines += [_plain(f"\nnot measured: {what}: {why}", "yellow") for what, why in result.unmeasured.items()]
    return Group(*lines)


def notes(result: Comparison) -> Group:
    """What calibrators say of their choices, and what the figures rest on."""
    from rich.console import Group

    said = [f"{row.precision.upper()}, {row.scale}: {row.note}" for row in result.rows if row.note]
    return Group(*(_plain(line, "dim") for line in [*said, words.basis(result)]))


def row_table(result: Comparison, width: int) -> Table:
    """Every plan, best first, float last. On narrow terminals intervals stand below their values; numbers are never cut."""
    rows, scale, wide = cells.table_rows(result), words.scale_of(result), width >= _WIDE
    several, latency = len({r.precision for r in rows if r.precision}) > 1, not words.same_latency(result)
    table = _table("Every plan, best first", words.latency_note(result), 1 if wide else 0)
    unit = f", {scale.unit}" if scale.unit else ""
    points = f", {scale.points}" if scale.points else ""
    table.add_column("#", justify="right", no_wrap=True)
    table.add_column("calibrator\nscale" if not wide else "calibrator", overflow="fold", width=None if wide else 17)
    if wide:
        table.add_column("scale", no_wrap=True)
    for title in (f"accuracy{unit}", f"drop{points}"):
        table.add_column(title if wide else title.replace(", ", "\n"), justify="right", no_wrap=True)
    table.add_column("", no_wrap=True)
    table.add_column("SQNR", justify="right", no_wrap=True)
    table.add_column("worst layer", overflow="fold")
    table.add_column("size", justify="right", no_wrap=True)
    if latency:
        table.add_column("ms", justify="right", no_wrap=True)
    for row in rows:
        own = f"{row.calibrator}{f' {row.precision}' if several and row.precision else ''}"
        how = [own, row.scale] if wide else [f"{own}\n{row.scale}".strip()]
        worst = f"{row.worst} {row.worst_db}" if wide else f"{row.worst_db}\n{row.worst}"
        shown = [row.rank, *how, _with(row.accuracy, row.accuracy_interval, wide), _with(row.drop, row.drop_interval, wide),
                 _MARK.get(row.against_best, ""), row.sqnr, worst.strip(), row.size]
        shown += [_with(row.latency, row.latency_interval, wide)] if latency else []
        table.add_row(*(_plain(c) for c in shown), style="bold green" if row.against_best == "best" else "")
    return table


def _with(value: str, interval: str, wide: bool) -> str:
    """A value and its interval, beside or below it."""
    return f"{value} {interval}".strip() if wide else f"{value}\n{interval.replace(', ', ',')}".strip()


def vendor_table(result: Comparison) -> Group:
    """The vendor's own results and ours in its simulator, and where ours lose."""
    from rich.console import Group

    table = _table("In the vendor's simulator", words.VENDOR)
    for title in words.VENDOR_HEADS[:-1]:
        table.add_column(title, justify="left" if title in ("by", "what") else "right", overflow="fold")
    for row in words.vendor_cells(result):
        table.add_row(*(_plain(c) for c in row[:-1]))
    return Group(table, *(_plain(line, "yellow") for line in words.vendor_remarks(result)))
