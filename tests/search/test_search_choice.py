"""Which candidate is chosen, what is on the front, and what is said when nothing is good enough."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest
from fake_search import FakeCosts, chain, costs, problem
from hypothesis import given
from hypothesis import strategies as st

from qbench.network import Precision
from qbench.protocols import Accuracy, Price
from qbench.result import Candidate
from qbench.search.budget import Budget, Kind, MaxDrop
from qbench.search.choice import (
    LARGEST_TIE,
    SMALLEST_TIE,
    SURETY,
    choose,
    describe,
    nearest,
    pareto,
    refusal,
    show,
    spaced,
    unmet_floor,
)
from qbench.search.planner import Planner
from qbench.search.problem import Problem
from qbench.search.sensitivity import SIGMAS, least_lossy, standard_error

FLOAT = 0.9
NETWORK = chain(4)


def candidate(name: str, drop: float, ms: float, mj: float = 1.0, size: int = 1000, error: float = 0.0, **more: Any) -> Candidate:
    wide = SIGMAS * error
    accuracy = Accuracy("dice", FLOAT - drop, 0.0, 1.0, 48, drop, drop - wide, drop + wide, 20.0, 1.0, math.nan, 1.0)
    given_: dict[str, Any] = {"origin": "milp", "feasible": True, "sure": True, **more}
    return Candidate(name, given_["origin"], "", name, "minmax", "per-channel", {}, accuracy,
                     Price(ms, ms * 0.9, ms * 1.1, mj, mj / ms, size, "1000MHz"), given_["feasible"], given_["sure"])


def asked(*budgets: str, max_drop: str | None = None) -> Problem:
    return problem(Path(), NETWORK, budgets, max_drop=MaxDrop.parse(max_drop) if max_drop else None)


steps = st.integers(0, 6)
candidates = st.lists(st.builds(
    lambda drop, ms, mj, error, origin, sure: candidate("c", drop / 4000.0, 1.0 + ms, 1.0 + mj, error=error / 2000.0, origin=origin, sure=sure),
    st.integers(-2, 8), steps, steps, steps, st.sampled_from(["uniform", "milp", "nsga2"]), st.booleans()), min_size=1, max_size=8)


# ------------------------------------------------------------------------------------------------ chosen


@given(found=candidates)
def test_chosen_loses_at_most_one_standard_error_more_than_the_best(found: list[Candidate]) -> None:
    chosen, best = choose(found, asked("20ms")), max(found, key=lambda c: c.accuracy.value)
    assert chosen in found and chosen is not None
    surest = max((c for c in found if c.sure), key=lambda c: c.accuracy.value, default=best)
    near = [best, *([surest] if surest.accuracy.drop <= max(best.accuracy.drop, 0.0) + SURETY else [])]
    assert chosen.accuracy.drop <= max(max(b.accuracy.drop, 0.0) + min(max(standard_error(b.accuracy), SMALLEST_TIE), LARGEST_TIE) for b in near) + 1e-12


@given(found=candidates)
def test_chosen_is_at_least_as_good_as_every_uniform_plan(found: list[Candidate]) -> None:
    chosen = choose(found, asked("20ms"))
    assert chosen is not None
    assert all(chosen.accuracy.value >= c.accuracy.value for c in found if c.origin == "uniform")


@given(found=candidates)
def test_nothing_as_accurate_and_as_sure_is_more_frugal(found: list[Candidate]) -> None:
    chosen = choose(found, asked("20ms"))
    assert chosen is not None
    for c in found:
        if c.accuracy.value >= chosen.accuracy.value and c.sure >= chosen.sure:
            assert (c.price.energy_mj, c.price.latency_ms) >= (chosen.price.energy_mj, chosen.price.latency_ms)


@given(found=candidates, order=st.randoms(use_true_random=False))
def test_chosen_does_not_depend_on_the_order(found: list[Candidate], order: Random) -> None:
    found = [replace(c, accuracy=replace(c.accuracy, drop_low=c.accuracy.drop, drop_high=c.accuracy.drop)) for c in found]
    shuffled = order.sample(found, len(found))
    first, second = choose(found, asked("20ms")), choose(shuffled, asked("20ms"))
    assert first is not None and second is not None
    assert (first.accuracy, first.price, first.sure) == (second.accuracy, second.price, second.sure)


def test_the_cheapest_within_the_error_of_the_best() -> None:
    found = [candidate("best", 0.0010, 9.0, 9.0, error=0.0005), candidate("near", 0.0014, 5.0, 5.0), candidate("far", 0.0016, 1.0, 1.0)]
    assert choose(found, asked("20ms")) is found[1]


def test_an_error_of_a_small_set_gives_no_more_away_than_the_largest_tie() -> None:
    found = [candidate("best", 0.0, 9.0, 9.0, error=0.05), candidate("far", LARGEST_TIE * 1.01, 1.0, 1.0)]
    assert choose(found, asked("20ms")) is found[0]


def test_beating_float_counts_as_no_loss() -> None:
    found = [candidate("lucky", -0.005, 9.0, 9.0), candidate("cheap", 0.0, 1.0, 1.0)]
    assert choose(found, asked("20ms")) is found[1]


def test_a_sure_plan_comes_before_a_frugal_one() -> None:
    found = [candidate("risky", 0.0, 5.0, 1.0, sure=False), candidate("sure", 0.0, 4.0, 2.0)]
    assert choose(found, asked("20ms")) is found[1]


@pytest.mark.parametrize(("drop", "name"), [(0.0004, "sure"), (0.0006, "best")])
def test_meeting_the_budget_for_sure_is_worth_a_twentieth_of_a_point(drop: float, name: str) -> None:
    found = [candidate("best", -0.0004, 16.8, error=0.0001, sure=False), candidate("sure", drop, 14.0, error=0.0001)]
    chosen = choose(found, asked("20ms"))
    assert chosen is not None and chosen.name == name


def test_a_sure_plan_that_a_uniform_one_beats_is_not_preferred() -> None:
    found = [candidate("best", 0.0, 16.8, sure=False), candidate("int16", 0.0001, 19.0, origin="uniform", sure=False), candidate("sure", 0.0004, 14.0)]
    chosen = choose(found, asked("20ms"))
    assert chosen is not None and chosen.name == "best"


def test_a_floor_without_a_budget_asks_for_the_fastest() -> None:
    found = [candidate("good", 0.0, 9.0), candidate("fast", 0.004, 3.0), candidate("slow", 0.001, 5.0)]
    assert choose(found, asked(max_drop="0.5%")) is found[1]
    assert choose(found, asked("20ms", max_drop="0.5%")) is found[0]


def test_what_is_not_a_number_is_never_chosen() -> None:
    broken = candidate("nan", math.nan, 1.0)
    assert choose([broken], asked("20ms")) is None
    assert choose([broken, candidate("worse", 0.5, 9.0)], asked("20ms")) is not broken
    assert choose([], asked("20ms")) is None
    assert choose([broken], asked(max_drop="1%")) is None


def test_nearest_misses_the_budgets_least() -> None:
    found = [candidate("slow", 0.0, 9.0), candidate("close", 0.3, 2.2), candidate("closer", 0.4, 2.1)]
    assert nearest(found, asked("2ms")) is found[2]
    assert nearest(found, asked("10ms")) is found[0]
    assert nearest([], asked("2ms")) is None
    assert nearest([candidate("nan", math.nan, 1.0)], asked("2ms")) is None


# ------------------------------------------------------------------------------------------------ front


def goals(c: Candidate, memory: bool) -> tuple[float, ...]:
    return (c.price.latency_ms, -c.accuracy.value, c.price.energy_mj, *([c.price.peak_memory_bytes] if memory else []))


@given(found=candidates, memory=st.booleans())
def test_no_candidate_beats_one_on_the_front(found: list[Candidate], memory: bool) -> None:
    on = pareto(found, asked("1GB") if memory else asked("20ms"))
    assert on and [c.price.latency_ms for c in on] == sorted(c.price.latency_ms for c in on)
    for c in on:
        assert not any(all(a <= b for a, b in zip(goals(o, memory), goals(c, memory), strict=True)) and goals(o, memory) != goals(c, memory) for o in found)


def test_memory_counts_where_it_has_a_budget() -> None:
    found = [candidate("a", 0.0, 1.0, size=2000), candidate("b", 0.1, 2.0, mj=2.0, size=1000)]
    assert pareto(found, asked("20ms")) == (found[0],)
    assert pareto(found, asked("1MB")) == tuple(found)
    assert pareto([], asked()) == pareto([candidate("nan", math.nan, 1.0)], asked()) == ()


# ------------------------------------------------------------------------------------------------ refusals


@given(kind=st.sampled_from(Kind), value=st.floats(1e-3, 1e9))
def test_what_is_shown_as_possible_can_be_asked_for(kind: Kind, value: float) -> None:
    """Four figures, rounded so that a plan with `value` meets the budget shown, and no more than a thousandth away."""
    shown = Budget.parse(show(Budget(kind, 1.0), value))
    assert shown.kind is kind
    assert shown.limit <= value * (1.0 + 1e-9) if kind is Kind.RATE else shown.limit >= value * (1.0 - 1e-9)
    assert shown.limit == pytest.approx(value, rel=1.1e-3)


def test_describe_counts_precisions() -> None:
    p = problem(Path(), chain(3, fixed=(2,)))
    assert describe(p.space.codes((Precision.INT8, Precision.INT8, Precision.FP16), ("int8", "fp16")), p, ("int8", "fp16")) == \
        "every unit that has a choice at int8"
    assert describe(p.space.codes((Precision.INT8, Precision.FP16, Precision.FP16), ("int8", "fp16")), p, ("int8", "fp16")) == \
        "2 units fp16, 1 units int8"


def refused(*budgets: str, op_points: Sequence[str] = ("1000MHz",), speed: dict[str, float] | None = None) -> tuple[Any, FakeCosts, Problem]:
    priced = costs(NETWORK, speed=speed)
    p = replace(problem(Path(), NETWORK, budgets), op_points=tuple(op_points))
    binding, codes, op_point = refusal(p, Planner(p.space, priced, p.budgets, least_lossy(p.space, priced.precisions)))
    return (binding, codes, op_point), priced, p


def test_a_latency_that_cannot_be_met_names_the_fastest_plan() -> None:
    (binding, codes, op_point), priced, p = refused("0.01ms")
    fastest = min(priced.price(codes[None] * 0, "1000MHz"), key=lambda x: x.latency_ms)
    assert binding.budget == "10us" and op_point == "1000MHz"
    assert codes.tolist() == [0, 0, 0, 0]
    shown = show(p.budgets[0], fastest.latency_ms)
    assert binding.possible == f"fastest possible is {spaced(shown)} at 1000MHz (every unit that has a choice at int8)"
    assert binding.relaxations == (f"{shown} instead of 10us: a plan exists",)
    assert Budget.parse(shown).met_by(fastest)


def test_the_fastest_of_all_operating_points_is_named() -> None:
    (binding, _, op_point), _, _ = refused("0.01ms", op_points=("500MHz", "1000MHz"), speed={"500MHz": 0.5, "1000MHz": 1.0})
    assert op_point == "1000MHz"
    assert "at 1000MHz" in binding.possible


def test_a_rate_is_refused_in_its_own_words() -> None:
    (binding, codes, _), priced, _ = refused("100000fps")
    [shown] = re.findall(r"[\d.]+ fps", binding.possible)
    assert binding.possible.startswith("fastest possible is ")
    assert Budget.parse(shown).met_by(priced.price(codes[None], "1000MHz")[0])


def test_quantities_in_a_sentence_have_a_space_and_read_back() -> None:
    assert [spaced(t) for t in ("92.8KB", "11.9ms", "1000MHz", "30fps")] == ["92.8 KB", "11.9 ms", "1000 MHz", "30 fps"]
    binding = refused("1B")[0][0]
    assert (found := re.match(r"smallest found is ([\d.]+ [KM]?B) at 1000MHz", binding.possible)) and Budget.parse(found[1]).kind is Kind.MEMORY


def test_budgets_that_only_fail_together_say_so() -> None:
    """Alone each can be met, at one of two operating points; together they cannot."""
    speed = {"500MHz": 0.5, "1000MHz": 1.0}
    priced = costs(NETWORK, speed=speed)
    p = replace(problem(Path(), NETWORK), op_points=tuple(speed))
    free = Planner(p.space, priced, (), least_lossy(p.space, priced.precisions))
    ms = free.price(free.least(Budget(Kind.LATENCY, 1.0), "1000MHz"), "1000MHz").latency_ms
    mj = free.price(free.least(Budget(Kind.ENERGY, 1.0), "500MHz"), "500MHz").energy_mj
    (binding, _, _), _, _ = refused(f"{ms * 1.01:.6f}ms", f"{mj * 1.01:.6f}mJ", op_points=tuple(speed), speed=speed)
    assert binding.budget.endswith(" together")
    assert binding.possible.startswith("the nearest plan has ")
    assert len(binding.relaxations) == 2 and all("the other budgets kept: a plan exists" in r for r in binding.relaxations)
    for text in binding.relaxations:                             # each is true: with that limit there is a plan
        new = Budget.parse(text.split()[0])
        kept = [new if b.kind is new.kind else b for b in asked(f"{ms * 1.01:.6f}ms", f"{mj * 1.01:.6f}mJ").budgets]
        assert any(Planner(p.space, priced, kept, free.base).any(o) is not None for o in speed)


def test_a_floor_that_none_keeps_says_what_is_possible() -> None:
    p = asked("5ms", max_drop="0.1%")
    found = [candidate("fast", 0.02, 4.0), candidate("good", 0.0005, 8.0), candidate("fast2", 0.01, 4.5)]
    binding = unmet_floor(p, found)
    assert binding.budget == "max-drop 0.001"
    assert binding.possible == "the best plan within the budgets loses 0.01 (fast2)"
    assert binding.relaxations == ("max-drop 0.01 instead of 0.001: 'fast2' meets it", "8ms: 'good' loses 0.0005")


def test_a_floor_without_a_plan_within_the_budgets() -> None:
    assert unmet_floor(asked("1ms", max_drop="0.1%"), [candidate("slow", 0.5, 9.0)]).possible == "no plan within the budgets was evaluated"
