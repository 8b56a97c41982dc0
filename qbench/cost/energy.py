"""Energy of arithmetic, memory accesses and time: relative from published tables alone, in watts where readings scale them.

    P(V, f) = C_eff V^2 f activity + V I_leak(T) + P_base,   I_leak(T) = I_25 exp(k (T - 25))

Source: Horowitz 2014 (ISSCC), figure 1.1.9, and Jouppi et al. 2021 (ISCA), table 2, for the constants; voltage scaling E ~ V^2.
"""

from __future__ import annotations

from math import exp

from qbench.cost.parameters import EnergyParameters
from qbench.network import Precision
from qbench.target import OperatingPoint

PICO = 1e-12


def mac_joules(precision: Precision, p: EnergyParameters) -> float:
    """Energy of one multiply-accumulate of the bare arithmetic."""
    return PICO * {Precision.INT8: p.mac_int8_pj, Precision.INT16: p.mac_int16_pj,
                   Precision.FP16: p.mac_fp16_pj, Precision.FP32: p.mac_fp32_pj}[precision]


def voltage_scale(point: OperatingPoint, p: EnergyParameters) -> float:
    """Energy per operation against the reference supply: (V / V_ref)^2; 1 where the chip's voltages are not public."""
    return 1.0 if point.volts is None else (point.volts / p.reference_volts) ** 2


def dynamic_joules(macs: float, padded_macs: float, onchip_bytes: float, dram_bytes: float, precision: Precision,
                   point: OperatingPoint, p: EnergyParameters) -> float:
    """Energy of one kernel: arithmetic and on-chip accesses scale with the supply, DRAM has its own."""
    active = macs + p.padding_activity * (padded_macs - macs)
    on_die = active * mac_joules(precision, p) + onchip_bytes * p.onchip_pj_per_byte * PICO
    return on_die * p.control_factor * voltage_scale(point, p) + dram_bytes * p.dram_pj_per_byte * PICO


def leakage_watts(point: OperatingPoint, p: EnergyParameters, celsius: float = 25.0) -> float:
    """Power of the leakage current at this supply and die temperature; 0 where no reading has separated it."""
    return p.leakage_amperes * (point.volts or p.reference_volts) * exp(p.leakage_per_kelvin * (celsius - 25.0))


def static_watts(macs_per_cycle: float, top: OperatingPoint, point: OperatingPoint, p: EnergyParameters) -> float:
    """Power that flows whatever runs: what was read (base and leakage at 25 C), and `static_share` of the array's full INT8 power at `top`,
    linear in the supply, where nothing was."""
    full = macs_per_cycle * top.clock_hz * mac_joules(Precision.INT8, p) * p.control_factor * voltage_scale(top, p)
    assumed = p.static_share * full * (1.0 if point.volts is None else point.volts / p.reference_volts)
    return assumed + p.base_watts + leakage_watts(point, p)
