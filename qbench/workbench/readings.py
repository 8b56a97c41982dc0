"""Watts of the user's meter, from a file of readings."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from qbench.cost import CostTable
from qbench.cost.power import Reading, calibrate_power
from qbench.errors import InputError
from qbench.graph import load_network
from qbench.target import Target
from qbench.workbench.placing import placed
from qbench.workbench.precisions import precision_of

KEYS = ("model", "precision", "op_point", "idle_w", "busy_w", "latency_ms", "celsius")
NEEDED = ("model", "op_point", "idle_w", "busy_w")


def calibrated(target: Target, file: Path, toolkit: str | None = None) -> Target:
    """The target in watts of the user's meter, from a file of readings:

        leakage_per_kelvin = 0.02     # optional
        [[reading]]                   # one pair fixes base and dynamic power; a second at another voltage separates leakage
        model = "net.onnx"            # what ran back to back; a path relative to the file
        precision = "int8"            # default: int8
        op_point = "1000MHz"
        idle_w = 1.9                  # runtime loaded, nothing running
        busy_w = 4.3
        latency_ms = 12.1             # optional: measured while busy; else the target's own prediction
        celsius = 45                  # optional: of the die

    Raises InputError for what is missing, unknown or impossible in it.
    """
    try:
        body = tomllib.loads(file.read_text(encoding="utf-8"))
    except (OSError, tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"{file}: cannot be read as a file of power readings ({error})") from error
    rows = body.get("reading")
    if not isinstance(rows, list) or not rows or not all(isinstance(r, dict) for r in rows):
        raise InputError(f"{file}: no [[reading]] table; expected one or more, each with {', '.join(NEEDED)}")
    for key in body:
        if key not in ("reading", "leakage_per_kelvin"):
            raise InputError(f"{file}: {key} is unknown here; expected reading or leakage_per_kelvin")
    growth = _number(file, "", body, "leakage_per_kelvin", 0.0, 0.2, 0.0)
    return calibrate_power(target, [_reading(file, f"reading[{i}].", r, target, toolkit) for i, r in enumerate(rows)], growth)


def _reading(file: Path, at: str, row: Mapping[str, Any], target: Target, toolkit: str | None) -> Reading:
    for key in row:
        if key not in KEYS:
            raise InputError(f"{file}: {at}{key} is unknown here; expected one of {', '.join(KEYS)}")
    for key in ("model", "op_point"):
        if not isinstance(row.get(key), str):
            raise InputError(f"{file}: {at}{key} is {row.get(key)!r}; expected text")
    prepared = load_network(file.parent / row["model"])
    table = CostTable.build(prepared.network, placed(target, prepared, toolkit), toolkit)
    point = target.operating_point(row["op_point"])
    price = table.price(table.uniform(precision_of(str(row.get("precision", "int8"))))[None], point.name)[0]
    dynamic = (price.energy_mj - price.latency_ms * table.model.static_watts(point)) * 1e-3
    latency = _number(file, at, row, "latency_ms", 1e-6, 1e9, price.latency_ms)
    return Reading(point.name, _number(file, at, row, "idle_w", 0.0, 1e5), _number(file, at, row, "busy_w", 0.0, 1e5), 1e3 / latency, dynamic,
                   _number(file, at, row, "celsius", -60.0, 150.0, 25.0))


def _number(file: Path, at: str, row: Mapping[str, Any], key: str, low: float, high: float, default: float | None = None) -> float:
    value = row.get(key, default)
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or not low <= value <= high:
        raise InputError(f"{file}: {at}{key} is {value!r}; expected a number {low:g} to {high:g}")
    return float(value)
