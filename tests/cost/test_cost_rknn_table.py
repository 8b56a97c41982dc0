"""The counts of RK3588 layers against the vendor's own table: the harvester's parser, whole graphs left out, rewritten convolutions."""

from __future__ import annotations

import sys
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from cost_networks import conv, network
from hypothesis import given
from hypothesis import strategies as st

from qbench.cost.lowering import inner_stride, lowered
from qbench.cost.npu import NpuModel
from qbench.cost.parameters import NpuParameters, read_parameters
from qbench.cost.work import array_cycles, image_packing, kernel_work
from qbench.network import Kernel, Precision
from qbench.target import OperatingPoint
from qbench.targets import load

HERE = Path(__file__).parent
TARGET = load("rk3588")
P = read_parameters("rk3588", "npu", TARGET.cost)
assert isinstance(P, NpuParameters)
NPU: NpuParameters = P
INT8, FP16 = Precision.INT8, Precision.FP16
RATE = {INT8: 1024.0, FP16: 512.0}


@cache
def script(name: str) -> ModuleType:
    """A module of experiments/, which is no package."""
    folder = str(HERE.parents[1] / "experiments")
    if folder not in sys.path:
        sys.path.append(folder)
    return __import__(name)


# ------------------------------------------------------------------------------------------------------- the parser

def recorded() -> str:
    """A verbose build of a small network by rknn-toolkit2 2.5.0 (2025), as recorded."""
    return (HERE / "rknn_verbose_build.txt").read_text(encoding="utf-8")


def test_the_tables_of_a_recorded_build_are_read() -> None:
    found = script("harvest_rknn_cycles").parse(recorded())
    assert [r["op"] for r in found.layers] == ["InputOperator", "ConvRelu", "ConvRelu", "ConvAdd", "ConvRelu", "Conv", "Conv", "Conv", "Reshape",
                                               "OutputOperator"]
    third = found.layers[3]
    assert (third["in_shape"], third["out_shape"]) == ("(1,16,32,32),(16,16,1,1),(16),...", "(1,16,32,32)")
    assert [third[k] for k in ("ddr_cycles", "npu_cycles", "total_cycles", "rw_kb", "name")] == ["2100", "4096", "4096", "32", "Conv:/pw/Conv_ConvAdd"]
    assert {r["internal_kb"] for r in found.layers} == {"140"} and {r["weight_kb"] for r in found.layers} == {"13.9375"}
    assert found.total_cycles == 9216 + 9216 + 4096 + 2304 + 784 + 144 + 64
    assert len(found.tensors) == 10 and max(t.end for t in found.tensors) == 140 * 1024       # the plan ends where the reported size does
    assert (found.tensors[1].name, found.tensors[1].start, found.tensors[1].end) == ("/Relu_output_0", 0x3000, 0xb000)


def test_colours_time_stamps_and_progress_bars_are_ignored() -> None:
    dirty = "\x1b[1;33mW\x1b[0m load\r" + "\n".join("D RKNN: [11:41:14.732] " + line for line in recorded().splitlines())
    h = script("harvest_rknn_cycles")
    assert h.parse(dirty) == h.parse(recorded())


def test_a_log_without_tables_is_refused() -> None:
    with pytest.raises(ValueError, match=r"no 'Network Layer Information Table'.*RKNN\(verbose=True\)"):
        script("harvest_rknn_cycles").parse("I rknn building done.\n")


# ------------------------------------------------------------------------------------------------------- whole graphs

def test_layers_and_totals_of_unseen_graphs_agree_with_the_toolkit() -> None:
    """Per layer within 20 % at the median, per build within 10 % for four in five: ShuffleNet's shuffle is not counted (rknn_cycles.py)."""
    r = script("rknn_cycles")
    networks, errors, totals = r.read_networks(), [], []
    rows = r.read_table(r.UNSEEN)
    for graph, mode in sorted({(x["graph"], x["mode"]) for x in rows}):
        ours = r.ours(networks[graph], Precision(mode), TARGET, NPU)
        theirs = r.theirs([x for x in rows if (x["graph"], x["mode"]) == (graph, mode)])
        errors += [x.total / y.total - 1 for x, y in r.paired(ours, theirs)]
        totals.append(sum(x.total for x in ours) / sum(y.total for y in theirs) - 1)
    assert len(totals) >= 20 and len(errors) > 2000
    assert np.median(np.abs(errors)) < 0.001 and np.mean(np.abs(errors) < 0.2) > 0.95
    assert np.median(np.abs(totals)) < 0.01 and np.mean(np.abs(totals) < 0.1) > 0.8


# ------------------------------------------------------------------------------------------------------- rewritten convolutions
# Golden values: single convolutions built with rknn-toolkit2 2.5.0 for rk3588.

@pytest.mark.parametrize(("cin", "groups", "precision", "width", "cycles"), [
    (48, 2, INT8, 48, 28224), (48, 2, FP16, 24, 2 * 14112), (64, 2, INT8, 32, 2 * 7056), (32, 4, INT8, 32, 7056), (32, 4, FP16, 8, 4 * 7056),
    (80, 2, FP16, 40, 2 * 11232), (80, 2, INT8, 80, 16848)])
def test_groups_run_apart_only_when_they_fill_whole_atoms(cin: int, groups: int, precision: Precision, width: int, cycles: int) -> None:
    size = 14 if cin == 80 else 28
    k = replace(conv("k", "x", "y", cin, cin, size, groups=groups), kind="conv")
    low = lowered(k, precision, NPU)
    assert low.kernel.in_channels // low.kernel.groups == width and low.apart is (width < cin)
    assert array_cycles(low.kernel, RATE[precision], NPU) == cycles
    assert low.kernel.macs == k.macs                                # what the network asks for does not change


@pytest.mark.parametrize(("stride", "inner", "size", "fine", "cycles"), [(16, 4, 224, 53, 1441792), (8, 4, 64, 15, 30720), (10, 5, 64, 11, 25600),
                                                                        (12, 6, 60, 9, 27648), (9, 9, 64, 7, 10368)])
def test_large_even_strides_are_computed_finer_and_picked(stride: int, inner: int, size: int, fine: int, cycles: int) -> None:
    """A square kernel as wide as its stride, 64 outputs; 3 inputs for the patch embedding of 16, else 16."""
    out = (size - stride) // stride + 1
    k = Kernel("k", "Conv", "conv", ("k",), ("x",), ("y",), in_channels=3 if size == 224 else 16, in_h=size, in_w=size, out_channels=64, out_h=out, out_w=out,
               kernel_h=stride, kernel_w=stride, stride_h=stride, stride_w=stride)
    low = lowered(k, INT8, NPU)
    assert (inner_stride(stride), low.kernel.out_h, low.selects(k)) == (inner, fine, fine != out)
    assert array_cycles(low.kernel, RATE[INT8], NPU) == cycles


def test_an_image_that_no_convolution_reads_is_packed_first() -> None:
    """posenet: 3 x 513 x 257 into a Mul, 527,424 array cycles in INT8 and 263,712 in FP16."""
    k = Kernel("k", "Mul", "eltwise", ("k",), ("x",), ("y",))
    net = network([k], {"x": (1, 3, 513, 257), "y": (1, 3, 513, 257)}, ("x",), ("y",))
    assert image_packing(k, net, INT8, RATE[INT8], NPU)[0] == 527424
    assert image_packing(k, net, FP16, RATE[FP16], NPU)[0] == 263712
    inside = network([k], {"x": (1, 3, 513, 257), "y": (1, 3, 513, 257)}, (), ("y",))
    assert image_packing(k, inside, INT8, RATE[INT8], NPU) == (0.0, 0.0)
    assert kernel_work(k, net, INT8, RATE[INT8], NPU).cycles == 527424


@given(groups=st.integers(1, 16), width=st.integers(1, 40), size=st.integers(1, 40), stride=st.integers(1, 20), precision=st.sampled_from([INT8, FP16]))
def test_a_rewritten_convolution_holds_every_mac(groups: int, width: int, size: int, stride: int, precision: Precision) -> None:
    k = replace(conv("k", "x", "y", groups * width, groups * width, size, stride=stride, groups=groups), kind="conv")
    net = network([k], {"x": (1, k.in_channels, size, size), "y": (1, k.out_channels, k.out_h, k.out_w)}, ("x",), ("y",))
    work = kernel_work(k, net, precision, RATE[precision], NPU)
    assert work.cycles * RATE[precision] >= k.macs and work.padded_macs >= work.macs == k.macs
    low = lowered(k, precision, NPU).kernel
    assert low.out_h >= k.out_h and low.weights >= k.weights


@pytest.mark.parametrize(("activation", "copies"), [("Relu", 1), ("LeakyRelu", 1), ("Sigmoid", 2), ("Swish", 3), ("Gelu", 3)])
def test_fused_table_activations_keep_their_operands_in_sixteen_bits(activation: str, copies: int) -> None:
    """yolov5n: the first Swish, 16 x 320 x 320, takes 9,600 KiB in FP16 and 3,200 KiB in INT8 (two atoms of 16 channels)."""
    k = conv("k", "x", "y", 3, 16, 640, stride=2, activation=activation)
    net = network([k], {"x": (1, 3, 640, 640), "y": (1, 16, 320, 320)}, ("x",), ("y",))
    model = NpuModel(NPU, RATE, frozenset(), OperatingPoint("top", 1e9, None))
    assert model.tensor_bytes(net, "y", FP16) == copies * 3200 * 1024
    assert model.tensor_bytes(net, "y", INT8) == 3200 * 1024
