"""Steps that the vendor's compiler takes: what the prediction counts already, and what it would lose without them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from qbench.advice.networks import unfused
from qbench.advice.records import Answer, Consent, Inapplicable, Subject, Trial, Unpriced
from qbench.advice.setup import npu
from qbench.cost.modes import batched
from qbench.cost.parameters import NpuParameters

PLENTY = 1e4
"""Times the on-chip memory that stands for one without limit."""
LARGEST_BATCH = 32


def fusion(subject: Subject) -> Iterator[Answer]:
    network = subject.setup.network
    folded = subject.operators.get("BatchNormalization", 0) - sum("BatchNormalization" in k.op for k in network.kernels)
    nodes, kernels = sum(subject.operators.values()), len(network.kernels)
    apart = unfused(network, folded)
    if len(apart.kernels) == kernels:
        yield Inapplicable("nothing in this network fuses")
        return
    norms = f", {folded} BatchNormalization folded into weights" if folded else ""
    yield Trial(f"export in evaluation mode and let the compiler fuse: {nodes} nodes become {kernels} launches{norms}", Consent.EXACT,
                lambda s: replace(s, network=apart), counted=True, note="lost if every operator ran by itself")


def needless(subject: Subject) -> Iterator[Answer]:
    """Nodes that do nothing, such as the Transposes around every layer of a network that was converted from NHWC."""
    slim = subject.slim
    if slim is None:
        yield Inapplicable("every node does something")
        return
    fewer = len(subject.setup.network.kernels) - len(slim.network.kernels)
    yield Trial(f"take out {fewer} launches of nodes that do nothing or undo one another: `qbench rewrite`", Consent.EXACT,
                lambda s: replace(s, network=slim.network, target=slim.target, precision=slim.precision), note="the vendor's compiler may do it by itself")


def overlap(subject: Subject) -> Iterator[Answer]:
    model = npu(subject.setup)
    if model is None:
        yield Inapplicable("no NPU: nothing is copied to one")
        return
    if model.parameters.overlap_exponent <= 1.0:
        yield Inapplicable("the chip's model has no overlap")
        return
    yield Trial("DMA of the next tile while this one is computed", Consent.EXACT, lambda s: s.with_constants(overlap_exponent=1.0), counted=True,
                note="lost if the two took turns")


def memory_plan(subject: Subject) -> Iterator[Answer]:
    plan = subject.now.memory
    apart = sum(p.buffer.size_bytes for p in plan.placed)
    yield Trial(f"tensors with disjoint lifetimes share memory: {apart / 1e6:.3g} MB of activations fit in {plan.arena_bytes / 1e6:.3g} MB", Consent.EXACT,
                after=replace(subject.now, peak_bytes=plan.peak_bytes - plan.arena_bytes + apart), counted=True,
                note=f"planned, not optimal; lower bound {plan.lower_bound_bytes / 1e6:.3g} MB")


def sram(subject: Subject) -> Iterator[Answer]:
    """What more on-chip memory, or smaller tensors, could save at most; and the largest batch that stays on chip."""
    model = npu(subject.setup)
    if model is None:
        yield _own_memory(subject)
        return
    p = model.parameters
    grown = {"onchip_bytes": p.onchip_bytes * PLENTY} if p.onchip_bytes else {"buffer_banks": p.buffer_banks * PLENTY}
    have = p.onchip_bytes or p.buffer_banks * p.bank_bytes
    largest = _largest_batch(subject, p) if p.onchip_bytes else None
    fits = "" if largest is None else "; no batch keeps every kernel on chip" if largest == 0 else f"; the largest batch that stays on chip is {largest}"
    yield Trial(f"tensors and tiles that fit the {have / 1e6:.2g} MB on chip: fewer channels or pixels where kernels spill{fits}", Consent.RETRAIN,
                lambda s: s.with_constants(**grown), together=False, at_most=True,
                note="as if nothing spilled and no tile were read twice")


def _own_memory(subject: Subject) -> Answer:
    """Whether a microcontroller's own memories hold the network, where its file gives them."""
    facts, plan = subject.setup.target.facts, subject.now.memory
    ram = sum(float(f.value) for k, f in facts.items() if k.startswith("ram_") and k.endswith("_bytes"))
    flash = facts.get("flash_bytes")
    if not ram or flash is None:
        return Inapplicable("the CPU model has no on-chip memory apart from its caches")
    over = [f"{what} of {need / 1e6:.3g} MB in {have / 1e6:.3g} MB of {where}" for what, need, have, where in
            (("activations", plan.ram_bytes, ram, "RAM"), ("weights", plan.weight_bytes, float(flash.value), "flash")) if need > have]
    if not over:
        return Inapplicable(f"activations and weights fit the chip's {ram / 1e6:.3g} MB of RAM and {float(flash.value) / 1e6:.3g} MB of flash")
    return Unpriced(f"fewer channels or pixels until the chip holds it: {' and '.join(over)} do not fit", Consent.RETRAIN,
                    "the prediction takes the chip's own memory throughout; external memory is slower by a factor that no public source gives")


def _largest_batch(subject: Subject, p: NpuParameters) -> int:
    """Samples at once for which no kernel spills; 0: one does already. Counted up to `LARGEST_BATCH`."""
    model = npu(subject.setup)
    assert model is not None
    fits = 0
    for n in range(1, LARGEST_BATCH + 1):
        network = batched(subject.setup.network, n)
        if any(model.work(k, network, subject.setup.precision[network.unit_of_kernel[k.name]])[1].spilled_bytes for k in network.kernels):
            return fits
        fits = n
    return fits


def tiling(subject: Subject) -> Iterator[Answer]:
    if npu(subject.setup) is None:
        yield Inapplicable("no tiles without an NPU")
        return
    yield Unpriced("tiles of another size", Consent.EXACT, "the compiler chooses them; the prediction takes the best of four ways to cut a kernel where the "
                   "chip's buffer rules are public")


def flags(subject: Subject) -> Iterator[Answer]:
    if not subject.setup.target.name.startswith("ascend"):
        yield Inapplicable("flags of the Ascend compiler")
        return
    yield Unpriced("--auto_tune, --optimize_level=3, allow_mix_precision for INT8", Consent.EXACT, "no such effect: see the sources")
