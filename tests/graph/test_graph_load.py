"""Reading and preparing models: bug cases B17, B20, B21, odd files, torch."""

import logging
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
import torch
from models import conv_relu, model, node, observe, plan, prepare

from qbench import qdq
from qbench.errors import ModelError
from qbench.graph import load_network
from qbench.graph.load import from_module
from qbench.network import Precision
from qbench.runtime import Session

RNG = np.random.default_rng(0)
X = RNG.normal(size=(2, 3, 8, 8)).astype(np.float32)


@pytest.mark.parametrize("opset", [7, 9, 11, 13, 17, 21, 22])
def test_every_opset_gives_the_same_numbers(opset: int) -> None:
    """B17: below opset 13 there is no `axis`; the opset is raised and the per-channel file loads."""
    prepared = prepare(conv_relu(opset))
    assert prepared.model.opset_imports[""] >= 13
    expected = Session(conv_relu(17).SerializeToString(), 1).run({"x": X})["y"]
    assert np.allclose(Session(qdq.to_bytes(prepared.model), 1).run({"x": X})["y"], expected, atol=1e-5)
    written = qdq.write(prepared, plan(prepared, observe(prepared, [{"x": X}]))).model
    onnx.checker.check_model(qdq.to_bytes(written), full_check=True)
    quantized = Session(qdq.to_bytes(written), 1).run({"x": X})["y"]
    assert np.abs(quantized - expected).max() < 0.1 * np.abs(expected).max()


@pytest.mark.parametrize("ir_version", [3, 8])
def test_initializers_that_are_also_inputs_are_weights(ir_version: int) -> None:
    """B20: only x is asked from the data, and the written model lists no weight as an input."""
    proto = conv_relu(opset=9 if ir_version == 3 else 17, weights_as_inputs=True, ir_version=ir_version)
    prepared = prepare(proto)
    assert prepared.network.inputs == ("x",)
    written = qdq.write(prepared, plan(prepared, observe(prepared, [{"x": X}]))).model
    proto_out = ir.to_proto(written)
    assert [i.name for i in proto_out.graph.input] == ["x"]
    assert proto_out.ir_version >= 4
    assert any(n.op_type == "DequantizeLinear" and "w" in n.input[0] for n in proto_out.graph.node)


@pytest.mark.parametrize(("first", "second"), [("a", "a"), ("", "")])
def test_names_become_unique_and_stable(first: str, second: str) -> None:
    """B21: duplicate and missing node names; per-layer settings hit the right layer."""
    rng = np.random.default_rng(1)
    weights = {f"w{i}": rng.normal(size=(3, 3, 1, 1)).astype(np.float32) for i in range(2)}
    nodes = [node("Conv", ["x", "w0"], ["t"], first), node("Conv", ["t", "w1"], ["y"], second)]
    proto = model(nodes, {"x": [1, 3, 8, 8]}, {"y": [1, 3, 8, 8]}, weights)
    prepared = prepare(proto)
    names = [k.name for k in prepared.network.kernels]
    assert len(set(names)) == 2 and all(names)
    assert names == [k.name for k in prepare(proto).network.kernels]
    if first:
        assert names[0] == "a" and prepared.network.renamed == {names[1]: "a"}
    ranges = observe(prepared, [{"x": X[:1]}])
    written = qdq.write(prepared, plan(prepared, ranges, floats=[names[1]])).model
    second_conv = next(n for n in written.graph if n.name == names[1])
    assert second_conv.inputs[1] is not None and second_conv.inputs[1].is_initializer()
    assert Session(qdq.to_bytes(written), 1).run({"x": X[:1]})["y"].shape == (1, 3, 8, 8)


def test_generated_names_never_collide() -> None:
    rng = np.random.default_rng(1)
    weights = {"x_int8_q": rng.normal(size=(3, 3, 1, 1)).astype(np.float32)}
    nodes = [node("Conv", ["x", "x_int8_q"], ["x_int8_dq"], "x_int8_QuantizeLinear"), node("Relu", ["x_int8_dq"], ["y"])]
    prepared = prepare(model(nodes, {"x": [1, 3, 8, 8]}, {"y": [1, 3, 8, 8]}, weights))
    written = qdq.write(prepared, plan(prepared, observe(prepared, [{"x": X[:1]}]))).model
    names = [n.name for n in written.graph]
    assert len(names) == len(set(names))
    Session(qdq.to_bytes(written), 1).run({"x": X[:1]})


def test_batch_norm_is_folded_and_the_convolution_keeps_its_name() -> None:
    rng = np.random.default_rng(2)
    weights = {"w": rng.normal(size=(4, 3, 3, 3)), "g": rng.uniform(0.5, 2, 4), "be": rng.normal(size=4), "m": rng.normal(size=4),
               "v": rng.uniform(0.5, 2, 4)}
    nodes = [node("Conv", ["x", "w"], ["c"], "stem"), node("BatchNormalization", ["c", "g", "be", "m", "v"], ["n"], "bn"),
             node("Relu", ["n"], ["y"], "relu")]
    proto = model(nodes, {"x": [1, 3, 8, 8]}, {"y": [1, 4, 6, 6]}, {k: v.astype(np.float32) for k, v in weights.items()})
    prepared = prepare(proto)
    assert [(k.name, k.op) for k in prepared.network.kernels] == [("stem", "Conv+Relu")]
    before = Session(proto.SerializeToString(), 1).run({"x": X[:1]})["y"]
    assert np.allclose(Session(qdq.to_bytes(prepared.model), 1).run({"x": X[:1]})["y"], before, atol=1e-5)


def test_constant_nodes_become_weights() -> None:
    """PP-OCR keeps all weights in Constant nodes."""
    w = onnx.numpy_helper.from_array(RNG.normal(size=(4, 3, 1, 1)).astype(np.float32), "value")
    nodes = [node("Constant", [], ["w"], "const", value=w), node("Conv", ["x", "w"], ["y"], "conv")]
    network = prepare(model(nodes, {"x": [1, 3, 8, 8]}, {"y": [1, 4, 8, 8]}, {})).network
    assert [(k.op, k.weights) for k in network.kernels] == [("Conv", 12)]


def test_shape_arithmetic_is_folded_for_the_description_but_the_model_stays_dynamic() -> None:
    nodes = [node("Relu", ["x"], ["r"]), node("Shape", ["r"], ["s"]), node("Gather", ["s", "zero"], ["n"], axis=0),
             node("Concat", ["n", "rest"], ["target"], axis=0), node("Reshape", ["r", "target"], ["y"])]
    proto = model(nodes, {"x": ["N", 3, 4, 4]}, {"y": ["N", 48]}, {})
    proto.graph.initializer.extend([onnx.numpy_helper.from_array(np.array([0]), "zero"), onnx.numpy_helper.from_array(np.array([-1]), "rest")])
    prepared = prepare(proto)
    assert [k.op for k in prepared.network.kernels] == ["Relu", "Reshape"]
    assert Session(qdq.to_bytes(prepared.model), 1).run({"x": X[:, :, :4, :4]})["y"].shape == (2, 48)


def test_an_open_axis_asks_for_a_shape() -> None:
    proto = model([node("Relu", ["x"], ["y"])], {"x": ["N", 3, "H", 8]}, {"y": None}, {})
    with pytest.raises(ModelError, match=r"axis 2 is open .*--input-shape x=1,3,\?,8"):
        prepare(proto)
    with pytest.raises(ModelError, match="declared as"):
        load_network(ir.serde.deserialize_model(proto), {"x": (1, 4, 8, 8)})
    assert load_network(ir.serde.deserialize_model(proto), {"x": (1, 3, 16, 8)}).network.tensors["y"].shape == (1, 3, 16, 8)


def test_quantized_and_pickled_and_missing_models_are_refused(tmp_path: Path) -> None:
    prepared = prepare(conv_relu())
    written = qdq.write(prepared, plan(prepared, observe(prepared, [{"x": X}]))).model
    with pytest.raises(ModelError, match="already quantized"):
        load_network(written)
    (tmp_path / "net.pth").write_bytes(b"\x80\x04.")
    with pytest.raises(ModelError, match="never opened"):
        load_network(tmp_path / "net.pth")
    with pytest.raises(ModelError, match="no such file"):
        load_network(tmp_path / "none.onnx")
    (tmp_path / "odd.onnx").write_bytes(b"not a protobuf at all")
    with pytest.raises(ModelError, match=r"not a readable ONNX file|holds no graph"):
        load_network(tmp_path / "odd.onnx")


def _external(tmp_path: Path) -> Path:
    path = tmp_path / "net.onnx"
    onnx.save_model(conv_relu(), str(path), save_as_external_data=True, all_tensors_to_one_file=True, location="net.data", size_threshold=0)
    return path


def test_external_data_is_read_from_anywhere_and_keyed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = _external(tmp_path)
    key = load_network(path).network.model_key
    monkeypatch.chdir("/")
    prepared = load_network(path)
    assert prepared.network.model_key == key
    assert Session(qdq.to_bytes(prepared.model), 1).run({"x": X})["y"].shape == (2, 4, 8, 8)
    data = tmp_path / "net.data"
    data.write_bytes(data.read_bytes()[:-4] + b"\0\0\0\0")
    assert load_network(path).network.model_key != key


@pytest.mark.parametrize("location", ["../net.data", "/tmp/net.data", "a/../../net.data"])
def test_external_data_may_not_leave_the_folder(tmp_path: Path, location: str) -> None:
    path = _external(tmp_path)
    proto = onnx.load(str(path), load_external_data=False)
    for tensor in proto.graph.initializer:
        for entry in tensor.external_data:
            if entry.key == "location":
                entry.value = location
    path.write_bytes(proto.SerializeToString())
    with pytest.raises(ModelError, match=r"outside the model's folder|leaves the model's folder|not a readable"):
        load_network(path)


class Small(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.head = torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4), torch.nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.head(torch.relu(self.norm(self.conv(x))).mean((2, 3)))
        return y


class Logs(logging.Handler):
    """What a package logs."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.said: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.said.append(record.getMessage())


@pytest.mark.filterwarnings("ignore")
def test_a_torch_module_and_its_exported_program_load(tmp_path: Path) -> None:
    torch.manual_seed(0)
    module = Small().eval()
    example = torch.randn(2, 3, 8, 8)
    expected = module(example).detach().numpy()
    prepared = load_network(from_module(module, (example,)))
    assert any(k.op.startswith("Conv+Relu") for k in prepared.network.kernels)
    name = prepared.network.inputs[0]
    found = Session(qdq.to_bytes(prepared.model), 1).run({name: example.numpy()})
    assert np.allclose(next(iter(found.values())), expected, atol=1e-5)
    torch.export.save(torch.export.export(module, (example,)), str(tmp_path / "small.pt2"))
    logs = Logs()
    logging.getLogger("torch.onnx").addHandler(logs)
    try:
        prepared = load_network(tmp_path / "small.pt2")
    finally:
        logging.getLogger("torch.onnx").removeHandler(logs)
    assert logs.said == []                                       # such as that torchvision, which nothing here needs, is not installed
    assert np.allclose(next(iter(Session(qdq.to_bytes(prepared.model), 1).run({prepared.network.inputs[0]: example.numpy()}).values())),
                       expected, atol=1e-5)


def test_if_bodies_stay_float_and_say_so() -> None:
    """B06 d, graph part: tensors inside a branch are no unit's; the If is kept in float with a reason."""
    then = onnx.helper.make_graph([node("Relu", ["x"], ["t"], "in_then")], "then", [], [onnx.helper.make_tensor_value_info("t", 1, None)])
    other = onnx.helper.make_graph([node("Neg", ["x"], ["e"], "in_else")], "else", [], [onnx.helper.make_tensor_value_info("e", 1, None)])
    nodes = [node("ReduceMax", ["x"], ["m"], keepdims=0), node("Greater", ["m", "limit"], ["yes"]),
             node("If", ["yes"], ["b"], "branch", then_branch=then, else_branch=other), node("Relu", ["b"], ["y"])]
    proto = model(nodes, {"x": [1, 3, 8, 8]}, {"y": [1, 3, 8, 8]}, {"limit": np.array(0, np.float32)})
    network = prepare(proto).network
    branch = next(u for u in network.units if "branch" in u.kernels)
    assert not branch.quantizable and "If" in branch.reason
    assert "x" in network.kernel["branch"].inputs


def test_int8_is_not_offered_to_recurrent_layers() -> None:
    """B23: LSTM stays float, with the reason."""
    weights = {"w": RNG.normal(size=(1, 20, 3)).astype(np.float32), "r": RNG.normal(size=(1, 20, 5)).astype(np.float32)}
    proto = model([node("LSTM", ["x", "w", "r"], ["y"], "lstm", hidden_size=5)], {"x": [4, 1, 3]}, {"y": [4, 1, 1, 5]}, weights)
    unit = prepare(proto).network.units[0]
    assert not unit.quantizable and "recurrent" in unit.reason
    with pytest.raises(Exception, match="cannot be int8"):
        prepared = prepare(proto)
        bad = plan(prepared, {})
        qdq.write(prepared, type(bad)(**{**bad.__dict__, "precision": {unit.name: Precision.INT8}}))


def test_axes_written_as_minus_one_are_open() -> None:
    """PP-OCR declares its input as [-1, 3, ?, ?]."""
    proto = conv_relu()
    proto.graph.input[0].type.tensor_type.shape.dim[0].dim_value = -1
    prepared = prepare(proto)
    assert prepared.network.tensors["x"].shape == (1, 3, 8, 8)
    assert Session(qdq.to_bytes(prepared.model), 1).run({"x": X})["y"].shape == (2, 4, 8, 8)


def test_an_identity_that_leads_a_tensor_out_of_a_branch_stays() -> None:
    """Silero's detector: both branches of an If end in an Identity of something outside or of one another's tensor."""
    info = onnx.helper.make_tensor_value_info
    then = onnx.helper.make_graph([node("Identity", ["r"], ["t"], "lead")], "then", [], [info("t", 1, None)])
    other = onnx.helper.make_graph([node("Relu", ["x"], ["e0"], "act"), node("Identity", ["e0"], ["e"], "lead2")], "else", [], [info("e", 1, None)])
    nodes = [node("Relu", ["x"], ["r"], "relu"), node("ReduceMax", ["x"], ["m"], keepdims=0), node("Greater", ["m", "limit"], ["yes"]),
             node("If", ["yes"], ["y"], "branch", then_branch=then, else_branch=other)]
    proto = model(nodes, {"x": [1, 3, 8, 8]}, {"y": [1, 3, 8, 8]}, {"limit": np.array(0, np.float32)})
    prepared = prepare(proto)
    expected = Session(proto.SerializeToString(), 1).run({"x": X[:1]})["y"]
    assert np.array_equal(Session(qdq.to_bytes(prepared.model), 1).run({"x": X[:1]})["y"], expected)


def test_a_unit_with_an_infinite_constant_stays_float_and_says_so() -> None:
    """Magika masks with -inf: no scale covers it."""
    proto = model([node("Max", ["x", "floor"], ["y"], "mask")], {"x": [1, 3, 8, 8]}, {"y": [1, 3, 8, 8]}, {"floor": np.array([-np.inf], np.float32)})
    prepared = prepare(proto)
    unit = prepared.network.units[0]
    assert not unit.quantizable and "'floor'" in unit.reason
    assert np.array_equal(Session(qdq.to_bytes(qdq.write(prepared, plan(prepared, {})).model), 1).run({"x": X[:1]})["y"], X[:1])


def test_pads_made_with_constant_of_shape_leave_no_shape_open() -> None:
    """Two axes unpadded by zeros from ConstantOfShape: the convolution behind runs at 63 x 63 positions."""
    weights = {"w": np.ones((8, 1, 3, 3), np.float32)}
    nodes = [node("ConstantOfShape", ["four"], ["zeros"], "zeros", value=onnx.numpy_helper.from_array(np.array([0], np.int64))),
             node("Concat", ["zeros", "end"], ["pads"], "cat", axis=0), node("Pad", ["x", "pads"], ["p"], "pad"), node("Conv", ["p", "w"], ["y"], "conv")]
    proto = model(nodes, {"x": [1, 1, 64, 64]}, {"y": None}, weights)
    proto.graph.initializer.extend([onnx.numpy_helper.from_array(np.array([4]), "four"), onnx.numpy_helper.from_array(np.array([0, 0, 1, 1]), "end")])
    network = prepare(proto).network
    assert network.kernel["conv"].macs == 63 * 63 * 8 * 9 and network.tensors["y"].shape == (1, 8, 63, 63)
