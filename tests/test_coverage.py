"""The coverage report: every operator, its precision and the reason (BUG case B23)."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import onnx
import pytest
from models import Array, node, plan, prepare
from numpy.typing import ArrayLike
from odd_models import Samples, info, odd_model, prepared_of

from qbench import targets
from qbench.coverage import Coverage, coverage, coverage_from_dict
from qbench.network import Network, Precision
from qbench.plan import Granularity, Plan
from qbench.report.coverage_text import coverage_line, name, percent, reasons
from qbench.workbench import Plans, allowed_precisions, statistics_of
from qbench.workbench.plans import schemes_of

RNG = np.random.default_rng(0)
INT8, INT16, FP16 = Precision.INT8, Precision.INT16, Precision.FP16


def mixed() -> onnx.ModelProto:
    """Two convolutions of 3456 and 2304 MACs, a residual Add, an Exp, a layer normalisation in seven operators."""
    nodes = [node("Conv", ["x", "w"], ["a"], "stem", pads=[1, 1, 1, 1]), node("Relu", ["a"], ["b"]), node("Conv", ["b", "v"], ["c"], "second", pads=[1, 1, 1, 1]),
             node("Add", ["c", "b"], ["d"], "residual"), node("Exp", ["d"], ["e"], "grow"), node("ReduceMean", ["e", "last"], ["m"], "n1"),
             node("Sub", ["e", "m"], ["f"], "n2"), node("Mul", ["f", "f"], ["g"], "n3"), node("ReduceMean", ["g", "last"], ["h"], "n4"),
             node("Add", ["h", "eps"], ["i"], "n5"), node("Sqrt", ["i"], ["j"], "n6"), node("Div", ["f", "j"], ["y"], "n7")]
    weights: dict[str, ArrayLike] = {
        "w": RNG.normal(0, 0.1, (4, 3, 3, 3)).astype(np.float32), "v": RNG.normal(0, 0.1, (4, 4, 3, 3)).astype(np.float32), "last": np.array([-1]),
        "eps": np.float32(1e-5)}
    return odd_model(nodes, [info("x", [1, 3, 4, 8])], [info("y", [1, 4, 4, 8])], weights, opset=18)


def planned(model: onnx.ModelProto, precision: Precision, feeds: dict[str, Array]) -> tuple[Network, Plan]:
    """As `qbench quantize` plans: `precision` where it is allowed, with the reasons as notes elsewhere."""
    prepared = prepared_of(model)
    statistics, chip = statistics_of(prepared, Samples(feeds)), targets.load("rk3588")
    options, why = allowed_precisions(prepared.network, statistics, chip, None)
    chosen = {u: precision if precision in p else FP16 for u, p in options.items()}
    made = Plans(prepared.network, statistics, schemes_of(chip, None))(chosen, "minmax", Granularity.PER_CHANNEL, "")
    return prepared.network, replace(made, notes={u: r for u, r in why.items() if chosen[u] is not precision})


X = {"x": RNG.normal(size=(1, 3, 4, 8)).astype(np.float32)}


def test_every_operator_has_one_row_in_order() -> None:
    network, made = planned(mixed(), INT8, X)
    found = coverage(network, made)
    assert [(r.node, r.op) for r in found.rows if r.node.startswith(("stem", "second", "res", "grow"))] == [
        ("stem", "Conv"), ("second", "Conv"), ("residual", "Add"), ("grow", "Exp")]
    assert sorted(r.node for r in found.rows) == sorted(n for k in network.kernels for n in k.nodes)
    assert len(found.rows) == 12 and found.lowest is INT8


def test_reasons_are_those_of_the_units() -> None:
    found = coverage(*planned(mixed(), INT8, X))
    by_node = {r.node: r for r in found.rows}
    assert by_node["stem"].reason == "" and by_node["residual"].precision is INT8
    assert by_node["grow"].reason.startswith("Exp: its range grows without bound")
    assert all("normalisation written as 7 operators ('n1' to 'n7')" in by_node[f"n{i}"].reason for i in range(1, 8))
    assert len(reasons(found)) == 2 and reasons(found)[by_node["n1"].reason] == [f"n{i}" for i in range(1, 8)]


def test_shares_add_up() -> None:
    """Both convolutions are integers, and they are all the MACs there are; 4 of 12 operators."""
    network, made = planned(mixed(), INT8, X)
    found = coverage(network, made)
    assert network.macs == 4 * 8 * (4 * 27 + 4 * 36) == sum(r.macs for r in found.rows)
    assert {s.precision: (s.operators, s.macs) for s in found.shares} == {INT8: (4, network.macs), FP16: (8, 0)}
    assert found.quantized_macs == 1.0 and found.quantized_operators == pytest.approx(4 / 12)
    assert sum(s.operators_share for s in found.shares) == pytest.approx(1.0)


def test_what_the_plan_raised_says_so() -> None:
    network, made = planned(mixed(), INT8, X)
    unit = network.unit_of_kernel["second"]
    for precision in (INT16, FP16):
        found = coverage(network, replace(made, precision={**made.precision, unit: precision}))
        row = next(r for r in found.rows if r.node == "second")
        assert row.reason == f"raised by the plan: {precision} in place of int8"
        assert found.quantized_macs == pytest.approx(1.0 if precision is INT16 else 108 / (108 + 144))
    wide = coverage(network, replace(made, precision={u: INT16 if p is INT8 else p for u, p in made.precision.items()}))
    assert wide.lowest is INT16 and next(r for r in wide.rows if r.node == "stem").reason == ""


def test_a_plan_without_integers_says_so() -> None:
    network, made = planned(mixed(), FP16, X)
    found = coverage(network, made)
    assert found.lowest is None and found.quantized_macs == 0.0 and found.quantized_operators == 0.0
    assert next(r for r in found.rows if r.node == "stem").reason == "the plan keeps everything in fp16"


def test_overflow_and_never_observed_reach_the_report() -> None:
    model = odd_model([node("Exp", ["x"], ["e"], "grow"), node("NonZero", ["x"], ["n"], "where"), node("Transpose", ["n"], ["t"], "turn"),
                       node("GatherND", ["x", "t"], ["g"], "pick"), node("Relu", ["g"], ["y"], "relu")],
                      [info("x", [1, 4])], [info("y", ["n"]), info("e", [1, 4])])
    network, made = planned(model, INT8, {"x": np.zeros((1, 4), np.float32)})
    assert "never observed" in next(r.reason for r in coverage(network, made).rows if r.node == "relu")
    network, made = planned(model, INT8, {"x": np.full((1, 4), 11, np.float32)})
    assert "FP16 could overflow" in next(r.reason for r in coverage(network, made).rows if r.node == "grow")


@pytest.mark.parametrize(("op", "gates"), [("LSTM", 4), ("GRU", 3)])
def test_a_recurrent_layer_alone_is_not_covered_and_not_silent(op: str, gates: int) -> None:
    """B23: LSTM(3 -> 5) alone, GRU alone. The plan lists it with the reason, the coverage is 0 %."""
    weights = {"w": RNG.normal(size=(1, gates * 5, 3)).astype(np.float32), "r": RNG.normal(size=(1, gates * 5, 5)).astype(np.float32)}
    model = odd_model([node(op, ["x", "w", "r"], ["y"], "rnn", hidden_size=5)], [info("x", [4, 1, 3])], [info("y", [4, 1, 1, 5])], weights)
    network, made = planned(model, INT8, {"x": RNG.normal(size=(4, 1, 3)).astype(np.float32)})
    found = coverage(network, made)
    (row,) = found.rows
    assert (row.node, row.precision, row.macs) == ("rnn", FP16, gates * 5 * (3 + 5) * 4)
    assert row.reason.startswith(f"{op}: recurrent state: no integer kernel")
    assert found.quantized_macs == 0.0 and coverage_line(found).startswith("0.0 % of the multiply-accumulates and 0 of 1 operators")
    assert made.notes == {"rnn": network.units[0].reason}


def test_names_of_the_users_file() -> None:
    weights = {f"w{i}": RNG.normal(size=(3, 3, 1, 1)).astype(np.float32) for i in range(3)}
    model = odd_model([node("Conv", ["x" if i == 0 else f"t{i}", f"w{i}"], ["y" if i == 2 else f"t{i + 1}"], n) for i, n in enumerate(("a", "a", ""))],
                      [info("x", [1, 3, 2, 2])], [info("y", [1, 3, 2, 2])], weights)
    prepared = prepare(model)
    found = coverage(prepared.network, plan(prepared, {}, base=FP16))
    assert [r.original for r in found.rows] == ["a", "a", ""]
    assert name(found.rows[0]) == "a"
    assert name(found.rows[1]).endswith(" (in the file: a)") and name(found.rows[2]).endswith(" (in the file: unnamed)")


def test_json_and_a_choice_of_nodes() -> None:
    network, made = planned(mixed(), INT8, X)
    found = coverage(network, made, ["stem", "grow"])
    body = json.loads(json.dumps(found.to_dict()))
    assert coverage_from_dict(body) == found
    assert [r["node"] for r in body["rows"]] == ["stem", "grow"] and body["rows"][0]["precision"] == "int8"
    assert body["lowest"] == "int8" and body["quantized_macs"] == 1.0 and body["quantized_operators"] == 0.5
    assert set(body["rows"][0]) == {"node", "original", "op", "kernel", "unit", "precision", "reason", "macs"}
    with pytest.raises(AttributeError):
        found.rows[0].macs = 1   # type: ignore[misc]


def test_a_network_without_multiplications() -> None:
    prepared = prepare(odd_model([node("Relu", ["x"], ["y"], "relu")], [info("x", [1, 4])], [info("y", [1, 4])]))
    found = coverage(prepared.network, plan(prepared, {}, base=FP16))
    assert found.quantized_macs is None and "no operator multiplies" in coverage_line(found)
    empty = Coverage((), (), None)
    assert empty.quantized_macs is None and empty.quantized_operators == 0 and coverage_line(empty).startswith("0 of 0 operators")


@pytest.mark.parametrize(("share", "text"), [(None, "n/a"), (0.0, "0.0 %"), (1.0, "100.0 %"), (0.5, "50.0 %"), (0.99999, "> 99.9 %"), (1e-6, "< 0.1 %")])
def test_percentages_do_not_round_to_all_or_nothing(share: float | None, text: str) -> None:
    assert percent(share) == text
