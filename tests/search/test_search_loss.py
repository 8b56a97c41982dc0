"""The loss model: sums, and a refit that finds what was planted."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.optimize import nnls

from qbench.search.loss import TRUST, LossModel, Observations, refit

Floats = NDArray[np.float64]
FEW = settings(max_examples=50, suppress_health_check=[HealthCheck.too_slow])
UNITS = 4
LOW, HIGH = 0, 1
"""Codes: INT8, and FP16, which loses nothing."""
ALLOWED = [[LOW, HIGH]] * UNITS
BASE = np.full(UNITS, HIGH, np.int64)
EVERY = np.array(list(product([LOW, HIGH], repeat=UNITS)), np.int64)

terms = st.lists(st.floats(0.001, 0.05), min_size=UNITS, max_size=UNITS)


def model(lost: list[float], pairs: dict[tuple[int, int], float] | None = None, error: float = 0.002) -> LossModel:
    unit = np.zeros((UNITS, 2))
    unit[:, LOW] = lost
    found = LossModel(unit, np.full((UNITS, 2), error))
    for pair, value in (pairs or {}).items():
        found = found.with_probe(pair, (LOW, LOW), value, 1e-6)
    return replace(found, probed={})


def exact(truth: LossModel, codes: NDArray[np.int64] = EVERY) -> Observations:
    """What an evaluator without noise sees."""
    return Observations(codes, truth.predict(codes), np.zeros(len(codes)))


def by_hand(m: LossModel, codes: NDArray[np.int64]) -> list[float]:
    return [max(0.0, sum(m.unit[u, p] for u, p in enumerate(row)) + sum(t[row[a], row[b]] for (a, b), t in m.pairs.items())) for row in codes]


@FEW
@given(lost=terms, coupled=st.floats(-0.2, 0.2), pair=st.sampled_from([(0, 1), (0, 3), (2, 3)]))
def test_predict_is_the_sum_of_its_terms_and_at_least_0(lost: list[float], coupled: float, pair: tuple[int, int]) -> None:
    m = model(lost, {pair: coupled})
    assert m.predict(EVERY).tolist() == pytest.approx(by_hand(m, EVERY), abs=1e-15)
    assert m.predict(EVERY[3]).tolist() == [m.predict(EVERY)[3]]
    assert m.predict(BASE).tolist() == [0.0]


def test_with_pairs_orders_them_and_keeps_what_is_known() -> None:
    m = model([0.01] * UNITS, {(0, 1): -0.005}).with_pairs([(1, 0), (3, 2)])
    assert list(m.pairs) == [(0, 1), (2, 3)]
    assert m.pairs[0, 1][LOW, LOW] == -0.005
    assert not m.pairs[2, 3].any()


def test_a_probe_changes_a_copy() -> None:
    m = model([0.01] * UNITS).with_pairs([(0, 1)])
    probed = m.with_probe((0, 1), (LOW, LOW), 0.3, 0.01)
    assert m.pairs[0, 1][LOW, LOW] == 0.0 and not m.probed
    assert probed.pairs[0, 1].tolist() == [[0.3, 0.0], [0.0, 0.0]]
    assert probed.probed == {(0, 1, LOW, LOW): 0.01}


# ------------------------------------------------------------------------------------------------ refit


@FEW
@given(lost=terms)
def test_where_losses_add_up_refit_changes_nothing(lost: list[float]) -> None:
    prior = model(lost).with_pairs([(0, 1), (1, 2), (2, 3)])
    found = refit(prior, exact(prior), ALLOWED, BASE, 1e-6)
    assert found.unit.ravel().tolist() == pytest.approx(prior.unit.ravel().tolist(), abs=1e-9)
    assert max(float(np.abs(t).max()) for t in found.pairs.values()) < 1e-9


@FEW
@given(lost=terms, factor=st.floats(0.2, 3.0))
def test_refit_corrects_sensitivities_that_were_off(lost: list[float], factor: float) -> None:
    """One factor on all of them, as another calibrator gives: the prior says `lost`, every plan loses `factor` times that."""
    prior, truth = model(lost, error=0.1), model([factor * x for x in lost])
    found = refit(prior, exact(truth), ALLOWED, BASE, 1e-6)
    assert found.unit[:, LOW].tolist() == pytest.approx(truth.unit[:, LOW].tolist(), rel=0.05)


@FEW
@given(lost=terms, share=st.floats(0.5, 3.0), pair=st.sampled_from([(0, 1), (1, 2), (2, 3)]))
def test_refit_recovers_a_pair_that_loses_more_together(lost: list[float], share: float, pair: tuple[int, int]) -> None:
    """Planted on a pair: some times what the worse of the two loses alone. The other pairs stay small."""
    planted = share * max(lost[pair[0]], lost[pair[1]])
    truth = model(lost, {pair: planted})
    found = refit(model(lost).with_pairs([(0, 1), (1, 2), (2, 3)]), exact(truth), ALLOWED, BASE, 1e-6)
    learnt = {k: float(t[LOW, LOW]) for k, t in found.pairs.items()}
    tolerance = 4.0 * TRUST * float(truth.predict(EVERY).max())
    assert abs(learnt.pop(pair) - planted) < min(tolerance, 0.5 * planted + 1e-4)
    assert found.predict(EVERY) == pytest.approx(truth.predict(EVERY), abs=tolerance / 2.0)


@FEW
@given(strong=st.floats(0.05, 0.2), rest=st.floats(0.001, 0.003), left=st.floats(0.0, 0.1))
def test_refit_recovers_a_pair_where_one_hides_the_other(strong: float, rest: float, left: float) -> None:
    """The wrong sign of one at a time: unit 0 alone loses much, with 1 lowered too next to nothing. A negative term says so."""
    alone = [strong, 0.002, rest, rest]
    truth = model(alone, {(0, 1): -(1.0 - left) * strong})
    prior = model(alone, error=0.1 * strong).with_pairs([(0, 1), (1, 2), (2, 3)])
    together = EVERY[(EVERY[:, 0] == EVERY[:, 1])]
    found = refit(prior, exact(truth, together), ALLOWED, BASE, 1e-6)
    assert found.pairs[0, 1][LOW, LOW] < -0.5 * strong
    assert found.predict(together) == pytest.approx(truth.predict(together), abs=0.003)
    assert found.unit[0, LOW] == pytest.approx(strong, rel=0.2)


def test_a_probed_pair_moves_less_than_one_that_was_not() -> None:
    lost = [0.02, 0.01, 0.005, 0.005]
    truth = exact(model(lost, {(0, 1): 0.02}))
    free = refit(model(lost).with_pairs([(0, 1)]), truth, ALLOWED, BASE, 1e-6)
    held = refit(model(lost).with_probe((0, 1), (LOW, LOW), 0.0, 1e-5), truth, ALLOWED, BASE, 1e-6)
    assert abs(held.pairs[0, 1][LOW, LOW]) < 0.0005
    assert free.pairs[0, 1][LOW, LOW] > 0.01


@FEW
@given(seed=st.integers(0, 2**32), rows=st.integers(1, 12))
def test_refit_is_the_bounded_least_squares_it_claims(seed: int, rows: int) -> None:
    """An oracle by another algorithm (non-negative least squares, Lawson and Hanson) on the written formula, three precisions."""
    rng = np.random.default_rng(seed)
    lost, error = 0.02 * rng.random((UNITS, 3)), 0.001 + 0.01 * rng.random((UNITS, 3))
    lost[:, 2] = 0.0
    codes = rng.integers(0, 3, (rows, UNITS))
    seen = Observations(codes, 0.1 * rng.random(rows), 0.002 * rng.random(rows))
    columns = [(u, p) for u in range(UNITS) for p in (0, 1)]
    design = np.array([[float(row[u] == p) for u, p in columns] for row in codes])
    s = np.hypot(np.maximum(seen.error, 1e-3), TRUST * seen.loss)
    prior = np.array([lost[c] for c in columns]), np.array([error[c] for c in columns])
    expected, _ = nnls(np.vstack([design / s[:, None], np.diag(1.0 / prior[1])]), np.concatenate([seen.loss / s, prior[0] / prior[1]]))
    found = refit(LossModel(lost, error), seen, [[0, 1, 2]] * UNITS, np.full(UNITS, 2, np.int64), 1e-3)
    assert [found.unit[c] for c in columns] == pytest.approx(expected.tolist(), abs=1e-8)
    assert not found.unit[:, 2].any()


@FEW
@given(seed=st.integers(0, 2**32), rows=st.integers(0, 12))
def test_refit_never_gives_a_gain_to_a_unit_nor_a_loss_to_the_base(seed: int, rows: int) -> None:
    rng = np.random.default_rng(seed)
    prior = model((0.02 * rng.random(UNITS)).tolist()).with_pairs([(0, 1), (1, 3)])
    seen = Observations(rng.integers(0, 2, (rows, UNITS)), 0.2 * rng.random(rows), np.full(rows, 0.001))
    found = refit(prior, seen, ALLOWED, BASE, 1e-6)
    assert found.unit.min() >= 0.0
    assert not found.unit[:, HIGH].any()
    assert all(t[a, b] == 0.0 for t in found.pairs.values() for a, b in [(LOW, HIGH), (HIGH, LOW), (HIGH, HIGH)])
    assert found.predict(BASE).tolist() == [0.0]


def test_a_unit_without_a_choice_has_no_term() -> None:
    prior = model([0.01] * UNITS)
    fixed = [[HIGH], *ALLOWED[1:]]
    found = refit(prior, exact(model([0.05] * UNITS)), fixed, BASE, 1e-6)
    assert found.unit[0].tolist() == prior.unit[0].tolist()
    assert refit(prior, exact(prior), [[HIGH]] * UNITS, BASE, 1e-6) is prior


def test_nothing_seen_nothing_learnt() -> None:
    prior = model([0.01] * UNITS)
    assert refit(prior, exact(prior, EVERY[:0]), ALLOWED, BASE, 1e-6) is prior
