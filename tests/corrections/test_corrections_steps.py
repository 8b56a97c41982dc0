"""Names, options and order of the correction steps."""

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qbench.corrections import DEFAULTS, STEPS, Correction, chosen, make, name_of, text_of
from qbench.corrections.steps import AdaRound, BiasCorrection, Equalization, Mask, of_plan
from qbench.errors import InputError, PlanError, UnknownName


@pytest.mark.parametrize("name", STEPS)
def test_every_step_has_defaults_and_a_source(name: str) -> None:
    step = make(name)
    assert name_of(step) == name and text_of(step) == name
    assert type(step).__doc__
    for field in dataclasses.fields(step):
        assert f"    {field.name} " in str(type(step).__doc__), f"{name}: option {field.name} is not explained"


@given(st.one_of(
    st.builds(AdaRound, iterations=st.integers(1, 9999), lr=st.floats(0.001, 1), seed=st.integers(0, 9), device=st.sampled_from(["auto", "cpu", "cuda"])),
    st.builds(BiasCorrection, how=st.sampled_from(["analytic", "empirical"]), samples=st.integers(0, 99)), st.builds(Equalization, sweeps=st.integers(1, 99)),
    st.builds(Mask, margin=st.floats(1, 99), rows=st.sampled_from(["exact", "any"]))))
def test_the_text_of_a_step_makes_it_again(step: Correction) -> None:
    assert make(text_of(step)) == step


@pytest.mark.parametrize(("asked", "expected"), [
    ((), DEFAULTS), (("none",), ()), (("bias", "cle"), ("cle", "mask", "fixed-outputs", "bias-guard", "bias")), (("none", "adaround", "cle"), ("cle", "adaround")),
    (("mask:margin=30",), ("mask:margin=30.0", "fixed-outputs", "bias-guard")), (("none", "bias:how=analytic"), ("bias:how=analytic",))])
def test_steps_come_in_one_order_whatever_was_typed(asked: tuple[str, ...], expected: tuple[str, ...]) -> None:
    assert tuple(text_of(s) for s in chosen(asked)) == expected


@pytest.mark.parametrize(("text", "words"), [
    ("magic", "no correction 'magic'; known: adaround, bias"), ("bias:how=wild", "how=wild; known: analytic, empirical"), ("bias:why=x", "has no option 'why'"),
    ("adaround:lr=3", "learning rate above 0, at most 1"), ("adaround:device=tpu", "known: auto, cpu, cuda"), ("adaround:iterations=0", "at least 1"),
    ("adaround:samples=-1", "at least 0"), ("mask:margin=0.1", "at least 1"), ("mask:rows=some", "known: exact, any"), ("cle:sweeps=0", "at least 1"),
    ("bias-guard:x=1", "has no option")])
def test_a_wrong_step_is_refused_with_what_there_is(text: str, words: str) -> None:
    with pytest.raises((InputError, UnknownName), match=words):
        make(text)


def test_a_step_named_twice_is_refused() -> None:
    with pytest.raises(InputError, match="'bias' is named twice"):
        chosen(["bias", "bias:how=analytic"])


def test_a_plan_with_an_unknown_step_is_refused() -> None:
    assert of_plan(["cle", "bias:how=analytic"]) == {"cle": Equalization(), "bias": BiasCorrection("analytic")}
    with pytest.raises(PlanError, match="correction 'magic', which this version of qbench cannot repeat"):
        of_plan(["cle", "magic"])
