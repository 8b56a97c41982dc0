"""Tensors of one number, and of none, are compared like any other."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.testing import assert_allclose

from qbench.affine import Range, Scheme, affine
from qbench.workbench.readers import fake_quantized, sample_energies

CODES = affine(Range(-1.0, 1.0), Scheme(8, False, False))


@pytest.mark.parametrize("shape", [(), (1,), (3, 2), (2, 0, 4), (0, 3)])
def test_any_shape(shape: tuple[int, ...]) -> None:
    x = np.random.default_rng(0).uniform(-1, 1, shape).astype(np.float32)
    made = fake_quantized(x, CODES)
    assert made.shape == shape and np.abs(made - x).max(initial=0.0) <= CODES.scale / 2 * (1 + 1e-5)
    noise, signal = sample_energies(x, made)
    rows = np.atleast_1d(x)
    assert len(noise) == len(signal) == len(rows)
    assert_allclose(signal, [np.square(r, dtype=np.float64).sum() for r in rows], rtol=1e-6)
