"""Fusion, geometry, scale groups and units."""

import numpy as np
import pytest
from models import Array, model, node, prepare

from qbench.network import Network

RNG = np.random.default_rng(0)


def w(*shape: int) -> Array:
    return RNG.normal(size=shape).astype(np.float32)


def ops(network: Network) -> list[str]:
    return [k.op for k in network.kernels]


def residual(tail: str) -> Network:
    """Conv -> Conv -> (+ first) -> tail."""
    nodes = [node("Conv", ["x", "w0"], ["a"], "first"), node("Conv", ["a", "w1"], ["b"], "second"), node("Add", ["b", "a"], ["s"], "add"),
             node(tail, ["s"], ["y"], "tail")]
    return prepare(model(nodes, {"x": [1, 4, 8, 8]}, {"y": [1, 4, 8, 8]}, {"w0": w(4, 4, 1, 1), "w1": w(4, 4, 1, 1)})).network


def test_residual_add_joins_the_convolution_that_comes_last() -> None:
    network = residual("Relu")
    assert ops(network) == ["Conv", "Conv+Add+Relu"]
    assert network.kernels[1].inputs == ("a", "a") or network.kernels[1].inputs == ("a",)
    assert network.kernels[1].inner == ("b", "s")


def test_swish_is_one_activation() -> None:
    nodes = [node("Conv", ["x", "w"], ["c"], "conv"), node("Sigmoid", ["c"], ["g"]), node("Mul", ["c", "g"], ["y"])]
    network = prepare(model(nodes, {"x": [1, 4, 8, 8]}, {"y": [1, 4, 8, 8]}, {"w": w(4, 4, 1, 1)})).network
    assert [(k.op, k.activation) for k in network.kernels] == [("Conv+Sigmoid+Mul", "Swish")]


def test_a_tensor_with_two_readers_is_not_fused_away() -> None:
    """B07: where the pre-activation has another consumer, the clamp may not be folded."""
    nodes = [node("Conv", ["x", "w"], ["c"], "conv"), node("Relu", ["c"], ["r"]), node("Neg", ["c"], ["n"]), node("Add", ["r", "n"], ["y"])]
    network = prepare(model(nodes, {"x": [1, 4, 8, 8]}, {"y": [1, 4, 8, 8]}, {"w": w(4, 4, 1, 1)})).network
    assert "Conv" in ops(network) and "Conv+Relu" not in ops(network)


@pytest.mark.parametrize(("op", "weight", "group", "kind", "macs"), [
    ("Conv", (6, 4, 3, 3), 1, "conv", 6 * 4 * 9 * 36), ("Conv", (4, 1, 3, 3), 4, "depthwise", 4 * 9 * 36),
    ("Conv", (6, 2, 3, 3), 2, "conv", 6 * 2 * 9 * 36), ("ConvTranspose", (4, 6, 3, 3), 1, "deconv", 4 * 6 * 9 * 64)])
def test_convolution_geometry(op: str, weight: tuple[int, ...], group: int, kind: str, macs: int) -> None:
    proto = model([node(op, ["x", "w"], ["y"], "c", group=group)], {"x": [1, 4, 8, 8]}, {"y": None}, {"w": w(*weight)})
    kernel = prepare(proto).network.kernels[0]
    assert (kernel.kind, kernel.macs, kernel.weights, kernel.groups) == (kind, macs, int(np.prod(weight)), group)


@pytest.mark.parametrize("transposed", [0, 1])
def test_gemm_geometry(transposed: int) -> None:
    shape = (5, 7) if transposed else (7, 5)
    proto = model([node("Gemm", ["x", "w"], ["y"], "fc", transB=transposed)], {"x": [2, 7]}, {"y": [2, 5]}, {"w": w(*shape)})
    k = prepare(proto).network.kernels[0]
    assert (k.macs, k.in_channels, k.out_channels, k.out_h) == (70, 7, 5, 2)


def test_batched_matmul_counts_every_batch() -> None:
    proto = model([node("MatMul", ["x", "z"], ["y"], "mm")], {"x": [3, 4, 7], "z": [3, 7, 5]}, {"y": [3, 4, 5]}, {})
    k = prepare(proto).network.kernels[0]
    assert (k.macs, k.weights) == (3 * 4 * 7 * 5, 0)


def test_concat_shares_one_scale_and_one_unit() -> None:
    """B15: two convolutions that meet in a Concat are one decision, transitively, pooling included."""
    nodes = [node("Conv", ["x", "w0"], ["a"], "left"), node("Conv", ["x", "w1"], ["b"], "right"), node("Concat", ["a", "b"], ["c"], "cat", axis=1),
             node("MaxPool", ["c"], ["p"], "pool", kernel_shape=[2, 2], strides=[2, 2]), node("Concat", ["p", "p"], ["q"], "cat2", axis=1),
             node("Conv", ["q", "w2"], ["y"], "after")]
    proto = model(nodes, {"x": [1, 4, 8, 8]}, {"y": [1, 2, 4, 4]}, {"w0": w(4, 4, 1, 1), "w1": w(4, 4, 1, 1), "w2": w(2, 16, 1, 1)})
    network = prepare(proto).network
    group = network.group_of["a"]
    assert set(group.tensors) == {"a", "b", "c", "p", "q"} and set(group.sources) == {"a", "b"}
    assert [u.kernels for u in network.units] == [("left", "right", "cat", "pool", "cat2"), ("after",)]


@pytest.mark.parametrize(("attributes", "shared"), [({"mode": "nearest"}, True), ({"mode": "linear"}, False)])
def test_only_a_copying_resize_shares_its_scale(attributes: dict[str, str], shared: bool) -> None:
    nodes = [node("Conv", ["x", "w"], ["a"], "conv"), node("Resize", ["a", "", "s"], ["y"], "up", **attributes)]
    proto = model(nodes, {"x": [1, 4, 8, 8]}, {"y": [1, 4, 16, 16]}, {"w": w(4, 4, 1, 1), "s": np.array([1, 1, 2, 2], np.float32)})
    network = prepare(proto).network
    assert (network.group_of["a"] is network.group_of["y"]) == shared


@pytest.mark.parametrize(("reader", "window", "shared"), [("MaxPool", 2, True), ("MaxPool", 1, False), ("AveragePool", 2, False)])
def test_padding_with_minus_infinity(reader: str, window: int, shared: bool) -> None:
    """NanoDet pads with -inf before pooling: that constant must not own the range of its neighbours. A maximum over a window that holds
    a value takes the lowest code for it, so that one scale serves; elsewhere it is no copy."""
    nodes = [node("Pad", ["x", "p", "v"], ["a"], "pad"), node(reader, ["a"], ["y"], "pool", kernel_shape=[window, window])]
    proto = model(nodes, {"x": [1, 4, 8, 8]}, {"y": None}, {"v": np.array(-np.inf, np.float32)})
    proto.graph.initializer.append(__import__("onnx").numpy_helper.from_array(np.array([0, 0, 1, 1, 0, 0, 1, 1]), "p"))
    network = prepare(proto).network
    assert (network.group_of["x"] is network.group_of["a"]) == shared
    assert network.group_of["x"].sources == ("x",)


def test_kernels_come_in_an_order_in_which_they_can_run() -> None:
    network = residual("Sigmoid")
    ready = set(network.inputs)
    for kernel in network.kernels:
        assert set(kernel.inputs) <= ready
        ready |= set(kernel.outputs)
    assert set(network.outputs) <= ready
