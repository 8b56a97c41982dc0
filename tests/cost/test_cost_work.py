"""Counts of one kernel: golden layers of the vendor's own table, worked examples, properties."""

from __future__ import annotations

from dataclasses import replace

import pytest
from cost_networks import conv, network
from hypothesis import example, given
from hypothesis import strategies as st

from qbench.cost.parameters import NpuParameters, read_parameters
from qbench.cost.work import (
    array_cycles,
    input_banks,
    input_entries_per_row,
    kernel_work,
    stored_bytes,
    stored_weight_bytes,
    tiled_bytes,
    weight_banks,
)
from qbench.network import Kernel, Precision
from qbench.targets import load

TARGET = load("rk3588")
P = read_parameters("rk3588", "npu", TARGET.cost)
assert isinstance(P, NpuParameters)
NPU: NpuParameters = P
RATE = {Precision.INT8: 1024.0, Precision.FP16: 512.0}

# graph, precision, kind, (Cin, Hin, Win), (Cout, Hout, Wout), kernel, array cycles, DDR cycles
# Source: rknn-toolkit2 2.5.0 (2025), RKNN(verbose=True), platform rk3588; experiments/data/rknn_cycles.csv.xz holds all rows.
GOLDEN = [
    ("alexnet", Precision.INT8, "conv", (3, 224, 224), (64, 55, 55), 11, 735680, 19809),
    ("alexnet", Precision.FP16, "conv", (3, 224, 224), (64, 55, 55), 11, 1471360, 34346),
    ("mobilenet_v2", Precision.INT8, "conv", (144, 28, 28), (32, 28, 28), 1, 3920, 6040),
    ("hrnet_w18", Precision.INT8, "conv", (36, 28, 28), (72, 14, 14), 3, 11232, 3273),
    ("yolov8n-obb_rk", Precision.FP16, "conv", (80, 40, 40), (80, 40, 40), 1, 24000, 22201),
    ("efficientnet_b1", Precision.INT8, "depthwise", (96, 60, 60), (96, 9, 9), 7, 9408, 15182),
    ("efficientvit_b2", Precision.FP16, "depthwise", (24, 112, 112), (24, 112, 112), 3, 112896, 50940),
    ("yolov8n-seg_rk", Precision.INT8, "deconv", (64, 80, 80), (64, 160, 160), 2, 409600, 87296),
    ("yolov6n_rk", Precision.FP16, "deconv", (64, 20, 20), (64, 40, 40), 2, 51200, 12219),
]


def golden_kernel(kind: str, x: tuple[int, int, int], y: tuple[int, int, int], taps: int) -> Kernel:
    weights = x[0] * taps * taps * (1 if kind == "depthwise" else y[0])
    return Kernel("k", "Conv", kind, ("k",), ("x",), ("y",), weights=weights, biases=y[0], in_channels=x[0], in_h=x[1], in_w=x[2],
                  out_channels=y[0], out_h=y[1], out_w=y[2], kernel_h=taps, kernel_w=taps, groups=x[0] if kind == "depthwise" else 1)


@pytest.mark.parametrize(("graph", "precision", "kind", "x", "y", "taps", "npu", "ddr"), GOLDEN)
def test_array_cycles_equal_the_toolkits_table(graph: str, precision: Precision, kind: str, x: tuple[int, int, int], y: tuple[int, int, int],
                                               taps: int, npu: int, ddr: int) -> None:
    k = golden_kernel(kind, x, y, taps)
    assert array_cycles(k, RATE[precision], NPU) == npu


@pytest.mark.parametrize(("graph", "precision", "kind", "x", "y", "taps", "npu", "ddr"), GOLDEN)
def test_bytes_equal_the_toolkits_ddr_cycles(graph: str, precision: Precision, kind: str, x: tuple[int, int, int], y: tuple[int, int, int],
                                             taps: int, npu: int, ddr: int) -> None:
    """At the table's rate of 23.65 bytes a cycle."""
    k = golden_kernel(kind, x, y, taps)
    net = network([k], {"x": (1, *x), "y": (1, *y)}, ("x",), ("y",))
    moved = (stored_bytes(net.tensors["x"], precision, NPU, image=kind == "conv") + stored_bytes(net.tensors["y"], precision, NPU)
             + stored_weight_bytes(k, precision, NPU))
    assert moved / 23.65 == pytest.approx(ddr, rel=0.005)


def test_the_bank_example_worked_by_hand() -> None:
    """Cin 64, 56 x 56, int8: 4 atoms, 4 * 56 / 8 = 28 entries a row, 28 * 56 / 256 = 6.1 banks."""
    k = conv("k", "x", "y", 64, 64, 56)
    assert input_entries_per_row(k, 1, NPU) == 28
    assert input_banks(k, 1, NPU) == 7
    assert weight_banks(64 * 64 * 9, NPU) == 3                     # 36,864 bytes in 2 banks, and the spare one
    assert tiled_bytes(k, 1, 200704.0, 36864.0, NPU) == 200704.0 + 36864.0   # 7 + 3 of 12 banks: nothing is read twice


def test_a_remainder_of_three_atoms_takes_whole_entries() -> None:
    assert input_entries_per_row(conv("k", "x", "y", 48, 8, 56), 1, NPU) == 56
    assert input_entries_per_row(conv("k", "x", "y", 32, 8, 56), 1, NPU) == 14


def test_bands_of_rows_are_read_with_their_overlap() -> None:
    """64 channels at 112 x 112: 25 banks. One bank of weights and the spare leave 10 for the input: 10 * 256 / 56 = 45 rows, 2 of
    them read again by the next band."""
    k = conv("k", "x", "y", 64, 32, 112)
    weights, read = 64 * 32 * 9, 112 * 112 * 64.0
    assert tiled_bytes(k, 1, read, weights, NPU) == pytest.approx(read * (1 + 2 / 43) + weights)


channels = st.integers(1, 400)
sizes = st.integers(1, 80)


@given(cin=channels, cout=channels, size=sizes, taps=st.sampled_from([1, 3, 5]), more=st.integers(0, 64),
       precision=st.sampled_from(list(RATE)))
def test_padding_never_saves_cycles(cin: int, cout: int, size: int, taps: int, more: int, precision: Precision) -> None:
    """More channels never cost fewer cycles, and the padded array holds every MAC."""
    k = conv("k", "x", "y", cin, cout, size, taps)
    cycles = array_cycles(k, RATE[precision], NPU)
    assert cycles * RATE[precision] >= k.macs
    assert array_cycles(conv("k", "x", "y", cin + more, cout, size, taps), RATE[precision], NPU) >= cycles
    assert array_cycles(conv("k", "x", "y", cin, cout + more, size, taps), RATE[precision], NPU) >= cycles


@given(cin=channels, cout=channels, size=sizes, taps=st.sampled_from([1, 3, 5, 7]), stride=st.sampled_from([1, 2]), banks=st.integers(3, 40),
       more=st.integers(0, 20), b=st.sampled_from([1, 2]))
@example(cin=201, cout=164, size=79, taps=1, stride=2, banks=3, more=1, b=2)
def test_tiling_reads_everything_once_and_a_larger_buffer_never_reads_more(cin: int, cout: int, size: int, taps: int, stride: int, banks: int,
                                                                           more: int, b: int) -> None:
    k = conv("k", "x", "y", cin, cout, size, taps, stride)
    read, weights = float(cin * size * size * b), float(k.weights * b)
    small, large = replace(NPU, buffer_banks=banks), replace(NPU, buffer_banks=banks + more)
    traffic = tiled_bytes(k, b, read, weights, small)
    assert traffic >= (read + weights) * (1 - 1e-12)
    assert tiled_bytes(k, b, read, weights, large) <= traffic * (1 + 1e-12)


def test_unaligned_concat_is_priced_as_the_permutation_that_the_toolkit_runs() -> None:
    """retinaface: [1,3200,2] + [1,800,2] + [1,200,2] reads 17,267 KiB in the toolkit's table: a 4200 x 4208 matrix."""
    k = Kernel("k", "Concat", "concat", ("k",), ("a", "b", "c"), ("y",))
    net = network([k], {"a": (1, 3200, 2), "b": (1, 800, 2), "c": (1, 200, 2), "y": (1, 4200, 2)}, ("a", "b", "c"), ("y",))
    assert kernel_work(k, net, Precision.INT8, 1024.0, NPU).dram_bytes == pytest.approx(17267 * 1024, rel=0.01)
    aligned = network([k], {"a": (1, 3200, 2), "b": (1, 800, 2), "c": (1, 192, 2), "y": (1, 4192, 2)}, ("a", "b", "c"), ("y",))
    work = kernel_work(k, aligned, Precision.INT8, 1024.0, NPU)
    assert work.dram_bytes + work.layout_bytes < 40e3


def test_residual_behind_a_table_activation_is_a_launch_of_its_own() -> None:
    shapes = {"x": (1, 32, 16, 16), "y": (1, 32, 16, 16)}
    swish, relu = (network([conv("k", "x", "y", 32, 32, 16, activation=a, residual="x")], shapes, ("x",), ("y",)) for a in ("Swish", "Relu"))
    apart, fused = (kernel_work(n.kernels[0], n, Precision.INT8, 1024.0, NPU) for n in (swish, relu))
    assert (apart.launches, fused.launches) == (2, 1)
    assert apart.dram_bytes - fused.dram_bytes == 2 * 32 * 16 * 16
    assert (apart.lut_elements, fused.lut_elements) == (32 * 16 * 16, 0)


def test_slices_of_one_tensor_share_a_launch() -> None:
    slices = [Kernel(n, "Slice", "reshape", (n,), ("x",), (n + ".y",)) for n in ("a", "b")]
    net = network(slices, {"x": (1, 32, 8, 8), "a.y": (1, 16, 8, 8), "b.y": (1, 16, 8, 8)}, ("x",), ("a.y", "b.y"))
    works = [kernel_work(k, net, Precision.INT8, 1024.0, NPU) for k in slices]
    assert [w.launches for w in works] == [0.5, 0.5]
    assert [w.dram_bytes for w in works] == [2 * 16 * 64] * 2      # reads only what it writes
    assert not any(w.layout_bytes for w in works)


def test_transposes_break_the_packing() -> None:
    k = Kernel("t", "Transpose", "reshape", ("t",), ("x",), ("y",))
    net = network([k], {"x": (1, 16, 8, 8), "y": (1, 8, 8, 16)}, ("x",), ("y",))
    assert kernel_work(k, net, Precision.INT8, 1024.0, NPU).layout_bytes > 0
