"""The RKNN toolkit's memory plan: addresses and sizes that its own tables print.

Source of every stored number: feature tables of rknn-toolkit2 2.5.0 (2025), RKNN(verbose=True), platform rk3588.
"""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from cost_networks import conv, network
from memory_networks import plain

from qbench.cost import CostTable
from qbench.network import Kernel, Network, Precision
from qbench.targets import load

INT8, FP16 = Precision.INT8, Precision.FP16


def buffers(net: Network, precision: Precision) -> dict[str, tuple[int, int]]:
    """Start and size of every buffer."""
    table = CostTable.build(net, load("rk3588"))
    return {p.buffer.name: (p.offset_bytes, p.buffer.size_bytes) for p in table.memory(table.uniform(precision)).placed}


def stem(*kernels: Kernel, shapes: Mapping[str, tuple[int, ...]], channels: int = 32, outputs: tuple[str, ...] = ()) -> Network:
    """Kernels behind a convolution of a 64 x 64 image with stride 2, whose output is "a"."""
    made = kernels[-1].outputs if kernels else ("a",)
    first = conv("stem", "x", "a", 3, channels, 32)
    return network([first, *kernels], {"x": (1, 3, 64, 64), "a": (1, channels, 32, 32), **shapes}, ("x",), outputs or made)


def test_every_address_of_a_small_network() -> None:
    kernels = [conv("dw", "a", "b", 16, 16, 32, groups=16), conv("pw", "b", "c", 16, 16, 32, kernel=1, activation="", residual="a"),
               conv("c3", "c", "d", 16, 32, 16),
               Kernel("pool", "GlobalAveragePool", "global_pool", ("pool",), ("d",), ("e",), in_channels=32, in_h=16, in_w=16, out_channels=32)]
    shapes = {"b": (1, 16, 32, 32), "c": (1, 16, 32, 32), "d": (1, 32, 16, 16), "e": (1, 32, 1, 1)}
    assert buffers(stem(*kernels, shapes=shapes, channels=16), INT8) == {
        "x": (0, 0x3000), "a": (0x3000, 0x8000), "b": (0xb000, 0x10000), "c": (0x1b000, 0x8000), "d": (0, 0x2000), "e pool 1": (0x2000, 0x300),
        "e": (0, 0x40)}


@pytest.mark.parametrize(("function", "int8", "fp16"), [("Relu", 65536, 131072), ("LeakyRelu", 65536, 131072), ("Sigmoid", 65536, 262144),
                                                        ("Tanh", 65536, 262144), ("HardSigmoid", 65536, 262144), ("HardSwish", 65536, 393216),
                                                        ("Elu", 65536, 393216), ("Softplus", 65536, 393216)])
def test_a_table_function_in_16_bits_keeps_its_operands(function: str, int8: int, fp16: int) -> None:
    net = stem(conv("k", "a", "y", 32, 64, 32, activation=function), shapes={"y": (1, 64, 32, 32)})
    assert (buffers(net, INT8)["y"][1], buffers(net, FP16)["y"][1]) == (int8, fp16)


def test_a_sigmoid_of_its_own_holds_32_bits_and_a_relu_is_done_in_place() -> None:
    pool = plain("p", "MaxPool", "pool", ("a",), ("b",))
    shapes = {"b": (1, 48, 32, 32), "y": (1, 48, 32, 32)}
    sigmoid = stem(pool, plain("s", "Sigmoid", "activation", ("b",), ("y",), "Sigmoid"), shapes=shapes, channels=48)
    assert [buffers(sigmoid, p)["y"][1] for p in (INT8, FP16)] == [196608, 196608]
    relu = stem(pool, plain("r", "Relu", "activation", ("b",), ("y",), "Relu"), shapes=shapes, channels=48)
    assert buffers(relu, INT8)["b"] == (77824, 49152)
    assert "y" not in buffers(relu, INT8)


def test_parts_of_a_concat_that_one_narrow_convolution_reads_are_added_up() -> None:
    """128 channels into 40: two convolutions and no Concat; into 64: a Concat of 131072 bytes."""
    def joined(out: int) -> Network:
        kernels = [conv("l", "a", "b", 32, 64, 32), conv("r", "a", "c", 32, 64, 32), plain("cat", "Concat", "concat", ("b", "c"), ("bc",)),
                   conv("k", "bc", "y", 128, out, 32, kernel=1)]
        return stem(*kernels, shapes={"b": (1, 64, 32, 32), "c": (1, 64, 32, 32), "bc": (1, 128, 32, 32), "y": (1, out, 32, 32)})
    assert buffers(joined(40), INT8) == {"x": (0, 12288), "a": (12288, 32768), "b": (45056, 65536), "c": (110592, 65536), "y of 1 parts": (176128, 65536),
                                         "y": (110592, 65536)}
    assert buffers(joined(64), INT8)["bc"] == (176128, 131072)


def test_ragged_parts_take_scratch_and_whole_ones_do_not() -> None:
    """ghostnet: 8 + 8 channels at 112 x 112 join into 392 KiB with as much beside it in INT8, where 8 bytes fill no atom; not in FP16."""
    kernels = [conv("l", "a", "b", 16, 8, 112), conv("r", "a", "c", 16, 8, 112), plain("cat", "Concat", "concat", ("b", "c"), ("y",))]
    shapes = {"x": (1, 3, 224, 224), "a": (1, 16, 112, 112), "b": (1, 8, 112, 112), "c": (1, 8, 112, 112), "y": (1, 16, 112, 112)}
    net = stem(*kernels, shapes=shapes)
    assert {t: s for t, (_, s) in buffers(net, INT8).items() if t.startswith("y")} == {"y": 392 * 1024, "y scratch": 392 * 1024}
    assert {t: s for t, (_, s) in buffers(net, FP16).items() if t.startswith("y")} == {"y": 392 * 1024}


def test_groups_of_whole_atoms_run_apart_others_as_one_dense_convolution() -> None:
    """64 channels in 4 groups: Split and 4 convolutions of 16 channels, each stored as 32; in 16 groups: nothing beside the output."""
    def grouped(groups: int) -> dict[str, tuple[int, int]]:
        return buffers(stem(conv("k", "a", "y", 64, 64, 32, groups=groups), shapes={"y": (1, 64, 32, 32)}, channels=64), INT8)
    assert sorted(t for t in grouped(4) if t.startswith("y ")) == sorted([*(f"y group {i}" for i in range(4)), *(f"y input {i}" for i in range(4))])
    assert {s for t, (_, s) in grouped(4).items() if t.startswith("y input")} == {16384}
    assert {s for t, (_, s) in grouped(4).items() if t.startswith("y group")} == {32768}
    assert set(grouped(16)) == {"x", "a", "y"}


@pytest.mark.parametrize(("width", "int8", "fp16"), [(1024, 1048576, 2097152), (1536, 1572864, 3145728), (2048, 2877440, 5761024)])
def test_wide_images_are_cut_beside_the_first_output(width: int, int8: int, fp16: int) -> None:
    net = network([conv("k", "x", "y", 3, 32, 64)], {"x": (1, 3, 128, width), "y": (1, 32, 64, width // 2)}, ("x",), ("y",))
    assert (buffers(net, INT8)["y"][1], buffers(net, FP16)["y"][1]) == (int8, fp16)


def test_an_image_row_is_padded_to_an_atom_and_packed_for_whoever_is_no_convolution() -> None:
    """posenet: 3 x 513 x 257 takes 408.8 KiB, and 4120.1 KiB packed by a convolution before a BatchNormalization."""
    net = network([plain("bn", "BatchNormalization", "norm", ("x",), ("y",))], {"x": (1, 3, 513, 257), "y": (1, 3, 513, 257)}, ("x",), ("y",))
    found = buffers(net, INT8)
    assert round(found["x"][1] / 1024, 1) == 408.8
    assert round(found["x packed"][1] / 1024, 1) == 4120.1
    assert round(found["y"][1] / 1024, 1) == 2060.1


def test_many_weights_per_output_channel_cut_the_input() -> None:
    """alexnet in FP16: 64 x 5 x 5 weights of 2 bytes are 3200, more than 3072: two halves of 32 channels, the results added."""
    net = stem(conv("k", "a", "y", 64, 192, 32, kernel=5), shapes={"y": (1, 192, 32, 32)}, channels=64)
    assert [t for t in buffers(net, FP16) if t.startswith("y")] == ["y input 0", "y input 1", "y of 1 parts", "y"]
    assert [t for t in buffers(net, INT8) if t.startswith("y")] == ["y"]


def test_a_spelled_gelu_is_applied_by_its_convolution() -> None:
    """efficientvit_l2: ConvExGelu writes one tensor, of three times the size in FP16."""
    chain: list[tuple[str, str, tuple[str, ...], str]] = [("d", "Div", ("g",), "d"), ("e", "Erf", ("d",), "e"), ("p", "Add", ("e",), "p"), ("m", "Mul", ("g", "p"), "m"), ("h", "Mul", ("m",), "y")]
    kernels = [conv("k", "a", "g", 32, 32, 32, activation=""),
               *(plain(n, op, "eltwise", ins, (out,)) for n, op, ins, out in chain), conv("last", "y", "z", 32, 32, 32)]
    net = stem(*kernels, shapes=dict.fromkeys(("g", "d", "e", "p", "m", "y", "z"), (1, 32, 32, 32)))
    assert {t: s for t, (_, s) in buffers(net, FP16).items()} == {"x": 24576, "a": 65536, "g": 3 * 65536, "z": 65536}


def test_a_projection_nearer_to_the_input_runs_last_and_adds() -> None:
    """regnet: the shortcut's convolution comes first in the graph; the toolkit runs it behind the branch and adds there."""
    kernels = [conv("short", "a", "s", 32, 32, 32, kernel=1, activation=""), conv("m", "a", "b", 32, 32, 32),
               conv("n", "b", "y", 32, 32, 32, activation="", residual="s")]
    found = buffers(stem(*kernels, shapes=dict.fromkeys(("s", "b", "y"), (1, 32, 32, 32))), INT8)
    assert set(found) == {"x", "a", "b", "y before the Add", "y"}
