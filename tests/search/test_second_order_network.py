"""The increases of real networks: quadratic losses through linear networks, where the Hessian and the increase are known exactly."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import models
import numpy as np
import onnx
import pytest
from numpy.typing import NDArray

from qbench import qdq
from qbench.data import ArrayDataset
from qbench.errors import ModelError, UnknownName
from qbench.graph import PreparedModel
from qbench.metrics import make
from qbench.network import Precision
from qbench.plan import Granularity, Plan
from qbench.runtime import Session
from qbench.workbench import SearchJob, open_case, run_search
from qbench.workbench.case import Case
from qbench.workbench.second_order import FisherCurvature

INT8 = Precision.INT8
SAMPLES = 3000
Array = NDArray[Any]


def weights(seed: int, *shape: int) -> Array:
    drawn: Array = np.random.default_rng(seed).normal(0.0, 1.0 / np.sqrt(np.prod(shape[1:])), shape).astype(np.float32)
    return drawn


def linear(outputs: int = 5) -> onnx.ModelProto:
    """Two convolutions side by side, joined, and a third: 'a' and 'b' are one unit. No bias, no clamp: linear in everything.

    The last joined channel is always 0, and 'c' has a huge weight for it: nothing shows it but the grid of its other weights, one scale for all.
    """
    nodes = [models.node("Conv", ["x", "wa"], ["a"], "a", pads=[1, 1, 1, 1]), models.node("Conv", ["x", "wb"], ["b"], "b"),
             models.node("Concat", ["a", "b"], ["ab"], "join", axis=1), models.node("Conv", ["ab", "wc"], ["c"], "c"),
             models.node("Flatten", ["c"], ["flat"], "flat"), models.node("MatMul", ["flat", "wd"], ["y"], "d")]
    held = {"wa": weights(1, 3, 2, 3, 3), "wb": weights(2, 3, 2, 1, 1), "wc": weights(3, 2, 6, 1, 1), "wd": weights(4, outputs, 32).T.copy()}
    held["wb"][2], held["wc"][0, 5] = 0.0, 20.0
    return models.model(nodes, {"x": ["N", 2, 4, 4]}, {"y": ["N", outputs]}, held)


def case_of(proto: onnx.ModelProto, metric: str, labels: Array | None = None) -> Case:
    x = np.random.default_rng(0).normal(0.0, 1.0, (SAMPLES, 2, 4, 4)).astype(np.float32)
    data = ArrayDataset({"x": x}, labels)
    return Case(models.prepare(proto), data, data, make(metric), None)


def uniform(case: Case, floats: tuple[str, ...] = ()) -> Plan:
    ranges = models.observe(case.prepared, [{"x": next(iter(case.evaluation.batches(SAMPLES))).feeds["x"]}])
    return models.plan(case.prepared, ranges, INT8, floats, granularity=Granularity.PER_LAYER)


def outputs(prepared: PreparedModel, plan: Plan | None, x: Array) -> Array:
    model = qdq.write(prepared, plan).model if plan else prepared.model
    return Session(qdq.to_bytes(model), None, True).run({"x": x})["y"].astype(np.float64)


def errors(case: Case) -> dict[int, Array]:
    """Unit -> what its being alone in integers does to the output: run, not derived."""
    x = next(iter(case.evaluation.batches(SAMPLES))).feeds["x"]
    base = outputs(case.prepared, None, x)
    names = [u.name for u in case.network.units]
    return {i: outputs(case.prepared, uniform(case, tuple(n for n in names if n != name)), x) - base for i, name in enumerate(names)}


def found_in(case: Case, **more: Any) -> dict[int, Any]:
    curvature = FisherCurvature(case, 128, samples=SAMPLES, **more)
    return {i.unit: i for i in curvature({INT8: uniform(case)})}


def close(found: Any, exact: float) -> None:
    assert found.error < 0.12 * found.mean
    assert abs(found.mean - exact) < 5.0 * found.error


def test_squared_error_has_the_known_hessian_and_the_increase_is_the_real_one() -> None:
    case = case_of(linear(), "sqnr")
    exact = {u: 0.5 * float(np.square(e).sum(1).mean()) for u, e in errors(case).items()}
    found = found_in(case)
    assert len(case.network.units) < 4, "the joined convolutions are one unit of several kernels"
    assert set(found) == set(exact)
    for u, value in exact.items():
        close(found[u], value)


def test_the_planted_order_is_found() -> None:
    case = case_of(linear(), "sqnr")
    found = found_in(case)
    worst = max(found, key=lambda u: found[u].mean)
    assert case.network.units[worst].name == "c", "its huge weight makes the grid coarse for all others"
    assert found[worst].mean > 10.0 * max(i.mean for u, i in found.items() if u != worst)


def test_with_labels_it_is_the_empirical_fisher_of_cross_entropy() -> None:
    labels = np.random.default_rng(7).integers(0, 5, SAMPLES)
    case = case_of(linear(), "top1", labels)
    base = outputs(case.prepared, None, next(iter(case.evaluation.batches(SAMPLES))).feeds["x"])
    shares = np.exp(base) / np.exp(base).sum(1, keepdims=True)
    slope = shares - np.eye(5)[labels]                            # of -log softmax: Bishop 2006, equation 4.109
    found = found_in(case)
    for u, error in errors(case).items():
        assert found[u].mean == pytest.approx(0.5 * np.square((slope * error).sum(1)).mean(), rel=2e-3)


def test_without_labels_it_is_the_curvature_of_the_divergence() -> None:
    case = case_of(linear(), "kl")
    base = outputs(case.prepared, None, next(iter(case.evaluation.batches(SAMPLES))).feeds["x"])
    shares = np.exp(base) / np.exp(base).sum(1, keepdims=True)
    found = found_in(case)
    for u, error in errors(case).items():
        mean = (shares * error).sum(1, keepdims=True)
        close(found[u], 0.5 * float((shares * np.square(error - mean)).sum(1).mean()))     # d' (diag p - p p') d


def test_a_score_of_several_columns_is_judged_by_the_highest() -> None:
    case = case_of(linear(), "auc", np.arange(SAMPLES) % 2)
    base = outputs(case.prepared, None, next(iter(case.evaluation.batches(SAMPLES))).feeds["x"])
    found = found_in(case)
    for u, error in errors(case).items():
        close(found[u], 0.5 * float(np.square(error[np.arange(SAMPLES), base.argmax(1)]).mean()))


def test_figures_are_remembered_by_content(tmp_path: Path) -> None:
    case = case_of(linear(), "sqnr")
    plan = {INT8: uniform(case)}
    first = FisherCurvature(case, 128, tmp_path, samples=64)
    again = FisherCurvature(case, 128, tmp_path, samples=64)
    assert first(plan) == again(plan)
    assert first.passes == pytest.approx((1.0 + 2.0 + 1.0) * 64 / SAMPLES)
    assert again.passes == 0.0
    other = FisherCurvature(case, 128, tmp_path, samples=32)
    other(plan)
    assert other.passes > 0.0


def test_the_batch_changes_nothing() -> None:
    case = case_of(linear(), "top1", np.random.default_rng(7).integers(0, 5, SAMPLES))
    one, many = ({i.unit: i.mean for i in FisherCurvature(case, size, samples=48)({INT8: uniform(case)})} for size in (1, 20))
    assert one == pytest.approx(many, rel=1e-4)


def test_an_operator_without_a_torch_form_is_named() -> None:
    nodes = [models.node("Conv", ["x", "w"], ["c"], "conv"), models.node("Celu", ["c"], ["y"], "odd")]
    case = case_of(models.model(nodes, {"x": ["N", 2, 4, 4]}, {"y": ["N", 3, 4, 4]}, {"w": weights(1, 3, 2, 1, 1)}), "sqnr")
    with pytest.raises(ModelError, match=r"no gradients for Celu \(node 'odd'\).*--sensitivity measured"):
        FisherCurvature(case, 8, samples=8)({INT8: uniform(case)})


def test_the_command_takes_it_and_refuses_other_words(tmp_path: Path) -> None:
    case = open_case(sample="fashion", limit=48)
    job = SearchJob(case, "rk3588", precisions=("int8", "fp16"), calibrators=("minmax",), trials=4, out=tmp_path, track=False, sensitivity="fisher")
    found = run_search(job)
    assert sum(r["drop"] for r in found.sensitivity) == pytest.approx(max(found.uniform["int8"].accuracy.drop, 1e-6), abs=0.05)
    assert all(np.isnan(r["sqnr_db"]) for r in found.sensitivity)
    assert list(tmp_path.glob("second-order-*.json"))
    with pytest.raises(UnknownName, match=r"sensitivity.*'hessian'.*measured, fisher"):
        run_search(SearchJob(case, "rk3588", out=tmp_path, track=False, sensitivity="hessian"))
