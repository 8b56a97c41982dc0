"""Faults that were found in the search, each held by the smallest case that showed it."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from fake_search import chain, costs, problem

from qbench.errors import BudgetError
from qbench.network import Precision
from qbench.protocols import Accuracy
from qbench.search.budget import Budget, MaxDrop
from qbench.search.loss import LossModel
from qbench.search.planner import Planner
from qbench.search.sensitivity import SIGMAS, Sensitivity, least_lossy, loss_model, suspects

INT8, INT16, FP16 = Precision.INT8, Precision.INT16, Precision.FP16


def test_a_memory_cut_keeps_the_one_plan_that_fits() -> None:
    net, names = chain(4), ("int8", "int16", "fp16")
    priced = costs(net, names, seed=4)
    allowed = {u.name: (FP16, INT16, INT8) for u in net.units} | {"conv3": (FP16, INT16)}
    space = replace(problem(Path(), net), allowed=allowed).space
    rows = np.array([space.codes(p, names) for p in space.every()])
    least = min(p.peak_memory_bytes for p in priced.price(rows, "1000MHz"))
    model = LossModel(np.tile([0.02, 0.01, 0.0], (4, 1)), np.full((4, 3), 1e-3))
    planner = Planner(space, priced, [Budget.parse(f"{least + 1}B")], least_lossy(space, names))
    assert planner.best("1000MHz", model) is not None
    assert planner.any("1000MHz") is not None


def test_of_two_unclear_drops_the_noisier_counts_as_larger() -> None:
    def unclear(db: float) -> Accuracy:
        width = SIGMAS * 0.01
        return Accuracy("dice", 0.93, 0, 1, 12, 0.0, -width, width, db, 1.0, math.nan, 0.0)

    space = problem(Path(), chain(3)).space
    found = [Sensitivity(u, INT8, unclear(db)) for u, db in enumerate((40.0, 30.0, 20.0))]
    a, b, c = loss_model(space, ("int8", "fp16"), found).unit[:, 0]
    assert a < b < c


def test_suspects_are_both_lowered() -> None:
    unit = np.array([[0.01, 0.0], [0.2, 0.0], [0.05, 0.0]])
    assert suspects(LossModel(unit, np.ones_like(unit)), [(0, 1), (1, 2)], [0, 1, 0], set()) == []


@pytest.mark.parametrize(("text", "parse"), [("1,5ms", Budget.parse), ("0,5%", MaxDrop.parse)])
def test_a_decimal_comma_is_named(text: str, parse: object) -> None:
    assert callable(parse)
    with pytest.raises(BudgetError, match="decimals with a point"):
        parse(text)
