"""From statistics to plans: fixed outputs, choices, overrides, and what goes into every plan."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np
import onnx
import pytest
from models import Array, model, node, prepare

from qbench import calibrators, qdq
from qbench.affine import Range, Scheme, affine
from qbench.errors import PlanError
from qbench.graph import PreparedModel
from qbench.network import Precision
from qbench.packed import Packed
from qbench.plan import BIAS_GUARD, Granularity, Plan
from qbench.protocols import Batch
from qbench.runtime import Session
from qbench.schemes import quant_scheme
from qbench.statistics import Statistics
from qbench.target import QuantScheme
from qbench.workbench.plans import Plans, makers, ranges_of, statistics_of

INT8, INT16 = Precision.INT8, Precision.INT16
W = "int8:symmetric,narrow"
BOTH = {"int8": quant_scheme("uint8", W), "int16": quant_scheme("uint16", "int16:symmetric")}


@dataclass(frozen=True)
class Rows:
    """Eight samples of [4, 8]."""

    name: str = "rows"
    key: str = "rows"

    def __len__(self) -> int:
        return 8

    def batches(self, size: int = 1) -> Iterator[Batch]:
        data = np.random.default_rng(0).normal(0, 2, (8, 4, 8)).astype(np.float32)
        for first in range(0, 8, size):
            yield Batch({"x": data[first:first + size]}, None, first)


def attention(weights: Mapping[str, Array] | None = None) -> onnx.ModelProto:
    """MatMul(8x8) -> Softmax, whose output meets a computed tensor in a Concat; and a Sigmoid that nothing meets."""
    w = weights or {"w": np.random.default_rng(1).normal(0, 0.5, (8, 8)).astype(np.float32)}
    nodes = [node("MatMul", ["x", "w"], ["m"], "mm"), node("Softmax", ["m"], ["s"], "softmax", axis=-1), node("MatMul", ["s", "w"], ["n"], "out"),
             node("Sigmoid", ["n"], ["g"], "sigmoid"), node("Tanh", ["g"], ["t"], "tanh"), node("Softmax", ["n"], ["q"], "probabilities", axis=-1),
             node("Concat", ["q", "n"], ["y"], "cat", axis=-1)]
    return model(nodes, {"x": ["N", 4, 8]}, {"y": None, "t": None}, w)


PREPARED = prepare(attention())
STATISTICS = statistics_of(PREPARED, Rows())


def planned(prepared: PreparedModel = PREPARED, statistics: Statistics = STATISTICS, precision: Precision = INT8, calibrator: str = "minmax",
            schemes: Mapping[str, QuantScheme] = BOTH, **options: object) -> Plan:
    plans = Plans(prepared.network, statistics, schemes, **options)                     # type: ignore[arg-type]
    return plans({u.name: precision if u.quantizable else Precision.FP16 for u in prepared.network.units}, calibrator, Granularity.PER_CHANNEL, "")


@pytest.mark.parametrize(("style", "activation", "scale", "zero_point"), [
    ("unit", "uint8", 1 / 255, 0), ("unit", "int8", 1 / 255, -128), ("unit", "uint16", 1 / 65535, 0), ("unit", "int16", 1 / 65535, -32768),
    ("half-open", "int8", 1 / 256, -128), ("half-open", "int16", 1 / 32768, 0), ("half-open", "int16:symmetric", 1 / 32768, 0)])
def test_a_softmax_is_stored_as_the_convention_says(style: str, activation: str, scale: float, zero_point: int) -> None:
    """B12, read from the written file: MatMul(8x8) -> Softmax at all four widths."""
    precision = INT16 if "16" in activation else INT8
    made = planned(precision=precision, schemes={str(precision): quant_scheme(activation, W)}, fixed_outputs=style)
    found = qdq.write(PREPARED, made).model
    pairs = {str(n.inputs[0].name): (n.inputs[1], n.inputs[2]) for n in found.graph if n.op_type == "QuantizeLinear" and n.inputs[0] is not None}
    for tensor in ("s", "g"):
        held = [v.const_value.numpy() for v in pairs[tensor] if v is not None and v.const_value is not None]
        assert held[0] == np.float32(scale) and held[1] == zero_point
    assert Session(qdq.to_bytes(found), 1).run({"x": np.ones((1, 4, 8), np.float32)})["y"].shape == (1, 4, 16)


def test_a_mixed_group_takes_the_union_and_other_ranges_stay() -> None:
    plain, fixed = planned(), planned(fixed_outputs="unit")
    assert fixed.ranges["s"] == fixed.ranges["g"] == Range(0.0, 1.0) != plain.ranges["s"]
    group = PREPARED.network.group_of["q"].name
    assert PREPARED.network.group_of["n"].name == group
    assert fixed.ranges[group] == Range(min(0.0, plain.ranges[group].low), max(1.0, plain.ranges[group].high))
    assert {g: r for g, r in fixed.ranges.items() if g not in ("s", "g", group)} == {g: r for g, r in plain.ranges.items() if g not in ("s", "g", group)}
    assert planned(fixed_outputs="half-open").ranges["t"] == Range(-1.0, 127 / 128) != plain.ranges["t"]


def test_fixed_outputs_are_a_step_of_the_plan_that_can_be_switched_off() -> None:
    assert planned().corrections == (BIAS_GUARD,)
    assert planned(fixed_outputs="unit").corrections == ("fixed-outputs", BIAS_GUARD)
    assert planned(fixed_outputs="unit", corrections=()).corrections == ("fixed-outputs",)
    assert planned(fixed_outputs="unit", corrections=("mask", "fixed-outputs", BIAS_GUARD, "bias")).corrections == ("mask", "fixed-outputs", BIAS_GUARD, "bias")
    assert planned(corrections=("mask", "fixed-outputs", BIAS_GUARD)).corrections == ("mask", BIAS_GUARD)      # the target prescribes nothing
    relu = prepare(model([node("Relu", ["x"], ["y"], "r")], {"x": ["N", 4, 8]}, {"y": None}, {}))
    assert planned(relu, statistics_of(relu, Rows()), fixed_outputs="unit").corrections == (BIAS_GUARD,)


def test_eight_and_sixteen_bits_each_have_their_own_prescription() -> None:
    """Half-open: [0, 255/256] for int8, [-1, 1) for int16; where an 8-bit unit touches the tensor, its range counts."""
    schemes = {"int8": quant_scheme("int8", W), "int16": quant_scheme("int16", W)}
    eight, sixteen = (planned(precision=p, schemes=schemes, fixed_outputs="half-open") for p in (INT8, INT16))
    assert affine(eight.ranges["s"], Scheme(8, True, False)).scale == 1 / 256
    assert affine(sixteen.ranges["s"], Scheme(16, True, False)).scale == 1 / 32768


def test_fixed_outputs_of_kernels_are_those_of_their_last_operator() -> None:
    """Conv+Sigmoid ends in a Sigmoid; in a Swish the inner Sigmoid is one, the product is not."""
    w = np.ones((2, 2, 1, 1), np.float32)
    nodes = [node("Conv", ["x", "w"], ["a"], "one"), node("Sigmoid", ["a"], ["b"], "gate"), node("Conv", ["b", "w"], ["c"], "two"),
             node("Sigmoid", ["c"], ["d"], "swish"), node("Mul", ["c", "d"], ["y"], "mul")]
    network = prepare(model(nodes, {"x": [1, 2, 4, 4]}, {"y": None}, {"w": w})).network
    assert [k.op for k in network.kernels] == ["Conv+Sigmoid", "Conv+Sigmoid+Mul"]
    assert makers(network) == {"a": "Conv", "b": "Sigmoid", "c": "Conv", "d": "Sigmoid", "y": "Mul"}


def test_auto_takes_the_choice_of_each_group_and_decides_itself_elsewhere() -> None:
    made = planned(calibrator="auto", choices={"m": "percentile:p=90", "x": "minmax"})
    assert made.calibrator == "auto"
    assert made.ranges["m"] == planned(calibrator="percentile:p=90").ranges["m"] != planned().ranges["m"]
    assert made.ranges["x"] == planned().ranges["x"]
    assert made.ranges["t"] == planned(calibrator="auto").ranges["t"]
    assert planned(choices={"m": "percentile:p=90"}).ranges["m"] == planned().ranges["m"]     # only "auto" asks for choices


def test_an_override_wins_over_calibrated_and_fixed_ranges() -> None:
    made = planned(fixed_outputs="unit", overrides={"m": Range(-3.0, 3.0), "s": Range(0.0, 0.5)})
    assert made.ranges["m"] == Range(-3.0, 3.0) and made.ranges["s"] == Range(0.0, 0.5) and made.ranges["g"] == Range(0.0, 1.0)
    with pytest.raises(PlanError, match="a range was given for 'nothing', which leads no scale group"):
        planned(overrides={"nothing": Range(0.0, 1.0)})


def test_what_the_steps_found_goes_into_every_plan() -> None:
    tensors = {"bias:mm": Packed.of(np.ones(8, np.float32))}
    made = planned(corrections=(BIAS_GUARD, "bias"), tensors=tensors)
    assert made.tensors == tensors and made.corrections == (BIAS_GUARD, "bias")


def test_a_changed_copy_computes_its_own_ranges() -> None:
    plans = Plans(PREPARED.network, STATISTICS, BOTH)
    precision = {u.name: INT8 if u.quantizable else Precision.FP16 for u in PREPARED.network.units}
    before = plans(precision, "minmax", Granularity.PER_CHANNEL, "")
    other = replace(plans, overrides={"m": Range(-1.0, 1.0)}, fixed_outputs="unit")(precision, "minmax", Granularity.PER_CHANNEL, "")
    assert other.ranges["m"] == Range(-1.0, 1.0) and other.ranges["s"] == Range(0.0, 1.0)
    assert plans(precision, "minmax", Granularity.PER_CHANNEL, "") == before


def test_symmetric_schemes_are_calibrated_as_such() -> None:
    """The range that kl finds depends on whether its codes lie around zero."""
    symmetric = {"int8": quant_scheme("int8:symmetric", W)}
    found = planned(calibrator="kl", schemes=symmetric).ranges
    direct = ranges_of(PREPARED.network, STATISTICS, calibrators.make("kl"), 256, True)
    assert all(found[g] == direct[g] for g in found)
