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
from qbench.errors import InputError, TargetError
from qbench.graph import load_network
from qbench.network import Precision
from qbench.targets import load
from qbench.workbench import CostOptions, cost_of
from qbench.workbench.costing import cpu_segments

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
    npu, cpu, conversion = ({"placement": "NPU", "op": "Conv"}, {"placement": "CPU", "op": "TopK"}, {"placement": "CPU", "op": "Convert"})
    assert [cpu_segments(rows) for rows in ([], [npu], [cpu, cpu, npu], [cpu, npu, cpu, cpu], [npu, conversion])] == [0, 0, 1, 2, 0]


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
