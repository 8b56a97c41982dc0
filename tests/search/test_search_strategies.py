"""What every registered strategy promises: it stays in the space, it depends only on the seed and on what it was told."""

from __future__ import annotations

import math
from itertools import combinations
from pathlib import Path

import pytest
from fake_search import chain, problem
from hypothesis import given, settings
from hypothesis import strategies as st

from qbench.errors import UnknownName
from qbench.network import Precision
from qbench.search import STRATEGIES, Config, Costs, Space, Strategy, make_strategy, strategy_names
from qbench.search.optuna_driver import config_of, distributions, params
from qbench.search.space import finest

INT8, INT16, FP16, FP32 = Precision.INT8, Precision.INT16, Precision.FP16, Precision.FP32
SPACE = problem(Path(), chain(5, fixed=(2,)), precisions=(INT8, INT16, FP16), op_points=("600MHz", "1000MHz")).space
ROUNDS = {name: 18 for name in strategy_names()} | {"gp": 11}
"""Past the random start of each: a population of 16, or 10 plans for the models. The Gaussian process takes its time from there on."""
every_strategy = pytest.mark.parametrize("name", strategy_names())


def costs(config: Config) -> Costs:
    """INT8 costs accuracy, float costs time; no more than two units may be wider than that."""
    low = sum(p is INT8 for p in config.precision)
    high = len(config.precision) - low
    return Costs(0.01 * low, 1.0 + high, 2.0 + 0.5 * high, {"latency": high / 2.0 - 1.0})


def told(name: str, seed: int, rounds: int, space: Space = SPACE) -> tuple[Strategy, list[Config]]:
    """A strategy that asked and was told `rounds` times, and what it asked."""
    strategy, asked = make_strategy(name, space, seed), list[Config]()
    for _ in range(rounds):
        [config] = strategy.ask(1)
        strategy.tell([(config, costs(config))])
        asked.append(config)
    return strategy, asked


@every_strategy
def test_stays_in_the_space(name: str) -> None:
    """Also after its first, random generation, and where a unit has no choice."""
    strategy, asked = told(name, 0, ROUNDS[name])
    asked += strategy.ask(1)
    assert len(asked) == ROUNDS[name] + 1
    assert all(SPACE.holds(config) for config in asked)
    assert all(config.precision[2] is FP16 for config in asked)


@every_strategy
def test_the_seed_decides(name: str) -> None:
    first, again, other = (told(name, seed, rounds)[1] for seed, rounds in [(1, ROUNDS[name]), (1, ROUNDS[name]), (2, 8)])
    assert first == again
    assert first[:8] != other


@every_strategy
def test_told_one_by_one_or_many_at_once(name: str) -> None:
    """The same answers, told in one go, in two or one after the other, lead to the same next question."""
    questions = []
    n = ROUNDS[name] - 1
    for sizes in ([n], [5, n - 5], [1] * n):
        strategy = make_strategy(name, SPACE, 3)
        answers = [(c, costs(c)) for c in strategy.ask(n)]
        for size in sizes:
            strategy.tell(answers[:size])
            answers = answers[size:]
        questions.append(strategy.ask(1))
    assert questions[0] == questions[1] == questions[2]


@every_strategy
def test_asked_one_by_one_or_many_at_once(name: str) -> None:
    at_once, one_by_one = make_strategy(name, SPACE, 4), make_strategy(name, SPACE, 4)
    assert at_once.ask(5) == [one_by_one.ask(1)[0] for _ in range(5)]


@every_strategy
def test_a_replay_asks_the_same(name: str) -> None:
    """What a resumed search needs: configs nobody asked for are told first, in order, then questions and answers as before."""
    start = [Config((p,) * 2 + (FP16,) + (p,) * 2, "minmax", "per-channel", "1000MHz") for p in (INT8, INT16, FP16)]
    runs = []
    for _ in range(2):
        strategy, asked = make_strategy(name, SPACE, 5), list[Config]()
        strategy.tell([(c, costs(c)) for c in start])
        for _ in range(ROUNDS[name] - 2):
            [config] = strategy.ask(1)
            assert SPACE.holds(config)
            strategy.tell([(config, costs(config))])
            asked.append(config)
        runs.append(asked)
    assert runs[0] == runs[1]


@every_strategy
def test_an_answer_without_a_number_does_no_harm(name: str) -> None:
    strategy, _ = told(name, 6, 2)
    for loss, excess in [(math.nan, -1.0), (math.inf, math.inf), (0.1, math.nan)]:
        [config] = strategy.ask(1)
        strategy.tell([(config, Costs(loss, 1.0, math.inf, {"latency": excess}))])
    assert SPACE.holds(strategy.ask(1)[0])


@every_strategy
def test_the_same_config_may_be_told_twice(name: str) -> None:
    strategy = make_strategy(name, SPACE, 7)
    [config] = strategy.ask(1)
    strategy.tell([(config, costs(config)), (config, costs(config))])
    assert SPACE.holds(strategy.ask(1)[0])


@every_strategy
def test_answers_without_constraints_are_fine(name: str) -> None:
    strategy = make_strategy(name, SPACE, 8)
    for config in strategy.ask(3):
        strategy.tell([(config, Costs(0.1, 1.0, 1.0))])
    assert SPACE.holds(strategy.ask(1)[0])


@pytest.mark.parametrize("name", ["nsga2", "nsga3"])
def test_constraints_steer_the_population(name: str) -> None:
    """At most two of five units wider than INT8: a random question keeps that one time in nine, a taught one far more often."""
    strategy, _ = told(name, 0, 96)
    later = strategy.ask(32)
    kept = sum(costs(c).feasible for c in later) / len(later)
    blind = sum(costs(c).feasible for c in make_strategy("random", SPACE, 0).ask(200)) / 200
    assert kept > 2.0 * blind > 0.0


def test_an_unknown_name_lists_those_that_are_known() -> None:
    with pytest.raises(UnknownName) as caught:
        make_strategy("annealing", SPACE, 0)
    assert "no search strategy 'annealing'" in str(caught.value)
    assert all(name in str(caught.value) for name in STRATEGIES)


# ------------------------------------------------------------------------------------------------ the space

precisions = st.lists(st.sampled_from(list(Precision)), min_size=1, max_size=4, unique=True).map(tuple)


@st.composite
def spaces(draw: st.DrawFn) -> Space:
    """Unit names of any length, also ones that are equal in their first 200 characters."""
    units = draw(st.lists(st.sampled_from(["a", "b/c", "ü", *("x" * 210 + c for c in "yz")]), min_size=1, max_size=5))
    allowed = tuple(draw(precisions) for _ in units)
    return Space(tuple(units), allowed, ("minmax", "entropy"), ("per-layer", "per-channel"), ("1GHz",), ("", "cle"))


@st.composite
def configs(draw: st.DrawFn) -> tuple[Space, Config]:
    space = draw(spaces())
    precision = tuple(draw(st.sampled_from(a)) for a in space.allowed)
    return space, Config(precision, draw(st.sampled_from(space.calibrators)), draw(st.sampled_from(space.granularities)), "1GHz",
                         draw(st.sampled_from(space.corrections)))


@given(both=configs())
def test_a_config_as_parameters_and_back(both: tuple[Space, Config]) -> None:
    space, config = both
    found = params(space, config)
    assert len(distributions(space)) == len(found) == len(space.units) + 4
    assert all(distributions(space)[k]._contains(distributions(space)[k].to_internal_repr(v)) for k, v in found.items())
    assert config_of(space, found) == config
    assert space.holds(config)


@given(both=configs())
def test_canonical_forgets_only_what_says_nothing(both: tuple[Space, Config]) -> None:
    space, config = both
    found = space.canonical(config)
    assert space.canonical(found) == found
    assert found.precision == config.precision and found.op_point == config.op_point
    if any(not p.is_float for p in config.precision):
        assert found == config
    else:
        assert (found.calibrator, found.granularity) == (space.calibrators[0], space.granularities[0])


@settings(max_examples=30)
@given(space=spaces())
def test_keys_tell_configs_apart_and_size_counts_them(space: Space) -> None:
    every = [Config(p, c, g, o, k) for p in space.every() for c in space.calibrators for g in space.granularities for o in space.op_points
             for k in space.corrections]
    assert len(every) == space.size
    assert all(space.holds(c) for c in every[:50])
    assert all(a.key != b.key for a, b in combinations(every[:50], 2))


@given(space=spaces(), precision=st.sampled_from(list(Precision)))
def test_uniform_is_one_precision_where_it_can_be(space: Space, precision: Precision) -> None:
    found = space.uniform(precision)
    assert (found is None) == (not any(precision in a for a in space.allowed))
    for p, allowed in zip(found or (), space.allowed, strict=False):
        assert p is (precision if precision in allowed else finest(allowed))


def test_a_config_outside_is_not_held() -> None:
    inside = Config((INT8, INT8, FP16, INT8, INT8), "minmax", "per-channel", "600MHz")
    assert SPACE.holds(inside)
    for wrong in (Config(inside.precision[:4], "minmax", "per-channel", "600MHz"), Config((FP32,) * 5, "minmax", "per-channel", "600MHz"),
                  Config(inside.precision, "other", "per-channel", "600MHz"), Config(inside.precision, "minmax", "global", "600MHz"),
                  Config(inside.precision, "minmax", "per-channel", "1MHz")):
        assert not SPACE.holds(wrong)


def test_a_space_that_cannot_be_is_refused() -> None:
    with pytest.raises(ValueError, match="2 units but 1 tuples"):
        Space(("a", "b"), ((INT8,),), ("c",), ("g",), ("o",))
    for allowed, calibrators in [(((),), ("c",)), (((INT8,),), ())]:
        with pytest.raises(ValueError, match="every unit needs a precision"):
            Space(("a",), allowed, calibrators, ("g",), ("o",))
