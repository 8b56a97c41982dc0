"""Constants of the latency and energy models, read once from a target's `cost` mapping.

Each field name is the key in the target's TOML file and carries its unit. A missing, unknown or impossible one is refused
here, so nothing downstream checks again.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields

from qbench.errors import TargetError


@dataclass(frozen=True, slots=True)
class EnergyParameters:
    """Energy of one inference: sum over kernels of arithmetic, on-chip and DRAM accesses, plus a static share (section 6).

    mac_*_pj          one multiply-accumulate of the bare arithmetic
    onchip_pj_per_byte, dram_pj_per_byte   one byte read or written
    control_factor    on-die energy over bare arithmetic: control, clock tree, registers ("kappa", 3 to 10)
    padding_activity  share of a padded MAC's energy that is spent although its operand is padding (clock gating)
    static_share      static power as a share of the power of the array at full INT8 rate and the reference voltage
    reference_volts   supply at which the numbers above hold
    base_watts        measured: flows whatever runs, the board's idle power included; 0 where no watt is known
    leakage_amperes, leakage_per_kelvin   current of the supply at rest at 25 C, and its exponential growth with temperature
    """

    mac_int8_pj: float
    mac_int16_pj: float
    mac_fp16_pj: float
    mac_fp32_pj: float
    onchip_pj_per_byte: float
    dram_pj_per_byte: float
    control_factor: float
    padding_activity: float
    static_share: float
    reference_volts: float
    base_watts: float = field(default=0.0, kw_only=True)
    leakage_amperes: float = field(default=0.0, kw_only=True)
    leakage_per_kelvin: float = field(default=0.0, kw_only=True)


@dataclass(frozen=True, slots=True)
class NpuParameters(EnergyParameters):
    """An NPU with a MAC array, a banked on-chip buffer and DRAM behind it.

    input_group_channels      input channels that one step of the array takes
    pixel_group               output pixels that the array works on at a time
    depthwise_group_channels  channels that one depthwise step takes
    output_elements_per_cycle what the output stage can write: the floor under 1x1 layers with few input channels
    atom_bytes                channel padding of a stored tensor
    raw_input_channels        images of at most this many channels are stored unpadded
    buffer_banks, bank_bytes, bank_entries, entry_atoms   the on-chip buffer, banks shared by input and weights
    input_share               share of the banks that the input gets when neither operand fits
    compute_efficiency        reached share of the array's rate, 0 < x <= 1
    dram_bytes_per_s          reached by one core, reads and writes together
    port_bytes_per_cycle      the core's own limit; binds at low clocks
    overlap_exponent          p of (compute^p + dram^p)^(1/p): 1 no overlap, large is max()
    lut_cycles_per_element    output element of a table activation (Sigmoid, Swish, ...)
    layout_bytes_per_s        data movement that breaks the channel packing (Transpose, unaligned Concat, ...)
    kernel_overhead_s         per launch
    model_overhead_s          per inference
    cpu_bytes_per_s, cpu_sync_s   a kernel that falls back to the CPU: bytes through it, and handing over to it and back
    charge_edges              1: the conversion of graph inputs and outputs is part of an inference, 0: the host does it before
    """

    input_group_channels: float
    pixel_group: float
    depthwise_group_channels: float
    atom_bytes: float
    compute_efficiency: float
    dram_bytes_per_s: float
    overlap_exponent: float
    lut_cycles_per_element: float
    layout_bytes_per_s: float
    kernel_overhead_s: float
    model_overhead_s: float
    cpu_bytes_per_s: float
    cpu_sync_s: float
    charge_edges: float
    output_elements_per_cycle: float = 0.0
    raw_input_channels: float = 0.0
    buffer_banks: float = 0.0
    bank_bytes: float = 0.0
    bank_entries: float = 0.0
    entry_atoms: float = 0.0
    input_share: float = 0.0
    port_bytes_per_cycle: float = 0.0
    onchip_bytes: float = 0.0
    pixel_tile_h: float = 1.0
    pixel_tile_w: float = 1.0
    output_group_channels: float = 32.0
    group_bytes: float = 0.0
    pack_groups: float = 0.0
    depthwise_macs_per_cycle_int8: float = 0.0
    depthwise_macs_per_cycle_int16: float = 0.0
    depthwise_macs_per_cycle_fp16: float = 0.0
    depthwise_macs_per_cycle_fp32: float = 0.0
    map_elements_per_cycle_int8: float = 0.0
    map_elements_per_cycle_int16: float = 0.0
    map_elements_per_cycle_fp16: float = 0.0
    map_elements_per_cycle_fp32: float = 0.0
    lut_elements_per_cycle_int8: float = 0.0
    lut_elements_per_cycle_int16: float = 0.0
    lut_elements_per_cycle_fp16: float = 0.0
    lut_elements_per_cycle_fp32: float = 0.0
    reduce_elements_per_cycle: float = 0.0
    spill_factor_8bit: float = 2.0
    spill_factor_16bit: float = 2.0
    edge_bytes_per_s: float = 0.0
    edge_channels: float = 32.0
    fused_chains: float = 0.0
    activation_port_bytes_per_cycle: float = 0.0
    kernel_overhead_8bit_share: float = 1.0
    vector_overhead_s: float = 0.0
    elementwise_launch_share: float = 1.0
    load_bytes_per_s: float = 0.0
    compile_s: float = 0.0
    cores: float = 1.0
    core_efficiency: float = 1.0
    core_barrier_s: float = 0.0


@dataclass(frozen=True, slots=True)
class McuParameters(EnergyParameters):
    """A microcontroller: one core that runs every kernel from its own memory.

    cycles_per_mac_dense, cycles_per_mac_depthwise
    cycles_per_output         per output element: requantisation, stores, activation
    kernel_overhead_cycles, model_overhead_s
    charge_edges              as for the others
    """

    cycles_per_mac_dense: float
    cycles_per_mac_depthwise: float
    cycles_per_output: float
    kernel_overhead_cycles: float
    model_overhead_s: float
    charge_edges: float


@dataclass(frozen=True, slots=True)
class HostParameters(EnergyParameters):
    """A CPU that runs kernels one after the other: roofline over its vector units and memory.

    compute_efficiency_dense, compute_efficiency_depthwise   reached share of the vector units' rate
    map_elements_per_cycle    elementwise functions such as Sigmoid
    memory_bytes_per_s        reached, reads and writes together
    """

    compute_efficiency_dense: float
    compute_efficiency_depthwise: float
    map_elements_per_cycle: float
    memory_bytes_per_s: float
    kernel_overhead_s: float
    model_overhead_s: float
    charge_edges: float


Parameters = NpuParameters | HostParameters | McuParameters
KINDS: Mapping[str, type[Parameters]] = {"npu": NpuParameters, "host": HostParameters, "mcu": McuParameters}

# Zero switches these off; everything else has to be above zero.
_MAY_BE_ZERO = frozenset({"kernel_overhead_s", "model_overhead_s", "cpu_sync_s", "lut_cycles_per_element", "raw_input_channels",
                          "static_share", "charge_edges", "padding_activity", "kernel_overhead_cycles", "cycles_per_output",
                          *(f.name for f in fields(NpuParameters) if f.default == 0.0)})
# Without `onchip_bytes` the chip is one with a banked buffer, and these have to be given.
BANKED = ("output_elements_per_cycle", "buffer_banks", "bank_bytes", "bank_entries", "entry_atoms", "input_share", "port_bytes_per_cycle")
_AT_MOST = {"compute_efficiency": 1.0, "compute_efficiency_dense": 1.0, "compute_efficiency_depthwise": 1.0, "input_share": 1.0,
            "static_share": 0.9, "charge_edges": 1.0, "padding_activity": 1.0, "reference_volts": 1.5, "core_efficiency": 1.0,
            "pack_groups": 1.0, "fused_chains": 1.0}
_AT_LEAST = {"overlap_exponent": 1.0, "reference_volts": 0.4, "cores": 1.0}


def read_parameters(where: str, kind: str, cost: Mapping[str, float]) -> Parameters:
    """The constants of the latency model `kind`. Raises TargetError naming `where`, the key, the value and what is expected."""
    if kind not in KINDS:
        raise TargetError(f"{where}: cost_model is {kind!r}; expected one of {', '.join(sorted(KINDS))}")
    record = KINDS[kind]
    known = {f.name: f.default for f in fields(record)}
    for key in cost:
        if key not in known:
            raise TargetError(f"{where}: cost.{key} is not a constant of the {kind!r} model; it knows {', '.join(known)}")
    for key, default in known.items():
        if key in cost:
            _check(where, key, cost[key])
        elif default is MISSING:
            raise TargetError(f"{where}: cost.{key} is missing; the {kind!r} model needs it")
    if kind == "npu" and not cost.get("onchip_bytes"):
        for key in BANKED:
            if not cost.get(key):
                raise TargetError(f"{where}: cost.{key} is missing or 0; the 'npu' model needs it, or else onchip_bytes")
    return record(**{key: float(value) for key, value in cost.items()})


def _check(where: str, key: str, value: float) -> None:
    low, high = _AT_LEAST.get(key, 0.0), _AT_MOST.get(key, math.inf)
    fits = math.isfinite(value) and low <= value <= high and (value > 0.0 or key in _MAY_BE_ZERO)
    if not fits:
        above = f"{low:g} or more" if key in _MAY_BE_ZERO or low > 0.0 else "above 0"
        raise TargetError(f"{where}: cost.{key} is {value!r}; expected a finite number, {above}"
                          + (f", at most {high:g}" if high < math.inf else ""))
