"""Increases of the task loss as sensitivities: scaling, prior, and a search that starts from them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pytest
from fake_search import FakeEvaluator, Planted, best_possible, chain, costs, middle_budget, problem

from qbench.network import Precision
from qbench.plan import Plan
from qbench.protocols import Accuracy
from qbench.result import SearchResult
from qbench.search.problem import Problem
from qbench.search.run import run
from qbench.search.second_order import MODEL_ERROR, Increase, foreseen, increases, prior
from qbench.search.sensitivity import standard_error
from qbench.search.space import Space

INT8, INT16, FP16 = Precision.INT8, Precision.INT16, Precision.FP16
NAMES = ("int8", "int16", "fp16")


def accuracy(drop: float, error: float = 0.001) -> Accuracy:
    wide = 1.959963984540054 * error
    return Accuracy("top1", 0.9 - drop, 0.8, 1.0, 500, drop, drop - wide, drop + wide, 30.0, 1.0, math.nan, 1.0)


def space_of(units: int, precisions: tuple[Precision, ...] = (INT8, FP16), fixed: tuple[int, ...] = ()) -> Space:
    return problem(Path(), chain(units, fixed=fixed), precisions=precisions).space


def test_an_increase_is_half_the_mean_square_with_the_error_of_that_mean() -> None:
    change = np.array([1.0, -3.0, 2.0, 0.0])
    [found] = increases({(4, INT8): change})
    assert (found.unit, found.precision, found.samples) == (4, INT8, 4)
    assert found.mean == pytest.approx((1 + 9 + 4) / 8)
    assert found.error == pytest.approx(np.std([0.5, 4.5, 2.0, 0.0], ddof=1) / 2)


def test_one_sample_leaves_the_figure_as_uncertain_as_it_is_large() -> None:
    [found] = increases({(0, INT8): np.array([2.0])})
    assert found.error == found.mean == 2.0


def test_drops_of_a_precision_add_up_to_what_its_uniform_plan_loses() -> None:
    space = space_of(3, (INT8, INT16, FP16))
    found = [Increase(u, p, mean, 0.1 * mean, 64) for u, mean in enumerate((1.0, 2.0, 5.0)) for p in (INT8, INT16)]
    rows = foreseen(space, found, {INT8: accuracy(0.08), INT16: accuracy(0.004)})
    drops = {(s.unit, s.precision): s.accuracy.drop for s in rows}
    assert [drops[u, INT8] for u in range(3)] == pytest.approx([0.01, 0.02, 0.05])
    assert [drops[u, INT16] for u in range(3)] == pytest.approx([0.0005, 0.001, 0.0025])
    assert [standard_error(s.accuracy) for s in rows if s.precision is INT8] == pytest.approx([0.001, 0.002, 0.005], rel=1e-6)
    assert all(s.accuracy.value == pytest.approx(0.9 - s.accuracy.drop) and s.accuracy.samples == 64 for s in rows)


def test_a_lossless_uniform_plan_still_lets_the_order_of_units_count() -> None:
    rows = foreseen(space_of(2), [Increase(0, INT8, 1.0, 0.0, 8), Increase(1, INT8, 3.0, 0.0, 8)], {INT8: accuracy(-0.01, error=0.004)})
    assert [s.accuracy.drop for s in rows] == pytest.approx([0.001, 0.003])


def test_units_that_must_stay_in_float_have_no_row() -> None:
    rows = foreseen(space_of(3, fixed=(1,)), [Increase(u, INT8, 1.0, 0.0, 8) for u in range(3)], {INT8: accuracy(0.02)})
    assert [s.unit for s in rows] == [0, 2]
    assert [s.accuracy.drop for s in rows] == pytest.approx([0.01, 0.01])


def test_the_prior_says_how_little_a_foreseen_drop_is_worth() -> None:
    rows = foreseen(space_of(2), [Increase(0, INT8, 1.0, 0.5, 8), Increase(1, INT8, 3.0, 0.3, 8)], {INT8: accuracy(0.04)})
    model = prior(space_of(2), NAMES, rows)
    assert model.unit[:, 0] == pytest.approx([0.01, 0.03])
    assert not model.unit[:, 1:].any()
    assert model.error[0, 0] == pytest.approx(math.hypot(0.005, MODEL_ERROR * 0.01))
    assert model.error[1, 0] == pytest.approx(math.hypot(0.003, MODEL_ERROR * 0.03))
    assert (model.error > 0.0).all()


@dataclass
class PlantedCurvature:
    """The planted losses as increases in a unit of their own."""

    planted: Planted
    passes: float = 0.25
    asked: list[Mapping[Precision, Plan]] = field(default_factory=list)

    def __call__(self, uniform: Mapping[Precision, Plan]) -> list[Increase]:
        self.asked.append(uniform)
        return [Increase(u, INT8, 7.0 * loss, 0.7 * loss, 32) for u, loss in self.planted.single.items()]


@pytest.fixture
def planted() -> Planted:
    return Planted({u: 0.0004 * (1 + (5 * u) % 8) for u in range(8)})


def search(out: Path, planted: Planted, curvature: PlantedCurvature | None) -> tuple[Problem, FakeEvaluator, SearchResult]:
    network = chain(8)
    priced = costs(network)
    asked = replace(problem(out, network, (middle_budget(priced, 0.4),), trials=16), second_order=curvature)
    evaluator = FakeEvaluator(planted, samples=480)
    return asked, evaluator, run(asked, evaluator, priced)


def test_a_search_that_foresees_lowers_no_unit_alone_and_finds_the_best_plan(tmp_path: Path, planted: Planted) -> None:
    curvature = PlantedCurvature(planted)
    asked, evaluator, found = search(tmp_path / "fisher", planted, curvature)
    [uniform] = curvature.asked
    assert set(uniform) == {INT8}
    assert set(uniform[INT8].precision.values()) == {INT8}
    alone = {key for u in range(8) for key in [asked.make_plan({f"conv{i}": INT8 if i == u else Precision.FP32 for i in range(8)}, uniform[INT8].calibrator,
                                                               uniform[INT8].granularity, asked.op_points[0]).key]}
    assert not alone & {key for key, _ in evaluator.log}
    assert found.chosen is not None
    assert found.chosen.accuracy.drop == pytest.approx(best_possible(asked, costs(chain(8)), planted), rel=0.01)
    assert sum(r["drop"] for r in found.sensitivity) == pytest.approx(found.uniform["int8"].accuracy.drop)
    _, measuring, _ = search(tmp_path / "measured", planted, None)
    assert alone <= {key for key, _ in measuring.log}


def test_what_the_curvature_costs_is_counted(tmp_path: Path, planted: Planted) -> None:
    _, _, cheap = search(tmp_path / "cheap", planted, PlantedCurvature(planted, passes=0.0))
    _, _, dear = search(tmp_path / "dear", planted, PlantedCurvature(planted, passes=5.0))
    assert dear.float_pass_equivalents - cheap.float_pass_equivalents == pytest.approx(5.0)


def test_studies_with_and_without_it_are_never_mixed(tmp_path: Path, planted: Planted) -> None:
    one = problem(tmp_path, chain(3))
    assert replace(one, second_order=PlantedCurvature(planted)).study_name != one.study_name
