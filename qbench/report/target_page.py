"""A target's page in docs/targets as Markdown: what its figures rest on and how wrong they may be first, everything the file says after."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from qbench.report import held_out as held
from qbench.report import target_text as words
from qbench.report import text
from qbench.report.held_out import Errors, HeldOut
from qbench.target import Target

GENERATED = "<!-- Written by experiments/target_pages.py from targets/{name}.toml and experiments/data/validation.csv.xz: change those. -->"
READING = ("A row is one published latency of one network in one precision. Its prediction comes from constants fitted without any network of its design, as "
           "the second table groups them. Error is predicted / published - 1; bias is its median with the sign, above 0 the prediction is too slow. Where the rows come from: "
           "[public_sources.md](../../experiments/data/public_sources.md), [rk3588_sources.md](../../experiments/data/rk3588_sources.md).")
ERRORS = ("rows", "median error", "largest", "bias", "inside the interval")
INDEX = ("One page for each chip, made from its file in `targets/` and the published latencies in `experiments/data`: what its figures rest on, how wrong they "
         "may be, and what nobody checked. `python experiments/target_pages.py` writes them again, `qbench targets NAME` prints the file's part.")
LONG = 400
"""Characters beyond which a list of operators is folded away."""


@dataclass(frozen=True, slots=True)
class RuleText:
    """A rule about operators as its reader sees it.

    puts       where an operator goes that breaks it
    toolkits   versions it holds for; empty: all
    """

    ops: Sequence[str]
    text: str
    puts: str
    source: str
    toolkits: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Operators:
    """What the target's rule set says.

    placements   where -> operators, as its own table has it; None where the lists of the target file are all there is
    """

    rules: Sequence[RuleText] = ()
    placements: Mapping[str, Sequence[str]] | None = None


def page(target: Target, rows: Sequence[HeldOut], operators: Operators, aliases: Sequence[str] = ()) -> str:
    """The whole page. rows   of this target: published latencies beside what was predicted with their design left out"""
    parts = [
        GENERATED.format(name=target.name), f"# {target.name}", _what(target, aliases), *_short(target, rows),
        "## Predicted against published", *_validation(target, rows), "## What is unvalidated",
        bullets(f"**{escaped(what)}**: {escaped(why)}" for what, why in held.unvalidated(target, rows)),
        "## Precisions", table(words.PRECISION_HEADINGS, words.precision_rows(target), right=(1,)), *_listed([*words.refusals(target), *words.fixed_outputs(target)]),
        "## Operating points", *_points(target), "## Layout and memory", cited([*words.cited(target.layout), *words.cited(target.memory)]),
        "## Operators", *_operators(target, operators), "## Power and heat", *_listed([*words.power(target), _heat(target)]),
        "## Provenance", *_listed(words.basis(target)), "## Constants of the cost model", _footings(target),
        table(("", "value", "rests on", "source"), [(key, value, words.footing(source), source) for key, value, source in words.constants(target)]),
        "## Facts that no model reads", cited(words.facts(target))]
    return "\n\n".join(parts) + "\n"


def index(targets: Sequence[tuple[Target, Sequence[HeldOut]]]) -> str:
    """The table of all pages."""
    rows = [f"| [{t.name}]({t.name}.md) | {escaped(t.title)} | {_precisions(t)} | {escaped(headline(rows))} | {escaped(spread(t, rows))} | {escaped(_factors(t))} |"
            for t, rows in targets]
    head = "| target | chip | precisions | latency, how wrong | 80 % interval | power, energy |\n| --- | --- | --- | --- | --- | --- |"
    return "\n".join(["<!-- Written by experiments/target_pages.py. -->", "# Targets", "", INDEX, "", head, *rows]) + "\n"


def _what(target: Target, aliases: Sequence[str]) -> str:
    several = " (the last by default)" if len(target.toolkits) > 1 else ""
    also = f" Also called {', '.join(f'`{a}`' for a in aliases)}." if aliases else ""
    return f"{escaped(target.title)}. Toolkit {escaped(', '.join(target.toolkits))}{several}.{also}"


def _precisions(target: Target) -> str:
    return ", ".join(str(p.precision).upper() for p in target.precisions)


def _watts(target: Target) -> str:
    return words.RELATIVE_POWER if target.power is None else f"{target.power.what}; validation: {target.power.validated_on}"


def headline(rows: Sequence[HeldOut]) -> str:
    """The held-out errors in one phrase; "unvalidated" where there are none."""
    if not rows:
        return "unvalidated: no held-out row"
    e = Errors.of(rows)
    rank = f", rank correlation {e.rank:.2f}" if e.rank is not None else ""
    networks = len({r.network for r in rows})
    how = f"{networks} networks, each left out of the fit" if networks == e.designs else f"{networks} networks, each left out of the fit with its design ({e.designs} designs)"
    return f"median error {e.median:.0%}, largest {e.worst:.0%}{rank}; {e.rows} rows of {how}"


def spread(target: Target, rows: Sequence[HeldOut]) -> str:
    """The interval as factors, and how many rows it holds."""
    inside = f"; holds {Errors.of(rows).inside} of {len(rows)} rows" if rows else ""
    return f"x {target.latency_factor_low:.4g} to x {target.latency_factor_high:.4g} of the prediction ({target.provenance.interval}){inside}"


def _factors(target: Target) -> str:
    w = target.power
    return words.RELATIVE_POWER if w is None else f"watts: x {w.factor_low:.4g} to x {w.factor_high:.4g} ({w.interval})"


def _short(target: Target, rows: Sequence[HeldOut]) -> list[str]:
    """What an engineer wants in 20 seconds."""
    known = [("precisions", _precisions(target)), ("latency rests on", target.provenance.fitted_on), ("how wrong", headline(rows)),
             ("80 % interval", spread(target, rows)), ("power, energy", _watts(target))]
    gaps = len(list(held.unvalidated(target, rows)))
    return [table(("in short", ""), known), f"{gaps} things were not checked by anyone: [what is unvalidated](#what-is-unvalidated)."]


def _validation(target: Target, rows: Sequence[HeldOut]) -> list[str]:
    if not rows:
        said = escaped(target.provenance.validated_on)
        return [f"**Unvalidated.** No published latency was predicted by constants that had not seen it. What the file says of its validation: {said}"]
    groups = [(p.upper(), [r for r in rows if r.precision == p]) for p in held.precisions(rows)]
    designs = {d: [r for r in rows if r.design == d] for d in sorted({r.design for r in rows})}
    worst_first = sorted(designs.items(), key=lambda item: -Errors.of(item[1]).median)
    numbers = range(1, 1 + len(ERRORS))
    return [f"![Published against predicted latency of {len(rows)} rows; the band is the 80 % interval]({target.name}.svg)", READING,
            table(("precision", *ERRORS), [_errors(*g) for g in [*groups, ("all", rows)]], numbers),
            *_ratio(rows), "### Held-out errors by design", table(("design", *ERRORS), [_errors(*d) for d in worst_first], numbers), _every(rows)]


def _ratio(rows: Sequence[HeldOut]) -> list[str]:
    errors = held.ratio_errors(rows, "int8", "fp16")
    if not errors:
        return []
    return [f"INT8 / FP16 ratio of a network's latencies, {len(errors)} networks published in both: median error {median(errors):.0%}, largest {max(errors):.0%}."]


def _errors(name: str, rows: Sequence[HeldOut]) -> tuple[str, ...]:
    e = Errors.of(rows)
    return name, str(e.rows), f"{e.median:.0%}", f"{e.worst:.0%}", f"{e.bias:+.0%}", f"{e.inside} of {e.rows}"


def _every(rows: Sequence[HeldOut]) -> str:
    """All rows, folded away."""
    cells = [(r.design, r.network, r.precision.upper(), words.number("", r.measured_ms), text.significant(r.predicted_ms),
              text.interval(r.predicted_ms, r.low_ms, r.high_ms), f"{held.error(r):+.0%}", "" if held.is_inside(r) else "outside")
             for r in sorted(rows, key=lambda r: (r.design, r.network, r.precision))]
    return _folded(f"All {len(rows)} rows", table(("design", "network", "precision", "published ms", "predicted ms", "80 % interval", "error", ""), cells, range(3, 7)))


def _points(target: Target) -> list[str]:
    said = [target.sources["operating_points"], *([f"silicon bins: {target.sources['voltage_bins']}"] if target.voltage_bins else [])]
    return [table(words.point_headings(target), words.point_rows(target), range(1, 3 + len(target.voltage_bins))), *_listed(said)]


def _operators(target: Target, operators: Operators) -> list[str]:
    """Where operators run, then the limits that move one elsewhere."""
    if operators.placements is None:
        lines = words.operators(target)
    else:
        lines = [f"{where} ({len(ops)}): {', '.join(ops)}" for where, ops in operators.placements.items()]
        lines.append("every other operator: unknown")
    listed = bullets(map(escaped, lines))
    parts = [listed if len(listed) < LONG else _folded("Where operators run", listed)]
    if operators.rules:
        parts.append(f"Toolkit {target.toolkits[-1]} unless a rule names others. An operator that breaks a rule goes to the place in the third column.")
        parts.append(table(("operators", "rule", "else on", "toolkits", "source"),
                           [(", ".join(r.ops), r.text, r.puts, ", ".join(r.toolkits) or "all", r.source) for r in operators.rules]))
    return parts


def _heat(target: Target) -> str:
    return words.thermal(target.thermal) if target.thermal else "no public throttle rule"


def _footings(target: Target) -> str:
    """How many constants rest on what."""
    counts = Counter(words.footing(source) for _, _, source in words.constants(target))
    return f"{len(target.cost)} constants: {', '.join(f'{n} {footing}' for footing, n in counts.most_common())}. Sources that say \"same\" mean the line above."


def escaped(value: object) -> str:
    """Text that Markdown leaves as it is, in a cell of a table too."""
    return re.sub(r"([\\|<>*`~])", r"\\\1", text.plain(value))


def table(headings: Sequence[str], rows: Iterable[Sequence[str]], right: Iterable[int] = ()) -> str:
    """A table; cells are plain text. right   columns that are aligned there"""
    numbers = set(right)
    lines = [headings, ["---:" if i in numbers else "---" for i in range(len(headings))], *([escaped(c) for c in row] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def cited(rows: Sequence[Sequence[str]]) -> str:
    return table(("", "value", "source"), rows) if rows else "No public source."


def bullets(lines: Iterable[str]) -> str:
    return "\n".join(f"* {line}" for line in lines)


def _listed(lines: Sequence[str]) -> list[str]:
    return [bullets(map(escaped, lines))] if lines else []


def _folded(summary: str, body: str) -> str:
    return f"<details><summary>{summary}</summary>\n\n{body}\n\n</details>"
