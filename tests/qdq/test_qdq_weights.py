"""Scales, zero points and codes of weights against the scalar arithmetic of `qbench.affine`, slice by slice."""

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from models import Array

from qbench.affine import Affine, Range, Scheme, affine, dequantize, quantize
from qbench.qdq.layout import Slices, per_tensor
from qbench.qdq.weights import (
    INT32_MAX,
    AddedBias,
    Grid,
    bias_codes,
    codes_of,
    extremes,
    grid,
    scales_of,
    zero_points_of,
)

NARROW = Scheme(8, True, True, True)
WIDTHS = [2, 3, 4, 7, 8, 12, 16]
schemes = st.builds(Scheme, st.sampled_from(WIDTHS), st.booleans(), st.booleans(), st.booleans(), st.booleans())
values = st.floats(-(2.0**127), 2.0**127, width=32) | st.floats(-2, 2, width=32) | st.just(0.0)
tensors = hnp.arrays(np.float32, hnp.array_shapes(min_dims=1, max_dims=4, min_side=0, max_side=4), elements=values)


def channels(shape: tuple[int, ...], axis: int) -> Slices:
    return Slices(shape, (axis,), shape, (shape[axis],), axis)


def grid_of(data: Array, slices: Slices, scheme: Scheme, *args: Any, **kwargs: Any) -> Grid:
    return grid(*extremes(data, slices), slices, scheme, *args, **kwargs)


@settings(max_examples=300, deadline=None)
@given(data=tensors, scheme=schemes, which=st.integers(-1, 3))
def test_every_slice_is_quantized_as_if_it_were_alone(data: Array, scheme: Scheme, which: int) -> None:
    """The oracle: a loop over slices with the scalar functions; zero-size, all-zero, huge and subnormal slices included."""
    axis = which if which < data.ndim else -1
    slices = per_tensor(data.shape) if axis < 0 else channels(data.shape, axis)
    found = grid_of(data, slices, scheme)
    codes = codes_of(data, found)
    assert codes.shape == data.shape and codes.dtype == found.zero_points.dtype == scheme.dtype and found.scales.dtype == np.float32
    for i, part in enumerate([data] if axis < 0 else np.moveaxis(data, axis, 0)):
        a = affine(Range(float(part.min(initial=0.0)), float(part.max(initial=0.0))), scheme)
        assert (found.scales.reshape(-1)[i], found.zero_points.reshape(-1)[i]) == (a.scale, a.zero_point)
        assert np.array_equal((codes if axis < 0 else np.moveaxis(codes, axis, 0)[i]), quantize(part, a))


@given(data=tensors, scheme=schemes)
def test_reals_come_back_within_half_a_step(data: Array, scheme: Scheme) -> None:
    """Full-range symmetric codes clip +absmax by half a step more; asymmetric ones shift by the rounding of the zero point."""
    found = grid_of(data, per_tensor(data.shape), scheme)
    a = Affine(float(found.scales), int(found.zero_points), scheme)
    back = dequantize(codes_of(data, found), a).astype(np.float64)
    assert (np.abs(back - data) <= (1.0 + 2.0**-6) * a.scale).all()
    assert not dequantize(codes_of(np.zeros_like(data), found), a).any()


def test_narrow_and_full_range_give_the_numbers_of_b11() -> None:
    data = np.array([[-1.27, 0.0, 1.27], [-0.5, 0.25, 1.27]], np.float32)
    narrow, full = (grid_of(data, channels(data.shape, 0), s) for s in (NARROW, Scheme(8, True, True)))
    assert np.array_equal(narrow.scales, np.full(2, 0.01, np.float32))
    assert codes_of(data, narrow).tolist() == [[-127, 0, 127], [-50, 25, 127]]
    assert full.scales == pytest.approx([0.00996078] * 2, abs=1e-8)
    assert codes_of(data, full)[:, 2].tolist() == [127, 127] and 127 * full.scales[0] == pytest.approx(1.26502, abs=1e-5)


def test_narrow_codes_leave_the_lowest_one_out_in_every_width() -> None:
    data = np.linspace(-1, 1, 2001, dtype=np.float32)
    for bits in range(2, 17):
        for signed in (True, False):
            found = grid_of(data, per_tensor(data.shape), Scheme(bits, signed, True, narrow=True))
            codes = codes_of(data, found).astype(int)
            lowest = -(1 << (bits - 1)) if signed else 0
            assert codes.min() == lowest + 1 and codes.max() == lowest + (1 << bits) - 1
            if bits <= 8:                                          # every code is hit: negation is exact
                assert np.array_equal(codes - int(found.zero_points), -(codes - int(found.zero_points))[::-1])


def test_four_bit_codes_lie_in_eight_bit_storage() -> None:
    data = np.linspace(-3, 5, 100, dtype=np.float32)
    codes = codes_of(data, grid_of(data, per_tensor(data.shape), Scheme(4, True, False)))
    assert codes.dtype == np.int8 and codes.min() == -8 and codes.max() == 7


@given(low=st.lists(st.floats(-1e6, 0, width=32), min_size=1, max_size=5), high=st.floats(0, 1e6, width=32), scheme=schemes)
def test_power_of_two_scales_are_the_smallest_that_cover(low: list[float], high: float, scheme: Scheme) -> None:
    lows = np.array(low)
    plain = Scheme(scheme.bits, scheme.signed, scheme.symmetric, scheme.narrow)
    power = Scheme(scheme.bits, scheme.signed, scheme.symmetric, scheme.narrow, power_of_two=True)
    exact, rounded = (scales_of(lows, np.full(len(low), high), s).astype(np.float64) for s in (plain, power))
    assert all(math.frexp(s)[0] == 0.5 for s in rounded)
    widths = (lows != 0.0) | (high != 0.0)
    assert ((exact <= rounded) & ((rounded < 2 * exact) | ~widths)).all()


def test_deltas_are_added_to_the_nearest_codes_and_clipped() -> None:
    data = np.array([[-1.27, 0.004, 1.27]], np.float32)
    found = grid_of(data, per_tensor(data.shape), NARROW)
    assert codes_of(data, found, np.array([[-1, 1, 1]], np.int8)).tolist() == [[-127, 1, 127]]
    assert codes_of(data, found, np.array([[1, -1, -1]], np.int8)).tolist() == [[-126, -1, 126]]


@pytest.mark.parametrize("scheme", [NARROW, Scheme(8, False, False), Scheme(16, True, True, True, True), Scheme(4, True, False, power_of_two=True)])
def test_the_guard_raises_each_scale_by_its_own_bias(scheme: Scheme) -> None:
    """B08: a scale holds |bias| <= (2^31 - 1) * step * scale, and is raised no further than that (or the next power of two)."""
    data = np.array([1e-8, -1e-8, 0.5, 0.0], np.float32).reshape(4, 1)
    bias = np.array([5.0, -4.5, 1.0, 7.0], np.float32)
    slices, step = channels(data.shape, 0), 2 / 255
    free = grid_of(data, slices, scheme)
    held = grid_of(data, slices, scheme, AddedBias(np.abs(bias), step, 8))
    least = np.abs(bias.astype(np.float64)) / (step * INT32_MAX)
    expected = np.maximum(free.scales, np.exp2(np.ceil(np.log2(least))) if scheme.power_of_two else least)
    assert held.scales == pytest.approx(expected, rel=3e-6)
    assert (held.scales.astype(np.float64) * step * INT32_MAX >= np.abs(bias)).all()
    assert held.widened == pytest.approx(float((expected / free.scales).max()), rel=3e-6)
    codes, total = bias_codes(bias, held.scales, step)
    assert (np.abs(codes * total.astype(np.float64) - bias) <= total / 2 + 2e-6 * np.abs(bias)).all()
    assert np.array_equal(held.zero_points, zero_points_of(*extremes(data, slices), held.scales, scheme))


def test_the_numbers_of_b08() -> None:
    data, bias = np.array([1e-8, -1e-8], np.float32).reshape(2, 1), AddedBias(np.array([5.0, 4.5]), 2 / 255, 8)
    assert grid_of(data, per_tensor(data.shape), NARROW, bias).scales == pytest.approx(2.9686e-7, rel=1e-4)
    per_channel = grid_of(data, channels(data.shape, 0), NARROW, bias).scales
    assert per_channel * (2 / 255) == pytest.approx([2.3283e-9, 2.0955e-9], rel=1e-4)


def test_a_clipped_bias_does_not_wrap_without_the_guard() -> None:
    data, bias = np.array([[1e-8]], np.float32), np.array([5.0], np.float32)
    found = grid_of(data, per_tensor(data.shape), NARROW, AddedBias(bias, 2 / 255, 8), guard=False)
    codes, total = bias_codes(bias, found.scales, 2 / 255)
    assert codes.tolist() == [INT32_MAX] and codes[0] * float(total) == pytest.approx(0.0013, abs=1e-4)


@settings(deadline=None)
@given(bias=st.floats(2.0**-20, 1e4), step=st.floats(2.0**-20, 1e4), bits=st.sampled_from([8, 16]), power=st.booleans())
def test_channels_of_zeros_keep_their_bias(bias: float, step: float, bits: int, power: bool) -> None:
    """B04 d: whatever the input's scale, the bias is held to half a step of an output that is as large as the bias."""
    scheme = Scheme(8, True, True, True, power)
    data = np.zeros((1, 3), np.float32)
    found = grid_of(data, channels(data.shape, 0), scheme, AddedBias(np.array([bias]), step, bits))
    codes, total = bias_codes(np.array([bias]), found.scales, step)
    assert abs(float(codes[0]) * float(total[0]) - bias) <= bias * (2.0 ** -(bits + 1) + 1e-6)
    assert not codes_of(data, found).any()
    if bias / step > 2.0**bits:
        assert found.scales[0] >= 1.0                               # the convention, as long as it is fine enough
