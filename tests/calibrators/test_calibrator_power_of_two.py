"""Power-of-two scales: what `qbench.affine` makes of the answer, and the best exponent by trying each."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray
from test_calibrator_kinds import DATA

from qbench.affine import Affine, Scheme, affine, dequantize, quantize
from qbench.calibrators.power_of_two import PowerOfTwo
from qbench.statistics import TensorStatistics

Values = NDArray[np.float32]
SCHEMES = [Scheme(bits, signed, symmetric, narrow, power_of_two=True)
           for bits in (2, 3, 4, 8, 16) for signed in (False, True) for symmetric in (False, True) for narrow in (False, True)
           if (signed or not narrow) and bits + (not narrow) > 2]
finite = st.floats(width=32, allow_nan=False, allow_infinity=False, allow_subnormal=False)
vectors = hnp.arrays(np.float32, st.integers(1, 30), elements=st.one_of(finite, st.floats(-300, 300, width=32), st.integers(-200, 200)))


@given(x=vectors, scheme=st.sampled_from(SCHEMES), by=st.sampled_from(["mse", "overflow"]))
@example(x=np.array([2.552118e38], np.float32), scheme=Scheme(2, False, True, power_of_two=True), by="mse")
@settings(max_examples=300)
def test_affine_makes_exactly_the_chosen_scale_of_the_answer(x: Values, scheme: Scheme, by: str) -> None:
    calibrator = PowerOfTwo(by)  # type: ignore[arg-type]
    scale, found = calibrator.chosen(TensorStatistics.of(x[None, None]), scheme.levels, scheme.symmetric)
    assert math.frexp(scale)[0] == 0.5
    assert affine(found, scheme).scale == scale
    assert found == calibrator.range(TensorStatistics.of(x[None, None]), scheme.levels, scheme.symmetric)


def off_by(x: Values, coded: Affine) -> NDArray[np.float64]:
    """Error of every value, in steps."""
    with np.errstate(over="ignore"):
        return np.abs(dequantize(quantize(x, coded), coded).astype(np.float64) - x) / coded.scale


def fits(x: Values, scale: float, scheme: Scheme, most: float) -> bool:
    """Whether some place of 0 among the codes leaves no value off by more than `most` steps."""
    zeros = range(scheme.qmin, scheme.qmax + 1) if not scheme.symmetric else [affine_zero(scheme)]
    return any(off_by(x, Affine(scale, z, scheme)).max() <= most for z in zeros)


def affine_zero(scheme: Scheme) -> int:
    return 0 if scheme.signed else 2 ** (scheme.bits - 1)


@given(x=hnp.arrays(np.float32, st.integers(1, 20), elements=st.one_of(st.floats(-300, 300, width=32), st.integers(-130, 130).map(float))),
       scheme=st.sampled_from([s for s in SCHEMES if 4 <= s.bits <= 8]))
@settings(max_examples=100)
def test_overflow_is_the_smallest_scale_at_which_nothing_clips(x: Values, scheme: Scheme) -> None:
    x[np.abs(x) < 1e-3] = 0
    found = affine(PowerOfTwo("overflow").range(TensorStatistics.of(x[None, None]), scheme.levels, scheme.symmetric), scheme)
    if not x.any():
        return
    assert off_by(x, found).max() <= 0.5 + 1e-5
    assert not fits(x, found.scale / 2, scheme, 0.5 - 1e-5)


def test_bytes_keep_their_step() -> None:
    signed = np.arange(-128, 128).astype(np.float32)
    found = affine(PowerOfTwo("overflow").range(TensorStatistics.of(signed[None, None]), 256, True), Scheme(8, True, True, power_of_two=True))
    assert found.scale == 1.0 and np.array_equal(dequantize(quantize(signed, found), found), signed)
    plain = np.arange(256).astype(np.float32)
    for by in ("mse", "overflow"):
        coded = affine(PowerOfTwo(by).range(TensorStatistics.of(plain[None, None]), 256), Scheme(8, False, False, power_of_two=True))
        assert coded.scale == 1.0 and np.array_equal(dequantize(quantize(plain, coded), coded), plain)


def test_overflow_counts_rounding_at_both_ends() -> None:
    """The data are wider than 255 steps of 1, and no value is off by more than half of one."""
    x, scheme = np.array([-100.4, 0.0, 155.4], np.float32), Scheme(8, False, False, power_of_two=True)
    found = affine(PowerOfTwo("overflow").range(TensorStatistics.of(x[None, None]), 256), scheme)
    assert found.scale == 1.0 and off_by(x, found).max() == pytest.approx(0.4, abs=1e-5)


@pytest.mark.parametrize("name", DATA)
@pytest.mark.parametrize("scheme", [Scheme(8, False, False, power_of_two=True), Scheme(8, True, True, narrow=True, power_of_two=True),
                                    Scheme(4, True, False, power_of_two=True), Scheme(4, True, True, power_of_two=True)])
def test_mse_is_the_best_of_all_exponents_and_places_of_zero(name: str, scheme: Scheme) -> None:
    x = DATA[name][:1_000]
    found = affine(PowerOfTwo().range(TensorStatistics.of(x[None, None]), scheme.levels, scheme.symmetric), scheme)

    def loss(coded: Affine) -> float:
        return float(np.mean((dequantize(quantize(x, coded), coded).astype(np.float64) - x) ** 2))

    top = math.ceil(math.log2(2 * float(np.abs(x).max())))
    zeros = range(scheme.qmin, scheme.qmax + 1, 2 if scheme.bits == 8 else 1) if not scheme.symmetric else [affine_zero(scheme)]
    best = min(loss(Affine(2.0**e, z, scheme)) for e in range(top - scheme.bits - 3, top + 1) for z in zeros)
    assert loss(found) <= 1.01 * best


def test_sixteen_bits_place_zero_as_finely_as_needed() -> None:
    x = np.append(DATA["silu"], 40.0).astype(np.float32)
    scheme = Scheme(16, False, False, power_of_two=True)
    found = affine(PowerOfTwo().range(TensorStatistics.of(x[None, None]), scheme.levels), scheme)
    assert off_by(x, found).max() <= 0.51
