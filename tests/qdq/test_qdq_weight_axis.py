"""A target may take the weights of some operators with other scales than one per output channel (BUG case B09)."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from models import NPU, Array, model, node, observe, plan, prepare, sqnr_db
from onnx import numpy_helper

import qbench.targets
from qbench import qdq
from qbench.errors import TargetError
from qbench.plan import Granularity, Plan
from qbench.runtime import Session
from qbench.targets.loader import load_file

RNG = np.random.default_rng(0)
X = {"x": RNG.normal(size=(8, 4, 6, 6)).astype(np.float32)}
PLAIN = (Path(qbench.targets.__file__).parent / "rk3588.toml").read_text()


def target_file(folder: Path, line: str, per_channel: str = "true") -> Path:
    """rk3588 with one more line in the scheme of its first precision."""
    path = folder / "rk3588.toml"
    path.write_text(PLAIN.replace("weight_per_channel = true", f"weight_per_channel = {per_channel}\n{line}", 1))
    return path


def network() -> onnx.ModelProto:
    """Conv, transposed Conv of two groups, MatMul; the channels of each weight differ in size by up to 20."""
    def weight(*shape: int, axis: int) -> Array:
        sizes = [1] * len(shape)
        sizes[axis] = shape[axis]
        return (RNG.normal(size=shape) * np.geomspace(0.05, 1, shape[axis]).reshape(sizes)).astype(np.float32)

    weights = {"w": weight(4, 4, 3, 3, axis=0), "b": RNG.normal(size=4).astype(np.float32), "t": weight(4, 3, 2, 2, axis=0), "tb": RNG.normal(size=6).astype(np.float32),
               "m": weight(12, 5, axis=1)}
    nodes = [node("Conv", ["x", "w", "b"], ["c"], "conv", pads=[1, 1, 1, 1]),
             node("ConvTranspose", ["c", "t", "tb"], ["d"], "up", group=2, strides=[2, 2]), node("MatMul", ["d", "m"], ["y"], "mm")]
    return model(nodes, {"x": ["N", 4, 6, 6]}, {"y": ["N", 6, 12, 5]}, weights)


def scales(axis: tuple[tuple[str, str], ...], granularity: Granularity = Granularity.PER_CHANNEL) -> tuple[dict[str, tuple[int, ...]], qdq.Written, float]:
    """Weight -> shape of its scales; what was written; SQNR of the output."""
    prepared = prepare(network())
    scheme = replace(NPU["int8"], weight_axis=axis, weight_block=2 if granularity is Granularity.PER_GROUP else 0)
    made = plan(prepared, observe(prepared, [X]), granularity=granularity, schemes={"int8": scheme})
    found = qdq.write(prepared, made)
    proto = ir.to_proto(found.model)
    onnx.checker.check_model(proto, full_check=True)
    held = {i.name: numpy_helper.to_array(i) for i in proto.graph.initializer}
    after = Session(proto.SerializeToString(), 1).run(X)["y"]
    return ({w: held[f"{w}_scale"].shape for w in ("w", "t", "m")}, found, sqnr_db(Session(qdq.to_bytes(prepared.model), 1).run(X)["y"], after))


def test_without_a_word_every_weight_has_a_scale_per_output_channel() -> None:
    shapes, found, db = scales(())
    assert shapes == {"w": (4,), "t": (3,), "m": (5,)} and not found.per_tensor and db > 30


def test_each_operator_as_the_target_takes_it() -> None:
    shapes, found, db = scales((("ConvTranspose", "tensor"), ("MatMul", "tensor")))
    assert shapes == {"w": (4,), "t": (), "m": ()} and db > 25
    assert found.per_tensor == {"t": "the target takes one scale per weight tensor of ConvTranspose", "m": "the target takes one scale per weight tensor of MatMul"}


def test_a_scale_per_input_channel() -> None:
    """Input channels differ in size here, so it is finer than per tensor; there is no single step for a bias, which stays in float."""
    shapes, found, db = scales((("ConvTranspose", "input"),))
    _, _, coarse = scales((("ConvTranspose", "tensor"),))
    assert shapes == {"w": (4,), "t": (4,), "m": (5,)} and db >= coarse - 0.1
    assert "a scale per input channel" in found.float_bias["tb"]
    weight = next(n for n in found.model.graph if n.op_type == "DequantizeLinear" and n.outputs[0].name == "t_dq")
    assert weight.attributes["axis"].as_int() == 0


def test_blocks_do_not_overrule_the_target() -> None:
    shapes, _, _ = scales((("MatMul", "tensor"),), Granularity.PER_GROUP)
    assert shapes["m"] == () and len(shapes["w"]) == 2


def test_the_plan_keeps_it(tmp_path: Path) -> None:
    prepared = prepare(network())
    made = plan(prepared, observe(prepared, [X]), schemes={"int8": replace(NPU["int8"], weight_axis=(("MatMul", "tensor"),))})
    made.save(tmp_path / "plan.json")
    again = Plan.load(tmp_path / "plan.json")
    assert again == made and qdq.to_bytes(qdq.write(prepared, again).model) == qdq.to_bytes(qdq.write(prepared, made).model)


def test_the_target_file_says_it(tmp_path: Path) -> None:
    scheme = load_file(target_file(tmp_path, 'weight_axis = { MatMul = "tensor", ConvTranspose = "input" }')).precisions[0].scheme
    assert scheme is not None and scheme.weight_axis == (("ConvTranspose", "input"), ("MatMul", "tensor"))
    assert [scheme.axis_of(op) for op in ("Conv", "MatMul", "ConvTranspose")] == ["output", "tensor", "input"]


@pytest.mark.parametrize(("line", "per_channel", "told"), [
    ('weight_axis = { Relu = "tensor" }', "true", r"weight_axis\.Relu is 'tensor'; this key is unknown here, expected one of Conv, ConvTranspose, Gemm, MatMul"),
    ('weight_axis = { Conv = "input" }', "true", r"weight_axis\.Conv is 'input'; expected \"tensor\", or for ConvTranspose \"input\""),
    ("weight_axis = 1", "true", r"weight_axis is 1; expected a table"),
    ('weight_axis = { Conv = "tensor" }', "false", "expected no such key where weight_per_channel is false")])
def test_a_wrong_entry_is_refused(tmp_path: Path, line: str, per_channel: str, told: str) -> None:
    with pytest.raises(TargetError, match=told):
        load_file(target_file(tmp_path, line, per_channel))
