"""Models whose weights lie in files of their own, and do not fit one protobuf (BUG case B19)."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
from models import Array, node
from odd_models import info, odd_model, reference
from onnx import TensorProto, helper, numpy_helper

from qbench import qdq, targets
from qbench.data import ArrayDataset
from qbench.errors import InputError, ModelError
from qbench.evaluation import OnnxEvaluator
from qbench.graph import load as reading
from qbench.graph import load_network, prepare
from qbench.metrics import make
from qbench.network import Precision
from qbench.plan import Granularity, Plan
from qbench.qdq import saving
from qbench.runtime import Session
from qbench.workbench import allowed_precisions, statistics_of
from qbench.workbench.plans import Plans, schemes_of

RNG = np.random.default_rng(0)
WIDTH, DEPTH = 128, 6
LIMIT = 2 * WIDTH * WIDTH * 4
"""Stands for 2 GB: two of the six weights."""
X = RNG.normal(size=(8, WIDTH)).astype(np.float32)


def chain() -> onnx.ModelProto:
    """x -> (MatMul -> Relu) five times -> MatMul -> Exp -> y; the Exp stays float."""
    rng = np.random.default_rng(1)
    weights = {f"w{i}": rng.normal(0, WIDTH ** -0.5, (WIDTH, WIDTH)).astype(np.float32) for i in range(DEPTH)}
    nodes, source = [], "x"
    for i in range(DEPTH):
        last = i == DEPTH - 1
        nodes += [node("MatMul", [source, f"w{i}"], [f"m{i}"], f"mm{i}"), node("Exp" if last else "Relu", [f"m{i}"], ["y" if last else f"r{i}"], f"act{i}")]
        source = f"r{i}"
    return odd_model(nodes, [info("x", ["N", WIDTH])], [info("y", ["N", WIDTH])], weights)


def stored(folder: Path, location: str = "net.data") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    onnx.save_model(chain(), str(folder / "net.onnx"), save_as_external_data=True, all_tensors_to_one_file=True, location=location, size_threshold=0)
    return folder / "net.onnx"


@pytest.fixture
def small_protobufs(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Thresholds of a few weights, and the sizes of all protobufs that anybody builds from a model."""
    monkeypatch.setattr(prepare, "IN_MEMORY_BYTES", LIMIT)
    monkeypatch.setattr(reading, "ONE_PROTOBUF_BYTES", LIMIT)
    monkeypatch.setattr(saving, "BIG_MODEL_BYTES", LIMIT)
    monkeypatch.setattr(qdq, "BIG_MODEL_BYTES", LIMIT)
    sizes: list[int] = []
    serialize = ir.serde.serialize_model

    def noted(model: ir.Model) -> onnx.ModelProto:
        found = serialize(model)
        sizes.append(found.ByteSize())
        return found

    monkeypatch.setattr(ir.serde, "serialize_model", noted)
    monkeypatch.setattr(ir, "to_proto", lambda model: noted(model) if isinstance(model, ir.Model) else serialize(model))
    return sizes


def plans(path: Path) -> tuple[Any, dict[str, Plan]]:
    """The prepared model, and a plan in integers, one that is mixed, one in float."""
    prepared = load_network(path)
    statistics = statistics_of(prepared, ArrayDataset({"x": X}))
    chip = targets.load("rk3588")
    allowed, _ = allowed_precisions(prepared.network, statistics, chip, None)
    make_plan = Plans(prepared.network, statistics, schemes_of(chip, None))
    choices: dict[str, Callable[[int, tuple[Precision, ...]], Precision]] = {
        "integers": lambda i, p: p[0], "mixed": lambda i, p: p[0] if i % 2 else p[-1], "float": lambda i, p: p[-1]}
    return prepared, {name: make_plan({u: pick(i, p) for i, (u, p) in enumerate(allowed.items())}, "minmax", Granularity.PER_CHANNEL, "")
                      for name, pick in choices.items()}


def test_everything_is_done_without_one_big_protobuf(tmp_path: Path, small_protobufs: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """Prepared, observed, quantized, saved, moved, loaded from elsewhere and evaluated."""
    path = stored(tmp_path / "in")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    prepared, made = plans(path)
    assert all(isinstance(v.const_value, ir.ExternalTensor) for v in prepared.model.graph.initializers.values())
    expected = reference(chain(), {"x": X})["y"]
    for name, plan in made.items():
        output = tmp_path / "out" / name / "q.onnx"
        qdq.save(qdq.write(prepared, plan).model, output)
        shutil.move(output.parent, tmp_path / f"moved_{name}")
        moved = tmp_path / f"moved_{name}" / "q.onnx"
        onnx.checker.check_model(str(moved))
        for tensor in onnx.load(str(moved), load_external_data=False).graph.initializer:
            for entry in tensor.external_data:
                assert entry.key != "location" or entry.value == "q.onnx.data"
        got = Session(moved, 1, simulate=True).run({"x": X})["y"]
        assert np.abs(got - expected).max() < 0.1 * np.abs(expected).max()
    assert (tmp_path / "moved_float" / "q.onnx").stat().st_size < 10_000
    evaluator = OnnxEvaluator(prepared, ArrayDataset({"x": X}), make("cosine"))
    assert evaluator.evaluate(made["float"]).value > 0.999 and evaluator.evaluate(made["integers"]).value > 0.99
    assert len(small_protobufs) > 5 and max(small_protobufs) < LIMIT


def test_weights_left_in_files_follow_a_small_output(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The quantized model fits one protobuf, the float one did not: nothing may point at the old data file."""
    monkeypatch.setattr(prepare, "IN_MEMORY_BYTES", LIMIT)
    path = stored(tmp_path / "in")
    prepared, made = plans(path)
    qdq.save(qdq.write(prepared, made["mixed"]).model, tmp_path / "q.onnx")
    proto = onnx.load(str(tmp_path / "q.onnx"), load_external_data=False)
    assert not any(t.data_location == TensorProto.EXTERNAL for t in proto.graph.initializer)
    shutil.rmtree(tmp_path / "in")
    assert ort.InferenceSession(str(tmp_path / "q.onnx"), providers=["CPUExecutionProvider"]).run(["y"], {"x": X})[0].shape == X.shape


@pytest.mark.parametrize("half", [False, True])
def test_the_way_of_the_weights_changes_no_number(tmp_path: Path, half: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    path = stored(tmp_path)
    if half:
        proto = chain()
        for tensor in proto.graph.initializer:
            tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor).astype(np.float16), tensor.name))
        for value in (*proto.graph.input, *proto.graph.output):
            value.type.tensor_type.elem_type = TensorProto.FLOAT16
        onnx.save_model(proto, str(path), save_as_external_data=True, location="half.data", size_threshold=0)
    in_memory, made = plans(path)
    monkeypatch.setattr(prepare, "IN_MEMORY_BYTES", 1000)
    in_files, others = plans(path)
    assert in_files.notes == in_memory.notes and bool(in_memory.notes) == half
    for name, plan in made.items():
        assert plan == others[name]
        assert qdq.to_bytes(qdq.write(in_memory, plan).model) == qdq.to_bytes(qdq.write(in_files, plan).model)


def test_a_large_model_in_memory_has_a_key_of_its_content(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "ONE_PROTOBUF_BYTES", LIMIT)
    proto = chain()
    keys = [load_network(ir.serde.deserialize_model(proto)).network.model_key for _ in range(2)]
    proto.graph.initializer[3].raw_data = proto.graph.initializer[3].raw_data[:-4] + b"\0\0\0\1"
    keys.append(load_network(ir.serde.deserialize_model(proto)).network.model_key)
    assert keys[0] == keys[1] != keys[2]


@pytest.mark.parametrize("where", ["initializer", "constant", "body"])
@pytest.mark.parametrize(("location", "told"), [("../net.data", "outside the model's folder"), ("/net.data", "outside the model's folder"),
                                                ("a/../../net.data", "outside the model's folder"), ("link.data", "link that leaves"),
                                                ("folder/net.data", "link that leaves"), ("none.data", "is missing"), ("short.data", "not complete")])
def test_data_that_lies_elsewhere_is_refused(tmp_path: Path, location: str, told: str, where: str) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    (tmp_path / "outside").mkdir()
    for name in ("net.data", "outside/net.data"):
        (tmp_path / name).write_bytes(bytes(64))
    (folder / "link.data").symlink_to(tmp_path / "net.data")
    (folder / "folder").symlink_to(tmp_path / "outside", target_is_directory=True)
    (folder / "short.data").write_bytes(bytes(60))
    weight = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[4, 4], data_location=TensorProto.EXTERNAL)
    for key, value in (("location", location), ("length", "64")):
        weight.external_data.add(key=key, value=value)
    product = node("MatMul", ["x", "w"], ["y"], "mm")
    nodes, held = [product], [weight]
    if where == "constant":
        nodes, held = [node("Constant", [], ["w"], "const", value=weight), product], []
    if where == "body":
        then = helper.make_graph([product], "then", [], [onnx.ValueInfoProto(name="y")], [weight])
        other = helper.make_graph([node("Neg", ["x"], ["n"])], "other", [], [onnx.ValueInfoProto(name="n")])
        nodes, held = [node("If", ["c"], ["z"], "choice", then_branch=then, else_branch=other)], []
    graph = helper.make_graph(nodes, "g", [info("x", [4, 4]), info("c", [], TensorProto.BOOL)], [info("z" if where == "body" else "y", [4, 4])], held)
    path = folder / "net.onnx"
    path.write_bytes(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8).SerializeToString())
    with pytest.raises(ModelError, match=f"{told}|not a readable ONNX file"):
        load_network(path)


def test_a_link_inside_the_folder_is_fine(tmp_path: Path) -> None:
    path = stored(tmp_path, "real.data")
    (tmp_path / "net.data").symlink_to(tmp_path / "real.data")
    proto = onnx.load(str(path), load_external_data=False)
    for tensor in proto.graph.initializer:
        tensor.external_data[0].value = "net.data"
    path.write_bytes(proto.SerializeToString())
    assert len(load_network(path).network.kernels) == 2 * DEPTH - DEPTH + 1


@pytest.mark.skipif("QBENCH_BIG_MODEL" not in os.environ, reason="writes and reads 2.4 GB; set QBENCH_BIG_MODEL=1 to run it")
def test_a_real_model_above_two_gigabytes(tmp_path: Path) -> None:
    """Nine weights of zeros, 268 MB each, in a sparse file. Memory that is not the file itself stays below half of it."""
    width, count = 8192, 9
    size = width * width * 4
    with open(tmp_path / "net.data", "wb") as file:
        file.truncate(count * size)
    weights, nodes, source = [], [], "x"
    for i in range(count):
        weights.append(TensorProto(name=f"w{i}", data_type=TensorProto.FLOAT, dims=[width, width], data_location=TensorProto.EXTERNAL))
        for key, value in (("location", "net.data"), ("offset", str(i * size)), ("length", str(size))):
            weights[-1].external_data.add(key=key, value=value)
        nodes.append(node("MatMul", [source, f"w{i}"], [f"m{i}"], f"mm{i}"))
        source = f"m{i}"
    graph = helper.make_graph(nodes, "g", [info("x", ["N", width])], [info(source, ["N", width])], weights)
    (tmp_path / "net.onnx").write_bytes(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8).SerializeToString())
    before = _own_memory()
    prepared = load_network(tmp_path / "net.onnx")
    data: Array = RNG.normal(size=(2, width)).astype(np.float32)
    statistics = statistics_of(prepared, ArrayDataset({"x": data}))
    chip = targets.load("rk3588")
    allowed, _ = allowed_precisions(prepared.network, statistics, chip, None)
    make_plan = Plans(prepared.network, statistics, schemes_of(chip, None))
    for precision in (Precision.FP16, Precision.INT8):
        plan = make_plan({u: precision if precision in p else p[-1] for u, p in allowed.items()}, "minmax", Granularity.PER_CHANNEL, "")
        qdq.save(qdq.write(prepared, plan).model, tmp_path / "out" / f"{precision}.onnx")
        assert ort.InferenceSession(str(tmp_path / "out" / f"{precision}.onnx"), providers=["CPUExecutionProvider"]).run(None, {"x": data})[0].shape == data.shape
    assert _own_memory() - before < count * size / 2


def _own_memory() -> int:
    """Bytes of this process that are not pages of files."""
    text = Path("/proc/self/status").read_text(encoding="ascii")
    return next(int(line.split()[1]) * 1024 for line in text.splitlines() if line.startswith("RssAnon"))


def test_the_output_never_takes_the_place_of_the_models_own_weights(tmp_path: Path, small_protobufs: list[int]) -> None:
    path = stored(tmp_path, "q.onnx.data")
    before = (tmp_path / "q.onnx.data").read_bytes()
    prepared, _ = plans(path)
    with pytest.raises(InputError, match="which holds weights of the model itself; write to another folder or name"):
        qdq.save(prepared.model, tmp_path / "q.onnx")
    assert (tmp_path / "q.onnx.data").read_bytes() == before
    assert sorted(p.name for p in tmp_path.iterdir()) == ["net.onnx", "q.onnx.data"]
