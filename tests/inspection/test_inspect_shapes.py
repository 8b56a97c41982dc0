"""Open axes, their origin and their cure, against what onnxruntime makes of the models."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import onnx
import pytest
from models import Array, node
from odd_models import BOOL, INT64, info, odd_model
from onnx import TensorProto, helper, numpy_helper

from qbench import targets
from qbench.errors import ModelError
from qbench.inspection.record import Inspection
from qbench.runtime import Session
from qbench.workbench.inspecting import inspect_model

W = np.random.default_rng(0).normal(0, 0.5, (4, 3, 3, 3)).astype(np.float32)
V = np.random.default_rng(1).normal(0, 0.5, (4, 5)).astype(np.float32)


def saved(folder: Path, proto: onnx.ModelProto) -> Path:
    path = folder / "m.onnx"
    onnx.save(proto, path)
    return path


def inspected(folder: Path, proto: onnx.ModelProto, shapes: Mapping[str, tuple[int, ...]] | None = None) -> Inspection:
    return inspect_model(saved(folder, proto), ["rk3588"], input_shapes=shapes)[0]


def resizing() -> onnx.ModelProto:
    """Conv with stride 2, back to the input's size, pooled and classified: batch, height and width open; the size comes from a Shape chain."""
    nodes = [node("Conv", ["x", "w"], ["c"], "conv", strides=[2, 2]), node("Shape", ["x"], ["s"], "shape"),
             node("Slice", ["s", "two", "four"], ["hw"], "hw"), node("Shape", ["c"], ["cs"], "cshape"), node("Slice", ["cs", "zero", "two"], ["nc"], "nc"),
             node("Concat", ["nc", "hw"], ["to"], "to", axis=0), node("Resize", ["c", "", "", "to"], ["big"], "resize"),
             node("GlobalAveragePool", ["c"], ["g"], "gap"), node("Flatten", ["g"], ["f"], "flat"), node("MatMul", ["f", "v"], ["y"], "fc")]
    return odd_model(nodes, [info("x", ["batch", 3, "h", "w"])], [info("big", list("pqrs")), info("y", ["m", 5])],
                     {"w": W, "v": V, "zero": np.array([0]), "two": np.array([2]), "four": np.array([4])})


def test_axes_are_traced_to_the_inputs_and_become_what_onnxruntime_computes(tmp_path: Path) -> None:
    proto = resizing()
    found = inspected(tmp_path, proto, {"x": (1, 3, 32, 48)})
    assert found.found is not None and not found.shapes.assumed
    watched = onnx.ModelProto()
    watched.CopyFrom(proto)
    del watched.graph.output[:]
    names = [o for n in proto.graph.node for o in n.output]
    watched.graph.output.extend(onnx.ValueInfoProto(name=n) for n in names)
    real = dict(Session(watched.SerializeToString()).run({"x": np.zeros((1, 3, 32, 48), np.float32)}))
    real["x"] = np.zeros((1, 3, 32, 48), np.float32)
    closed = [a for a in found.shapes.axes if a.becomes is not None]
    assert closed
    for a in closed:
        assert a.axis is not None and real[a.tensor].shape[a.axis] == a.becomes
    assert all(a.becomes is not None or a.folds for a in found.shapes.axes)


def test_each_axis_names_its_symbol_and_the_option_that_closes_it(tmp_path: Path) -> None:
    found = inspected(tmp_path, resizing(), {"x": (1, 3, 32, 48)})
    of = {(a.tensor, a.axis): a for a in found.shapes.axes}
    assert [o.what for o in of["x", 2].origins] == ["axis 2 (h) of input 'x'"]
    assert [o.what for o in of["c", 3].origins] == ["axis 3 (w) of input 'x'"]
    assert [o.what for o in of["y", 0].origins] == ["axis 0 (batch) of input 'x'"]
    assert of["c", 3].cures == ("--input-shape x=1,3,32,48",)
    (origin,) = of["big", 3].origins
    assert origin.kind == "computed" and origin.at == "resize" and "from the shape of" in origin.what
    assert "fold to constants" in of["big", 3].cures[0]


def test_open_inputs_get_sizes_that_go_together_and_the_report_says_so(tmp_path: Path) -> None:
    found = inspected(tmp_path, resizing())
    assert found.found is not None
    assert found.shapes.assumed == {"x": (1, 3, 224, 224)}


def counted(nodes: Sequence[onnx.NodeProto], output: str = "y", kind: int = TensorProto.FLOAT, rank: int = 2, **weights: Array) -> onnx.ModelProto:
    return odd_model(nodes, [info("x", [4, 8])], [info(output, list("pq")[:rank], kind)], weights)


@pytest.mark.parametrize("proto, kind, at, says", [
    (counted([node("NonZero", ["x"], ["y"], "nz")], kind=INT64), "data", "nz", "values other than 0"),
    (counted([node("Unique", ["x"], ["y"], "u")], rank=1), "data", "u", "distinct"),
    (counted([node("NonZero", ["x"], ["z"], "nz"), node("Transpose", ["z"], ["t"], "t", perm=[1, 0]), node("GatherND", ["x", "t"], ["y"], "g")], rank=1), "data", "nz",
     "values other than 0"),
    (counted([node("ReduceMax", ["x"], ["m"], "m", keepdims=0), node("Cast", ["m"], ["i"], "cast", to=INT64), node("Unsqueeze", ["i", "ax"], ["k"], "k"),
              node("TopK", ["x", "k"], ["y", "which"], "top")], ax=np.array([0])), "value", "x", "sizes from the values of 'x'"),
], ids=["NonZero", "Unique", "behind NonZero", "TopK with computed k"])
def test_shapes_that_only_a_run_tells_stay_open_and_say_what_to_do(tmp_path: Path, proto: onnx.ModelProto, kind: str, at: str, says: str) -> None:
    found = inspected(tmp_path, proto)
    lines = [a for a in found.shapes.axes if a.tensor == "y"]
    assert lines and all(a.becomes is None for a in lines)
    origins = [o for a in lines for o in a.origins]
    assert {(o.kind, o.at) for o in origins} == {(kind, at)} and says in origins[0].what
    assert all(a.cures[0] for a in lines)


def test_a_loop_is_named_as_control_flow(tmp_path: Path) -> None:
    body = helper.make_graph([node("Add", ["v", "k"], ["v2"], "add"), node("Identity", ["v"], ["scan"], "copy"), node("Identity", ["on"], ["still"], "still")], "body",
                             [info("i", [], INT64), info("on", [], BOOL), info("v", [4])], [info("still", [], BOOL), info("v2", [4]), info("scan", [4])],
                             [numpy_helper.from_array(np.ones(4, np.float32), "k")])
    proto = odd_model([node("Loop", ["n", "", "x"], ["last", "y"], "loop", body=body)], [info("x", [4]), info("n", [], INT64)], [info("y", ["turns", 4])], {})
    found = inspected(tmp_path, proto)
    (line,) = [a for a in found.shapes.axes if a.tensor == "y"]
    assert [(o.kind, o.op) for o in line.origins] == [("control flow", "Loop")] and "unrolled" in line.cures[0]


def test_a_model_that_no_size_fits_is_still_reported(tmp_path: Path) -> None:
    """A Reshape that only 7 x 7 images fit: shapes and types are told, the rest says why not."""
    proto = odd_model([node("Reshape", ["x", "s"], ["r"], "r"), node("Relu", ["r"], ["y"], "relu")], [info("x", ["n", 3, "h", "w"])], [info("y", [1, 147])],
                      {"s": np.array([1, 147])})
    found = inspected(tmp_path, proto)
    body = found.to_json()
    assert found.found is None and body["shapes"]["axes"] and body["shapes"]["static"]
    assert "operators" not in body


def test_static_models_have_no_open_axis(tmp_path: Path) -> None:
    proto = odd_model([node("Conv", ["x", "w"], ["y"], "conv")], [info("x", [1, 3, 8, 8])], [info("y", [1, 4, 6, 6])], {"w": W})
    found = inspected(tmp_path, proto)
    assert not found.shapes.axes and not found.shapes.assumed


def test_a_shape_that_contradicts_the_file_is_bad_input(tmp_path: Path) -> None:
    proto = odd_model([node("Conv", ["x", "w"], ["y"], "conv")], [info("x", ["n", 3, 8, 8])], [info("y", ["n", 4, 6, 6])], {"w": W})
    with pytest.raises(ModelError, match=r"declared as \[n, 3, 8, 8\]"):
        inspected(tmp_path, proto, {"x": (1, 3, 9, 9)})
    with pytest.raises(ModelError, match="no such input"):
        inspected(tmp_path, proto, {"q": (1, 3, 9, 9)})


def test_whole_numbers_in_float_are_named(tmp_path: Path) -> None:
    """An input that is only cast, an index that floats compute, an integer that goes on as float, and wide types."""
    nodes = [node("Cast", ["ids"], ["i"], "cast", to=INT64), node("Gather", ["table", "i"], ["e"], "lookup"), node("Floor", ["x"], ["fl"], "floor"),
             node("Cast", ["fl"], ["fi"], "to_int", to=INT64), node("Gather", ["table", "fi"], ["e2"], "lookup2"), node("Cast", ["mask"], ["mf"], "to_float", to=1),
             node("Mul", ["mf", "one"], ["y"], "mul")]
    proto = odd_model(nodes, [info("ids", [4]), info("x", [4]), info("mask", [4], INT64), info("d", [4], TensorProto.DOUBLE)],
                      [info("e", [4, 3]), info("e2", [4, 3]), info("y", [4])], {"table": np.ones((10, 3), np.float32), "one": np.ones(4, np.float32)})
    found = {t.tensor: t for t in inspected(tmp_path, proto).shapes.types}
    assert found["ids"].needed == "int64" and "only casts" in found["ids"].why
    assert "indices of Gather 'lookup2'" in found["fl"].why
    assert found["mf"].needed == "int64"
    assert (found["mask"].needed, found["d"].needed) == ("int32", "float32")
    assert set(found) == {"ids", "fl", "mf", "mask", "d"}


def test_rule_sets_of_the_loader_are_those_there_are() -> None:
    from qbench.targets.loader import RULE_SETS
    from qbench.targets.rules import BOOKS

    assert set(RULE_SETS) == set(BOOKS) and {targets.load(n).rules for n in targets.names()} <= set(BOOKS)
