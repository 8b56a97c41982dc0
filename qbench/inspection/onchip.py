"""Which kernels work out of the memory on the chip, and how large a batch or an image could be."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from qbench.cost import CostTable
from qbench.cost.fits import fits
from qbench.cost.residency import NONE, RESIDENT, onchip_bytes, residency
from qbench.errors import TargetError
from qbench.network import Kernel, Network, Precision
from qbench.placement.segments import bytes_of

WORST = 10


@dataclass(frozen=True, slots=True)
class Passing:
    """A kernel whose operands do not all stay. state   as `qbench.cost.residency` has it; bytes of activations that it reads and writes, and of its weights"""

    kernel: str
    op: str
    state: str
    activations_bytes: int
    weights_bytes: int


@dataclass(frozen=True, slots=True)
class OnChip:
    """memory_bytes    on the chip, or RAM of a microcontroller; None where neither is known
    where           which of the two
    states          "resident", "streamed", "banded" -> number of kernels
    worst           those not resident, the largest first
    needed_bytes    of all tensors alive at once, by the smallest plan known
    largest_batch   whose tensors fit into the memory all at once; 0: not even one image; None: memory not known
    largest_input   (height, width) likewise at batch 1; None where no other size can be tried, for the reason in `note`
    """

    memory_bytes: int | None
    where: str
    states: Mapping[str, int]
    worst: tuple[Passing, ...]
    needed_bytes: int
    largest_batch: int | None
    largest_input: tuple[int, int] | None
    note: str


def on_chip(table: CostTable, precision: Precision) -> OnChip:
    network, model = table.network, table.model
    found = {k.name: residency(k, network, precision, model) for k in network.kernels}
    states = {s: n for s, n in Counter(found.values()).items() if s != NONE}
    away = [_passing(k, network, found[k.name], precision, model.weight_bytes(k, precision)) for k in network.kernels if found[k.name] not in (NONE, RESIDENT)]
    worst = tuple(sorted(away, key=lambda f: -(f.activations_bytes + f.weights_bytes))[:WORST])
    try:
        fit = fits(network, table.target, precision)
    except TargetError as error:
        return OnChip(onchip_bytes(model), "on-chip memory", states, worst, 0, None, None, str(error))
    return OnChip(fit.memory_bytes, fit.where, states, worst, fit.needed_bytes, fit.batch, None if fit.resolution_reason else fit.resolution, fit.resolution_reason)


def _passing(k: Kernel, network: Network, state: str, precision: Precision, weights: int) -> Passing:
    return Passing(k.name, k.op, state, sum(bytes_of(network, t, precision) for t in dict.fromkeys((*k.inputs, *k.outputs))), weights)
