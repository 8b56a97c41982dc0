"""Which plan to evaluate next: the one that is expected to push the front out most, under what the loss model does not know.

    draws          loss models that agree with everything seen, each as likely as the others
    improvements   hypervolume that each plan would add, under each of them

Latency (or energy) is exact and losses are uncertain, so the expectation runs over losses only.
Source: expected hypervolume improvement: Emmerich, Giannakoglou, Naujoks 2006 (IEEE TEC 10:4); drawing whole models: Thompson 1933
(Biometrika 25), here with the Bayesian linear model of Bishop 2006, section 3.3.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from qbench.search.loss import Floats, LossModel, Observations, posterior
from qbench.search.space import Codes


def draws(prior: LossModel, seen: Observations, allowed: Sequence[Sequence[int]], base: Codes, floor: float, count: int,
          rng: np.random.Generator) -> list[LossModel]:
    """`count` models from the posterior; the arguments are those of `qbench.search.loss.refit`."""
    found = posterior(prior, seen, allowed, base, floor)
    if found is None:
        return [prior] * count
    return [found.model(found.mean + found.spread @ rng.standard_normal(len(found.mean))) for _ in range(count)]


def improvements(points: Floats, losses: Floats, costs: Floats, reference: Floats) -> Floats:
    """Hypervolume that each plan adds to a front, [models, plans].

    points      [k, 2]: loss and cost of what was evaluated
    losses      [models, plans] predicted; costs  [plans] exact
    reference   [2]: only what lies below it in both counts
    """
    inside = points[(points < reference).all(axis=1)]
    inside = inside[np.argsort(inside[:, 1], kind="stable")]
    level = np.minimum.accumulate(np.concatenate([[reference[0]], inside[:, 0]]))          # least loss at a cost from edges[j] on
    edges = np.concatenate([[-np.inf], inside[:, 1], [reference[1]]])
    starts = np.maximum(edges[None, :-1], costs[:, None])                                  # [plans, steps]
    widths = np.maximum(edges[None, 1:] - starts, 0.0)
    heights = np.maximum(level[None, None, :] - losses[:, :, None], 0.0)                   # [models, plans, steps]
    gained: Floats = (heights * widths[None]).sum(axis=2)
    return gained


def batch(points: Floats, losses: Floats, costs: Floats, reference: Floats, size: int) -> list[int]:
    """Up to `size` plans, greedily: each adds most on average, given that those before it turn out as expected. Plans that add nothing are left out."""
    chosen: list[int] = []
    while len(chosen) < size:
        gain = improvements(points, losses, costs, reference).mean(axis=0)
        gain[chosen] = 0.0
        best = int(np.argmax(gain))
        if gain[best] <= 0.0:
            break
        chosen.append(best)
        points = np.vstack([points, [losses[:, best].mean(), costs[best]]])
    return chosen
