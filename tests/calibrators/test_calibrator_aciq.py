"""Analytical clipping: against the paper's numbers, numerical integration, and real quantization of drawn values."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from scipy import integrate, optimize, stats

from qbench.affine import Range, Scheme, affine, dequantize, quantize
from qbench.calibrators import make
from qbench.calibrators.aciq import alpha_gauss, alpha_laplace
from qbench.statistics import TensorStatistics

PAPER = {   # Banner et al. 2019, section 2: optimal clipping over b and over sigma; the step is 2 alpha / 2**bits
    2: (2.83, 1.71), 3: (3.89, 2.15), 4: (5.03, 2.55), 5: (6.20, 2.93), 6: (7.41, 3.28), 7: (8.64, 3.61), 8: (9.89, 3.92)}
DENSITIES: dict[str, Any] = {"laplace": stats.laplace, "gauss": stats.norm}


def seen_of(x: Any) -> TensorStatistics:
    return TensorStatistics.of(np.asarray(x, np.float32)[None, None])


@pytest.mark.parametrize("bits", PAPER)
def test_thresholds_are_those_of_the_paper(bits: int) -> None:
    laplace, gauss = PAPER[bits]
    assert alpha_laplace(2**bits) == pytest.approx(laplace, abs=0.011) and alpha_gauss(2**bits) == pytest.approx(gauss, abs=0.011)


@pytest.mark.parametrize("shape", DENSITIES)
@pytest.mark.parametrize("steps", [4, 15, 255, 512])
def test_thresholds_minimise_the_integrated_noise(shape: str, steps: int) -> None:
    density = DENSITIES[shape]

    def noise(alpha: float) -> float:
        clipped = 2 * integrate.quad(lambda x: (x - alpha) ** 2 * density.pdf(x), alpha, alpha + 40, epsabs=1e-15, epsrel=1e-10)[0]
        return float(clipped + (2 * alpha / steps) ** 2 / 12)

    best = optimize.minimize_scalar(noise, bounds=(0.5, 20), method="bounded", options={"xatol": 1e-6}).x
    assert {"laplace": alpha_laplace, "gauss": alpha_gauss}[shape](steps) == pytest.approx(best, rel=1e-3)


@pytest.mark.parametrize("steps", [1, 3, 65535, 2**17])
def test_any_number_of_levels_has_a_threshold(steps: int) -> None:
    for alpha in (alpha_laplace(steps), alpha_gauss(steps)):
        assert 0 < alpha < 32
    assert 1 / 3 / steps**2 == pytest.approx(math.exp(-alpha_laplace(steps)) / alpha_laplace(steps), rel=1e-9)


@pytest.mark.parametrize("shape", DENSITIES)
@pytest.mark.parametrize("levels", [8, 16, 64])
def test_auto_finds_the_density_and_the_range_around_the_mean(shape: str, levels: int) -> None:
    x = DENSITIES[shape].rvs(loc=0.7, scale=2.0, size=200_000, random_state=1)
    alpha = {"laplace": alpha_laplace, "gauss": alpha_gauss}[shape](levels)
    found = make("aciq").range(seen_of(x), levels)
    assert found == make(f"aciq:shape={shape}").range(seen_of(x), levels)
    assert (found.low, found.high) == pytest.approx((0.7 - 2.0 * alpha, 0.7 + 2.0 * alpha), rel=0.02)


@pytest.mark.parametrize("shape", DENSITIES)
@pytest.mark.parametrize("sign", [1.0, -1.0])
@pytest.mark.parametrize("zeros", [0, 1, 5])
def test_one_sided_data_are_magnitudes_of_the_density(shape: str, sign: float, zeros: int) -> None:
    """After a ReLU: twice as many levels on the one side as the density around 0 would have, whatever the number of zeros."""
    values = np.abs(DENSITIES[shape].rvs(scale=2.0, size=200_000, random_state=2))
    x = sign * np.concatenate([values, np.zeros(zeros * values.size)])
    alpha = {"laplace": alpha_laplace, "gauss": alpha_gauss}[shape]
    assert make("aciq").range(seen_of(x), 16).magnitude == pytest.approx(2.0 * alpha(32), rel=0.02)
    assert make("aciq").range(seen_of(x), 16, symmetric=True).magnitude == pytest.approx(2.0 * alpha(16), rel=0.02)


def test_symmetric_codes_measure_from_zero() -> None:
    x = stats.norm.rvs(loc=1.5, scale=1.0, size=100_000, random_state=3)
    found = make("aciq:shape=gauss").range(seen_of(x), 16, symmetric=True)
    reach = math.sqrt(1.5**2 + 1.0) * alpha_gauss(16)
    assert (found.low, found.high) == pytest.approx((max(-reach, x.min()), min(reach, x.max())), rel=0.02)


@pytest.mark.parametrize("shape", DENSITIES)
@pytest.mark.parametrize("bits", [6, 8])
def test_on_its_own_density_it_is_nearly_the_best_range(shape: str, bits: int) -> None:
    x = DENSITIES[shape].rvs(size=100_000, random_state=4).astype(np.float32)
    scheme = Scheme(bits, True, True, narrow=True)

    def loss(t: float) -> float:
        coded = affine(Range(-t, t), scheme)
        return float(np.mean((dequantize(quantize(x, coded), coded).astype(np.float64) - x) ** 2))

    found = make("aciq").range(seen_of(x), scheme.levels, symmetric=True)
    best = min(loss(float(t)) for t in float(np.abs(x).max()) * np.linspace(0.1, 1, 200))
    assert loss(found.magnitude) <= 1.05 * best
