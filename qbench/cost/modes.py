"""Times beside the steady state of one inference on one core: several cores, several samples at once, and the first run.

Not validated: formulas of COST_MODELS sections 3.5 and 3.8. Latency with several cores and throughput with several inferences are
different answers.
"""

from __future__ import annotations

from dataclasses import replace

from qbench.cost.kernel import KernelCost
from qbench.cost.parameters import NpuParameters
from qbench.network import Kernel, Network

# RKNNRT API reference v2.3.2 (2025): these and what is fused into them run on several cores; the rest stays on core 0.
SCALABLE = frozenset({"Conv", "Add", "Concat", "Relu", "Clip", "PRelu", "LeakyRelu", "ThresholdedRelu"})


def kernel_on_cores(cost: KernelCost, cores: int, p: NpuParameters) -> float:
    """Seconds of one kernel spread over `cores`, never more than on one: scalable operators divide, with a barrier, others do not."""
    if cores <= 1 or cost.placement != "NPU" or not set(cost.op.split("+")) <= SCALABLE:
        return cost.seconds
    gain = 1.0 + (min(cores, p.cores) - 1.0) * p.core_efficiency
    return min(cost.seconds, cost.seconds / gain + p.core_barrier_s)


def throughput(seconds: float, dram_bytes: float, instances: int, total_bytes_per_s: float) -> float:
    """Inferences per second of independent instances: each as fast as alone, until their traffic fills the DRAM."""
    return min(instances / seconds, total_bytes_per_s / dram_bytes if dram_bytes else float("inf"))


def first_run_s(weight_bytes: float, p: NpuParameters) -> float | None:
    """Seconds that the first inference takes on top: reading the weights, and compiling when nothing is cached. None: unknown."""
    if not p.load_bytes_per_s:
        return None
    return weight_bytes / p.load_bytes_per_s + p.compile_s


def batched(network: Network, samples: int) -> Network:
    """The network with that many samples at once: activations grow, weights are read once.

    Rows of a product with weights are more pixels of one launch; everything else repeats per sample.
    """
    tensors = {name: replace(t, shape=(t.shape[0] * samples, *t.shape[1:])) if t.shape and t.dtype == "float32" else t
               for name, t in network.tensors.items()}
    return replace(network, tensors=tensors, kernels=tuple(_batched(k, samples) for k in network.kernels))


def _batched(k: Kernel, samples: int) -> Kernel:
    if k.kind == "matmul" and k.weights:
        return replace(k, macs=k.macs * samples, in_h=k.in_h * samples, out_h=k.out_h * samples)
    return replace(k, macs=k.macs * samples, batch=k.batch * samples)
