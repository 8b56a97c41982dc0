"""Watts: a chip's constants from the user's own readings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import exp, log

import numpy as np

from qbench.errors import TargetError
from qbench.target import OperatingPoint, PowerBasis, Target


@dataclass(frozen=True, slots=True)
class Reading:
    """Two readings of one meter at one operating point.

    idle_w       runtime loaded, the clock of `op_point`, nothing running
    busy_w       one network running back to back
    inferences_per_s   of that network while `busy_w` was read
    dynamic_j    what the target's uncalibrated constants say one inference takes beside the static power
    celsius      of the die
    """

    op_point: str
    idle_w: float
    busy_w: float
    inferences_per_s: float
    dynamic_j: float
    celsius: float = 25.0


def calibrate_power(target: Target, readings: Sequence[Reading], leakage_per_kelvin: float = 0.0) -> Target:
    """The target with its energies in watts of the user's meter.

    Busy minus idle is the dynamic power C_eff V^2 f: one factor brings every dynamic constant to it, in the geometric mean over readings.
    Idle is P_base, and P_base + V I_leak once two readings differ in voltage. One pair fixes the first two, a second the leakage.

    leakage_per_kelvin   k of I_leak(T) = I_25 exp(k (T - 25)); 0: taken as constant
    Raises TargetError for readings that contradict the model: busy below idle, idle falling with the voltage.
    """
    if not readings:
        raise TargetError(f"target {target.name}: no power reading; one needs op_point, idle_w and busy_w")
    for r in readings:
        if not 0.0 < r.idle_w < r.busy_w:
            raise TargetError(f"target {target.name}: reading at {r.op_point} has idle_w = {r.idle_w:g} and busy_w = {r.busy_w:g}; expected 0 < idle_w "
                              "< busy_w, both from the same meter. Swapped?")
    points = [target.operating_point(r.op_point) for r in readings]
    ratios = [log((r.busy_w - r.idle_w) / (r.dynamic_j * r.inferences_per_s)) for r in readings]
    factor, spread = exp(sum(ratios) / len(ratios)), exp(max(ratios) - min(ratios))
    base, leakage = _at_rest(target, readings, points, leakage_per_kelvin)
    cost = {**target.cost, "base_watts": base, "leakage_amperes": leakage, "leakage_per_kelvin": leakage_per_kelvin, "static_share": 0.0,
            "control_factor": target.cost["control_factor"] * factor, "dram_pj_per_byte": target.cost["dram_pj_per_byte"] * factor}
    apart = f"; leakage {leakage:.3g} A at 25 C" if leakage else "; leakage not separated from it, which takes a reading at another voltage"
    agree = f"; the readings agree on it within x{spread:.2f}" if len(readings) > 1 else ""
    capacitance = ", ".join(f"{c * 1e9:.3g} nF" for r, p in zip(readings, points, strict=True) if (c := effective_farads(r, p)))
    basis = PowerBasis(
        "watts of the user's meter, idle included",
        f"{len(readings)} pair{'s' * (len(readings) > 1)} of readings of one's own: "
        + "; ".join(f"{r.op_point} idle {r.idle_w:g} W, busy {r.busy_w:g} W" for r in readings)
        + f"; base {base:.3g} W{apart}; dynamic energies x{factor:.3g}{agree}" + (f"; effective capacitance {capacitance}" if capacitance else ""),
        "unvalidated: nothing was held out", "none: the readings calibrate, none was held out")
    return replace(target, cost=cost, power=basis, power_is_relative=False)


def effective_farads(reading: Reading, point: OperatingPoint) -> float | None:
    """C_eff of busy - idle = C_eff V^2 f, at the activity of what ran; None where the voltage is not public."""
    return None if point.volts is None else (reading.busy_w - reading.idle_w) / (point.volts ** 2 * point.clock_hz)


def _at_rest(target: Target, readings: Sequence[Reading], points: Sequence[OperatingPoint], per_kelvin: float) -> tuple[float, float]:
    """P_base in watts and I_leak at 25 C in amperes, least squares over idle = P_base + V I_leak(T)."""
    idle = np.array([r.idle_w for r in readings])
    known = [(p.volts, exp(per_kelvin * (r.celsius - 25.0))) for r, p in zip(readings, points, strict=True) if p.volts is not None]
    grows = np.array([v * g for v, g in known])
    if len(grows) < len(idle) or np.ptp(grows) < 1e-9:
        return float(idle.mean()), 0.0
    (base, leakage), *_ = np.linalg.lstsq(np.column_stack([np.ones(len(idle)), grows]), idle, rcond=None)
    if base <= 0.0 or leakage < 0.0:
        raise TargetError(f"target {target.name}: the idle readings " + ", ".join(f"{r.op_point} {r.idle_w:g} W" for r in readings)
                          + f" give a base of {base:.3g} W and a leakage of {leakage:.3g} A; expected idle to grow with the voltage, and less than in "
                          "proportion. Was the clock really changed, and the die as warm? One pair alone leaves leakage in the base")
    return float(base), float(leakage)
