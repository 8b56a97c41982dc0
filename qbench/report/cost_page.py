"""Writes cost.html: time by what binds it kernel by kernel, memory over time, and the table. Drawn as SVG: the page needs neither network nor script.

Names come from the user's files and are escaped by the template engine.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import qbench
from qbench.files import write_text
from qbench.report import cost_terminal as words
from qbench.report import text
from qbench.report.page import breakable
from qbench.terminal import change_text

Row = Mapping[str, Any]
BOUNDS = ("compute", "dram", "activation", "overhead")
"""In the order of the style's colours; whatever else binds takes the last one."""
WIDTH, HEIGHT = 1000.0, 320.0
_NAMED_SHARE = 0.02           # of the arena: smaller buffers get no name in the picture


def write_cost(rows: Sequence[Row], model: str, path: Path) -> None:
    """One HTML file at `path`, written under a temporary name and renamed. rows   of `qbench.workbench.cost_of`"""
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("qbench.report", "."), autoescape=True, undefined=jinja2.StrictUndefined,
        trim_blocks=True, lstrip_blocks=True)
    write_text(path, environment.get_template("cost.html.j2").render(context(rows, model)))


def context(rows: Sequence[Row], model: str) -> dict[str, Any]:
    """What the template is given: texts, and lengths in percent or in units of the drawings."""
    return {"version": qbench.__version__, "model": text.plain(model), "prices": [_price(r) for r in rows], "several": len(rows) > 1,
            "width": f"{WIDTH:g}", "height": f"{HEIGHT:g}"}


def _price(row: Row) -> dict[str, Any]:
    kernels = row["kernels"]
    longest = max((k["ms"] for k in kernels), default=0.0) or 1.0
    bounds = words.time_by_bound(kernels)
    total = sum(bounds.values()) or 1.0
    return {
        "title": f"{row['target']} {row['precision']} at {row['op_point']}", "headline": words.headline(row),
        "tiles": _tiles(row), "warnings": text.coded(row["warnings"]),
        "bounds": [{"name": b, "style": style(b), "width": f"{100 * ms / total:.2f}%", "value": f"{text.significant(ms)} ms, {100 * ms / total:.0f} %"}
                   for b, ms in bounds.items()],
        "kernels": [_kernel(k, longest) for k in kernels], "buffers": buffers(row["memory"], len(kernels)),
        "arena": words.arena_line(row["memory"]).removeprefix("memory: "),
        "facts": [f for f in words.facts(row, 10_000) if not f.startswith(("time by what binds", "memory: "))],
        "energy": f"mJ: {text.RELATIVE if row['power_is_relative'] else 'predicted'}",
        "basis": f"Interval: {row['provenance']['interval']}. Fitted on {row['provenance']['fitted_on']}. Validated on "
                 f"{row['provenance']['validated_on']}.",
    }


def _tiles(row: Row) -> list[dict[str, str]]:
    return [
        {"label": "latency", "value": f"{text.significant(row['latency_ms'])} ms",
         "note": text.interval(row["latency_ms"], row["latency_ms_low"], row["latency_ms_high"])},
        {"label": "energy", "value": f"{text.significant(row['energy_mj'])} mJ" if row["energy_mj"] is not None else text.MISSING,
         "note": text.RELATIVE if row["power_is_relative"] else text.interval(row["energy_mj"], row["energy_mj_low"], row["energy_mj_high"])},
        *_memory_tiles(row),
        {"label": "multiply-accumulates", "value": f"{row['macs'] / 1e6:.4g} M", "note": f"{len(row['kernels'])} kernels"},
    ]


def _memory_tiles(row: Row) -> list[dict[str, str]]:
    m = row["memory"]
    if m["ram_bytes"] is None:
        return [{"label": "peak memory", "value": text.size(row["peak_memory_bytes"]), "note": f"lower bound {text.size(row['memory_lower_bound_bytes'])}"}]
    return [{"label": label, "value": text.size(m[f"{key}_bytes"]),
             "note": "" if m[f"device_{key}_bytes"] is None else f"of {text.size(m[f'device_{key}_bytes'])}"} for label, key in (("RAM", "ram"), ("flash", "flash"))]


def style(bound: str) -> str:
    """Class of the colour and pattern of what binds."""
    return f"b{BOUNDS.index(bound) if bound in BOUNDS else len(BOUNDS)}"


def _kernel(k: Row, longest: float) -> dict[str, Any]:
    return {"name": breakable(k["name"]), "op": text.plain(k["op"]), "precision": text.plain(k["precision"]), "ms": text.significant(k["ms"]),
            "mj": text.significant(k["mj"]), "dram": text.size(k["dram_bytes"]), "bound": text.plain(k["bound"]), "style": style(k["bound"]),
            "width": f"{100 * k['ms'] / longest:.2f}%", "used": f"{100 * k['utilisation']:.0f} %" if k["utilisation"] else "",
            "placement": text.plain(k["placement"]), "change": change_text(k["change"]) if k["change"] else ""}


def buffers(memory: Row, kernels: int) -> list[dict[str, str]]:
    """Rectangles of the memory plan: from left to right the kernels in execution order, from bottom to top the address."""
    steps, arena = max([kernels, *(b["last"] + 1 for b in memory["buffers"])]), memory["arena_bytes"] or 1
    found = []
    for i, b in enumerate(memory["buffers"]):
        x, width = b["first"] / steps * WIDTH, (b["last"] + 1 - b["first"]) / steps * WIDTH
        height = b["size"] / arena * HEIGHT
        found.append({"x": f"{x:.2f}", "width": f"{width:.2f}", "y": f"{HEIGHT - b['offset'] / arena * HEIGHT - height:.2f}", "height": f"{height:.2f}",
                      "style": f"m{i % 4}", "title": f"{text.plain(b['name'])}: {text.size(b['size'])} at {b['offset']}, kernels {b['first']} to {b['last']}",
                      "label": text.plain(b["name"]) if width > 8 * len(b["name"]) and b["size"] > _NAMED_SHARE * arena and height > 12 else ""})
    return found
