"""Several cores, and what `qbench cost` says beside the steady state."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import onnx
import pytest
from cost_networks import branched
from models import model as onnx_model
from models import node

from qbench.cost import CostTable, changes
from qbench.cost.kernel import KernelCost
from qbench.cost.modes import kernel_on_cores
from qbench.cost.npu import NpuModel
from qbench.errors import InputError, ModelError, TargetError
from qbench.graph import load_network
from qbench.network import Precision
from qbench.targets import load
from qbench.workbench import CostOptions, cost_of
from qbench.workbench.costing import cpu_segments
from qbench.workbench.inspecting import inspect_model

INT8 = Precision.INT8


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Conv with SiLU, a Mish that the RK3588's toolkit leaves to the CPU, a Conv."""
    path = tmp_path_factory.mktemp("cost") / "net.onnx"
    weights = {"w0": np.full((24, 3, 3, 3), 0.1, np.float32), "w1": np.full((8, 24, 1, 1), 0.1, np.float32)}
    nodes = [node("Conv", ["x", "w0"], ["a"], "first", pads=[1] * 4), node("Sigmoid", ["a"], ["s"], "gate"), node("Mul", ["a", "s"], ["b"], "silu"),
             node("Mish", ["b"], ["c"], "mish"), node("Conv", ["c", "w1"], ["y"], "second")]
    onnx.save(onnx_model(nodes, {"x": [1, 3, 64, 64]}, {"y": [1, 8, 64, 64]}, weights, opset=18), str(path))
    return path


def test_only_scalable_kernels_of_the_npu_divide() -> None:
    model = CostTable.build(branched(), load("rk3588")).model
    assert isinstance(model, NpuModel)
    p = replace(model.parameters, cores=3.0, core_efficiency=0.5, core_barrier_s=1e-6)
    one = KernelCost("k", "Conv+Relu", 1e-3, 0.0, "compute", 0.0, 1, 1.0, "NPU")
    assert kernel_on_cores(one, 3, p) == pytest.approx(1e-3 / 2 + 1e-6)
    assert kernel_on_cores(one, 1, p) == 1e-3
    for other in (replace(one, op="Conv+Sigmoid+Mul"), replace(one, placement="CPU")):
        assert kernel_on_cores(other, 3, p) == 1e-3
    assert kernel_on_cores(replace(one, seconds=1e-7), 3, p) == 1e-7                   # the barrier never costs more than it saves


@pytest.mark.parametrize("options", [CostOptions(), CostOptions(cores=3), CostOptions(batch=4), CostOptions(cores=2, batch=2)])
def test_kernels_add_up_to_the_latency(file: Path, options: CostOptions) -> None:
    row = cost_of(file, ["rk3588"], ["int8"], options)[0]
    assert sum(k["ms"] for k in row["kernels"]) == pytest.approx(row["latency_ms"], rel=1e-9)
    assert row["latency_ms_low"] < row["latency_ms"] < row["latency_ms_high"]
    several = options.cores > 1
    assert (row["energy_mj"] is None) == several
    assert sum(f"{options.cores} cores: unvalidated" in w for w in row["warnings"]) == several
    assert sum(f"batch {options.batch}: unvalidated" in w for w in row["warnings"]) == (options.batch > 1)


def test_modes_agree_with_asking_for_the_cores(file: Path) -> None:
    modes = cost_of(file, ["rk3588"], ["int8"])[0]["modes"]
    assert [c["cores"] for c in modes["cores"]] == [1, 2, 3]
    for c in modes["cores"]:
        assert c["latency_ms"] == pytest.approx(cost_of(file, ["rk3588"], ["int8"], CostOptions(cores=c["cores"]))[0]["latency_ms"], rel=1e-9)
    alone = modes["cores"][0]["latency_ms"]
    assert 1e3 / alone <= modes["throughput_per_s_low"] * (1 + 1e-9) <= modes["throughput_per_s_high"] * (1 + 1e-9) <= 3e3 / alone * (1 + 1e-6)
    assert modes["first_run_extra_ms"] is None and modes["basis"].startswith("unvalidated")


def test_every_point_of_the_table_or_those_named(file: Path) -> None:
    target = load("rk3588")
    every = cost_of(file, ["rk3588"], ["int8"], CostOptions(("all",)))
    assert [r["op_point"] for r in every] == [o.name for o in target.operating_points]
    assert all(a["latency_ms"] >= b["latency_ms"] for a, b in pairwise(every))
    two = cost_of(file, ["rk3588"], ["int8"], CostOptions(("800MHz", "300MHz")))
    assert [r["op_point"] for r in two] == ["800MHz", "300MHz"]
    with pytest.raises(TargetError, match="no operating point '9MHz'; its table has 300MHz"):
        cost_of(file, ["rk3588"], ["int8"], CostOptions(("9MHz",)))


def test_the_change_named_on_a_kernel_is_the_best_that_the_model_finds(file: Path) -> None:
    network, target = load_network(file).network, load("rk3588")
    table = CostTable.build(network, target)
    row = cost_of(file, ["rk3588"], ["fp16"])[0]
    named = {k["name"]: k["change"] for k in row["kernels"] if k["name"] in network.kernel}
    for name, change in named.items():
        best = next(iter(changes(table.model, network.kernel[name], network, Precision.FP16, target.operating_point(None), target.operating_points,
                                 target.available())), None)
        assert (change is None) == (best is None)
        if change and best:
            assert (change["kind"], change["what"]) == (best.kind, best.what) and change["saved_ms"] == pytest.approx(best.saved_s * 1e3)
    assert named["mish"]["kind"] == "placement"
    assert all(k["change"] is None for k in row["kernels"] if k["name"] not in network.kernel)


def test_segments_on_the_cpu_are_counted_and_timed(file: Path) -> None:
    row = cost_of(file, ["rk3588"], ["int8"])[0]
    assert row["cpu_segments"] == 1
    assert row["cpu_ms"] == pytest.approx(next(k["ms"] for k in row["kernels"] if k["name"] == "mish"))
    assert cost_of(file, ["host"], ["int8"])[0]["cpu_segments"] == 0
    network = load_network(file).network
    names = [k.name for k in network.kernels]
    rows = [{"name": n, "placement": "CPU"} for n in names]
    other = {"name": "convert a", "placement": "CPU"}
    assert [cpu_segments(network, r) for r in ([], rows, [rows[0], rows[-1]], [other])] == [0, 1, 2, 0]


def test_cost_and_inspect_agree_on_what_runs_on_the_cpu(tmp_path: Path) -> None:
    """By a rule about a shape: a window of 9 is one that no list of operators knows; and a refused operator is said, not hidden."""
    weights = {"w0": np.full((8, 3, 3, 3), 0.1, np.float32), "w1": np.full((8, 8, 1, 1), 0.1, np.float32), "s": np.array([1, 1, 2, 2], np.float32)}
    nodes = [node("Conv", ["x", "w0"], ["a"], "first", pads=[1] * 4), node("MaxPool", ["a"], ["b"], "wide", kernel_shape=[9, 9], pads=[4] * 4),
             node("Conv", ["b", "w1"], ["c"], "second"), node("Resize", ["c", "", "s"], ["y"], "up", mode="cubic")]
    path = tmp_path / "net.onnx"
    onnx.save(onnx_model(nodes, {"x": [1, 3, 64, 64]}, {"y": [1, 8, 128, 128]}, weights), str(path))
    for precision in ("int8", "fp16"):
        (row,), (seen,) = cost_of(path, ["rk3588"], [precision]), inspect_model(path, ["rk3588"], precision=precision)
        assert seen.found is not None
        fallback = seen.found.fallback
        away = {k["name"] for k in row["kernels"] if k["placement"] == "CPU"}
        assert away == {k for s in fallback.segments for k in s.kernels} == {"wide", "up"}
        assert row["cpu_segments"] == len(fallback.segments) == 2 and row["cpu_ms"] == pytest.approx(fallback.ms)
        assert row["latency_ms"] == pytest.approx(seen.found.latency_ms) and "rules" in row["cpu_basis"]
        assert any("the toolchain refuses 'up'" in w for w in row["warnings"])
    assert cost_of(path, ["stm32h7"], ["int8"])[0]["cpu_segments"] == 0


def test_time_by_assumed_constants_is_not_covered_by_the_interval_and_cores_take_turns_on_the_cpu(tmp_path: Path) -> None:
    """A kernel of 33 x 33, which the rules leave to the CPU, beside a small convolution."""
    weights = {"w0": np.full((16, 16, 33, 33), 0.1, np.float32), "w1": np.full((16, 16, 1, 1), 0.1, np.float32)}
    nodes = [node("Conv", ["x", "w0"], ["a"], "wide", pads=[16] * 4), node("Conv", ["a", "w1"], ["y"], "small")]
    onnx.save(onnx_model(nodes, {"x": [1, 16, 64, 64]}, {"y": [1, 16, 64, 64]}, weights), str(tmp_path / "net.onnx"))
    row = cost_of(tmp_path / "net.onnx", ["rk3588"], ["int8"])[0]
    assert row["cpu_ms"] > 0.9 * row["latency_ms"] and any("the interval does not cover that part" in w for w in row["warnings"])
    assert row["modes"]["throughput_per_s_low"] == pytest.approx(1e3 / row["cpu_ms"]) and row["modes"]["throughput_per_s_high"] == pytest.approx(3e3 / row["latency_ms"])
    nothing = cost_of(tmp_path / "net.onnx", ["hexagon"], ["int8"])[0]
    assert nothing["cpu_ms"] == 0.0 and not nothing["warnings"]


def test_a_kernel_on_the_cpu_reads_its_weights_and_multiplies() -> None:
    target = load("rk3588")
    net = branched()
    k = max(net.kernels, key=lambda k: k.macs)
    model = CostTable.build(net, replace(target, on_cpu={INT8: {k.name: 0.5}})).model
    assert isinstance(model, NpuModel)
    p, cost = model.parameters, model.kernel(k, net, INT8, target.operating_point(None))
    moved = sum(net.tensors[t].elements for t in (*k.inputs, *k.outputs)) + model.weight_bytes(k, INT8)
    assert cost.placement == "CPU" and cost.dram_bytes == moved
    assert cost.seconds == pytest.approx(max(moved, k.macs) / p.cpu_bytes_per_s + 0.5 * p.cpu_sync_s)
    assert model.kernel(k, net, Precision.FP16, target.operating_point(None)).placement == "NPU"
    assert model.all_on_npu().kernel(k, net, INT8, target.operating_point(None)).placement == "NPU"


def test_ram_and_flash_of_a_microcontroller_stand_apart_and_too_much_is_said(file: Path) -> None:
    mcu, memory = load("stm32h7").memory, cost_of(file, ["stm32h7"], ["int8"])[0]["memory"]
    assert memory["ram_bytes"] == memory["arena_bytes"] + memory["runtime_bytes"] > memory["runtime_bytes"] == mcu.runtime_ram_bytes
    assert memory["flash_bytes"] == memory["weight_bytes"] and (memory["device_ram_bytes"], memory["device_flash_bytes"]) == (mcu.ram_bytes, mcu.flash_bytes)
    assert not cost_of(file, ["stm32h7"], ["int8"])[0]["warnings"]
    large = cost_of(file, ["stm32h7"], ["int8"], CostOptions(batch=64))[0]
    assert large["memory"]["ram_bytes"] > (mcu.ram_bytes or 0) and any("the RAM of stm32h7 holds 524.3 KB" in w for w in large["warnings"])
    npu = cost_of(file, ["rk3588"], ["int8"])[0]["memory"]
    assert npu["ram_bytes"] is npu["flash_bytes"] is None
    assert npu["strategy"] == "rknn-toolkit2" and npu["gap"] == pytest.approx(npu["arena_bytes"] / npu["lower_bound_bytes"] - 1)
    assert npu["lower_bound_bytes"] <= npu["smallest_bytes"] <= npu["arena_bytes"]


def test_a_model_that_folds_away_is_refused(tmp_path: Path) -> None:
    onnx.save(onnx_model([node("Identity", ["c"], ["y"])], {"x": [1, 3]}, {"y": [2]}, {"c": np.zeros(2, np.float32)}), str(tmp_path / "none.onnx"))
    with pytest.raises(ModelError, match="no operator left once its constants are folded: there is nothing to price"):
        cost_of(tmp_path / "none.onnx", ["rk3588"], ["int8"])


def test_memory_is_the_planned_one_and_at_least_the_bound(file: Path) -> None:
    row = cost_of(file, ["rk3588"], ["int8"])[0]
    memory = row["memory"]
    assert row["peak_memory_bytes"] == memory["arena_bytes"] + memory["weight_bytes"] >= row["memory_lower_bound_bytes"]
    for i, a in enumerate(memory["buffers"]):
        assert a["offset"] + a["size"] <= memory["arena_bytes"]
        for b in memory["buffers"][:i]:
            if a["first"] <= b["last"] and b["first"] <= a["last"]:
                assert a["offset"] + a["size"] <= b["offset"] or b["offset"] + b["size"] <= a["offset"]


def test_what_cannot_be_priced_is_refused(file: Path) -> None:
    with pytest.raises(InputError, match="--cores 4: target rk3588 is priced with 3 cores"):
        cost_of(file, ["rk3588"], ["int8"], CostOptions(cores=4))
    with pytest.raises(InputError, match=r"--cores 2: target hexagon-8gen3 is priced with 1 core; its file gives no more \(cost.cores\)"):
        cost_of(file, ["hexagon"], ["int8"], CostOptions(cores=2))
    with pytest.raises(InputError, match="--cores 0"):
        cost_of(file, ["host"], ["int8"], CostOptions(cores=0))
    with pytest.raises(InputError, match="--batch 0: give 1 or more"):
        cost_of(file, ["rk3588"], ["int8"], CostOptions(batch=0))


def test_a_warm_board_needs_all_three_figures_and_watts(file: Path) -> None:
    with pytest.raises(InputError, match="--thermal-resistance"):
        cost_of(file, ["rk3588"], ["int8"], CostOptions(ambient_c=45.0))
    with pytest.raises(InputError, match="no public watt"):
        cost_of(file, ["rk3588"], ["int8"], CostOptions(ambient_c=45.0, thermal_resistance=10.0, heat_capacity=8.0))
    readings = file.parent / "power.toml"
    readings.write_text(f'[[reading]]\nmodel = "{file.name}"\nop_point = "1000MHz"\nidle_w = 1.5\nbusy_w = 4.0\n')
    options = CostOptions(power=readings, ambient_c=45.0, thermal_resistance=10.0, heat_capacity=8.0)
    row = cost_of(file, ["rk3588"], ["int8"], options)[0]
    assert not row["power_is_relative"] and row["power_w"] == pytest.approx(4.0, rel=1e-6)
    assert row["thermal"]["prediction"]["temperature_c"] <= 85.0 + 1e-6 or not row["thermal"]["prediction"]["holds"]
