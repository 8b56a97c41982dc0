"""B08 and B04 d: a bias that would leave int32 raises the weight scale of its own channels, in every kind of layer and code."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from models import Array, model, node, observe, plan, prepare, sqnr_db

from qbench import qdq
from qbench.affine import Scheme
from qbench.network import Precision
from qbench.plan import Granularity, Plan
from qbench.runtime import Session
from qbench.schemes import quant_scheme
from qbench.target import QuantScheme

BIAS = np.array([5.0, -4.5, 0.25, 0.0, 7.0, -3.0], np.float32)
SHAPES = {"Conv": ((1, 4, 4, 4), (6, 4, 1, 1), 0, {}), "Conv grouped": ((1, 4, 4, 4), (6, 2, 1, 1), 0, {"group": 2}),
          "ConvTranspose": ((1, 4, 4, 4), (4, 6, 2, 2), 1, {}), "ConvTranspose grouped": ((1, 4, 4, 4), (4, 3, 2, 2), 1, {"group": 2}),
          "Gemm": ((3, 4), (4, 6), 1, {}), "Gemm transB": ((3, 4), (6, 4), 0, {"transB": 1}), "MatMul": ((3, 4), (4, 6), 1, {})}


def tiny(kind: str, bias: Array = BIAS) -> onnx.ModelProto:
    """A layer whose weights are 1e-8, one channel of ordinary size, one of zeros, and a bias of 5."""
    x, w, axis, attributes = SHAPES[kind]
    channels = np.array([1e-8, -1e-8, 0.5, 1e-8, 0.0, 1e-8], np.float32)[:w[axis]]
    data = np.broadcast_to(channels.reshape([-1 if a == axis else 1 for a in range(len(w))]), w).astype(np.float32)
    op = kind.split()[0]
    if op == "MatMul":
        nodes = [node("MatMul", ["x", "w"], ["p"], "layer"), node("Add", ["p", "b"], ["y"], "add")]
    else:
        nodes = [node(op, ["x", "w", "b"], ["y"], "layer", **attributes)]
    return model(nodes, {"x": x}, {"y": None}, {"w": data, "b": bias})


def feeds(kind: str) -> dict[str, Array]:
    return {"x": np.random.default_rng(0).uniform(-1, 1, SHAPES[kind][0]).astype(np.float32)}


def made(kind: str, granularity: Granularity = Granularity.PER_CHANNEL, activation: str = "uint8", weight: str = "int8:symmetric,narrow",
         bias: Array = BIAS) -> tuple[Plan, qdq.Written]:
    prepared = prepare(tiny(kind, bias))
    precision = Precision.INT16 if "16" in activation else Precision.INT8
    chosen = plan(prepared, observe(prepared, [feeds(kind)]), precision, granularity=granularity, schemes={str(precision): quant_scheme(activation, weight)})
    return chosen, qdq.write(prepared, chosen)


def codes(found: qdq.Written, name: str) -> Array:
    value = found.model.graph.initializers[name].const_value
    assert value is not None
    return value.numpy()


@pytest.mark.parametrize(("activation", "weight"), [("uint8", "int8:symmetric,narrow"), ("int8:symmetric", "uint8"), ("int16:symmetric", "int8:symmetric"),
                                                    ("uint16", "int16:symmetric,narrow,power_of_two")])
@pytest.mark.parametrize("granularity", [Granularity.PER_LAYER, Granularity.PER_CHANNEL])
@pytest.mark.parametrize("kind", SHAPES)
def test_a_large_bias_survives_tiny_weights(kind: str, granularity: Granularity, activation: str, weight: str) -> None:
    _, found = made(kind, granularity, activation, weight)
    before = Session(tiny(kind).SerializeToString(), 1).run(feeds(kind))["y"]
    step = float(np.ptp(np.append(before, 0))) / (255 if "16" not in activation else 65535) * (2 if "sym" in activation else 1)
    held = codes(found, "b_q").astype(np.int64)
    assert np.abs(held).max() <= 2**31 - 1
    if granularity is Granularity.PER_CHANNEL:                      # per tensor, the one ordinary channel sets the scale
        assert found.widened["w"] > 10
    for simulate in (True, False):
        after = Session(qdq.to_bytes(found.model), 1, simulate).run(feeds(kind))["y"]
        axis = 1 if before.ndim == 4 else -1
        others = tuple(a for a in range(before.ndim) if a != axis % before.ndim)
        silent = [0, 1, 3, 4] if kind == "ConvTranspose grouped" else [0, 1, 3, 4, 5]         # channels whose output is their bias
        assert np.abs(after.mean(others) - before.mean(others))[silent].max() <= step * 1.02


def test_the_means_and_scales_of_b08() -> None:
    proto = model([node("Conv", ["x", "w", "b"], ["y"], "conv")], {"x": [1, 1, 4, 4]}, {"y": [1, 2, 4, 4]},
                  {"w": np.array([1e-8, -1e-8], np.float32).reshape(2, 1, 1, 1), "b": np.array([5.0, -4.5], np.float32)})
    x = np.random.default_rng(0).uniform(-1, 1, (1, 1, 4, 4)).astype(np.float32)
    x.flat[:2] = -1, 1
    prepared = prepare(proto)
    for granularity in (Granularity.PER_LAYER, Granularity.PER_CHANNEL):
        found = qdq.write(prepared, plan(prepared, observe(prepared, [{"x": x}]), granularity=granularity))
        after = Session(qdq.to_bytes(found.model), 1).run({"x": x})["y"]
        assert after[0, 0].mean() == pytest.approx(5.0, abs=0.038) and after[0, 1].mean() == pytest.approx(-4.5, abs=0.038)
        scales = codes(found, "w_scale").astype(np.float64) * float(codes(found, "x_int8_scale"))
        assert scales.max() == pytest.approx(2.3283e-9, rel=1e-4) and scales.min() == pytest.approx(
            2.3283e-9 if granularity is Granularity.PER_LAYER else 2.0955e-9, rel=1e-4)
        assert codes(found, "w_scale").max() == pytest.approx(2.9686e-7, rel=1e-4)
        assert "weight w: scale widened" in next(found.remarks())


@pytest.mark.parametrize("granularity", [Granularity.PER_LAYER, Granularity.PER_CHANNEL])
@pytest.mark.parametrize("kind", SHAPES)
def test_bias_and_products_together_stay_in_an_int32_accumulator(kind: str, granularity: Granularity) -> None:
    """Whatever codes the input has; float arithmetic hides the wrap-around (the HTP simulator was 250 steps off)."""
    _, found = made(kind, granularity)
    bias, weight = (np.abs(codes(found, f"{name}_q").astype(np.int64)) for name in "bw")
    taps = weight.size // bias.size
    if granularity is Granularity.PER_CHANNEL:                      # per tensor, the one ordinary channel sets the scale
        assert bias.max() > 2**31 - 1 - 256 * 128 * taps - 4096          # scales are float32
    assert bias.max() + taps * weight.max() * 255 <= 2**31 - 1


@pytest.mark.parametrize("kind", SHAPES)
def test_without_the_guard_the_bias_clips_and_nothing_else_breaks(kind: str) -> None:
    prepared = prepare(tiny(kind))
    chosen, guarded = made(kind)
    free = qdq.write(prepared, Plan(**{f: getattr(chosen, f) for f in chosen.__dataclass_fields__} | {"corrections": ()}))
    assert not free.widened and guarded.widened
    assert np.abs(codes(free, "b_q").astype(np.int64)).max() == 2**31 - 1
    assert codes(free, "w_scale").min() == pytest.approx(1e-8 / 127, rel=1e-5)
    for simulate in (True, False):
        assert np.isfinite(Session(qdq.to_bytes(free.model), 1, simulate).run(feeds(kind))["y"]).all()


@pytest.mark.parametrize("kind", SHAPES)
def test_an_ordinary_bias_raises_nothing(kind: str) -> None:
    rng = np.random.default_rng(0)
    w = SHAPES[kind][1]
    proto = tiny(kind)
    proto.graph.initializer[0].CopyFrom(onnx.numpy_helper.from_array(rng.normal(0, 0.5, w).astype(np.float32), "w"))
    prepared = prepare(proto)
    found = qdq.write(prepared, plan(prepared, observe(prepared, [feeds(kind)])))
    assert not found.widened and not found.float_bias
    before = Session(proto.SerializeToString(), 1).run(feeds(kind))["y"]
    for simulate in (True, False):
        assert sqnr_db(before, Session(qdq.to_bytes(found.model), 1, simulate).run(feeds(kind))["y"]) > 35


@pytest.mark.parametrize("input_scale", [1e-3, 1.0, 1e3])
def test_a_silent_channel_keeps_its_bias_whatever_the_input(input_scale: float) -> None:
    """B04 d: with inputs up to 1000, a weight scale of 1.0 would leave 7.0 at 7.8; the output is 7.0 within one output step."""
    rng = np.random.default_rng(0)
    w = (rng.normal(0, 0.5, (3, 2, 1, 1)) / input_scale).astype(np.float32)
    w[1] = 0.0
    weights = {"w": w, "b": np.array([0.1, 7.0, -0.2], np.float32)}
    proto = model([node("Conv", ["x", "w", "b"], ["y"], "conv")], {"x": [1, 2, 8, 8]}, {"y": [1, 3, 8, 8]}, weights)
    x = {"x": (rng.normal(size=(1, 2, 8, 8)) * input_scale).astype(np.float32)}
    prepared = prepare(proto)
    found = qdq.write(prepared, plan(prepared, observe(prepared, [x])))
    before, after = Session(proto.SerializeToString(), 1).run(x)["y"], Session(qdq.to_bytes(found.model), 1).run(x)["y"]
    step = (before.max() - min(before.min(), 0)) / 255
    assert not codes(found, "w_q")[1].any() and np.abs(after[0, 1] - 7.0).max() <= step
    s_x = float(codes(found, "x_int8_scale"))
    if 7.0 / s_x > 256:                                             # the convention of B04 d wherever it is fine enough
        assert codes(found, "w_scale")[1] == 1.0 and codes(found, "b_q")[1] == round(7 / s_x)


@pytest.mark.parametrize("bits", [16, 24, 40, 64])
@pytest.mark.parametrize("kind", SHAPES)
def test_biases_of_other_widths(kind: str, bits: int) -> None:
    """Fewer bits raise the scale further; more leave the weights alone, also where onnxruntime would make int32 of a float bias."""
    prepared = prepare(tiny(kind))
    scheme = quant_scheme("uint8", "int8:symmetric,narrow", bias_bits=bits)
    found = qdq.write(prepared, plan(prepared, observe(prepared, [feeds(kind)]), schemes={"int8": scheme}))
    before = Session(tiny(kind).SerializeToString(), 1).run(feeds(kind))["y"]
    for simulate in (True, False):
        assert sqnr_db(before, Session(qdq.to_bytes(found.model), 1, simulate).run(feeds(kind))["y"]) > 40
    held = {k: codes(found, k).astype(np.int64) for k in found.model.graph.initializers if k.startswith("b_") and k.endswith("_q")}
    if bits <= 32:
        assert list(held) == ["b_q"] and np.abs(held["b_q"]).max() <= 2 ** (bits - 1) - 1 and found.widened["w"] > 1000
    elif bits > 43:                                                # 5 / 6.2e-13 takes 43 bits and the sign
        assert sorted(held) == ["b_lower_q", "b_upper_q"] and not found.widened
        total = held["b_upper_q"] * 2**24 + held["b_lower_q"]
        assert (total * codes(found, "b_lower_scale").astype(np.float64)).reshape(-1)[:2] == pytest.approx([5.0, -4.5], rel=1e-6)


@pytest.mark.parametrize("kind", SHAPES)
def test_a_bias_of_8_bits_has_a_scale_of_its_own(kind: str) -> None:
    """As XINT8 stores it: within half a step of the float bias, and it does not touch the weight's scale."""
    prepared = prepare(tiny(kind))
    xint8 = Scheme(8, signed=True, symmetric=True, power_of_two=True)
    schemes = {"int8": QuantScheme(xint8, xint8, weight_per_channel=False, bias_bits=8)}
    found = qdq.write(prepared, plan(prepared, observe(prepared, [feeds(kind)]), schemes=schemes))
    scale = float(codes(found, "b_scale"))
    assert codes(found, "b_q").dtype == np.int8 and np.frexp(scale)[0] == 0.5 and not found.widened
    assert np.abs(codes(found, "b_q") * scale - BIAS).max() <= scale / 2
    assert scale / 2 < np.abs(BIAS).max() / 127.5 <= scale
    Session(qdq.to_bytes(found.model), 1).run(feeds(kind))


def test_a_bias_shared_by_two_layers_gets_a_scale_for_each() -> None:
    """B10: one float bias behind two accumulators of different steps."""
    rng = np.random.default_rng(0)
    weights = {"w0": rng.normal(0, 0.5, (4, 4, 1, 1)).astype(np.float32), "w1": rng.normal(0, 2.0, (4, 4, 1, 1)).astype(np.float32),
               "b": rng.normal(0, 0.5, 4).astype(np.float32)}
    proto = model([node("Conv", ["x", "w0", "b"], ["t"], "one"), node("Conv", ["t", "w1", "b"], ["y"], "two")], {"x": [1, 4, 8, 8]}, {"y": None}, weights)
    x = {"x": rng.normal(size=(1, 4, 8, 8)).astype(np.float32)}
    prepared = prepare(proto)
    found = qdq.write(prepared, plan(prepared, observe(prepared, [x])))
    graph = found.model.graph
    stored = [k for k, v in graph.initializers.items() if v.const_value is not None and v.const_value.dtype.name == "INT32"]
    assert len(stored) == 2 and "b" not in graph.initializers
    for name in stored:
        reals = codes(found, name) * codes(found, name.replace("_q", "_scale")).astype(np.float64)
        assert np.abs(reals - weights["b"]).max() <= codes(found, name.replace("_q", "_scale")).max()
    assert sqnr_db(Session(proto.SerializeToString(), 1).run(x)["y"], Session(qdq.to_bytes(found.model), 1).run(x)["y"]) > 30


def test_the_bias_of_a_matmul_lies_in_the_accumulator() -> None:
    """No pair between the product and the Add, and no 8-bit grid for the bias: it is worth several decibels."""
    rng = np.random.default_rng(0)
    proto = model([node("MatMul", ["x", "w"], ["p"], "mm"), node("Add", ["b", "p"], ["y"], "add")], {"x": [2, 16, 32]}, {"y": None},
                  {"w": rng.normal(0, 0.2, (32, 24)).astype(np.float32), "b": rng.normal(0, 3.0, 24).astype(np.float32)})
    x = {"x": rng.normal(size=(2, 16, 32)).astype(np.float32)}
    prepared = prepare(proto)
    found = qdq.write(prepared, plan(prepared, observe(prepared, [x])))
    assert [n.op_type for n in found.model.graph].count("QuantizeLinear") == 2
    assert codes(found, "b_q").dtype == np.int32 and found.raw["p"] == found.stored["p"] == "p"
    before = Session(proto.SerializeToString(), 1).run(x)["y"]
    for simulate in (True, False):
        after = Session(qdq.to_bytes(found.model), 1, simulate).run(x)["y"]
        step = float(np.ptp(before)) / 255
        assert float(np.abs(before - after).max()) < 1.6 * step + 4 * 0.02


def test_a_mask_behind_a_matmul_is_no_bias() -> None:
    """B13: a matrix that is added, not a vector, keeps its own 8-bit grid and leaves the weight scales alone."""
    rng = np.random.default_rng(0)
    mask = np.where(np.tril(np.ones((8, 8))), 0.0, -1e4).astype(np.float32)
    proto = model([node("MatMul", ["x", "w"], ["p"], "mm"), node("Add", ["p", "mask"], ["y"], "add")], {"x": [8, 8]}, {"y": None},
                  {"w": rng.normal(0, 0.2, (8, 8)).astype(np.float32), "mask": mask})
    prepared = prepare(proto)
    found = qdq.write(prepared, plan(prepared, observe(prepared, [{"x": rng.normal(size=(8, 8)).astype(np.float32)}])))
    assert not found.widened and codes(found, "mask_q").dtype == np.uint8 and found.raw["p"] != found.stored["p"]


@pytest.mark.parametrize("scheme", [Scheme(8, True, True, True), Scheme(16, True, True, True, True)])
def test_a_raised_scale_is_still_a_power_of_two(scheme: Scheme) -> None:
    _, found = made("Conv", weight="int8:symmetric,narrow,power_of_two" if scheme.power_of_two else "int8:symmetric,narrow")
    scales = codes(found, "w_scale").astype(np.float64)
    assert (np.log2(scales) % 1 == 0).all() == scheme.power_of_two
