"""Latency and energy of one kernel: bounds and directions that hold whatever the constants are."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
from cost_networks import branched, conv, network
from hypothesis import given
from hypothesis import strategies as st

from qbench.cost import cost_model
from qbench.cost.npu import NpuModel, overlapped
from qbench.errors import TargetError
from qbench.network import Kernel, Network, Precision
from qbench.target import OperatingPoint
from qbench.targets import load, names

TARGET = load("rk3588")
POINTS = TARGET.operating_points
TOP = POINTS[-1]
PRECISIONS = list(TARGET.available())


def npu(**changes: float) -> NpuModel:
    model = cost_model(TARGET)
    assert isinstance(model, NpuModel)
    return replace(model, parameters=replace(model.parameters, **changes))


layers = st.builds(conv, st.just("k"), st.just("x"), st.just("y"), st.integers(1, 300), st.integers(1, 300), st.integers(1, 64),
                   kernel=st.sampled_from([1, 3, 5]), stride=st.sampled_from([1, 2]), activation=st.sampled_from(["", "Relu", "Swish"]))


def single(k: Kernel) -> Network:
    return network([k], {"x": (1, k.in_channels, k.in_h, k.in_w), "y": (1, k.out_channels, k.out_h, k.out_w)}, ("x",), ("y",))


@given(k=layers, precision=st.sampled_from(PRECISIONS))
def test_never_faster_than_the_roofline(k: Kernel, precision: Precision) -> None:
    """The unpadded MACs at full rate and the bare tensor bytes at the DRAM rate are both lower bounds."""
    cost = npu().kernel(k, single(k), precision, TOP)
    p = npu().parameters
    rate = TARGET.support(precision).macs_per_cycle
    b = precision.activation_bytes
    bare = (k.in_channels * k.in_h * k.in_w + k.out_channels * k.out_h * k.out_w + k.weights) * b
    assert cost.seconds >= k.macs / (rate * TOP.clock_hz)
    assert cost.seconds >= bare / p.dram_bytes_per_s
    assert 0 < cost.utilisation <= 1
    assert cost.dram_bytes >= bare


@given(k=layers, precision=st.sampled_from(PRECISIONS))
def test_a_faster_clock_never_takes_longer(k: Kernel, precision: Precision) -> None:
    times = [npu().kernel(k, single(k), precision, point).seconds for point in POINTS]
    assert all(a >= b for a, b in pairwise(times))


@given(k=layers, precision=st.sampled_from(PRECISIONS), factor=st.floats(1.0, 8.0))
def test_more_bandwidth_or_a_larger_buffer_never_takes_longer(k: Kernel, precision: Precision, factor: float) -> None:
    p = npu().parameters
    now = npu().kernel(k, single(k), precision, TOP).seconds
    assert npu(dram_bytes_per_s=p.dram_bytes_per_s * factor).kernel(k, single(k), precision, TOP).seconds <= now * (1 + 1e-12)
    assert npu(buffer_banks=float(int(p.buffer_banks * factor))).kernel(k, single(k), precision, TOP).seconds <= now * (1 + 1e-12)


@given(a=st.floats(0, 1e3), b=st.floats(0, 1e3), p=st.floats(1.0, 60.0))
def test_overlap_lies_between_the_longer_and_the_sum(a: float, b: float, p: float) -> None:
    assert max(a, b) * (1 - 1e-12) <= overlapped(a, b, p) <= (a + b) * (1 + 1e-12)


def test_dram_bound_kernels_do_not_slow_down_with_the_clock_and_compute_bound_ones_do() -> None:
    compute, dram = conv("k", "x", "y", 256, 256, 32), conv("k", "x", "y", 1024, 1024, 1, kernel=1)
    half, full = TARGET.operating_point("500MHz"), TARGET.operating_point("1000MHz")
    slow, fast = (npu().kernel(compute, single(compute), Precision.INT8, o).seconds for o in (half, full))
    assert slow / fast == pytest.approx(2.0, rel=0.05)
    slow, fast = (npu().kernel(dram, single(dram), Precision.INT8, o).seconds for o in (half, full))
    assert slow / fast == pytest.approx(1.0, rel=0.05)


@pytest.mark.parametrize(("bound", "lut", "k"), [
    ("compute", 0.2, conv("k", "x", "y", 256, 256, 32)), ("dram", 0.2, conv("k", "x", "y", 1024, 1024, 1, kernel=1)),
    ("overhead", 0.2, conv("k", "x", "y", 8, 8, 4, kernel=1)), ("activation", 50.0, conv("k", "x", "y", 32, 32, 32, activation="Swish"))])
def test_bound_names_the_longest_term(bound: str, lut: float, k: Kernel) -> None:
    assert npu(lut_cycles_per_element=lut).kernel(k, single(k), Precision.INT8, TOP).bound == bound


def test_operators_of_the_cpu_list_are_placed_there() -> None:
    k = Kernel("k", "Floor", "other", ("k",), ("x",), ("y",))
    cost = npu().kernel(k, network([k], {"x": (1, 8, 8, 8), "y": (1, 8, 8, 8)}, ("x",), ("y",)), Precision.FP16, TOP)
    assert cost.placement == "CPU"
    assert cost.seconds >= npu().parameters.cpu_sync_s


def test_energy_falls_with_the_supply_and_fp16_takes_more_than_int8() -> None:
    net = branched()
    low = OperatingPoint("low", 1e9, 0.7)
    for k in net.kernels:
        assert npu().kernel(k, net, Precision.INT8, low).joules <= npu().kernel(k, net, Precision.INT8, TOP).joules
        assert npu().kernel(k, net, Precision.FP16, TOP).joules > npu().kernel(k, net, Precision.INT8, TOP).joules


def test_conversion_costs_bytes_both_ways_and_a_launch() -> None:
    p = npu().parameters
    seconds, joules = npu().conversion(1_000_000, Precision.INT8, Precision.FP16, TOP)
    assert seconds == pytest.approx(3e6 / p.dram_bytes_per_s + p.kernel_overhead_s)
    assert joules > 0


@pytest.mark.parametrize("name", names())
def test_every_target_prices_every_kernel_of_a_small_network(name: str) -> None:
    target, net = load(name), branched()
    model = cost_model(target)
    for k in net.kernels:
        for precision in target.available():
            for point in target.operating_points:
                cost = model.kernel(k, net, precision, point)
                assert cost.seconds >= 0 and cost.joules >= 0 and cost.dram_bytes >= 0    # a join in place costs nothing
                assert cost.bound in ("compute", "dram", "activation", "overhead")
                assert cost.placement in ("NPU", "CPU")
                assert not k.macs or (cost.seconds > 0 and cost.joules > 0 and cost.dram_bytes > 0)


@pytest.mark.parametrize(("key", "value", "word"), [("dram_bytes_per_s", 0.0, "above 0"), ("overlap_exponent", 0.5, "1 or more"),
                                                    ("compute_efficiency", 1.5, "at most 1"), ("kernel_overhead_s", -1e-6, "0 or more")])
def test_impossible_constants_are_refused_by_name(key: str, value: float, word: str) -> None:
    with pytest.raises(TargetError, match=rf"cost\.{key} is {value!r}.*{word}"):
        cost_model(replace(TARGET, cost={**TARGET.cost, key: value}))


def test_missing_and_unknown_constants_are_refused_by_name() -> None:
    less = {k: v for k, v in TARGET.cost.items() if k != "atom_bytes"}
    with pytest.raises(TargetError, match=r"cost\.atom_bytes is missing"):
        cost_model(replace(TARGET, cost=less))
    with pytest.raises(TargetError, match=r"cost\.warp is not a constant"):
        cost_model(replace(TARGET, cost={**TARGET.cost, "warp": 9.0}))
    with pytest.raises(TargetError, match="cost_model is 'oracle'; expected one of host, mcu, npu"):
        cost_model(replace(TARGET, cost_model="oracle"))
