"""Battery arithmetic: how long a charge lasts, and what an event may take so that it lasts as long as the product must.

The charge leaks while it is used: dE/dt = -k E - d, with leak rate k and a constant drain d. From E(0) = E0 to E(T) = 0 that gives
d = k E0 / (exp(k T) - 1) and T = ln(1 + k E0 / d) / k; without leak, d = E0 / T.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

DAYS_PER_MONTH = 365.25 / 12.0
HOURS_PER_DAY = 24.0
MJ_PER_MWH = 3600.0                # one mWh is 3.6 J


@dataclass(frozen=True, slots=True)
class Battery:
    """A charged battery.

    capacity_mah, volts      as on its label
    usable_share             0..1: what the electronics get out of it before their supply fails, converter losses included
    self_discharge_share     0..1: what a month on the shelf takes of the charge that is left
    """

    capacity_mah: float
    volts: float
    usable_share: float = 1.0
    self_discharge_share: float = 0.0

    @property
    def usable_mwh(self) -> float:
        return self.capacity_mah * self.volts * self.usable_share

    @property
    def leak_per_day(self) -> float:
        """Rate k of the exponential in which the charge leaks away."""
        return -math.log1p(-self.self_discharge_share) / DAYS_PER_MONTH


def mwh_a_day(battery: Battery, months: float) -> float:
    """The constant drain, in mWh a day, under which the battery lasts exactly `months`."""
    days = months * DAYS_PER_MONTH
    leaked = battery.leak_per_day * days
    return battery.usable_mwh / days * (leaked / math.expm1(leaked) if leaked > 0.0 else 1.0)


def months(battery: Battery, drain_mwh_a_day: float) -> float:
    """How long the battery lasts under a constant drain: the inverse of `mwh_a_day`. Without any leak or drain: infinity."""
    leak = battery.leak_per_day
    if drain_mwh_a_day <= 0.0:
        return math.inf
    days = math.log1p(leak * battery.usable_mwh / drain_mwh_a_day) / leak if leak > 0.0 else battery.usable_mwh / drain_mwh_a_day
    return days / DAYS_PER_MONTH


def standby_mwh_a_day(current_ua: float, volts: float) -> float:
    """What a standby current, drawn all day at the battery's voltage, takes."""
    return current_ua * 1e-3 * volts * HOURS_PER_DAY


def mj_an_event(left_mwh_a_day: float, events_a_day: float) -> float:
    """What one event may take of the energy that is left a day."""
    return left_mwh_a_day * MJ_PER_MWH / events_a_day


def event_mwh_a_day(event_mj: float, events_a_day: float) -> float:
    """What events of `event_mj` take a day: the inverse of `mj_an_event`."""
    return event_mj * events_a_day / MJ_PER_MWH
