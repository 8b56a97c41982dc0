"""The calibrators that look at samples: moving-average, extremes, order-preserving, against each sample in plain Python."""

from __future__ import annotations

import itertools
import statistics as python_statistics
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray

from qbench.affine import Affine, Range, Scheme, affine, dequantize, quantize
from qbench.calibrators import make
from qbench.statistics import TensorStatistics
from qbench.statistics.sketch import merge

Values = NDArray[np.float32]
tables = hnp.arrays(np.float32, st.tuples(st.integers(1, 9), st.integers(1, 5)),
                    elements=st.one_of(st.floats(-1e6, 1e6, width=32, allow_subnormal=False), st.sampled_from([np.nan, np.inf, -np.inf])))


def finite_extremes(x: Values) -> list[tuple[float, float]]:
    """(minimum, maximum) of the finite values of each sample that has one."""
    rows = [[float(v) for v in row.ravel() if np.isfinite(v)] for row in x]
    return [(min(row), max(row)) for row in rows if row]


@given(tables, st.sampled_from([0.0, 0.5, 0.9, 0.99]))
def test_moving_average_follows_the_samples_in_their_order(x: Values, momentum: float) -> None:
    found = finite_extremes(x)
    if not found:
        return
    low, high = found[0]
    for a, b in found[1:]:
        low, high = momentum * low + (1 - momentum) * a, momentum * high + (1 - momentum) * b
    answer = make(f"moving-average:momentum={momentum}").range(TensorStatistics.of(x), 256)
    assert (answer.low, answer.high) == pytest.approx((min(low, 0.0), max(high, 0.0)), rel=1e-9, abs=1e-9)


def test_moving_average_goes_by_the_index_not_by_the_order_of_counting() -> None:
    parts = [TensorStatistics.of(np.full((1, 3), v, np.float32), first=i) for i, v in enumerate((8.0, 4.0, 2.0, 0.5))]
    found = make("moving-average:momentum=0.5").range(merge([parts[i] for i in (2, 0, 3, 1)]), 256)
    assert found == Range(0.0, 0.5 * (0.5 * (0.5 * (8.0 + 4.0) + 2.0) + 0.5))


@given(tables, st.sampled_from(["mean", "median"]), st.integers(1, 4))
def test_extremes_are_those_of_a_typical_batch(x: Values, of: str, batch: int) -> None:
    batches = [finite_extremes(x[i : i + batch]) for i in range(0, len(x), batch)]
    lows, highs = [min(a for a, _ in b) for b in batches if b], [max(h for _, h in b) for b in batches if b]
    if not lows:
        return
    middle: Any = python_statistics.fmean if of == "mean" else python_statistics.median
    answer = make(f"extremes:of={of},batch={batch}").range(TensorStatistics.of(x), 256)
    assert (answer.low, answer.high) == pytest.approx((min(middle(lows), 0.0), max(middle(highs), 0.0)), rel=1e-9, abs=1e-9)


@pytest.mark.parametrize("text", ["moving-average", "extremes", "extremes:of=median,batch=4"])
def test_one_odd_sample_does_not_set_the_range(text: str) -> None:
    x = np.random.default_rng(0).normal(size=(64, 200)).astype(np.float32)
    x[20] *= 100
    assert make(text).range(TensorStatistics.of(x), 256).high < 0.1 * float(x.max())


def heads(kind: str, samples: int = 400) -> Values:
    """Logits of 20 classes."""
    rng = np.random.default_rng(len(kind))
    if kind == "close":                                 # winners a little ahead, far below them a heavy tail
        x = -30 * rng.exponential(size=(samples, 20))
        x[:, :2] = rng.uniform(4, 8, (samples, 1)) + rng.exponential(0.06, (samples, 2))
    elif kind == "plain":
        x = 3 * rng.normal(size=(samples, 20))
    elif kind == "log softmax":
        x = 3 * rng.normal(size=(samples, 20))
        x = x - np.log(np.exp(x).sum(axis=1, keepdims=True))
    else:                                               # probabilities
        x = np.exp(3 * rng.normal(size=(samples, 20)))
        x = x / x.sum(axis=1, keepdims=True)
    return rng.permuted(x, axis=1).astype(np.float32)


HEADS = ["close", "plain", "log softmax", "softmax"]


def winners_kept(x: Values, coded: Affine) -> int:
    """Samples whose largest value has a code of its own, above all others."""
    codes = quantize(x, coded).astype(np.int64)
    best = codes[np.arange(len(x)), x.argmax(axis=1)]
    return int(((codes >= best[:, None]).sum(axis=1) == 1).sum())


def error(x: Values, coded: Affine) -> float:
    return float(np.mean((dequantize(quantize(x, coded), coded).astype(np.float64) - x) ** 2))


@pytest.mark.parametrize("kind", HEADS)
@pytest.mark.parametrize("scheme", [Scheme(8, False, False), Scheme(8, True, True, narrow=True), Scheme(4, True, False)],
                         ids=lambda s: f"{s.levels}")
def test_order_preserving_keeps_as_many_winners_as_any_range_of_a_dense_grid(kind: str, scheme: Scheme) -> None:
    x = heads(kind)
    seen = TensorStatistics.of(x)
    coded = affine(make("order-preserving").range(seen, scheme.levels, scheme.symmetric), scheme)
    row = np.geomspace(1 / 200, 1.0, 40)
    lows = np.append(0.0, min(0.0, seen.minimum) * row) if seen.minimum < 0 else [0.0]
    highs = np.append(0.0, max(0.0, seen.maximum) * row) if seen.maximum > 0 else [0.0]
    rivals = [affine(Range(a, b), scheme) for a, b in itertools.product(lows, highs) if a < b]
    assert winners_kept(x, coded) >= max(winners_kept(x, r) for r in rivals) - 0.005 * len(x)


def test_order_preserving_keeps_more_winners_than_mse() -> None:
    x = heads("close")
    seen = TensorStatistics.of(x)
    ours, usual = (winners_kept(x, affine(make(text).range(seen, 256), Scheme(8, False, False))) for text in ("order-preserving", "mse"))
    assert ours > usual + 0.2 * len(x)


@pytest.mark.parametrize("symmetric", [False, True])
def test_where_every_winner_is_kept_the_squared_error_decides(symmetric: bool) -> None:
    rng = np.random.default_rng(3)
    x = rng.normal(size=(100, 10)).astype(np.float32)
    x[np.arange(100), rng.integers(0, 10, 100)] += 8.0
    seen, scheme = TensorStatistics.of(x), Scheme(8, True, symmetric, narrow=symmetric)
    ours, usual = (affine(make(text).range(seen, scheme.levels, symmetric), scheme) for text in ("order-preserving", "mse"))
    assert winners_kept(x, ours) == len(x) and error(x, ours) <= 1.001 * error(x, usual)


@pytest.mark.parametrize("shape", [(50, 4, 10), (500, 1), (2000,)])
def test_order_preserving_answers_as_mse_for_other_tensors(shape: tuple[int, ...]) -> None:
    seen = TensorStatistics.of(np.random.default_rng(4).normal(size=shape).astype(np.float32))
    for symmetric in (False, True):
        assert make("order-preserving").range(seen, 255, symmetric) == make("mse").range(seen, 255, symmetric)


@pytest.mark.parametrize("rows", [[[1, 1, 0], [2, 2, 2]], [[np.nan, 3, np.nan], [np.inf, 1, -np.inf]]])
def test_samples_without_a_winner_have_no_say(rows: list[list[float]]) -> None:
    seen = TensorStatistics.of(np.array(rows, np.float32))
    assert make("order-preserving").range(seen, 256) == make("mse").range(seen, 256)
