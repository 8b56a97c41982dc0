"""rknn-toolkit2's own quantization of a network, for comparison: the same model, the same calibration data, its own simulator."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from qbench import qdq, toolchains
from qbench.export import Job
from qbench.graph import PreparedModel
from qbench.protocols import Array, Progress, silent
from qbench.targets.exporters.rknn import BUILD_S, FUSING_LEVEL, RknnExporter
from qbench.targets.exporters.rknn_log import analysis_in, parse
from qbench.targets.exporters.shapes import with_static_shapes
from qbench.targets.exporters.workers import ask, log_of

ALGORITHMS: Mapping[str, Mapping[str, Any]] = MappingProxyType({
    "normal": {"algorithm": "normal"}, "kl": {"algorithm": "kl_divergence"}, "mmse": {"algorithm": "mmse"},
    "auto_hybrid": {"algorithm": "normal", "auto_hybrid": True},
})
"""Name -> what the toolkit is asked for. All are w8a8 with one scale per channel of weights; auto_hybrid turns layers to FP16 by its own thresholds."""


@dataclass(frozen=True)
class Built:
    """outputs   of the simulator, a mapping a sample; cycles   of the toolkit's table, all layers; seconds   of the build
    layers    rows of the toolkit's accuracy analysis, empty where it was not run"""

    outputs: Sequence[Mapping[str, Array]]
    cycles: int
    seconds: float
    weight_kb: float
    on_cpu: tuple[str, ...]
    layers: tuple[Mapping[str, Any], ...] = ()


def vendor_build(prepared: PreparedModel, platform: str, algorithm: str, calibration: Sequence[Mapping[str, Array]], evaluation: Sequence[Mapping[str, Array]],
                 folder: Path) -> Built:
    """The toolkit's own INT8 of the float model. Raises ToolchainMissing, or ToolError with what the toolkit says.

    platform   "rk3588"; algorithm   a key of ALGORITHMS; calibration, evaluation   samples with batch axis; folder   an empty one, for what the toolkit leaves
    """
    folder.mkdir(parents=True)
    model = prepared.model.clone()
    with_static_shapes(model, prepared.network)
    qdq.save(model, folder / "float.onnx")
    inputs = list(prepared.network.inputs)
    lines = []
    for i, sample in enumerate(calibration):
        for k, name in enumerate(inputs):
            np.save(folder / f"{i}-{k}.npy", np.asarray(sample[name]))
        lines.append(" ".join(f"{i}-{k}.npy" for k in range(len(inputs))))
    (folder / "dataset.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    arrays: dict[str, Any] = {f"{i}:{k}": v for i, s in enumerate(evaluation) for k, v in s.items()}
    np.savez(folder / "samples.npz", **arrays)
    request = {"do": "build", "platform": platform, "level": FUSING_LEVEL, "model": "float.onnx", "quantize": True, "dataset": "dataset.txt", "samples": "samples.npz",
               "count": len(evaluation), "inputs": inputs, "rknn": "model.rknn", "outputs": "outputs.npz", "analyse": True, **ALGORITHMS[algorithm]}
    answer = ask(toolchains.need("rknn"), "rknn", request, folder=folder, seconds=BUILD_S, what=f"rknn-toolkit2 quantizing with {algorithm}")
    table = parse(log_of(folder, "rknn"))
    names = [str(v.name) for v in model.graph.outputs]
    with np.load(folder / "outputs.npz") as stored:
        outputs = [{name: stored[f"{i}:{k}"] for k, name in enumerate(names)} for i in range(len(evaluation))]
    return Built(outputs, table.total_cycles, float(answer["seconds"]), float(table.layers[0]["weight_kb"]), on_cpu([dict(r) for r in table.layers]),
                 analysis_in(folder))


def plan_build(job: Job, folder: Path, progress: Progress = silent) -> Built:
    """A plan of ours in the same simulator; `job.samples` are those that it runs. Raises what the exporter raises."""
    exporter = RknnExporter()
    exporter.check(job)
    toolchains.need(exporter.toolchain)
    folder.mkdir(parents=True)
    qdq.save(job.written.model, folder / "model.qdq.onnx")
    made, outputs = exporter.built(job, folder, progress)
    return Built(outputs, made.facts["total_cycles"], made.facts["build_seconds"], made.facts["weight_kb"], on_cpu(made.layers), tuple(made.facts["accuracy_analysis"]))


def on_cpu(layers: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    """Names of the layers that the toolkit puts on the CPU, ends of the network aside."""
    return tuple(str(r["name"]) for r in layers if r["target"] == "CPU" and r["op"] not in ("InputOperator", "OutputOperator"))
