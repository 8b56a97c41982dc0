"""The rules against what the real toolkit answered, and each limit from both sides."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from models import model, node
from single_operators import models, noise, resize, scalar, single, whole

from qbench import targets
from qbench.inspection.opening import spelled
from qbench.network import Precision
from qbench.placement.operators import operators_of
from qbench.placement.record import Operator, Placement
from qbench.targets.rules import BOOKS, rules_of
from qbench.targets.rules.rknn import data

INT8, FP16 = Precision.INT8, Precision.FP16
ANSWERS: dict[str, list[str]] = data()["asked"]["answers"]
MODELS = models()


def judged(model: onnx.ModelProto, precision: Precision = INT8, target: str = "rk3588", toolkit: str | None = None) -> Placement:
    """Where the only node of `model` runs."""
    chip = targets.load(target)
    file = spelled(ir.serde.deserialize_model(model))
    (op,) = operators_of(file.graph, file.opset_imports[""]).values()
    return rules_of(chip).judge(op, chip, precision, chip.toolkit(toolkit)).placement


def test_every_question_has_its_model() -> None:
    assert sorted(MODELS) == sorted(ANSWERS)
    assert len(ANSWERS) == 87


@pytest.mark.parametrize("name", sorted(ANSWERS))
def test_rknn_rules_predict_what_the_toolkit_answered(name: str) -> None:
    """Source: the build tables of rknn-toolkit2 2.5.0, kept in targets/rules/rknn.json."""
    assert [str(judged(MODELS[name], FP16)), str(judged(MODELS[name], INT8))] == ANSWERS[name]


def conv(**attributes: Any) -> onnx.ModelProto:
    k = attributes.pop("k", 3)
    depthwise = attributes.pop("depthwise", False)
    if depthwise:
        attributes["group"] = 16
    return single("Conv", {"w": noise(16, 1 if depthwise else 16, k, k)}, inputs=("x", "w"), **attributes)


# Source of the limits: RKNN compiler operator list 2.3.2; of those marked 2.5.0, the toolkit's own build tables of real networks.
SIDES = [
    ("kernel 31", conv(k=31), conv(k=33), None),
    ("stride 7", conv(k=9, strides=[7, 7]), conv(k=9, strides=[8, 8]), None),
    ("dilation 31", conv(dilations=[31, 31], shape=(1, 16, 96, 96)), conv(dilations=[32, 32], shape=(1, 16, 96, 96)), "2.3.2"),
    ("pad 15", conv(pads=[15] * 4), conv(pads=[16] * 4), "2.3.2"),
    ("depthwise kernel 8", conv(k=8, depthwise=True), conv(k=9, depthwise=True), "2.3.2"),
    ("transposed stride", single("ConvTranspose", {"w": noise(16, 8, 4, 4)}, inputs=("x", "w"), strides=[4, 4]),
     single("ConvTranspose", {"w": noise(16, 8, 3, 3)}, inputs=("x", "w"), strides=[3, 3]), None),
    ("max pool 7", single("MaxPool", kernel_shape=[7, 7]), single("MaxPool", kernel_shape=[9, 9]), None),
    ("average pool 7", single("AveragePool", kernel_shape=[7, 7]), single("AveragePool", kernel_shape=[9, 9]), "2.3.2"),
    ("ceil_mode", single("MaxPool", kernel_shape=[3, 3], strides=[2, 2]), single("MaxPool", kernel_shape=[3, 3], strides=[2, 2], ceil_mode=1), "2.3.2"),
    ("global pool 7", single("GlobalAveragePool", shape=(1, 16, 7, 7)), single("GlobalAveragePool", shape=(1, 16, 8, 8)), "2.3.2"),
    ("softmax axis", single("Softmax", axis=-1), single("Softmax", axis=2), None),
    ("slice step", single("Slice", {"a": whole(0), "e": whole(32), "x2": whole(2), "s": whole(1)}, inputs=("x", "a", "e", "x2", "s")),
     single("Slice", {"a": whole(0), "e": whole(32), "x2": whole(2), "s": whole(2)}, inputs=("x", "a", "e", "x2", "s")), None),
    ("gather", single("Gather", {"i": whole(1)}, inputs=("x", "i")), single("Gather", {"i": whole(1, 2).reshape(1, 2)}, inputs=("x", "i")), None),
    ("pow", single("Pow", {"e": scalar(3.0)}, inputs=("x", "e")), single("Pow", {"e": scalar(4.0)}, inputs=("x", "e")), "2.3.2"),
    ("resize factor", resize("nearest"), single("Resize", {"s": np.array([1, 1, 1.5, 1.5], np.float32)}, inputs=("x", "", "s")), None),
    ("resize corners", resize("linear", coordinate_transformation_mode="half_pixel"), resize("linear", coordinate_transformation_mode="align_corners"), "2.5.0"),
    ("pixel shuffle", single("DepthToSpace", blocksize=2), single("DepthToSpace", blocksize=2, mode="CRD"), "2.5.0"),
    ("quotient", single("Div", {"d": noise(16, 1, 1)}, inputs=("x", "d")), single("Div", inputs=("x", "z")), None),
    ("pad mode", single("Pad", {"p": whole(0, 0, 1, 1, 0, 0, 1, 1)}, inputs=("x", "p")), single("Pad", {"p": whole(0, 0, 1, 1, 0, 0, 1, 1)}, inputs=("x", "p"), mode="edge"), None),
]


@pytest.mark.parametrize("inside, outside, toolkit", [s[1:] for s in SIDES], ids=[s[0] for s in SIDES])
def test_a_limit_holds_on_one_side_and_not_on_the_other(inside: onnx.ModelProto, outside: onnx.ModelProto, toolkit: str | None) -> None:
    assert judged(inside, toolkit=toolkit) is Placement.NPU
    assert judged(outside, toolkit=toolkit) is Placement.CPU


@pytest.mark.parametrize("model", [conv(pads=[36] * 4, dilations=[36, 36]), conv(k=9, depthwise=True), single("MaxPool", kernel_shape=[3, 3], strides=[2, 2], ceil_mode=1), conv(k=32, strides=[32, 32])],
                         ids=["pads and dilations of deeplabv3", "kernel of convmixer", "ceil_mode of squeezenet", "patches of vit_base_patch32"])
def test_what_2_5_0_built_on_the_npu_beyond_the_list_of_2_3_2(model: onnx.ModelProto) -> None:
    """Source: build tables of rknn-toolkit2 2.5.0 for those networks: no convolution or pool of theirs is on the CPU."""
    assert judged(model, toolkit="2.5.0") is Placement.NPU
    assert judged(model, toolkit="2.3.2") is Placement.CPU


def test_layer_normalization_needs_its_epsilon_written_out() -> None:
    assert judged(single("LayerNormalization", {"s": noise(32)}, inputs=("x", "s"), epsilon=1e-5)) is Placement.NPU
    assert judged(single("LayerNormalization", {"s": noise(32)}, inputs=("x", "s"), epsilon=1e-5), toolkit="2.3.2") is Placement.CPU


def test_a_scatter_of_a_part_is_not_refused() -> None:
    part = single("ScatterND", {"i": whole(0).reshape(1, 1), "u": noise(1, 4)}, inputs=("x", "i", "u"), shape=(3, 4))
    assert judged(part) is Placement.CPU


@pytest.mark.parametrize("target", ["mediatek-apu", "xdna", "cambricon"])
def test_nothing_counts_as_supported_without_a_public_table(target: str) -> None:
    assert {judged(m, target=target, precision=FP16) for m in MODELS.values()} == {Placement.UNKNOWN}


def test_a_custom_operator_is_unknown_everywhere_but_on_a_cpu() -> None:
    op = Operator("n", "FancyOp", (), (), domain="com.example")
    for name in targets.names():
        chip = targets.load(name)
        verdict = rules_of(chip).judge(op, chip, chip.available()[0], chip.toolkit(None))
        assert verdict.placement is (Placement.CPU if chip.cost_model in ("mcu", "host") else Placement.UNKNOWN), name
        assert verdict.why


def test_core_ml_and_qnn_limits() -> None:
    assert judged(MODELS["Conv3D"], FP16, "ane") is Placement.CPU
    assert judged(MODELS["DilatedConv"], FP16, "ane") is Placement.CPU
    assert judged(MODELS["Conv1D"], FP16, "ane") is Placement.NPU
    assert judged(MODELS["ResizeNearest"], FP16, "ane") is Placement.NPU
    assert judged(single("ArgMax", shape=(1, 2, 3, 4, 5)), target="hexagon") is Placement.CPU
    assert judged(MODELS["ArgMax"], target="hexagon") is Placement.NPU


@pytest.mark.parametrize("name", sorted(BOOKS))
def test_every_rule_says_what_it_wants_and_where_that_is_written(name: str) -> None:
    for rule in getattr(BOOKS[name], "rules"):  # noqa: B009 - `Rules` is the protocol, the list is the book's
        assert rule.text.endswith(".") and rule.source and rule.ops


def verdicts(model_: onnx.ModelProto, precision: Precision = INT8) -> dict[str, Placement]:
    """Node -> where rk3588 runs it."""
    chip = targets.load("rk3588")
    file = spelled(ir.serde.deserialize_model(model_))
    return {n: rules_of(chip).judge(o, chip, precision, "2.5.0").placement for n, o in operators_of(file.graph, 17).items()}


def test_chains_that_the_toolkit_fuses_stay_on_the_npu_and_others_do_not() -> None:
    """Source: real networks built with 2.5.0: GELU, LayerNorm and patch merging chains are NPU operators there; Erf, Pow and ReduceMax alone are not."""
    w = {"r2": scalar(1.4142135), "one": scalar(1.0), "half": scalar(0.5), "two": scalar(2.0), "eps": scalar(1e-5)}
    gelu = [node("Div", ["x", "r2"], ["a"], "div"), node("Erf", ["a"], ["b"], "erf"), node("Add", ["b", "one"], ["c"], "add"), node("Mul", ["x", "c"], ["d"], "mul"),
            node("Mul", ["d", "half"], ["y"], "halve")]
    assert set(verdicts(model(gelu, {"x": [1, 16, 32, 32]}, {"y": None}, w)).values()) == {Placement.NPU}
    norm = [node("ReduceMean", ["x"], ["m"], "mean", axes=[-1]), node("Sub", ["x", "m"], ["d"], "sub"), node("Pow", ["d", "two"], ["q"], "pow"),
            node("ReduceMean", ["q"], ["v"], "var", axes=[-1]), node("Add", ["v", "eps"], ["e"], "add"), node("Sqrt", ["e"], ["s"], "sqrt"), node("Div", ["d", "s"], ["y"], "div")]
    assert set(verdicts(model(norm, {"x": [1, 16, 32, 32]}, {"y": None}, w)).values()) == {Placement.NPU}
    scaled = [node("ReduceMax", ["x"], ["m"], "max", axes=[-1]), node("Div", ["x", "m"], ["y"], "div")]
    assert verdicts(model(scaled, {"x": [1, 16, 32, 32]}, {"y": None}, w)) == {"max": Placement.CPU, "div": Placement.CPU}
    steps = {f"s{i}": whole(i) for i in (0, 1)} | {"end": whole(32), "two": whole(2), "h": whole(2), "w": whole(3)}
    rows = [node("Slice", ["x", f"s{i}", "end", "h", "two"], [f"r{i}"], f"row{i}") for i in (0, 1)]
    parts = [node("Slice", [f"r{i}", f"s{j}", "end", "w", "two"], [f"p{i}{j}"], f"part{i}{j}") for i in (0, 1) for j in (0, 1)]
    merge = [*rows, *parts, node("Concat", ["p00", "p10", "p01", "p11"], ["y"], "join", axis=1)]
    assert set(verdicts(model(merge, {"x": [1, 16, 32, 32]}, {"y": None}, steps)).values()) == {Placement.NPU}


def test_a_gemm_inside_a_network_is_not_split() -> None:
    """Source: build table of sinet with 2.5.0: its squeeze-and-excite products are on the NPU; only the last one of a classifier is followed by a CPU Reshape."""
    nodes = [node("Gemm", ["x", "w"], ["a"], "inside"), node("Relu", ["a"], ["b"], "relu"), node("Gemm", ["b", "w"], ["y"], "last")]
    found = verdicts(model(nodes, {"x": [1, 16]}, {"y": [1, 16]}, {"w": noise(16, 16)}))
    assert (found["inside"], found["last"]) == (Placement.NPU, Placement.PARTLY)
