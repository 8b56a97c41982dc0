"""What against_aimet_amp.py runs in AIMET's environment: automatic mixed precision of one network, and the precision it gave each tensor.

usage: aimet_amp_inside.py JOB.json

JOB.json   model, calibration, evaluation (files), metric, batch, scheme, drop (in the metric's unit), out
OUT        seconds, evaluations, accuracy, int8 (tensor -> whether it is), groups
Of qbench only the metric is imported, so that both tools count hits alike.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from pathlib import Path

import aimet_onnx
import numpy as np
import onnx
from aimet_onnx.amp.quantizer_groups import find_quantizer_group
from aimet_onnx.common.defs import CallbackFunc, QuantizationDataType, QuantScheme
from aimet_onnx.mixed_precision import choose_mixed_precision
from aimet_onnx.quantsim import QuantizationSimModel

from qbench.metrics import make

CONFIG = Path(aimet_onnx.__file__).parent / "common/quantsim_config/default_config_per_channel.json"
INT8 = ((8, QuantizationDataType.int), (8, QuantizationDataType.int))
FP16 = ((16, QuantizationDataType.float), (16, QuantizationDataType.float))


def main(job: str) -> None:
    asked = json.loads(Path(job).read_text())
    calibration, _ = stored(asked["calibration"])
    feeds, labels = stored(asked["evaluation"])
    metric, batch, calls = make(asked["metric"]), asked["batch"], 0
    begun = time.perf_counter()

    def outputs(session, start):
        names = [o.name for o in session.get_outputs()]
        part = {k: v[start:start + batch] for k, v in feeds.items()}
        found = session.run(None, part)
        return {n.removesuffix("_updated"): v for n, v in zip(names, found, strict=True)}

    def score(session, *_):
        nonlocal calls
        calls += 1
        total = len(next(iter(feeds.values())))
        rows = [metric.statistics(o := outputs(session, s), None if labels is None else labels[s:s + batch], o) for s in range(0, total, batch)]
        return metric.value(np.concatenate(rows))

    def forward(session, *_):
        for n in range(len(next(iter(calibration.values())))):
            session.run(None, {k: v[n:n + 1] for k, v in calibration.items()})

    sim = QuantizationSimModel(onnx.load(asked["model"]), quant_scheme=QuantScheme[asked["scheme"]], param_type=aimet_onnx.int8,
                               activation_type=aimet_onnx.int8, config_file=str(CONFIG), providers=["CPUExecutionProvider"])
    sim.compute_encodings(forward, None)
    names, groups = find_quantizer_group(sim)
    with tempfile.TemporaryDirectory() as folder:
        choose_mixed_precision(sim, [INT8, FP16], score, score, asked["drop"], folder, True, CallbackFunc(forward, None), use_all_amp_candidates=True)
    seconds, made = time.perf_counter() - begun, calls
    int8 = {t: names[t].data_type == QuantizationDataType.int and names[t].bitwidth == 8 for g in groups
            for t in (*g.activation_quantizers, *g.parameter_quantizers)}
    Path(asked["out"]).write_text(json.dumps({"seconds": seconds, "evaluations": made, "accuracy": score(sim.session), "int8": int8, "groups": len(groups)}))


def stored(path: str):
    """Feeds and labels of an .npz file."""
    with np.load(path, allow_pickle=False) as arrays:
        return {k: arrays[k] for k in arrays.files if k != "labels"}, arrays["labels"] if "labels" in arrays.files else None


if __name__ == "__main__":
    main(*sys.argv[1:])
