"""Which activation tensors a plan needs to know: those it may store as integers, and those that decide whether FP16 holds."""

from __future__ import annotations

from collections.abc import Iterable

from qbench.graph.operators import CLAMPS
from qbench.network import Kernel, Network

WITHIN_ONE = frozenset({"Sigmoid", "HardSigmoid", "Tanh", "Erf", "Sin", "Cos", "Softmax", "Hardmax", "Softsign"})
"""Operators whose outputs lie in -1..1."""
NO_LARGER = frozenset({"Abs", "Neg", "Relu", "Sqrt", "ReduceMean", "ReduceMax", "ReduceMin", "MaxPool", "AveragePool", "GlobalMaxPool",
                       "GlobalAveragePool", "Dropout"})
"""Operators whose outputs exceed neither 1 nor the largest magnitude of their first input."""


def quantized_tensors(network: Network) -> tuple[str, ...]:
    """Activation tensors whose range a plan may need, in network order: the sources of every scale group it may use."""
    quantizable = {k for u in network.units if u.quantizable for k in u.kernels}
    return _sources(network, (t for k in network.kernels if k.name in quantizable for t in seen_outside(k)))


def watched_tensors(network: Network) -> tuple[str, ...]:
    """What a pass over the data must watch: ranges for integers, magnitudes for FP16 (BUG case B22); network order.

    Of units that stay in float, those outputs are left out that cannot exceed what goes in: see `bound_of`.
    """
    integers = set(quantized_tensors(network))
    found = _sources(network, (t for k in network.kernels for t in seen_outside(k)))
    return tuple(t for t in found if t in integers or bound_of(network, t) == t)


def seen_outside(kernel: Kernel) -> tuple[str, ...]:
    """Tensors of a kernel whose values matter: all but those that its own Relu or Clip cuts."""
    cut = clamped(kernel)
    return tuple(t for t in (*kernel.inputs, *kernel.inner, *kernel.outputs) if t not in cut)


def bound_of(network: Network, tensor: str) -> str:
    """The tensor that bounds the magnitude of one that was not watched: itself where nothing better is known, "" where it is at most 1."""
    while (maker := network.producer.get(tensor)) is not None:
        kernel = network.kernel[maker]
        if kernel.op in WITHIN_ONE:
            return ""
        if kernel.op not in NO_LARGER or not kernel.inputs or kernel.inputs[0] not in network.group_of:
            break
        sources = network.group_of[kernel.inputs[0]].sources
        if len(sources) > 1:
            break
        tensor = sources[0]
    return tensor


def clamped(kernel: Kernel) -> tuple[str, ...]:
    """Inner tensors that only the kernel's own Relu or Clip reads: the range of what follows says the clamp."""
    ops = kernel.op.split("+")
    return tuple(t for t, reader in zip(kernel.inner, ops[1:], strict=False) if reader in CLAMPS)


def _sources(network: Network, tensors: Iterable[str]) -> tuple[str, ...]:
    """The tensors that hold the values of `tensors` first, without those that a clamp cuts."""
    cut = {t for k in network.kernels for t in clamped(k)}
    wanted: dict[str, None] = {}
    for t in tensors:
        if t in network.group_of and t not in cut:
            wanted.update(dict.fromkeys(network.group_of[t].sources))
    return tuple(wanted)
