"""onnxruntime, and nothing else of the kind: sessions as qbench wants them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray

from qbench.errors import ModelError

Array = NDArray[Any]
SIMULATE = "session.disable_quant_qdq"
UNASKED = ["WeightBiasQuantization"]
"""Optimizers that change the plan: this one stores the float weights of a layer as 8-bit integers when it stands between a DQ and a Q."""


class Session:
    """A model ready to run on the CPU.

    simulate   run Q/DQ pairs as written, in float, instead of fusing them into integer kernels
    """

    def __init__(self, model: bytes | Path, threads: int | None = None, simulate: bool = False) -> None:
        options = ort.SessionOptions()
        options.intra_op_num_threads = threads or default_threads()
        options.log_severity_level = 3
        if simulate:
            options.add_session_config_entry(SIMULATE, "1")
        try:
            self._session = ort.InferenceSession(model if isinstance(model, bytes) else str(model), options,
                                                 providers=["CPUExecutionProvider"], disabled_optimizers=UNASKED)
        except Exception as error:
            raise ModelError(f"onnxruntime cannot load the model: {str(error).splitlines()[0][:300]}") from error
        self.inputs = tuple(i.name for i in self._session.get_inputs())
        self.outputs = tuple(o.name for o in self._session.get_outputs())

    def run(self, feeds: Mapping[str, Array]) -> dict[str, Array]:
        """All outputs by name; extra feeds are ignored."""
        try:
            values = self._session.run(None, {k: feeds[k] for k in self.inputs})
        except Exception as error:
            raise ModelError(f"onnxruntime fails while running: {str(error).splitlines()[0][:300]}") from error
        return dict(zip(self.outputs, values, strict=True))


def default_threads() -> int:
    return max(1, len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)


@cache
def integer_kernels_saturate() -> bool:
    """True where this CPU's uint8 x int8 products saturate at 16 bit (x86 without VNNI), so that integer kernels lie.

    Found by running one convolution whose pair sums exceed 16 bit, with integer kernels and as written.
    """
    data = _saturating_model()
    feeds = {"x": np.full((1, 64, 4, 4), 1.0, np.float32)}
    fused, written = (Session(data, 1, simulate).run(feeds)["y"] for simulate in (False, True))
    return bool(np.abs(fused - written).max() > 0.02 * np.abs(written).max())


@cache
def runs_opset(version: int) -> bool:
    """True where this onnxruntime has QuantizeLinear and DequantizeLinear of that opset: found by loading them."""
    try:
        Session(_saturating_model(version), 1)
    except ModelError:
        return False
    return True


def _saturating_model(opset: int = 17) -> bytes:
    """Q -> DQ -> Conv(64 x 1x1, all weights 127) -> Q -> DQ: 255 * 127 * 2 leaves 16 bit."""
    from onnx import TensorProto, helper, numpy_helper

    def initializer(name: str, array: Array) -> Any:
        return numpy_helper.from_array(array, name)

    scale, zero = np.float32(1 / 255), np.uint8(0)
    weight = np.full((8, 64, 1, 1), 127, np.int8)
    constants = [initializer("sx", np.asarray(scale)), initializer("zx", np.asarray(zero)), initializer("w", weight),
                 initializer("sw", np.asarray(np.float32(1 / 127))), initializer("zw", np.asarray(np.int8(0))),
                 initializer("sy", np.asarray(np.float32(64 / 255)))]
    nodes = [helper.make_node("QuantizeLinear", ["x", "sx", "zx"], ["xq"]), helper.make_node("DequantizeLinear", ["xq", "sx", "zx"], ["xd"]),
             helper.make_node("DequantizeLinear", ["w", "sw", "zw"], ["wd"]), helper.make_node("Conv", ["xd", "wd"], ["c"]),
             helper.make_node("QuantizeLinear", ["c", "sy", "zx"], ["cq"]), helper.make_node("DequantizeLinear", ["cq", "sy", "zx"], ["y"])]
    graph = helper.make_graph(nodes, "saturation", [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 64, 4, 4])],
                              [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 8, 4, 4])], constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
    data: bytes = model.SerializeToString()
    return data
