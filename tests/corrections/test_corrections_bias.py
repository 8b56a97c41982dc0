"""Bias correction: the mean error of each channel goes, and with it what it did to the layers behind."""

from dataclasses import replace

import numpy as np
import onnx_ir as ir
import pytest
from learned_layers import KINDS, four_bits, opened, output, quality_db, with_tensors
from models import Array, model, node, observe, plan, prepare

from qbench import qdq
from qbench.corrections.anchors import set_data
from qbench.corrections.bias import corrected_biases
from qbench.corrections.steps import BiasCorrection
from qbench.evaluation import extract
from qbench.graph import PreparedModel
from qbench.plan import Plan
from qbench.qdq import to_bytes
from qbench.runtime import Session

EMPIRICAL, ANALYTIC = BiasCorrection(), BiasCorrection("analytic")


def mean_error(prepared: PreparedModel, made: Plan, samples: list[dict[str, Array]], tensor: str, axis: int) -> Array:
    """Mean over all but the channels of quantized minus float, in front of the activation."""
    name = qdq.write(prepared, made).raw[tensor]
    difference = output(prepared, made, samples, name).astype(np.float64) - output(prepared, None, samples, tensor)
    return np.asarray(np.moveaxis(difference, axis, 0).reshape(difference.shape[axis], -1).mean(axis=1))


def bias_step(prepared: PreparedModel, made: Plan, layer: str) -> float:
    """Largest step of the layer's int32 bias; half of it is the rounding of the bias itself."""
    nodes = {str(n.name): n for n in qdq.write(prepared, made).model.graph}
    node_ = nodes[layer]
    value = node_.inputs[2] if node_.op_type != "MatMul" else next(n for n, _ in node_.outputs[0].uses()).inputs[1]
    maker = value.producer() if value is not None else None
    assert maker is not None and maker.inputs[0] is not None and maker.inputs[0].dtype == ir.DataType.INT32
    scale = maker.inputs[1]
    assert scale is not None and scale.const_value is not None
    return float(scale.const_value.numpy().max())


@pytest.mark.parametrize("kind", KINDS)
def test_no_channel_keeps_a_mean_error(kind: str) -> None:
    """Empirical: in front of the activation of every layer, later ones on corrected activations, it is 0 up to the int32 of the bias."""
    prepared, made, samples = opened(kind)
    found = corrected_biases(prepared, made, samples, EMPIRICAL, threads=1, simulate=True)
    assert set(found.tensors) == {"bias:first", "bias:second"} and not found.remarks
    after = with_tensors(made, found.tensors)
    axis = -1 if kind.startswith(("gemm", "matmul")) else 1
    first, second = (np.abs(mean_error(prepared, after, samples, t, axis)).max() for t in ("y0", "y1"))
    assert first <= 0.51 * bias_step(prepared, after, "first")
    assert second <= 2 * bias_step(prepared, after, "second")          # where the first layer gets its first bias, the walk does not round it
    assert second <= np.abs(mean_error(prepared, made, samples, "y1", axis)).max() / 8
    assert quality_db(prepared, after, samples) > quality_db(prepared, made, samples)


@pytest.mark.parametrize("kind", KINDS)
def test_the_analytic_shift_is_the_weights_error_on_the_mean_input(kind: str) -> None:
    """Oracle: the float network run once with its own and once with the rounded weights of the first layer."""
    prepared, made, samples = opened(kind)
    found = corrected_biases(prepared, made, samples, ANALYTIC, threads=1)
    rounded = prepared.model.clone()
    written = qdq.write(prepared, made).model
    seen = next(n for n in written.graph if n.name == "first").inputs[1]
    assert seen is not None
    part = extract(written, [], [str(seen.name)])
    assert part is not None
    set_data(rounded.graph.initializers["w0"], Session(to_bytes(part), 1, True).run({})[str(seen.name)])
    axis = -1 if kind.startswith(("gemm", "matmul")) else 1
    error = output(replace(prepared, model=rounded), None, samples, "y0").astype(np.float64) - output(prepared, None, samples, "y0")
    expected = -np.moveaxis(error, axis, 0).reshape(error.shape[axis], -1).mean(axis=1)
    np.testing.assert_allclose(found.tensors["bias:first"].array, expected, atol=1e-5 * np.abs(error).max())


@pytest.mark.parametrize("step", [EMPIRICAL, ANALYTIC])
def test_a_rounding_that_leans_one_way_is_taken_back(step: BiasCorrection) -> None:
    """Every weight lies 0.4 steps above its code, inputs are positive: all outputs are too low, until the bias is corrected."""
    rng = np.random.default_rng(0)
    codes = rng.integers(-6, 7, (6, 8, 1, 1)).astype(np.float32)
    codes[:, 0] = 7.0
    leaning = codes + np.where(codes == 7.0, 0.0, 0.4).astype(np.float32)
    weights: dict[str, Array] = {"w0": leaning / 7, "b0": np.zeros(6, np.float32)}
    prepared = prepare(model([node("Conv", ["x", "w0", "b0"], ["y"], "first")], {"x": ["N", 8, 4, 4]}, {"y": None}, weights))
    samples = [{"x": (1 + 0.2 * rng.random((1, 8, 4, 4))).astype(np.float32)} for _ in range(6)]
    made = plan(prepared, observe(prepared, samples), schemes=four_bits())
    after = with_tensors(made, corrected_biases(prepared, made, samples, step, threads=1).tensors)
    assert quality_db(prepared, after, samples) > quality_db(prepared, made, samples) + 10


def test_float_layers_and_computed_biases_are_left_out() -> None:
    rng = np.random.default_rng(0)
    weights = {n: rng.normal(size=(4, 4, 1, 1)).astype(np.float32) for n in ("w0", "w1")}
    nodes = [node("Conv", ["x", "w0", "b"], ["a"], "first"), node("Conv", ["a", "w1"], ["y"], "second")]
    prepared = prepare(model(nodes, {"x": [1, 4, 4, 4], "b": [4]}, {"y": None}, weights))
    samples = [{"x": rng.normal(size=(1, 4, 4, 4)).astype(np.float32), "b": rng.normal(size=4).astype(np.float32)}]
    made = plan(prepared, observe(prepared, samples), floats=["second"])
    for step in (EMPIRICAL, ANALYTIC):
        found = corrected_biases(prepared, made, samples, step, threads=1)
        assert not found.tensors and found.remarks == {"first": "its bias is not a constant"}


def test_a_constant_first_factor_says_that_it_is_left_out() -> None:
    rng = np.random.default_rng(0)
    prepared = prepare(model([node("MatMul", ["w", "x"], ["y"], "left")], {"x": [4, 3]}, {"y": None}, {"w": rng.normal(size=(5, 4)).astype(np.float32)}))
    samples = [{"x": rng.normal(size=(4, 3)).astype(np.float32)}]
    found = corrected_biases(prepared, plan(prepared, observe(prepared, samples)), samples, EMPIRICAL, threads=1)
    assert not found.tensors and "second operand" in found.remarks["left"]


def test_the_same_samples_give_the_same_bits() -> None:
    prepared, made, samples = opened("conv")
    one, two = (corrected_biases(prepared, made, samples, EMPIRICAL, threads=1) for _ in range(2))
    assert one.tensors == two.tensors
