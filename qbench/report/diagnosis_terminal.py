"""A diagnosis on the terminal: the verdict first, its evidence, then the gaps. rich is imported when first needed."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from typing import TYPE_CHECKING

from qbench.diagnosis.cures import CURES
from qbench.diagnosis.records import Cause, Diagnosis, LayerGap, Stage
from qbench.report import text

if TYPE_CHECKING:
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    from qbench.diagnosis.symptoms import Match

MOST_LAYERS = 12
MOST_TRIALS = 5


def _plain(value: object, style: str = "") -> Text:
    """Text that is not read as markup: names come from the user's files."""
    from rich.text import Text

    return Text(text.plain(value), style)


def diagnosis_page(found: Diagnosis) -> Group:
    """Everything of one diagnosis."""
    from rich.console import Group

    first = found.first
    lines: list[Text | Table | Group] = [_verdict(found, first)]
    lines += [stage_table(found.stages)]
    if first is not None and first.trials:
        lines += [_plain(""), _plain("hypotheses, best first", "bold"), trial_table(first)]
    shown = next((s for s in (first, *reversed(found.stages)) if s is not None and s.layers), None)
    if shown is not None:
        lines += [_plain(""), _plain(f"gaps, {shown.name}", "bold"), layer_table(shown.layers)]
    lines += [_plain(f"not looked at: {layer}: {why}", "dim") for layer, why in found.left_out.items()]
    lines += [_plain(f"note: {n}", "dim") for n in (*found.notes, *(n for s in found.stages for n in s.notes))]
    return Group(*lines)


def _verdict(found: Diagnosis, first: Stage | None) -> Group:
    from rich.console import Group

    head = f"{found.model}, {found.samples} samples: "
    if first is None:
        return Group(_plain(head + "healthy", "bold green"), _plain(""))
    cause = " and ".join(map(str, first.causes)) or str(first.cause)
    cure = CURES[first.cause]
    lines = [_plain(f"{head}{cause}", "bold yellow" if first.cause is Cause.CUT else "bold red"), _plain(f"where    {first.name}, {first.where}"), _plain(f"what     {first.what}")]
    if first.cause not in (Cause.UNKNOWN, Cause.CUT):
        lines.append(_plain(f"sure     {first.confidence:.0%} (how well it explains the gap and how far it is from the next cause; no probability)"))
    lines += [_plain(f"seen     {e}") for e in first.evidence]
    return Group(*lines, _plain(f"confirm  {cure.confirm}"), _plain(f"cure     {cure.cure}"), _plain(""))


def stage_table(stages: Sequence[Stage]) -> Table:
    table = _table("stage", "verdict", "first open at", "what")
    for s in stages:
        table.add_row(_plain(s.name), _plain(s.cause, {Cause.HEALTHY: "green", Cause.CUT: "yellow"}.get(s.cause, "red")), _plain(s.where or "-"), _plain(s.what))
    return table


def trial_table(stage: Stage) -> Table:
    table = _table("hypothesis", "cause", "where", "explains", "fitted")
    for t in stage.trials[:MOST_TRIALS]:
        table.add_row(_plain(" and ".join(t.names)), _plain(" and ".join(map(str, t.causes))), _plain(t.where), f"{t.explained:.1%}", str(t.freedom))
    return table


def layer_table(layers: Sequence[LayerGap]) -> Table:
    """The open layers and those with the widest gap alone, in network order."""
    kept = sorted(range(len(layers)), key=lambda i: (not layers[i].open, layers[i].isolated.sqnr_db))[:MOST_LAYERS]
    table = _table("tensor", "alone dB", "in all dB", "cosine", "max error", "max steps", "open")
    for i in sorted(kept):
        g = layers[i]
        table.add_row(_plain(g.tensor), _db(g.isolated.sqnr_db), _db(g.accumulated.sqnr_db), f"{g.accumulated.cosine:.4f}", f"{g.accumulated.max_error:.3g}",
                      "-" if g.accumulated.max_steps is None else f"{g.accumulated.max_steps:.3g}", "open" if g.open else "")
    if len(layers) > len(kept):
        table.caption = f"{len(layers) - len(kept)} more tensors; --json lists all"
        table.caption_justify = "left"
    return table


def symptom_list(found: Sequence[Match]) -> Group:
    """Each match with its cause, steps, cure and the command that checks it."""
    from rich.console import Group

    if not found:
        return Group(_plain("no known symptom is like this; try the words of the error itself, or give --outputs to compare numbers"))
    lines = []
    for number, m in enumerate(found, start=1):
        s = m.symptom
        lines += [_plain(f"{number}. {s.title}  ({m.score:.0%})", "bold"), _plain(f"   cause    {s.cause}"), *(_plain(f"   step     {step}") for step in s.steps),
                  _plain(f"   cure     {s.cure}"), *([_plain(f"   check    {s.check}")] if s.check else []),
                  _plain(f"   source   {s.source} ({s.year}); matched: {', '.join(m.because)}", "dim")]
    return Group(*lines)


def _db(value: float) -> str:
    return "equal" if value == inf else f"{value:.1f}"


def _table(*columns: str) -> Table:
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, header_style="bold")
    for name in columns:
        numeric = name in ("explains", "fitted", "alone dB", "in all dB", "cosine", "max error", "max steps")
        table.add_column(name, justify="right" if numeric else "left", no_wrap=numeric, overflow="fold")
    return table
