"""The plan's Q/DQ model as onnxruntime-qnn takes it.

onnxruntime-qnn 2.7.0 takes Conv, Relu and the pair behind them for one layer only where the Relu (or Clip) cuts nothing that the codes hold. Where
its scale is shared with a signed tensor (a Concat, an Add), the Conv ends without a pair and is refused ("standalone DQ op with per-channel
quantization"). There the Conv gets a pair of its own, with the same scale: the codes behind the clamp stay the same, since rounding keeps order.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import inf
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from qbench.export import Job
from qbench.graph.operators import CLAMPS
from qbench.qdq import clamped
from qbench.targets.exporters.shapes import with_static_shapes


def handed(job: Job) -> ir.Model:
    """The job's Q/DQ model with static shapes, and with a pair before every clamp that cuts codes."""
    model = job.written.model.clone()
    with_static_shapes(model, job.prepared.network)
    for clamp, quantizer in list(_cutting(model, job)):
        inner = clamp.inputs[0]
        assert inner is not None
        codes = ir.Value(name=f"{inner.name}_before_clamp_q")
        reals = ir.Value(name=f"{inner.name}_before_clamp_dq", type=inner.type)
        parameters = quantizer.inputs[1:]
        model.graph.insert_before(clamp, [
            ir.node("QuantizeLinear", [inner, *parameters], domain=quantizer.domain, outputs=[codes], name=f"{inner.name}_before_clamp_QuantizeLinear"),
            ir.node("DequantizeLinear", [codes, *parameters], domain=quantizer.domain, outputs=[reals], name=f"{inner.name}_before_clamp_DequantizeLinear"),
        ])
        clamp.replace_input_with(0, reals)
    return model


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
