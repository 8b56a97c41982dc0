"""Dilated convolutions, linear Resize and transformers in the RKNN toolkit's memory plan: sizes that its own tables print.

Source of every stored number: feature tables of rknn-toolkit2 2.5.0 (2025), RKNN(verbose=True), platform rk3588, of graphs that hold the
one layer in question; experiments/harvest_rknn_cycles.py prints them again.
"""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest
from cost_networks import conv, network
from memory_networks import plain
from onnx import TensorProto, helper

from qbench.cost import CostTable
from qbench.cost.rknn_dilated import passes, pieces
from qbench.cost.rknn_tokens import norm_scratch, row_pieces
from qbench.graph import load_network
from qbench.network import Kernel, Network, Precision
from qbench.targets import load

INT8, FP16 = Precision.INT8, Precision.FP16


def arena_kib(net: Network, precision: Precision) -> float:
    table = CostTable.build(net, load("rk3588"))
    return table.memory(table.uniform(precision)).arena_bytes / 1024


def sizes(net: Network, precision: Precision) -> dict[str, int]:
    table = CostTable.build(net, load("rk3588"))
    return {p.buffer.name: p.buffer.size_bytes for p in table.memory(table.uniform(precision)).placed}


def dilated(channels: int, dilation: int, kernel: int = 3, size: int = 28) -> Kernel:
    return Kernel("k", "Conv+Relu", "conv", ("k",), ("x",), ("y",), weights=64 * channels * kernel * kernel, in_channels=channels, in_h=size, in_w=size,
                  out_channels=64, out_h=size, out_w=size, kernel_h=kernel, kernel_w=kernel, dilation_h=dilation, activation="Relu")


@pytest.mark.parametrize(("channels", "dilation", "kernel", "int8", "fp16"), [
    (64, 3, 3, 122.5, 294.0), (64, 6, 3, 147.0, 196.0), (128, 2, 3, 196.0, 392.0), (128, 3, 3, 493.5, 1281.0), (128, 4, 3, 640.5, 1207.5),
    (256, 2, 3, 1281.0, 2415.0), (256, 4, 3, 3360.0, 8484.0), (512, 2, 3, 8484.0, 15204.0), (256, 8, 3, 245.0, 490.0), (256, 12, 3, 245.0, 588.0),
    (512, 12, 3, 1176.0, 980.0), (256, 18, 3, 3268.0, 2440.0), (256, 36, 3, 245.0, 490.0), (128, 2, 5, 1179.5, 2114.0), (64, 3, 5, 147.0, 196.0)])
def test_memory_of_a_dilated_convolution(channels: int, dilation: int, kernel: int, int8: float, fp16: float) -> None:
    """One convolution of a 28 x 28 image into 64 channels: cut, gathered by rows, by both, padded, in 16 bits, or as it is."""
    net = network([dilated(channels, dilation, kernel)], {"x": (1, channels, 28, 28), "y": (1, 64, 28, 28)}, ("x",), ("y",))
    assert (arena_kib(net, INT8), arena_kib(net, FP16)) == (int8, fp16)


@pytest.mark.parametrize(("channels", "taps", "width", "expected"), [
    (512, 9, 1, (256, 256)), (768, 9, 2, (160, 160, 160, 160, 128)), (960, 9, 2, (160,) * 6), (160, 25, 1, (80, 80)), (160, 25, 2, (48, 48, 48, 16)),
    (240, 15, 1, (192, 48)), (341, 9, 1, (341,))])
def test_input_channels_of_each_piece(channels: int, taps: int, width: int, expected: tuple[int, ...]) -> None:
    assert pieces(channels, taps, width) == expected


def test_pieces_cover_all_channels_and_a_kernel_beyond_the_image_is_its_middle_weight() -> None:
    for channels in (64, 240, 960):
        for dilation in (1, 2, 4, 6, 12, 24):
            for width in (1, 2):
                assert sum(passes(dilated(channels, dilation), width).channels) == channels
    assert passes(dilated(960, 36), 2) == passes(dilated(960, 1, kernel=1), 2)


def resized(h: int, w: int, factor: int, how: str, channels: int = 48) -> Network:
    resize = Kernel("r", "Resize", "resize", ("r",), ("a",), ("b",), in_channels=channels, in_h=h, in_w=w, out_channels=channels, out_h=h * factor,
                    out_w=w * factor, interpolation=how)
    shapes = {"x": (1, channels, h, w), "a": (1, channels, h, w), "b": (1, channels, h * factor, w * factor), "y": (1, 32, h * factor, w * factor)}
    return network([plain("relu", "Relu", "activation", ("x",), ("a",), "Relu"), resize, conv("k", "b", "y", channels, 32, h * factor, kernel=1)],
                   shapes, ("x",), ("y",))


@pytest.mark.parametrize(("factor", "how", "border", "output"), [
    (2, "linear half_pixel", (12288, 24576), (50176, 100352)), (2, "linear asymmetric", (10944, 21888), (50176, 100352)),
    (8, "linear half_pixel", (12288, 24576), (802816, 1605632)), (9, "linear half_pixel", (96768, 193536), (1016064, 2032128)),
    (2, "linear align_corners", None, (50176, 75264)), (2, "", None, (37632, 75264))])
def test_a_linear_resize_reads_a_copy_with_a_border_and_rounds_its_channels(factor: int, how: str, border: tuple[int, int] | None,
                                                                          output: tuple[int, int]) -> None:
    """48 channels of 14 x 14. Without a whole factor the CPU does it, without a copy; nearest needs none."""
    found = [sizes(resized(14, 14, factor, how), p) for p in (INT8, FP16)]
    assert tuple(f["b"] for f in found) == output
    assert tuple(f.get("b border") for f in found) == (border or (None, None))


@pytest.mark.parametrize(("batch", "tokens", "channels", "int8", "fp16"), [
    (1, 100, 64, 28864, 32064), (2, 100, 64, 57728, 64128), (3, 100, 64, 86592, 96192), (5, 100, 64, 28864, 32064), (8, 100, 64, 57728, 64128),
    (4, 101, 72, 73344, 80000), (1, 197, 192, 160064, 166464), (1, 3136, 96, 1304640, 1404992), (1, 1, 256, 1088, 1152), (1, 256, 40, 57408, 65600)])
def test_scratch_of_a_layer_normalization(batch: int, tokens: int, channels: int, int8: int, fp16: int) -> None:
    assert (norm_scratch(batch, tokens, channels, 1), norm_scratch(batch, tokens, channels, 2)) == (int8, fp16)


@pytest.mark.parametrize(("tokens", "channels", "views"), [(197, 768, 2), (49, 768, 1), (49, 1536, 2), (101, 1536, 3), (197, 192, 1)])
def test_a_row_of_16_bit_tokens_is_read_in_views(tokens: int, channels: int, views: int) -> None:
    assert row_pieces(tokens, channels, 2) == views
    assert row_pieces(tokens, channels, 1) == 1


def test_a_convnext_block_has_its_scale_and_residual_in_the_last_projection() -> None:
    """48 channels of 20 x 20: 156.3 KiB in INT8, 525 in FP16, where LayerNormalization reads 32 bits and GELU keeps three tensors."""
    def mm(name: str, x: str, y: str, cin: int, cout: int) -> Kernel:
        return Kernel(name, "MatMul+Add", "matmul", (name,), (x,), (y,), weights=cin * cout, in_channels=cin, in_h=400, out_channels=cout, out_h=400)
    kernels = [conv("first", "x", "a", 48, 48, 20, kernel=1, activation=""), conv("dw", "a", "b", 48, 48, 20, kernel=7, groups=48, activation=""),
               plain("t", "Transpose", "reshape", ("b",), ("bt",)), plain("ln", "LayerNormalization", "norm", ("bt",), ("n",)),
               mm("up", "n", "u", 48, 192), plain("g1", "Div", "eltwise", ("u",), ("g1",)), plain("g2", "Erf", "activation", ("g1",), ("g2",)),
               plain("g3", "Add", "eltwise", ("g2",), ("g3",)), plain("g4", "Mul", "eltwise", ("u", "g3"), ("g4",)), plain("g5", "Mul", "eltwise", ("g4",), ("g5",)),
               mm("down", "g5", "d", 192, 48), plain("tb", "Transpose", "reshape", ("d",), ("dt",)), plain("s", "Mul", "eltwise", ("dt",), ("ds",)),
               plain("add", "Add", "eltwise", ("ds", "a"), ("r",)), conv("last", "r", "y", 48, 48, 20, kernel=1, activation="")]
    image, tokens = (1, 48, 20, 20), (1, 20, 20, 48)
    shapes = dict.fromkeys(("x", "a", "b", "dt", "ds", "r", "y"), image) | dict.fromkeys(("bt", "n", "d"), tokens)
    shapes |= dict.fromkeys(("u", "g1", "g2", "g3", "g4", "g5"), (1, 20, 20, 192))
    net = network(kernels, shapes, ("x",), ("y",))
    assert (arena_kib(net, INT8), arena_kib(net, FP16)) == (156.3125, 525.0)


def test_a_kernel_says_how_its_resize_interpolates(tmp_path: Path) -> None:
    def resize(name: str, x: str, y: str, **attributes: str) -> onnx.NodeProto:
        return helper.make_node("Resize", [x, "", "scales"], [y], name=name, **attributes)
    nodes = [resize("a", "x", "p", mode="nearest"), resize("b", "p", "q", mode="linear"),
             resize("c", "q", "y", mode="linear", coordinate_transformation_mode="align_corners")]
    graph = helper.make_graph(nodes, "g", [helper.make_tensor_value_info("x", TensorProto.FLOAT, (1, 8, 4, 4))],
                              [helper.make_tensor_value_info("y", TensorProto.FLOAT, (1, 8, 32, 32))],
                              [helper.make_tensor("scales", TensorProto.FLOAT, (4,), (1.0, 1.0, 2.0, 2.0))])
    file = tmp_path / "g.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), file)
    assert [k.interpolation for k in load_network(file).network.kernels] == ["", "linear half_pixel", "linear align_corners"]
