"""What holds for every exporter in the table: a new one is covered by its line there.

Toolchains of their own are left out here (their tests run them): those exporters are checked up to where the vendor's tool would start.
"""

from __future__ import annotations

import ast
import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import exporter_faults
import models
import onnx
import pytest
from export_cases import three_convs
from target_cases import attention, job_for

from qbench import toolchains
from qbench.errors import InputError, PrecisionUnavailable, ToolError
from qbench.export import Job, check_versions, export
from qbench.files import sha256
from qbench.network import Precision
from qbench.plan import Granularity, Plan, make_plan
from qbench.targets import load
from qbench.targets.exporters import for_target, make, names, targets_of
from qbench.workbench.exporting import ExportOptions, export_plan

HEAVY = {"rknn", "qnn"}
"""Their tools take minutes and have tests of their own."""
CASES = [(name, targets_of(name)[0]) for name in names()]
MIXED = {"b": "float"}


@pytest.fixture(scope="module", autouse=True)
def _no_heavy_tools() -> Iterator[None]:
    find = toolchains.find
    with pytest.MonkeyPatch.context() as patch:
        for place in (toolchains, toolchains.environment):
            patch.setattr(place, "find", lambda t: None if t.name in HEAVY else find(t))
        yield


@dataclass(frozen=True)
class Done:
    job: Job
    folder: Path

    @property
    def manifest(self) -> dict[str, Any]:
        body: dict[str, Any] = json.loads((self.folder / "manifest.json").read_text(encoding="utf-8"))
        return body


Made = Callable[[str, str], Done]


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """One export of INT8 / float / INT8 for each exporter; to be looked at, not to be changed."""
    made: dict[str, Done] = {}

    def once(name: str, target: str) -> Done:
        if name not in made:
            job, folder = job_for(target, MIXED), tmp_path_factory.mktemp(name) / "out"
            export(job, make(name), folder)
            made[name] = Done(job, folder)
        return made[name]

    return once


@pytest.mark.parametrize(("name", "target"), CASES)
def test_the_same_plan_gives_the_same_bytes(name: str, target: str, done: Made, tmp_path: Path) -> None:
    first = done(name, target)
    again = export(job_for(target, MIXED), make(name), tmp_path / "again")
    kept = [{f["file"]: f["sha256"] for f in body["files"]} for body in (first.manifest, again)]
    assert kept[0] == kept[1]
    assert {f: sha256(first.folder / f) for f in kept[0]} == kept[0]
    assert set(kept[0]) | {"manifest.json"} == {p.relative_to(first.folder).as_posix() for p in first.folder.rglob("*") if p.is_file()}


@pytest.mark.parametrize(("name", "target"), CASES)
def test_the_manifest_says_what_was_done(name: str, target: str, done: Made) -> None:
    body = done(name, target).manifest
    assert (body["format"], body["exporter"], body["target"], body["accepted"]) == ("qbench-export/1", name, target, True)
    assert body["status"] in ("compiled here", "not compiled here")
    assert bool(body["why_not"]) == (body["status"] == "not compiled here")
    assert all(f["what"] for f in body["files"]), "a file that nobody explains"
    assert any("zero" in text for text in body["conventions"].values()), "B11: how zero points are told"
    assert [o["name"] for o in body["golden"]["outputs"]] == ["y"]


@pytest.mark.parametrize(("name", "target"), CASES)
def test_every_layer_and_tensor_of_the_plan_was_compared(name: str, target: str, done: Made) -> None:
    job, body = done(name, target).job, done(name, target).manifest["read_back"]
    if not body["source"]:
        assert toolchains.find(toolchains.load(make(name).toolchain)) is None, "what was compiled must be read back"
        return
    rows = {r["name"]: r for r in body["rows"]}
    assert {*job.demanded.layers, *job.demanded.tensors} <= set(rows)
    assert all(r["actual"] is not None or r.get("silent") for r in rows.values())
    assert body["differences"] == []


@pytest.mark.parametrize(("name", "target"), CASES)
def test_the_boards_program_compiles_and_needs_a_version(name: str, target: str, done: Made) -> None:
    body, program = done(name, target).manifest, done(name, target).folder / "run.py"
    if not program.is_file():
        assert body["status"] == "not compiled here"
        return
    defined = {n.name for n in ast.walk(ast.parse(program.read_text(encoding="utf-8"))) if isinstance(n, ast.FunctionDef)}
    assert {"infer", "main"} <= defined
    assert body["requires"], "B27: what the board must have"
    with pytest.raises(ToolError, match=r"the artefact needs .*: install"):
        check_versions(body["requires"], dict.fromkeys(body["requires"], "0.0.1"), "fake board")


@pytest.mark.parametrize(("name", "target"), CASES)
def test_an_unknown_option_is_refused_before_anything_is_written(name: str, target: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="colour"):
        export(job_for(target, options={"colour": "red"}), make(name), tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("name", "target"), CASES)
def test_a_precision_that_the_chip_lacks_is_refused_before_anything_is_written(name: str, target: str, tmp_path: Path) -> None:
    """B24: a plan of another chip."""
    chip = load(target)
    lacking = [p for p in (Precision.INT16, Precision.FP16) if p not in chip.available()]
    onnx.save(three_convs(), tmp_path / "net.onnx")
    if not lacking:
        assert {*chip.available()} >= {Precision.INT8, Precision.INT16, Precision.FP16}
        return
    prepared = models.prepare(three_convs())
    other = {str(p.precision): p.scheme for p in load("rk3588").precisions if p.scheme is not None}
    chosen = {u.name: lacking[0] if u.name == "b" else Precision.INT8 for u in prepared.network.units}
    feeds = job_for("rk3588").samples
    plan = make_plan(prepared.network, chosen, models.observe(prepared, feeds), other, calibrator="minmax", granularity=Granularity.PER_CHANNEL, target="", toolkit="")
    plan.save(tmp_path / "plan.json")
    assert Plan.load(tmp_path / "plan.json").precision["b"] is lacking[0]
    with pytest.raises(PrecisionUnavailable, match=str(lacking[0])) as refused:
        export_plan(ExportOptions(tmp_path / "plan.json", target, tmp_path / "out", tmp_path / "net.onnx", exporter=name))
    assert refused.value.exit_code == 2
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(("name", "target"), CASES)
def test_the_softmax_keeps_what_the_plan_gives_it(name: str, target: str, tmp_path: Path) -> None:
    """B12: fixed where the target fixes it, and the same in the artefact."""
    job = job_for(target, proto=attention(), granularity=Granularity.PER_LAYER)
    body = export(job, make(name), tmp_path / "out")
    stored = job.demanded.tensors["p:int8"]
    fixed = {"unit": 1 / 255, "half-open": 1 / 256}
    if job.target.fixed_outputs in fixed:
        assert stored.scale[0] == pytest.approx(fixed[job.target.fixed_outputs], rel=1e-6)
        assert stored.steps == (0,)
    row = next((r for r in body["read_back"].get("rows", ()) if r["name"] == "p:int8"), None)
    assert row is None or row["actual"] == row["plan"] or row.get("consent") or row.get("silent")


@pytest.mark.parametrize(("name", "target"), CASES)
@pytest.mark.parametrize("fault", ["scale", "precision"])
def test_a_fault_in_the_artefact_is_found_and_named(name: str, target: str, fault: str, done: Made, tmp_path: Path) -> None:
    """B29: one scale changed, one layer's data type flipped, in the files themselves; read again by the exporter's own reader."""
    first = done(name, target)
    if not first.manifest["read_back"]["source"]:
        return
    copy = shutil.copytree(first.folder, tmp_path / "copy")
    assert exporter_faults.differences_now(name, first.job, copy) == ()
    where, what = exporter_faults.SPOILERS[name][fault](copy)
    found = exporter_faults.differences_now(name, first.job, copy)
    assert (where, what) in {(d.name, d.what) for d in found}, [str(d) for d in found]


def test_the_default_exporter_of_the_host_is_onnxruntime() -> None:
    assert for_target("host") == ("onnxruntime", "openvino")
