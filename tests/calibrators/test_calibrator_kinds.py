"""What is special about each calibrator, against an independent computation."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from qbench.affine import Range, Scheme, affine, dequantize, quantize
from qbench.calibrators import make
from qbench.calibrators.hull import hull
from qbench.calibrators.kl import Kl, candidates, divergences, uniform
from qbench.statistics import TensorStatistics

Reals = NDArray[np.float64]
RNG = np.random.default_rng(7)
WIDE = 2 * RNG.normal(size=50_000)
SETS: dict[str, NDArray[Any]] = {
    "normal": RNG.normal(size=50_000),
    "relu": np.maximum(RNG.normal(size=100_000) - 1.0, 0),
    "silu": WIDE / (1 + np.exp(-WIDE)),
    "negative": -np.exp(RNG.normal(size=50_000)),
    "heavy": RNG.standard_t(3, size=50_000),
    "few": RNG.normal(size=40),
}
DATA = {k: v.astype(np.float32) for k, v in SETS.items()}
MANY = [k for k in DATA if k != "few"]
"""Sets with values enough for a divergence."""


def seen_of(x: NDArray[Any]) -> TensorStatistics:
    """All values as one sample."""
    return TensorStatistics.of(x[None])


@pytest.mark.parametrize("name", DATA)
def test_minmax_is_exact(name: str) -> None:
    x = DATA[name]
    assert make("minmax").range(seen_of(x), 256) == Range(min(0.0, float(x.min())), max(0.0, float(x.max())))


@pytest.mark.parametrize("name", DATA)
@pytest.mark.parametrize("p", [90.0, 99.0, 99.9, 99.99])
def test_percentile_is_the_exact_quantile_within_a_fifth_of_a_percent(name: str, p: float) -> None:
    x = DATA[name].astype(np.float64)
    found = make(f"percentile:p={p}").range(seen_of(x), 256)
    tail = (100 - p) / 200
    assert found.low == pytest.approx(min(0.0, np.quantile(x, tail)), rel=0.002)
    assert found.high == pytest.approx(max(0.0, np.quantile(x, 1 - tail)), rel=0.002)


@pytest.mark.parametrize("name", DATA)
def test_percentile_of_magnitudes_cuts_both_sides_alike(name: str) -> None:
    x = DATA[name].astype(np.float64)
    found = make("percentile:p=99.0,sided=magnitude").range(seen_of(x), 256)
    reach = np.quantile(np.abs(x), 0.99, method="inverted_cdf")
    assert found.magnitude == pytest.approx(reach, rel=0.002)
    assert found.low == pytest.approx(max(-reach, min(0.0, x.min())), rel=0.002)


@pytest.mark.parametrize("name", DATA)
@pytest.mark.parametrize("p", [90.0, 99.0, 99.9])
def test_percentile_of_one_side_drops_all_at_the_longer_tail(name: str, p: float) -> None:
    x = DATA[name].astype(np.float64)
    found = make(f"percentile:p={p},sided=one").range(seen_of(x), 256)
    up = x.max() >= -x.min()
    low, high = (x.min(), np.quantile(x, p / 100)) if up else (np.quantile(x, 1 - p / 100), x.max())
    assert (found.low, found.high) == pytest.approx((min(0.0, low), max(0.0, high)), rel=0.002)


def test_percentile_of_both_sides_drops_half_as_much_of_one_sided_data() -> None:
    """As documented: the lower half of what is dropped lies next to 0, inside of every range."""
    seen = seen_of(DATA["relu"])
    both, one = (make(text).range(seen, 256) for text in ("percentile:p=99.8", "percentile:p=99.9,sided=one"))
    assert both.low == one.low == 0.0 and both.high == pytest.approx(one.high, rel=1e-9)


def slow_divergence(counts: Reals, first: int, last: int, levels: int) -> float:
    """Migacz 2017 in plain words, with the departures that `Kl` documents, one threshold at a time."""
    p = counts[first:last].copy()
    kept = p.copy()
    p[0] += counts[:first].sum()
    p[-1] += counts[last:].sum()
    q = np.zeros_like(p)
    size = len(p)
    for group in range(levels):
        begin, end = group * size // levels, (group + 1) * size // levels
        here = np.flatnonzero(p[begin:end]) + begin
        if here.size:
            mass = kept[begin:end].sum()
            if group in (0, levels - 1):
                mass = max(mass, min(p[begin:end].sum(), 0.5))
            q[here] = mass / here.size
    if not kept.sum():
        return math.inf
    p, q = p / p.sum(), q / kept.sum()
    filled = p > 0
    return float((p[filled] * np.log(p[filled] / q[filled])).sum())


@pytest.mark.parametrize(("name", "levels"), [*((name, 128) for name in MANY), ("normal", 256), ("relu", 255)])
def test_kl_is_the_slow_procedure_within_one_bin(name: str, levels: int) -> None:
    seen = seen_of(DATA[name])
    whole = hull(seen)
    width = whole.magnitude / 2048
    counts, middle = uniform(seen, whole, width)
    assert counts.sum() == pytest.approx(seen.count - seen.zeros)
    first, last = candidates(counts.size, middle, 2048, levels)
    assert first.size >= 1024, "several hundred thresholds are compared"
    slow = np.array([slow_divergence(counts, int(a), int(b), levels) for a, b in zip(first, last, strict=True)])
    assert divergences(counts, first, last, levels) == pytest.approx(slow, abs=1e-9)
    best = int(np.argmin(slow))
    want = Range((int(first[best]) - middle) * width, (int(last[best]) - middle) * width)
    found = Kl().range(seen, levels)
    assert abs(found.low - max(want.low, whole.low)) <= width and abs(found.high - min(want.high, whole.high)) <= width


@pytest.mark.parametrize("name", MANY)
@pytest.mark.parametrize("levels", [128, 255])
def test_symmetric_kl_is_the_best_of_the_slow_procedure_over_both_sides(name: str, levels: int) -> None:
    """Also where the data are on one side: the codes are spread over [-T, T], half of them in vain."""
    seen = seen_of(DATA[name])
    whole = hull(seen)
    width = whole.magnitude / 2048
    counts, middle = uniform(seen, Range(-whole.magnitude, whole.magnitude), width)
    found = Kl().range(seen, levels, symmetric=True)
    reach = round(found.magnitude / width)
    rivals = [*range((levels + 1) // 2, 2049, 9), *range(max(reach - 3, (levels + 1) // 2), min(reach + 4, 2049))]
    best = min(slow_divergence(counts, middle - r, middle + r, levels) for r in rivals)
    assert slow_divergence(counts, middle - reach, middle + reach, levels) <= best + 1e-9
    assert found.low == max(-found.magnitude, whole.low) and found.high == min(found.magnitude, whole.high)
    assert Kl(sides="apart").range(seen, levels, symmetric=True) == found


@pytest.mark.parametrize("name", ["normal", "silu", "heavy"])
@pytest.mark.parametrize("levels", [64, 256])
def test_kl_of_sides_apart_is_never_worse_and_no_single_move_is_better(name: str, levels: int) -> None:
    seen = seen_of(DATA[name])
    width = hull(seen).magnitude / 2048
    counts, middle = uniform(seen, hull(seen), width)

    def bins(sides: str) -> tuple[int, int]:
        found = make(f"kl:sides={sides}").range(seen, levels)
        return middle + math.floor(found.low / width + 1e-6), middle + math.ceil(found.high / width - 1e-6)

    (first, last), together = bins("apart"), bins("together")
    loss = slow_divergence(counts, first, last, levels)
    assert loss <= slow_divergence(counts, *together, levels) + 1e-9
    moves = [(a, last) for a in range(0, min(middle, last - levels) + 1, 23)]
    moves += [(first, b) for b in range(max(middle, first + levels), counts.size, 23)]
    assert loss <= min(slow_divergence(counts, a, b, levels) for a, b in moves) + 1e-9


def test_kl_of_sides_apart_follows_each_side() -> None:
    """Sides of unlike spread: a common threshold suits one of them only."""
    x = np.concatenate([-RNG.exponential(size=50_000), 8.0 * RNG.exponential(size=50_000)])
    apart, together = (make(f"kl:sides={sides}").range(seen_of(x), 128) for sides in ("apart", "together"))
    assert apart != together


def test_kl_bins_hold_the_values_that_lie_in_them() -> None:
    x = DATA["silu"].astype(np.float64)
    seen = seen_of(DATA["silu"])
    width = hull(seen).magnitude / 2048
    counts, middle = uniform(seen, hull(seen), width)
    exact = np.histogram(x[x != 0], (np.arange(counts.size + 1) - middle) * width)[0]
    # the cells of the sketch are up to two bins wide at the top: values may sit one cell further
    assert np.abs(np.cumsum(counts) - np.cumsum(exact)).max() <= np.convolve(exact, np.ones(5)).max()


@pytest.mark.parametrize("levels", [128, 255, 256])
@pytest.mark.parametrize("bins", [512, 2048, 8192])
def test_b03_a_far_outlier_is_clipped(levels: int, bins: int) -> None:
    x = np.append(np.random.default_rng(0).normal(size=100_000), 50.0)
    found = Kl(bins).range(seen_of(x), levels)
    assert 3.0 <= found.high <= 10.0 and -10.0 <= found.low <= -3.0


@pytest.mark.parametrize("levels", [256, 512, 1024])
def test_b03_bins_are_raised_where_the_levels_ask_for_it(levels: int) -> None:
    x = np.append(np.random.default_rng(0).normal(size=100_000), 50.0)
    assert Kl(512).range(seen_of(x), levels).high < 25.0


@pytest.mark.parametrize("scale", [1.0, 19.0])
def test_kl_clips_nothing_of_a_few_hundred_values(scale: float) -> None:
    """A classifier's 96 logits: nearly every bin is empty, and the least divergence lies wherever chance put it."""
    seen = seen_of((scale * RNG.normal(size=96)).astype(np.float32))
    assert Kl().range(seen, 256) == hull(seen)


def test_kl_is_not_moved_by_exact_zeros() -> None:
    values = DATA["relu"][DATA["relu"] > 0]
    few, many = (seen_of(np.concatenate([values, np.zeros(n, np.float32)])) for n in (1, 2_000_000))
    assert Kl().range(many, 256) == Kl().range(few, 256)
    assert Kl().range(many, 256).high > np.quantile(values, 0.99)


def mean_squared_error(x: NDArray[Any], low: float, high: float, levels: int) -> float:
    """By quantizing every value."""
    coded = affine(Range(low, high), Scheme(int(math.log2(levels)), False, False))
    return float(np.mean((dequantize(quantize(x, coded), coded).astype(np.float64) - x) ** 2))


@pytest.mark.parametrize("name", DATA)
@pytest.mark.parametrize("levels", [16, 256])
def test_mse_is_as_good_as_the_best_of_a_dense_grid(name: str, levels: int) -> None:
    x = DATA[name][:5_000]
    seen = seen_of(x)
    whole = hull(seen)
    found = make("mse").range(seen, levels)
    lows = np.linspace(whole.low, 0, 30, endpoint=False) if whole.low else [0.0]
    highs = np.linspace(whole.high, 0, 30, endpoint=False) if whole.high else [0.0]
    best = min(mean_squared_error(x, float(a), float(b), levels) for a in lows for b in highs)
    assert mean_squared_error(x, found.low, found.high, levels) <= 1.02 * best


def test_mse_with_many_levels_clips_almost_nothing() -> None:
    for name in ("normal", "relu", "silu"):
        seen = seen_of(DATA[name])
        found, whole = make("mse").range(seen, 65536), hull(seen)
        assert found.low == pytest.approx(whole.low, rel=0.01) and found.high == pytest.approx(whole.high, rel=0.01)
