"""What `qbench rewrite` prints."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.console import Group
from rich.table import Table
from rich.text import Text

from qbench.report import text
from qbench.terminal import plain_table

if TYPE_CHECKING:
    from qbench.workbench.rewriting import Rewritten, Step

SHOWN = 3


def report(r: Rewritten) -> Group:
    """The rewrites that were applied, those that were not and why, and what is left."""
    kept, others = [s for s in r.steps if s.kept], [s for s in r.steps if not s.kept]
    lines: list[Text | Table] = [Text(f"{text.plain(r.model)} for {r.target} ({r.toolkit}), {r.precision} at {r.op_point}", "bold"),
                                 Text(f"{r.read[0]} nodes in the file, {r.read[1]} once constants, BatchNormalization and idle nodes are folded, {r.nodes} now; "
                                      f"{r.ms_before:.4g} ms before, {r.ms_after:.4g} ms after (predicted)")]
    lines.append(_table(kept) if kept else Text("No rewrite is needed or pays."))
    if others:
        lines.append(_others(others))
    lines += [Text(f"{x.placement}: {len(x.nodes)} {x.op} ({text.some(x.nodes, SHOWN)}){': ' + x.why if x.why else ''}", "yellow") for x in r.left]
    lines.append(Text(f"all rewrites together: the outputs differ by at most {r.error:.1e} of their largest magnitude"))
    lines += [Text(n, "dim") for n in r.notes]
    lines.append(Text(f"written: {r.output}" + (f" and, for the host behind it, {r.host}" if r.host else "")))
    return Group(*lines)


def _table(steps: Sequence[Step]) -> Table:
    table = plain_table()
    for name, justify in (("rewrite", "left"), ("nodes", "left"), ("exact", "left"), ("error", "right"), ("ms before", "right"), ("ms after", "right")):
        table.add_column(name, justify="right" if justify == "right" else "left", overflow="fold")
    for s in steps:
        old, new = [n for c in s.changes for n in c.old], [n for c in s.changes for n in c.new]
        table.add_row(Text(f"{s.rewrite}\n{s.why}"), Text(f"{text.some(old, SHOWN)} -> {text.some(new, SHOWN) or 'nothing'}"), Text(s.exactness), Text(f"{s.error or 0:.1e}"),
                      Text(f"{s.ms_before or 0:.4g}"), Text(f"{s.ms_after or 0:.4g}"))
    return table


def _others(steps: Sequence[Step]) -> Table:
    table = plain_table("not applied")
    table.add_column("rewrite", overflow="fold")
    table.add_column("exact")
    table.add_column("why not", overflow="fold")
    for s in steps:
        table.add_row(Text(s.rewrite), Text(s.exactness), Text(s.why))
    return table
