"""Rounding finished by flips: what gradients leave in a local minimum, single weights and pairs of weights lead out of.

In front of the activation the loss of a layer is a quadratic form of its weights, for each output channel by itself: a flip of one
weight to its other code changes it by 2 d (G w - b) + d^2 G_ii, with G = E[x x'] and b = E[x y]. Flips that help are made until none
does. Source: the quadratic binary problem of Nagel et al. 2020 (arXiv 2004.10568), equation 20.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

MOST_INPUTS = 4096                      # G of more is not worth its memory
PARTNERS = 32                           # weights of an output channel, the most promising ones, that are tried in pairs
LEAST_GAIN = 1e-6                       # of the loss of a channel
MOST_ROUNDS = 2000


def flipped(x: torch.Tensor, y: torch.Tensor, weight: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """True where a weight should take its other value, [groups, inputs, outputs], as `weight`.

    x       [groups, positions, inputs]
    y       [groups, positions, outputs], what x @ weight should be
    weight, other   the value of each weight, and that of its other code; equal where it has none
    """
    import torch

    x, y = x.double(), y.double()
    count = x.shape[1]
    gram = torch.bmm(x.transpose(1, 2), x) / count
    slope = torch.bmm(gram, weight.double()) - torch.bmm(x.transpose(1, 2), y) / count
    loss = (torch.bmm(x, weight.double()) - y).square().mean(dim=1)                         # [groups, outputs]
    step = (other - weight).double()
    own = gram.diagonal(dim1=1, dim2=2)[:, :, None]
    made = torch.zeros_like(weight, dtype=torch.bool)
    for _ in range(MOST_ROUNDS):
        gain = 2 * step * slope + step.square() * own
        best, at = gain.min(dim=1)
        pair, first, second = _pairs(gram, gain, step)
        single = best <= pair
        useful = torch.minimum(best, pair) < -LEAST_GAIN * loss
        if not bool(useful.any()):
            break
        for index, wanted in ((torch.where(single, at, first), useful), (second, useful & ~single)):
            g, o = wanted.nonzero(as_tuple=True)
            i = index[g, o]
            slope[g, :, o] += gram[g, :, i] * step[g, i, o][:, None]
            step[g, i, o] *= -1
            made[g, i, o] ^= True
        loss = loss + torch.where(useful, torch.minimum(best, pair), 0.0)
    return made


def _pairs(gram: torch.Tensor, gain: torch.Tensor, step: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Gain of the best pair of flips of each output channel, [groups, outputs], and the two inputs."""
    import torch

    groups, inputs, outputs = gain.shape
    many = min(PARTNERS, inputs)
    low, at = torch.where(step == 0, torch.inf, gain).topk(many, dim=1, largest=False)     # [groups, many, outputs]
    d = step.gather(1, at).permute(0, 2, 1)
    at = at.permute(0, 2, 1)                                                               # [groups, outputs, many]
    group = torch.arange(groups, device=gain.device)[:, None, None, None]
    cross = gram[group, at[..., :, None], at[..., None, :]]
    both = low.permute(0, 2, 1)[..., :, None] + low.permute(0, 2, 1)[..., None, :] + 2 * d[..., :, None] * d[..., None, :] * cross
    both = both + torch.diag(torch.full((many,), torch.inf, dtype=both.dtype, device=both.device))
    best, where = both.reshape(groups, outputs, -1).min(dim=2)
    first, second = where // many, where % many
    return best, at.gather(2, first[..., None])[..., 0], at.gather(2, second[..., None])[..., 0]
