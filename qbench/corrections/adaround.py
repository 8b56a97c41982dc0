"""AdaRound: whether a weight goes to the code below it or above is learned, layer by layer, from what the layer makes of it.

Float weights W and scales s stay; each code is floor(W / s) + h(v), where h is a rectified sigmoid and v is learned until h is
0 or 1. The layer reads what the quantized layers before it left, and its target is what the float layer makes of the float
activations: so later layers make up for what earlier ones lost. What was learned, and rounding to nearest, are then both finished
by flips (`qbench.corrections.flips`); for each output channel the best of the four is taken.
Source: Nagel et al. 2020 (arXiv 2004.10568), equations 21 to 25.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING

import numpy as np

from qbench.corrections.activations import Function, activation_of
from qbench.corrections.anchors import Anchor, Array, data_of
from qbench.corrections.bias import Found
from qbench.corrections.flips import MOST_INPUTS, flipped
from qbench.corrections.parts import Codes, Place, codes_of, left_out, places, reads, with_codes
from qbench.corrections.patches import bias_row, factor_of, from_matrix, matrix, patches, positions_of
from qbench.corrections.steps import AdaRound
from qbench.errors import InputError
from qbench.graph import PreparedModel
from qbench.graph.values import sizes
from qbench.packed import Packed
from qbench.plan import Plan
from qbench.protocols import Progress, silent
from qbench.runtime import default_threads
from qbench.walk import Values, Walk

if TYPE_CHECKING:
    import torch

ROUND = "round:"
"""Key in `Plan.tensors` of what is added to the codes of an initializer."""
ZETA, GAMMA = 1.1, -0.1                 # stretch of the rectified sigmoid, equation 23
BETA_HIGH, BETA_LOW = 20.0, 2.0         # annealed exponent of the regulariser, equation 24
WARM_UP = 0.2                           # part of the iterations without regulariser
LAMBDA = 3.0                            # weight of the regulariser, beside a loss of 1 for rounding to nearest
CHECK = 100                             # iterations between looks at whether anything is undecided
HELD_OUT = 4                            # every fourth sample is not learned from: it decides
MOST_VALUES = 1 << 25                   # patches of one layer, in numbers: 128 MB
SHARED_MACS = 1 << 28                   # a step of fewer multiply-accumulates loses more by waiting for a second thread than it gains


def learned_rounding(prepared: PreparedModel, plan: Plan, samples: Sequence[dict[str, Array]], step: AdaRound, *,
                     threads: int | None = None, simulate: bool | None = None, progress: Progress = silent) -> Found:
    """int8 offsets of the codes of each integer layer's weight, for the layers that come out closer to float with them.

    The loss that decides is the squared error of the real integer kernel's output, both on all samples and on those held out;
    a layer that does not gain keeps rounding to nearest, and `Found.remarks` says so.
    """
    walk = Walk(prepared, plan, samples, threads=threads, simulate=simulate, progress=progress)
    layers, tensors, remarks = places(walk), {}, left_out(walk)
    with _gradients():
        for number, kernel in enumerate(walk.kernels()):
            place = layers.get(kernel.name)
            reference = walk.run_float(kernel)
            nearest = walk.accumulated(kernel, reference)
            if place is None:
                walk.advance(kernel, reference, nearest)
                continue
            name = place.anchor.name
            offsets = _offsets(walk, place, step, np.random.default_rng([step.seed, number]), threads or default_threads())
            if isinstance(offsets, str):
                remarks[name] = offsets
                walk.advance(kernel, reference, nearest)
                continue
            part = walk.quantized_part(kernel)
            assert part is not None, "a kernel that was cut out once can be cut out again"
            rounded = walk.run_quantized(kernel, walk.quantized_values, with_codes(part, place, offsets))
            before, after = _losses(reference, nearest), _losses(reference, rounded)
            if after[0] < before[0] and after[1] <= before[1]:
                tensors[ROUND + str(place.anchor.weight.name)] = Packed.of(offsets)
                walk.advance(kernel, reference, rounded)
            else:
                remarks[name] = (f"stays rounded to nearest: squared error {_ratio(after[0], before[0])} as large "
                                 f"({_ratio(after[1], before[1])} on held-out samples)")
                walk.advance(kernel, reference, nearest)
    return Found(tensors, remarks)


def _losses(reference: Values, made: Values) -> tuple[float, float]:
    """Squared error over all outputs: of all samples, and of those held out."""
    whole, held, number = 0.0, 0.0, 0
    for r, m in zip(reference, made, strict=True):
        each = sum(_per_sample(r[t], m[t]) for t in r if t in m and r[t].dtype == np.float32)
        rows = np.atleast_1d(each)
        whole += float(rows.sum())
        held += float(rows[[i for i in range(len(rows)) if _is_held_out(number + i)]].sum())
        number += len(rows)
    return whole, held


def _ratio(after: float, before: float) -> str:
    return f"{after / before:.3g} times" if before else "once" if not after else "infinitely often"


def _per_sample(reference: Array, made: Array) -> Array:
    difference = (reference - made).reshape(len(reference), -1)
    return np.asarray(np.einsum("ni,ni->n", difference, difference, dtype=np.float64))


def _is_held_out(sample: int) -> bool:
    return sample % HELD_OUT == HELD_OUT - 1


@dataclass(frozen=True)
class _Pool:
    """What a layer learns from. x  [groups, positions, inputs / groups * taps], quantized; y  [groups, positions, outputs / groups],
    what the float layer makes in front of its activation, without bias"""

    x: torch.Tensor
    y: torch.Tensor


def _offsets(walk: Walk, place: Place, step: AdaRound, rng: np.random.Generator, threads: int) -> Array | str:
    """What to add to the codes of the weight, int8, or why nothing."""
    import torch

    anchor = place.anchor
    if len(list(anchor.weight.uses())) > 1:
        return "stays rounded to nearest: its weight is shared by several layers"
    codes = codes_of(walk, place)
    scheme = walk.plan.schemes[str(walk.plan.precision[walk.network.unit_of_kernel[place.kernel.name]])].weight
    if scheme.bits > 8:
        return f"stays rounded to nearest: {scheme.bits}-bit weights have nothing to gain"
    if walk.quantized_part(place.kernel) is None:
        return "stays rounded to nearest: it cannot be cut out of the network"
    device = _device(step.device)
    pool = _pool(walk, place, step, rng, device)
    weight = data_of(anchor.weight).astype(np.float64)
    below = np.floor(weight / codes.scales)
    least, most = scheme.qmin - codes.zero_points, scheme.qmax - codes.zero_points
    torch.set_num_threads(threads if weight.size * step.batch > SHARED_MACS else 1)
    up = _learn(_Layer(anchor, codes, weight, below, least, most, activation_of(place.kernel, anchor)), pool, step)
    if up is None:
        return "stays rounded to nearest: its weights are codes already"
    chosen = np.clip(below + up, least, most) + codes.zero_points
    offsets: Array = (chosen - codes.codes).astype(np.int8)
    return offsets


def _device(wanted: str) -> torch.device:
    import torch

    if wanted == "cuda" and not torch.cuda.is_available():
        raise InputError("adaround: device=cuda, but torch finds no CUDA device here; leave the option out to take the CPU")
    return torch.device("cuda" if wanted != "cpu" and torch.cuda.is_available() else "cpu")


def _pool(walk: Walk, place: Place, step: AdaRound, rng: np.random.Generator, device: torch.device) -> _Pool:
    """Patches and targets at positions drawn from all samples but those held out."""
    import torch

    anchor = place.anchor
    target = sizes(anchor.node.outputs[0])
    sources = [c[place.float_input] for c in walk.float_values]
    flat = [(i, n) for i, c in enumerate(sources) for n in range(len(c))]
    learned = [at for number, at in enumerate(flat) if not _is_held_out(number)] or flat
    count = positions_of(anchor, sources[0].shape, target)
    values = anchor.inputs * prod(data_of(anchor.weight).shape[2:])
    quota = -(-min(step.positions, max(MOST_VALUES // values, 1)) // len(learned))
    quantized = reads(walk, place)
    read, wanted = [], []
    for chunk, n in learned:
        at = np.arange(count) if count <= quota else np.sort(rng.choice(count, quota, replace=False))
        read.append(patches(anchor, quantized[chunk][n], at, target))
        wanted.append(patches(anchor, sources[chunk][n], at, target))
    order = rng.permutation(sum(r.shape[1] for r in read))
    x = torch.tensor(np.concatenate(read, axis=1)[:, order], device=device)
    y = torch.tensor(np.concatenate(wanted, axis=1)[:, order], device=device)
    weight = torch.tensor(matrix(anchor, data_of(anchor.weight)), device=device)
    return _Pool(x, torch.bmm(y, weight) * factor_of(anchor, "alpha"))


@dataclass(frozen=True)
class _Layer:
    """A layer while its rounding is learned. below: floor(weight / scale); least, most: what the codes may be, zero point taken off"""

    anchor: Anchor
    codes: Codes
    weight: Array
    below: Array
    least: Array
    most: Array
    function: Function


def _learn(layer: _Layer, pool: _Pool, step: AdaRound) -> Array | None:
    """1 where a weight goes to the code above, 0 where to that below, shape of the weight; None when there is nothing to learn."""
    import torch

    device, anchor = pool.x.device, layer.anchor

    def tensor(data: Array) -> torch.Tensor:
        return torch.tensor(matrix(anchor, np.broadcast_to(data, layer.weight.shape)).astype(np.float32), device=device)

    scale, below, least, most = (tensor(d) for d in (layer.codes.scales * factor_of(anchor, "alpha"), layer.below, layer.least, layer.most))
    bias = torch.tensor(bias_row(anchor), device=device)
    goal = layer.function(pool.y + bias)
    nearest = tensor(layer.codes.codes - layer.codes.zero_points)
    usual = float(torch.bmm(pool.x, nearest * scale - tensor(layer.weight) * factor_of(anchor, "alpha")).square().mean())
    if usual == 0.0:                                                     # what rounding to nearest costs, in front of the activation
        return None
    part = tensor(layer.weight / layer.codes.scales - layer.below).clamp(1e-4, 1 - 1e-4)
    v = torch.log((part - GAMMA) / (ZETA - part)).requires_grad_()
    optimizer = torch.optim.Adam([v], lr=step.lr)
    batches = max(1, pool.x.shape[1] // step.batch)
    for iteration in range(step.iterations):
        at = slice(iteration % batches * step.batch, (iteration % batches + 1) * step.batch)
        h = rectified_sigmoid(v)
        made = layer.function(torch.bmm(pool.x[:, at], (below + h).clamp(least, most) * scale) + bias)
        loss = (made - goal[:, at]).square().mean() / usual
        done = iteration / step.iterations
        if done >= WARM_UP:
            loss = loss + LAMBDA * (1 - (2 * h - 1).abs().pow(annealed(done))).mean()
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        if done > WARM_UP and iteration % CHECK == 0 and bool(((h < 0.01) | (h > 0.99)).all()):
            break
    with torch.no_grad():
        def weight_of(up: torch.Tensor) -> torch.Tensor:
            return (below + up).clamp(least, most) * scale

        def loss_of(up: torch.Tensor) -> torch.Tensor:
            return (layer.function(torch.bmm(pool.x, weight_of(up)) + bias) - goal).square().mean(dim=1, keepdim=True)

        starts = [(rectified_sigmoid(v) >= 0.5).float(), (part >= 0.5).float()]
        ends = [_flipped(up, weight_of, pool) for up in starts] if part.shape[1] <= MOST_INPUTS else []
        best = min_over(starts + ends, loss_of)
    return np.asarray(from_matrix(anchor, best.double().cpu().numpy()))


def _flipped(up: torch.Tensor, weight_of: Callable[[torch.Tensor], torch.Tensor], pool: _Pool) -> torch.Tensor:
    import torch

    return torch.where(flipped(pool.x, pool.y, weight_of(up), weight_of(1 - up)), 1 - up, up)


def min_over(choices: Sequence[torch.Tensor], loss_of: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
    """For each output channel that choice of [groups, inputs, outputs] whose loss, [groups, 1, outputs], is smallest."""
    import torch

    best, least = choices[0], loss_of(choices[0])
    for other in choices[1:]:
        loss = loss_of(other)
        best, least = torch.where(loss < least, other, best), torch.minimum(loss, least)
    return best


def rectified_sigmoid(v: torch.Tensor) -> torch.Tensor:
    """Equation 23."""
    return (v.sigmoid() * (ZETA - GAMMA) + GAMMA).clamp(0.0, 1.0)


def annealed(done: float) -> float:
    """Exponent of the regulariser after this part of the iterations: a half cosine from BETA_HIGH to BETA_LOW."""
    along = (done - WARM_UP) / (1 - WARM_UP)
    return BETA_LOW + (BETA_HIGH - BETA_LOW) * 0.5 * (1 + float(np.cos(np.pi * along)))


@contextmanager
def _gradients() -> Iterator[None]:
    """torch with gradients; its number of threads as it was, afterwards."""
    import torch

    before = torch.get_num_threads()
    try:
        with torch.enable_grad():
            yield
    finally:
        torch.set_num_threads(before)
