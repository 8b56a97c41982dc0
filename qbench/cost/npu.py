"""Latency and energy of one kernel on an NPU with a MAC array: refined roofline per fused kernel.

    t = (t_compute^p + t_dram^p)^(1/p) + t_activation + t_layout + t_edge + launches * t_0

Source: structure of Arm's Vela performance model and of ANNETTE (Wess et al. 2021); constants from the target file.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from qbench.cost.energy import dynamic_joules
from qbench.cost.kernel import Constants, KernelCost
from qbench.cost.parameters import NpuParameters
from qbench.cost.tile import channel_groups, tile_work
from qbench.cost.work import Work, kernel_work, runs_at, stored_bytes, stored_weight_bytes, up
from qbench.network import Kernel, Network, Precision
from qbench.target import OperatingPoint

# Tensors that a fused activation keeps beside its result in 16 bits: read off the plans of rknn-toolkit2 2.5.0 (yolov5n, mobilenet_v3_small, convnext_tiny)
TABLE_OPERANDS = {"Swish": 2, "HardSwish": 2, "Gelu": 2, "Sigmoid": 1, "HardSigmoid": 1}


def dram_rate(clock_hz: float, p: NpuParameters) -> float:
    """Bytes per second of one core: DRAM has its own clock, the port that leads there has the core's."""
    return min(p.dram_bytes_per_s, (p.port_bytes_per_cycle or math.inf) * clock_hz)


@dataclass(frozen=True, slots=True)
class UnitRates:
    """What the units beside the array do in a cycle, at one precision; infinite where they never bind."""

    depthwise_macs: float = math.inf
    mapped: float = math.inf
    lut: float = math.inf
    reduced: float = math.inf
    port_bytes: float = math.inf

    @staticmethod
    def of(precision: Precision, p: NpuParameters) -> UnitRates:
        def rate(value: float) -> float:
            return value or math.inf
        return UnitRates(rate(getattr(p, f"depthwise_macs_per_cycle_{precision}")), rate(getattr(p, f"map_elements_per_cycle_{precision}")),
                         getattr(p, f"lut_elements_per_cycle_{precision}") or rate(1 / p.lut_cycles_per_element if p.lut_cycles_per_element else 0.0),
                         rate(p.reduce_elements_per_cycle), rate(p.activation_port_bytes_per_cycle))


def terms(w: Work, clock_hz: float, p: NpuParameters, precision: Precision = Precision.INT8) -> tuple[float, float, float, float]:
    """Seconds of compute, DRAM, activation (table, vector unit and re-packing) and overhead. The fields of `w` may be arrays."""
    r = UnitRates.of(precision, p)
    compute = w.cycles / (clock_hz * p.compute_efficiency) + w.depthwise_macs / (r.depthwise_macs * clock_hz)
    dram = np.maximum(w.dram_bytes / dram_rate(clock_hz, p), w.onchip_bytes / (r.port_bytes * clock_hz))
    activation = ((w.lut_elements / r.lut + w.mapped_elements / r.mapped + w.reduced_elements / r.reduced) / clock_hz
                  + w.layout_bytes / p.layout_bytes_per_s + (w.edge_bytes / p.edge_bytes_per_s if p.edge_bytes_per_s else 0.0))
    share = p.kernel_overhead_8bit_share if precision.activation_bytes == 1 else 1.0
    return compute, dram, activation, (w.launches * p.kernel_overhead_s + w.vector_launches * p.vector_overhead_s) * share


def overlapped(compute: float, dram: float, exponent: float) -> float:
    """Time of two activities that hide one another in part: their p-norm, computed without overflow. Takes arrays."""
    longest = np.maximum(compute, dram)
    share = np.minimum(compute, dram) / np.maximum(longest, 1e-300)
    seconds: float = longest * (1.0 + share ** exponent) ** (1.0 / exponent)
    return seconds


def seconds(w: Work, clock_hz: float, p: NpuParameters, precision: Precision = Precision.INT8) -> float:
    """Steady-state time of one kernel. The fields of `w` may be arrays."""
    compute, dram, activation, overhead = terms(w, clock_hz, p, precision)
    return overlapped(compute, dram, p.overlap_exponent) + activation + overhead


@dataclass(frozen=True)
class NpuModel(Constants):
    """A CostModel from constants.

    macs_per_cycle  of each precision the chip has, one core
    cpu_ops         operators that the toolkit places on the CPU
    top             the chip's fastest operating point
    weight_bits     of the stored weights where they differ from the activations' (w8a16)
    on_cpu          of one network, at each precision: kernel on the CPU -> its share of a hand-over; None: `cpu_ops` says
    """

    parameters: NpuParameters
    macs_per_cycle: Mapping[Precision, float]
    cpu_ops: frozenset[str]
    top: OperatingPoint
    weight_bits: Mapping[Precision, int] = field(default_factory=dict)
    on_cpu: Mapping[Precision, Mapping[str, float]] | None = None

    def kernel(self, kernel: Kernel, network: Network, precision: Precision, point: OperatingPoint) -> KernelCost:
        p = self.parameters
        if self.on_cpu is not None:
            hand_over = self.on_cpu.get(precision, {}).get(kernel.name)
        else:
            hand_over = 1.0 if any(op in self.cpu_ops for op in kernel.op.split("+")) else None
        if hand_over is not None:
            return self._fallen_back(kernel, network, precision, hand_over)
        used, w = self.work(kernel, network, precision)
        compute, dram, activation, overhead = terms(w, point.clock_hz, p, precision)
        layout = w.layout_bytes / p.layout_bytes_per_s + (w.edge_bytes / p.edge_bytes_per_s if p.edge_bytes_per_s else 0.0)
        parts = {"compute": compute, "dram": dram + layout, "activation": activation - layout, "overhead": overhead}
        onchip = w.cycles * p.input_group_channels * precision.activation_bytes + w.dram_bytes + w.layout_bytes + w.onchip_bytes
        joules = dynamic_joules(w.macs, w.padded_macs, onchip, w.dram_bytes + w.layout_bytes, used, point, p)
        return KernelCost(kernel.name, kernel.op, float(seconds(w, point.clock_hz, p, precision)), joules, max(parts, key=lambda k: parts[k]),
                          w.dram_bytes + w.layout_bytes, kernel.macs, w.macs / w.padded_macs if w.padded_macs else 0.0, "NPU")

    def channel_group(self, precision: Precision, output: bool) -> float:
        """Channels that one step of the array takes in, or puts out."""
        p = self.parameters
        if p.onchip_bytes:
            return channel_groups(precision, p)[output]
        return self.macs_per_cycle[precision] / p.input_group_channels if output else p.input_group_channels

    def work(self, kernel: Kernel, network: Network, precision: Precision) -> tuple[Precision, Work]:
        """Counts of a kernel and the arithmetic it really uses."""
        p = self.parameters
        used = runs_at(kernel, precision) if not p.onchip_bytes else precision
        rate = self.macs_per_cycle.get(used, self.macs_per_cycle[precision])
        if p.onchip_bytes:
            return used, tile_work(kernel, network, precision, rate, self.weight_bytes(kernel, precision), p)
        return used, kernel_work(kernel, network, precision, rate, p)

    def all_on_npu(self) -> NpuModel:
        """The model of a chip that takes every operator."""
        return replace(self, cpu_ops=frozenset(), on_cpu=None)

    def _fallen_back(self, kernel: Kernel, network: Network, precision: Precision, hand_over: float) -> KernelCost:
        """A share of handing over and back; every tensor and weight read or written once, a multiply-accumulate taken to last as long as a byte.

        Not validated.
        """
        p = self.parameters
        moved = sum(network.tensors[t].elements for t in (*kernel.inputs, *kernel.outputs)) * precision.activation_bytes + self.weight_bytes(kernel, precision)
        parts = {"compute": kernel.macs / p.cpu_bytes_per_s, "dram": moved / p.cpu_bytes_per_s, "overhead": hand_over * p.cpu_sync_s}
        return KernelCost(kernel.name, kernel.op, max(parts["compute"], parts["dram"]) + parts["overhead"], moved * p.dram_pj_per_byte * 1e-12,
                          max(parts, key=lambda k: parts[k]), moved, kernel.macs, 0.0, "CPU")

    def conversion(self, elements: int, source: Precision, goal: Precision, point: OperatingPoint) -> tuple[float, float]:
        """Seconds and joules of a kernel that reads a tensor in one precision and writes it in another."""
        p = self.parameters
        moved = elements * (source.activation_bytes + goal.activation_bytes)
        through = moved / dram_rate(point.clock_hz, p)
        if moved <= p.onchip_bytes:
            through = elements / (UnitRates.of(max(source, goal, key=lambda x: x.activation_bytes), p).mapped * point.clock_hz)
        return (through + p.kernel_overhead_s,
                dynamic_joules(0.0, 0.0, moved, moved, source, point, p))

    def tensor_bytes(self, network: Network, tensor: str, precision: Precision) -> int:
        """As the toolkit allots it: convolutions write two atoms of channels at a time, depthwise ones a whole group, and in 16 bits a fused
        table activation keeps its operands beside its result."""
        spec, p = network.tensors[tensor], self.parameters
        maker = network.producer.get(tensor)
        kind = network.kernel[maker].kind if maker else ""
        image = maker is None and any(network.kernel[k].kind == "conv" for k in network.consumers.get(tensor, ()))
        size = stored_bytes(spec, precision, p, image)
        if not p.onchip_bytes and len(spec.shape) == 4 and kind in ("conv", "deconv", "depthwise"):
            n, c, h, w = spec.shape
            step = 2 * p.atom_bytes if kind != "depthwise" else p.depthwise_group_channels
            size = n * h * w * up(c * precision.activation_bytes, step)
            if precision.activation_bytes > 1:
                size *= 1 + TABLE_OPERANDS.get(network.kernel[maker].activation, 0) if maker else 1
        return int(up(size, 64))

    def weight_bytes(self, kernel: Kernel, precision: Precision) -> int:
        if self.parameters.onchip_bytes:
            return int(up(kernel.weights * self.weight_bits.get(precision, 8 * precision.activation_bytes) / 8 + kernel.biases * 4, 64))
        return int(up(stored_weight_bytes(kernel, precision, self.parameters), 64)) if kernel.weights else 0
