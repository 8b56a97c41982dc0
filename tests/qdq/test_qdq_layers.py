"""Every form of a layer with weights, at every granularity and kind of code: right axis, right numbers, with integer kernels and without."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from layers import FINE, LAYERS, Layer
from models import Array, model, node, observe, plan, prepare, sqnr_db

from qbench import qdq
from qbench.affine import Range, affine
from qbench.plan import Granularity
from qbench.qdq.layout import weight_of
from qbench.runtime import Session
from qbench.schemes import quant_scheme
from qbench.target import QuantScheme

NPU8 = quant_scheme("uint8", "int8:symmetric,narrow", weight_block=4)
SCHEMES = {"uint8, int8 symmetric": NPU8, "int8, uint8": quant_scheme("int8", "uint8", weight_block=4),
           "int8 symmetric, int8": quant_scheme("int8:symmetric", "int8", weight_block=4)}


def written(layer: Layer, granularity: Granularity, scheme: QuantScheme, act: str | None = None) -> qdq.Written:
    prepared = prepare(layer.proto(act))
    ranges = observe(prepared, [layer.feeds()])
    return qdq.write(prepared, plan(prepared, ranges, granularity=granularity, schemes={"int8": scheme}))


def outputs(layer: Layer, found: qdq.Written, act: str | None = None) -> tuple[Array, Array, Array]:
    """Float output, Q/DQ output as written, Q/DQ output with onnxruntime's integer kernels."""
    data = qdq.to_bytes(found.model)
    onnx.checker.check_model(data, full_check=True)
    before = Session(layer.proto(act).SerializeToString(), 1).run(layer.feeds())["y"]
    as_written, fused = (Session(data, 1, simulate).run(layer.feeds())["y"] for simulate in (True, False))
    return before, as_written, fused


def array(found: qdq.Written, name: str) -> Array:
    value = found.model.graph.initializers[name].const_value
    assert value is not None
    return value.numpy()


@pytest.mark.parametrize("scheme", SCHEMES.values(), ids=SCHEMES)
@pytest.mark.parametrize("granularity", FINE)
@pytest.mark.parametrize("layer", LAYERS.values(), ids=LAYERS)
def test_every_layer_runs_with_integer_kernels_and_without(layer: Layer, granularity: Granularity, scheme: QuantScheme) -> None:
    """28 dB is what one 8-bit scale per tensor leaves of channels that differ by a factor of 30.

    Behind a MatMul, a Relu leaves the product without a pair of its own, which onnxruntime runs with another integer kernel.
    """
    for act in (None, "Relu") if layer.op == "MatMul" else (None,):
        before, as_written, fused = outputs(layer, written(layer, granularity, scheme, act), act)
        assert before.shape == as_written.shape == fused.shape
        assert sqnr_db(before, as_written) > 28
        assert abs(sqnr_db(before, as_written) - sqnr_db(before, fused)) < 1


@pytest.mark.parametrize("layer", LAYERS.values(), ids=LAYERS)
def test_the_number_of_scales_is_that_of_the_layer(layer: Layer) -> None:
    assert array(written(layer, Granularity.PER_LAYER, NPU8), "w_scale").size == 1
    found = written(layer, Granularity.PER_CHANNEL, NPU8)
    assert array(found, "w_scale").size == layer.scales
    assert ("w" in found.per_tensor) == (layer.scales == 1) and ("w" in found.shared) == (layer.name == "deconv grouped")
    blocked = written(layer, Granularity.PER_GROUP, NPU8)
    assert array(blocked, "w_scale").size == (layer.blocks or layer.scales)
    assert ("w" in blocked.per_channel) == (layer.blocks is None)


def dequantized(found: qdq.Written, layer: Layer) -> Array:
    """The weight as onnxruntime makes it from the file."""
    graph = found.model.graph
    op = next(n for n in graph if n.name == "layer")
    value = op.inputs[0 if layer.left else 1]
    assert value is not None
    part = ir.convenience.extract(graph, [], [str(value.name)])
    return next(iter(Session(qdq.to_bytes(ir.Model(part, ir_version=10)), 1).run({}).values()))


def slow_blocks(layer: Layer, scheme: QuantScheme, block: int) -> Array:
    """The weight behind its integers, one block at a time: the oracle of the blocked layouts."""
    data = layer.arrays()["w"].astype(np.float32)
    out_axis, in_axis = {"Conv": (0, 1), "ConvTranspose": (1, 0)}.get(layer.op, (layer.axis, None))
    assert out_axis is not None
    if in_axis is None:
        last = {data.ndim - 1, data.ndim - 2}
        in_axis = (last - {out_axis}).pop()
    outer = [a for a in range(data.ndim - 2) if layer.op == "MatMul"]
    result = np.empty_like(data)
    for index in np.ndindex(*(data.shape[a] for a in (*outer, out_axis)), data.shape[in_axis] // block):
        where = [slice(None)] * data.ndim
        for axis, i in zip((*outer, out_axis), index[:-1], strict=True):
            where[axis] = slice(i, i + 1)
        where[in_axis] = slice(index[-1] * block, (index[-1] + 1) * block)
        part = data[tuple(where)]
        a = affine(Range(float(part.min()), float(part.max())), scheme.weight)
        q = np.clip(np.rint(part / np.float32(a.scale)) + a.zero_point, a.scheme.qmin, a.scheme.qmax)
        result[tuple(where)] = (q - a.zero_point).astype(np.float32) * np.float32(a.scale)
    return result


@pytest.mark.parametrize("scheme", SCHEMES.values(), ids=SCHEMES)
@pytest.mark.parametrize("layer", [v for v in LAYERS.values() if v.blocks], ids=lambda v: v.name)
def test_blocks_are_cut_where_the_input_channels_are(layer: Layer, scheme: QuantScheme) -> None:
    assert np.array_equal(dequantized(written(layer, Granularity.PER_GROUP, scheme), layer), slow_blocks(layer, scheme, 4))


@pytest.mark.parametrize("layer", [v for v in LAYERS.values() if v.blocks], ids=lambda v: v.name)
def test_finer_granularity_is_closer(layer: Layer) -> None:
    """Weights whose channels differ by a factor of 30 lose least in blocks, most with one scale; activations are the same."""
    exact = layer.arrays()["w"]
    errors = [sqnr_db(exact, dequantized(written(layer, g, NPU8), layer)) for g in (Granularity.PER_LAYER, Granularity.PER_CHANNEL, Granularity.PER_GROUP)]
    assert errors[0] < errors[1] < errors[2]


@pytest.mark.parametrize(("group", "scales"), [(1, 6), (2, 3)])
def test_transposed_convolutions_of_b09(group: int, scales: int) -> None:
    """(a) six scales on axis 1; (b) three, shared by the two groups, the bias scale tiled to six: better than one per tensor, and said."""
    rng = np.random.default_rng(5)
    layer = Layer("up", "ConvTranspose", (1, 4, 8, 8), (4, 6 // group, 3, 3), {"group": group}, bias=(6,))
    arrays = {"w": rng.normal(0, 0.5, layer.weight).astype(np.float32), "b": rng.normal(0, 0.5, 6).astype(np.float32)}
    prepared = prepare(layer.proto(arrays=arrays))
    ranges = observe(prepared, [layer.feeds()])
    before = Session(layer.proto(arrays=arrays).SerializeToString(), 1).run(layer.feeds())["y"]
    found = qdq.write(prepared, plan(prepared, ranges))
    coarse = qdq.write(prepared, plan(prepared, ranges, granularity=Granularity.PER_LAYER))
    fine, one = (sqnr_db(before, Session(qdq.to_bytes(f.model), 1).run(layer.feeds())["y"]) for f in (found, coarse))
    assert fine >= 35.0 and fine >= one - 0.2
    assert array(found, "w_scale").size == scales and array(found, "b_scale").size == 6
    assert array(found, "b_scale") == pytest.approx(np.tile(array(found, "w_scale"), group) * array(found, "x_int8_scale"), rel=1e-6)
    assert list(found.shared) == (["w"] if group > 1 else [])
    assert not found.per_tensor and any("2 groups share one per position" in r for r in found.remarks()) == (group > 1)


def test_a_target_without_scales_per_channel_gets_one_and_says_so() -> None:
    found = written(LAYERS["conv"], Granularity.PER_CHANNEL, quant_scheme("uint8", "int8:symmetric", weight_per_channel=False))
    assert array(found, "w_scale").shape == () and found.per_tensor == {"w": "the target takes one scale per weight tensor"}
    assert list(found.remarks()) == ["weight w: one scale per tensor; the target takes one scale per weight tensor"]


@pytest.mark.parametrize(("layer", "why"), [
    ("conv depthwise", "depthwise: each output channel has one input channel"), ("deconv depthwise", "depthwise"),
    ("conv grouped", "its 4 input channels are one block of 4"), ("matmul vector w", "a vector: its product has no channels")])
def test_layers_without_blocks_say_why(layer: str, why: str) -> None:
    found = written(LAYERS[layer], Granularity.PER_GROUP, NPU8)
    assert why in found.per_channel["w"] and any(r.startswith("weight w: no scale per group; ") for r in found.remarks())


def test_input_channels_that_no_block_divides() -> None:
    found = written(LAYERS["conv"], Granularity.PER_GROUP, quant_scheme("uint8", "int8:symmetric", weight_block=3))
    assert found.per_channel == {"w": "its 8 input channels are not divisible by blocks of 3"}
    assert array(found, "w_scale").size == 6


def test_the_weight_operand_is_found_on_either_side() -> None:
    for layer in LAYERS.values():
        prepared = prepare(layer.proto())
        weight = weight_of(next(iter(prepared.model.graph)))
        assert weight is not None and weight.left == layer.left
        assert weight.channels == (6 if layer.scales in (3, 6) else layer.scales)


def test_a_bias_in_blocks_stays_in_float_and_says_so() -> None:
    found = written(LAYERS["conv"], Granularity.PER_GROUP, NPU8)
    assert "no single step" in found.float_bias["b"] and "b" in found.model.graph.initializers


def test_a_computed_bias_is_left_alone() -> None:
    nodes = [node("Gemm", ["x", "w", "c"], ["y"], "layer")]
    proto = model(nodes, {"x": [5, 8], "c": [6]}, {"y": [5, 6]}, {"w": LAYERS["gemm"].arrays()["w"]})
    prepared = prepare(proto)
    feeds = {**LAYERS["gemm"].feeds(), "c": np.linspace(-1, 1, 6, dtype=np.float32)}
    found = qdq.write(prepared, plan(prepared, observe(prepared, [feeds])))
    assert list(found.float_bias.values()) == ["it is computed"]
    both = model([node("Gemm", ["x", "z", "c"], ["y"], "layer")], {"x": [5, 8], "z": [8, 6]}, {"y": [5, 6]}, {"c": np.ones(6, np.float32)})
    prepared = prepare(both)
    computed = qdq.write(prepared, plan(prepared, observe(prepared, [{**feeds, "z": LAYERS["gemm"].arrays()["w"]}])))
    assert computed.float_bias == {"c": "the layer has no constant weight"}
    before = Session(proto.SerializeToString(), 1).run(feeds)["y"]
    for simulate in (True, False):
        assert sqnr_db(before, Session(qdq.to_bytes(found.model), 1, simulate).run(feeds)["y"]) > 35


@pytest.mark.parametrize("bits", [2, 4, 7])
def test_codes_of_few_bits_stay_inside_their_width(bits: int) -> None:
    """QuantizeLinear saturates at 8 bits: a Clip in front of it keeps values beyond the range in the 4-bit codes of the chip."""
    scheme = quant_scheme(f"uint{bits}", f"int{bits}:symmetric,narrow")
    layer = LAYERS["conv"]
    prepared = prepare(layer.proto())
    ranges = {g: Range(r.low / 2, r.high / 2) for g, r in observe(prepared, [layer.feeds()]).items()}     # half of it clips
    found = qdq.write(prepared, plan(prepared, ranges, schemes={"int8": scheme}))
    graph = found.model.graph
    assert sum(n.op_type == "Clip" for n in graph) == 2
    for n in list(graph):
        if n.op_type == "QuantizeLinear":
            graph.outputs.append(n.outputs[0])
            n.outputs[0].type, n.outputs[0].shape = ir.TensorType(ir.DataType.UINT8), None
    for simulate in (True, False):
        made = Session(qdq.to_bytes(found.model), 1, simulate).run(layer.feeds())
        codes = [v for v in made.values() if v.dtype == np.uint8]
        assert len(codes) == 2 and all(c.max() == 2**bits - 1 and c.min() == 0 for c in codes)
    weight = array(found, "w_q")
    assert weight.dtype == np.int8 and np.abs(weight.astype(int)).max() == 2 ** (bits - 1) - 1
