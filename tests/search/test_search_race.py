"""Plans race over growing numbers of samples: which looks there are, and why a plan falls out."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

from fake_search import FakeEvaluator, Planted, chain, costs, problem
from hypothesis import given
from hypothesis import strategies as st

from qbench.network import Precision
from qbench.search.bench import Bench
from qbench.search.book import Book, _rungs
from qbench.search.budget import MaxDrop
from qbench.search.ledger import WHOLE, open_ledger
from qbench.search.problem import Events
from qbench.search.space import Config

INT8, FP16 = Precision.INT8, Precision.FP16


@given(st.integers(1, 300), st.integers(1, 3000), st.integers(1, 64))
def test_looks_grow_in_whole_runs_and_end_where_little_is_left(subset: int, samples: int, step: int) -> None:
    subset *= step
    rungs = _rungs(subset, samples, step)
    assert rungs[0] == subset
    assert all(b >= 3 * a and b % step == 0 for a, b in pairwise(rungs))
    assert all(r <= 2 / 3 * samples for r in rungs[1:])
    assert 3 * rungs[-1] > 2 / 3 * samples - step


def test_a_small_set_has_no_looks() -> None:
    assert _rungs(WHOLE, 12, 1) == ()


def book_of(out: Path, evaluator: FakeEvaluator, **more: Any) -> Book:
    network = chain(4)
    wanted = problem(out, network, calibrators=("minmax",), subset=8, **more)
    bench = Bench(wanted, evaluator, costs(network), open_ledger(None, "race", wanted.space))
    return Book(wanted, bench, Events(), bench.reference(None))


def config(*precision: Precision) -> Config:
    return Config(precision, "minmax", "per-channel", "1000MHz")


def test_a_plan_that_is_clearly_beaten_falls_out_at_the_first_look(tmp_path: Path) -> None:
    evaluator = FakeEvaluator(Planted({0: 0.001, 1: 0.3, 2: 0.001}, calibrators={"minmax": 1.0}))
    book = book_of(tmp_path, evaluator)
    assert book.rungs == (8, 24)
    good = book.consider(config(INT8, FP16, INT8, INT8), "test")
    bad = config(FP16, INT8, FP16, FP16)                         # loses more, and is slower
    assert good is not None
    assert book.consider(bad, "test") is None
    assert f"while {good.candidate.name!r}" in book.dropped[bad].reason
    asked = [n for key, n in evaluator.log if key == book.bench.plan_key(bad)]
    assert asked == [8]
    assert [n for key, n in evaluator.log if key == good.candidate.plan_key] == [8, 24, 48]


def test_within_the_error_a_plan_goes_on(tmp_path: Path) -> None:
    book = book_of(tmp_path, FakeEvaluator(Planted({0: 0.001, 1: 0.002, 2: 0.001}, calibrators={"minmax": 1.0}), noise=0.05))
    book.consider(config(INT8, FP16, INT8, INT8), "test")
    assert book.consider(config(FP16, INT8, FP16, FP16), "test") is not None


def test_a_plan_that_surely_loses_more_than_is_allowed_falls_out(tmp_path: Path) -> None:
    book = book_of(tmp_path, FakeEvaluator(Planted({1: 0.3}, calibrators={"minmax": 1.0})), max_drop=MaxDrop.parse("1%"))
    bad = config(FP16, INT8, FP16, FP16)
    assert book.consider(bad, "test") is None
    assert "0.01 is allowed" in book.dropped[bad].reason
    assert book.consider(config(INT8, FP16, INT8, INT8), "test") is not None


def test_always_means_the_whole_set(tmp_path: Path) -> None:
    book = book_of(tmp_path, FakeEvaluator(Planted({1: 0.3}, calibrators={"minmax": 1.0})), max_drop=MaxDrop.parse("1%"))
    assert book.consider(config(FP16, INT8, FP16, FP16), "test", always=True) is not None
