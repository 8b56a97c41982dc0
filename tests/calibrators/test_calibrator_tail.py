"""mse:tail=exponential, judged by samples that it has not seen."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from qbench.affine import Scheme, affine, dequantize, quantize
from qbench.calibrators import make
from qbench.calibrators.tail import Tail, tail_of
from qbench.statistics import TensorStatistics

Values = NDArray[np.float32]
PLAIN, WIDE = make("mse"), make("mse:tail=exponential")
CODES, CENTRED = Scheme(8, False, False), Scheme(8, True, True)
SHAPES = ("exponential", "normal", "laplace", "gamma")


def drawn(kind: str, rng: np.random.Generator, shape: tuple[int, ...]) -> Values:
    values = rng.gamma(2.0, size=shape) if kind == "gamma" else getattr(rng, kind)(size=shape)
    return values.astype(np.float32)


def fresh_error(kind: str, samples: int, values: int, scheme: Scheme) -> tuple[float, float]:
    """Mean squared error on new samples, without and with the tail, over 30 calibration sets."""
    total = np.zeros(2)
    for seed in range(30):
        rng = np.random.default_rng(seed)
        seen, fresh = TensorStatistics.of(drawn(kind, rng, (samples, values))), drawn(kind, rng, (2000, values))
        for i, how in enumerate((PLAIN, WIDE)):
            codes = affine(how.range(seen, scheme.levels, scheme.symmetric), scheme)
            total[i] += float(((dequantize(quantize(fresh, codes), codes) - fresh) ** 2).mean())
    return float(total[0]), float(total[1])


@pytest.mark.parametrize("scheme", [CODES, CENTRED], ids=["affine", "symmetric"])
@pytest.mark.parametrize("kind", SHAPES)
def test_few_values_lose_less_on_new_samples(kind: str, scheme: Scheme) -> None:
    plain, wide = fresh_error(kind, 16, 10, scheme)
    assert wide < 0.6 * plain


@pytest.mark.parametrize("kind", SHAPES)
def test_many_values_keep_the_range_of_what_was_seen(kind: str) -> None:
    seen = TensorStatistics.of(drawn(kind, np.random.default_rng(3), (32, 20_000)))
    one, two = PLAIN.range(seen, 256), WIDE.range(seen, 256)
    assert (two.low, two.high) == pytest.approx((one.low, one.high), rel=0.01)


@given(st.integers(8, 40), st.integers(1, 30), st.integers(0, 99))
def test_what_ends_at_one_value_in_every_sample_is_not_widened(samples: int, values: int, seed: int) -> None:
    """Behind a Relu6, or a Sigmoid that saturates."""
    x = np.random.default_rng(seed).uniform(0.0, 9.0, (samples, values)).astype(np.float32)
    x[:, 0] = 9.0
    x = np.minimum(x, 6.0)
    assert WIDE.range(TensorStatistics.of(x), 256) == PLAIN.range(TensorStatistics.of(x), 256)


@given(st.integers(1, 30), st.integers(1, 30), st.integers(0, 99), st.booleans())
def test_never_narrower(samples: int, values: int, seed: int, symmetric: bool) -> None:
    seen = TensorStatistics.of(np.random.default_rng(seed).standard_t(3, (samples, values)).astype(np.float32))
    one, two = PLAIN.range(seen, 256, symmetric), WIDE.range(seen, 256, symmetric)
    assert two.low <= one.low and one.high <= two.high
    assert samples >= 8 or one == two


def test_the_expected_excess_is_that_of_exponential_values() -> None:
    """Against a million draws."""
    draws = np.random.default_rng(0).exponential(2.0, 1_000_000)
    found = Tail(0.25, 2.0 * np.log(4.0), 2.0).excess(np.array([5.0, 8.0, 12.0]))
    assert found == pytest.approx([float((np.maximum(draws - t, 0.0) ** 2).mean()) for t in (5.0, 8.0, 12.0)], rel=0.05)


def test_the_tail_of_known_values() -> None:
    found = tail_of(np.array([np.inf, -np.inf, *range(1, 13)], np.float64))
    assert (found.share, found.start, found.mean) == (3 / 12, 9.0, 2.0)
    assert tail_of(np.arange(7.0)).excess(np.array([0.0]))[0] == 0.0
