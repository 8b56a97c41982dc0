"""Inputs fixed to a constant: weights from then on, and what they decide is folded away."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from models import Array, node
from numpy.testing import assert_array_equal
from odd_graphs import bare, noise
from odd_models import BOOL, FLOAT, INT64, UINT8, info, odd_model, reference
from onnx import TensorProto, helper

from qbench import qdq
from qbench.errors import InputError, PlanError
from qbench.graph import PreparedModel, load_network
from qbench.runtime import Session
from qbench.workbench.quantizing import quantize


def fixed(model: onnx.ModelProto, shapes: dict[str, tuple[int, ...]] | None = None, **values: str) -> PreparedModel:
    return load_network(ir.serde.deserialize_model(model), shapes, values)


def run(prepared: PreparedModel, **feeds: Array) -> dict[str, Array]:
    return Session(qdq.to_bytes(prepared.model), 1).run(feeds)


def by_rate() -> onnx.ModelProto:
    """If rate == 16000 then a wide convolution, else a narrow one: as in Silero's voice detector."""
    weights = {"wide": noise(8, 1, 4), "narrow": noise(8, 1, 4, seed=1), "fast": np.array(16000)}
    branches = [helper.make_graph([node("Conv", ["x", name], [f"{name}_out"], f"conv_{name}", strides=[stride])], name, [], [bare(f"{name}_out")])
                for name, stride in (("wide", 1), ("narrow", 2))]
    nodes = [node("Equal", ["rate", "fast"], ["is_fast"], "compare"), node("If", ["is_fast"], ["c"], "choose", then_branch=branches[0], else_branch=branches[1]),
             node("Relu", ["c"], ["y"], "relu")]
    return odd_model(nodes, [info("x", ["N", 1, 32]), info("rate", [], INT64)], [info("y", ["N", 8, "T"])], weights)


X = noise(2, 1, 32, seed=3)


@pytest.mark.parametrize(("rate", "layer", "macs"), [("16000", "choose_conv_wide", 8 * 4 * 29), ("8000", "choose_conv_narrow", 8 * 4 * 15)])
def test_the_branch_that_is_taken_is_all_that_is_left(rate: str, layer: str, macs: int) -> None:
    prepared = fixed(by_rate(), rate=rate)
    network = prepared.network
    assert [k.name for k in network.kernels] == [layer] and network.kernels[0].op == "Conv+Relu"
    assert network.macs == macs and network.inputs == ("x",) and all(u.quantizable for u in network.units)
    assert_array_equal(run(prepared, x=X)["y"], reference(by_rate(), {"x": X, "rate": np.array(int(rate))})["y"])
    assert prepared.notes == (f"input 'rate' is fixed to {rate}: the network that is measured and written has it no more",)


def test_it_is_another_network_with_a_key_of_its_own() -> None:
    keys = {load_network(ir.serde.deserialize_model(by_rate())).network.model_key, fixed(by_rate(), rate="16000").network.model_key,
            fixed(by_rate(), rate="8000").network.model_key}
    assert len(keys) == 3 and fixed(by_rate(), rate="8000").network.model_key in keys


def test_the_callers_model_stays_as_it_is() -> None:
    model = ir.serde.deserialize_model(by_rate())
    before = ir.to_proto(model).SerializeToString()
    load_network(model, None, {"rate": "16000"})
    assert ir.to_proto(model).SerializeToString() == before


ADD = odd_model([node("Add", ["x", "k"], ["y"], "sum")], [info("x", ["N", 2, 3]), info("k", [2, 3])], [info("y", ["N", 2, 3])])
OPEN = odd_model([node("Add", ["x", "k"], ["y"], "sum")], [info("x", ["N", 3]), info("k", ["n"])], [info("y", ["N", 3])])


@pytest.mark.parametrize(("model", "shapes", "text", "wanted"), [
    (ADD, None, "1.5", np.full((2, 3), 1.5)), (ADD, None, "0,1,2,3,4,5", np.arange(6).reshape(2, 3)), (ADD, None, "-inf", np.full((2, 3), -np.inf)),
    (OPEN, None, "1, 2, 3", np.array([1, 2, 3])), (OPEN, {"k": (3,)}, "2", np.full(3, 2))])
def test_one_value_for_all_or_one_for_each(model: onnx.ModelProto, shapes: dict[str, tuple[int, ...]] | None, text: str, wanted: Array) -> None:
    found = fixed(model, shapes, k=text).model.graph.initializers["k"].const_value
    assert found is not None
    assert_array_equal(found.numpy(), wanted.astype(np.float32), strict=True)


@pytest.mark.parametrize(("dtype", "text", "wanted"), [
    (BOOL, "true", np.True_), (BOOL, "0", np.False_), (UINT8, "255", np.uint8(255)), (TensorProto.FLOAT16, "0.1", np.float16(0.1)),
    (TensorProto.INT32, "-7", np.int32(-7))])
def test_the_inputs_own_type_is_kept(dtype: int, text: str, wanted: Array) -> None:
    model = odd_model([node("Relu", ["x"], ["y"]), node("Cast", ["k"], ["z"], to=FLOAT)], [info("x", [1, 4]), info("k", [], dtype)],
                      [info("y", [1, 4]), info("z", [])])
    assert_array_equal(run(fixed(model, k=text), x=noise(1, 4))["z"], np.float32(wanted))


def test_text_is_fixed_too() -> None:
    model = odd_model([node("Relu", ["x"], ["y"]), node("Identity", ["k"], ["z"])],
                      [info("x", [1, 4]), info("k", [1], TensorProto.STRING)], [info("y", [1, 4]), info("z", [1], TensorProto.STRING)])
    assert run(fixed(model, k="so"), x=noise(1, 4))["z"].tolist() == ["so"]


def test_an_output_that_is_the_input_itself_holds_the_constant() -> None:
    model = odd_model([node("Relu", ["x"], ["y"])], [info("x", [1, 4]), info("k", [2])], [info("y", [1, 4]), info("k", [2])])
    prepared = fixed(model, k="3,4")
    assert prepared.network.outputs == ("y", "k") and run(prepared, x=noise(1, 4))["k"].tolist() == [3.0, 4.0]


@pytest.mark.parametrize(("values", "shapes", "told"), [
    ({"rat": "1"}, None, "--input-value rat=1: the model has no input 'rat'; its inputs: x, rate"),
    ({"rate": "16000.5"}, None, "'16000.5' does not fit the input's type int64; give a whole number"),
    ({"rate": "1e30"}, None, "'1e30' does not fit the input's type int64"),
    ({"rate": "9223372036854775808"}, None, "it holds -9223372036854775808 to 9223372036854775807"),
    ({"rate": "1,2"}, None, "2 values, but the input is one number"),
    ({"x": "0"}, None, r"the input has open axes \(\[N, 1, 32\]\); give its shape, too: --input-shape x=1,1,32"),
    ({"x": "1,2"}, {"x": (1, 1, 32)}, r"2 values, but the input holds 32 values \(1x1x32\)"),
    ({"x": "a"}, {"x": (1, 1, 32)}, "'a' does not fit the input's type float; give a number"),
    ({"x": "1"}, {"x": (1, 2, 32)}, r"declared as \[N, 1, 32\], but --input-shape says \[1, 2, 32\]"),
    ({"x": "1", "rate": "8000"}, {"x": (1, 1, 32)}, r"fixes every input \(x, rate\)")])
def test_what_does_not_fit_is_refused(values: dict[str, str], shapes: dict[str, tuple[int, ...]] | None, told: str) -> None:
    with pytest.raises(InputError, match=told):
        fixed(by_rate(), shapes, **values)


def test_a_truth_value_is_spelled() -> None:
    model = odd_model([node("Relu", ["x"], ["y"]), node("Cast", ["k"], ["z"], to=FLOAT)], [info("x", [1, 4]), info("k", [], BOOL)], [info("y", [1, 4]), info("z", [])])
    with pytest.raises(InputError, match="'maybe' does not fit the input's type bool; give true or false"):
        fixed(model, k="maybe")


def test_through_the_jobs(tmp_path: Path) -> None:
    """Data need no column for it; the plan belongs to the network with that value."""
    path, data, out, plan = tmp_path / "net.onnx", tmp_path / "d.npz", tmp_path / "q.onnx", tmp_path / "plan.json"
    onnx.save(by_rate(), path)
    np.savez(data, x=noise(8, 1, 32))
    done = quantize(path, out, data=str(data), input_values={"rate": "8000"}, save_plan=plan)
    assert done["layers"] == {"int8": 1} and any("fixed to 8000" in line for line in done["remarks"])
    assert [i.name for i in onnx.load(out).graph.input] == ["x"]
    again = tmp_path / "again.onnx"
    quantize(path, again, plan_file=plan, input_values={"rate": "8000"})
    assert again.read_bytes() == out.read_bytes()
    with pytest.raises(PlanError, match="with the --input-value that it had"):
        quantize(path, again, plan_file=plan, input_values={"rate": "16000"})
    with pytest.raises(InputError, match="are for a model of your own"):
        quantize(None, out, sample="fashion", input_values={"rate": "8000"})
