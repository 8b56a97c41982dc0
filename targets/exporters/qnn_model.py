"""The plan's Q/DQ model as onnxruntime-qnn takes it.

onnxruntime-qnn 2.7.0 takes Conv, Relu and the pair behind them for one layer only where the Relu (or Clip) cuts nothing that the codes hold. Where
its scale is shared with a signed tensor (a Concat, an Add), the Conv ends without a pair and is refused ("standalone DQ op with per-channel
quantization"). There the Conv gets a pair of its own, with the same scale: the codes behind the clamp stay the same, since rounding keeps order.

It takes a Resize in integers only between codes of one scale, and in FP16 otherwise. Where a plan gives a linear one another scale than what it
reads, the Resize ends in the scale it reads, and its codes are converted behind it: one rounding more, of half a step.

MatMul and Add become one layer only where the bias has one axis; [1, 1, N] says the same.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import inf
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from qbench.export import Job
from qbench.graph.attributes import text
from qbench.graph.operators import CLAMPS
from qbench.qdq import clamped
from qbench.targets.exporters.shapes import with_static_shapes

ON_CODES = "on_codes"


def handed(job: Job) -> ir.Model:
    """The job's Q/DQ model with static shapes, with a pair before every clamp that cuts codes and behind every Resize that changes the scale;
    biases of MatMul with one axis."""
    model = job.written.model.clone()
    with_static_shapes(model, job.prepared.network)
    for pair in list(_flat_biases(model)):
        _flatten(pair)
    for clamp, quantizer in list(_cutting(model, job)):
        _pair_before(clamp, quantizer, "before_clamp")
    for quantizer, given in list(_rescaling(model)):
        _pair_before(quantizer, given, ON_CODES)
    return model


def _flat_biases(model: ir.Model) -> Iterator[ir.Node]:
    """The DequantizeLinear of every int32 bias of a MatMul that has one axis of more than one value, the last, and others around it."""
    for node in model.graph:
        if node.op_type != "Add" or not any(v is not None and (m := v.producer()) is not None and m.op_type == "MatMul" for v in node.inputs):
            continue
        for value in node.inputs:
            pair = None if value is None else value.producer()
            if pair is not None and pair.op_type == "DequantizeLinear" and len(pair.outputs[0].uses()) == 1 and pair.inputs[0] is not None:
                codes = pair.inputs[0].const_value
                if codes is not None and codes.dtype == ir.DataType.INT32 and len(codes.shape) > 1 and codes.numpy().size == codes.numpy().shape[-1]:
                    yield pair


def _flatten(pair: ir.Node) -> None:
    codes = pair.inputs[0]
    assert codes is not None and codes.const_value is not None and pair.graph is not None
    flat = ir.Value(name=f"{codes.name}_flat", const_value=ir.tensor(codes.const_value.numpy().reshape(-1), name=f"{codes.name}_flat"))
    pair.graph.initializers.add(flat)
    pair.replace_input_with(0, flat)
    if pair.attributes.get("axis") is not None:
        pair.attributes["axis"] = ir.AttrInt64("axis", 0)
    pair.outputs[0].type, pair.outputs[0].shape = ir.TensorType(ir.DataType.FLOAT), ir.Shape([codes.const_value.numpy().size])


def _pair_before(node: ir.Node, like: ir.Node, what: str) -> None:
    """Puts a pair with the parameters of `like`, one of its kind, before the first input of `node`."""
    inner = node.inputs[0]
    assert inner is not None and node.graph is not None
    codes, reals = ir.Value(name=f"{inner.name}_{what}_q"), ir.Value(name=f"{inner.name}_{what}_dq", type=inner.type, shape=inner.shape)
    node.graph.insert_before(node, [
        ir.node(op, [before, *like.inputs[1:]], domain=like.domain, outputs=[after], name=f"{inner.name}_{what}_{op}")
        for op, before, after in (("QuantizeLinear", inner, codes), ("DequantizeLinear", codes, reals))])
    node.replace_input_with(0, reals)


def kept_scales(model: ir.Model) -> dict[str, str]:
    """Tensor behind a Resize that `handed` let keep the scale it reads -> its codes in that scale."""
    return {str(n.inputs[0].name): str(n.outputs[0].name) for n in model.graph
            if n.op_type == "QuantizeLinear" and n.inputs[0] is not None and str(n.outputs[0].name) == f"{n.inputs[0].name}_{ON_CODES}_q"}


def _rescaling(model: ir.Model) -> Iterator[tuple[ir.Node, ir.Node]]:
    """The QuantizeLinear behind every linear Resize of codes that have other parameters, and the DequantizeLinear before it. A cubic one gives values
    that its input's codes do not reach."""
    for node in model.graph:
        before = node.inputs[0].producer() if node.op_type == "Resize" and text(node, "mode", "nearest") == "linear" and node.inputs[0] is not None else None
        behind = next((reader for reader, _ in node.outputs[0].uses() if reader.op_type == "QuantizeLinear"), None)
        if before is None or behind is None or before.op_type != "DequantizeLinear":
            continue
        if any(not np.array_equal(_array(a), _array(b)) for a, b in zip(before.inputs[1:], behind.inputs[1:], strict=True)):
            yield behind, before


def _cutting(model: ir.Model, job: Job) -> Iterator[tuple[ir.Node, ir.Node]]:
    """Every Relu or Clip inside a kernel that cuts codes of the QuantizeLinear behind it, and that one."""
    inner = {t for k in job.prepared.network.kernels for t in clamped(k)}
    for node in model.graph:
        if node.op_type not in CLAMPS or node.inputs[0] is None or str(node.inputs[0].name) not in inner:
            continue
        for reader, _ in node.outputs[0].uses():
            if reader.op_type == "QuantizeLinear" and _cuts(node, reader):
                yield node, reader
                break


def _cuts(clamp: ir.Node, quantizer: ir.Node) -> bool:
    """Whether some code stands for a real beyond the clamp's bounds."""
    scale, zero = (float(_array(quantizer.inputs[i]).reshape(-1)[0]) for i in (1, 2))
    kind = np.iinfo(_array(quantizer.inputs[2]).dtype)
    low, high = 0.0, inf
    if clamp.op_type == "Clip":
        low, high = (default if i >= len(clamp.inputs) or clamp.inputs[i] is None else float(_array(clamp.inputs[i]).reshape(-1)[0])
                     for i, default in ((1, -inf), (2, inf)))
    return (kind.min - zero) * scale < low or (kind.max - zero) * scale > high


def _array(value: ir.Value | None) -> NDArray[Any]:
    assert value is not None and value.const_value is not None
    return value.const_value.numpy()
