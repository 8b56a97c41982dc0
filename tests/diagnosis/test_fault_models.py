"""The hypotheses themselves against numpy: what they say would be observed is what such a fault makes."""

from __future__ import annotations

from typing import Any

import fake_board
import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from lab import Lab, build

from qbench.diagnosis import Cause
from qbench.diagnosis.edits import (
    ROUNDINGS,
    after_products,
    before_codes,
    saturating,
    wrapped_codes,
    wrapping,
)
from qbench.diagnosis.gaps import gap, left
from qbench.diagnosis.graph import Graph, laid_open, part
from qbench.diagnosis.matching import match
from qbench.diagnosis.output_faults import blocked, output_faults, packed_rows, padded_rows, scrambles
from qbench.diagnosis.places import range_edit
from qbench.diagnosis.runs import Runner, stacked
from qbench.errors import InputError

maps = hnp.arrays(np.float32, st.tuples(st.integers(1, 3), st.integers(1, 5), st.integers(1, 5), st.integers(1, 9)), elements=st.floats(-8, 8, width=32))


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Lab:
    return build(tmp_path_factory.mktemp("lab"))


@pytest.mark.parametrize(("name", "way"), [("half away from zero", fake_board.half_away), ("down (floor)", np.floor), ("towards zero (truncation)", np.trunc),
                                           ("half up", lambda x: np.floor(x + 0.5))])
def test_rounding_edits_do_what_their_name_says(lab: Lab, name: str, way: object) -> None:
    graph = Graph(lab.model)
    made = Runner().run(before_codes(graph, graph.points, ROUNDINGS[name])(lab.model), {"x": lab.x})["y"]
    wanted = lab.board(rounding=way)
    assert np.abs(made - wanted).max() <= 1.01 * lab.scale()[0] and np.mean(made == wanted) > 0.97         # float32 against float64 at a tie


@pytest.mark.parametrize("kind", ["saturate", "wrap", "codes"])
def test_accumulator_edits_do_what_their_name_says(lab: Lab, kind: str) -> None:
    graph = Graph(lab.model)
    product = next(p for p in graph.products if p.name == "conv1")
    cases: dict[str, tuple[Any, dict[str, Any]]] = {"saturate": (after_products([product], saturating(16, True)), {"accumulate": {"conv1": fake_board.saturate16}}),
                   "wrap": (after_products([product], wrapping(16, True)), {"accumulate": {"conv1": fake_board.wrap16}}),
                   "codes": (wrapped_codes(graph, graph.points).apply, {"wrap_codes": True})}
    edit, fault = cases[kind]
    made, wanted = Runner().run(edit(lab.model), {"x": lab.x})["y"], lab.board(**fault)
    assert np.mean(np.abs(made - wanted) <= 1.01 * lab.scale()[0]) > 0.97


def test_an_edit_leaves_the_model_as_it_was(lab: Lab) -> None:
    before, graph = lab.model.SerializeToString(), Graph(lab.model)
    range_edit(graph, graph.points[1], 0.5).apply(lab.model)
    after_products(graph.products, wrapping(16, True))(lab.model)
    laid_open(graph, [p.raw for p in graph.points])
    assert lab.model.SerializeToString() == before


def test_parts_between_known_tensors_give_what_the_whole_gives(lab: Lab) -> None:
    graph = Graph(lab.model)
    names = [p.stored for p in graph.points]
    whole = Runner().run(laid_open(graph, names), {"x": lab.x})
    for t in names:
        model, reads = part(graph, [n for n in names if n != t], [t])
        alone = Runner().run(model, {n: lab.x if n == "x" else whole[n] for n in reads})[t]
        np.testing.assert_array_equal(alone, whole[t])


@given(maps, st.sampled_from([4, 8, 16]))
def test_padded_rows_are_the_start_of_the_padded_buffer(x: np.ndarray, n: int) -> None:
    made = padded_rows(x, n)
    if x.shape[3] % n == 0:
        assert made is None
        return
    assert made is not None
    for i in range(len(x)):
        np.testing.assert_array_equal(made[i].ravel(), np.pad(x[i], ((0, 0), (0, 0), (0, -x.shape[3] % n))).ravel()[:x[i].size])
    back = packed_rows(x, n)
    assert back is not None and back.shape == x.shape


@given(maps)
def test_scrambles_keep_shape_and_values(x: np.ndarray) -> None:
    for name, change in scrambles():
        made = change(x)
        if made is not None:
            assert made.shape == x.shape
            if "padded" not in name and "blocks" not in name:
                np.testing.assert_array_equal(np.sort(made, None), np.sort(x, None))


def test_blocked_channels_by_hand() -> None:
    """2 blocks of 2 channels of 1x2 pixels: channel innermost."""
    x = np.arange(8, dtype=np.float32).reshape(1, 4, 1, 2)
    made = blocked(x, 2)
    assert made is not None and made.ravel().tolist() == [0, 2, 1, 3, 4, 6, 5, 7]


@given(maps)
def test_a_perfect_prediction_leaves_nothing_and_the_clean_one_everything(x: np.ndarray) -> None:
    seen = x * 0.5 + 1.0
    every = range(len(x))
    assert left({"y": seen}, {"y": seen}, {"y": x}, every) == (0.0 if np.any(seen != x) else 1.0)
    assert left({"y": seen}, {"y": x}, {"y": x}, every) >= 1.0 - 1e-9


def test_gaps_by_hand() -> None:
    g = gap(np.array([3.0, 4.0]), np.array([3.0, 4.5]), 0.25)
    assert g.sqnr_db == pytest.approx(20.0) and g.max_error == 0.5 and g.max_steps == 2.0 and g.rms_error == pytest.approx(0.5 / np.sqrt(2))
    assert gap(np.ones(2), np.array([1.0, np.nan])).sqnr_db == -np.inf and gap(np.ones(2), np.ones(2)).sqnr_db == np.inf


@pytest.mark.parametrize(("array", "note"), [
    (np.zeros((2, 6, 5, 3)), "NHWC"), (np.zeros((2, 1, 6, 5, 4)), "NC1HWC2"), (np.zeros((2, 3, 6, 8)), "stripped"), (np.zeros((2, 4, 6, 5)), "channels padded"),
    (np.zeros((2, 90)), "taken as"), (np.zeros((2, 3, 6, 5), np.float16), "float16"), (np.zeros((5, 3, 6, 5)), "the first 2"), (np.zeros((1, 3, 6, 5)), "1 of 2 samples")])
def test_dumps_in_the_layouts_of_boards(array: np.ndarray, note: str) -> None:
    found, notes = match({"Y": array}, {"y": np.zeros((2, 3, 6, 5), np.float32)}, {}, ["y"], {}, "d.npz")
    assert found["y"].shape[1:] == (3, 6, 5) and any(note in n for n in notes)


def test_a_tensor_of_another_size_is_left_out_with_both_shapes() -> None:
    expected = {"y": np.zeros((2, 3), np.float32), "z": np.zeros((2, 4), np.float32)}
    found, notes = match({"y": np.zeros((2, 3)), "z": np.zeros((2, 9))}, expected, {}, ["y", "z"], {}, "d")
    assert set(found) == {"y"} and any("[2, 9]" in n and "[2, 4]" in n for n in notes) and any("not judged: z" in n for n in notes)


def test_samples_of_different_shapes_are_refused() -> None:
    with pytest.raises(InputError, match="different shapes"):
        stacked([{"x": np.zeros((1, 3))}, {"x": np.zeros((1, 4))}])


def test_outputs_of_unlike_shapes_are_never_exchanged() -> None:
    """Not even where one prediction is all zeros, next to which anything is far away."""
    fault = next(f for f in output_faults({}) if f.name == "the outputs are exchanged")
    a, b, c = (np.full(s, v, np.float32) for s, v in (((2, 3, 4), 5.0), ((2, 3, 1), 7.0), ((2, 3, 4), 9.0)))
    assert fault.apply({"a": np.zeros_like(a), "b": b}, {"a": a, "b": b}) is None
    made = fault.apply({"a": c, "b": b, "c": a}, {"a": a, "b": b, "c": c})
    assert made is not None and made["a"] is a and made["b"] is b and made["c"] is c


def test_a_buffer_with_one_value_is_no_scale() -> None:
    y, seen = {"y": np.arange(8, dtype=np.float32).reshape(2, 4)}, {"y": np.full((2, 4), -1.0, np.float32)}
    made = {f.name: f.apply(y, seen) for f in output_faults({})}
    assert made["another scale and another zero point"] is None and made["one value everywhere: nothing was written into the buffer"] is not None


def test_a_layer_whose_codes_are_read_with_another_scale(lab: Lab) -> None:
    """The dump is made by onnxruntime from a file whose DequantizeLinear of one tensor has 1.5 times the scale."""
    wrong = onnx.ModelProto()
    wrong.CopyFrom(lab.model)
    point = next(p for p in Graph(lab.model).points if p.raw == "r0")
    wrong.graph.initializer.append(onnx.numpy_helper.from_array(np.array(1.5 * point.scale, np.float32).reshape(()), "other"))
    back = [n for n in wrong.graph.node if n.op_type == "DequantizeLinear" and n.input[0] == wrong.graph.node[point.node].output[0]]
    for n in back:
        n.input[1] = "other"
    assert back
    found = lab.diagnose(Runner().run(wrong, {"x": lab.x})["y"])
    assert found.cause is Cause.SCALE and found.first is not None and found.first.where == "r0", found.first and found.first.to_dict()


def test_a_search_that_runs_out_of_time_says_so(lab: Lab) -> None:
    found = lab.diagnose(lab.board(accumulate={"conv1": fake_board.saturate16}), search_s=0.0)
    assert found.first is not None and any("stopped after 0 s with 0 of" in n for n in found.first.notes)
