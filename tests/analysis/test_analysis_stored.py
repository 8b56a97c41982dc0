"""How tensors lie in integers: codes read back from the file, clipping and its noise, histograms; against numpy on the raw values."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from analysis_cases import Case, case, chain, noise_feeds, residual
from hypothesis import given
from hypothesis import strategies as st
from models import NPU, node, observe, plan, prepare, sqnr_db
from models import model as build

from qbench.affine import Range, Scheme, affine, dequantize, quantize
from qbench.analysis.stored import BINS, Codes, _noise, histogram, written_codes
from qbench.network import Precision
from qbench.plan import Granularity
from qbench.qdq import write
from qbench.statistics import TensorStatistics


def narrowed(factor: float) -> Case:
    """The chain with the range of tensor "b" cut to a share of what occurs."""
    found = case(chain(), noise_feeds((3, 10, 10)))
    ranges = dict(found.plan.ranges)
    ranges["b"] = Range(ranges["b"].low * factor, ranges["b"].high * factor)
    return replace(found, plan=replace(found.plan, ranges=ranges))


def test_codes_are_those_of_the_plan() -> None:
    found = case(residual(), noise_feeds((3, 8, 8)))
    for s in found.analysis.stored:
        a = affine(found.plan.ranges[s.group], NPU["int8"].activation)
        assert [s.step, s.zero_point] == pytest.approx([a.scale, a.zero_point])
        assert [s.low, s.high] == pytest.approx([a.range.low, a.range.high])
        assert s.bits == 8


def test_one_scale_for_all_shows_in_every_tensor() -> None:
    found = case(residual(), noise_feeds((3, 8, 8)), granularity=Granularity.GLOBAL)
    assert len({(s.step, s.zero_point) for s in found.analysis.stored}) == 1


def test_a_tensor_that_two_precisions_read_has_both_codes_and_the_narrow_ones_count() -> None:
    prepared = prepare(chain())
    feeds = noise_feeds((3, 10, 10))
    mixed = plan(prepared, observe(prepared, feeds))
    mixed = replace(mixed, precision={**mixed.precision, "conv2": Precision.INT16}, schemes=dict(NPU))
    codes = written_codes(prepared.network, write(prepared, mixed))
    assert [c.bits for c in codes["a"]] == [8, 16]           # conv1 writes 8 bits, conv2 reads 16
    assert [c.bits for c in codes["b"]] == [8, 16]
    assert [c.bits for c in codes["x"]] == [8]
    by_name = {s.tensor: s.bits for s in Case(prepared, mixed, feeds).analysis.stored}
    assert by_name["a"] == by_name["b"] == 8


def test_a_plan_in_float_stores_nothing() -> None:
    found = case(chain(), noise_feeds((3, 10, 10)), base=Precision.FP16)
    assert found.analysis.stored == () and found.analysis.weights == ()


def test_a_clip_of_the_users_own_is_not_taken_for_the_writers() -> None:
    nodes = [node("Clip", ["x", "lo", "hi"], ["c"], "clip"), node("Mul", ["c", "k"], ["y"], "scale")]
    consts = {"lo": np.array(-1.0, np.float32), "hi": np.array(1.0, np.float32), "k": np.array([3.0], np.float32)}
    found = case(build(nodes, {"x": ["N", 4]}, {"y": ["N", 4]}, consts), noise_feeds((4,), 64))
    stored = {s.tensor: s for s in found.analysis.stored}
    assert stored["x"].high == pytest.approx(found.plan.ranges["x"].high, rel=0.02)
    assert stored["c"].high <= 1.01 < stored["x"].high


def test_the_share_of_clipped_values_is_counted_on_the_sketch() -> None:
    found = narrowed(0.5)
    s = next(s for s in found.analysis.stored if s.tensor == "b")
    values = found.floats(["b"])["b"].ravel()
    expected = np.mean((values > s.high + s.step / 2) | (values < s.low - s.step / 2))
    assert expected > 1e-3
    assert s.clipped == pytest.approx(float(expected), rel=0.05)
    assert next(t for t in found.analysis.stored if t.tensor == "a").clipped == 0.0


def test_the_noise_of_a_stored_tensor_and_what_clipping_makes_of_it() -> None:
    found = narrowed(0.5)
    s = next(s for s in found.analysis.stored if s.tensor == "b")
    values = found.floats(["b"])["b"].ravel().astype(np.float64)
    a = affine(found.plan.ranges["b"], NPU["int8"].activation)
    made = dequantize(quantize(values.astype(np.float32), a), a)
    assert s.noise_db == pytest.approx(sqnr_db(values.astype(np.float32), made), abs=0.1)
    beyond = values > s.high + s.step / 2
    noise = (values - made)**2
    assert s.clip_noise == pytest.approx(noise[beyond].sum() / noise.sum(), abs=0.01)
    assert s.best_db > s.noise_db + 5 and s.best_high > s.high


@given(data=st.lists(st.floats(-50, 50, width=32), min_size=1, max_size=200), low=st.floats(-40, 0), high=st.floats(0.5, 40),
       bits=st.sampled_from([8, 16]))
def test_a_histogram_holds_every_value_once_and_spans_values_and_codes(data: list[float], low: float, high: float, bits: int) -> None:
    values = np.array(data, np.float32).reshape(1, -1)
    seen, reach = TensorStatistics.of(values, "t"), affine(Range(low, high), Scheme(bits, False, False)).range
    found = histogram(seen, reach)
    assert sum(found.counts) == seen.count
    assert len(found.counts) == BINS
    assert found.low <= min(values.min(), reach.low) and found.high >= max(values.max(), reach.high)


def test_a_histogram_of_a_constant_zero_is_one_bar() -> None:
    assert histogram(TensorStatistics.of(np.zeros((1, 5), np.float32), "t"), Range(0.0, 0.0)).counts == (5,)


@given(seed=st.integers(0, 50), bits=st.sampled_from([8, 16]), share=st.sampled_from([0.2, 0.5, 2.0]))
def test_noise_from_the_sketch_is_that_of_the_values(seed: int, bits: int, share: float) -> None:
    """Also for 16 bits, whose steps are finer than a cell of the sketch."""
    values = np.random.default_rng(seed).normal(size=20000).astype(np.float32)
    scheme = Scheme(bits, True, True)
    a = affine(Range(-4.5 * share, 4.5 * share), scheme)
    x, counts = TensorStatistics.of(values.reshape(1, -1), "t").histogram()
    noise, _ = _noise(x, counts, Codes(a.scale, a.zero_point, scheme.qmin, scheme.qmax))
    made = dequantize(quantize(values, a), a)
    expected = float(((values.astype(np.float64) - made)**2).sum())
    assert noise == pytest.approx(expected, rel=0.05)
