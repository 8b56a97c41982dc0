"""What keeps the stages going and what ends them."""

from __future__ import annotations

from pathlib import Path

from fake_search import FakeEvaluator, chain, costs, like_brain, middle_budget, problem

from qbench.network import Precision
from qbench.search import Config, Costs, Space, make_strategy
from qbench.search.budget import MaxDrop
from qbench.search.optuna_driver import POPULATION
from qbench.search.run import run
from qbench.search.state import PATIENCE

INT8, FP16 = Precision.INT8, Precision.FP16


def test_the_genetic_sampler_breeds_from_the_plans_it_was_told() -> None:
    """Told a generation of nearly equal plans, its children are nearly that plan: random ones would differ in half of their units."""
    space = Space(tuple(f"u{i}" for i in range(20)), ((INT8, FP16),) * 20, ("minmax",), ("per-channel",), ("1000MHz",))
    parent = tuple(INT8 if i < 10 else FP16 for i in range(20))
    for name in ("nsga2", "nsga3"):
        strategy = make_strategy(name, space, 1)
        for i in range(POPULATION):
            told = Config((*parent[:19], INT8 if i % 2 else FP16), "minmax", "per-channel", "1000MHz")
            strategy.tell([(told, Costs(0.01, 10.0 + i, 1.0))])
        steps = [sum(p is not q for p, q in zip(c.precision, parent, strict=True)) for c in strategy.ask(20)]
        assert sum(steps) / len(steps) < 4.0, name


def test_a_search_where_nearly_every_plan_is_hopeless_ends_and_keeps_its_number_of_plans(tmp_path: Path) -> None:
    """No plan within the budget keeps the floor and most lose 19 points: four stages give up after PATIENCE plans, then `revisit` fills up."""
    network = chain(12)
    priced = costs(network)
    evaluator = FakeEvaluator(like_brain())
    found = run(problem(tmp_path, network, (middle_budget(priced, 0.2),), max_drop=MaxDrop.parse("0.01pt")), evaluator, priced)
    assert found.evaluated == 40
    assert any(c.origin == "revisit" for c in found.candidates)
    assert not found.feasible
    quick = sum(samples < 48 for _, samples in evaluator.log)
    stages, singles, calibrators, probes = 6, 12, 2, 12
    assert quick <= 40 + stages * (PATIENCE + 3) + singles + calibrators + probes
