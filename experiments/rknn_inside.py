"""Runs inside the environment of rknn-toolkit2, started by harvest_rknn_cycles.py: one build with the verbose log on standard output.

    python rknn_inside.py MODEL.onnx int8|fp16 PLATFORM FOLDER

Needs nothing of qbench. Weights that are all zero are drawn at random (He et al. 2015), since a compiler may fold zeros away.
"""

import sys
from pathlib import Path

import numpy as np
import onnx
from onnx import numpy_helper
from rknn.api import RKNN

SMALL = 16                                      # elements from which a tensor of zeros is taken for weights that are missing


def with_weights(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with zeros replaced by random values, in place."""
    rng = np.random.default_rng(0)
    for tensor in model.graph.initializer:
        if tensor.data_type == onnx.TensorProto.FLOAT:
            values = numpy_helper.to_array(tensor)
            if values.size >= SMALL and not values.any():
                fan_in = values[0].size if values.ndim > 1 else 100
                drawn = rng.standard_normal(values.shape) * np.sqrt(2.0 / fan_in)
                tensor.CopyFrom(numpy_helper.from_array(drawn.astype(np.float32), tensor.name))
    return model


def main(path: str, mode: str, platform: str, folder: str) -> int:
    here, rng = Path(folder), np.random.default_rng(1)
    model = with_weights(onnx.load(path))
    names = []
    constants = {t.name for t in model.graph.initializer}
    for i, value in enumerate(v for v in model.graph.input if v.name not in constants):
        axes = value.type.tensor_type.shape.dim
        for axis in axes:
            axis.dim_value = axis.dim_value or 1                   # an open axis is taken as 1; the toolkit refuses it
        np.save(here / f"{i}.npy", rng.standard_normal([axis.dim_value for axis in axes]).astype(np.float32))
        names.append(str(here / f"{i}.npy"))
    onnx.save(model, here / "model.onnx")
    (here / "data.txt").write_text(" ".join(names) + "\n")
    kit = RKNN(verbose=True)
    for step in (lambda: kit.config(target_platform=platform, quantized_dtype="w8a8", quantized_algorithm="normal", quantized_method="channel"),
                 lambda: kit.load_onnx(model=str(here / "model.onnx")),
                 lambda: kit.build(do_quantization=mode == "int8", dataset=str(here / "data.txt"))):
        if step() not in (0, None):
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
