"""Schemes as text: there and back, and what is refused."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qbench.affine import Scheme
from qbench.errors import InputError
from qbench.schemes import quant_scheme, scheme_of
from qbench.target import QuantScheme


@pytest.mark.parametrize(("text", "scheme"), [
    ("int8", Scheme(8, True, False)), ("uint8", Scheme(8, False, False)), ("int8:symmetric", Scheme(8, True, True)),
    ("int8:symmetric,narrow", Scheme(8, True, True, narrow=True)), ("uint8:power_of_two", Scheme(8, False, False, power_of_two=True)),
    ("int16:symmetric,narrow,power_of_two", Scheme(16, True, True, True, True)), ("int4:symmetric,narrow", Scheme(4, True, True, True)),
    (" int8 : narrow , symmetric ", Scheme(8, True, True, True)), ("uint2", Scheme(2, False, False))])
def test_texts_of_the_usual_schemes(text: str, scheme: Scheme) -> None:
    assert scheme_of(text) == scheme


@given(st.builds(Scheme, st.integers(2, 16), st.booleans(), st.booleans(), st.booleans(), st.booleans()))
def test_every_scheme_survives_its_text(scheme: Scheme) -> None:
    flags = {"symmetric": scheme.symmetric, "narrow": scheme.narrow, "power_of_two": scheme.power_of_two}
    text = f"{'int' if scheme.signed else 'uint'}{scheme.bits}" + (":" + ",".join(f for f, on in flags.items() if on) if any(flags.values()) else "")
    assert scheme_of(text) == scheme


@pytest.mark.parametrize(("text", "message"), [
    ("float16", "scheme 'float16': 'float16' is no type of codes; expected int2 to int16 or uint2 to uint16"),
    ("int32", "'int32' is no type of codes"), ("int1", "'int1' is no type"), ("", "'' is no type"), ("8", "'8' is no type"), ("int", "'int' is no type"),
    ("int8:", "scheme 'int8:': '' is unknown; expected symmetric, narrow, power_of_two, joined by commas"),
    ("int8:symetric", "'symetric' is unknown; expected symmetric"), ("int8:narrow,narrow", "'narrow' is given twice"),
    ("int8:symmetric,", "'' is unknown")])
def test_what_is_no_scheme_says_what_is(text: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        scheme_of(text)


def test_a_quant_scheme_from_texts() -> None:
    made = quant_scheme("uint8", "int8:symmetric,narrow", weight_block=32)
    assert made == QuantScheme(Scheme(8, False, False), Scheme(8, True, True, True), True, 32, 32)
    with pytest.raises(InputError, match="bias_bits is 4; expected 8 to 64"):
        quant_scheme("uint8", "int8", bias_bits=4)
    with pytest.raises(InputError, match="weight_block is -1; expected the input channels that share a scale"):
        quant_scheme("uint8", "int8", weight_block=-1)
