"""The sketch of one tensor against numpy on the same values."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray

from qbench.errors import NotObserved
from qbench.statistics import TensorStatistics
from qbench.statistics.exact import real, units
from qbench.statistics.grid import code_of, codes, edges
from qbench.statistics.sketch import PER_SAMPLE, merge

Values = NDArray[np.float32]
RESOLUTION = 2.0**-10

finite = st.floats(width=32, allow_nan=False, allow_infinity=False)
# magnitudes that a scale can express: below 2**-136 a value counts as 0, by definition
ordinary = finite.filter(lambda v: v == 0 or abs(v) >= 2.0**-136)
vectors = hnp.arrays(np.float32, st.integers(1, 80), elements=ordinary)
normal_vectors = hnp.arrays(np.float32, st.integers(1, 80), elements=st.floats(width=32, allow_nan=False, allow_infinity=False,
                                                                               allow_subnormal=False))


def same(a: TensorStatistics, b: TensorStatistics) -> bool:
    fields = [f for f in TensorStatistics.__dataclass_fields__]
    return all(np.array_equal(getattr(a, f), getattr(b, f)) if isinstance(getattr(a, f), np.ndarray) else getattr(a, f) == getattr(b, f)
               for f in fields)


@given(vectors)
def test_exact_answers_are_numpys(x: Values) -> None:
    seen = TensorStatistics.of(x)
    assert (seen.count, seen.zeros) == (x.size, int((x == 0).sum()))
    assert (seen.minimum, seen.maximum) == (x.min(), x.max())
    assert (seen.low_sample, seen.high_sample) == (int(np.argmin(x)), int(np.argmax(x)))
    assert seen.constant == (len(set(x.tolist())) == 1)
    wide = x.astype(np.float64)
    assert seen.mean == pytest.approx(wide.mean(), rel=1e-12, abs=1e-13 * np.abs(wide).mean())
    assert seen.variance == pytest.approx(wide.var(), rel=1e-9, abs=1e-12 * (wide**2).mean())


@given(normal_vectors, st.floats(0, 1))
def test_quantiles_are_numpys_within_a_cell(x: Values, q: float) -> None:
    seen = TensorStatistics.of(x)
    order = np.sort(x.astype(np.float64))
    rank = q * (x.size - 1)
    neighbours = np.abs(order[[int(rank), min(int(rank) + 1, x.size - 1)]])
    exact = order[int(rank)] + (rank - int(rank)) * (order[min(int(rank) + 1, x.size - 1)] - order[int(rank)])
    assert abs(seen.quantile(q) - exact) <= RESOLUTION * neighbours.max() * (1 + 1e-9)
    assert (seen.quantile(0.0), seen.quantile(1.0)) == (x.min(), x.max())


@pytest.mark.parametrize("scale", [1e-30, 1e-3, 1.0, 1e30])
def test_resolution_does_not_depend_on_the_magnitude(scale: float) -> None:
    x = (np.random.default_rng(1).lognormal(0, 3, 20_001) * scale).astype(np.float32)
    seen = TensorStatistics.of(x)
    for q in (0.001, 0.1, 0.5, 0.9, 0.999, 0.9999):
        assert seen.quantile(q) == pytest.approx(float(np.quantile(x.astype(np.float64), q)), rel=RESOLUTION)


@given(hnp.arrays(np.float32, st.tuples(st.integers(2, 6), st.integers(1, 3), st.integers(1, 9)), elements=finite), st.randoms())
@settings(max_examples=60)
def test_no_answer_depends_on_batches_or_on_the_order_of_merging(x: Values, random: Any) -> None:
    whole = TensorStatistics.of(x)
    cuts = sorted(random.sample(range(1, len(x)), random.randint(0, len(x) - 1)))
    parts = [TensorStatistics.of(part, first=first) for first, part in zip([0, *cuts], np.split(x, cuts), strict=True)]
    random.shuffle(parts)
    assert same(merge(parts), whole)
    middle = len(parts) // 2
    if middle:
        assert same(merge(parts[middle:]).merged(merge(parts[:middle])), whole)     # another bracketing
    assert same(whole.merged(TensorStatistics.empty("")), whole)


@given(vectors)
def test_histogram_and_running_count_agree_with_the_values(x: Values) -> None:
    seen = TensorStatistics.of(x)
    centres, counts = seen.histogram()
    assert counts.sum() == x.size
    assert np.all(np.diff(centres) > 0) and x.min() <= centres[0] and centres[-1] <= x.max()
    low, high = edges(code_of(x))
    cuts = np.unique(np.concatenate([low, high]))
    cuts = cuts[(cuts > x.min()) & (cuts < x.max())]
    # negative cells hold their lower edge in magnitude, so "smaller" and "not larger" are the two sides of an edge
    under, upto = (x[:, None] < cuts).sum(axis=0), (x[:, None] <= cuts).sum(axis=0)
    assert np.all((seen.below(cuts) >= under - 1e-9) & (seen.below(cuts) <= upto + 1e-9))
    assert seen.below(np.array([-np.inf, np.inf])).tolist() == [0, x.size]


@given(finite)
def test_a_value_lies_in_its_cell_and_the_cell_is_narrow(value: float) -> None:
    x = np.array([value], np.float32)
    low, high = edges(code_of(x))
    assert low[0] <= x[0] <= high[0]
    if abs(value) >= np.finfo(np.float32).tiny:
        assert high[0] - low[0] <= RESOLUTION * abs(value)


def test_codes_ascend_with_the_reals() -> None:
    patterns = np.arange(1 << 19)
    ordered = np.sort(codes(patterns)[(patterns & 0x3FFFF) < 255 << 10])
    low, high = edges(ordered)
    assert np.all(low[1:] >= high[:-1]) and np.all(low <= high)


def test_non_finite_values_are_counted_apart() -> None:
    x = np.array([[1, np.nan, -3], [np.inf, -np.inf, np.nan]], np.float32)
    seen = TensorStatistics.of(x)
    assert (seen.count, seen.nan, seen.positive_inf, seen.negative_inf, seen.non_finite) == (2, 2, 1, 1, 4)
    assert (seen.minimum, seen.maximum, seen.mean) == (-3.0, 1.0, -1.0)
    assert seen.sample_low.tolist() == [-3.0, np.inf] and seen.sample_high.tolist() == [1.0, -np.inf]


def test_float16_overflow_is_counted_where_rounding_reaches_infinity() -> None:
    x = np.array([65504, 65519.99, 65520, -70000, 1e30, 1], np.float32)
    with np.errstate(over="ignore"):
        rounded = int(np.isinf(x.astype(np.float16)).sum())
    assert TensorStatistics.of(x).fp16_overflows == rounded == 3


def test_channels_lie_on_axis_one_and_are_dropped_when_their_number_varies() -> None:
    rng = np.random.default_rng(2)
    x = rng.normal(size=(3, 5, 70, 70)).astype(np.float32)      # channels longer than one block of the compiled loop
    seen = TensorStatistics.of(x)
    assert np.array_equal(seen.channel_low, x.min(axis=(0, 2, 3)))  # type: ignore[arg-type]
    assert np.array_equal(seen.channel_high, x.max(axis=(0, 2, 3)))  # type: ignore[arg-type]
    assert np.array_equal(seen.sample_high, x.max(axis=(1, 2, 3)))
    other = TensorStatistics.of(x[:, :4], first=3)
    assert seen.merged(other).channel_low.size == other.merged(seen).channel_low.size == 0  # type: ignore[union-attr]
    assert TensorStatistics.of(x[:, :, 0, 0]).channel_low.size == 0                         # type: ignore[union-attr]


@pytest.mark.parametrize("dtype", [np.float16, np.float64])
def test_other_float_types_count_as_float32(dtype: type[np.floating[Any]]) -> None:
    x = np.random.default_rng(3).normal(size=500).astype(dtype)
    assert same(TensorStatistics.of(x), TensorStatistics.of(x.astype(np.float32)))


def test_memory_order_does_not_matter() -> None:
    x = np.random.default_rng(4).normal(size=(4, 6, 8)).astype(np.float32)
    assert same(TensorStatistics.of(x[:, ::-1, ::2]), TensorStatistics.of(x[:, ::-1, ::2].copy()))
    assert same(TensorStatistics.of(x.transpose(0, 2, 1)), TensorStatistics.of(np.ascontiguousarray(x.transpose(0, 2, 1))))


def test_extremes_of_samples_are_bounded_to_the_first() -> None:
    parts = [TensorStatistics.of(np.full(PER_SAMPLE, v, np.float32), first=first) for v, first in ((2.0, PER_SAMPLE), (1.0, 0))]
    both = merge(parts)
    assert both.samples.tolist() == list(range(PER_SAMPLE)) and both.sample_high.max() == 1.0


def test_nothing_seen_is_refused_by_name() -> None:
    nothing = TensorStatistics.empty("act")
    assert nothing.count == 0 and not nothing.constant
    with pytest.raises(NotObserved, match="'act' was never observed"):
        nothing.quantile(0.5)


@given(st.lists(st.floats(allow_nan=False, allow_infinity=False, max_value=1e300, min_value=-1e300), min_size=1, max_size=20))
def test_sums_in_units_are_exact(values: list[float]) -> None:
    from math import fsum

    assert real(sum(units(v) for v in values)) == fsum(values)
