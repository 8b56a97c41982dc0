"""The largest batch and the largest image whose tensors fit into a memory: on-chip memory of an NPU, RAM of a microcontroller."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import gcd

import numpy as np

from qbench.cost.arena import Arena
from qbench.cost.model import cost_model
from qbench.cost.residency import onchip_bytes
from qbench.cost.sharing import is_view
from qbench.errors import TargetError
from qbench.network import Network, Precision, TensorSpec
from qbench.target import Target

MOST = 1 << 12                  # batches and multiples of the image that are looked at
STRIDE = 32                     # step of the image size where the network's own does not divide


@dataclass(frozen=True, slots=True)
class Fit:
    """What fits. Zero: nothing does, not even batch 1 or the smallest image.

    memory_bytes      that the tensors have to fit into; weights come from behind it
    where             "on-chip memory", "RAM", or "given"
    needed_bytes      of the network as it is
    batch             largest batch at the image size as it is
    resolution        (height, width) of the largest image at batch 1 of the same proportions, (0, 0) none
    resolution_reason why no other image size can be tried, "" when it can
    exact             False: some tensor's rows do not divide evenly, so sizes at other images are rounded up
    """

    memory_bytes: int
    where: str
    needed_bytes: int
    batch: int
    resolution: tuple[int, int]
    resolution_reason: str
    exact: bool


def fits(network: Network, target: Target, precision: Precision, memory_bytes: int | None = None) -> Fit:
    """What of `network`, throughout at `precision`, fits into `memory_bytes` or else into the target's memory.

    Activations are laid out by the smallest plan that is known, not by the toolchain's, since nothing forces them into this memory.
    Raises TargetError when neither the argument nor the target's file says how large the memory is.
    """
    where = "given"
    if memory_bytes is None:
        ram = target.memory.ram_bytes
        memory_bytes, where = (ram, "RAM") if ram else (onchip_bytes(cost_model(target)), "on-chip memory")
    if not memory_bytes:
        raise TargetError(f"target {target.name}: no size of its on-chip memory or RAM is known; give the bytes, for example 1500000")
    height, width = image_of(network)
    reason = fixed_resolution(network)
    rows = 0 if reason else largest_resolution(network, target, precision, memory_bytes)
    return Fit(memory_bytes, where, needed_bytes(network, target, precision), largest_batch(network, target, precision, memory_bytes),
               (rows, rows * width // height) if rows else (0, 0), reason, image_step(network)[1])


def needed_bytes(network: Network, target: Target, precision: Precision) -> int:
    """Bytes of activations, and of the runtime where the target says, of the smallest plan at one precision."""
    target.support(precision)
    have = target.available()
    fallback = next((i for i, p in enumerate(have) if p.is_float), have.index(precision))
    codes = np.array([have.index(precision) if u.quantizable or precision.is_float else fallback for u in network.units], dtype=np.int64)
    rules = replace(target.memory, allocator="")
    return Arena.of(network, cost_model(target), have, rules).plan(network, codes, 0, have).ram_bytes


def largest_batch(network: Network, target: Target, precision: Precision, memory_bytes: int) -> int:
    """Largest batch that fits into `memory_bytes`; 0 when one sample does not."""
    return _largest(lambda n: needed_bytes(batched(network, n), target, precision) <= memory_bytes)


def largest_resolution(network: Network, target: Target, precision: Precision, memory_bytes: int) -> int:
    """Height of the largest image, in steps of the network's stride, that fits into `memory_bytes` at batch 1; 0 when none does."""
    height, _ = image_of(network)
    step, _ = image_step(network)
    return step * _largest(lambda n: needed_bytes(resized(network, n * step, height), target, precision) <= memory_bytes)


def _largest(fitting: Callable[[int], bool]) -> int:
    """The largest number for which `fitting` holds, when it holds for all smaller ones; 0 none."""
    good, bad = 0, 1
    while bad <= MOST and fitting(bad):
        good, bad = bad, 2 * bad
    while bad - good > 1:
        middle = (good + bad) // 2
        good, bad = (middle, bad) if fitting(middle) else (good, middle)
    return good


def batched(network: Network, batch: int) -> Network:
    """The network with `batch` times the samples: every tensor but those without axes grows."""
    tensors = {t: TensorSpec(t, (s.shape[0] * batch, *s.shape[1:]) if s.shape else s.shape, s.dtype) for t, s in network.tensors.items()}
    return replace(network, tensors=tensors, kernels=tuple(replace(k, batch=k.batch * batch) for k in network.kernels))


def image_of(network: Network) -> tuple[int, int]:
    """Height and width of the first graph input with four axes; (0, 0) none."""
    return next(((s[2], s[3]) for t in network.inputs if len(s := network.tensors[t].shape) == 4), (0, 0))


def image_step(network: Network) -> tuple[int, bool]:
    """The step that image heights can change by, and whether every tensor's rows and columns then stay whole."""
    height, width = image_of(network)
    sizes = {d for s in network.tensors.values() if len(s.shape) == 4 for d in s.shape[2:] if d > 1}
    common = gcd(*sizes, height, width) if sizes and height else 1
    return (height // common, True) if common > 1 else (min(STRIDE, max(height, 1)), False)


def fixed_resolution(network: Network) -> str:
    """Why the network takes no other image size; "" when it does."""
    if image_of(network) == (0, 0):
        return "no graph input has four axes, so there is no image size to change"
    for k in network.kernels:
        shapes = [network.tensors[t].shape for t in (*k.inputs[:1], *k.outputs[:1])]
        if k.kind == "reshape" and len(shapes) == 2 and len(shapes[0]) == 4 and len(shapes[1]) != 4 and max(shapes[0][2:]) > 1:
            readers = [network.kernel[r] for r in network.consumers.get(k.outputs[0], ())]
            if any(r.kind == "matmul" for r in readers) or not is_view(k):
                return f"kernel {k.name!r} ({k.op}) turns an image of {shapes[0][2]}x{shapes[0][3]} into {shapes[1]}: what follows is made for that size"
    return ""


def resized(network: Network, height: int, was: int) -> Network:
    """The network with its images scaled to `height` from `was` rows; rows and columns of every map scale along, rounded up, 1 stays 1."""
    def scaled(d: int) -> int:
        return d if d == 1 else max(1, -(-d * height // was))

    tensors = {t: TensorSpec(t, (*s.shape[:2], scaled(s.shape[2]), scaled(s.shape[3])) if len(s.shape) == 4 else s.shape, s.dtype)
               for t, s in network.tensors.items()}
    kernels = []
    for k in network.kernels:
        if k.kind == "matmul" or k.kind == "rnn":
            kernels.append(k)
            continue
        kernels.append(replace(k, in_h=scaled(k.in_h), in_w=scaled(k.in_w), out_h=scaled(k.out_h), out_w=scaled(k.out_w)))
    return replace(network, tensors=tensors, kernels=tuple(kernels))
