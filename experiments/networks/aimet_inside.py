"""What against_aimet.py runs in AIMET's environment: encodings, then a Q/DQ model. Imports nothing of qbench.

usage: aimet_inside.py MODEL.onnx CALIBRATION.npz SAMPLES SCHEME OUT.onnx
"""

from __future__ import annotations

import sys
from pathlib import Path

import aimet_onnx
import numpy as np
import onnx
from aimet_onnx.common.defs import QuantScheme
from aimet_onnx.quantsim import QuantizationSimModel

CONFIG = Path(aimet_onnx.__file__).parent / "common/quantsim_config/default_config_per_channel.json"


def main(model: str, data: str, samples: str, scheme: str, goal: str) -> None:
    """Write the Q/DQ model of `model` to `goal`: int8 symmetric per-channel weights, uint8 asymmetric activations."""
    with np.load(data, allow_pickle=False) as stored:
        arrays = {k: stored[k] for k in stored.files if k != "labels"}
    count = min(int(samples), len(next(iter(arrays.values()))))
    sim = QuantizationSimModel(
        onnx.load(model),
        quant_scheme=QuantScheme[scheme],
        param_type=aimet_onnx.int8,
        activation_type=aimet_onnx.int8,
        config_file=str(CONFIG),
        providers=["CPUExecutionProvider"],
    )
    sim.compute_encodings([{k: v[n : n + 1] for k, v in arrays.items()} for n in range(count)])
    written = sim.to_onnx_qdq()
    if written.ByteSize() == 0:
        raise RuntimeError("to_onnx_qdq gave an empty model")
    onnx.save(written, goal)


if __name__ == "__main__":
    main(*sys.argv[1:])
