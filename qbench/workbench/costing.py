"""What a model costs on targets: prices, kernels with the one change that would save most, memory plan, modes beside the steady state."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qbench import targets
from qbench.cost import CostTable, KernelRow, changes
from qbench.cost.memory import MemoryPlan
from qbench.cost.modes import batched, first_run_s, kernel_on_cores, throughput
from qbench.cost.npu import NpuModel
from qbench.errors import InputError
from qbench.graph import load_network
from qbench.network import Network, Precision
from qbench.placement.segments import parts_of
from qbench.plan import Plan, check_fits
from qbench.target import MemoryRules, Target
from qbench.workbench.placing import placing
from qbench.workbench.precisions import precision_of
from qbench.workbench.readings import calibrated
from qbench.workbench.sustaining import thermal_of

ALL_POINTS = "all"
GUESSED = 0.1                 # share of the latency on the CPU above which the interval is said not to hold
Codes = NDArray[np.int64]


@dataclass(frozen=True)
class CostOptions:
    """How a model is to be priced; every field has a neutral default.

    op_points     names, or ("all",) for every point of the table; (): the fastest
    plan          a plan's file, priced in place of uniform precisions
    cores, batch  of one inference; other values than 1 are not validated
    power         a file of watt readings of the user's board (`qbench.workbench.readings`)
    ambient_c, thermal_resistance, heat_capacity   C, K/W, J/K of the board: all three for a sustained latency
    """

    op_points: tuple[str, ...] = ()
    plan: Path | None = None
    toolkit: str | None = None
    input_shapes: Mapping[str, tuple[int, ...]] | None = None
    input_values: Mapping[str, str] | None = None
    cores: int = 1
    batch: int = 1
    power: Path | None = None
    ambient_c: float | None = None
    thermal_resistance: float | None = None
    heat_capacity: float | None = None

    @property
    def thermal(self) -> tuple[float | None, float | None, float | None]:
        return self.ambient_c, self.thermal_resistance, self.heat_capacity


def cost_of(model: Path, target_names: Sequence[str], precisions: Sequence[str], options: CostOptions = CostOptions()) -> list[dict[str, Any]]:
    """One JSON-ready row per target, precision (or the plan) and operating point: see DESIGN for the fields.

    Raises InputError for what cannot be priced, e.g. more cores than the target's file gives.
    """
    prepared = load_network(model, options.input_shapes, options.input_values)
    network = prepared.network
    plan = Plan.load(options.plan) if options.plan else None
    if plan is not None:
        check_fits(plan, network, constants=False)
    if options.batch < 1:
        raise InputError(f"--batch {options.batch}: give 1 or more samples")
    network = batched(network, options.batch) if options.batch > 1 else network
    rows = []
    for name in dict.fromkeys(target_names):
        found = placing(_with_readings(targets.load(name), options), prepared, options.toolkit)
        target = found.target
        table = CostTable.build(network, target, options.toolkit)
        check_cores(table, options.cores)
        for precision in ("plan",) if plan else tuple(dict.fromkeys(precisions)):
            codes = table.codes(plan) if plan else table.uniform(precision_of(precision))
            stopped = refused_kernels(table, codes, found.refused)
            rows += [cost_row(table, codes, precision, point, options, stopped) for point in points_of(target, options.op_points)]
    return rows


def _with_readings(target: Target, options: CostOptions) -> Target:
    """The target in the user's watts, where a file of readings was given."""
    if options.power is None:
        return target
    return calibrated(target, options.power, options.toolkit)


def _sustained(table: CostTable, codes: Codes, point: str, options: CostOptions) -> dict[str, Any] | None:
    """Burst and sustained latency, where the board's thermal figures were given."""
    if not any(v is not None for v in options.thermal):
        return None
    return thermal_of(table, codes, point, *options.thermal)


def points_of(target: Target, wanted: Sequence[str]) -> tuple[str, ...]:
    """Names of operating points. Raises TargetError for one that the chip's table does not hold."""
    if ALL_POINTS in wanted:
        return tuple(o.name for o in target.operating_points)
    return tuple(target.operating_point(o).name for o in dict.fromkeys(wanted)) or (target.operating_point(None).name,)


def check_cores(table: CostTable, cores: int) -> None:
    """Raises InputError when the target's file does not give that many."""
    have = int(table.model.parameters.cores) if isinstance(table.model, NpuModel) else 1
    if not 1 <= cores <= have:
        raise InputError(f"--cores {cores}: target {table.target.name} is priced with {have} core{'s' if have > 1 else ''}"
                         + ("" if have > 1 else "; its file gives no more (cost.cores)"))


def cost_row(table: CostTable, codes: Codes, precision: str, point: str, options: CostOptions, refused: Sequence[str] = ()) -> dict[str, Any]:
    """Price, kernels, memory plan and modes of one assignment. refused   kernels that stop the toolchain's conversion"""
    target, price = table.target, table.price(codes[None], point)[0]
    memory, kernels = table.memory(codes), _kernels(table, codes, point, options.cores)
    cpu_ms = sum(k["ms"] for k in kernels if k["placement"] == "CPU" and k["op"]) if target.cost_model == "npu" else 0.0
    slower = 1.0 if options.cores == 1 else sum(k["ms"] for k in kernels) / price.latency_ms
    several = options.cores > 1
    energy_low, energy_high = (price.energy_mj * f for f in target.energy_factors) if target.energy_factors and not several else (None, None)
    return {"target": target.name, "toolkit": table.toolkit, "precision": precision, "op_point": point, "latency_ms": price.latency_ms * slower,
            "latency_ms_low": price.latency_ms_low * slower, "latency_ms_high": price.latency_ms_high * slower,
            "energy_mj": None if several else price.energy_mj, "power_w": None if several else price.power_w,
            "energy_mj_low": energy_low, "energy_mj_high": energy_high, "power_is_relative": target.power_is_relative, "peak_memory_bytes": memory.peak_bytes,
            "memory_lower_bound_bytes": memory.peak_bytes - memory.arena_bytes + memory.lower_bound_bytes, "macs": table.network.macs,
            "cores": options.cores, "batch": options.batch, "modes": modes_of(table, codes, point), "thermal": _sustained(table, codes, point, options),
            "cpu_segments": cpu_segments(table.network, kernels) if target.cost_model == "npu" else 0,
            "cpu_ms": cpu_ms,
            "cpu_basis": _cpu_basis(target),
            "warnings": [*_warnings(options), *_stopped(refused), *_guessed(cpu_ms, price.latency_ms * slower), *unpriced(table.network), *_too_large(memory, target)], "kernels": kernels,
            "memory": memory_row(memory, target.memory),
            "provenance": asdict(target.provenance) | {"power": asdict(target.power) if target.power else None}}


def refused_kernels(table: CostTable, codes: Codes, refused: Mapping[Precision, Sequence[str]]) -> tuple[str, ...]:
    """Of the kernels, each at its precision in this assignment."""
    return tuple(k.name for k, precision in zip(table.network.kernels, table.kernel_precisions(codes), strict=True) if k.name in refused.get(precision, ()))


def _guessed(cpu_ms: float, latency_ms: float) -> list[str]:
    """Where much of the time is that of the CPU, whose constants are assumed, no interval fitted on an NPU holds."""
    share = cpu_ms / latency_ms
    return [f"{100 * share:.0f} % of the latency is spent on the CPU, by assumed constants: the interval does not cover that part"] if share > GUESSED else []


def _stopped(refused: Sequence[str]) -> list[str]:
    if not refused:
        return []
    more = f" and {len(refused) - 3} more" if len(refused) > 3 else ""
    said = "no conversion gets past, and the figures are those of a network that hands over to the CPU there; qbench inspect says why"
    return [f"the toolchain refuses {', '.join(map(repr, refused[:3]))}{more}: {said}"]


def memory_row(plan: MemoryPlan, rules: MemoryRules) -> dict[str, Any]:
    """A memory plan, JSON-ready. Of a microcontroller also what its RAM and its flash have to hold, and how large they are."""
    split = {"ram_bytes": plan.ram_bytes, "flash_bytes": plan.weight_bytes, "device_ram_bytes": rules.ram_bytes, "device_flash_bytes": rules.flash_bytes}
    return {"arena_bytes": plan.arena_bytes, "weight_bytes": plan.weight_bytes, "runtime_bytes": plan.runtime_bytes,
            "lower_bound_bytes": plan.lower_bound_bytes, "gap": plan.gap, "strategy": plan.strategy, "smallest_bytes": plan.smallest_bytes,
            **(split if _has_flash(rules) else dict.fromkeys(split)),
            "buffers": [{"name": p.buffer.name, "offset": p.offset_bytes, "size": p.buffer.size_bytes, "first": p.buffer.first, "last": p.buffer.last}
                        for p in plan.placed]}


def _has_flash(rules: MemoryRules) -> bool:
    return rules.ram_bytes is not None or rules.flash_bytes is not None


def _too_large(plan: MemoryPlan, target: Target) -> list[str]:
    """What a microcontroller cannot hold."""
    parts = (("activations and runtime", plan.ram_bytes, "RAM", target.memory.ram_bytes), ("weights", plan.weight_bytes, "flash", target.memory.flash_bytes))
    return [f"{what} take {need / 1e3:.4g} KB, and the {where} of {target.name} holds {have / 1e3:.4g} KB: the network does not run there as it is"
            for what, need, where, have in parts if have is not None and need > have]


def _warnings(options: CostOptions) -> list[str]:
    said = []
    if options.cores > 1:
        said.append(f"{options.cores} cores: unvalidated, formula only; the interval is that of one core; energy is not priced")
    if options.batch > 1:
        said.append(f"batch {options.batch}: unvalidated, formula only; latency and energy are those of all {options.batch} samples")
    return said


def unpriced(network: Network) -> list[str]:
    """Kernels whose work no cost model sees: their price is a launch, whatever happens inside."""
    closed = [k for k in network.kernels if {"If", "Loop", "Scan"} & set(k.op.split("+"))]
    return [f"kernel {k.name!r} ({k.op}): what its bodies compute is not in the latency, energy and memory figures, which are too low" for k in closed]


def _kernels(table: CostTable, codes: Codes, point: str, cores: int) -> list[dict[str, Any]]:
    """The table's rows, each with the one change that would save most on it; times on `cores`."""
    rows = table.kernel_table(codes, point)
    costs = table.kernel_costs(codes, point)
    found = []
    for row, cost in zip(rows, (*costs, *[None] * (len(rows) - len(costs))), strict=True):
        body = asdict(row) | {"change": _change(table, row, point) if cost else None}
        if cost and cores > 1:
            assert isinstance(table.model, NpuModel)
            body |= {"ms": kernel_on_cores(cost, cores, table.model.parameters) * 1e3, "mj": None}
        found.append(body)
    return found


def _change(table: CostTable, row: KernelRow, point: str) -> dict[str, Any] | None:
    """The single change that saves most on this kernel alone."""
    allowed = table.allowed[table.units.index(row.unit)]
    available = [p for p, ok in zip(table.available, allowed, strict=True) if ok]
    best = next(iter(changes(table.model, table.network.kernel[row.name], table.network, Precision(row.precision), table.target.operating_point(point),
                             table.target.operating_points, available)), None)
    return {"kind": best.kind, "what": best.what, "saved_ms": best.saved_s * 1e3} if best else None


def cpu_segments(network: Network, kernels: Sequence[Mapping[str, Any]]) -> int:
    """Parts of the network that run on the CPU in one go: each hands over and back once."""
    return len(parts_of(network, {k["name"] for k in kernels if k["placement"] == "CPU" and k["name"] in network.kernel}))


def _cpu_basis(target: Target) -> str:
    """What says which kernels run on the CPU."""
    if target.cost_model != "npu":
        return "no NPU: every kernel runs on the core"
    if target.on_cpu is not None:
        return f"placed by the rules of its toolchain ({target.rules}): see qbench inspect; the time of a hand-over is assumed, unvalidated"
    return "no public table of operators: every kernel is taken to run on the NPU" if target.operators is None and not target.cpu_ops \
        else "placed by the operator lists of its file; the time of a hand-over is assumed, unvalidated"


def modes_of(table: CostTable, codes: Codes, point: str) -> dict[str, Any]:
    """Times beside one inference after another on one core; formulas only. None: no public figure to compute it from.

    throughput_per_s_low, _high   one inference on every core: when the cores share the DRAM rate that one reaches and take turns on the CPU, and when
                                  each has its own
    """
    ms = table.price(codes[None], point)[0].latency_ms
    found: dict[str, Any] = {"basis": "unvalidated: formulas only", "first_run_extra_ms": None, "cores": [{"cores": 1, "latency_ms": ms}],
                             "throughput_per_s_low": 1e3 / ms, "throughput_per_s_high": 1e3 / ms}
    if not isinstance(table.model, NpuModel):
        return found
    p = table.model.parameters
    costs, count = table.kernel_costs(codes, point), int(p.cores)
    first = first_run_s(table.memory(codes).weight_bytes, p)
    moved = sum(c.dram_bytes for c in costs)
    alone = sum(c.seconds for c in costs) * 1e3
    on_cpu = sum(c.seconds for c in costs if c.placement == "CPU")
    return found | {
        "first_run_extra_ms": None if first is None else first * 1e3,
        "cores": [{"cores": n, "latency_ms": ms - alone + sum(kernel_on_cores(c, n, p) for c in costs) * 1e3} for n in range(1, count + 1)],
        "throughput_per_s_low": min(throughput(ms / 1e3, moved, count, max(p.dram_bytes_per_s, moved * 1e3 / ms)), 1.0 / on_cpu if on_cpu else np.inf),
        "throughput_per_s_high": throughput(ms / 1e3, moved, count, count * max(p.dram_bytes_per_s, moved * 1e3 / ms)),
    }
