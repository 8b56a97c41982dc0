"""Watching models with bodies, sequences, dead weights and weights in files (bug cases B06, B19)."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from models import Array, node
from odd_models import BOOL, FLOAT, INT64, Samples, info, odd_model
from onnx import helper, numpy_helper

from qbench.errors import InputError
from qbench.statistics import collect, observe

RNG = np.random.default_rng(0)
X = RNG.normal(size=(2, 4)).astype(np.float32)


def bare(name: str) -> onnx.ValueInfoProto:
    return onnx.ValueInfoProto(name=name)


def branch(op: str, out: str, *more: onnx.NodeProto) -> onnx.GraphProto:
    last = more[-1].output[0] if more else out
    return helper.make_graph([node(op, ["x"], [out], f"n_{out}"), *more], f"g_{out}", [], [bare(last)])


def choice(then: onnx.GraphProto, other: onnx.GraphProto, out: str = "r", condition: str = "c") -> onnx.NodeProto:
    return node("If", [condition], [out], f"if_{out}", then_branch=then, else_branch=other)


def model(nodes: list[onnx.NodeProto], *flags: str) -> bytes:
    proto = odd_model(nodes, [info("x", ["N", 4]), *(info(f, [], BOOL) for f in flags)], [info(nodes[-1].output[0], ["N", 4])])
    data: bytes = proto.SerializeToString()
    return data


@pytest.mark.parametrize(("outer", "inner", "seen"), [(True, True, {"a"}), (True, False, {"b"}), (False, True, {"d"}), (False, False, {"d"})])
def test_an_if_inside_an_if_is_watched(outer: bool, inner: bool, seen: set[str]) -> None:
    nested = helper.make_graph([choice(branch("Neg", "a"), branch("Abs", "b"), "q", "i")], "nested", [], [bare("q")])
    nodes = [choice(nested, branch("Exp", "d")), node("Relu", ["r"], ["y"], "relu")]
    found = collect(model(nodes, "c", "i"), ["a", "b", "d", "q", "r", "y"], Samples({"x": X, "c": np.array(outer), "i": np.array(inner)}))
    assert {t for t in ("a", "b", "d") if found[t].count} == seen
    assert ("q" in found.unobserved) == (not outer)
    assert found["y"].count == 8
    assert all(found.unobserved[t] == "never observed: no sample reached it" for t in {"a", "b", "d"} - seen)


def test_the_values_are_those_of_the_branch_that_ran() -> None:
    nodes = [choice(branch("Neg", "a"), branch("Exp", "b")), node("Relu", ["r"], ["y"], "relu")]
    found = collect(model(nodes, "c"), ["a", "b"], Samples({"x": X, "c": np.array(True)}, {"x": 2 * X, "c": np.array(False)}))
    assert (found["a"].minimum, found["a"].maximum) == (float((-X).min()), float((-X).max()))
    assert found["b"].maximum == pytest.approx(float(np.exp(2 * X).max()), rel=1e-6)


@pytest.mark.parametrize("op", ["Loop", "Scan"])
@pytest.mark.parametrize("deep", [False, True])
def test_bodies_that_turn_stay_closed_and_say_so(op: str, deep: bool) -> None:
    """`deep`: the tensor lies in an If inside the body."""
    inside = [choice(branch("Neg", "a"), branch("Abs", "b"), "t", "on")] if deep else [node("Neg", ["x" if op == "Loop" else "e"], ["t"], "n_t")]
    if op == "Loop":
        body = helper.make_graph([*inside, node("Add", ["v", "t"], ["v2"]), node("Identity", ["on"], ["still"])], "body",
                                 [info("i", [], INT64), info("on", [], BOOL), bare("v")], [info("still", [], BOOL), bare("v2")])
        nodes = [node("Loop", ["", "c", "x"], ["y"], "turner", body=body)]
        nodes[0].input[0] = "turns"
    else:
        first = [node("Greater", ["e", "s"], ["more"]), node("ReduceMax", ["more_f"], ["most"], keepdims=0), node("Cast", ["most"], ["on"], to=BOOL)]
        first.insert(1, node("Cast", ["more"], ["more_f"], to=FLOAT))
        body = helper.make_graph([*(first if deep else []), *inside, node("Identity", ["s"], ["s2"])], "body", [bare("s"), bare("e")], [bare("s2"), bare("t")])
        if deep:
            body.node[-2].CopyFrom(choice(helper.make_graph([node("Neg", ["e"], ["a"])], "g_a", [], [bare("a")]),
                                          helper.make_graph([node("Abs", ["e"], ["b"])], "g_b", [], [bare("b")]), "t", "on"))
        nodes = [node("Scan", ["start", "x"], ["end", "y"], "turner", body=body, num_scan_inputs=1)]
    proto = odd_model(nodes, [info("x", [2, 4]), info("c", [], BOOL)], [info("y", [2, 4])], {"turns": np.array(2), "start": np.zeros(4, np.float32)})
    wanted = "a" if deep else "t"
    found = collect(proto.SerializeToString(), [wanted, "y"], Samples({"x": X, "c": np.array(True)}))
    assert found["y"].count == 8
    assert found.absent[wanted] == f"inside the body of {op} node 'turner', whose tensors cannot be watched"


def test_sequences_and_optionals_are_no_tensors() -> None:
    proto = odd_model([node("SplitToSequence", ["x"], ["s"], "split", axis=1), node("SequenceAt", ["s", "i"], ["y"], "at")], [info("x", [2, 4])],
                      [info("y", [2, 1])], {"i": np.array(0)})
    proto.graph.value_info.append(helper.make_tensor_sequence_value_info("s", FLOAT, [2, 1]))
    found = collect(proto.SerializeToString(), ["s", "y"], Samples({"x": X}))
    assert found.absent == {"s": "holds a sequence or an optional, which is not a tensor"}
    assert found["y"].count == 2


def test_text_inputs_are_fed_as_objects() -> None:
    proto = odd_model([node("Relu", ["x"], ["y"]), node("Identity", ["s"], ["z"])], [info("x", [2, 4]), info("s", [2], onnx.TensorProto.STRING)],
                      [info("y", [2, 4]), info("z", [2], onnx.TensorProto.STRING)])
    found = collect(proto.SerializeToString(), ["y"], Samples({"x": X, "s": np.array(["a", "b"], object)}))
    assert found["y"].count == 8


def test_weights_that_nobody_reads_do_not_disturb() -> None:
    """onnxruntime drops them, and then refuses to borrow them (seen with Silero's detector, whose Ifs are folded)."""
    weights: dict[str, Array] = {"w": RNG.normal(size=(64, 64)).astype(np.float32), "dead": RNG.normal(size=(64, 64)).astype(np.float32)}
    proto = odd_model([node("MatMul", ["x", "w"], ["y"], "mm")], [info("x", ["N", 64])], [info("y", ["N", 64])], weights)
    x = RNG.normal(size=(2, 64)).astype(np.float32)
    watched = observe.observe(ir.serde.deserialize_model(proto), ["y"], 1)
    assert len(watched.weights) == 1
    assert collect(proto.SerializeToString(), ["y"], Samples({"x": x}))["y"].count == 128


def test_a_weight_read_only_inside_a_body_is_lent() -> None:
    body = helper.make_graph([node("MatMul", ["x", "w"], ["a"], "mm")], "then", [], [bare("a")])
    other = helper.make_graph([node("Identity", ["x"], ["b"])], "other", [], [bare("b")])
    weight = RNG.normal(size=(64, 64)).astype(np.float32)
    proto = odd_model([choice(body, other), node("Relu", ["r"], ["y"])], [info("x", ["N", 64]), info("c", [], BOOL)], [info("y", ["N", 64])], {"w": weight})
    x = RNG.normal(size=(2, 64)).astype(np.float32)
    found = collect(proto.SerializeToString(), ["a", "y"], Samples({"x": x, "c": np.array(True)}))
    assert found["a"].maximum == pytest.approx(float((x @ weight).max()), rel=1e-5)


def test_weights_in_a_file_stay_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither the protobuf for the watching session nor the list of lent weights holds them, and the folder need not be the current one."""
    weight = RNG.normal(size=(64, 64)).astype(np.float32)
    proto = odd_model([node("MatMul", ["x", "w"], ["y"], "mm")], [info("x", ["N", 64])], [info("y", ["N", 64])])
    proto.graph.initializer.append(numpy_helper.from_array(weight, "w"))
    path = tmp_path / "sub" / "net.onnx"
    path.parent.mkdir()
    onnx.save_model(proto, str(path), save_as_external_data=True, location="net.data", size_threshold=0)
    monkeypatch.chdir("/")
    to_proto = ir.to_proto
    monkeypatch.setattr(ir, "to_proto", lambda m: _small(to_proto(m)))
    x = RNG.normal(size=(2, 64)).astype(np.float32)
    assert observe.observe(path, ["y"], 1).weights == ()
    assert collect(path, ["y"], Samples({"x": x}), model_key="k")["y"].maximum == pytest.approx(float((x @ weight).max()), rel=1e-5)


def _small(proto: onnx.ModelProto) -> onnx.ModelProto:
    assert proto.ByteSize() < 1000
    return proto


@pytest.mark.parametrize(("tensor", "told"), [("w", "is a weight"), ("yy", "near: y")])
def test_what_is_no_activation_is_refused(tensor: str, told: str) -> None:
    proto = odd_model([node("MatMul", ["x", "w"], ["y"], "mm")], [info("x", ["N", 4])], [info("y", ["N", 4])], {"w": np.eye(4, dtype=np.float32)})
    with pytest.raises(InputError, match=told):
        collect(proto.SerializeToString(), [tensor], Samples({"x": X}))
