"""How far an output moved from the float model's: SQNR, cosine and Kullback-Leibler divergence, without labels."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from qbench.errors import DataError
from qbench.metrics.base import RowMetric, Rows, mean
from qbench.protocols import Array

MOST_DB = 200.0          # what `sqnr` gives for equal outputs: above anything that float32 can show (24 bits, about 144 dB)
POSITIONS = 4096         # positions of a map that the divergence looks at, evenly spread: a diagnostic need not see each pixel


def energies(reference: Array, output: Array) -> Rows:
    """Per sample [reference^2, output^2, reference * output, (output - reference)^2], summed over its values: [n, 4].

    Values where the reference itself is not finite are left out. A NaN or infinity of the output only makes the last three so.
    """
    r, o = _aligned(reference, output)
    if not np.isfinite(r).all():
        o, r = np.where(np.isfinite(r), o, 0.0), np.where(np.isfinite(r), r, 0.0)
    error = o - r
    pairs = ((r, r), (o, o), (r, o), (error, error))
    return np.stack([np.einsum("ni,ni->n", a, b) for a, b in pairs], axis=1)     # einsum: one thread, no BLAS wake-up


def _aligned(reference: Array, output: Array) -> tuple[Rows, Rows]:
    if reference.shape != output.shape:
        raise DataError(f"the output has shape {list(output.shape)}, the float model's {list(reference.shape)}")
    n = len(reference)
    return reference.reshape(n, -1).astype(np.float64), output.reshape(n, -1).astype(np.float64)


def sqnr_db(signal: Rows, noise: Rows) -> Rows:
    """10 log10(signal / noise): inf for no noise, -inf for noise without signal or an output that is not finite."""
    with np.errstate(divide="ignore", invalid="ignore"):
        db = 10.0 * np.log10(signal / noise)
    db = np.where(noise == 0.0, np.inf, db)
    return np.where(np.isfinite(noise), db, -np.inf)


def cosine(sums: Rows) -> Rows:
    """From sums [..., 4] of `energies`: 1 for two zero outputs, 0 for one or for an output that is not finite."""
    norms = np.sqrt(sums[..., 0]) * np.sqrt(sums[..., 1])
    with np.errstate(divide="ignore", invalid="ignore"):
        found = np.clip(sums[..., 2] / norms, -1.0, 1.0)
    found = np.where(norms == 0.0, np.where(sums[..., 0] == sums[..., 1], 1.0, 0.0), found)
    return np.where(np.isfinite(found), found, 0.0)


def divergence(reference: Array, output: Array, axis: int) -> Rows:
    """KL(reference || output) in nats per sample, mean over positions: [n]. inf where the output is not finite.

    Scores along `axis` go through softmax, unless the reference already holds probabilities (>= 0, summing to 1).
    At most POSITIONS positions of a sample are looked at, evenly spread.
    """
    if reference.shape != output.shape:
        raise DataError(f"the output has shape {list(output.shape)}, the float model's {list(reference.shape)}")
    r, o = (np.moveaxis(x, axis, -1).reshape(len(x), -1, x.shape[axis]) for x in (reference, output))
    step = -(-r.shape[1] // POSITIONS)
    r, o = r[:, ::step].astype(np.float64), o[:, ::step].astype(np.float64)
    ready = bool((r >= 0).all() and np.allclose(r.sum(-1), 1.0, atol=1e-3))
    log_r, log_o = (_log(x) if ready else _log_softmax(x) for x in (r, o))
    with np.errstate(invalid="ignore"):
        p = np.exp(log_r)
        terms = np.where(p == 0.0, 0.0, p * (log_r - log_o))             # a class that the reference rules out costs nothing
    return np.asarray(np.where(np.isfinite(terms), terms, np.inf).sum(-1).mean(-1))


def _log_softmax(x: Rows) -> Rows:
    with np.errstate(invalid="ignore"):
        x = x - x.max(-1, keepdims=True)
        return np.asarray(x - np.log(np.exp(x).sum(-1, keepdims=True)))


def _log(p: Rows) -> Rows:
    """Quantized probabilities reach exact 0; half a step of 16 bits stands for it, so that one lost tail is not infinite."""
    return np.asarray(np.log(np.maximum(p, 2.0**-17)))


class Fidelity:
    """Collects, batch by batch, how far one output is from the float model's.

    axis   class axis for the divergence; None when the output holds no classes, and `kl` is nan
    """

    def __init__(self, axis: int | None = None) -> None:
        self._axis = axis
        self._sums = np.zeros(4)
        self._kl = 0.0
        self._samples = 0

    def update(self, reference: Array, output: Array) -> None:
        """Add one batch; the first axis holds the samples."""
        self._sums += energies(reference, output).sum(0)
        self._samples += len(reference)
        if self._axis is not None:
            self._kl += float(divergence(reference, output, self._axis).sum())

    @property
    def sqnr_db(self) -> float:
        """Over all values seen; inf when every output is equal."""
        return float(sqnr_db(self._sums[0], self._sums[3]))

    @property
    def cosine(self) -> float:
        return float(cosine(self._sums))

    @property
    def kl(self) -> float:
        """Mean over samples and positions, in nats."""
        return self._kl / self._samples if self._axis is not None and self._samples else float("nan")


@dataclass(frozen=True)
class Sqnr(RowMetric):
    """Signal to quantization noise over all values of the set, in dB; 200 for equal outputs."""

    kind: ClassVar[str] = "sqnr"
    labelled: ClassVar[bool] = False

    def statistics(self, outputs: Mapping[str, Array], labels: Array | None, reference: Mapping[str, Array]) -> Rows:
        return energies(self.judged(reference), self.judged(outputs))[:, [0, 3]]

    def weighted(self, rows: Rows, weights: Rows) -> Rows:
        sums = weights @ rows
        return np.clip(sqnr_db(sums[:, 0], sums[:, 1]), -MOST_DB, MOST_DB)


@dataclass(frozen=True)
class Cosine(RowMetric):
    """Cosine between the outputs of the whole set and the float model's, as one long vector each."""

    kind: ClassVar[str] = "cosine"
    labelled: ClassVar[bool] = False

    def statistics(self, outputs: Mapping[str, Array], labels: Array | None, reference: Mapping[str, Array]) -> Rows:
        return energies(self.judged(reference), self.judged(outputs))[:, :3]

    def weighted(self, rows: Rows, weights: Rows) -> Rows:
        return cosine(weights @ rows)


@dataclass(frozen=True)
class Divergence(RowMetric):
    """Minus the mean Kullback-Leibler divergence from the float model's class probabilities, in nats; 0 is best.

    axis   class axis of the output
    """

    kind: ClassVar[str] = "kl"
    labelled: ClassVar[bool] = False
    axis: int = 1

    def statistics(self, outputs: Mapping[str, Array], labels: Array | None, reference: Mapping[str, Array]) -> Rows:
        return divergence(self.judged(reference), self.judged(outputs), self.axis)[:, None]

    def weighted(self, rows: Rows, weights: Rows) -> Rows:
        return -mean(rows[:, 0], weights)
