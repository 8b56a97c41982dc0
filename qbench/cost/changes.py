"""What one change would save on one kernel: each candidate is priced by the same model as the kernel itself.

A saving holds for the kernel alone: what a change does to its neighbours (conversions, their shapes) or to accuracy is not in it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import ceil

from qbench.cost.kernel import CostModel
from qbench.cost.npu import NpuModel
from qbench.cost.work import ARRAY, FREE_ACTIVATIONS
from qbench.network import Kernel, Network, Precision
from qbench.target import OperatingPoint

WORTH = 0.01                                         # share of the kernel's time below which a change is not named


@dataclass(frozen=True, slots=True)
class Change:
    """what   a sentence for the user; kind   "precision", "clock", "channels", "activation", "memory" or "placement\""""

    kind: str
    what: str
    saved_s: float


def changes(model: CostModel, kernel: Kernel, network: Network, precision: Precision, point: OperatingPoint,
            points: Sequence[OperatingPoint] = (), available: Sequence[Precision] = ()) -> tuple[Change, ...]:
    """Single changes that make this kernel faster, the largest saving first.

    points      the target's operating points; faster ones are tried
    available   precisions that the kernel may take
    """
    now = model.kernel(kernel, network, precision, point).seconds
    tried = [*_other_precisions(model, kernel, network, precision, point, available), *_faster_clocks(model, kernel, network, precision, point, points)]
    if isinstance(model, NpuModel):
        tried += [*_channels(model, kernel, network, precision, point), *_without_function(model, kernel, network, precision, point),
                  *_on_the_chip(model, kernel, network, precision, point)]
    found = [Change(kind, what, now - seconds) for kind, what, seconds in tried if now - seconds > WORTH * now]
    return tuple(sorted(found, key=lambda c: -c.saved_s))


Trial = tuple[str, str, float]


def _other_precisions(model: CostModel, kernel: Kernel, network: Network, precision: Precision, point: OperatingPoint,
                      available: Sequence[Precision]) -> Iterator[Trial]:
    for p in available:
        if p is not precision:
            yield "precision", f"{precision} to {p}", model.kernel(kernel, network, p, point).seconds


def _faster_clocks(model: CostModel, kernel: Kernel, network: Network, precision: Precision, point: OperatingPoint,
                   points: Sequence[OperatingPoint]) -> Iterator[Trial]:
    for o in points:
        if o.clock_hz > point.clock_hz:
            yield "clock", f"{point.name} to {o.name}", model.kernel(kernel, network, precision, o).seconds


def _channels(model: NpuModel, kernel: Kernel, network: Network, precision: Precision, point: OperatingPoint) -> Iterator[Trial]:
    """Channels cut to whole groups of the array, or padded to whole atoms where data only moves."""
    if kernel.kind in ("conv", "deconv", "matmul") and kernel.groups == 1:
        for end, now in (("output", kernel.out_channels), ("input", kernel.in_channels)):
            group = model.channel_group(precision, end == "output")
            less = int(now // group * group)
            if less and less != now:
                yield ("channels", f"{now} {end} channels are computed as {ceil(now / group) * group:.0f}; {less} would fill the array",
                       model.kernel(*_with_channels(kernel, network, end, less), precision, point).seconds)
    elif kernel.kind in ("concat", "split") or kernel.op == "Slice":
        step = max(1, int(model.parameters.atom_bytes // precision.activation_bytes))
        parts = kernel.inputs if kernel.kind == "concat" else kernel.outputs
        shapes = {t: network.tensors[t].shape for t in (*kernel.inputs, *kernel.outputs)}
        if any(len(shapes[t]) > 1 and shapes[t][1] % step for t in parts) and all(len(s) > 1 for s in shapes.values()):
            padded = {t: (s[0], ceil(s[1] / step) * step, *s[2:]) for t, s in shapes.items()}
            yield ("channels", f"pad the channels of its parts to multiples of {step}",
                   model.kernel(kernel, _reshaped(network, padded), precision, point).seconds)


def _with_channels(kernel: Kernel, network: Network, end: str, channels: int) -> tuple[Kernel, Network]:
    """The kernel and its network with another number of output or input channels; tensors without a channel axis keep their size."""
    output = end == "output"
    share = channels / (kernel.out_channels if output else kernel.in_channels)
    k = replace(kernel, macs=round(kernel.macs * share), weights=round(kernel.weights * share), biases=round(kernel.biases * share) if output else kernel.biases)
    k = replace(k, out_channels=channels) if output else replace(k, in_channels=channels)
    shapes = {t: network.tensors[t].shape for t in (kernel.outputs if output else kernel.inputs)}
    return k, _reshaped(network, {t: (s[0], channels, *s[2:]) for t, s in shapes.items() if len(s) == 4})


def _reshaped(network: Network, shapes: dict[str, tuple[int, ...]]) -> Network:
    return replace(network, tensors={**network.tensors, **{t: replace(network.tensors[t], shape=s) for t, s in shapes.items()}})


def _without_function(model: NpuModel, kernel: Kernel, network: Network, precision: Precision, point: OperatingPoint) -> Iterator[Trial]:
    if kernel.kind in ARRAY and kernel.activation not in FREE_ACTIVATIONS:
        yield ("activation", f"Relu in place of {kernel.activation} (changes the result: retrain)",
               model.kernel(replace(kernel, activation="Relu"), network, precision, point).seconds)


def _on_the_chip(model: NpuModel, kernel: Kernel, network: Network, precision: Precision, point: OperatingPoint) -> Iterator[Trial]:
    if model.kernel(kernel, network, precision, point).placement == "CPU":
        yield ("placement", f"an operator that the NPU takes in place of {kernel.op}",
               model.all_on_npu().kernel(kernel, network, precision, point).seconds)
        return
    p = model.parameters
    spilled = model.work(kernel, network, precision)[1].spilled_bytes
    if spilled:
        roomy = replace(model, parameters=replace(p, onchip_bytes=p.onchip_bytes + spilled))
        yield ("memory", f"tensors smaller by {spilled / 1e6:.2g} MB (fewer channels or pixels) would stay on chip",
               roomy.kernel(kernel, network, precision, point).seconds)
