"""CPU segments: laws on random graphs, and prices against the cost model."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import numpy as np
import onnx_ir as ir
import pytest
from hypothesis import given
from hypothesis import strategies as st
from models import model, node

from qbench import targets
from qbench.cost import CostTable, KernelRow, cost_model
from qbench.cost.npu import NpuModel
from qbench.graph import load_network
from qbench.network import Kernel, Network, Precision, TensorSpec
from qbench.placement.judging import fallen_back
from qbench.placement.record import Placement, Verdict
from qbench.placement.segments import fallback, parts_of
from qbench.target import Target

NPU, CPU = Placement.NPU, Placement.CPU


def network(edges: Iterable[tuple[int, int]], n: int) -> Network:
    """Kernels k0, k1 ... that read what their predecessors write."""
    above: dict[int, list[int]] = {i: [] for i in range(n)}
    for a, b in edges:
        above[b].append(a)
    kernels = tuple(Kernel(f"k{i}", "Relu", "activation", (f"n{i}",), tuple(f"t{a}" for a in sorted(set(above[i]))) or ("x",), (f"t{i}",)) for i in range(n))
    tensors = {t: TensorSpec(t, (1, 8), "float32") for t in ("x", *(f"t{i}" for i in range(n)))}
    read = {t for k in kernels for t in k.inputs}
    return Network("n", "key", ("x",), tuple(t for t in tensors if t not in read), tensors, kernels, (), ())


@st.composite
def graphs(draw: st.DrawFn) -> tuple[Network, dict[int, set[int]], set[str]]:
    n = draw(st.integers(1, 9))
    edges = draw(st.lists(st.tuples(st.integers(0, n - 1), st.integers(0, n - 1)).filter(lambda e: e[0] < e[1]), max_size=16)) if n > 1 else []
    after: dict[int, set[int]] = {i: set() for i in range(n)}
    for a, b in edges:
        after[a].add(b)
    return network(edges, n), after, {f"k{i}" for i in draw(st.sets(st.integers(0, n - 1)))}


def comes_back(part: set[int], after: dict[int, set[int]]) -> bool:
    """Slow reference: a walk that leaves the part and enters it again."""
    stack = [b for a in part for b in after[a] if b not in part]
    seen: set[int] = set()
    while stack:
        here = stack.pop()
        if here in part:
            return True
        if here not in seen:
            seen.add(here)
            stack += after[here]
    return False


@given(graphs())
def test_parts_are_a_partition_that_runs_in_one_go_each_and_cannot_be_coarser(case: tuple[Network, dict[int, set[int]], set[str]]) -> None:
    net, after, members = case
    parts = [{int(n[1:]) for n in p} for p in parts_of(net, members)]
    assert sorted(i for p in parts for i in p) == sorted(int(m[1:]) for m in members)
    for p in parts:
        assert not comes_back(p, after)
        reached = {min(p)}
        while more := {b for a in p for b in p if (b in after[a] or a in after[b]) and a in reached and b not in reached}:
            reached |= more
        assert reached == p
    for p in parts:
        for q in parts:
            if p is not q and any(b in after[a] for a in p for b in q):
                assert comes_back(p | q, after)


def test_neighbours_around_a_detour_through_the_npu_stay_apart() -> None:
    """k0 (CPU) feeds k1 (NPU) and k2 (CPU); k1 feeds k2: k0 and k2 cannot run together."""
    net = network([(0, 1), (0, 2), (1, 2)], 3)
    assert parts_of(net, {"k0", "k2"}) == [("k0",), ("k2",)]
    assert parts_of(net, {"k0", "k1", "k2"}) == [("k0", "k1", "k2")]


def chain() -> Network:
    """Conv (NPU), Exp, Log (CPU), Conv (NPU)."""
    w = np.zeros((8, 8, 1, 1), np.float32)
    nodes = [node("Conv", ["x", "w"], ["a"], "c1"), node("Exp", ["a"], ["b"], "e"), node("Log", ["b"], ["c"], "l"), node("Conv", ["c", "w"], ["y"], "c2")]
    return load_network(ir.serde.deserialize_model(model(nodes, {"x": [1, 8, 16, 16]}, {"y": [1, 8, 16, 16]}, {"w": w}))).network


def rows_of(net: Network, chip: Target) -> tuple[KernelRow, ...]:
    table = CostTable.build(net, chip)
    return table.kernel_table(table.uniform(Precision.INT8), chip.operating_points[-1].name)


def judged(net: Network, where: dict[str, Placement]) -> dict[Precision, dict[str, Verdict]]:
    return {p: {n: Verdict(where[k.name], "") for k in net.kernels for n in k.nodes} for p in (Precision.INT8, Precision.INT16, Precision.FP16)}


def test_a_segment_is_handed_over_once_and_priced_by_the_cost_model() -> None:
    net = chain()
    where = {k.name: CPU if k.name in ("e", "l") else NPU for k in net.kernels}
    chip = replace(targets.load("rk3588"), on_cpu=fallen_back(net, judged(net, where)))
    npu = cost_model(chip)
    assert isinstance(npu, NpuModel)
    rows = rows_of(net, chip)
    found = fallback(net, where, npu, rows, Precision.INT8, chip.operating_points[-1], "assumed")
    (segment,) = found.segments
    assert segment.kernels == ("e", "l") and segment.ops == ("Exp", "Log") and segment.returns and found.npu_parts == 2
    assert [(c.tensor, c.bytes) for c in (*segment.enters, *segment.leaves)] == [("a", 2048), ("c", 2048)]
    p = npu.parameters
    assert segment.ms == pytest.approx(1e3 * (4 * 2048 * 2 / p.cpu_bytes_per_s + p.cpu_sync_s))      # both stay in float
    assert found.possible == 0 and "assumed" in found.note
    assert found.ms == segment.ms == pytest.approx(sum(r.ms for r in rows if r.placement == "CPU"))
    assert segment.npu_ms == pytest.approx(1e3 * sum(npu.all_on_npu().kernel(net.kernel[k], net, Precision.FP16, chip.operating_points[-1]).seconds for k in "el"))


def test_what_is_refused_is_cut_out_and_what_is_split_stays() -> None:
    net = chain()
    where = {"c1": Placement.PARTLY, "e": Placement.REFUSED, "l": Placement.UNKNOWN, "c2": NPU}
    assert fallen_back(net, judged(net, where))[Precision.INT8] == {"e": 1.0}
    chip = replace(targets.load("rk3588"), on_cpu=fallen_back(net, judged(net, where)))
    found = fallback(net, where, cost_model(chip), rows_of(net, chip), Precision.INT8, chip.operating_points[-1], "")
    assert [s.refused for s in found.segments] == [("e",)] and found.split == ("c1",) and found.possible == 0


@given(graphs())
def test_the_shares_of_a_segment_add_up_to_one_hand_over(case: tuple[Network, dict[int, set[int]], set[str]]) -> None:
    net, _, members = case
    shares = fallen_back(net, judged(net, {k.name: CPU if k.name in members else NPU for k in net.kernels}))[Precision.INT8]
    assert set(shares) == members
    for part in parts_of(net, members):
        assert sum(shares[k] for k in part) == pytest.approx(1.0)


def test_a_cpu_has_nothing_to_hand_over_and_an_unlisted_target_tells_nothing() -> None:
    net = chain()
    mcu, apu = targets.load("stm32h7"), targets.load("mediatek-apu")
    alone = fallback(net, dict.fromkeys([k.name for k in net.kernels], CPU), cost_model(mcu), (), Precision.INT8, mcu.operating_points[-1], "")
    assert not alone.segments and "no NPU" in alone.note
    unknown = fallback(net, dict.fromkeys([k.name for k in net.kernels], Placement.UNKNOWN), cost_model(apu), (), Precision.INT8, apu.operating_points[-1], "")
    assert unknown.possible is None and "cannot be told" in unknown.note


def test_operators_of_unknown_support_count_as_possible_segments_only() -> None:
    chip, net = targets.load("hexagon"), chain()
    where = {k.name: Placement.UNKNOWN if k.name == "e" else NPU for k in net.kernels}
    found = fallback(net, where, cost_model(chip), (), Precision.INT8, chip.operating_points[-1], "")
    assert not found.segments and found.possible == 1
