"""Burst and sustained latency of a board that warms up, for the command line."""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qbench.cost import CostTable
from qbench.cost.energy import leakage_watts
from qbench.cost.parameters import read_parameters
from qbench.cost.thermal import Cooling, Working, cold, rule_text, sustained
from qbench.errors import InputError

Codes = NDArray[np.int64]


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
