"""This machine's CPU through OpenVINO: its own model files, the compiled graph read back layer by layer, and the time it takes."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from qbench import qdq, toolchains
from qbench.errors import InputError, PlanError
from qbench.export import Job, Produced, simulated
from qbench.protocols import Progress
from qbench.targets.exporters.host_layers import LEAST_SQNR_DB, Ran, Reading, moves, reading, stored_names
from qbench.targets.exporters.host_onnxruntime import facts, remarks
from qbench.targets.exporters.openvino_ir import read_ir
from qbench.targets.exporters.shapes import with_static_shapes
from qbench.targets.exporters.workers import ask

HANDED = "model.openvino.onnx"
MODEL, WEIGHTS, GRAPH = "model.xml", "model.bin", "compiled_graph.json"
CODES = frozenset({"u8", "i8"})
COMPUTING = frozenset({"Convolution", "Deconvolution", "MatMul", "FullyConnected", "Pooling"})
"""Layers of the compiled graph that are named after what they compute; Subgraph and Eltwise read codes and compute in float what is fused into them."""
BUILD_S = 900.0
MEASURE_S = 0.3
CONVENTIONS = {"activations": "as in the plan: uint8, or int16 (computed in float between its pairs), never uint16; real = (q - zero_point) * scale",
               "weights": "int8 symmetric, narrow (-127 to 127)", "bias": "int32, scale of input times scale of weight",
               "float": "FP32 (INFERENCE_PRECISION_HINT=f32; without it this compiler takes bfloat16)"}

BOARD_CODE = '''
def infer(folder, feeds):
    """Outputs in order, in float. OpenVINO on the CPU."""
    import openvino as ov

    compiled = ov.Core().compile_model(str(folder / "model.xml"), "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    got = compiled(feeds)
    return [got[o] for o in compiled.outputs]
'''


@dataclass(frozen=True)
class OpenVinoExporter:
    """The Q/DQ model with static shapes, converted and compiled."""

    name: str = "openvino"
    title: str = "Intel OpenVINO on this machine's CPU"
    toolchain: str = "openvino"

    def check(self, job: Job) -> None:
        """Raises an InputError for an option and for what OpenVINO is known to compute wrongly."""
        if job.options:
            raise InputError(f"openvino: no option {next(iter(job.options))!r}; it takes none")
        if (key := next((k for k, t in job.demanded.tensors.items() if t.dtype == "uint16"), None)) is not None:
            raise PlanError(f"{key}: uint16, which OpenVINO's CPU plugin computes wrongly (2026.4: other logits than onnxruntime, also in f32); "
                            "use a scheme with int16 activations, or --exporter onnxruntime")

    def write(self, job: Job, folder: Path, progress: Progress) -> Produced:
        """model.xml and model.bin, the compiled graph, outputs and times; without OpenVINO the model for it."""
        model = job.written.model.clone()
        with_static_shapes(model, job.prepared.network)
        qdq.save(model, folder / HANDED)
        told = {HANDED: "the Q/DQ model with static shapes, as OpenVINO reads it"}
        toolchain = toolchains.load(self.toolchain)
        if toolchains.find(toolchain) is None:
            return Produced(False, told, None, f"{toolchain.package} is not here: {toolchains.how_to_get(toolchain)}", conventions=CONVENTIONS)
        progress("OpenVINO compiles", 0, 1)
        answer, outputs, rows = _compiled(job, folder)
        read = read_compiled(job, folder / MODEL, folder / WEIGHTS, rows)
        compared = simulated(job, "OpenVINO on the CPU", folder / HANDED, outputs, least_sqnr_db=LEAST_SQNR_DB,
                             note="sums of other order: rounding ties go either way, and in deep networks they travel on")
        took, version = np.asarray(answer["ms"]), str(answer["version"]).partition("-")[0]
        told |= {MODEL: "OpenVINO model", WEIGHTS: "its weights", GRAPH: "the graph compiled for this CPU, a row a layer"}
        return Produced(True, told, read.contents,
                        reference=HANDED, consent=read.consent, versions={"toolchain": f"openvino {version}"},
                        requires={"runtime": f">={'.'.join(version.split('.')[:2])}"}, conventions=CONVENTIONS,
                        simulations=(compared,), layers=tuple(r | {"target": "CPU"} for r in rows),
                        facts=facts(job, read) | {"latency_ms_median": round(float(np.median(took)), 4), "latency_ms_p90": round(float(np.percentile(took, 90)), 4),
                                                  "runs": len(took)}, remarks=remarks(read), board_code=BOARD_CODE, tolerance_lsb=1.0 + (compared.lsb or 0.0))


def _compiled(job: Job, folder: Path) -> tuple[dict[str, Any], list[dict[str, Any]], list[dict[str, Any]]]:
    """The worker's answer, the outputs of every sample, and the rows of the compiled graph; the files lie in `folder`."""
    from qbench.runtime import default_threads

    work = folder / "work"
    work.mkdir()
    arrays: dict[str, Any] = {f"{i}:{k}": v for i, s in enumerate(job.samples) for k, v in s.items()}
    np.savez(work / "samples.npz", **arrays)
    names = [str(v.name) for v in job.written.model.graph.outputs]
    request = {"model": os.path.relpath(folder / HANDED, work), "ir": MODEL, "graph": GRAPH, "samples": "samples.npz", "count": len(job.samples),
               "inputs": list(job.samples[0]), "outputs": names, "answers": "outputs.npz", "threads": default_threads(), "seconds": MEASURE_S}
    answer = ask(toolchains.need("openvino"), "openvino", request, folder=work, seconds=BUILD_S, what=f"OpenVINO compiling {job.prepared.network.name}")
    for name in (MODEL, WEIGHTS, GRAPH):
        (work / name).replace(folder / name)
    with np.load(work / "outputs.npz") as stored:
        outputs = [{name: stored[f"{i}:{name}"] for name in names} for i in range(len(job.samples))]
    shutil.rmtree(work)
    return answer, outputs, json.loads((folder / GRAPH).read_text(encoding="utf-8"))


def read_compiled(job: Job, model: Path, weights: Path, rows: Sequence[Mapping[str, Any]]) -> Reading:
    """What OpenVINO's files hold: scales and zero points out of model.xml and model.bin, precision of every layer out of the compiled graph."""
    tensors = read_ir(model, weights, stored_names(job), job.demanded)
    stands: dict[str, Mapping[str, Any]] = {}
    for row in rows:
        for name in row["stands_for"]:
            stands.setdefault(str(name).removesuffix("/WithoutBiases"), row)
    ran = {}
    for kernel in job.prepared.network.kernels:
        found = [stands[n] for n in kernel.nodes if n in stands]
        wanted = job.demanded.layers[kernel.name].precision
        integer = next((r for r in found if r["precision"] in CODES and (not wanted.is_float or _leads(r, kernel.nodes))), None)
        if integer is not None:
            ran[kernel.name] = Ran(True, str(integer["kernel"]))
        elif found or not moves(job, kernel):
            ran[kernel.name] = Ran(False, str(found[0]["kernel"]) if found else "inside a float kernel")
    return reading(job, ran, tensors, "model.xml, model.bin and the compiled graph")


def _leads(row: Mapping[str, Any], nodes: Sequence[str]) -> bool:
    """The layer is what the row computes, not something in float fused behind it."""
    return row["type"] in COMPUTING and bool(row["stands_for"]) and str(row["stands_for"][0]).removesuffix("/WithoutBiases") in nodes
