"""The Q/DQ model as AMCT's convert_qat_model reads it: whole pairs around weights, biases in float, shapes fixed.

Its documents ask for QuantizeLinear and DequantizeLinear together, also around weights, which it then quantizes itself: the float weights here are
codes times scale, so it finds the plan's codes again. Gemm and MatMul take one scale for all of a weight.
Source: Huawei CANN documents, "QAT Model Adaptation to CANN Format" (atlasamct_16_0153, 9.2, 2026).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from qbench.export import Consent, Job, StoredTensor
from qbench.qdq.builder import Builder
from qbench.targets.exporters.ascend_amct import Record
from qbench.targets.exporters.qnn_readback import quantizers
from qbench.targets.exporters.shapes import with_static_shapes

CHANNELS_OF = frozenset({"Conv", "ConvTranspose"})
WEIGHTED = CHANNELS_OF | {"Gemm", "MatMul"}
ONE_SCALE = "Gemm and MatMul take one scale for all of a weight"


@dataclass(frozen=True)
class Layer:
    """A node with integer weights. activation, weight   keys of what the plan says; activation "" where its input stays in float"""

    node: str
    op: str
    activation: str
    weight: str


def layers(job: Job) -> tuple[Layer, ...]:
    """In the model's order."""
    keys = {str(q.outputs[0].name): key for key, q in quantizers(job)}
    found = []
    for node in job.written.model.graph:
        if node.op_type in WEIGHTED and (name := _weight(node)):
            before = node.inputs[0].producer() if node.inputs[0] is not None else None
            codes = before.inputs[0] if before is not None and before.op_type == "DequantizeLinear" else None
            found.append(Layer(str(node.name), node.op_type, "" if codes is None else keys.get(str(codes.name), ""), f"weight:{name}"))
    return tuple(found)


def _weight(node: ir.Node) -> str:
    before = node.inputs[1].producer() if len(node.inputs) > 1 and node.inputs[1] is not None else None
    codes = before.inputs[0] if before is not None and before.op_type == "DequantizeLinear" else None
    return "" if codes is None or codes.const_value is None else str(codes.name).removesuffix("_q")


def many_scales(job: Job) -> tuple[Layer, ...]:
    """Layers that have a scale per channel where AMCT takes one."""
    return tuple(x for x in layers(job) if x.op not in CHANNELS_OF and len(job.demanded.tensors[x.weight].scale) > 1)


@dataclass(frozen=True)
class Adapted:
    """consent   weights that got one scale"""

    model: ir.Model
    records: tuple[Record, ...]
    consent: Mapping[str, Consent]


def adapted(job: Job) -> Adapted:
    """A copy; the plan's own numbers, but for the weights of `many_scales`."""
    model = job.written.model.clone()
    with_static_shapes(model, job.prepared.network)
    builder = Builder(model)
    single = {x.weight for x in many_scales(job)}
    stored = dict(job.demanded.tensors)
    consent: dict[str, Consent] = {}
    for node in [n for n in model.graph if n.op_type == "DequantizeLinear" and n.inputs[0] is not None and n.inputs[0].const_value is not None]:
        codes = _array(node.inputs[0])
        name = str(node.inputs[0].name).removesuffix("_q")  # type: ignore[union-attr]
        reals = _reals(node, codes)
        if codes.dtype.itemsize > 2:
            _in_place(node, builder.initializer(f"{name}_real", reals))
            continue
        key = f"weight:{name}"
        if key in single:
            merged = StoredTensor("int8", (max(stored[key].scale),), (0,))
            stored[key], consent[key] = merged, Consent(merged, f"{ONE_SCALE}: rounded again to the largest of {len(job.demanded.tensors[key].scale)}")
        _whole_pair(builder, node, name, reals, stored[key])
    _drop_unused(model)
    model.graph.sort()
    rows = []
    for layer in layers(job):
        if layer.activation:
            given = stored[layer.activation]
            rows.append(Record(layer.node, given.scale[0], given.steps[0] - 128, stored[layer.weight].scale))
    return Adapted(model, tuple(rows), consent)


def _reals(node: ir.Node, codes: NDArray[Any]) -> NDArray[np.float32]:
    scale = _array(node.inputs[1])
    zero = _array(node.inputs[2]) if len(node.inputs) > 2 and node.inputs[2] is not None else np.zeros((), np.int64)
    if scale.ndim:
        shape = [1] * codes.ndim
        shape[node.attributes.get_int("axis", 1)] = -1
        scale, zero = scale.reshape(shape), zero.reshape(shape) if zero.ndim else zero
    moved: NDArray[np.float32] = ((codes.astype(np.int64) - zero.astype(np.int64)).astype(np.float32) * scale.astype(np.float32)).astype(np.float32)
    return moved


def _whole_pair(builder: Builder, node: ir.Node, name: str, reals: NDArray[np.float32], stored: StoredTensor) -> None:
    """QuantizeLinear in front of the DequantizeLinear `node`, on float weights."""
    many = len(stored.scale) > 1
    scale = builder.initializer(f"{name}_pair_scale", np.asarray(stored.scale if many else stored.scale[0], np.float32))
    zero = builder.initializer(f"{name}_pair_zero_point", np.asarray(stored.zero_point if many else stored.zero_point[0], np.dtype(stored.dtype)))
    attributes = {"axis": node.attributes.get_int("axis", 1)} if many else {}
    codes = builder.node("QuantizeLinear", [builder.initializer(f"{name}_float", reals), scale, zero], name, f"{name}_codes", attributes)
    node.replace_input_with(0, codes)
    node.replace_input_with(1, scale)
    if len(node.inputs) < 3:
        node.resize_inputs(3)
    node.replace_input_with(2, zero)
    if not many:
        node.attributes.pop("axis", None)


def _in_place(node: ir.Node, value: ir.Value) -> None:
    """`value` for the result of `node`."""
    node.outputs[0].replace_all_uses_with(value)


def _drop_unused(model: ir.Model) -> None:
    ends = {id(v) for v in model.graph.outputs}
    for node in [n for n in model.graph if n.op_type == "DequantizeLinear" and not n.outputs[0].uses() and id(n.outputs[0]) not in ends]:
        model.graph.remove(node, safe=True)
    for name in [n for n, v in model.graph.initializers.items() if not v.uses() and id(v) not in ends]:
        del model.graph.initializers[name]


def _array(value: ir.Value | None) -> NDArray[Any]:
    assert value is not None and value.const_value is not None
    return value.const_value.numpy()


def read_weights(model: ir.Model) -> Iterator[tuple[str, StoredTensor]]:
    """Key -> scale and zero point of every pair around a float weight of an `adapted` model; both halves must agree, else the quantizer's is told."""
    for node in model.graph:
        if node.op_type == "QuantizeLinear" and node.inputs[0] is not None and node.inputs[0].const_value is not None:
            scale, zero = _array(node.inputs[1]), _array(node.inputs[2])
            yield (f"weight:{str(node.inputs[0].name).removesuffix('_float')}",
                   StoredTensor(zero.dtype.name, tuple(float(s) for s in scale.reshape(-1)), tuple(int(z) for z in zero.reshape(-1))))


def with_record(tensors: Mapping[str, StoredTensor], found: Mapping[str, Record], job: Job) -> dict[str, StoredTensor]:
    """`tensors` of the model, and what the record says of the same where it says something else."""
    told = dict(tensors)
    for layer in layers(job):
        record = found.get(layer.node)
        if record is None or not layer.activation:
            continue
        model = told.get(layer.activation)
        activation = StoredTensor("int8", (record.scale,), (record.offset,))
        if model is None or model.scale != activation.scale or model.steps != activation.steps:
            told[layer.activation] = activation
        weight = told.get(layer.weight)
        if weight is None or weight.scale != record.weights:
            told[layer.weight] = StoredTensor("int8", record.weights, (0,) * len(record.weights))
    return told


