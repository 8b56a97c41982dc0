"""B12: fixed output ranges give exactly the scales and zero points that the runtimes assert."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from qbench.affine import Scheme, affine
from qbench.errors import UnknownName
from qbench.fixed import CALIBRATED, HALF_OPEN, STYLES, UNIT, fixed_range

schemes = st.builds(Scheme, st.integers(2, 16), st.booleans(), st.booleans(), st.booleans(), st.booleans())
OPS = ("Softmax", "Sigmoid", "Tanh", "LogSoftmax", "Relu", "Conv", "HardSigmoid")


def stored(op: str, style: str, scheme: Scheme) -> tuple[float, int] | None:
    found = fixed_range(op, style, scheme)
    return None if found is None else ((a := affine(found, scheme)).scale, a.zero_point)


@pytest.mark.parametrize("op", ["Softmax", "Sigmoid"])
@pytest.mark.parametrize(("bits", "signed", "scale", "zero_point"), [
    (8, False, 1 / 255, 0), (8, True, 1 / 255, -128), (16, False, 1 / 65535, 0), (16, True, 1 / 65535, -32768)])
def test_onnxruntimes_convention(op: str, bits: int, signed: bool, scale: float, zero_point: int) -> None:
    """The numbers of B12: 0.00392157 and 1.5259e-5."""
    assert stored(op, UNIT, Scheme(bits, signed, False)) == (float(np.float32(scale)), zero_point)
    assert stored("Tanh", UNIT, Scheme(bits, signed, False)) is None


@pytest.mark.parametrize(("op", "bits", "signed", "symmetric", "scale", "zero_point"), [
    ("Softmax", 8, True, False, 1 / 256, -128), ("Sigmoid", 8, True, False, 1 / 256, -128), ("Softmax", 8, False, False, 1 / 256, 0),
    ("Softmax", 16, True, False, 1 / 32768, 0), ("Sigmoid", 16, True, True, 1 / 32768, 0), ("Softmax", 8, True, True, 1 / 128, 0),
    ("Tanh", 8, True, False, 1 / 128, 0), ("Tanh", 8, True, True, 1 / 128, 0), ("Tanh", 8, False, False, 1 / 128, 128),
    ("Tanh", 16, True, False, 1 / 32768, 0), ("Tanh", 16, True, True, 1 / 32768, 0),
    ("LogSoftmax", 8, True, False, 16 / 256, 127), ("LogSoftmax", 8, False, False, 16 / 256, 255)])
@pytest.mark.parametrize("power_of_two", [False, True])
def test_the_convention_of_tensorflow_lite(op: str, bits: int, signed: bool, symmetric: bool, scale: float, zero_point: int, power_of_two: bool) -> None:
    """Exactly, as its kernels compare; all of them are powers of two already."""
    assert stored(op, HALF_OPEN, Scheme(bits, signed, symmetric, power_of_two=power_of_two)) == (scale, zero_point)


@pytest.mark.parametrize(("op", "scheme"), [("LogSoftmax", Scheme(16, True, False)), ("LogSoftmax", Scheme(8, True, True)), ("Relu", Scheme(8, True, False))])
def test_where_there_is_no_convention_the_range_stays_calibrated(op: str, scheme: Scheme) -> None:
    assert fixed_range(op, HALF_OPEN, scheme) is None


@given(scheme=schemes, op=st.sampled_from(OPS), style=st.sampled_from(STYLES))
def test_laws(scheme: Scheme, op: str, style: str) -> None:
    """Zero is exact, the range covers the outputs of the operator but for less than a step, and half-open scales are powers of two."""
    found = fixed_range(op, style, scheme)
    if style == CALIBRATED or op in ("Relu", "Conv", "HardSigmoid"):
        assert found is None
        return
    if found is None:
        return
    a = affine(found, scheme)
    assert scheme.qmin <= a.zero_point <= scheme.qmax
    low, high = {"Tanh": (-1.0, 1.0), "LogSoftmax": (-16.0, 0.0)}.get(op, (0.0, 1.0))
    slack = 2.001 if scheme.narrow else 1.001                       # narrow codes lack one more
    assert a.range.low <= low + slack * a.scale and a.range.high >= high - slack * a.scale
    if style == HALF_OPEN:
        assert np.log2(a.scale) % 1 == 0


def test_an_unknown_convention_lists_those_that_exist() -> None:
    with pytest.raises(UnknownName, match="no convention 'closed' for fixed outputs; known: '', 'unit', 'half-open'"):
        fixed_range("Softmax", "closed", Scheme(8, True, False))
