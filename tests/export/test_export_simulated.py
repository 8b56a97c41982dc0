"""A simulator's outputs against onnxruntime's, and what the RKNN exporter does when the toolkit refuses its first way."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from export_cases import job

from qbench import qdq, toolchains
from qbench.errors import ToolError
from qbench.export import Produced, export, simulated
from qbench.export.comparing import judged_by_float, nearness, output_steps, reference_outputs
from qbench.runtime import Session
from qbench.targets.exporters import make, rknn

MADE = job()


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("reference") / "net.onnx"
    qdq.save(MADE.written.model, path)
    return path


def outputs(reference: Path, steps: float) -> list[dict[str, np.ndarray[tuple[int, ...], np.dtype[np.float32]]]]:
    """onnxruntime's own outputs, one value of the last sample moved by `steps` of the output's scale."""
    session = Session(reference, simulate=True)
    found = [session.run(s) for s in MADE.samples]
    found[-1]["y"] = found[-1]["y"].copy()
    found[-1]["y"].reshape(-1)[7] += np.float32(steps * output_steps(MADE)["y"])
    return found


@pytest.mark.parametrize(("steps", "fails"), [(0.0, False), (1.0, False), (2.0, True), (-40.0, True)])
def test_differences_are_counted_in_steps_of_the_output(reference: Path, steps: float, fails: bool) -> None:
    found = simulated(MADE, "stand-in", reference, outputs(reference, steps), limit_lsb=1.0)
    assert found.lsb == pytest.approx(abs(steps), abs=1e-3)
    assert (found.sqnr_db == float("inf")) is (steps == 0.0)
    if found.limit_lsb == 1.0:                                   # not where onnxruntime's own two ways differ on this CPU
        assert bool(found.fails) is fails


def test_nan_is_never_near(reference: Path) -> None:
    spoiled = outputs(reference, 0.0)
    spoiled[0]["y"] = np.full_like(spoiled[0]["y"], np.nan)
    found = simulated(MADE, "stand-in", reference, spoiled, limit_lsb=1.0, least_sqnr_db=20.0)
    assert found.lsb == float("inf") and found.fails


def noisy(db: float) -> list[dict[str, np.ndarray[tuple[int, ...], np.dtype[np.float32]]]]:
    """The float network's outputs with noise `db` below them."""
    session, rng = Session(qdq.to_bytes(MADE.prepared.model)), np.random.default_rng(7)
    found = []
    for sample in MADE.samples:
        y = session.run(sample)["y"]
        noise = rng.normal(size=y.shape)
        found.append({"y": (y + noise * np.sqrt(float((y * y).sum() / (noise * noise).sum()) / 10 ** (db / 10))).astype(np.float32)})
    return found


@pytest.mark.parametrize(("below", "forgiven"), [(1.0, True), (2.5, True), (4.0, False), (15.0, False)])
def test_what_rounds_elsewhere_may_be_three_decibels_further_from_float_than_the_plan(reference: Path, below: float, forgiven: bool) -> None:
    plan = nearness([Session(qdq.to_bytes(MADE.prepared.model)).run(s) for s in MADE.samples], reference_outputs(reference, MADE.samples))
    got = noisy(plan - below)
    strict = simulated(MADE, "stand-in", reference, got, least_sqnr_db=plan + 20.0, by_vendor=False)
    assert strict.fails
    found = judged_by_float(MADE, strict, reference, got, "it rounds elsewhere")
    assert bool(found.fails) is not forgiven
    assert found.note == f"{plan - below:.1f} dB from the float network, the plan's Q/DQ model {plan:.1f} dB: it rounds elsewhere"


def test_what_is_not_related_is_not_judged_by_float(reference: Path) -> None:
    got = noisy(-3.0)
    strict = simulated(MADE, "stand-in", reference, got, least_sqnr_db=20.0, by_vendor=False)
    assert judged_by_float(MADE, strict, reference, got, "why") is strict


def test_what_passes_is_left_alone(reference: Path) -> None:
    passed = simulated(MADE, "stand-in", reference, outputs(reference, 0.0), limit_lsb=1.0, by_vendor=False)
    assert judged_by_float(MADE, passed, reference, outputs(reference, 0.0), "why") is passed


def test_float_outputs_have_no_steps(reference: Path) -> None:
    mixed = job({"c": "fp16"})
    assert output_steps(mixed) == {} and set(output_steps(MADE)) == {"y"}


def test_where_the_toolkit_refuses_path_a_path_b_is_taken_and_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A labelled stand-in for the toolkit: path A fails, path B answers what the plan demands."""
    def refuse(self: object, python: Path, progress: object) -> Produced:
        raise ToolError("rknn-toolkit2 building g: Invalid w_par")

    monkeypatch.setattr(toolchains, "find", lambda toolchain: Path("python"))
    monkeypatch.setattr(toolchains, "need", lambda name: Path("python"))
    monkeypatch.setattr(rknn._QuantizedPath, "build", refuse)
    monkeypatch.setattr(rknn._RangedPath, "build", lambda self, python, progress: Produced(True, {}, self.job.demanded, conventions=self.conventions))
    body = export(MADE, make("rknn"), tmp_path / "out")
    assert body["conventions"]["path"].startswith("B") and "path A was refused (rknn-toolkit2 building g: Invalid w_par)" in body["remarks"][0]
    monkeypatch.setattr(rknn._RangedPath, "build", refuse)
    with pytest.raises(ToolError, match="Invalid w_par"):
        export(MADE, make("rknn"), tmp_path / "again")
    assert not (tmp_path / "again").exists()
