"""The tuning list on the terminal: what to do with what it saves, best first; then what is counted already, contradicted, or does not apply."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from qbench import terminal
from qbench.advice.records import Advice, Advisory, Claim, State
from qbench.report import text

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table
    from rich.text import Text

_WIDE = 110
_HEADINGS = {
    State.DO: "do: exact", State.CONSENT: "with consent: changes results, or needs retraining", State.TRADE: "trade-offs: one figure falls, another grows",
    State.HOST: "on the host: beside the predicted latency", State.COSTS: "costs time",
    State.ALREADY: "counted in the prediction already: what would be lost without", State.CONTRADICTED: "contradicted by public sources: not recommended",
    State.UNPRICED: "not priced", State.NONE: "saves nothing here",
}
_STYLE = {State.DO: "green", State.CONTRADICTED: "red", State.CONSENT: "yellow"}


def advice_report(found: Advisory, width: int) -> Iterator[RenderableType]:
    """What `qbench advise` prints, part by part."""
    setup, provenance = found.subject.setup, found.subject.setup.target.provenance
    yield _plain(headline(found), "bold")
    yield _plain(f"interval: {provenance.interval}; of a saving: the same factors, which a difference was not validated by; validated on {provenance.validated_on}",
                 "dim")
    for state, heading in _HEADINGS.items():
        rows = [a for a in found.advice if a.state is state]
        if rows:
            yield _plain(f"\n{heading}", f"bold {_STYLE.get(state, '')}".strip())
            yield _table(rows, width)
    yield _plain(f"\n{together(found)}", "bold")
    if gone := [a for a in found.advice if a.state is State.INAPPLICABLE]:
        yield _plain("\ndoes not apply", "bold")
        yield _plain("\n".join(f"{a.title}: {text.plain(a.note)}" for a in gone))
    if claims := _claims(found):
        yield _plain("\nthe article's claims, and what public sources say", "bold")
        yield _plain("\n".join(claims), "dim")
    yield _plain("\nms, mJ, MB: what a step takes off; MB is peak memory" + (f"; mJ {text.RELATIVE}" if setup.target.power_is_relative else ""), "dim")


def _plain(words: str, style: str = "") -> Text:
    from rich.text import Text

    return Text(words, style)


def headline(found: Advisory) -> str:
    """What is advised on, and what it costs now."""
    setup, now = found.subject.setup, found.subject.now
    target, ms = setup.target, now.latency_s * 1e3
    counts: dict[str, int] = {}
    for p in setup.precision.values():
        counts[p] = counts.get(p, 0) + 1
    label = f" ({text.RELATIVE})" if target.power_is_relative else ""
    energy = f", {text.significant(now.energy_j * 1e3)} mJ{label}" if now.energy_j is not None else ""
    return (f"{text.plain(setup.network.name)} on {target.name} ({setup.toolkit}) at {setup.point.name}, {text.layers(counts)}: {text.significant(ms)} ms "
            f"({text.significant(ms * target.latency_factor_low)} to {text.significant(ms * target.latency_factor_high)}){energy}, "
            f"peak memory {text.size(now.peak_bytes)}")


def together(found: Advisory) -> str:
    """All exact steps at once, priced as one setup."""
    t, now = found.together, found.subject.now
    if not t.steps:
        return "all exact steps together: none of this list takes time off the prediction"
    energy = "energy not priced" if t.energy_mj is None else f"{text.significant(t.energy_mj)} mJ"
    return (f"all exact steps together ({', '.join(t.steps)}), priced as one: {text.significant(t.latency_ms)} ms in place of "
            f"{text.significant(now.latency_s * 1e3)} ms, {energy}, {text.size(t.peak_memory_bytes)}")


def _table(rows: list[Advice], width: int) -> Table:
    priced = any(a.saved_ms is not None for a in rows)
    wide = width >= _WIDE
    keys = ["ms", *(["interval"] if wide else []), "mJ", "MB"] if priced else []
    table = terminal.plain_table()
    table.add_column("step", overflow="fold", max_width=18)
    for key in keys:
        table.add_column("80 % interval" if key == "interval" else key, justify="right", no_wrap=True)
    table.add_column("what", overflow="fold")
    for a in rows:
        table.add_row(_plain(a.title), *(_plain(_cell(key, a)) if key != "ms" or wide else _stacked(a) for key in keys), _what(a))
    return table


def _cell(key: str, a: Advice) -> str:
    if a.saved_ms is None:
        return ""
    if key == "interval":
        return text.interval(a.saved_ms, a.saved_ms_low, a.saved_ms_high) if round(a.saved_ms, 6) else ""
    value = {"ms": a.saved_ms, "mJ": a.saved_mj, "MB": None if a.saved_memory_bytes is None else a.saved_memory_bytes / 1e6}[key]
    if value is None:
        return text.MISSING
    if abs(value) < 5e-5:
        return "0"
    sign = "\u2264 " if a.at_most and key == "ms" else ""
    return f"{sign}{text.significant(value)}"


def _stacked(a: Advice) -> Text:
    """The saved time with its interval below."""
    below = _cell("interval", a)
    return _plain(_cell("ms", a)).append(f"\n{below}" if below else "", "dim")


def _what(a: Advice) -> Text:
    """What to do, what it does to the answers, what the figure rests on, and what sources say of the article's claim."""
    line = _plain(text.plain(a.do or a.note))
    if a.consent and a.state in (State.CONSENT, State.COSTS, State.TRADE):
        line.append(f" ({a.consent})", "yellow")
    if a.do and a.note:
        line.append(f" [{text.plain(a.note)}]", "dim")
    if a.claims:
        line.append(f" [article's claim {', '.join(f'{c.number}: {c.verdict}' for c in a.claims)}]", "red" if a.state is State.CONTRADICTED else "dim")
    return line


def _claims(found: Advisory) -> list[str]:
    """Every claim that the list refers to, once, by its number."""
    said = {c.number: c for a in found.advice if a.state is not State.INAPPLICABLE for c in a.claims}
    return [claim_text(said[n]) for n in sorted(said)]


def claim_text(claim: Claim) -> str:
    """The article's claim and the verdict, with its source."""
    return f"{claim.number} {claim.verdict}: \"{claim.says}\". Sources: {claim.found} [{claim.source}]"
