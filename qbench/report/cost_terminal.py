"""Prices on the terminal: one block per target and precision, with the table of kernels, or the table of operating points where several were asked for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any

from qbench import terminal
from qbench.report import text

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

Row = Mapping[str, Any]
_CHANGES = 6                  # kernels whose best change is named below a narrow table


def cost_report(rows: Sequence[Row], width: int) -> Iterator[RenderableType]:
    """What `qbench cost` prints, part by part; strings may be wrapped softly."""
    said = ""
    for _, group in groupby(rows, key=lambda r: (r["target"], r["precision"])):
        points = list(group)
        row = points[0]
        basis = f"interval: {row['provenance']['interval']}; fitted on {row['provenance']['fitted_on']}; validated on {row['provenance']['validated_on']}"
        if len(points) == 1:
            yield _plain(headline(row), "bold")
        if basis != said:
            yield _plain(basis, "dim")
        said = basis
        if row["warnings"]:
            yield terminal.warning_list(row["warnings"])
        if len(points) > 1:
            yield _plain(f"{row['target']} {row['precision']}", "bold")
            yield points_table(points)
            continue
        yield terminal.kernel_table(row["kernels"], width, relative_power=row["power_is_relative"])
        yield _plain("\n".join(facts(row, width)))


def _plain(words: str, style: str = "") -> RenderableType:
    from rich.text import Text

    return Text(text.plain(words) if "\n" not in words else words, style)


def headline(row: Row) -> str:
    """Latency with its interval, energy, memory."""
    many = "".join(f", {row[k]} {k}" if k == "cores" else f", batch {row[k]}" for k in ("cores", "batch") if row[k] > 1)
    return (f"{row['target']} {row['precision']} at {row['op_point']}{many}: {text.significant(row['latency_ms'])} ms "
            f"({text.significant(row['latency_ms_low'])} to {text.significant(row['latency_ms_high'])}), {energy(row)}, {row['macs'] / 1e6:.4g} M MACs, "
            f"{memory_line(row)}")


def memory_line(row: Row) -> str:
    """All of the memory in one figure, or RAM and flash apart where weights stay in flash."""
    m = row["memory"]
    if m["ram_bytes"] is None:
        return f"peak memory {text.size(row['peak_memory_bytes'])} (lower bound {text.size(row['memory_lower_bound_bytes'])})"
    return f"RAM {_of(m['ram_bytes'], m['device_ram_bytes'])}, flash {_of(m['flash_bytes'], m['device_flash_bytes'])}"


def _of(need: float, have: float | None) -> str:
    return text.size(need) if have is None else f"{text.size(need)} of {text.size(have)}"


def arena_line(m: Row) -> str:
    """Where the bytes go, who placed them, and how far the arena lies above its bound.

    m   the memory part of a row
    """
    runtime = f", {text.size(m['runtime_bytes'])} of the runtime" if m["runtime_bytes"] else ""
    placed = f"strategy: {m['strategy']}, " if m["strategy"] else ""
    least = f"; the best placement found takes {text.size(m['smallest_bytes'])}" if m["smallest_bytes"] < m["arena_bytes"] else ""
    return (f"memory: {text.size(m['arena_bytes'])} for activations ({placed}{100 * m['gap']:.1f} % above the lower bound of "
            f"{text.size(m['lower_bound_bytes'])}{least}), {text.size(m['weight_bytes'])} of weights{runtime}")


def energy(row: Row) -> str:
    """Millijoules and watts, labelled where they only compare."""
    if row["energy_mj"] is None:
        return "energy not priced"
    spread = f" ({text.significant(row['energy_mj_low'])} to {text.significant(row['energy_mj_high'])})" if row["energy_mj_low"] is not None else ""
    label = f" ({text.RELATIVE})" if row["power_is_relative"] else ""
    return f"{text.significant(row['energy_mj'])} mJ{spread} and {text.significant(row['power_w'])} W{label}"


def points_table(rows: Sequence[Row]) -> Table:
    """Latency, power and energy at every operating point; the one of least energy is marked."""
    relative = rows[0]["power_is_relative"]
    table = terminal.plain_table(f"W, mJ: {text.RELATIVE}; clocks below the fastest: formulas only" if relative else "clocks that no reading covers: formulas only")
    for heading in ("operating point", "ms", "80 % interval", "W", "mJ", ""):
        table.add_column(heading, justify="left" if heading in ("operating point", "") else "right", no_wrap=True)
    priced = [r for r in rows if r["energy_mj"] is not None]
    best = min(priced, key=lambda r: r["energy_mj"], default=None)
    for r in rows:
        cells = (r["op_point"], text.significant(r["latency_ms"]), text.interval(r["latency_ms"], r["latency_ms_low"], r["latency_ms_high"]),
                 text.significant(r["power_w"]), text.significant(r["energy_mj"]), "least energy" if r is best else "")
        table.add_row(*(_plain(c) for c in cells), style="bold" if r is best else "")
    return table


def facts(row: Row, width: int) -> Iterator[str]:
    """What the table of kernels does not hold: where the time goes, the best changes, several cores, the first run, a warm board."""
    by_bound = time_by_bound(row["kernels"])
    yield "time by what binds: " + ", ".join(f"{b} {100 * ms / max(row['latency_ms'], 1e-12):.0f} %" for b, ms in by_bound.items())
    if row["cpu_segments"]:
        yield (f"on the CPU: {row['cpu_segments']} segment{'s' if row['cpu_segments'] > 1 else ''}, {text.significant(row['cpu_ms'])} ms "
               f"({row['cpu_basis']})")
    yield arena_line(row["memory"])
    changed = sorted((k for k in row["kernels"] if k["change"]), key=lambda k: -k["change"]["saved_ms"])
    if changed and width < terminal.CHANGES_WIDTH:
        yield "one change that would save most, on the kernel alone:"
        yield from (f"  {text.plain(k['name'])}: {terminal.change_text(k['change'])}" for k in changed[:_CHANGES])
    yield from _modes(row["modes"])
    if row["thermal"]:
        yield from _thermal(row["thermal"])


def time_by_bound(kernels: Sequence[Row]) -> dict[str, float]:
    """Milliseconds by what binds, the largest first."""
    found: dict[str, float] = {}
    for k in kernels:
        found[k["bound"]] = found.get(k["bound"], 0.0) + k["ms"]
    return dict(sorted(found.items(), key=lambda item: -item[1]))


def _modes(modes: Row) -> Iterator[str]:
    several = [c for c in modes["cores"] if c["cores"] > 1]
    if several:
        yield "unvalidated: " + ", ".join(f"{c['cores']} cores {text.significant(c['latency_ms'])} ms" for c in several)
    low, high = modes["throughput_per_s_low"], modes["throughput_per_s_high"]
    spread = text.significant(low) if high - low < 1e-3 * high else f"{text.significant(low)} to {text.significant(high)}"
    yield f"unvalidated: {spread} inferences a second" + (", one on every core" if several else " back to back")
    first = modes["first_run_extra_ms"]
    yield ("first run: not known, no public figure of loading" if first is None
           else f"first run, unvalidated: {text.significant(first)} ms on top of the latency")


def _thermal(found: Row) -> Iterator[str]:
    yield f"thermal rule: {found['rule']}"
    p = found["prediction"]
    if p is None:
        yield f"sustained latency: {found['why']}"
        return
    burst = "" if p["burst_s"] is None else f" after {text.duration(p['burst_s'])}"
    yield (f"sustained ({found['why']}): {p['state']}{burst}, {text.significant(p['latency_s'] * 1e3)} ms, {text.significant(p['watts'])} W, "
           f"{p['temperature_c']:.0f} C" + ("" if p["holds"] else "; ends above the throttle limit"))
