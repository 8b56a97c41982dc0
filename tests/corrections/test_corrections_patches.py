"""Layers as matrix products, with onnxruntime as the oracle."""

from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from models import Array, model, node
from numpy.typing import NDArray

from qbench.corrections.anchors import Anchor, anchor_of
from qbench.corrections.patches import bias_row, factor_of, from_matrix, matrix, patches, positions_of
from qbench.runtime import Session


def layer(op: str, weights: dict[str, Array], shape: tuple[int, ...], seed: int = 0, **attributes: Any) -> tuple[Anchor, Array, Array]:
    """The anchor of a one-layer model, a random input, and what onnxruntime makes of it."""
    proto = model([node(op, ["x", *weights], ["y"], "it", **attributes)], {"x": list(shape)}, {"y": None}, weights)
    x = np.random.default_rng(seed).normal(size=shape).astype(np.float32)
    graph = ir.serde.deserialize_model(proto).graph
    anchor = anchor_of(graph[0])
    assert isinstance(anchor, Anchor), anchor
    return anchor, x, Session(proto.SerializeToString(), 1).run({"x": x})["y"]


def outputs_at(anchor: Anchor, y: Array, positions: NDArray[np.int64]) -> Array:
    """The output of one sample at `positions`: [groups, positions, outputs / groups]."""
    if anchor.channel_axis != 1:
        return y.reshape(-1, anchor.outputs)[positions][None]
    return y.reshape(anchor.groups, anchor.outputs // anchor.groups, -1)[:, :, positions].transpose(0, 2, 1)


def by_patches(anchor: Anchor, x: Array, y: Array) -> tuple[Array, Array]:
    """The output at all positions of the last sample: as matrix product, and as it is."""
    weight = anchor.weight.const_value
    assert weight is not None
    at = np.arange(positions_of(anchor, x.shape, y.shape))
    product = patches(anchor, x[-1], at, y.shape) @ matrix(anchor, weight.numpy()) * np.float32(factor_of(anchor, "alpha")) + bias_row(anchor)
    return product, outputs_at(anchor, y[-1], at)


@settings(max_examples=60)
@given(data=st.data())
@pytest.mark.parametrize("op", ["Conv", "ConvTranspose"])
def test_any_convolution_is_a_product_of_patches(op: str, data: st.DataObject) -> None:
    """One to three dimensions, groups, strides, dilations, explicit and automatic padding."""
    axes, groups, per_in, per_out = (data.draw(st.integers(1, 3)) for _ in range(4))
    kernel, strides, dilations = ([data.draw(st.integers(1, 3)) for _ in range(axes)] for _ in range(3))
    size = [data.draw(st.integers(7, 9)) for _ in range(axes)]        # no smaller than the widest window
    auto = data.draw(st.sampled_from(["NOTSET", "SAME_UPPER", "SAME_LOWER", "VALID"]))
    how: dict[str, Any] = {"auto_pad": auto} if auto != "NOTSET" else {"pads": [data.draw(st.integers(0, 1)) for _ in range(2 * axes)]}
    if auto.startswith("SAME"):
        dilations = [1] * axes                       # onnxruntime refuses others
    elif op == "ConvTranspose" and data.draw(st.booleans()):
        how["output_padding"] = [data.draw(st.integers(0, s - 1)) for s in strides]
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    shape = (groups * per_out, per_in) if op == "Conv" else (groups * per_in, per_out)
    weights = {"w": rng.normal(size=(*shape, *kernel)).astype(np.float32), "b": rng.normal(size=groups * per_out).astype(np.float32)}
    made, wanted = by_patches(*layer(op, weights, (2, groups * per_in, *size), group=groups, strides=strides, dilations=dilations, **how))
    np.testing.assert_allclose(made, wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("shape", [[7, 9], [6, 10]])
def test_a_transposed_convolution_with_a_prescribed_output_shape(shape: list[int]) -> None:
    weights = {"w": np.random.default_rng(0).normal(size=(3, 2, 3, 3)).astype(np.float32)}
    made, wanted = by_patches(*layer("ConvTranspose", weights, (1, 3, 4, 5), strides=[2, 2], output_shape=shape))
    assert wanted.shape[1] == shape[0] * shape[1]
    np.testing.assert_allclose(made, wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("transposed", [0, 1])
def test_gemm_with_its_factors(transposed: int) -> None:
    rng = np.random.default_rng(1)
    weights = {"w": rng.normal(size=(5, 4) if transposed else (4, 5)).astype(np.float32), "b": rng.normal(size=5).astype(np.float32)}
    made, wanted = by_patches(*layer("Gemm", weights, (3, 4), transB=transposed, alpha=0.5, beta=2.0))
    np.testing.assert_allclose(made, wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("shape", [(3, 4), (2, 6, 4), (2, 3, 5, 4)])
def test_matmul_of_any_rank(shape: tuple[int, ...]) -> None:
    weights = {"w": np.random.default_rng(1).normal(size=(4, 5)).astype(np.float32)}
    made, wanted = by_patches(*layer("MatMul", weights, shape))
    np.testing.assert_allclose(made, wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("op", "shape", "attributes"), [
    ("Conv", (6, 2, 3, 3), {"group": 2}), ("ConvTranspose", (4, 3, 2, 2), {"group": 2}), ("Gemm", (4, 5), {}), ("Gemm", (5, 4), {"transB": 1}),
    ("MatMul", (4, 5), {})])
def test_a_weight_comes_back_from_its_matrix(op: str, shape: tuple[int, ...], attributes: dict[str, Any]) -> None:
    weights = {"w": np.random.default_rng(2).normal(size=shape).astype(np.float32)}
    anchor, _, _ = layer(op, weights, (1, 4, 5, 5) if "Conv" in op else (1, 4), **attributes)
    np.testing.assert_array_equal(from_matrix(anchor, matrix(anchor, weights["w"])), weights["w"])
    np.testing.assert_array_equal(anchor.original(anchor.canonical(weights["w"])), weights["w"])
