"""Models that are quantized already are recognised in every form, and refused with what and where."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from models import conv_relu, node, observe, plan, prepare
from odd_models import BOOL, FLOAT, UINT8, info, odd_model, prepared_of
from onnx import TensorProto, helper

from qbench import qdq
from qbench.errors import ModelError
from qbench.graph import load_network

SCALE, ZERO = {"s": np.float32(0.1)}, {"z": np.uint8(0)}
PAIR = [node("QuantizeLinear", ["x", "s", "z"], ["q"], "first_q"), node("DequantizeLinear", ["q", "s", "z"], ["y"], "first_dq")]


def assert_refused(model: onnx.ModelProto, *told: str) -> None:
    with pytest.raises(ModelError, match="already quantized") as caught:
        prepared_of(model)
    for part in told:
        assert part in str(caught.value)
    assert "Give the float model" in str(caught.value)


def test_pairs() -> None:
    assert_refused(odd_model(PAIR, [info("x", [1, 4])], [info("y", [1, 4])], {**SCALE, **ZERO}), "1 QuantizeLinear", "1 DequantizeLinear", "'first_q'")


def test_what_qbench_wrote_itself_is_not_quantized_again() -> None:
    prepared = prepare(conv_relu())
    x = np.random.default_rng(0).normal(size=(1, 3, 8, 8)).astype(np.float32)
    with pytest.raises(ModelError, match=r"already quantized: \d DequantizeLinear"):
        load_network(qdq.write(prepared, plan(prepared, observe(prepared, [{"x": x}]))).model)


@pytest.mark.parametrize(("op", "domain"), [
    ("QLinearConv", ""), ("QLinearMatMul", ""), ("ConvInteger", ""), ("MatMulInteger", ""), ("DynamicQuantizeLinear", ""),
    ("QLinearAdd", "com.microsoft"), ("QLinearSigmoid", "com.microsoft"), ("QLinearConcat", "com.microsoft"), ("QGemm", "com.microsoft"),
    ("QAttention", "com.microsoft"), ("MatMulNBits", "com.microsoft"), ("MatMulBnb4", "com.microsoft"), ("GatherBlockQuantized", "com.microsoft"),
    ("DynamicQuantizeMatMul", "com.microsoft"), ("DynamicQuantizeLSTM", "com.microsoft"), ("MatMulIntegerToFloat", "com.microsoft"),
    ("QuantizeLinear", "com.microsoft"), ("FakeQuantize", "org.openvinotoolkit"), ("FakeQuant", "aimet.customop.cpu"), ("QuantizeBFP", "com.microsoft")])
@pytest.mark.parametrize("where", ["top", "branch", "function"])
def test_every_form_wherever_it_stands(op: str, domain: str, where: str) -> None:
    """The operator need not be valid: it is its name that tells."""
    odd = helper.make_node(op, ["x", "x"], ["y"], "culprit", domain=domain)
    domains = [domain] if domain else []
    if where == "top":
        assert_refused(odd_model([odd], [info("x", [1, 4])], [info("y", [1, 4])], domains=domains), f"1 {op}", "'culprit'")
    elif where == "branch":
        then, other = (helper.make_graph([n], name, [], [onnx.ValueInfoProto(name="y" if name == "then" else "n")])
                       for name, n in (("then", odd), ("other", node("Neg", ["x"], ["n"]))))
        assert_refused(odd_model([node("If", ["c"], ["r"], "choice", then_branch=then, else_branch=other)], [info("x", [1, 4]), info("c", [], BOOL)],
                          [info("r", [1, 4])], domains=domains), f"1 {op}", "'culprit'", "in the body 'then'")
    else:
        imports = [helper.make_opsetid("", 17), *(helper.make_opsetid(d, 1) for d in domains)]
        function = helper.make_function("mine", "Block", ["x"], ["y"], [odd], imports)
        assert_refused(odd_model([helper.make_node("Block", ["x"], ["r"], domain="mine")], [info("x", [1, 4])], [info("r", [1, 4])], domains=["mine", *domains],
                          functions=[function]), f"1 {op}", "'culprit'", "in the function 'Block'")


def test_they_are_counted() -> None:
    nodes, source = [], "x"
    for i in range(3):
        nodes += [node("QuantizeLinear", [source, "s", "z"], [f"q{i}"], f"q{i}"), node("DequantizeLinear", [f"q{i}", "s", "z"], [f"d{i}"], f"d{i}")]
        source = f"d{i}"
    assert_refused(odd_model(nodes, [info("x", [1, 4])], [info("d2", [1, 4])], {**SCALE, **ZERO}), "3 QuantizeLinear, 3 DequantizeLinear")


@pytest.mark.parametrize("dtype", [TensorProto.INT4, TensorProto.UINT4, TensorProto.FLOAT8E4M3FN, TensorProto.FLOAT8E5M2])
def test_weights_of_a_narrow_type(dtype: int) -> None:
    proto = odd_model([node("Cast", ["w"], ["f"], "cast", to=FLOAT), node("MatMul", ["x", "f"], ["y"], "mm")], [info("x", [1, 4])], [info("y", [1, 4])], opset=21,
                      ir_version=10)
    proto.graph.initializer.append(helper.make_tensor("w", dtype, [4, 4], [1.0] * 16))
    assert_refused(proto, "weight 'w' is stored as")


def test_integers_that_are_data_are_no_quantization() -> None:
    """A uint8 image, cast and scaled in the graph."""
    nodes = [node("Cast", ["x"], ["f"], "cast", to=FLOAT), node("Mul", ["f", "k"], ["y"], "scale")]
    assert prepared_of(odd_model(nodes, [info("x", [1, 4], UINT8)], [info("y", [1, 4])], {"k": np.float32(1 / 255)})).network.inputs == ("x",)


def test_from_a_file_too(tmp_path: Path) -> None:
    path = tmp_path / "net.onnx"
    path.write_bytes(odd_model(PAIR, [info("x", [1, 4])], [info("y", [1, 4])], {**SCALE, **ZERO}).SerializeToString())
    with pytest.raises(ModelError, match="already quantized"):
        load_network(path)
    assert isinstance(ir.load(path), ir.Model)
