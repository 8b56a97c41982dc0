"""The plan's Q/DQ model with the numbers that a Core ML package can hold: scales, biases and constants of FP16 layers as float16.

It is made from the plan's model alone, so that a package can be held against it step by step.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from qbench.export import Job
from qbench.graph.operators import SIZE_OPERANDS
from qbench.network import Precision
from qbench.qdq.builder import Builder

Array = NDArray[Any]
HALF_ATTRIBUTES = {"HardSigmoid": {"alpha": 0.2, "beta": 0.5}, "LeakyRelu": {"alpha": 0.01}, "Elu": {"alpha": 1.0},
                   "BatchNormalization": {"epsilon": 1e-5}, "InstanceNormalization": {"epsilon": 1e-5}, "LayerNormalization": {"epsilon": 1e-5}}
"""Operator -> number and its default."""


def with_half_scales(job: Job) -> ir.Model:
    """A copy; 16-bit pairs, which Core ML lacks, are left out."""
    model = job.written.model.clone()
    builder = Builder(model)
    precision = {n: job.demanded.layers[k.name].precision for k in job.prepared.network.kernels for n in k.nodes}
    for node in list(model.graph):
        if node.op_type == "QuantizeLinear":
            maker = node.inputs[0].producer() if node.inputs[0] is not None else None
            if maker is None or precision.get(str(maker.name)) is not Precision.FP32:
                for reader in (node, *(use.node for use in node.outputs[0].uses())):
                    _half(builder, reader, 1)
        elif node.op_type == "DequantizeLinear" and (codes := _array(node.inputs[0])) is not None:
            if codes.dtype.itemsize > 1:
                _replace(model, node.outputs[0], builder.initializer(f"{node.name}_half", half(_reals(node, codes))))
            elif not all(precision.get(str(use.node.name)) is Precision.FP32 for use in node.outputs[0].uses()):
                _half(builder, node, 1)
        elif node.op_type != "DequantizeLinear" and precision.get(str(node.name)) is not Precision.FP32:
            for index in range(len(node.inputs)):
                if index not in SIZE_OPERANDS.get(node.op_type, ()):
                    _half(builder, node, index)
            _half_attributes(model, builder, node)
    _without_wide_pairs(model, builder)
    ir.passes.common.RemoveUnusedNodesPass()(model)
    model.graph.sort()
    return model


def half(values: Array) -> Array:
    """float32 with the values of float16, saturated."""
    limit = float(np.finfo(np.float16).max)
    return np.clip(values, -limit, limit).astype(np.float16).astype(np.float32)


def _half(builder: Builder, node: ir.Node, index: int) -> None:
    value = node.inputs[index]
    data = _array(value)
    if value is None or data is None or data.dtype != np.float32:
        return
    key = (value.name, "coreml half")
    if key not in builder.kept:
        builder.kept[key] = builder.initializer(f"{value.name}_half", half(data))
    node.replace_input_with(index, builder.kept[key])


def _half_attributes(model: ir.Model, builder: Builder, node: ir.Node) -> None:
    """Numbers that are attributes in ONNX and float16 operands in MIL; a HardSwish is the product that stands for it there."""
    defaults = HALF_ATTRIBUTES.get(node.op_type, {})
    for name, default in defaults.items():
        node.attributes[name] = ir.AttrFloat32(name, float(half(np.asarray(node.attributes.get_float(name, default)))))
    if node.op_type == "HardSwish" and node.inputs[0] is not None:
        gate = builder.node("HardSigmoid", [node.inputs[0]], str(node.name), f"{node.outputs[0].name}_gate", {"alpha": float(half(np.asarray(1 / 6))), "beta": 0.5})
        _replace(model, node.outputs[0], builder.node("Mul", [node.inputs[0], gate], str(node.name), f"{node.outputs[0].name}_half"))


def _without_wide_pairs(model: ir.Model, builder: Builder) -> None:
    for node in [n for n in model.graph if n.op_type == "DequantizeLinear"]:
        maker = node.inputs[0].producer() if node.inputs[0] is not None else None
        zero = _array(maker.inputs[2]) if maker is not None and maker.op_type == "QuantizeLinear" else None
        if maker is not None and zero is not None and zero.dtype.itemsize == 2 and maker.inputs[0] is not None:
            _replace(model, node.outputs[0], builder.node("Identity", [maker.inputs[0]], str(node.name), f"{node.outputs[0].name}_float"))


def _replace(model: ir.Model, old: ir.Value, new: ir.Value) -> None:
    """`new` for every reader of `old`, also where that is an output of the model."""
    old.replace_all_uses_with(new)
    for position, output in enumerate(model.graph.outputs):
        if output is old:
            name, old.name = str(old.name), f"{old.name}_codes"
            new.name, new.type, new.shape = name, old.type, old.shape
            model.graph.outputs[position] = new


def _reals(node: ir.Node, codes: Array) -> Array:
    scale, zero = (_array(node.inputs[i]) if i < len(node.inputs) else None for i in (1, 2))
    assert scale is not None
    zero = np.zeros(scale.shape) if zero is None else zero
    shape = [-1 if a == node.attributes.get_int("axis", 1) % max(codes.ndim, 1) else 1 for a in range(codes.ndim)] if scale.ndim else []
    return np.asarray((codes.astype(np.float64) - zero.astype(np.float64).reshape(shape)) * scale.astype(np.float64).reshape(shape))


def _array(value: ir.Value | None) -> Array | None:
    return None if value is None or value.const_value is None else value.const_value.numpy()
