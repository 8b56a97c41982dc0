"""Bounds and directions for all four latency models: banked NPU, tiled NPU, host, microcontroller, grouped convolutions and wide strides included."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest
from cost_networks import conv, network
from hypothesis import given, settings
from hypothesis import strategies as st

from qbench.cost import cost_model
from qbench.cost.host import HostModel
from qbench.cost.kernel import CostModel
from qbench.cost.mcu import McuModel
from qbench.cost.npu import NpuModel
from qbench.network import Kernel, Network
from qbench.targets import load

MODELS = ("rk3588", "hexagon", "host", "stm32h7")
BANDWIDTH = {NpuModel: "dram_bytes_per_s", HostModel: "memory_bytes_per_s"}


@cache
def model(name: str) -> CostModel:
    return cost_model(load(name))


@st.composite
def layers(draw: st.DrawFn) -> Kernel:
    groups = draw(st.sampled_from([1, 1, 2, 4]))
    cin, cout = (groups * draw(st.integers(1, 48)) for _ in range(2))
    k = conv("k", "x", "y", cin, cout, draw(st.integers(1, 48)), kernel=draw(st.sampled_from([1, 3, 5, 17])), stride=draw(st.sampled_from([1, 2, 8])),
             groups=groups, activation=draw(st.sampled_from(["", "Relu", "Swish"])))
    return replace(k, kind="conv") if groups > 1 else k


def single(k: Kernel) -> Network:
    return network([k], {"x": (1, k.in_channels, k.in_h, k.in_w), "y": (1, k.out_channels, k.out_h, k.out_w)}, ("x",), ("y",))


def test_the_four_names_stand_for_the_four_models() -> None:
    kinds = [(type(model(n)), bool(load(n).cost.get("onchip_bytes"))) for n in MODELS]
    assert kinds == [(NpuModel, False), (NpuModel, True), (HostModel, False), (McuModel, False)]


@pytest.mark.parametrize("name", MODELS)
@settings(max_examples=60)
@given(k=layers(), data=st.data())
def test_never_below_the_roofline(name: str, k: Kernel, data: st.DataObject) -> None:
    """The network's own MACs at the full rate; weights and the bytes of both ends where they have to cross the memory."""
    target = load(name)
    precision, point = data.draw(st.sampled_from(target.available())), target.operating_points[-1]
    cost = model(name).kernel(k, single(k), precision, point)
    assert cost.seconds >= k.macs / (target.support(precision).macs_per_cycle * point.clock_hz) * (1 - 1e-12)
    rate = getattr(model(name).parameters, BANDWIDTH.get(type(model(name)), ""), None)  # type: ignore[attr-defined]
    if rate is not None:
        ends = (k.in_channels * k.in_h * k.in_w + k.out_channels * k.out_h * k.out_w) * precision.activation_bytes
        assert cost.seconds >= (ends if name != "hexagon" else 0.0) / rate * (1 - 1e-12)
        assert cost.dram_bytes >= k.weights                        # one byte at least, whatever the precision


@pytest.mark.parametrize("name", MODELS)
@settings(max_examples=60)
@given(k=layers(), factor=st.floats(1.0, 8.0), data=st.data())
def test_never_slower_with_more_clock_or_bandwidth_or_memory_on_chip(name: str, k: Kernel, factor: float, data: st.DataObject) -> None:
    target = load(name)
    precision, point, m, net = data.draw(st.sampled_from(target.available())), target.operating_points[0], model(name), single(k)
    now = m.kernel(k, net, precision, point).seconds * (1 + 1e-9)
    assert m.kernel(k, net, precision, replace(point, clock_hz=point.clock_hz * factor)).seconds <= now
    if isinstance(m, McuModel):                                    # no memory term: everything lies in its own memory
        return
    assert isinstance(m, NpuModel | HostModel)
    p = m.parameters
    grown = [{BANDWIDTH[type(m)]: getattr(p, BANDWIDTH[type(m)]) * factor}]
    if isinstance(m, NpuModel):
        grown.append({"onchip_bytes": m.parameters.onchip_bytes * factor} if m.parameters.onchip_bytes
                     else {"buffer_banks": float(int(m.parameters.buffer_banks * factor))})
    for change in grown:
        assert replace(m, parameters=replace(p, **change)).kernel(k, net, precision, point).seconds <= now  # type: ignore[arg-type]


@pytest.mark.parametrize("name", MODELS)
@settings(max_examples=60)
@given(cin=st.integers(1, 150), cout=st.integers(1, 150), size=st.integers(1, 40), more=st.integers(1, 64), taps=st.sampled_from([1, 3]), data=st.data())
def test_padding_is_monotone(name: str, cin: int, cout: int, size: int, more: int, taps: int, data: st.DataObject) -> None:
    """More channels in or out, or more pixels, never take less time."""
    target = load(name)
    precision, point = data.draw(st.sampled_from(target.available())), target.operating_points[-1]

    def seconds(a: int, b: int, pixels: int) -> float:
        k = conv("k", "x", "y", a, b, pixels, taps)
        return model(name).kernel(k, single(k), precision, point).seconds

    now = seconds(cin, cout, size) * (1 - 1e-9)
    assert seconds(cin, cout + more, size) >= now
    assert seconds(cin, cout, size + more) >= now
    packs = load(name).cost.get("raw_input_channels", 0) or 0
    if not cin <= packs < cin + more:              # an image of few channels is stored unpacked and padded further: the next one may be cheaper
        assert seconds(cin + more, cout, size) >= now
