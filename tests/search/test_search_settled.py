"""A search ends after the uniform plans only where no other plan could be chosen."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fake_search import FLOAT_VALUE, FakeEvaluator, Planted, chain, costs, middle_budget, problem

from qbench.network import Precision
from qbench.plan import Plan
from qbench.protocols import Accuracy
from qbench.result import SearchResult
from qbench.search.budget import MaxDrop
from qbench.search.problem import Goal
from qbench.search.run import run

HARMLESS, HARMFUL = Planted({}), Planted({i: 0.004 for i in range(5)})


def found(out: Path, planted: Planted, units: int = 5, **more: Any) -> SearchResult:
    network = chain(units)
    prices = costs(network)
    budgets = more.pop("budgets", ())
    return run(problem(out, network, budgets, **{"trials": 12, **more}), FakeEvaluator(planted), prices)


def ended(result: SearchResult) -> bool:
    return any("no plan is faster or takes less energy than 'int8'" in w for w in result.warnings)


@pytest.mark.parametrize("more", [{"max_drop": MaxDrop.parse("0.5%")}, {"budgets": ("60ms",)}, {"max_drop": MaxDrop.parse("0.5%"), "goal": Goal.ENERGY}],
                         ids=["floor", "budget", "least energy"])
def test_ends_where_int8_is_the_answer(tmp_path: Path, more: dict[str, Any]) -> None:
    """The full enumeration agrees: no plan is faster or takes less energy."""
    result = found(tmp_path, HARMLESS, **more)
    assert ended(result) and result.evaluated < 12
    assert result.chosen is not None and result.chosen.name == "int8" and result.feasible
    network = chain(5)
    prices = costs(network).price(np.array(list(itertools.product((0, 1), repeat=5))), "1000MHz")
    assert result.chosen.price.latency_ms == pytest.approx(min(p.latency_ms for p in prices))
    assert result.chosen.price.energy_mj == pytest.approx(min(p.energy_mj for p in prices))


def test_goes_on_without_limits(tmp_path: Path) -> None:
    """There the front is the question."""
    assert not ended(found(tmp_path, HARMLESS))


def test_goes_on_where_a_floor_is_broken(tmp_path: Path) -> None:
    assert not ended(found(tmp_path, HARMFUL, max_drop=MaxDrop.parse("0.5%")))


def test_goes_on_where_a_slower_plan_would_be_more_accurate(tmp_path: Path) -> None:
    """Within a budget accuracy is what decides."""
    network = chain(5)
    assert not ended(found(tmp_path, HARMFUL, budgets=(middle_budget(costs(network), 0.8),)))


def test_ends_with_a_floor_that_a_harmful_plan_keeps(tmp_path: Path) -> None:
    result = found(tmp_path, HARMFUL, max_drop=MaxDrop.parse("10%"))
    assert ended(result) and result.chosen is not None and result.chosen.name == "int8" and result.chosen.accuracy.drop > 0.0


def test_goes_on_where_int8_is_not_the_fastest(tmp_path: Path) -> None:
    """A unit that is slower in INT8 than in FP16."""
    network = chain(5)
    prices = costs(network)
    prices.seconds[2] = [9e-4, 3e-4]
    result = run(problem(tmp_path, network, (), max_drop=MaxDrop.parse("0.5%"), trials=12), FakeEvaluator(HARMLESS), prices)
    assert not ended(result)
    assert result.chosen is not None and result.chosen.price.latency_ms < result.uniform[str(Precision.INT8)].price.latency_ms


def test_goes_on_where_boards_will_measure(tmp_path: Path) -> None:
    """What is fastest by prediction need not be on the board."""
    assert not ended(found(tmp_path, HARMLESS, max_drop=MaxDrop.parse("0.5%"), measured=True))


class Late(FakeEvaluator):
    """The first samples tell no plan from float."""

    def evaluate(self, plan: Plan, samples: int | None = None) -> Accuracy:
        found = super().evaluate(plan, samples)
        return found if found.samples == self.samples else replace(found, value=FLOAT_VALUE, drop=0.0, drop_low=-0.01, drop_high=0.01)


def test_the_other_calibrators_of_the_answer_are_asked(tmp_path: Path) -> None:
    """They cost the same and one loses less, which the quick look cannot know."""
    planted = replace(HARMFUL, calibrators={"minmax": 1.0, "mse": 0.9, "kl": 0.8, "percentile:p=99.9": 0.3})
    network = chain(5)
    result = run(problem(tmp_path, network, max_drop=MaxDrop.parse("10%"), calibrators=tuple(planted.calibrators), trials=12), Late(planted), costs(network))
    assert any("no plan is faster or takes less energy than" in w for w in result.warnings) and result.evaluated < 12
    assert result.chosen is not None and result.chosen.calibrator == "percentile:p=99.9"
    assert result.chosen.accuracy.drop == pytest.approx(0.3 * 5 * 0.004)
