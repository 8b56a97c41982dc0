"""The reasons for a gap: a fault put in on purpose is found, named, and shown to be the cause."""

from __future__ import annotations

import json
from math import log2
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from compare_cases import HOSTILE, case_of, chain, page_of, pictures, ready, tried
from html_page import Page
from models import Array, model, node, prepare

from qbench import qdq
from qbench.affine import Range
from qbench.comparison import Comparison, ranked
from qbench.graph import PreparedModel
from qbench.plan import Granularity, Plan
from qbench.report.compare_text import explained, summary
from qbench.workbench.comparing import CompareJob, run_compare
from qbench.workbench.gaps import channel_magnitudes, only_per_channel


def compared(prepared: PreparedModel, folder: Path, **options: object) -> Comparison:
    return run_compare(CompareJob(case_of(prepared), calibrators=("minmax",), out=folder, **options))  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> tuple[Comparison, Path]:
    """One tensor reaches 1000 times as far as the others, and its layer has a hostile name."""
    folder = tmp_path_factory.mktemp("wide")
    return compared(chain(big=1000.0, name=HOSTILE), folder), folder


@pytest.fixture(scope="module")
def uneven(tmp_path_factory: pytest.TempPathFactory) -> Comparison:
    """One output channel of the first layer has weights 100 times as large as the others."""
    return compared(chain(odd=100.0), tmp_path_factory.mktemp("uneven"))


def test_the_tensor_that_sets_the_one_scale_is_named_and_is_the_cause(wide: tuple[Comparison, Path]) -> None:
    [gap, _] = wide[0].gaps
    assert (gap.coarse, gap.fine, gap.clear) == ("global", "per-layer", True) and gap.sqnr_db > 20
    assert [t.name for t in gap.owners] == ["br"]                     # Relu output of the wide layer
    others = [t for t in gap.tensors if t.name != "br"]
    rest = max(t.high for t in others) - min(t.low for t in others)
    assert gap.freed_bits == pytest.approx(log2((gap.whole[1] - gap.whole[0]) / rest), abs=0.05)
    assert [c.names for c in tried(gap, "widest")] == [("br",)] and tried(gap, "widest")[0].won > 0.8
    said = " ".join(explained(gap, wide[0]))
    assert "the range of 'br'" in said and f"{gap.freed_bits:.1f} bits more" in said


def test_bits_and_codes_left_follow_from_the_ranges(wide: tuple[Comparison, Path]) -> None:
    gap = wide[0].gaps[0]
    whole = gap.whole[1] - gap.whole[0]
    assert len(gap.tensors) == 5
    for t in gap.tensors:
        own = max(t.high, 0.0) - min(t.low, 0.0)
        assert t.bits_lost == pytest.approx(log2(whole / own), abs=1e-3)
        assert t.codes == pytest.approx(256 * own / whole, rel=1e-3)
    assert {t.name: t.readers for t in gap.tensors} == {"x": ("first",), "ar": (HOSTILE,), "br": ("third",), "cr": ("last",), "y": ()}
    macs = {"first": 100 * 8 * 27, HOSTILE: 64 * 8 * 72, "third": 36 * 8 * 72, "last": 36 * 5 * 8}
    assert {t.name: t.macs_share for t in gap.tensors} == pytest.approx(
        {t.name: sum(macs[k] for k in t.readers) / sum(macs.values()) for t in gap.tensors})


def test_the_layer_with_the_large_channel_is_named_and_is_the_cause(uneven: Comparison) -> None:
    gap = uneven.gaps[1]
    assert (gap.coarse, gap.fine) == ("per-layer", "per-channel") and gap.clear
    first = gap.layers[0]
    magnitudes = [float(np.abs(w).max()) for w in weights(chain(odd=100.0), "first")]
    assert (first.kernel, first.channels) == ("first", 8)
    assert first.spread == pytest.approx(max(magnitudes) / np.median(magnitudes), rel=1e-5) and first.spread > 50
    assert first.coarse_db < 15 and first.fine_db > 30
    assert all(first.extra_noise > 3 * layer.extra_noise for layer in gap.layers[1:])
    assert tried(gap, "weights")[0].names == ("first",) and tried(gap, "weights")[0].won > 0.7
    said = " ".join(explained(gap, uneven))
    assert "'first'" in said and "times the median one" in said
    assert "'first'" in summary(uneven)


def weights(prepared: PreparedModel, name: str) -> list[np.ndarray]:
    found = next(n for n in prepared.model.graph if n.name == name).inputs[1]
    assert found is not None and found.const_value is not None
    return list(found.const_value.numpy())


def test_nothing_is_made_up_where_nothing_is_wrong(tmp_path: Path) -> None:
    result = compared(chain(), tmp_path)
    ranges, channels = result.gaps
    assert ranges.owners == () and tried(ranges, "widest") == []
    assert all(w.spread < 4 for w in channels.layers)
    assert "no few tensors set it" in " ".join(explained(ranges, result))


def test_names_of_the_user_are_text_in_the_page(wide: tuple[Comparison, Path]) -> None:
    result, folder = wide
    page = page_of(folder / "compare.html")
    assert page.open == [] and not any(tag == "img" for tag, _ in page.elements)
    assert HOSTILE not in page.source and HOSTILE in page.text
    assert sum(tag == "script" for tag, _ in page.elements) == 3
    figure = json.loads(page.data["front-figure"])
    assert [t["name"] for t in figure["data"]] == ["float", "minmax"]
    minmax = figure["data"][1]
    assert minmax["y"] == pytest.approx([r.accuracy.value for r in result.rows])
    for tag, attributes in page.elements:
        assert tag not in ("link", "iframe", "object")
        assert all((attributes.get(a) or "#").startswith("#") for a in ("src", "href"))


def test_odd_names_reach_files_that_can_be_read_back(wide: tuple[Comparison, Path]) -> None:
    result, folder = wide
    assert {p.name for p in folder.iterdir() if not p.name.startswith("statistics-")} == {"compare.html", "compare.json", "plans"}
    for row in result.rows:
        assert Plan.load(folder / row.plan).key == row.plan_key
    body = json.loads((folder / "compare.json").read_text())
    assert body["rows"][0]["worst_layer"] in {"first", HOSTILE, "third", "last"}


def test_only_the_weights_of_the_named_units_change() -> None:
    prepared = chain(odd=100.0)
    made = ready(prepared, {"x": pictures(4)})
    coarse, fine = (made.plans(made.precision, "minmax", g, "") for g in (Granularity.PER_LAYER, Granularity.PER_CHANNEL))
    mixed = qdq.write(prepared, only_per_channel(coarse, ["first"])).model
    want = {"first": fine, "wide": coarse, "third": coarse, "last": coarse}
    for layer, plan in want.items():
        for there, here in zip(stored_weight(qdq.write(prepared, plan).model, layer), stored_weight(mixed, layer), strict=True):
            np.testing.assert_array_equal(there, here)


def stored_weight(written: Any, layer: str) -> list[Array]:
    """Codes, scales and zero points of a layer's weights."""
    pair = next(n for n in written.graph if n.name == layer).inputs[1].producer()
    return [v.const_value.numpy() for v in pair.inputs]


@pytest.mark.parametrize(("op", "shape", "attributes", "axis"), [
    ("Conv", (4, 3, 3, 3), {}, 0), ("ConvTranspose", (3, 4, 2, 2), {}, 1), ("MatMul", (6, 4), {}, 1), ("Gemm", (6, 4), {}, 1),
    ("Gemm", (4, 6), {"transB": 1}, 0)])
def test_channels_are_those_of_the_output(op: str, shape: tuple[int, ...], attributes: dict[str, int], axis: int) -> None:
    w = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    inputs: list[int | str] = ["N", 3, 8, 8] if op.startswith("Conv") else ["N", 6]
    prepared = prepare(model([node(op, ["x", "w"], ["y"], "layer", **attributes)], {"x": inputs}, {"y": None}, {"w": w}))
    found = channel_magnitudes(next(iter(prepared.model.graph)))
    want = np.abs(w).max(axis=tuple(i for i in range(w.ndim) if i != axis))
    assert found is not None
    np.testing.assert_allclose(found, want)


def test_a_gap_between_scales_that_are_no_neighbours_is_not_explained_and_says_so(tmp_path: Path) -> None:
    result = compared(chain(), tmp_path, scales=("per-channel", "global"))
    assert [r.scale for r in result.rows] == ["global", "per-channel"] and result.gaps == ()
    assert "neighbouring" in result.unmeasured["why per-channel differs from global"]
    assert "neighbouring" in Page((tmp_path / "compare.html").read_text()).text


def test_each_finer_scale_helps_where_both_faults_are(tmp_path: Path) -> None:
    result = compared(chain(big=100.0, odd=30.0), tmp_path)
    coarse, middle, fine = (r.accuracy.sqnr_db for r in result.rows)
    assert coarse < middle - 3 and middle < fine - 3
    assert [r.scale for r in ranked(result.rows)] == ["per-channel", "per-layer", "global"]


def test_auto_stands_beside_the_others_with_a_plan_and_its_reasons(tmp_path: Path) -> None:
    case = case_of(chain(big=5.0))
    among = "auto:among=minmax/mse/percentile:p=99.9"
    result = run_compare(CompareJob(case, calibrators=("minmax", among), scales=("per-channel",), out=tmp_path))
    row = next(r for r in result.rows if r.calibrator == among)
    plan = Plan.load(tmp_path / row.plan)
    assert plan.calibrator == among and set(plan.notes) == set(plan.ranges)
    assert row.note.startswith("auto: ") and row.note in page_of(tmp_path / "compare.html").text
    assert row.size_bytes == len(qdq.to_bytes(qdq.write(case.prepared, plan).model))


def test_one_scale_covers_the_union_of_the_ranges(wide: tuple[Comparison, Path]) -> None:
    plan = Plan.load(wide[1] / wide[0].rows[0].plan)
    union = Range(min(r.low for r in plan.ranges.values()), max(r.high for r in plan.ranges.values()))
    assert wide[0].gaps[0].whole == (union.low, union.high)
