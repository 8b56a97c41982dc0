"""The table: linear parts, plans and per-kernel rows are three views of one sum."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from cost_networks import branched, conv, network, plan_of
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from qbench.cost import CostTable
from qbench.errors import PlanError, PrecisionUnavailable, TargetError
from qbench.network import Kernel, Network, Precision
from qbench.targets import load

INT8, INT16, FP16 = Precision.INT8, Precision.INT16, Precision.FP16
TABLES = {name: CostTable.build(branched(), load(name)) for name in ("rk3588", "host")}
TABLE = TABLES["rk3588"]
UNITS = len(TABLE.units)
TOP = "1000MHz"


def codes_of(table: CostTable, seed: int, plans: int = 20) -> NDArray[np.int64]:
    return np.random.default_rng(seed).integers(0, len(table.precisions), (plans, len(table.units)))


def by_hand(table: CostTable, codes: NDArray[np.int64], op_point: str) -> tuple[float, float]:
    """Seconds and joules of one plan as the linear program adds them."""
    seconds, joules = table.fixed(op_point)
    unit = table.unit_costs(op_point)
    for u, p in enumerate(codes):
        seconds, joules = seconds + unit.seconds[u, p], joules + unit.joules[u, p]
    for pair in table.pair_costs(op_point):
        seconds += pair.seconds[codes[pair.a], codes[pair.b]]
        joules += pair.joules[codes[pair.a], codes[pair.b]]
    return seconds, joules


@pytest.mark.parametrize("name", TABLES)
@given(seed=st.integers(0, 2**32 - 1), data=st.data())
def test_price_equals_the_linear_parts(name: str, seed: int, data: st.DataObject) -> None:
    table = TABLES[name]
    codes, op_point = codes_of(table, seed), data.draw(st.sampled_from(table.op_points))
    prices = table.price_arrays(codes, op_point)
    for i, row in enumerate(codes):
        assert (prices.latency_s[i], prices.energy_j[i]) == pytest.approx(by_hand(table, row, op_point), rel=1e-12)


@pytest.mark.parametrize("name", TABLES)
@given(seed=st.integers(0, 2**32 - 1), data=st.data())
def test_kernel_rows_add_up_to_the_price(name: str, seed: int, data: st.DataObject) -> None:
    table = TABLES[name]
    codes, op_point = codes_of(table, seed, 1), data.draw(st.sampled_from(table.op_points))
    price, rows = table.price(codes, op_point)[0], table.kernel_table(codes[0], op_point)
    assert sum(r.ms for r in rows) == pytest.approx(price.latency_ms, rel=1e-12)
    assert sum(r.mj for r in rows) == pytest.approx(price.energy_mj, rel=1e-12)
    assert price.power_w == pytest.approx(price.energy_mj / price.latency_ms, rel=1e-12)
    assert price.latency_ms_low <= price.latency_ms <= price.latency_ms_high


def test_one_at_a_time_and_in_chunks_give_the_same_prices() -> None:
    codes = codes_of(TABLE, 7, 4100)
    whole = TABLE.price_arrays(codes, TOP)
    for i in (0, 4095, 4096, 4099):
        assert TABLE.price_arrays(codes[i], TOP).latency_s[0] == whole.latency_s[i]
        assert TABLE.price_arrays(codes[i], TOP).peak_bytes[0] == whole.peak_bytes[i]
    assert TABLE.price(codes[:0], TOP) == []


def test_a_uniform_plan_converts_nothing_and_a_change_of_precision_once_per_edge() -> None:
    rows = TABLE.kernel_table(TABLE.uniform(INT8), TOP)
    assert [r.name for r in rows] == [k.name for k in TABLE.network.kernels]
    mixed = TABLE.codes(plan_of(TABLE.network, [INT8, FP16, INT8, INT8]))
    converted = [r for r in TABLE.kernel_table(mixed, TOP) if r.op == "Convert"]
    # unit b reads `stem` with two kernels and converts it once; d reads `both`, also as its residual, and converts it once
    assert [(r.name, r.unit, r.precision) for r in converted] == [("convert stem", "b", "int8 to fp16"), ("convert both", "d", "fp16 to int8")]


def test_an_image_read_by_two_units_is_converted_between_them_only_when_they_differ() -> None:
    kernels = [conv("a", "image", "x", 3, 16, 16), conv("b", "image", "y", 3, 16, 16)]
    net = network(kernels, {"image": (1, 3, 16, 16), "x": (1, 16, 16, 16), "y": (1, 16, 16, 16)}, ("image",), ("x", "y"))
    table = CostTable.build(net, load("rk3588"))
    (pair,) = table.pair_costs(TOP)
    assert (pair.a, pair.b) == (0, 1)
    assert np.all(np.diag(pair.seconds) == 0) and np.all(pair.seconds[~np.eye(3, dtype=bool)] > 0)


def test_edges_of_the_graph_are_charged_where_the_target_says_so() -> None:
    host = TABLES["host"]
    names = [r.name for r in host.kernel_table(host.uniform(INT8), "3000MHz")]
    assert names[-3:] == ["convert image", "convert out", "start of an inference"]
    names = [r.name for r in host.kernel_table(host.uniform(Precision.FP32), "3000MHz")]
    assert "convert image" not in names


def test_a_unit_that_has_to_stay_in_float_does_so_in_a_uniform_plan() -> None:
    base = branched()
    units = tuple(replace(u, quantizable=u.name != "d", reason="test" if u.name == "d" else "") for u in base.units)
    table = CostTable.build(replace(base, units=units), load("rk3588"))
    assert [table.precisions[c] for c in table.uniform(INT8)] == ["int8", "int8", "fp16", "int8"]
    assert table.allowed.tolist() == [[True, True, True], [True, True, True], [False, False, True], [True, True, True]]


def test_int16_has_the_price_of_fp16() -> None:
    prices = [TABLE.price(TABLE.uniform(p)[None], TOP)[0] for p in (INT16, FP16)]
    assert prices[0].latency_ms == pytest.approx(prices[1].latency_ms, rel=0.01)      # biases are wider
    int8 = TABLE.price(TABLE.uniform(INT8)[None], TOP)[0]
    assert int8.latency_ms < prices[1].latency_ms and int8.energy_mj < prices[1].energy_mj


def test_slower_points_take_longer_and_the_interval_is_the_targets() -> None:
    codes, target = TABLE.uniform(INT8)[None], TABLE.target
    times = [TABLE.price(codes, o)[0].latency_ms for o in TABLE.op_points]
    assert times == sorted(times, reverse=True)
    p = TABLE.price(codes, TOP)[0]
    assert p.latency_ms_low == pytest.approx(p.latency_ms * target.latency_factor_low)
    assert p.latency_ms_high == pytest.approx(p.latency_ms * target.latency_factor_high)
    with pytest.raises(TargetError, match="no operating point '1200MHz'; its table has 300MHz"):
        TABLE.price(codes, "1200MHz")


def test_codes_that_do_not_fit_are_refused() -> None:
    with pytest.raises(PlanError, match=r"expected \[plans, 4\]"):
        TABLE.price(np.zeros((2, 3), dtype=np.int64), TOP)
    with pytest.raises(PlanError, match="expected indices into int8, int16, fp16"):
        TABLE.price(np.full((1, UNITS), 3), TOP)
    with pytest.raises(PlanError, match="made for model"):
        TABLE.codes(replace(plan_of(TABLE.network, [INT8] * 4), model_key="1" * 64))


# -------------------------------------------------------------------------------------------- BUG case B24

def test_b24_int16_on_rk3588_depends_on_the_toolkit() -> None:
    """A precision that the toolkit lacks leaves the space before any plan is priced; a plan that holds it is refused."""
    target = load("rk3588")
    old, new = (CostTable.build(branched(), target, t) for t in ("2.3.2", "2.5.0"))
    assert (old.precisions, new.precisions) == (("int8", "fp16"), ("int8", "int16", "fp16"))
    plan = plan_of(branched(), [INT8, INT16, INT8, INT8])
    assert new.codes(plan).tolist() == [0, 1, 0, 0]
    with pytest.raises(PrecisionUnavailable, match=r"rk3588 does not offer int16 with toolkit 2\.3\.2: .*no 16-bit integer") as refused:
        old.codes(plan)
    assert refused.value.exit_code == 2
    with pytest.raises(PrecisionUnavailable, match=r"toolkit 2\.3\.2"):
        old.uniform(INT16)
    with pytest.raises(PrecisionUnavailable, match="host has no int16; it offers int8, fp32"):
        CostTable.build(branched(), load("host")).codes(plan)


def test_a_plan_cannot_make_a_float_unit_integer() -> None:
    net = branched()
    units = tuple(replace(u, quantizable=u.name != "d", reason="made so") for u in net.units)
    table = CostTable.build(replace(net, units=units), load("rk3588"))
    with pytest.raises(PlanError, match="unit 'd' cannot be int8: made so"):
        table.codes(plan_of(net, [INT8] * 4))


def test_a_network_of_one_kernel_and_of_data_movement_only() -> None:
    k = Kernel("r", "Reshape", "reshape", ("r",), ("x",), ("y",))
    net: Network = network([k], {"x": (1, 16, 4, 4), "y": (1, 256)}, ("x",), ("y",))
    table = CostTable.build(net, load("rk3588"))
    assert table.price(table.uniform(INT8)[None], TOP)[0].latency_ms > 0
    assert table.memory(table.uniform(INT8)).arena_bytes == 256      # the reshape shares the input's bytes
