"""Memory: no two live tensors overlap, the plan reaches its bound where it can, many plans agree with one."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from cost_networks import branched, conv, network
from hypothesis import given, settings
from hypothesis import strategies as st
from memory_networks import networks

from qbench.cost import CostTable
from qbench.cost.memory import (
    Lifetime,
    Placed,
    by_breadth,
    by_size,
    height,
    hill_climb,
    live_bound,
    place,
    place_as_run,
    place_in,
)
from qbench.network import Network, Precision
from qbench.targets import load

TABLE = CostTable.build(branched(), load("rk3588"))
PLACEMENTS: dict[str, Callable[[list[Lifetime]], tuple[Placed, ...]]] = {"size": lambda b: place_in(by_size(b)), "breadth": lambda b: place_in(by_breadth(b)), "climb": lambda b: hill_climb(by_size(b), live_bound(b)),
              "as run": place_as_run, "smallest": lambda b: place(b)[0]}
buffers = st.lists(st.tuples(st.integers(1, 1000), st.integers(0, 12), st.integers(0, 6)), max_size=18).map(
    lambda rows: [Lifetime(f"b{i}", size, first, first + length) for i, (size, first, length) in enumerate(rows)])


def check_apart(placed: tuple[Placed, ...]) -> None:
    for i, p in enumerate(placed):
        assert p.offset_bytes >= 0
        for q in placed[:i]:
            assert not p.buffer.meets(q.buffer) or p.end_bytes <= q.offset_bytes or q.end_bytes <= p.offset_bytes


@pytest.mark.parametrize("name", PLACEMENTS)
@settings(max_examples=40)
@given(found=buffers)
def test_live_tensors_never_overlap_and_the_bound_holds(name: str, found: list[Lifetime]) -> None:
    placed = PLACEMENTS[name](found)
    assert sorted(p.buffer.name for p in placed) == sorted(b.name for b in found)
    check_apart(placed)
    assert live_bound(found) <= height(placed) <= sum(b.size_bytes for b in found)


@settings(max_examples=40)
@given(buffers)
def test_the_smallest_placement_is_kept_and_found_again(found: list[Lifetime]) -> None:
    placed, strategy = place(found)
    assert height(placed) <= min(height(PLACEMENTS[n](found)) for n in ("size", "breadth"))
    assert strategy in ("greedy by size", "greedy by breadth", "hill climbing")
    assert place(found) == (placed, strategy)


@given(buffers, st.integers(1, 1000), st.integers(0, 12), st.integers(0, 6))
def test_one_more_tensor_never_lowers_the_bound(found: list[Lifetime], size: int, first: int, length: int) -> None:
    assert live_bound([*found, Lifetime("new", size, first, first + length)]) >= live_bound(found)


def test_hill_climbing_finds_what_greedy_misses() -> None:
    """Seven buffers, found by a seeded search: both greedy orders leave a hole, moving buffers forward closes it to the bound."""
    rows = next(rows for rows in (np.random.default_rng(s).integers([1, 0, 0], [9, 6, 4], (7, 3)) for s in range(400))
                if place([Lifetime(str(i), int(a), int(f), int(f + n)) for i, (a, f, n) in enumerate(rows)])[1] == "hill climbing")
    found = [Lifetime(str(i), int(a), int(f), int(f + n)) for i, (a, f, n) in enumerate(rows)]
    assert live_bound(found) <= height(place(found)[0]) < min(height(place_in(by_size(found))), height(place_in(by_breadth(found))))


def test_touching_lifetimes_do_not_share() -> None:
    """[0, 5] and [3, 8] live together on 3..5; [0, 2] and [3, 8] never do."""
    def arena(first: Lifetime, second: Lifetime) -> int:
        return height(place([first, second])[0])
    assert arena(Lifetime("a", 100, 0, 5), Lifetime("b", 100, 3, 8)) == 200
    assert arena(Lifetime("a", 100, 0, 3), Lifetime("b", 100, 3, 8)) == 200
    assert arena(Lifetime("a", 100, 0, 2), Lifetime("b", 100, 3, 8)) == 100


def test_the_tightest_gap_is_taken() -> None:
    """Behind two buffers that die at step 0 are gaps of 90 and 70 bytes: a buffer of 55 goes into the smaller one."""
    base = [Lifetime("a", 100, 0, 3), Lifetime("gap90", 90, 0, 0), Lifetime("b", 80, 0, 3), Lifetime("gap70", 70, 0, 0), Lifetime("c", 60, 0, 3)]
    at = {p.buffer.name: p.offset_bytes for p in place_in(by_size([*base, Lifetime("new", 55, 2, 3)]))}
    assert (at["gap90"], at["gap70"], at["new"]) == (100, 270, 270)


@pytest.mark.parametrize("target", ["rk3588", "hexagon", "stm32h7"])
@settings(max_examples=30, deadline=None)
@given(net=networks(), seed=st.integers(0, 2**32 - 1))
def test_the_price_of_a_plan_never_asks_for_more_memory_than_the_plan(target: str, net: Network, seed: int) -> None:
    table = CostTable.build(net, load(target))
    codes = np.random.default_rng(seed).integers(0, len(table.available), (4, len(table.units)))
    peaks = table.price_arrays(codes, table.op_points[-1]).peak_bytes
    for row, peak in zip(codes, peaks, strict=True):
        one = table.memory(row)
        check_apart(one.placed)
        assert peak <= one.weight_bytes + one.lower_bound_bytes
        assert one.lower_bound_bytes <= one.smallest_bytes <= one.arena_bytes
        held = {p.buffer.name for p in one.placed} | set(one.aliases)
        built = {t for k in net.kernels for t in k.outputs} - {k.outputs[0] for k in net.kernels if k.kind == "concat"}
        assert built - held <= moved_to_another_kernel(net)


def moved_to_another_kernel(net: Network) -> set[str]:
    """Outputs that the RKNN toolkit never stores: of a convolution that it runs behind the one whose sum it adds."""
    return {t for k in net.kernels if len(k.inputs) == 2 for t in k.inputs[1:]}


def test_sizes_by_hand() -> None:
    """mobilenet_v2-like pair at 112 x 112 int8: a convolution stores 32 channels as 32, a depthwise one as a group of 64.

    Source: feature table of rknn-toolkit2 2.5.0: [1,16,32,32] takes 0x8000 behind a convolution, 0x10000 behind a depthwise one.
    """
    kernels = [conv("a", "image", "x", 3, 16, 32), conv("b", "x", "y", 16, 16, 32, groups=16), conv("c", "y", "z", 16, 16, 32, kernel=1)]
    shapes = {"image": (1, 3, 64, 64), "x": (1, 16, 32, 32), "y": (1, 16, 32, 32), "z": (1, 16, 32, 32)}
    table = CostTable.build(network(kernels, shapes, ("image",), ("z",)), load("rk3588"))
    size = {p.buffer.name: p.buffer.size_bytes for p in table.memory(table.uniform(Precision.INT8)).placed}
    assert size == {"image": 0x3000, "x": 0x8000, "y": 0x10000, "z": 0x8000}
    plan = table.memory(table.uniform(Precision.INT8))
    assert (plan.arena_bytes, plan.strategy) == (0x1b000, "rknn-toolkit2")     # 0x3000 + 0x8000 + 0x10000, the hole of image and x fits z
    assert plan.smallest_bytes == plan.lower_bound_bytes == 0x18000


def test_conversions_hold_a_second_copy() -> None:
    uniform, mixed = np.zeros(4, dtype=np.int64), np.array([2, 0, 0, 0])
    for target, copy in (("rk3588", "stem as int8 for b"), ("hexagon", "stem as int8 for b")):
        table = CostTable.build(branched(), load(target))
        assert table.available[2] is Precision.FP16
        copies = [p for p in table.memory(mixed).placed if " as " in p.buffer.name]
        assert [p.buffer.name for p in copies] == [copy]                       # b and c read it
        assert not [p for p in table.memory(uniform).placed if " as " in p.buffer.name]
