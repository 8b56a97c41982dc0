"""The plan's Q/DQ model in one of AMD's conventions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil, log2
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from qbench.export import Consent, Job, StoredTensor
from qbench.qdq.builder import Builder
from qbench.targets.exporters.qnn_readback import quantizers
from qbench.targets.exporters.shapes import with_static_shapes
from qbench.targets.exporters.xdna_conventions import MICROSOFT, Convention, bias_reader, is_power_of_two

Array = NDArray[Any]
LARGEST = 127
ROUNDED = "rounded up to a power of two, by --option scales=power-of-two"
NARROW_BIAS = "XINT8 stores biases in 8 bits with a scale of their own"
WIDE_BIAS = "stored in 32 bits with the scale of the accumulator, as this convention has it; the value is that of the plan's 8 bits"


@dataclass(frozen=True)
class Adapted:
    """consent   tensors that are not stored as the plan says, and why"""

    model: ir.Model
    consent: Mapping[str, Consent]


def adapted(job: Job, convention: Convention) -> Adapted:
    """A copy with static shapes, zero points everywhere, and what the convention asks for."""
    model = job.written.model.clone()
    with_static_shapes(model, job.prepared.network)
    builder = Builder(model)
    consent: dict[str, Consent] = {}
    if convention.power_of_two:
        _activations(job, builder, consent)
    for node in [n for n in model.graph if n.op_type == "DequantizeLinear"]:
        codes = node.inputs[0]
        if codes is None or codes.const_value is None:
            continue
        stored = codes.const_value.numpy()
        key = f"weight:{str(codes.name).removesuffix('_q')}"
        if stored.dtype == np.int32:
            if convention.bias == "int8":
                _narrow_bias(builder, node, key, stored, consent)
            elif len(node.inputs) < 3 or node.inputs[2] is None:
                _replace(builder, node, None, _array(node.inputs[1]), np.zeros(_array(node.inputs[1]).shape, np.int32))
        elif convention.bias == "int32" and (reader := bias_reader(node)) is not None:
            _wide_bias(builder, node, reader, key, stored, consent)
        elif convention.power_of_two and (len(job.demanded.tensors[key].scale) > 1 or not is_power_of_two(job.demanded.tensors[key].scale[0])):
            _one_scale(builder, node, key, stored, consent)
    if convention.domain == MICROSOFT:
        _move_domain(model)
    for unused in [n for n, v in model.graph.initializers.items() if not v.uses()]:
        del model.graph.initializers[unused]
    model.graph.sort()
    return Adapted(model, consent)


def power_above(scale: float) -> float:
    """The smallest power of two that is not below `scale`."""
    return scale if is_power_of_two(scale) else float(2.0 ** ceil(log2(scale)))


def _activations(job: Job, builder: Builder, consent: dict[str, Consent]) -> None:
    """Other scales for those that are no powers of two. Nodes find theirs by key, as several tensors may share one initializer."""
    names = {str(n.name): key for key, n in quantizers(job)}
    made: dict[float, ir.Value] = {}
    for node in [n for n in builder.graph if n.op_type == "QuantizeLinear" and str(n.name) in names]:
        stored = job.demanded.tensors[names[str(node.name)]]
        if is_power_of_two(stored.scale[0]):
            continue
        scale = power_above(stored.scale[0])
        if scale not in made:
            made[scale] = builder.initializer(f"power_of_two_{len(made)}", np.asarray(scale, np.float32))
        for reader in (node, *(use.node for use in node.outputs[0].uses())):
            reader.replace_input_with(1, made[scale])
        consent[names[str(node.name)]] = Consent(StoredTensor(stored.dtype, (scale,), stored.zero_point), ROUNDED)


def _reals(node: ir.Node, codes: Array) -> Array:
    scale = _array(node.inputs[1])
    if scale.ndim:
        shape = [1] * codes.ndim
        shape[node.attributes.get_int("axis", 1)] = -1
        scale = scale.reshape(shape)
    return np.asarray(codes.astype(np.float64) * scale)


def _one_scale(builder: Builder, node: ir.Node, key: str, codes: Array, consent: dict[str, Consent]) -> None:
    reals = _reals(node, codes)
    scale = power_above(float(_array(node.inputs[1]).max()))
    _replace(builder, node, np.clip(np.rint(reals / scale), -128, LARGEST).astype(np.int8), np.asarray(scale, np.float32), np.asarray(0, np.int8))
    consent[key] = Consent(StoredTensor("int8", (scale,), (0,)), ROUNDED)


def _narrow_bias(builder: Builder, node: ir.Node, key: str, codes: Array, consent: dict[str, Consent]) -> None:
    reals = _reals(node, codes)
    scale = power_above(max(float(np.abs(reals).max(initial=0.0)) / LARGEST, 2.0**-30))
    _replace(builder, node, np.clip(np.rint(reals / scale), -128, LARGEST).astype(np.int8), np.asarray(scale, np.float32), np.asarray(0, np.int8))
    consent[key] = Consent(StoredTensor("int8", (scale,), (0,)), NARROW_BIAS)


def _wide_bias(builder: Builder, node: ir.Node, reader: ir.Node, key: str, codes: Array, consent: dict[str, Consent]) -> None:
    """int32 of a bias that the plan has in 8 bits, in the steps of the accumulator of what reads it."""
    steps = [maker.inputs[1] for value in reader.inputs[:2] if value is not None and (maker := value.producer()) is not None
             and maker.op_type == "DequantizeLinear"]
    scale = np.asarray(np.prod([_array(s).max() for s in steps]), np.float32)
    wide = np.rint(_reals(node, codes) / np.float64(scale))
    _replace(builder, node, np.clip(wide, -(2**31), 2**31 - 1).astype(np.int32), scale, np.asarray(0, np.int32))
    consent[key] = Consent(StoredTensor("int32", (float(scale),), (0,)), WIDE_BIAS)


def wide_biases(model: ir.Model) -> dict[str, StoredTensor]:
    """Key -> scale of every int32 bias with a single one."""
    found = {}
    for node in model.graph:
        if node.op_type == "DequantizeLinear" and bias_reader(node) is not None and _array(node.inputs[0]).dtype == np.int32:
            scale = _array(node.inputs[1])
            if scale.size == 1:
                found[f"weight:{str(node.inputs[0].name).removesuffix('_q')}"] = StoredTensor("int32", (float(scale.reshape(())),), (0,))  # type: ignore[union-attr]
    return found


def _replace(builder: Builder, node: ir.Node, codes: Array | None, scale: Array, zero: Array) -> None:
    """Other codes, scale and zero point for a DequantizeLinear of constants; the codes keep the name by which they are read back."""
    if codes is not None:
        old = node.inputs[0]
        assert old is not None
        name = str(old.name)
        old.name = builder.free(f"{name}_plan")
        builder.names.discard(name)
        node.replace_input_with(0, builder.initializer(name, codes))
        node.replace_input_with(1, builder.initializer(f"{name}_scale", scale))
        if not scale.ndim:
            node.attributes.pop("axis", None)
    if len(node.inputs) < 3:
        node.resize_inputs(3)
    node.replace_input_with(2, builder.initializer(f"{node.name}_zero", zero))


def _move_domain(model: ir.Model) -> None:
    """All pairs in onnxruntime's own domain, as Quark writes them beside 16 bits."""
    model.opset_imports.setdefault(MICROSOFT, 1)
    for node in model.graph:
        if node.op_type in ("QuantizeLinear", "DequantizeLinear"):
            node.domain = MICROSOFT


def _array(value: ir.Value | None) -> Array:
    assert value is not None and value.const_value is not None
    return value.const_value.numpy()
