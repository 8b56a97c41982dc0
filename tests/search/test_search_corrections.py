"""Corrections and granularities as variables of a search, on the fashion sample: per-layer scales ruin it, equalization mends it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from qbench.errors import InputError, UnknownName
from qbench.evaluation import OnnxEvaluator
from qbench.network import Precision
from qbench.plan import Granularity, Plan
from qbench.result import SearchResult, result_from_dict
from qbench.workbench import SearchJob, open_case, run_search
from qbench.workbench.case import Case
from qbench.workbench.plans import Plans, schemes_of, statistics_of
from qbench.workbench.searching import corrected_makers


@pytest.fixture(scope="module")
def case() -> Case:
    return open_case(sample="fashion", limit=96)


@pytest.fixture(scope="module")
def found(case: Case, tmp_path_factory: pytest.TempPathFactory) -> tuple[SearchResult, Path]:
    out = tmp_path_factory.mktemp("corrections")
    job = SearchJob(case, "rk3588", precisions=("int8",), calibrators=("minmax",), scales=("per-layer",), corrections=("bias", "cle"), trials=4, out=out, track=False)
    return run_search(job), out


def test_the_correction_that_helps_is_chosen(found: tuple[SearchResult, Path]) -> None:
    result, out = found
    assert result.chosen is not None
    assert result.chosen.corrections == "cle"
    plain = next(c for c in result.candidates if not c.corrections)
    assert result.chosen.accuracy.value > plain.accuracy.value + 0.1
    assert "cle" in Plan.load(out / "plan.json").corrections
    assert result_from_dict(result.to_dict()).chosen == replace(result.chosen, accuracy=replace(result.chosen.accuracy, seconds=0.0))


def test_each_plan_file_scores_what_its_candidate_says(found: tuple[SearchResult, Path], case: Case) -> None:
    result, out = found
    evaluator = OnnxEvaluator(case.prepared, case.evaluation, case.metric)
    for c in result.candidates:
        assert evaluator.evaluate(Plan.load(out / c.plan)).value == c.accuracy.value


def test_what_was_learned_for_a_layer_goes_only_into_plans_that_have_it_so(case: Case) -> None:
    from qbench import targets

    target = targets.load("rk3588")
    toolkit = target.toolkit(None)
    units = [u.name for u in case.network.units]
    plans = Plans(case.network, statistics_of(case.prepared, case.calibration), schemes_of(target, toolkit), "rk3588", toolkit, target.fixed_outputs)
    allowed = {u: (Precision.INT8, Precision.INT16, Precision.FP16) for u in units}
    make = corrected_makers(case, ("bias", "adaround:iterations=2,samples=16"), plans, allowed, target, toolkit, "stop", lambda *x: None)
    mixed = {u: (Precision.INT8, Precision.INT16, Precision.FP16)[i % 3] for i, u in enumerate(units)}
    unit_of = {n: k for kernel in case.network.kernels for n in kernel.nodes for k in [case.network.unit_of_kernel[kernel.name]]}
    reader = {str(v.name): str(n.name) for n in case.prepared.model.graph for v in n.inputs if v is not None and v.is_initializer()}
    for spec, kind, held in (("bias", "bias", {Precision.INT8, Precision.INT16}), ("adaround:iterations=2,samples=16", "round", {Precision.INT8})):
        whole = make[spec](dict.fromkeys(units, Precision.INT8), "minmax", Granularity.PER_CHANNEL, "")
        some = make[spec](mixed, "minmax", Granularity.PER_CHANNEL, "")
        assert whole.tensors, spec
        kept = {name for name in whole.tensors if mixed[unit_of[name.removeprefix("bias:") if kind == "bias" else reader[name.removeprefix("round:")]]] in held}
        assert set(some.tensors) == kept
        assert kept < set(whole.tensors)


def test_a_step_that_every_plan_has_is_refused(case: Case) -> None:
    with pytest.raises(InputError, match="every plan has it already"):
        run_search(SearchJob(case, "rk3588", corrections=("bias-guard",), track=False))
    with pytest.raises(UnknownName, match="bais"):
        run_search(SearchJob(case, "rk3588", corrections=("bais",), track=False))
