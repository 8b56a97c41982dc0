"""Which activation tensors a plan may store as integers: what the statistics must watch."""

from __future__ import annotations

from qbench.graph.operators import CLAMPS
from qbench.network import Kernel, Network


def quantized_tensors(network: Network) -> tuple[str, ...]:
    """Activation tensors whose range a plan may need, in network order: the sources of every scale group it may use."""
    quantizable = {k for u in network.units if u.quantizable for k in u.kernels}
    inner_clamped = {t for k in network.kernels for t in clamped(k)}
    wanted: dict[str, None] = {}
    for kernel in network.kernels:
        if kernel.name in quantizable:
            for t in (*kernel.inputs, *kernel.inner, *kernel.outputs):
                if t in network.group_of and t not in inner_clamped:
                    wanted.update(dict.fromkeys(network.group_of[t].sources))
    return tuple(wanted)


def clamped(kernel: Kernel) -> tuple[str, ...]:
    """Inner tensors that only the kernel's own Relu or Clip reads: the range of what follows says the clamp."""
    ops = kernel.op.split("+")
    return tuple(t for t, reader in zip(kernel.inner, ops[1:], strict=False) if reader in CLAMPS)
