"""`qbench analyze` as a user meets it: arguments, exit codes, output; and what it asks of statistics and target."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from analysis_cases import case, chain, detection_head, noise_feeds, residual
from models import NPU, observe, plan

from qbench import targets
from qbench.affine import Range
from qbench.cli import main
from qbench.corrections import rewritten
from qbench.data import ArrayDataset, open_dataset
from qbench.errors import InputError
from qbench.graph import load_network
from qbench.network import Precision
from qbench.plan import Granularity
from qbench.samples import load_sample
from qbench.workbench.analyzing import (
    Subject,
    analyze_plan,
    best_ranges,
    fresh_ranges,
    higher,
    last_plan,
    open_subject,
    plan_path,
    prescribed,
)
from qbench.workbench.case import open_data
from qbench.workbench.plans import Plans, schemes_of, statistics_of


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A model with its plan in the folder of a search, data, and a plan of another model."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "160")
    feeds = noise_feeds((3, 8, 8), 8)
    onnx.save(detection_head(), str(tmp_path / "net.onnx"))
    onnx.save(residual(), str(tmp_path / "other.onnx"))
    np.savez(tmp_path / "data.npz", x=np.concatenate([f["x"] for f in feeds]))
    for name in ("net", "other"):
        prepared = load_network(tmp_path / f"{name}.onnx")
        data = open_data("data.npz", prepared)
        made = plan(prepared, observe(prepared, [dict(b.feeds) for b in data.batches(1)]))
        goal = tmp_path / "qbench-out" / f"{name}-rk3588"
        goal.mkdir(parents=True)
        made.save(goal / "plan.json")
    return tmp_path


def qbench(capsys: pytest.CaptureFixture[str], *arguments: object, code: int = 0) -> tuple[str, str]:
    """(standard output, standard error)."""
    with pytest.raises(SystemExit) as ended:
        main([str(a) for a in arguments])
    out, err = capsys.readouterr()
    assert (ended.value.code or 0) == code, f"{arguments}: exit {ended.value.code}\n{out}\n{err}"
    return out, err


def test_model_and_plan_give_a_table_and_a_verdict(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, _ = qbench(capsys, "analyze", "net.onnx", "qbench-out/net-rk3588/plan.json", "--data", "data.npz", "--checks", 1)
    for words in ("2 INT8", "8 samples of data.npz walked over", "outputs as they ship: y ", "y: scores 0.0 dB", "join",
                  "Cut the graph before 'join'", "] Scale group"):
        assert words in out, words
    assert sorted(p.name for p in folder.iterdir()) == ["data.npz", "net.onnx", "other.onnx", "qbench-out"]


def test_the_folder_of_a_search_and_its_last_plan_are_found(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    by_folder, _ = qbench(capsys, "analyze", "net.onnx", "qbench-out/net-rk3588", "--data", "data.npz", "--checks", 0)
    by_itself, _ = qbench(capsys, "analyze", "net.onnx", "--data", "data.npz", "--checks", 0)
    assert by_folder == by_itself and "qbench-out/net-rk3588/plan.json" in by_itself


def test_the_newest_plan_counts(folder: Path) -> None:
    old, new = folder / "qbench-out" / "net-rk3588" / "plan.json", folder / "qbench-out" / "net-host" / "plan.json"
    new.parent.mkdir()
    new.write_bytes(old.read_bytes())
    os.utime(old, (1, 1))
    assert last_plan("net").resolve() == new
    os.utime(new, (0, 0))
    assert last_plan("net").resolve() == old
    with pytest.raises(InputError, match="nothing-here"):
        last_plan("nothing-here")


def test_json_is_one_object_with_stable_names_and_the_page_is_written(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, _ = qbench(capsys, "analyze", "net.onnx", "qbench-out/net-rk3588", "-d", "data.npz", "--samples", 3, "--checks", 1, "--json",
                    "-o", "deep/a.html")
    body: dict[str, Any] = json.loads(out)
    assert {"model", "model_key", "plan", "plan_key", "target", "calibrator", "granularity", "data", "samples", "seen", "simulated", "layers",
            "outputs", "kernels", "stored", "mixed", "weights", "constant", "unobserved", "checks", "coverage", "warnings", "findings"} <= set(body)
    assert (body["samples"], body["seen"]) == (3, 8)
    assert body["findings"][0]["kind"] == "cut" and body["findings"][0]["gain_db"] > 20
    tensor = next(t for k in body["kernels"] for t in k["tensors"] if t["tensor"] == "y")
    assert {"sqnr_db", "cosine", "zeroed"} == set(tensor["isolated"]) == set(tensor["accumulated"])
    assert tensor["dead"] == [4, 5, 6, 7]
    assert "<html" in (folder / "deep" / "a.html").read_text()
    assert [p.name for p in (folder / "deep").iterdir()] == ["a.html"]


def test_the_table_is_limited_and_says_so(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    short, _ = qbench(capsys, "analyze", "net.onnx", "-d", "data.npz", "--rows", 1, "--checks", 0)
    assert "3 more tensors" in short and "--rows 4" in short
    whole, _ = qbench(capsys, "analyze", "net.onnx", "-d", "data.npz", "--rows", 4, "--checks", 0)
    assert "more tensors" not in whole


@pytest.mark.parametrize(("arguments", "words"), [
    (["net.onnx", "qbench-out/other-rk3588", "-d", "data.npz"], ["made for model", "use the model of the search"]),
    (["net.onnx", "qbench-out/net-rk3588"], ["net.onnx", "--data", "labels are not needed"]),
    (["net.onnx", "other.onnx", "-d", "data.npz"], ["expected a model and a plan", "net.onnx, other.onnx"]),
    (["none.onnx", "-d", "data.npz"], ["none.onnx", "no such file"]),
    (["other.onnx", "data.npz", "-d", "data.npz"], ["expected a model and a plan"]),
    (["net.onnx", "missing.json", "-d", "data.npz"], ["missing.json", "cannot be read"]),
    (["net.onnx", "qbench-out", "-d", "data.npz"], ["qbench-out", "holds no plan.json"]),
    (["net.onnx", "-d", "data.npz", "--sample", "brain"], ["--sample brain", "net.onnx", "one of the two"]),
    (["--sample", "fashion"], ["qbench search", "fashion"]),
    (["--sample", "nothing"], ["nothing", "brain"]), (["--sample", "fashion", "--limit", "3"], ["--limit", "model of your own"]),
    (["qbench-out/net-rk3588", "-d", "data.npz"], ["--data without a model"]),
    (["qbench-out/net-rk3588"], ["made for model"]),
    (["net.onnx", "-d", "data.npz", "-o", "net.onnx"], ["would destroy it"]),
    (["net.onnx", "-d", "data.npz", "-o", "data.npz"], ["would destroy it"]),
    (["net.onnx", "qbench-out/net-rk3588/plan.json", "-d", "data.npz", "-o", "qbench-out/net-rk3588/plan.json"], ["would destroy it"])])
def test_bad_input_ends_with_two_and_a_cure(folder: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], words: list[str]) -> None:
    _, err = qbench(capsys, "analyze", *arguments, code=2)
    for word in words:
        assert word in err, err
    assert (folder / "net.onnx").stat().st_size > 0


def test_the_page_never_replaces_the_plan_that_was_found_by_itself(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, err = qbench(capsys, "analyze", "net.onnx", "-d", "data.npz", "-o", "qbench-out/net-rk3588/plan.json", code=2)
    assert "would destroy it" in err


def test_a_built_in_sample_needs_a_plan_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """The small sample, end to end through the target of its plan."""
    monkeypatch.chdir(tmp_path)
    sample = load_sample("fashion")
    prepared = load_network(sample.model)
    target = targets.load("rk3588")
    plans = Plans(prepared.network, statistics_of(prepared, sample.calibration), schemes_of(target, None), "rk3588", target.toolkit(None))
    precision = {u.name: Precision.INT8 if u.quantizable else Precision.FP16 for u in prepared.network.units}
    goal = tmp_path / "qbench-out" / "fashion-rk3588" / "plan.json"
    goal.parent.mkdir(parents=True)
    plans(precision, "minmax", Granularity.PER_CHANNEL, "").save(goal)
    out, _ = qbench(capsys, "analyze", "--sample", "fashion", goal, "--samples", 8, "--checks", 1, "--json")
    body = json.loads(out)
    assert body["target"] == "rk3588" and body["calibrator"] == "minmax" and body["samples"] == 8
    assert {c["change"] for c in body["checks"] if c["kind"] == "raise"} <= {"int16", "fp16"}
    again, _ = qbench(capsys, "analyze", "--sample", "fashion", "--samples", 8, "--checks", 1, "--json")
    assert json.loads(again) == body | {"plan": str(goal.relative_to(tmp_path))}


# -- what the workbench adds

def subject(tmp_path: Path, **options: Any) -> tuple[Subject, Any]:
    found = case(chain(), noise_feeds((3, 10, 10)), **options)
    data = ArrayDataset({"x": found.x["x"]}, None, "data")
    return Subject(found.prepared, found.plan, tmp_path / "plan.json", data), found


def test_without_a_target_a_unit_may_go_to_fp16_and_to_what_the_plan_has(tmp_path: Path) -> None:
    made, found = subject(tmp_path)
    _, above = higher(found.prepared.network, made.plan, found.statistics)
    assert set(above.values()) == {(Precision.FP16,)}
    made, found = subject(tmp_path, base=Precision.INT16)
    _, above = higher(found.prepared.network, made.plan, found.statistics)
    assert set(above.values()) == {(Precision.FP16,)}
    made, found = subject(tmp_path, base=Precision.FP16)
    _, above = higher(found.prepared.network, made.plan, found.statistics)
    assert set(above.values()) == {()}


def test_fresh_ranges_follow_the_calibrator_at_8_bits_and_the_extremes_at_16(tmp_path: Path) -> None:
    made, found = subject(tmp_path)
    cut = replace(made.plan, calibrator="percentile:p=90")
    fresh = fresh_ranges(found.statistics, cut, cut.schemes, {})
    group = found.prepared.network.group_of["b"]
    narrow, wide = fresh(group, 8), fresh(group, 16)
    assert narrow is not None and wide is not None
    values = found.floats(["b"])["b"]
    assert wide.high == pytest.approx(values.max()) and wide.low == 0.0
    assert narrow.high < 0.8 * wide.high
    assert fresh_ranges(found.statistics, replace(cut, calibrator="of-another-package"), cut.schemes, {})(group, 8) == wide
    unseen = replace(group, sources=("nobody",))
    assert fresh(unseen, 8) is None


def test_a_plan_with_corrections_is_analyzed_on_the_network_that_it_is_about(tmp_path: Path) -> None:
    """Equalized: the plan names the model as it is after that, the user gives the file as it was."""
    proto, feeds = chain(300.0), noise_feeds((3, 10, 10))
    onnx.save(proto, str(tmp_path / "net.onnx"))
    np.savez(tmp_path / "data.npz", x=np.concatenate([f["x"] for f in feeds]))
    prepared = load_network(tmp_path / "net.onnx")
    plain_plan = plan(prepared, observe(prepared, feeds))
    changed = rewritten(prepared, replace(plain_plan, corrections=("cle", "bias-guard")))
    equalized = replace(plan(changed, observe(changed, feeds)), corrections=("cle", "bias-guard"))
    assert equalized.model_key != plain_plan.model_key
    found = []
    for name, made in (("plain", plain_plan), ("equalized", equalized)):
        made.save(tmp_path / f"{name}.json")
        opened = open_subject((tmp_path / "net.onnx", tmp_path / f"{name}.json"), str(tmp_path / "data.npz"))
        found.append(analyze_plan(opened, checks=1)[0])
    before, after = (dict(a.outputs)["y"] for a in found)
    assert after > before + 20.0                                              # the channel that starved the others is gone
    assert not any(t.dead for k in found[1].kernels for t in k.tensors)
    assert any(c.kind == "raise" for c in found[1].checks)


def test_prescribed_ranges_are_kept_and_never_called_poor(tmp_path: Path) -> None:
    """BUG case B12: Softmax and Sigmoid by convention; only in plans that follow it."""
    found = case(detection_head(2.0), noise_feeds((3, 8, 8)))
    network, group = found.prepared.network, found.prepared.network.group_of["scores"]
    follows = replace(found.plan, corrections=("fixed-outputs", *found.plan.corrections))
    assert prescribed(network, found.plan, NPU) == {}
    fixed = prescribed(network, follows, NPU)
    assert fixed[8] == fixed[16] == {"scores": Range(0.0, 1.0)}
    assert group.name not in best_ranges(network, follows, found.statistics, fixed)[8]
    assert group.name in best_ranges(network, found.plan, found.statistics, {})[8]
    alone = replace(group, tensors=("scores",), sources=("scores",))
    assert fresh_ranges(found.statistics, follows, NPU, fixed)(alone, 8) == Range(0.0, 1.0)
    assert fresh_ranges(found.statistics, found.plan, NPU, {})(alone, 8) != Range(0.0, 1.0)


def test_the_statistics_of_a_search_are_used_again(tmp_path: Path) -> None:
    made, _ = subject(tmp_path)
    calls: list[str] = []
    analyze_plan(made, samples=2, checks=0, progress=lambda what, done, total: calls.append(what))
    assert not list(tmp_path.glob("statistics-*.npz"))                        # not the folder of a search: nothing is left there
    (tmp_path / "summary.json").write_text("{}")
    first = analyze_plan(made, samples=2, checks=0)
    assert len(list(tmp_path.glob("statistics-*.npz"))) == 1
    calls.clear()
    assert analyze_plan(made, samples=2, checks=0, progress=lambda what, done, total: calls.append(what)) == first
    assert set(calls) == {"kernels"}


def test_samples_of_another_shape_are_counted_as_left_out(tmp_path: Path) -> None:
    proto = chain()
    for value in (proto.graph.input[0], proto.graph.output[0]):
        for axis, name in ((2, "H"), (3, "W")):
            value.type.tensor_type.shape.dim[axis].dim_param = name
    prepared = load_network(ir.serde.deserialize_model(proto), {"x": (1, 3, 10, 10)})
    for i, size in enumerate((10, 12, 10)):
        np.save(tmp_path / f"{i}.npy", np.random.default_rng(i).normal(size=(3, size, size)).astype(np.float32))
    data = open_dataset(str(tmp_path), inputs=(("x", (None, 3, None, None), "float32"),))
    made = plan(prepared, observe(prepared, noise_feeds((3, 10, 10))))
    analysis, _ = analyze_plan(Subject(prepared, made, tmp_path / "plan.json", data), checks=0)
    assert (analysis.samples, analysis.seen) == (2, 3)
    assert analysis.warnings == ("2 of 3 samples have the shape of the first one; the others were not walked over",)


def test_a_plan_is_a_json_file_or_a_folder(tmp_path: Path) -> None:
    assert plan_path(tmp_path / "x.json") == tmp_path / "x.json"
    with pytest.raises(InputError, match=r"holds no plan\.json"):
        plan_path(tmp_path)
    (tmp_path / "plan.json").write_text("{}")
    assert plan_path(tmp_path) == tmp_path / "plan.json"
    with pytest.raises(InputError, match="expected a model and a plan"):
        open_subject((tmp_path, tmp_path))
