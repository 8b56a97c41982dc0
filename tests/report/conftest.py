"""Finished searches of every kind that a report must show."""

from __future__ import annotations

from dataclasses import replace

import pytest
from finished_search import NAN, Finished, candidate, finished

from qbench.result import Binding


@pytest.fixture
def whole() -> Finished:
    return finished()


@pytest.fixture
def infeasible(whole: Finished) -> Finished:
    binding = Binding("latency 0.01 ms", "11.9 ms (all INT8 at 1000MHz)", ("--budget 12ms would be met by all INT8",))
    missed = {k: replace(c, feasible=False, sure=False) for k, c in whole.result.uniform.items()}
    return replace(whole, result=replace(
        whole.result, feasible=False, binding=binding, budgets=("0.01ms",), uniform=missed,
        chosen=replace(missed["int8"]), candidates=tuple(replace(c, feasible=False, sure=False) for c in whole.result.candidates)))


@pytest.fixture
def bare(whole: Finished) -> Finished:
    """Stopped at once: no plan, no uniform, nothing but a reference whose numbers are missing."""
    reference = candidate("float", NAN, NAN, layers={}, origin="reference")
    return Finished(replace(
        whole.result, reference=reference, uniform={}, chosen=None, front=(), candidates=(), sensitivity=(), budgets=(), sample=False,
        provenance={}, warnings=(), mlflow={}, verified={}, evaluated=0, float_pass_equivalents=NAN, wall_s=NAN, partial=True), [], [])
