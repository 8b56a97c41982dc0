"""Q/DQ models: what is written, and the numbers of the bug cases, with onnxruntime as the oracle."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from models import NPU, Array, conv_relu, model, node, observe, plan, prepare, sqnr_db

from qbench import qdq
from qbench.affine import Range, Scheme
from qbench.errors import PlanError
from qbench.network import Precision
from qbench.plan import Granularity, make_plan
from qbench.runtime import Session
from qbench.target import QuantScheme

RNG = np.random.default_rng(0)


def w(*shape: int) -> Array:
    return RNG.normal(0, 0.5, shape).astype(np.float32)


def quantized(proto: onnx.ModelProto, feeds: dict[str, Array], simulate: bool = True, **kwargs: Any) -> tuple[Array, Array, qdq.Written]:
    """Float output, quantized output, what was written; ranges are the exact ones of `feeds`."""
    prepared = prepare(proto)
    written = qdq.write(prepared, plan(prepared, observe(prepared, [feeds]), **kwargs))
    data = qdq.to_bytes(written.model)
    onnx.checker.check_model(data, full_check=True)
    before = next(iter(Session(proto.SerializeToString(), 1).run(feeds).values()))
    return before, next(iter(Session(data, 1, simulate).run(feeds).values())), written


def codes_of(written: qdq.Written, name: str) -> Array:
    value = next(v for k, v in written.model.graph.initializers.items() if k.startswith(name))
    assert value.const_value is not None
    return value.const_value.numpy()


X = RNG.normal(size=(1, 3, 8, 8)).astype(np.float32)


@pytest.mark.parametrize(("base", "least_db"), [(Precision.INT8, 38.0), (Precision.INT16, 85.0)])
@pytest.mark.parametrize("opset", [13, 17, 21])
def test_integer_widths_reach_their_signal_to_noise_ratio(base: Precision, least_db: float, opset: int) -> None:
    """B18: 16-bit pairs load at any opset, which stays what it is, and w16a16 gives about 90 dB."""
    before, after, written = quantized(conv_relu(opset), {"x": X}, base=base)
    assert sqnr_db(before, after) >= least_db
    assert written.model.opset_imports[""] == opset


def test_one_sixteen_bit_layer_among_eight_bit_ones() -> None:
    """B18 b: a single INT16 unit needs no other opset either; the conversion between the widths is a pair of its own."""
    nodes = [node("Conv", ["x", "w0"], ["a"], "first"), node("Conv", ["a", "w1"], ["b"], "second"), node("Conv", ["b", "w2"], ["y"], "third")]
    proto = model(nodes, {"x": [1, 3, 8, 8]}, {"y": [1, 3, 8, 8]}, {f"w{i}": w(3, 3, 1, 1) for i in range(3)})
    prepared = prepare(proto)
    precision = {"first": Precision.INT8, "second": Precision.INT16, "third": Precision.INT8}
    made = make_plan(prepared.network, precision, observe(prepared, [{"x": X}]), NPU, calibrator="minmax", granularity=Granularity.PER_CHANNEL)
    written = qdq.write(prepared, made).model
    pairs = [n for n in written.graph if n.op_type == "QuantizeLinear"]
    assert sorted((n.domain, str(n.inputs[0].name).split("_")[0]) for n in pairs if n.inputs[0]) == sorted(
        [("", "x"), ("", "a"), ("com.microsoft", "a"), ("com.microsoft", "b"), ("", "b"), ("", "y")])
    before = Session(proto.SerializeToString(), 1).run({"x": X})["y"]
    assert sqnr_db(before, Session(qdq.to_bytes(written), 1).run({"x": X})["y"]) > 30


def test_w8a16_reaches_46_db() -> None:
    scheme = {"int16": QuantScheme(Scheme(16, False, False), Scheme(8, True, True, True), True)}
    before, after, _ = quantized(conv_relu(), {"x": X}, base=Precision.INT16, schemes=scheme)
    assert 42.0 <= sqnr_db(before, after) <= 55.0


@pytest.mark.parametrize("signed", [False, True])
@pytest.mark.parametrize("simulate", [False, True])
def test_relu_never_lets_negative_values_through(signed: bool, simulate: bool) -> None:
    """B07: with a symmetric range the clamp must stay in the graph."""
    scheme = {"int8": QuantScheme(Scheme(8, signed, signed), Scheme(8, True, True, True), True)}
    _, after, written = quantized(conv_relu(), {"x": X}, simulate, schemes=scheme)
    assert after.min() == 0.0
    assert any(n.op_type == "Relu" for n in written.model.graph)


def test_bias_that_would_leave_int32_widens_the_weight_scale() -> None:
    """B08: weights of 1e-8 with a bias of 5: outputs are 5 and -4.5 within one step, and the report says so."""
    proto = model([node("Conv", ["x", "w", "b"], ["y"], "conv")], {"x": [1, 1, 4, 4]}, {"y": [1, 2, 4, 4]},
                  {"w": np.array([1e-8, -1e-8], np.float32).reshape(2, 1, 1, 1), "b": np.array([5.0, -4.5], np.float32)})
    x = RNG.uniform(-1, 1, (1, 1, 4, 4)).astype(np.float32)
    for granularity in (Granularity.PER_LAYER, Granularity.PER_CHANNEL):
        _, after, written = quantized(proto, {"x": x}, granularity=granularity)
        assert after[0, 0].mean() == pytest.approx(5.0, abs=0.038)
        assert after[0, 1].mean() == pytest.approx(-4.5, abs=0.038)
        assert written.widened["w"] > 1000
        assert np.abs(codes_of(written, "b_q").astype(np.int64)).max() <= 2**31 - 1


def test_a_shared_weight_is_stored_once_and_a_bias_operand_is_not_confused() -> None:
    """B10: tied weights stay tied; one tensor used as bias and as Add operand gets a copy for each role."""
    weights = {"w": w(4, 4, 1, 1), "b": w(4)}
    nodes = [node("Conv", ["x", "w"], ["a"], "one"), node("Conv", ["a", "w", "b"], ["c"], "two"), node("Reshape", ["b", "s"], ["b4"]),
             node("Add", ["c", "b4"], ["y"], "add")]
    proto = model(nodes, {"x": [1, 4, 8, 8]}, {"y": [1, 4, 8, 8]}, weights)
    proto.graph.initializer.append(onnx.numpy_helper.from_array(np.array([1, 4, 1, 1]), "s"))
    before, after, written = quantized(proto, {"x": RNG.normal(size=(1, 4, 8, 8)).astype(np.float32)})
    stored = [k for k, v in written.model.graph.initializers.items() if v.dtype == ir.DataType.INT8 and v.shape is not None and len(v.shape) == 4]
    assert len(stored) == 1
    assert sqnr_db(before, after) > 30


def test_concat_inputs_and_output_share_the_union_range() -> None:
    """B15: ranges [-1, 1] and [-4, 4] meet in a Concat: int8 symmetric scale 4/127 on both sides."""
    nodes = [node("Conv", ["x", "w0"], ["a"], "left"), node("Conv", ["x", "w1"], ["b"], "right"), node("Concat", ["a", "b"], ["y"], "cat", axis=1)]
    proto = model(nodes, {"x": [1, 1, 2, 2]}, {"y": [1, 2, 2, 2]}, {"w0": np.ones((1, 1, 1, 1), np.float32), "w1": np.full((1, 1, 1, 1), 4, np.float32)})
    scheme = {"int8": QuantScheme(Scheme(8, True, True, True), Scheme(8, True, True, True), True)}
    _, _, written = quantized(proto, {"x": np.array([[[[-1, 1], [0.5, 0]]]], np.float32)}, schemes=scheme)
    scales = {float(n.inputs[1].const_value.numpy()) for n in written.model.graph
              if n.op_type == "QuantizeLinear" and n.inputs[0] and n.inputs[0].name in ("a", "b", "y", "y_float") and n.inputs[1] and n.inputs[1].const_value}
    assert len(scales) == 1 and scales.pop() == pytest.approx(0.031496, abs=1e-6)


def test_an_all_zero_weight_channel_keeps_its_bias() -> None:
    """B04 d: channel 1 has only zeros and a bias of 7."""
    weights = {"w": np.stack([w(2, 1, 1), np.zeros((2, 1, 1), np.float32), w(2, 1, 1)]), "b": np.array([0.1, 7.0, -0.2], np.float32)}
    proto = model([node("Conv", ["x", "w", "b"], ["y"], "conv")], {"x": [1, 2, 4, 4]}, {"y": [1, 3, 4, 4]}, weights)
    before, after, written = quantized(proto, {"x": RNG.normal(size=(1, 2, 4, 4)).astype(np.float32)})
    assert (codes_of(written, "w_q")[1] == 0).all()
    step = (before.max() - min(before.min(), 0)) / 255
    assert np.abs(after[0, 1] - 7.0).max() <= step


def test_float_units_carry_no_pair() -> None:
    nodes = [node("Conv", ["x", "w0"], ["a"], "first"), node("Conv", ["a", "w1"], ["y"], "second")]
    proto = model(nodes, {"x": [1, 3, 8, 8]}, {"y": [1, 3, 8, 8]}, {f"w{i}": w(3, 3, 1, 1) for i in range(2)})
    prepared = prepare(proto)
    ranges = observe(prepared, [{"x": X}])
    nothing = qdq.write(prepared, plan(prepared, ranges, floats=["first", "second"])).model
    assert [n.op_type for n in nothing.graph] == ["Conv", "Conv"]
    tail = qdq.write(prepared, plan(prepared, ranges, floats=["first"])).model
    assert [n.op_type for n in tail.graph if not n.op_type.startswith("Dequantize")] == ["Conv", "QuantizeLinear", "Conv", "QuantizeLinear"]


def test_global_scale_uses_one_pair_of_parameters_everywhere() -> None:
    prepared = prepare(conv_relu())
    written = qdq.write(prepared, plan(prepared, observe(prepared, [{"x": X}]), granularity=Granularity.GLOBAL)).model
    scales = {float(n.inputs[1].const_value.numpy()) for n in written.graph if n.op_type == "QuantizeLinear" and n.inputs[1] and n.inputs[1].const_value}
    assert len(scales) == 1


def test_emulated_half_precision_rounds_to_eleven_bits() -> None:
    prepared = prepare(conv_relu())
    half = qdq.write(prepared, plan(prepared, {}, floats=[u.name for u in prepared.network.units]), emulate_fp16=True).model
    before = Session(conv_relu().SerializeToString(), 1).run({"x": X})["y"]
    after = Session(qdq.to_bytes(half), 1).run({"x": X})["y"]
    assert 50 < sqnr_db(before, after) < 90
    assert np.array_equal(after, after.astype(np.float16).astype(np.float32))


def test_the_same_plan_gives_the_same_bytes(tmp_path: Path) -> None:
    prepared = prepare(conv_relu())
    made = plan(prepared, observe(prepared, [{"x": X}]))
    for name in ("one.onnx", "two.onnx"):
        qdq.save(qdq.write(prepare(conv_relu()), made).model, tmp_path / name)
    assert (tmp_path / "one.onnx").read_bytes() == (tmp_path / "two.onnx").read_bytes()
    assert [p.name for p in sorted(tmp_path.iterdir())] == ["one.onnx", "two.onnx"]


def test_a_missing_range_names_the_tensor() -> None:
    prepared = prepare(conv_relu())
    with pytest.raises(PlanError, match="no range for 'x'"):
        qdq.write(prepared, plan(prepared, {"y": Range(0, 1)}))


CHAINS = st.lists(st.sampled_from(["Relu", "Sigmoid", "LeakyRelu", "HardSwish", "Conv", "Tanh", "AveragePool", "MaxPool", "Add"]), min_size=1, max_size=6)


@settings(max_examples=30, deadline=None)
@given(chain=CHAINS, integers=st.lists(st.sampled_from([Precision.INT8, Precision.INT16, Precision.FP16]), min_size=6, max_size=6))
def test_any_mixture_on_any_chain_loads_and_stays_close(chain: list[str], integers: list[Precision]) -> None:
    """Every written model passes the checker, loads, and with 16 bit or float everywhere stays within 25 dB of float."""
    nodes, last = [], "x"
    for i, op in enumerate(chain):
        extra: dict[str, Any] = {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]} if op.endswith("Pool") else {}
        inputs = [last, "w"] if op == "Conv" else [last, "x"] if op == "Add" else [last]
        nodes.append(node(op, inputs, [f"t{i}" if i < len(chain) - 1 else "y"], f"n{i}", **extra))
        last = f"t{i}"
    proto = model(nodes, {"x": [1, 3, 8, 8]}, {"y": [1, 3, 8, 8]}, {"w": w(3, 3, 1, 1)})
    prepared = prepare(proto)
    precision = {u.name: p if u.quantizable else Precision.FP16 for u, p in zip(prepared.network.units, integers, strict=False)}
    made = make_plan(prepared.network, precision, observe(prepared, [{"x": X}]), NPU, calibrator="minmax", granularity=Granularity.PER_CHANNEL)
    data = qdq.to_bytes(qdq.write(prepared, made).model)
    onnx.checker.check_model(data, full_check=True)
    before = Session(proto.SerializeToString(), 1).run({"x": X})["y"]
    after = Session(data, 1).run({"x": X})["y"]
    assert np.isfinite(after).all()
    if Precision.INT8 not in precision.values():
        assert sqnr_db(before, after) > 25


def test_emulated_half_precision_leaves_sizes_alone() -> None:
    """B22: scales of 1.1 in float16 would make 329 rows of 330."""
    proto = model([node("Resize", ["x", "", "scales"], ["y"], "up")], {"x": [1, 1, 300, 4]}, {"y": None}, {"scales": np.array([1, 1, 1.1, 1], np.float32)})
    prepared = prepare(proto)
    half = qdq.write(prepared, plan(prepared, {}, floats=[u.name for u in prepared.network.units]), emulate_fp16=True).model
    assert Session(qdq.to_bytes(half), 1).run({"x": np.ones((1, 1, 300, 4), np.float32)})["y"].shape == (1, 1, 330, 4)
