"""Times beside the steady state of one inference on one core: several cores, and the first run.

Not validated: formulas of COST_MODELS sections 3.5 and 3.8. Latency with several cores and throughput with several inferences are
different answers.
"""

from __future__ import annotations

from collections.abc import Sequence

from qbench.cost.kernel import KernelCost
from qbench.cost.parameters import NpuParameters

# RKNNRT API reference v2.3.2 (2025): these and what is fused into them run on several cores; the rest stays on core 0.
SCALABLE = frozenset({"Conv", "Add", "Concat", "Relu", "Clip", "PRelu", "LeakyRelu", "ThresholdedRelu"})


def on_cores(costs: Sequence[KernelCost], cores: int, p: NpuParameters, scalable: frozenset[str] = SCALABLE) -> float:
    """Seconds of one inference spread over `cores`: kernels of scalable operators divide, each with a barrier, others do not."""
    if cores <= 1:
        return sum(c.seconds for c in costs)
    gain = 1.0 + (min(cores, p.cores) - 1.0) * p.core_efficiency
    return sum(min(c.seconds, c.seconds / gain + p.core_barrier_s) if set(c.op.split("+")) <= scalable else c.seconds for c in costs)


def throughput(seconds: float, dram_bytes: float, instances: int, total_bytes_per_s: float) -> float:
    """Inferences per second of independent instances: each as fast as alone, until their traffic fills the DRAM."""
    return min(instances / seconds, total_bytes_per_s / dram_bytes if dram_bytes else float("inf"))


def first_run_s(weight_bytes: float, p: NpuParameters) -> float | None:
    """Seconds that the first inference takes on top: reading the weights, and compiling when nothing is cached. None: unknown."""
    if not p.load_bytes_per_s:
        return None
    return weight_bytes / p.load_bytes_per_s + p.compile_s
