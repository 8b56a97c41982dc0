"""What a built-in sample is, and how its compact pictures become the network's input."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from qbench.protocols import Array, Dataset


@dataclass(frozen=True)
class Sample:
    """A real network with real labelled data.

    metric    spec of the metric that a search optimises; `also` are worth showing beside it
    licence   of the network and of the data
    caveats   what the sample's figures do not show
    """

    name: str
    title: str
    story: str
    model: Path
    calibration: Dataset
    evaluation: Dataset
    metric: str
    licence: str
    caveats: tuple[str, ...]
    also: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class OneChannel:
    """Stored `pictures` [n, H, W] of whole numbers -> float32 `image` [n, 1, H, W], (value / divisor - mean) / std."""

    divisor: float = 1.0
    mean: float = 0.0
    std: float = 1.0

    @property
    def text(self) -> str:
        return f"one-channel:divisor={self.divisor!r},mean={self.mean!r},std={self.std!r}"

    def __call__(self, stored: Mapping[str, Array]) -> Mapping[str, Array]:
        x = stored["pictures"][:, None].astype(np.float32)
        return {"image": (x / np.float32(self.divisor) - np.float32(self.mean)) / np.float32(self.std)}
