"""Steps that change how much runs at once: the picture's size, padded or smaller, and the batch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from qbench.advice.records import Answer, Consent, Inapplicable, State, Subject, Trial, Unpriced
from qbench.advice.resize import picture, resized
from qbench.advice.setup import Cost, npu, priced
from qbench.cost.modes import batched
from qbench.errors import ModelError

BATCHES = (2, 4, 8)
STEPS = (8, 16, 32, 64)
"""Multiples of pixels that arrays and strided networks like; the next of each above the present size is tried."""
SMALLER = 0.75


def input_size(subject: Subject) -> Iterator[Answer]:
    """The next sizes that fill the array: padding up is exact only where borders do not matter."""
    name, model = picture(subject.setup.network), npu(subject.setup)
    if name is None:
        yield Inapplicable("no single input is a picture")
        return
    if model is None:
        yield Inapplicable("no compute array: nothing is padded")
        return
    _, _, h, w = subject.setup.network.tensors[name].shape
    tried: dict[tuple[int, int], Cost] = {}
    why = ""
    for size in sorted({(up_to(h + d, step), up_to(w + d, step)) for step in STEPS for d in (0, 1)} - {(h, w)}):
        try:
            tried[size] = priced(subject.setup.with_network(resized(subject.model, *size)))
        except ModelError as error:
            why = str(error)
    if not tried:
        yield Unpriced(f"pad the input of {h} x {w} to a size that fills the array", Consent.RESULT, why)
        return
    best = min(tried, key=lambda s: tried[s].latency_s)
    macs = sum(c.macs for c in subject.now.kernels)
    share = macs / max(1.0, sum(c.macs / c.utilisation for c in subject.now.kernels if c.utilisation))
    if tried[best].latency_s < subject.now.latency_s:
        yield Trial(f"pad the input from {h} x {w} to {best[0]} x {best[1]}", Consent.RESULT, after=tried[best], together=False,
                    note="zeros at the border change the outermost outputs")
    else:
        yield Trial(f"keep {h} x {w}: {' and '.join(f'{a} x {b}' for a, b in tried)} cost more (the array computes {100 * share:.0f} % useful "
                    "multiply-accumulates)", Consent.EXACT, after=subject.now)


def up_to(size: int, step: int) -> int:
    return -(-size // step) * step


def resolution(subject: Subject) -> Iterator[Answer]:
    name = picture(subject.setup.network)
    if name is None:
        yield Inapplicable("no single input is a picture")
        return
    _, _, h, w = subject.setup.network.tensors[name].shape
    step = next((s for s in (32, 16, 8) if h % s == 0 and w % s == 0), 1)
    smaller = max(step, int(h * SMALLER) // step * step), max(step, int(w * SMALLER) // step * step)
    do = f"smaller pictures, e.g. {smaller[0]} x {smaller[1]} in place of {h} x {w}"
    try:
        network = resized(subject.model, *smaller)
    except ModelError as error:
        yield Unpriced(do, Consent.RETRAIN, str(error))
        return
    yield Trial(do, Consent.RETRAIN, lambda s: s.with_network(network), together=False)


def batch(subject: Subject) -> Iterator[Answer]:
    """Samples at once: launches and weights are shared; each answer comes later."""
    if subject.setup.target.cost_model == "mcu":
        yield Inapplicable("a microcontroller has no memory for several samples at once")
        return
    tried: dict[int, Cost] = {n: priced(subject.setup.with_network(batched(subject.setup.network, n))) for n in BATCHES}
    n = min(tried, key=lambda b: tried[b].latency_s / b)
    found = tried[n]
    after = replace(found, latency_s=found.latency_s / n, energy_j=None if found.energy_j is None else found.energy_j / n, dram_bytes=found.dram_bytes / n)
    yield Trial(f"batch {n} where several samples wait: each answer comes after {found.latency_s * 1e3:.3g} ms", Consent.EXACT, after=after, together=False,
                where=State.TRADE, note="per sample; unvalidated")
