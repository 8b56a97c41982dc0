"""The contract of every registered strategy, and what Optuna's drivers add to it."""

from __future__ import annotations

import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qbench.errors import UnknownName
from qbench.network import Precision
from qbench.search import Config, Costs, Space, Strategy, make_strategy, optuna_driver, strategy_names
from qbench.search.optuna_driver import POPULATION, config_of, params

P = Precision
SPACE = Space(("stem", "body/conv", "head"), ((P.INT8, P.FP16), (P.INT8, P.INT16, P.FP16), (P.FP16,)), ("minmax", "kl"),
              ("per-channel", "per-layer"), ("500MHz", "1000MHz"))


def cost(config: Config) -> Costs:
    """Deterministic, with a constraint that half of the space breaks."""
    low = sum(p is P.INT8 for p in config.precision)
    loss = 0.01 * low * (0.5 if config.calibrator == "kl" else 1.0)
    ms = (9.0 - 2.0 * low) / (2.0 if config.op_point == "1000MHz" else 1.0)
    return Costs(loss, ms, 3.0 + 0.1 * ms, {"latency": ms / 4.0 - 1.0})


def play(strategy: Strategy, rounds: int, batch: int, one_by_one: bool) -> list[Config]:
    asked: list[Config] = []
    for _ in range(rounds):
        new = strategy.ask(batch)
        results = [(c, cost(c)) for c in new]
        for part in [[r] for r in results] if one_by_one else [results]:
            strategy.tell(part)
        asked += new
    return asked


ROUNDS = {"gp": 2}
"""A Gaussian process takes seconds a question once it models, so it starts early; the others are asked past a generation."""


@pytest.fixture(autouse=True)
def gaussian_processes_start_early(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    if "name" in request.fixturenames and request.getfixturevalue("name") == "gp":
        monkeypatch.setattr(optuna_driver, "STARTUP", 3)


@pytest.mark.parametrize("name", strategy_names())
def test_every_config_asked_lies_in_the_space(name: str) -> None:
    for config in play(make_strategy(name, SPACE, 3), ROUNDS.get(name, 14), 2, one_by_one=True):
        assert SPACE.holds(config)


@pytest.mark.parametrize("name", strategy_names())
def test_telling_one_by_one_or_in_batches_is_the_same_and_the_seed_decides(name: str) -> None:
    rounds = ROUNDS.get(name, 14)
    first = play(make_strategy(name, SPACE, 3), rounds, 2, one_by_one=True)
    assert play(make_strategy(name, SPACE, 3), rounds, 2, one_by_one=False) == first
    assert play(make_strategy(name, SPACE, 4), rounds, 2, one_by_one=False) != first


@pytest.mark.parametrize("name", strategy_names())
def test_a_strategy_is_what_it_was_told(name: str) -> None:
    """Replaying the tells of a search that was killed leads to the same next question."""
    rounds = ROUNDS.get(name, 14)
    one = make_strategy(name, SPACE, 5)
    told = play(one, rounds, 1, one_by_one=True)
    again = make_strategy(name, SPACE, 5)
    for config in told:
        assert again.ask(1) == [config]
        again.tell([(config, cost(config))])
    assert again.ask(2) == one.ask(2)


@pytest.mark.parametrize("name", strategy_names())
def test_plans_that_were_not_asked_for_can_be_told(name: str) -> None:
    strategy = make_strategy(name, SPACE, 0)
    seeds = [Config((P.INT8, P.INT8, P.FP16), "kl", "per-channel", "1000MHz"), Config((P.FP16, P.FP16, P.FP16), "minmax", "per-channel", "500MHz")]
    strategy.tell([(c, cost(c)) for c in seeds])
    assert all(SPACE.holds(c) for c in strategy.ask(2))


@pytest.mark.parametrize("name", strategy_names())
def test_numbers_that_are_none_do_not_stop_a_strategy(name: str) -> None:
    strategy = make_strategy(name, SPACE, 0)
    [config] = strategy.ask(1)
    strategy.tell([(config, Costs(float("nan"), 1.0, float("inf"), {"drop": float("nan"), "latency": float("inf")}))])
    assert SPACE.holds(strategy.ask(1)[0])


def test_the_genetic_sampler_breeds_from_the_plans_it_was_told() -> None:
    """Told a full generation of one kind, all its children are of that kind but for mutations: they are not random plans."""
    space = Space(tuple(f"u{i}" for i in range(20)), ((P.INT8, P.FP16),) * 20, ("minmax",), ("per-channel",), ("1000MHz",))
    strategy = make_strategy("nsga2", space, 1)
    half = tuple(P.INT8 if i < 10 else P.FP16 for i in range(20))
    for i in range(POPULATION):
        parent = Config((*half[:19], P.INT8 if i % 2 else P.FP16), "minmax", "per-channel", "1000MHz")
        strategy.tell([(parent, Costs(0.01, 10.0 + i, 1.0))])
    distances = [sum(p is not q for p, q in zip(c.precision, half, strict=True)) for c in strategy.ask(20)]
    assert sum(distances) / len(distances) < 4.0           # random plans differ in 10 of 20


@given(st.tuples(st.sampled_from([P.INT8, P.FP16]), st.sampled_from([P.INT8, P.INT16, P.FP16]), st.just(P.FP16)),
       st.sampled_from(SPACE.calibrators), st.sampled_from(SPACE.granularities), st.sampled_from(SPACE.op_points))
@settings(max_examples=50)
def test_parameters_read_back_as_the_same_config(precision: tuple[Precision, ...], calibrator: str, granularity: str, op_point: str) -> None:
    config = Config(precision, calibrator, granularity, op_point)
    assert config_of(SPACE, params(SPACE, config)) == config


def test_an_unknown_strategy_is_refused_with_the_known_ones() -> None:
    with pytest.raises(UnknownName, match="no search strategy 'genetic'; known: nsga2, nsga3, tpe, gp, random"):
        make_strategy("genetic", SPACE, 0)


def test_plans_without_integers_are_one_plan_under_every_calibrator() -> None:
    plain = Config((P.FP16,) * 3, "kl", "per-layer", "500MHz")
    assert SPACE.canonical(plain) == Config((P.FP16,) * 3, "minmax", "per-channel", "500MHz")
    mixed = Config((P.INT8, P.FP16, P.FP16), "kl", "per-layer", "500MHz")
    assert SPACE.canonical(mixed) == mixed


def test_the_package_imports_no_optuna() -> None:
    code = "import sys, qbench.search, qbench.search.run; print([m for m in ('optuna', 'mlflow', 'torch', 'onnxruntime') if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip() == "[]"
