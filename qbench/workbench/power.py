"""Watts for the command line: readings from a file, and the latency of a warm board."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qbench.cost import CostTable
from qbench.cost.energy import leakage_watts
from qbench.cost.parameters import read_parameters
from qbench.cost.power import Reading, calibrate_power
from qbench.cost.thermal import Cooling, Working, cold, rule_text, sustained
from qbench.errors import InputError
from qbench.target import Target
from qbench.workbench.case import open_model
from qbench.workbench.placing import placed
from qbench.workbench.precisions import precision_of

Codes = NDArray[np.int64]
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
    prepared = open_model(file.parent / row["model"])
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


def thermal_of(table: CostTable, codes: Codes, op_point: str, ambient_c: float | None, resistance: float | None, capacity: float | None) -> dict[str, Any]:
    """Burst and sustained latency of inferences back to back, JSON-ready; without R_th and C_th the rule alone, and why.

    resistance   K/W, die to ambient per watt as the target counts power; capacity   J/K
    Raises InputError when only some of the three are given, or when the target's watts are relative.
    """
    target = table.target
    body: dict[str, Any] = {"rule": rule_text(target.thermal), "prediction": None}
    given = {"--ambient": ambient_c, "--thermal-resistance": resistance, "--heat-capacity": capacity}
    missing = [k for k, v in given.items() if v is None]
    if len(missing) == len(given):
        return body | {"why": "thermal resistance and heat capacity belong to the board: give --ambient, --thermal-resistance and --heat-capacity"}
    if ambient_c is None or resistance is None or capacity is None:
        raise InputError(f"{', '.join(missing)} missing: a temperature takes --ambient (C), --thermal-resistance (K/W) and --heat-capacity (J/K)")
    if target.power_is_relative:
        raise InputError(f"target {target.name} has no public watt, so no temperature follows from it: give --power with a pair of readings of your board")
    cooling = Cooling(ambient_c, resistance, capacity)
    chilled = cold(target, ambient_c)
    if chilled is not target:
        table = CostTable.build(table.network, chilled, table.toolkit)
    found = sustained(_working(table, codes), op_point, cooling, target.thermal)
    return body | {"prediction": {k: None if v == math.inf else v for k, v in asdict(found).items()}, "why": "unvalidated: formulas only, one heat path"}


def _working(table: CostTable, codes: Codes) -> list[Working]:
    """Every operating point with what runs; leakage taken at the throttle temperature, where it is largest."""
    p = read_parameters(f"target {table.target.name}", table.target.cost_model, table.target.cost)
    hot = table.target.thermal.throttle_above_c if table.target.thermal else 25.0
    found = []
    for point in table.target.operating_points:
        price = table.price(codes[None], point.name)[0]
        found.append(Working(point.name, point.clock_hz, price.latency_ms * 1e-3, price.power_w + leakage_watts(point, p, hot) - leakage_watts(point, p)))
    return found
