"""Odd but valid models go all the way: loaded, observed, quantized, checked, loaded, run. What cannot is refused with its reason."""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from models import Array, node
from numpy.typing import ArrayLike
from odd_graphs import OPSETS, RECURRENT, SHAPED, noise, recurrent
from odd_models import FLOAT, Samples, info, odd_model, prepared_of, reference, trip
from onnx import TensorProto, helper

from qbench import runtime
from qbench.errors import ModelError
from qbench.graph import load_network
from qbench.network import Precision
from qbench.statistics import collect

CASES = {**SHAPED, **RECURRENT, **OPSETS}


@pytest.mark.parametrize("precision", [Precision.INT8, Precision.INT16])
@pytest.mark.parametrize("name", CASES)
def test_it_goes_all_the_way(name: str, precision: Precision) -> None:
    model, feeds = CASES[name]()
    if name == "opset 27" and not runtime.runs_opset(27):                      # onnxruntime 1.31 and older
        with pytest.raises(ModelError, match=r"has opset 27, .* with opset 26 or lower"):
            prepared_of(model)
        return
    if name == "two names of one tensor" and tuple(map(int, version("onnxruntime").split(".")[:2])) < (1, 31):
        pytest.xfail("onnxruntime 1.30 and older drop a DequantizeLinear that makes an output, where an Identity and a QuantizeLinear read it")
    expected = reference(model, feeds)
    found = trip(model, feeds, precision=precision)
    assert [o.name for o in found.written.graph.output] == [o.name for o in model.graph.output]
    steps = 255 if precision is Precision.INT8 else 65535
    for output, value in expected.items():
        got, exact = found.quantized[output], found.float[output]
        if value.dtype.kind != "f":
            assert np.array_equal(exact, value) and np.array_equal(got, value)
            continue
        assert np.allclose(exact, value, rtol=1e-4, atol=1e-5)
        assert got.shape == value.shape and got.dtype == value.dtype and np.isfinite(got).all()
        assert value.size == 0 or np.abs(got - value).max() < 16 / steps * max(float(np.abs(value).max()), 1.0)


@pytest.mark.parametrize("name", RECURRENT)
def test_recurrent_layers_have_work_and_a_reason(name: str) -> None:
    network = prepared_of(RECURRENT[name]()[0]).network
    kernel = network.kernels[0]
    gates = {"LSTM": 20, "GRU": 15, "RNN": 5}[kernel.op]
    directions = 2 if "both" in name or "opset" in name else 1
    per_step = directions * gates * (3 + 5)                     # each gate reads an input of 3 and a state of 5
    assert (kernel.kind, kernel.weights, kernel.macs) == ("rnn", per_step, per_step * 4 * 2)   # 4 steps, 2 sequences
    assert not network.units[0].quantizable and "recurrent state" in network.units[0].reason


def test_a_sequence_input_is_refused() -> None:
    model = odd_model([node("ConcatFromSequence", ["s"], ["y"], "join", axis=1)], [], [info("y", [1, "n"])])
    model.graph.input.append(helper.make_tensor_sequence_value_info("s", FLOAT, [1, 1]))
    with pytest.raises(ModelError, match="input 's' is a sequence of tensors"):
        prepared_of(model)


@pytest.mark.parametrize("size", [0, -1])
def test_an_axis_of_zero_is_open_and_cannot_be_given_as_zero(size: int) -> None:
    """Exporters write 0 and -1 for open axes; a tensor of no values is nothing to run."""
    model = odd_model([node("Relu", ["x"], ["y"])], [info("x", [1, size, 8])], [info("y", [1, "n", 8])])
    with pytest.raises(ModelError, match=r"axis 1 is open .*--input-shape x=1,\?,8"):
        prepared_of(model)
    with pytest.raises(ModelError, match=r"--input-shape x=1,0,8: an axis of 0 holds nothing"):
        prepared_of(model, {"x": (1, 0, 8)})
    assert prepared_of(model, {"x": (1, 4, 8)}).network.tensors["y"].shape == (1, 4, 8)


def test_an_output_of_unknown_rank_is_refused() -> None:
    """onnx's checker wants the number of axes, so no valid file could be written."""
    model, _ = SHAPED["a loop"]()
    del model.graph.output[0].type.tensor_type.shape.dim[:]
    model.graph.output[0].type.tensor_type.ClearField("shape")
    with pytest.raises(ModelError, match="output 'y' has no shape"):
        prepared_of(model)


def test_a_scan_of_opset_8_is_refused() -> None:
    body = helper.make_graph([node("Add", ["s", "e"], ["t"]), node("Identity", ["t"], ["o"])], "body", [info("s", [2]), info("e", [2])], [info("t", [2]), info("o", [2])])
    model = odd_model([node("Scan", ["", "i", "x"], ["z", "y"], "old", body=body, num_scan_inputs=1)], [info("i", [1, 2]), info("x", [1, 3, 2])],
                      [info("z", [1, 2]), info("y", [1, 3, 2])], opset=8, ir_version=3)
    with pytest.raises(ModelError, match="node 'old' is a Scan of opset 8"):
        prepared_of(model)


@pytest.mark.parametrize(("opset", "told"), [(28, "has opset 28"), (0, "no standard ONNX operator set")])
def test_opsets_out_of_reach_are_refused(opset: int, told: str) -> None:
    model = odd_model([node("Relu", ["x"], ["y"])], [info("x", [1, 4])], [info("y", [1, 4])], opset=opset or 17)
    if not opset:
        model.opset_import[0].domain = "ai.onnx.ml"
    with pytest.raises(ModelError, match=told):
        prepared_of(model)


def test_an_opset_that_only_a_newer_onnxruntime_runs_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    assert runtime.runs_opset(26) and not runtime.runs_opset(99)
    monkeypatch.setattr(runtime, "runs_opset", lambda version: version < 27)
    assert prepared_of(OPSETS["opset 26"]()[0]).network.kernels
    with pytest.raises(ModelError, match=r"has opset 27, .* with opset 26 or lower"):
        prepared_of(OPSETS["opset 27"]()[0])


def test_a_shape_that_only_the_exporter_knew_is_believed() -> None:
    model = odd_model([node("Reshape", ["x", "s"], ["r"], "reshape"), node("MatMul", ["r", "w"], ["y"], "mm")], [info("x", [2, 8]), info("s", [2], TensorProto.INT64)],
                      [info("y", [4, 3])], {"w": noise(4, 3)})
    with pytest.raises(ModelError, match=r"tensor 'r' of node 'reshape'.*has no static"):
        prepared_of(model)
    model.graph.value_info.append(info("r", [4, 4]))
    network = prepared_of(model).network
    assert network.tensors["r"].shape == (4, 4) and network.kernel["mm"].macs == 4 * 4 * 3


def test_where_folding_fails_the_node_is_named() -> None:
    model = odd_model([node("SplitToSequence", ["x", "n"], ["s"], "odd_split", axis=1), node("SequenceAt", ["s", "i"], ["y"])],
                      [info("x", [1, 4]), info("n", [], TensorProto.INT64)], [info("y", [1, "k"])], {"i": np.array(0)})
    with pytest.raises(ModelError, match=r"cannot be folded: .*'odd_split'"):
        prepared_of(model)


def stored(model: onnx.ModelProto, folder: Path) -> Path:
    path = folder / "net.onnx"
    path.write_bytes(model.SerializeToString())
    return path


@pytest.mark.parametrize("name", ["opset 17", "bodies in bodies", "a function", "LSTM, both ways, everything given"])
def test_nodes_may_come_in_any_order(name: str, tmp_path: Path) -> None:
    model, feeds = CASES[name]()
    expected = trip(model, feeds)
    nodes = list(model.graph.node)[::-1]
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    found = trip(stored(model, tmp_path), feeds)
    for output, value in expected.float.items():
        assert np.array_equal(found.float[output], value) and np.array_equal(found.quantized[output], expected.quantized[output])
    assert [k.op for k in found.prepared.network.kernels] == [k.op for k in expected.prepared.network.kernels]
    if len(nodes) > 1:
        with pytest.raises(ModelError, match="save it and give the file"):
            prepared_of(model)


@pytest.mark.parametrize("where", ["imports", "nodes", "both"])
def test_the_standard_domain_has_two_names(where: str) -> None:
    model, feeds = CASES["opset 17"]()
    if where != "nodes":
        model.opset_import[0].domain = "ai.onnx"
    if where != "imports":
        for n in model.graph.node:
            n.domain = "ai.onnx"
    assert trip(model, feeds).plan.layers == {"int8": 4}


def test_a_graph_without_a_name_gets_one() -> None:
    model, feeds = CASES["opset 17"]()
    model.graph.name = ""
    assert trip(model, feeds).written.graph.name == "graph"


def test_a_tensor_that_nothing_makes_is_named(tmp_path: Path) -> None:
    """Sparse weights are not read, so their readers find nothing."""
    model = odd_model([node("Mul", ["x", "k"], ["y"], "it")], [info("x", [5])], [info("y", [5])])
    model.graph.sparse_initializer.append(helper.make_sparse_tensor(helper.make_tensor("k", FLOAT, [2], [1.0, 2.0]),
                                                                    helper.make_tensor("ki", TensorProto.INT64, [2], [0, 3]), [5]))
    with pytest.raises(ModelError, match=r"node 'it' \(Mul\) reads 'k', which no node makes.*sparse"):
        load_network(stored(model, tmp_path))


def test_a_cycle_is_named(tmp_path: Path) -> None:
    model = odd_model([node("Add", ["x", "b"], ["a"]), node("Relu", ["a"], ["b"])], [info("x", [4])], [info("b", [4])])
    with pytest.raises(ModelError, match="has a cycle"):
        load_network(stored(model, tmp_path))


def test_duplicate_names_keep_their_originals() -> None:
    """B21, three of a name and two without, tensors named like nodes."""
    weights = {f"w{i}": noise(3, 3, 1, 1, seed=i) for i in range(5)}
    names = ["a", "a", "a", "", ""]
    nodes = [node("Conv", ["x" if i == 0 else f"a_{i}", f"w{i}"], ["y" if i == 4 else f"a_{i + 1}"], names[i]) for i in range(5)]
    model = odd_model(nodes, [info("x", [1, 3, 8, 8])], [info("y", [1, 3, 8, 8])], weights)
    network = prepared_of(model).network
    found = [k.name for k in network.kernels]
    assert len(set(found)) == 5 and all(found)
    assert [network.renamed.get(n, n) for n in found] == names
    assert np.isfinite(trip(model, {"x": noise(1, 3, 8, 8)}).quantized["y"]).all()


def test_nested_bodies_do_not_leak_their_own_names() -> None:
    """Inputs of the Loop inside the If are no tensors of the main graph."""
    network = prepared_of(SHAPED["bodies in bodies"]()[0]).network
    assert set(network.kernel["outer"].inputs) == {"yes", "x"}


def test_a_weight_that_nobody_reads_is_not_written() -> None:
    prepared = prepared_of(SHAPED["a branch folded away"]()[0])
    assert "wb" not in prepared.model.graph.initializers
    found = collect(prepared.model, ["r"], Samples({"x": noise(4, 48)}), model_key="k")
    assert found["r"].count == 4 * 48


@pytest.mark.parametrize("batch", [1, 3])
def test_data_of_any_batch(batch: int) -> None:
    """The last batch of a data set may be smaller; the batch axis counts as 1 in the description only."""
    model = odd_model([node("Conv", ["x", "w"], ["c"], "conv"), node("Flatten", ["c"], ["f"]), node("MatMul", ["f", "fc"], ["y"])], [info("x", ["N", 3, 8, 8])],
                      [info("y", ["N", 2])], {"w": noise(4, 3, 3, 3), "fc": noise(144, 2)})
    parts: list[Array] = [noise(batch, 3, 8, 8), noise(2, 3, 8, 8, seed=1)]
    found = trip(model, *({"x": p} for p in parts))
    assert found.prepared.network.tensors["x"].shape == (1, 3, 8, 8)
    assert found.statistics.samples == batch + 2 and found.quantized["y"].shape == (2, 2)


POOL: dict[str, tuple[list[str], dict[str, Any]]] = {
    "Relu": ([], {}), "Sigmoid": ([], {}), "Tanh": ([], {}), "Neg": ([], {}), "Abs": ([], {}), "Exp": ([], {}), "Erf": ([], {}), "Softplus": ([], {}),
    "Add": (["k"], {}), "Mul": (["k"], {}), "Sub": (["k"], {}), "Max": (["k"], {}), "Div": (["d"], {}), "LeakyRelu": ([], {}), "HardSwish": ([], {}),
    "MaxPool": ([], {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]}), "AveragePool": ([], {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]}),
    "Conv": (["w"], {"pads": [1, 1, 1, 1]}), "Transpose": ([], {"perm": [0, 1, 3, 2]}), "Softmax": ([], {"axis": 1}), "Identity": ([], {}),
    "InstanceNormalization": (["g", "b"], {}), "ConvTranspose": (["w"], {"pads": [1, 1, 1, 1]}), "Clip": (["low", "high"], {})}
JOINS = ("Add", "Mul", "Sub", "Max", "Concat", "Min")
CONSTANTS: dict[str, ArrayLike] = {
    "k": np.float32(0.7), "d": np.float32(1.3), "w": noise(4, 4, 3, 3), "g": np.ones(4, np.float32), "b": np.zeros(4, np.float32), "low": np.float32(-2),
        "high": np.float32(2), "w8": noise(4, 8, 1, 1)}


@st.composite
def graphs(draw: st.DrawFn) -> onnx.ModelProto:
    """Up to eight operators of the pool on tensors of one shape, joined at random, one or two outputs."""
    nodes: list[onnx.NodeProto] = []
    ready = ["x"]
    for i in range(draw(st.integers(1, 8))):
        source = draw(st.sampled_from(ready[-3:]))
        if draw(st.integers(0, 3)) == 0:
            op, other = draw(st.sampled_from(JOINS)), draw(st.sampled_from(ready))
            if op == "Concat":                                  # back to four channels
                nodes += [node("Concat", [source, other], [f"j{i}"], f"n{i}j", axis=1), node("Conv", [f"j{i}", "w8"], [f"t{i}"], f"n{i}")]
            else:
                nodes.append(node(op, [source, other], [f"t{i}"], f"n{i}"))
        else:
            op = draw(st.sampled_from(sorted(POOL)))
            others, attributes = POOL[op]
            nodes.append(node(op, [source, *others], [f"t{i}"], f"n{i}", **attributes))
        ready.append(f"t{i}")
    outputs = [ready[-1], *draw(st.lists(st.sampled_from(ready[1:]), max_size=1))]
    used = {i for n in nodes for i in n.input}
    return odd_model(nodes, [info("x", ["N", 4, 6, 6])], [info(o, ["N", 4, 6, 6]) for o in dict.fromkeys(outputs)],
                     {k: v for k, v in CONSTANTS.items() if k in used}, opset=draw(st.sampled_from([14, 17, 21])))


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(model=graphs(), precision=st.sampled_from([Precision.INT8, Precision.INT16]), every=st.integers(1, 3))
def test_random_graphs_go_all_the_way(model: onnx.ModelProto, precision: Precision, every: int) -> None:
    """Finite, of the right shapes, and known in every tensor, whatever part of the units is kept in float."""
    feeds = {"x": noise(2, 4, 6, 6, seed=5)}
    expected = reference(model, feeds)
    if not all(np.isfinite(v).all() for v in expected.values()):
        return
    found = trip(model, feeds, precision=precision, policy="ignore", floats=lambda unit: len(unit) % every == 1)
    for name, value in expected.items():
        assert np.allclose(found.float[name], value, rtol=1e-3, atol=1e-4)
        assert found.quantized[name].shape == value.shape and np.isfinite(found.quantized[name]).all()


def test_recurrent_helper_gives_valid_models() -> None:
    for op in ("LSTM", "GRU", "RNN"):
        onnx.checker.check_model(recurrent(op, 2, True)[0], full_check=True)


def test_load_network_leaves_the_callers_model_alone() -> None:
    import onnx_ir as ir

    model = ir.serde.deserialize_model(OPSETS["opset 9"]()[0])
    before = ir.to_proto(model).SerializeToString()
    load_network(model)
    assert ir.to_proto(model).SerializeToString() == before


@pytest.mark.parametrize("opset", [13, 17, 18])
@pytest.mark.parametrize("parts", [2, 3])
def test_a_sequence_may_leave_the_network(opset: int, parts: int) -> None:
    """Folding makes a Split of it, which has other attributes before opset 18."""
    nodes = [node("Conv", ["x", "w"], ["c"], "conv"), node("SplitToSequence", ["c", "size"], ["s"], "cut", axis=1)]
    model = odd_model(nodes, [info("x", [1, 3, 8, 8])], [info("c", [1, 4, 6, 6])], {"w": noise(4, 3, 3, 3), "size": np.array(parts)}, opset=opset)
    model.graph.output.append(helper.make_tensor_sequence_value_info("s", FLOAT, None))
    feeds = {"x": noise(1, 3, 8, 8)}
    found, expected = trip(model, feeds), reference(model, feeds)
    assert [v.shape for v in found.quantized["s"]] == [v.shape for v in expected["s"]]
    assert np.allclose(np.concatenate(list(found.float["s"]), axis=1), expected["c"], atol=1e-5)


def test_an_output_that_nothing_makes_is_named(tmp_path: Path) -> None:
    model = odd_model([node("LSTM", ["x", "w", "r"], ["", "h"], "rnn", hidden_size=2)], [info("x", [3, 1, 4])], [info("y", [3, 1, 1, 2])], {"w": noise(1, 8, 4), "r": noise(1, 8, 2)})
    with pytest.raises(ModelError, match="output 'y' is made by no node"):
        load_network(stored(model, tmp_path))


@pytest.mark.parametrize("exponent", [np.array(2), np.array(2, np.int32), np.float32(2)])
def test_an_exponent_of_any_type_is_read(exponent: ArrayLike) -> None:
    """A square is no reason to keep the convolution before it in float."""
    model = odd_model([node("Conv", ["x", "w"], ["c"], "conv"), node("Pow", ["c", "two"], ["y"], "square")], [info("x", [1, 3, 8, 8])], [info("y", [1, 4, 6, 6])],
                      {"w": noise(4, 3, 3, 3), "two": exponent})
    assert {u.name: u.quantizable for u in prepared_of(model).network.units} == {"conv": True, "square": False}
