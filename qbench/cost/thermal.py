"""Temperature of the die and what it does to the latency: a first-order RC model under the driver's throttle rule.

    C_th T' = P - (T - T_amb) / R_th,   so   T(t) = T_end + (T_0 - T_end) exp(-t / (R_th C_th)),   T_end = T_amb + P R_th

Power is constant between two switches of the clock, so every phase is solved exactly and no step size enters. R_th and C_th belong to the
board and its housing; no public value exists, the user gives them. Not validated against a board.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import exp, inf, log

from qbench.errors import TargetError
from qbench.target import Target, ThermalRule


@dataclass(frozen=True, slots=True)
class Cooling:
    """resistance_k_per_w   die to ambient, per watt as power is counted; capacity_j_per_k   of what warms up with the die"""

    ambient_c: float
    resistance_k_per_w: float
    capacity_j_per_k: float

    def __post_init__(self) -> None:
        if not (self.resistance_k_per_w > 0.0 and self.capacity_j_per_k > 0.0 and -60.0 <= self.ambient_c <= 125.0):
            raise TargetError(f"ambient is {self.ambient_c:g} C, thermal resistance {self.resistance_k_per_w:g} K/W, heat capacity "
                              f"{self.capacity_j_per_k:g} J/K; expected -60 to 125 C and the other two above 0")

    def steady_c(self, watts: float) -> float:
        """Where the temperature ends under constant power."""
        return self.ambient_c + watts * self.resistance_k_per_w

    def temperature_c(self, start_c: float, watts: float, seconds: float) -> float:
        """Temperature after `seconds` of constant power."""
        end = self.steady_c(watts)
        return end + (start_c - end) * exp(-seconds / (self.resistance_k_per_w * self.capacity_j_per_k))

    def seconds_to(self, goal_c: float, start_c: float, watts: float) -> float:
        """Time until the temperature reaches `goal_c` from `start_c`; infinite where it never does."""
        end = self.steady_c(watts)
        if start_c == goal_c:
            return 0.0
        ratio = (start_c - end) / (goal_c - end) if goal_c != end else inf
        return self.resistance_k_per_w * self.capacity_j_per_k * log(ratio) if 1.0 < ratio < inf else inf


@dataclass(frozen=True, slots=True)
class Working:
    """Inferences back to back at one operating point."""

    op_point: str
    clock_hz: float
    latency_s: float
    watts: float


@dataclass(frozen=True, slots=True)
class Sustained:
    """What remains of a latency once the board is warm.

    state            "never throttles", "oscillates" between the two clocks, "stays throttled"
    burst_s          until the first throttling; infinite: never
    latency_s        mean over a long time
    duty             share of the time at the asked operating point
    temperature_c    steady, or the highest of an oscillation
    watts            mean
    period_s         of the oscillation; 0 without
    holds            False: the temperature ends above the throttle limit, whose rule has nothing slower left
    """

    state: str
    burst_latency_s: float
    burst_s: float
    latency_s: float
    duty: float
    temperature_c: float
    watts: float
    throttled_point: str
    period_s: float
    holds: bool


def sustained(working: Sequence[Working], op_point: str, cooling: Cooling, rule: ThermalRule | None, start_c: float | None = None) -> Sustained:
    """Burst and sustained latency of inferences back to back at `op_point`.

    working   every operating point of the chip, with the latency and watts of what runs
    rule      None: nothing throttles
    start_c   of the die; default: ambient
    """
    full = next(w for w in working if w.op_point == op_point)
    slower = [w for w in working if rule and w.clock_hz <= rule.throttled_clock_hz]
    capped = min((full, max(slower, key=lambda w: w.clock_hz, default=full)), key=lambda w: w.clock_hz)
    start = cooling.ambient_c if start_c is None else start_c
    hot = cooling.steady_c(full.watts)
    if rule is None or max(hot, start) <= rule.throttle_above_c or capped is full:
        holds = rule is None or hot <= rule.throttle_above_c
        return Sustained("never throttles", full.latency_s, inf, full.latency_s, 1.0, hot, full.watts, "", 0.0, holds)
    burst = 0.0 if start > rule.throttle_above_c else cooling.seconds_to(rule.throttle_above_c, start, full.watts)
    cool = cooling.steady_c(capped.watts)
    if cool >= rule.release_below_c:
        return Sustained("stays throttled", full.latency_s, burst, capped.latency_s, 0.0, cool, capped.watts, capped.op_point, 0.0,
                         cool <= rule.throttle_above_c)
    if hot <= rule.throttle_above_c:                 # it started above the limit, and does not come back
        return Sustained("never throttles", full.latency_s, burst, full.latency_s, 1.0, hot, full.watts, "", 0.0, True)
    heats = cooling.seconds_to(rule.throttle_above_c, rule.release_below_c, full.watts)
    cools = cooling.seconds_to(rule.release_below_c, rule.throttle_above_c, capped.watts)
    period = heats + cools
    done = heats / full.latency_s + cools / capped.latency_s
    return Sustained("oscillates", full.latency_s, burst, period / done, heats / period, rule.throttle_above_c,
                     (heats * full.watts + cools * capped.watts) / period, capped.op_point, period, True)


def cold(target: Target, celsius: float) -> Target:
    """The chip as its rule runs it at this temperature: below the rule's limit, no point's supply lies under the rule's volts."""
    rule = target.thermal
    if rule is None or celsius >= rule.cold_below_c:
        return target
    points = tuple(replace(p, volts=None if p.volts is None else max(p.volts, rule.cold_min_volts)) for p in target.operating_points)
    return replace(target, operating_points=points)


def rule_text(rule: ThermalRule | None) -> str:
    """The driver's rule as a sentence."""
    if rule is None:
        return "no public throttle rule"
    return (f"at {rule.throttle_above_c:g} C or more the clock is capped at {rule.throttled_clock_hz / 1e6:g} MHz, until {rule.release_below_c:g} C; below "
            f"{rule.cold_below_c:g} C the supply stays at {rule.cold_min_volts:g} V or more [{rule.source}]")
