"""`qbench compare --with rknn`: the vendor's results beside ours. The vendor's builds are stand-ins here (labelled so); the last test runs the real toolkit."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from compare_cases import qbench
from models import sqnr_db
from toolchain_marks import toolchain

from qbench import targets, toolchains
from qbench.comparison import VendorRow, beaten
from qbench.errors import InputError, ToolError
from qbench.plan import Plan
from qbench.protocols import Array
from qbench.qdq import to_bytes
from qbench.runtime import Session
from qbench.targets.exporters import rknn_vendor
from qbench.workbench import open_case
from qbench.workbench.case import Case
from qbench.workbench.comparing_vendor import vendor_rows

TARGET = targets.load("rk3588")
NAMED, SKIPPED = toolchain("rknn")


def case(limit: int) -> Case:
    return open_case(sample="fashion", limit=limit)


def test_only_a_better_row_at_no_more_cycles_beats_ours() -> None:
    ours = VendorRow("qbench", "int8", sqnr_db=20.0, cycles=100)
    dear, better, worse = (VendorRow("kit", n, sqnr_db=s, cycles=c) for n, s, c in (("fp16", 60.0, 200), ("mmse", 25.0, 100), ("kl", 10.0, 50)))
    refused = VendorRow("kit", "normal", refused="no")
    assert beaten([ours, dear, worse, refused]) == ()
    assert beaten([ours, dear, better, replace(better, name="less", sqnr_db=21.0), refused]) == ((ours, better),)


@pytest.mark.parametrize(("args", "told"), [
    (("--with", "aimet"), "--with aimet: there is rknn"), (("--with", "rknn", "--target", "hexagon-8gen3"), "does not compile for hexagon-8gen3"),
    (("--plan", "p.json"), "--plan is for --with"),
])
def test_what_does_not_go_together_is_refused_before_any_work(args: tuple[str, ...], told: str, tmp_path: Path) -> None:
    done = qbench("compare", "--sample", "fashion", *args, "-o", "out", cwd=tmp_path, code=2)
    assert told in " ".join(done.stderr.split()) and not (tmp_path / "out").exists()


def test_rows_hold_the_metric_and_the_sqnr_of_what_the_simulator_gave(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stand-in for the toolkit that adds a constant to onnxruntime's outputs, and one that refuses."""
    made = case(6)
    session = Session(to_bytes(made.prepared.model))
    outputs = {i: session.run(dict(b.feeds)) for i, b in enumerate(made.evaluation.batches(1))}
    seen: dict[str, int] = {}

    def built(prepared: Any, platform: str, algorithm: str, calibration: list[Any], evaluation: tuple[Any, ...], folder: Path) -> rknn_vendor.Built:
        seen[algorithm] = len(calibration)
        if algorithm == "kl":
            raise ToolError("it crashed")
        return rknn_vendor.Built([{k: v + 0.25 for k, v in outputs[i].items()} for i in range(len(evaluation))], 7, 1.5, 3.0, ("Gather:g",))

    monkeypatch.setattr(rknn_vendor, "vendor_build", built)
    monkeypatch.setattr(toolchains, "need", lambda name: Path("nowhere"))
    first, second = vendor_rows("rknn", made, TARGET, "2.5.0", {}, tmp_path / "vendor", algorithms=("normal", "kl"))
    want = np.concatenate([next(iter(o.values())) for o in outputs.values()])
    assert first.sqnr_db == pytest.approx(sqnr_db(want, want + np.float32(0.25)), abs=1e-3)
    labels = np.concatenate([_labels(b.labels) for b in made.evaluation.batches(1)])
    assert first.value == pytest.approx(float((want.argmax(axis=1) == labels).mean()))
    assert (first.cycles, first.on_cpu, first.samples, seen["normal"]) == (7, ("Gather:g",), 6, 6)
    assert second.refused == "it crashed" and not (tmp_path / "vendor").exists()


def test_an_unknown_vendor_is_an_input_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="there is rknn"):
        vendor_rows("other", case(2), TARGET, "2.5.0", {}, tmp_path / "vendor")


def _labels(labels: Array | None) -> Array:
    assert labels is not None
    return labels


@NAMED
@SKIPPED
def test_the_real_toolkit_stands_beside_our_plan(tmp_path: Path) -> None:
    qbench("quantize", "--sample", "fashion", "--target", "rk3588", "-o", "q.onnx", "--save-plan", "plan.json", cwd=tmp_path)
    ours, theirs = vendor_rows("rknn", case(2), TARGET, "2.5.0", {"int8": Plan.load(tmp_path / "plan.json")}, tmp_path / "vendor", algorithms=("normal",))
    assert (ours.maker, ours.name, theirs.name) == ("qbench", "int8", "normal") and theirs.maker.startswith("rknn-toolkit2 ")
    for row in (ours, theirs):
        assert not row.refused and row.cycles > 0 and row.sqnr_db > 10.0
    assert {"entire_cos", "single_cos"} <= set(theirs.layers[0]) and len(theirs.layers) > 5
