"""Every shipped target prices a small network, and bounds and directions hold on each of them; published latencies as golden values."""

from __future__ import annotations

import csv
import json
import lzma
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cost_networks import branched, conv, network
from hypothesis import given
from hypothesis import strategies as st

from qbench.cost import CostTable, changes, cost_model
from qbench.cost.mcu import McuModel
from qbench.cost.modes import first_run_s, kernel_on_cores, throughput
from qbench.cost.npu import NpuModel
from qbench.cost.tile import in_gelu, padded_macs, swaps_channels, vanishes
from qbench.errors import PrecisionUnavailable
from qbench.network import Kernel, Network, Precision, TensorSpec, Unit
from qbench.targets import load, names

INT8, FP16 = Precision.INT8, Precision.FP16
TILED = [n for n in names() if load(n).cost.get("onchip_bytes")]
NPUS = [n for n in names() if load(n).cost_model == "npu"]


def npu(name: str, **changed: float) -> NpuModel:
    model = cost_model(load(name))
    assert isinstance(model, NpuModel)
    return replace(model, parameters=replace(model.parameters, **changed))


layers = st.builds(conv, st.just("k"), st.just("x"), st.just("y"), st.integers(1, 200), st.integers(1, 200), st.integers(1, 64),
                   kernel=st.sampled_from([1, 3, 5]), stride=st.sampled_from([1, 2]), activation=st.sampled_from(["", "Relu", "Swish"]))


def single(k: Kernel) -> Network:
    return network([k], {"x": (1, k.in_channels, k.in_h, k.in_w), "y": (1, k.out_channels, k.out_h, k.out_w)}, ("x",), ("y",))


@pytest.mark.parametrize("name", names())
def test_a_small_network_is_priced_at_every_precision_and_refused_with_a_reason_elsewhere(name: str) -> None:
    t = load(name)
    for toolkit in t.toolkits:
        table = CostTable.build(branched(), t, toolkit)
        for precision in Precision:
            if precision in t.available(toolkit):
                for point in t.operating_points:
                    price = table.price(table.uniform(precision)[None], point.name)[0]
                    assert 0 < price.latency_ms_low < price.latency_ms < price.latency_ms_high < 1e4
                    assert price.energy_mj > 0 and price.peak_memory_bytes > 0
            else:
                with pytest.raises(PrecisionUnavailable, match=f"{name} (has no|does not offer) {precision}"):
                    t.support(precision, toolkit)


@given(k=layers, name=st.sampled_from(NPUS), data=st.data())
def test_never_faster_than_the_roofline(k: Kernel, name: str, data: st.DataObject) -> None:
    """The unpadded MACs at full rate, and the bytes that have to cross DRAM whatever stays on chip."""
    target = load(name)
    precision, point = data.draw(st.sampled_from(target.available())), target.operating_points[-1]
    model = npu(name)
    cost = model.kernel(k, single(k), precision, point)
    assert cost.seconds >= k.macs / (target.support(precision).macs_per_cycle * point.clock_hz)
    assert cost.seconds >= model.weight_bytes(k, precision) / model.parameters.dram_bytes_per_s * (1 - 1e-9)
    assert 0 < cost.utilisation <= 1


@given(k=layers, name=st.sampled_from(NPUS), factor=st.floats(1.0, 8.0), data=st.data())
def test_a_better_chip_never_takes_longer(k: Kernel, name: str, factor: float, data: st.DataObject) -> None:
    """Non-increasing in clock, bandwidth and on-chip memory."""
    target = load(name)
    precision, point = data.draw(st.sampled_from(target.available())), target.operating_points[0]
    p, net = npu(name).parameters, single(k)
    now = npu(name).kernel(k, net, precision, point).seconds * (1 + 1e-9)
    assert npu(name).kernel(k, net, precision, replace(point, clock_hz=point.clock_hz * factor)).seconds <= now
    assert npu(name, dram_bytes_per_s=p.dram_bytes_per_s * factor).kernel(k, net, precision, point).seconds <= now
    larger = {"onchip_bytes": p.onchip_bytes * factor} if p.onchip_bytes else {"buffer_banks": float(int(p.buffer_banks * factor))}
    assert npu(name, **larger).kernel(k, net, precision, point).seconds <= now


@given(k=layers, name=st.sampled_from(names()), more=st.integers(1, 64), data=st.data())
def test_cost_never_falls_when_macs_grow(k: Kernel, name: str, more: int, data: st.DataObject) -> None:
    target = load(name)
    precision, model, point = data.draw(st.sampled_from(target.available())), cost_model(target), target.operating_points[-1]
    wide = conv("k", "x", "y", k.in_channels, k.out_channels + more, k.in_h, k.kernel_h, k.stride_h, activation=k.activation)
    assert model.kernel(wide, single(wide), precision, point).seconds >= model.kernel(k, single(k), precision, point).seconds * (1 - 1e-9)


@given(cin=st.integers(1, 200), cout=st.integers(1, 200), more=st.integers(0, 40), name=st.sampled_from(TILED),
       precision=st.sampled_from([INT8, FP16]))
def test_padding_is_monotone_and_holds_every_mac(cin: int, cout: int, more: int, name: str, precision: Precision) -> None:
    p = npu(name).parameters
    k, wide = conv("k", "x", "y", cin, cout, 14), conv("k", "x", "y", cin + more, cout, 14)
    assert k.macs <= padded_macs(k, precision, p) <= padded_macs(wide, precision, p)


def test_cube_rounds_pixels_and_both_channels_to_its_tile() -> None:
    """16 x 16 x 16 for fp16, 16 x 32 x 16 for INT8 (CANN): 49 pixels are 64, 33 channels are 48 or 64 in, 17 out are 32."""
    p, k = npu("ascend").parameters, conv("k", "x", "y", 33, 17, 7, kernel=1)
    assert padded_macs(k, FP16, p) == 64 * 48 * 32
    assert padded_macs(k, INT8, p) == 64 * 64 * 32


def test_narrow_groups_share_a_tile_of_the_hmx() -> None:
    """ResNeXt's 32 groups of 8: four to a tile of 32 x 32, so eight tiles."""
    k = replace(conv("k", "x", "y", 256, 256, 14, groups=32), kind="conv")
    assert padded_macs(k, INT8, npu("hexagon").parameters) == 14 * 14 * 8 * 32 * 32 * 9


def chain(*steps: tuple[str, str, str, tuple[str, ...]], shape: tuple[int, ...] = (1, 8, 4, 4)) -> Network:
    kernels = [Kernel(n, op, kind, (n,), inputs, (n,)) for n, op, kind, inputs in steps]
    return network(kernels, {t: shape for k in kernels for t in (*k.inputs, *k.outputs)}, ("x",), (kernels[-1].name,))


def test_gelu_chains_and_layout_changes_vanish_where_the_compiler_knows_them() -> None:
    net = chain(("conv", "Conv", "conv", ("x",)), ("div", "Div", "eltwise", ("conv",)), ("erf", "Erf", "activation", ("div",)),
                ("add", "Add", "eltwise", ("erf",)), ("mul", "Mul", "eltwise", ("conv", "add")), ("half", "Mul", "eltwise", ("mul",)),
                ("after", "Add", "eltwise", ("half",)))
    assert [k.name for k in net.kernels if in_gelu(k, net)] == ["div", "add", "mul", "half"]
    p = npu("hexagon").parameters
    assert [k.name for k in net.kernels if vanishes(k, net, p)] == ["div", "add", "mul", "half"]
    assert not any(vanishes(k, net, replace(p, fused_chains=0.0)) for k in net.kernels)
    turn = Kernel("t", "Transpose", "reshape", ("t",), ("x",), ("y",))
    for shape, swaps in (((1, 4, 6, 8), True), ((1, 8, 6, 4), False)):
        assert swaps_channels(turn, network([turn], {"x": (1, 8, 4, 6), "y": shape}, ("x",), ("y",))) is swaps


def test_joins_of_whole_channel_groups_are_free() -> None:
    p = npu("hexagon").parameters
    for part, free in ((32, True), (24, False)):
        k = Kernel("c", "Concat", "concat", ("c",), ("a", "b"), ("y",))
        net = network([k], {"a": (1, part, 8, 8), "b": (1, part, 8, 8), "y": (1, 2 * part, 8, 8)}, ("a", "b"), ("y",))
        assert vanishes(k, net, p) is free


def test_sixteen_bit_activations_keep_eight_bit_weights_on_hexagon() -> None:
    k = conv("k", "x", "y", 64, 64, 8)
    weights = {p: npu("hexagon").weight_bytes(k, p) for p in load("hexagon").available()}
    assert weights[Precision.INT16] == weights[INT8] == pytest.approx(weights[FP16] / 2, rel=0.01)


def test_microcontroller_cycles_add_up() -> None:
    model, target = cost_model(load("stm32h7")), load("stm32h7")
    assert isinstance(model, McuModel)
    k, p = conv("k", "x", "y", 8, 8, 16), model.parameters
    cycles = k.macs * p.cycles_per_mac_dense + 8 * 16 * 16 * p.cycles_per_output + p.kernel_overhead_cycles
    assert model.kernel(k, single(k), INT8, target.operating_points[0]).seconds == pytest.approx(cycles / 400e6)


# ------------------------------------------------------------------------------------------------------- one change

def named(name: str, k: Kernel, net: Network | None = None, precision: Precision = INT8, point: str | None = None) -> dict[str, float]:
    target = load(name)
    found = changes(cost_model(target), k, net or single(k), precision, target.operating_point(point), target.operating_points, target.available())
    assert [c.saved_s for c in found] == sorted((c.saved_s for c in found), reverse=True)
    return {f"{c.kind}: {c.what}": c.saved_s for c in found}


def test_a_change_is_named_and_priced() -> None:
    k = conv("k", "x", "y", 64, 65, 56, activation="Swish")
    found = named("rk3588", k, precision=FP16, point="600MHz")
    assert "precision: fp16 to int8" in found and "clock: 600MHz to 1000MHz" in found
    assert any(c.startswith("channels: 65 output channels are computed as 80; 64") for c in found)
    assert any("Relu in place of Swish" in c for c in found)
    full = named("rk3588", conv("k", "x", "y", 64, 64, 56, activation="Relu"))
    assert not any(c.startswith(("channels", "activation", "precision")) for c in full)


def test_changes_on_chip_and_off_the_cpu() -> None:
    big = conv("k", "x", "y", 64, 64, 512)
    assert any("would stay on chip" in c for c in named("hexagon", big))
    floor = Kernel("k", "Floor", "other", ("k",), ("x",), ("y",))
    net = network([floor], {"x": (1, 8, 8, 8), "y": (1, 8, 8, 8)}, ("x",), ("y",))
    assert any(c.startswith("placement") for c in named("rk3588", floor, net, FP16))


def test_unaligned_joins_are_advised_to_pad() -> None:
    k = Kernel("k", "Concat", "concat", ("k",), ("a", "b"), ("y",))
    net = network([k], {"a": (1, 1000, 2), "b": (1, 200, 2), "y": (1, 1200, 2)}, ("a", "b"), ("y",))
    assert any("multiples of 16" in c for c in named("rk3588", k, net))


# ------------------------------------------------------------------------------------------------------- modes

def test_cores_divide_only_what_scales() -> None:
    p = replace(npu("rk3588").parameters, cores=3.0, core_efficiency=0.8, core_barrier_s=1e-6)
    net, target = branched(), load("rk3588")
    costs = [npu("rk3588").kernel(k, net, INT8, target.operating_points[-1]) for k in net.kernels]
    one, three, eight = (sum(kernel_on_cores(c, n, p) for c in costs) for n in (1, 3, 8))
    swish = next(c.seconds for c in costs if "Swish" in c.op)
    assert swish < three < one == pytest.approx(sum(c.seconds for c in costs))
    assert eight == three                          # no more cores than there are
    assert throughput(0.01, 1e6, 3, 1e12) == 300 and throughput(0.01, 1e9, 3, 1e10) == 10


def test_first_run_is_apart_and_unknown_without_a_figure() -> None:
    p = npu("hexagon").parameters
    assert first_run_s(1e6, p) is None
    assert first_run_s(1e6, replace(p, load_bytes_per_s=1e9, compile_s=2.0)) == pytest.approx(2.001)


# ------------------------------------------------------------------------------------------------------- golden networks

DATA = Path(__file__).parents[2] / "experiments" / "data"
CHIPS = {"hexagon-8gen3": "Snapdragon 8 Gen 3", "hexagon-qcs6490": "QCS6490", "mlu370-s4": "MLU370-S4", "ascend310p": "Ascend 310P3", "rk3576": "RK3576",
         "rk3566": "RK3566/RK3568", "ane-a16": "A16 Bionic (iPhone 14 Pro)"}
GOLDEN = ("resnet50", "resnet18", "mobilenet_v2", "squeezenet1_1", "regnet_y_800mf", "yolov8n", "resnet50_v2", "yolov5s_rk", "squeezenet1_0_227")


@cache
def published_networks() -> dict[str, Network]:
    """Kernels without weights, as experiments/public_rows.py packed them."""
    with lzma.open(DATA / "public_networks.json.xz", "rt") as file:
        packed = json.load(file)
    found = {}
    for name in GOLDEN:
        rows: list[dict[str, Any]] = [{k: tuple(v) if isinstance(v, list) else v for k, v in row.items()} for row in packed[name]["kernels"]]
        kernels = tuple(Kernel(**row) for row in rows)
        tensors = {t: TensorSpec(t, tuple(s), "float32") for t, s in packed[name]["tensors"].items()}
        found[name] = Network(name, "", tuple(packed[name]["inputs"]), tuple(packed[name]["outputs"]), tensors, kernels,
                              tuple(Unit(k.name, (k.name,)) for k in kernels), ())
    return found


@pytest.mark.parametrize("name", CHIPS)
def test_published_latencies_lie_in_the_interval(name: str) -> None:
    """Golden values with their sources: experiments/data/public_latency.csv.xz."""
    target, networks = load(name), published_networks()
    words: dict[str, Callable[[float], float]] = {"fps": lambda v: 1e3 / v, "latency_ms": lambda v: v}
    precisions = {"fp16": "fp16", "w8a8": "int8", "w8a16": "int16", "w8a8 (fp16 mixed)": "int8"}
    with lzma.open(DATA / "public_latency.csv.xz", "rt", newline="") as file:
        rows = [r for r in csv.DictReader(file) if r["chip"] == CHIPS[name] and r["graph"] in networks and r["precision"] in precisions]
    inside = []
    for r in rows:
        table = CostTable.build(networks[r["graph"]], target)
        price = table.price(table.uniform(Precision(precisions[r["precision"]]))[None], target.operating_points[-1].name)[0]
        inside.append(price.latency_ms_low <= words[r["metric"]](float(r["value"])) <= price.latency_ms_high)
    assert len(inside) >= 3 and np.mean(inside) >= 0.75
