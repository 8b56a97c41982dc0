"""Rewrites for chips: one idea a file, each registered with its exactness, tolerance, text and source.

    REWRITES        all of them by name, in the order in which they are tried
    named(name)     one of them
"""

from __future__ import annotations

from qbench.errors import unknown
from qbench.rewriting import Rewrite
from qbench.targets.rewrites import (  # noqa: F401  (each registers its own)
    arithmetic,
    convolutions,
    folding,
    gelu,
    layouts,
    norms,
    operator_set,
    outputs,
    pads,
    pooling,
    products,
    resizing,
    slices,
    swish,
)
from qbench.targets.rewrites.registry import REWRITES


def named(name: str) -> Rewrite:
    """Raises UnknownName that lists the rewrites."""
    if name not in REWRITES:
        raise unknown("rewrite", name, sorted(REWRITES))
    return REWRITES[name]


__all__ = ["REWRITES", "named"]
