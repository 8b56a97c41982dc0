"""Affine arithmetic: worked examples of the bug cases, and laws."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from qbench.affine import Affine, Range, Scheme, affine, dequantize, quantize

UINT8 = Scheme(8, signed=False, symmetric=False)
NARROW = Scheme(8, signed=True, symmetric=True, narrow=True)
FULL = Scheme(8, signed=True, symmetric=True)
SCHEMES = [UINT8, NARROW, FULL, Scheme(8, True, False), Scheme(16, False, False), Scheme(16, True, True), Scheme(8, True, True, True, True),
           Scheme(8, False, True), Scheme(8, False, True, True), Scheme(4, True, True, True), Scheme(2, False, False), Scheme(12, True, False, False, True)]
any_scheme = st.builds(Scheme, st.integers(2, 16), st.booleans(), st.booleans(), st.booleans(), st.booleans())
reals = st.floats(-1e6, 1e6, allow_nan=False, width=32)


def test_narrow_symmetric_is_exact_where_full_range_clips() -> None:
    """B11: [-1.27, 0, 1.27] is exact in -127..127; the full range misses +1.27 by 0.00498."""
    x = np.array([-1.27, 0.0, 1.27], np.float32)
    narrow, full = affine(Range(-1.27, 1.27), NARROW), affine(Range(-1.27, 1.27), FULL)
    assert quantize(x, narrow).tolist() == [-127, 0, 127]
    assert narrow.scale == np.float32(0.01)
    assert full.scale == pytest.approx(0.00996078, abs=1e-8)
    assert dequantize(quantize(x, full), full)[2] == pytest.approx(1.26502, abs=1e-5)


@pytest.mark.parametrize(("low", "high", "scale", "zero_point"), [
    (0.0, 0.0, 1.0, 0), (3.5, 3.5, 3.5 / 255, 0), (-2.0, -2.0, 2 / 255, 255), (0.0, 1.0, 1 / 255, 0)])
def test_constant_tensors_have_a_finite_scale(low: float, high: float, scale: float, zero_point: int) -> None:
    """B04 a-c, and the softmax range of B12."""
    found = affine(Range(low, high), UINT8)
    assert found.scale == pytest.approx(scale, rel=1e-6)
    assert found.zero_point == zero_point
    assert dequantize(quantize(np.array([low, high], np.float32), found), found) == pytest.approx([low, high], abs=1e-6)


def test_zero_tensor_of_int8_has_zero_point_zero() -> None:
    assert affine(Range(0.0, 0.0), Scheme(8, True, False)) == Affine(1.0, 0, Scheme(8, True, False))


@given(scheme=any_scheme, low=st.floats(-1.7e308, 0), high=st.floats(0, 1.7e308))
def test_a_scale_is_always_one_that_float32_holds(scheme: Scheme, low: float, high: float) -> None:
    """Whatever a calibrator comes up with: finite, normal, positive; zero is a code; a symmetric zero point is fixed."""
    a = affine(Range(low, high), scheme)
    assert np.float32(a.scale) == a.scale and np.finfo(np.float32).tiny <= a.scale <= np.finfo(np.float32).max
    assert scheme.qmin <= a.zero_point <= scheme.qmax
    if scheme.symmetric:
        assert a.zero_point == (0 if scheme.signed else 1 << (scheme.bits - 1)) == scheme.centre
    if scheme.power_of_two:
        assert np.log2(a.scale) % 1 == 0


@pytest.mark.parametrize(("scheme", "qmin", "qmax"), [
    (NARROW, -127, 127), (FULL, -128, 127), (UINT8, 0, 255), (Scheme(8, False, True, True), 1, 255), (Scheme(4, True, True, True), -7, 7),
    (Scheme(16, True, True, True), -32767, 32767), (Scheme(2, False, False), 0, 3)])
def test_codes_of_a_scheme(scheme: Scheme, qmin: int, qmax: int) -> None:
    assert (scheme.qmin, scheme.qmax, scheme.levels) == (qmin, qmax, qmax - qmin + 1)


def test_offsets_of_formats_that_count_from_zero() -> None:
    """B11: zero point 0 of int8 is offset -128; uint8's zero point 3 is offset -3."""
    assert affine(Range(-1.27, 1.27), NARROW).offset == -128
    assert Affine(0.5, 3, UINT8).offset == -3 and Affine(0.5, -125, Scheme(8, True, False)).offset == -3


@given(low=reals, high=reals, scheme=any_scheme)
def test_codes_counted_from_zero_are_the_same_reals_bit_for_bit(low: float, high: float, scheme: Scheme) -> None:
    a = affine(Range(min(low, high), max(low, high)), scheme)
    lowest = -(1 << (scheme.bits - 1)) if scheme.signed else 0
    for q in (scheme.qmin, a.zero_point, scheme.qmax):
        assert (q - lowest + a.offset) * a.scale == (q - a.zero_point) * a.scale


@given(low=reals, high=reals, scheme=st.sampled_from(SCHEMES), position=st.floats(0, 1))
def test_round_trip_stays_within_half_a_step(low: float, high: float, scheme: Scheme, position: float) -> None:
    seen = Range(min(low, high), max(low, high))
    a = affine(seen, scheme)
    hull = seen.including_zero()
    x = np.array([hull.low + position * (hull.high - hull.low)], np.float32)
    back = dequantize(quantize(x, a), a)
    step = 1.0 if scheme.symmetric and not scheme.narrow else 0.5       # full range: absmax of one sign clips by half a step more
    assert a.scale > 0 and np.isfinite(a.scale)
    assert abs(float(back[0]) - float(x[0])) <= (step + 0.001 + 2.0**-7) * a.scale


@given(low=reals, high=reals, scheme=st.sampled_from(SCHEMES))
def test_zero_is_exact(low: float, high: float, scheme: Scheme) -> None:
    """Padding and ReLU need it."""
    a = affine(Range(min(low, high), max(low, high)), scheme)
    assert dequantize(quantize(np.zeros(1, np.float32), a), a)[0] == 0.0


def test_rounding_is_half_to_even() -> None:
    a = Affine(1.0, 0, FULL)
    assert quantize(np.array([0.5, 1.5, 2.5, -0.5, -1.5], np.float32), a).tolist() == [0, 2, 2, 0, -2]


@given(low=reals, high=reals)
def test_power_of_two_scale_never_shrinks_the_range(low: float, high: float) -> None:
    scheme = Scheme(8, True, True, True, power_of_two=True)
    seen = Range(min(low, high), max(low, high))
    a = affine(seen, scheme)
    assert np.log2(a.scale) == round(np.log2(a.scale))
    assert a.range.magnitude >= seen.magnitude or seen.magnitude == 0.0


def test_a_range_refuses_nonsense() -> None:
    with pytest.raises(ValueError, match="finite low <= high"):
        Range(1.0, 0.0)
    with pytest.raises(ValueError, match="finite low <= high"):
        Range(0.0, float("nan"))
