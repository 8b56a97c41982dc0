"""Everything that a target's file says, as tables with the source beside each figure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from qbench import terminal
from qbench.report import target_text as words
from qbench.report import text
from qbench.target import Target

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table
    from rich.text import Text


def target_report(target: Target) -> Iterator[RenderableType]:
    """What `qbench targets NAME` prints, part by part."""
    yield _plain(f"{target.name}: {text.plain(target.title)}", "bold")
    yield _plain(words.toolkits(target))
    yield _head("precisions")
    yield _table(words.PRECISION_HEADINGS, words.precision_rows(target), right=(1,))
    yield from (_plain(f"  {line}") for line in [*words.refusals(target), *words.fixed_outputs(target)])
    yield _head("operating points")
    yield _table(words.point_headings(target), words.point_rows(target), right=range(1, 3 + len(target.voltage_bins)))
    yield _plain(text.plain(target.sources.get("operating_points", "")), "dim")
    if target.thermal:
        yield _plain(words.thermal(target.thermal))
    yield _head("what the figures rest on")
    yield _plain("\n".join([*words.basis(target), *words.power(target)]))
    for name, found in (("layout", words.cited(target.layout)), ("memory", words.cited(target.memory))):
        yield _head(name)
        yield _cited(found) if found else _plain("no public source")
    yield _head("operators")
    yield _plain("\n".join(words.operators(target)))
    if target.facts:
        yield _head("facts that no model reads, with their sources")
        yield _cited(words.facts(target))
    yield _head("constants of the cost model, with their sources")
    yield _cited(words.constants(target))


def _plain(words: str, style: str = "") -> Text:
    from rich.text import Text

    return Text(words, style)


def _head(words: str) -> Text:
    return _plain(f"\n{words}", "bold")


def _table(headings: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[int] = ()) -> Table:
    table = terminal.plain_table()
    for i, heading in enumerate(headings):
        table.add_column(heading, justify="right" if i in right else "left", overflow="fold", no_wrap=i in right)
    for row in rows:
        table.add_row(*(_plain(text.plain(c)) for c in row))
    return table


def _cited(rows: Sequence[Sequence[str]]) -> Table:
    return _table(("", "value", "source"), rows)
