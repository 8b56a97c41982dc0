"""Boards in the loop of a search: what they teach, that measured plans decide, and a search that is measured from end to end."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np
import onnx
import pytest
from typer.testing import CliRunner

from qbench.board import Array, Measurement, Request
from qbench.cli.app import app
from qbench.cost import CostTable
from qbench.cost.board_table import class_of, seconds_by_class
from qbench.network import Precision
from qbench.plan import Granularity, Plan
from qbench.targets import load
from qbench.workbench.board_loop import Rig, lessons, teach
from qbench.workbench.case import Case, open_case
from qbench.workbench.plans import Plans, schemes_of, statistics_of

INT8, FP16 = Precision.INT8, Precision.FP16


class Planted:
    """A board whose times are those of a cost table, every class times its own factor. `busy` counts plans measured at one time."""

    def __init__(self, table: CostTable, plans: Mapping[str, Plan], factors: Mapping[str, float], url: str = "planted:") -> None:
        self.table, self.plans, self.factors, self.url = table, plans, factors, url
        self.asked: list[str] = []
        self.lock = Lock()

    def facts(self) -> Mapping[str, str]:
        return {}

    def seconds(self, plan: Plan) -> float:
        classes, rows, fixed = seconds_by_class(self.table, [plan])
        return float(rows[0] @ [self.factors.get(c, 1.0) for c in classes]) + fixed

    def measure(self, model: Path, feeds: Sequence[Mapping[str, Array]], request: Request) -> Measurement:
        assert self.lock.acquire(blocking=False), "one plan at a time"
        try:
            onnx.checker.check_model(str(model))
            self.asked.append(model.stem)
            ms = 1e3 * self.seconds(self.plans[model.stem])
            return Measurement(self.url, model.name, "planted", {}, 1.0, 1.0, tuple(ms * (1.0 + 0.001 * (i % 5)) for i in range(40)))
        finally:
            self.lock.release()


@pytest.fixture(scope="module")
def case() -> Case:
    return open_case(sample="fashion", limit=32)


@pytest.fixture(scope="module")
def maker(case: Case) -> Plans:
    target = load("rk3588")
    return Plans(case.network, statistics_of(case.prepared, case.calibration), schemes_of(target, "2.5.0"), target.name, "2.5.0")


@pytest.fixture(scope="module")
def table(case: Case) -> CostTable:
    return CostTable.build(case.network, load("rk3588"), "2.5.0")


def allowed(case: Case) -> dict[str, tuple[Precision, ...]]:
    return {u.name: (INT8, FP16) if u.quantizable else (FP16,) for u in case.network.units}


def made(maker: Plans, precision: Mapping[str, Precision]) -> Plan:
    return maker(precision, "minmax", Granularity.PER_CHANNEL, "1000MHz")


def test_lessons_hold_every_uniform_plan_and_mixtures(case: Case, maker: Plans) -> None:
    plans = lessons(case.network, allowed(case), lambda p: made(maker, p))
    kinds = [{p for u, p in plan.precision.items() if len(allowed(case)[u]) > 1} for plan in plans]
    assert {INT8} in kinds and {FP16} in kinds and sum(len(k) == 2 for k in kinds) >= 2
    assert all(p in allowed(case)[u] for plan in plans for u, p in plan.precision.items())
    assert [p.key for p in plans] == [p.key for p in lessons(case.network, allowed(case), lambda p: made(maker, p))]


def test_classes_add_up_to_the_price(case: Case, maker: Plans, table: CostTable) -> None:
    plans = lessons(case.network, allowed(case), lambda p: made(maker, p))
    classes, rows, fixed = seconds_by_class(table, plans)
    for plan, row in zip(plans, rows, strict=True):
        assert row.sum() + fixed == pytest.approx(table.price(table.codes(plan)[None], "1000MHz")[0].latency_ms / 1e3, rel=1e-9)
    assert class_of(case.network.kernels[0], INT8) in classes


def test_the_board_teaches_the_table_and_two_boards_share_the_work(case: Case, maker: Plans, table: CostTable) -> None:
    plans = lessons(case.network, allowed(case), lambda p: made(maker, p))
    by_key = {p.key: p for p in plans}
    factors = {"conv int8": 1.5, "conv fp16": 0.8, "depthwise int8": 3.0, "depthwise fp16": 2.0, "conversion": 1.2}
    boards = [Planted(table, by_key, factors, f"planted:{i}") for i in (0, 1)]
    rig = Rig(boards, case.prepared, [])
    corrected, found = teach(rig, table, plans)
    assert sorted(boards[0].asked + boards[1].asked) == sorted(by_key)
    for plan in plans:
        before, after = (t.price(t.codes(plan)[None], "1000MHz")[0].latency_ms for t in (table, corrected))
        truth = 1e3 * boards[0].seconds(plan) * 1.002
        assert abs(np.log(after / truth)) < 0.06
        assert abs(np.log(after / truth)) < abs(np.log(before / truth))
    assert corrected.target.latency_factor_high == pytest.approx(found.interval[1])
    assert "planted:0, planted:1" in corrected.target.provenance.fitted_on
    before_count = len(boards[0].asked)
    rig.measure(plans)
    assert len(boards[0].asked) == before_count                                # known ones are not measured again


def test_the_table_keeps_bytes_and_energy(case: Case, maker: Plans, table: CostTable) -> None:
    plans = lessons(case.network, allowed(case), lambda p: made(maker, p))
    corrected, _ = teach(Rig([Planted(table, {p.key: p for p in plans}, {"conv int8": 2.0})], case.prepared, []), table, plans)
    assert corrected.memory(plans[0]).peak_bytes == table.memory(plans[0]).peak_bytes
    assert all(a[0][0].joules == b[0][0].joules for a, b in zip(corrected.kernels, table.kernels, strict=True))


def search(folder: Path, *more: str) -> dict[str, Any]:
    run = CliRunner().invoke(app, ["search", "--sample", "fashion", "--limit", "48", "--target", "host", "--trials", "8", "--no-track", "-o", str(folder),
                                   "--json", *more])
    assert run.exit_code in (0, 1), run.output
    body: dict[str, Any] = json.loads(run.stdout)
    return body


def test_a_search_on_this_machine_is_measured_and_says_so(tmp_path: Path) -> None:
    found = search(tmp_path / "a", "--board", "local://onnxruntime?threads=1", "--budget", "500ms")
    chosen = found["chosen"]
    assert found["feasible"] and chosen["measured"]["board"] == "local://onnxruntime?threads=1" and not chosen["measured"]["recorded"]
    assert chosen["measured"]["latency_ms"] < 500.0 and chosen["latency_ms"] != chosen["measured"]["latency_ms"]
    measured = {c["plan_key"]: c for c in found["candidates"] if c["measured"]}
    assert len(measured) >= 2
    assert "measured plans on local://" in json.dumps(found["provenance"])
    page = (tmp_path / "a" / "report.html").read_text()
    assert "measured" in page and "local://" in page


def test_a_budget_that_only_the_prediction_would_keep_is_not_kept(tmp_path: Path) -> None:
    """Nothing runs a network in a nanosecond: measured, every plan misses it."""
    found = search(tmp_path / "b", "--board", "local://onnxruntime?threads=1", "--budget", "1us")
    assert not found["feasible"]
