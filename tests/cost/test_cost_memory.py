"""Memory: no two live tensors overlap, the plan reaches its bound where it can, many plans agree with one."""

from __future__ import annotations

import numpy as np
from cost_networks import branched, conv, network
from hypothesis import given
from hypothesis import strategies as st

from qbench.cost import CostTable
from qbench.cost.memory import Lifetime, lifetimes, live_bound, place
from qbench.network import Kernel, Precision
from qbench.targets import load

TABLE = CostTable.build(branched(), load("rk3588"))
buffers = st.lists(st.tuples(st.integers(1, 1000), st.integers(0, 12), st.integers(0, 6)), max_size=25).map(
    lambda rows: [Lifetime(f"b{i}", size, first, first + length) for i, (size, first, length) in enumerate(rows)])


@given(buffers)
def test_live_tensors_never_overlap_and_the_bound_holds(found: list[Lifetime]) -> None:
    placed = place(found)
    assert {p.buffer.name for p in placed} == {b.name for b in found}
    for i, p in enumerate(placed):
        assert p.offset_bytes >= 0
        for q in placed[:i]:
            together = p.buffer.first <= q.buffer.last and q.buffer.first <= p.buffer.last
            assert not together or p.end_bytes <= q.offset_bytes or q.end_bytes <= p.offset_bytes
    assert live_bound(found) <= max((p.end_bytes for p in placed), default=0) <= sum(b.size_bytes for b in found)


def test_touching_lifetimes_do_not_share() -> None:
    """[0, 5] and [3, 8] live together on 3..5; [0, 2] and [3, 8] never do."""
    def arena(first: Lifetime, second: Lifetime) -> int:
        return max(p.end_bytes for p in place([first, second]))
    assert arena(Lifetime("a", 100, 0, 5), Lifetime("b", 100, 3, 8)) == 200
    assert arena(Lifetime("a", 100, 0, 3), Lifetime("b", 100, 3, 8)) == 200
    assert arena(Lifetime("a", 100, 0, 2), Lifetime("b", 100, 3, 8)) == 100


def test_the_tightest_gap_is_taken() -> None:
    """Behind two buffers that die at step 0 are gaps of 90 and 70 bytes: a buffer of 55 goes into the smaller one."""
    base = [Lifetime("a", 100, 0, 3), Lifetime("gap90", 90, 0, 0), Lifetime("b", 80, 0, 3), Lifetime("gap70", 70, 0, 0), Lifetime("c", 60, 0, 3)]
    at = {p.buffer.name: p.offset_bytes for p in place([*base, Lifetime("new", 55, 2, 3)])}
    assert (at["gap90"], at["gap70"], at["new"]) == (100, 270, 270)


@given(st.integers(0, 2**32 - 1))
def test_many_plans_at_once_give_the_bound_of_each(seed: int) -> None:
    codes = np.random.default_rng(seed).integers(0, 3, (12, len(TABLE.units)))
    peaks = TABLE.price_arrays(codes, "1000MHz").peak_bytes
    for row, peak in zip(codes, peaks, strict=True):
        one = TABLE.memory(row)
        assert peak == one.weight_bytes + one.lower_bound_bytes
        assert one.lower_bound_bytes <= one.arena_bytes


def test_sizes_by_hand() -> None:
    """mobilenet_v2-like pair at 112 x 112 int8: a convolution stores 32 channels as 32, a depthwise one as a group of 64.

    Source: feature table of rknn-toolkit2 2.5.0: [1,16,32,32] takes 0x8000 behind a convolution, 0x10000 behind a depthwise one.
    """
    kernels = [conv("a", "image", "x", 3, 16, 32), conv("b", "x", "y", 16, 16, 32, groups=16), conv("c", "y", "z", 16, 16, 32, kernel=1)]
    shapes = {"image": (1, 3, 64, 64), "x": (1, 16, 32, 32), "y": (1, 16, 32, 32), "z": (1, 16, 32, 32)}
    table = CostTable.build(network(kernels, shapes, ("image",), ("z",)), load("rk3588"))
    size = {p.buffer.name: p.buffer.size_bytes for p in table.memory(table.uniform(Precision.INT8)).placed}
    assert size == {"image": 0x3000, "x": 0x8000, "y": 0x10000, "z": 0x8000}
    assert table.memory(table.uniform(Precision.INT8)).arena_bytes == 0x18000


def test_conversions_hold_a_second_copy() -> None:
    uniform, mixed = np.zeros(4, dtype=np.int64), np.array([2, 0, 0, 0])
    copies = [p for p in TABLE.memory(mixed).placed if " as " in p.buffer.name]
    assert [p.buffer.name for p in copies] == ["stem as int8 for b"]
    assert (copies[0].buffer.first, copies[0].buffer.last) == (1, 2)              # b and c read it
    assert not [p for p in TABLE.memory(uniform).placed if " as " in p.buffer.name]


def test_lifetimes_reach_from_the_writer_to_the_last_reader_and_outputs_stay() -> None:
    shapes = {"x": (1, 16, 4, 4), "a": (1, 16, 4, 4), "b": (1, 256), "c": (1, 256)}
    kernels = [conv("k0", "x", "a", 16, 16, 4), Kernel("k1", "Flatten", "reshape", ("k1",), ("a",), ("b",)),
               Kernel("k2", "Sigmoid", "activation", ("k2",), ("b",), ("c",), activation="Sigmoid")]
    net = network(kernels, shapes, ("x",), ("a", "c"))
    assert lifetimes(net) == {"x": (0, 0), "a": (0, 2), "c": (2, 2)}               # b shares a's bytes
    assert live_bound([]) == 0
