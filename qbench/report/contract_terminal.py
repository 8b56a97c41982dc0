"""A contract, and what breaks it, for the terminal."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from rich import box
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from qbench import terminal
from qbench.contract import Contract

if TYPE_CHECKING:
    from qbench.workbench.contracting import Contracts


def contract_page(found: Contracts) -> Iterator[RenderableType]:
    """Per input its contract, then what is broken, then the notes."""
    for checked in found.inputs:
        c = checked.contract
        yield Text(f"{c.name} of {found.model} on {c.target}", "bold")
        yield _contract(c)
        if checked.file:
            said = "keeps it" if checked.kept else "breaks it"
            yield Text(f"{checked.file} {said}")
        for b in checked.breaches:
            yield Text.assemble((f"{b.clause}{'' if b.level == 'broken' else ' (advice)'}: ", "bold"), f"found {b.found}, needed {b.needed}\n"
                                f"  cure: {b.cure}\n  left: {b.cost}")
        for v in checked.verdicts:
            if v.slip:
                yield Text.assemble(("likely mistake: ", "bold"), f"{v.slip}, confidence {v.confidence:.2f} (no probability)\n  cure: {v.cure}")
            else:
                yield Text(f"statistics: like the calibration data (distance {v.distance:.3f})")
    if found.notes:
        yield terminal.warning_list(found.notes)


def _contract(c: Contract) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, show_header=False)
    table.add_column()
    table.add_column(overflow="fold")
    table.add_column(overflow="fold", style="dim")
    table.add_row("tensor", f"{c.dtype} {list(c.shape)} {c.layout}".strip(), "")
    table.add_row("strides", f"{list(c.strides)} bytes; rows of {c.row_bytes:,}, buffer {c.buffer_bytes:,} bytes", c.sources.get("strides", ""))
    if c.zero_copy:
        table.add_row("start", f"a multiple of {c.base_align_bytes} bytes" if c.base_align_bytes > 1 else "anywhere, as far as is known", c.sources.get("alignment", ""))
    if c.channel_order:
        table.add_row("channels", c.channel_order, "")
    if c.scale is not None:
        table.add_row("codes", f"scale {c.scale:g}, zero point {c.zero_point}", "")
    if c.normalised_by:
        what = f"{_words(c)}, applied by the {c.normalised_by}" if c.preprocessing else f"mean and std applied by the {c.normalised_by}"
        table.add_row("values", what, "")
    if c.low is not None and c.high is not None:
        table.add_row("range", f"{c.low:.4g} to {c.high:.4g}", "")
    return table


def _words(c: Contract) -> str:
    p = c.preprocessing
    return "" if p is None else f"(pixel * {p.scale:.6g} - {'/'.join(f'{m:g}' for m in p.mean)}) / {'/'.join(f'{s:g}' for s in p.std)}"
