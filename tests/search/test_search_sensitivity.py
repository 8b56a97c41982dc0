"""Sensitivities, the model made of them, and couplings of the planted kinds."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
from fake_search import FakeEvaluator, Planted, chain, like_brain, make_plan, problem
from hypothesis import given
from hypothesis import strategies as st

from qbench.network import Kernel, Network, Precision
from qbench.plan import Granularity
from qbench.protocols import Accuracy, silent
from qbench.search.loss import LossModel
from qbench.search.sensitivity import (
    SIGMAS,
    Coupling,
    Sensitivity,
    floor_of,
    least_lossy,
    loss_model,
    lowerings,
    measure,
    neighbours,
    noise,
    only,
    probe,
    standard_error,
    suspects,
)
from qbench.search.space import Space

INT8, INT16, FP16, FP32 = Precision.INT8, Precision.INT16, Precision.FP16, Precision.FP32
NAMES = ("int8", "int16", "fp16")


def space_of(network: Network, precisions: tuple[Precision, ...] = (INT8, FP16)) -> Space:
    return problem(Path(), network, precisions=precisions).space


class Look:
    """Accuracy of one precision per unit, as `measure` and `probe` ask for it; remembers what was asked."""

    def __init__(self, network: Network, planted: Planted, noise: float = 0.0, spread: float = 0.2) -> None:
        self.network, self.evaluator = network, FakeEvaluator(planted, noise=noise, spread=spread)
        self.asked: list[tuple[Precision, ...]] = []

    def __call__(self, precisions: Sequence[tuple[Precision, ...]]) -> list[Accuracy]:
        return [self._one(p) for p in precisions]

    def _one(self, precision: tuple[Precision, ...]) -> Accuracy:
        self.asked.append(precision)
        names = [u.name for u in self.network.units]
        plan = make_plan(self.network)(dict(zip(names, precision, strict=True)), "minmax", Granularity.PER_CHANNEL, "1000MHz")
        return self.evaluator.evaluate(plan, 12)


def accuracy(drop: float, error: float = 0.0, sqnr_db: float = math.nan) -> Accuracy:
    wide = SIGMAS * error
    return Accuracy("dice", 0.93 - drop, 0.0, 1.0, 12, drop, drop - wide, drop + wide, sqnr_db, 1.0, math.nan, 0.0)


# ------------------------------------------------------------------------------------------------ measuring


def test_each_unit_alone_is_lowered_in_order_and_the_rest_is_float() -> None:
    network = chain(4, fixed=(2,))
    space = space_of(network, (INT8, INT16, FP16))
    look, said = Look(network, like_brain(4)), list[tuple[str, int, int]]()
    found = list(measure(space, look, lambda *x: said.append(x)))
    assert [(s.unit, s.precision) for s in found] == [(u, p) for u in (0, 1, 3) for p in (INT8, INT16)] == lowerings(space)
    assert look.asked == [only(space, {s.unit: s.precision}) for s in found]
    assert all(sum(p is not FP32 for p in asked) == 1 for asked in look.asked)
    assert said == [("sensitivity", i, 6) for i in range(7)]


def test_what_is_measured_is_what_was_planted() -> None:
    network, planted = chain(5), Planted({0: 0.01, 1: 0.02, 2: 0.03, 3: 0.04, 4: 0.05})
    found = list(measure(space_of(network), Look(network, planted, spread=0.0), silent))
    assert [s.accuracy.drop for s in found] == pytest.approx([0.01, 0.02, 0.03, 0.04, 0.05], rel=1e-12)


def test_harmless_precisions_are_not_measured() -> None:
    network = chain(3)
    look = Look(network, like_brain(3))
    found = list(measure(space_of(network, (INT8, INT16, FP16)), look, silent, {INT16}))
    assert {s.precision for s in found} == {INT8}
    assert len(look.asked) == 3


def test_one_by_one_so_that_an_interruption_keeps_what_there_is() -> None:
    network = chain(3)
    look = Look(network, like_brain(3))
    going: Iterator[Sensitivity] = measure(space_of(network), look, silent)
    next(going)
    assert len(look.asked) == 1


@pytest.mark.parametrize("together", [1, 2, 100])
def test_asked_for_together_they_come_out_the_same(together: int) -> None:
    network = chain(5)
    look = Look(network, like_brain(5))
    assert list(measure(space_of(network), look, silent, together=together)) == list(measure(space_of(network), Look(network, like_brain(5)), silent))
    assert len(look.asked) == 5


@given(drop=st.floats(-1.0, 1.0), error=st.floats(1e-6, 1.0))
def test_standard_error_from_the_interval(drop: float, error: float) -> None:
    assert standard_error(accuracy(drop, error)) == pytest.approx(error, rel=1e-6)


def test_standard_error_of_an_interval_that_is_none() -> None:
    for low, high in [(math.nan, math.nan), (-math.inf, math.inf), (0.1, 0.1), (0.2, 0.1)]:
        assert standard_error(replace(accuracy(0.1), drop_low=low, drop_high=high)) == 0.0


def test_noise_is_the_share_of_power() -> None:
    assert noise(accuracy(0.0, sqnr_db=20.0)) == pytest.approx(0.01)
    assert noise(accuracy(0.0, sqnr_db=math.inf)) == 0.0
    assert noise(accuracy(0.0)) == 0.0


def test_the_floor_is_a_tenth_of_the_median_error() -> None:
    assert floor_of(np.array([0.0, 0.01, 0.02, 0.03])) == pytest.approx(0.002)
    assert floor_of(np.array([0.0, 0.0])) == floor_of(np.array([])) == 1e-6


# ------------------------------------------------------------------------------------------------ the model


def model_of(found: Mapping[int, Accuracy], units: int = 3) -> LossModel:
    return loss_model(space_of(chain(units), (INT8, INT16, FP16)), NAMES, [Sensitivity(u, INT8, a) for u, a in found.items()])


@given(drops=st.lists(st.floats(0.01, 0.5), min_size=3, max_size=3))
def test_clear_drops_are_taken_as_they_are(drops: list[float]) -> None:
    m = model_of({u: accuracy(d, 0.001, 20.0) for u, d in enumerate(drops)})
    assert m.unit[:, 0].tolist() == drops
    assert not m.unit[:, 1:].any()
    assert m.error.min() > 0.0


def test_a_drop_within_its_error_is_read_from_the_noise_at_the_output() -> None:
    """Units 0 and 1 lose 0.1 at a noise of 1 %; unit 2 shows nothing, but has a tenth of their noise: it should lose 0.01."""
    clear = accuracy(0.1, 0.001, 20.0)
    m = model_of({0: clear, 1: clear, 2: accuracy(0.0, 0.1, 30.0)})
    assert m.unit[2, 0] == pytest.approx(0.01, rel=0.1)          # e p / (e + p) with e = 10 p
    quiet = model_of({0: clear, 1: clear, 2: accuracy(0.0, 0.1, 60.0)})
    assert quiet.unit[2, 0] < 0.001


def test_a_gain_is_no_reason_to_lower_a_unit() -> None:
    assert model_of({0: accuracy(-0.3, 0.001), 1: accuracy(0.1, 0.001)}).unit.min() == 0.0


def test_nothing_measured_loses_nothing() -> None:
    m = model_of({})
    assert not m.unit.any() and m.error.min() > 0.0


def test_the_least_lossy_code_of_each_unit() -> None:
    network = chain(3, fixed=(1,))
    assert least_lossy(space_of(network, (INT8, INT16, FP16)), NAMES).tolist() == [2, 2, 2]
    assert least_lossy(space_of(chain(2), (INT16, INT8)), NAMES).tolist() == [1, 1]


# ------------------------------------------------------------------------------------------------ couplings


def test_neighbours_of_a_chain_with_a_skip() -> None:
    network = chain(5, skip=(0, 3))
    assert neighbours(network, space_of(network)) == [(0, 1), (0, 3), (1, 2), (2, 3), (3, 4)]


def test_neighbours_reach_through_units_without_a_choice() -> None:
    network = chain(6, fixed=(2, 3))
    assert neighbours(network, space_of(network)) == [(0, 1), (1, 4), (4, 5)]


def test_units_that_read_the_same_tensor_are_no_neighbours() -> None:
    """Two branches from one producer: each is coupled to it, not to the other."""
    network = chain(3)
    a, b, c = network.kernels
    fork: tuple[Kernel, ...] = (a, b, replace(c, inputs=a.outputs))
    forked = replace(network, kernels=fork)
    assert neighbours(forked, space_of(forked)) == [(0, 1), (0, 2)]


def test_suspects_are_lowered_unknown_and_the_worst_first() -> None:
    unit = np.array([[0.01, 0.0], [0.2, 0.0], [0.05, 0.0], [0.0, 0.0], [0.0, 0.0]])
    m = LossModel(unit, np.ones_like(unit))
    pairs = [(0, 1), (1, 2), (2, 3), (3, 4)]
    assert suspects(m, pairs, [0, 0, 0, 0, 0], set()) == [(0, 1), (1, 2)]          # unit 3 loses nothing at this code
    assert suspects(m, pairs, [1, 1, 1, 1, 1], set()) == []
    assert suspects(m, pairs, [0, 0, 0, 0, 0], {(0, 1, 0, 0)}) == [(1, 2)]


def probed(planted: Planted, units: int, noise: float = 0.0) -> dict[tuple[int, int], Coupling]:
    """Every pair of `units`, lowered together."""
    network = chain(units)
    space, look = space_of(network), Look(network, planted, noise, spread=0.0)
    alone = {(s.unit, s.precision): s.accuracy for s in measure(space, look, silent)}
    return {pair: probe(space, look, pair, (INT8, INT8), alone) for pair in combinations(range(units), 2)}


@pytest.mark.parametrize("planted", [(0, 1), (1, 3)])
def test_a_pair_that_loses_more_together_is_found_and_no_other(planted: tuple[int, int]) -> None:
    found = probed(Planted({u: 0.01 * (u + 1) for u in range(4)}, pairs={planted: 0.2}), 4)
    assert [pair for pair, c in found.items() if c.significant] == [planted]
    assert found[planted].interaction == pytest.approx(0.2, rel=1e-9)
    assert found[planted].apart == pytest.approx(0.01 * (sum(planted) + 2), rel=1e-9)


def test_a_pair_where_one_hides_the_other_is_found_with_its_sign() -> None:
    """As in the brain network: unit 0 alone loses 19 points, with unit 1 lowered too they are gone."""
    found = probed(like_brain(4), 4)
    assert found[0, 1].interaction == pytest.approx(-0.19, rel=1e-9)
    assert found[0, 1].significant
    assert not found[2, 3].significant


def test_within_the_noise_nothing_is_significant() -> None:
    found = probed(Planted({u: 0.01 for u in range(3)}, pairs={(0, 1): 0.01}), 3, noise=0.1)
    assert not any(c.significant for c in found.values())


def test_the_error_of_a_coupling_joins_three_measurements() -> None:
    network = chain(2)
    alone = {(0, INT8): accuracy(0.1, 0.03), (1, INT8): accuracy(0.2, 0.04)}
    found = probe(space_of(network), lambda asked: [accuracy(0.5, 0.12)], (0, 1), (INT8, INT8), alone)
    assert found.error == pytest.approx(0.13)
    assert (found.together, found.apart, found.interaction) == pytest.approx((0.5, 0.3, 0.2))
    assert not found.significant


def test_without_a_known_error_no_coupling_is_told() -> None:
    """A single sample has no interval: the two sums differ in the last digits, and that says nothing."""
    assert not Coupling((0, 1), (Precision.INT8, Precision.INT8), 3.1e-9, 3.0e-9, 0.0).significant
    assert Coupling((0, 1), (Precision.INT8, Precision.INT8), 0.1, 0.0, 0.01).significant


def test_a_uniform_plan_without_a_number_teaches_nothing(tmp_path: Path) -> None:
    """All INT8 ruins the metric, one unit alone does not: the model stays finite."""
    space = problem(tmp_path, chain(3)).space
    clean = Accuracy("auc", 0.9, 0.9, 0.9, 8, 0.0, 0.0, 0.0, 30.0, 1.0, math.nan, 0.1)
    found = [Sensitivity(u, INT8, clean) for u in range(3)]
    model = loss_model(space, ("int8", "fp16"), found, {INT8: replace(clean, value=math.nan, drop=math.nan)})
    assert np.isfinite(model.unit).all() and np.isfinite(model.error).all()
