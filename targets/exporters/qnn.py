"""Qualcomm Hexagon (HTP): context binaries through onnxruntime-qnn, simulated and read back, and encodings for Qualcomm's own converter."""

from __future__ import annotations

import json
import os
import shlex
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir

from qbench import qdq, toolchains
from qbench.errors import InputError, ModelError, PlanError, PrecisionUnavailable, TargetError, ToolError
from qbench.export import Job, Produced, Simulated, simulated
from qbench.export.comparing import judged_by_float, reference_outputs
from qbench.network import Precision
from qbench.plan import Granularity
from qbench.protocols import Array, Progress
from qbench.target import Target
from qbench.targets.exporters.aimet import VERSIONS, encodings, entries
from qbench.targets.exporters.qnn_layers import Cut, cut, furthest
from qbench.targets.exporters.qnn_model import handed
from qbench.targets.exporters.qnn_readback import Reader, on_codes
from qbench.targets.exporters.qnn_refusals import refusals
from qbench.targets.exporters.workers import ask

HANDED = "model.qnn.onnx"
CONTEXT = "model.ctx.onnx"
BINARY = "model.ctx_qnn.bin"
"""Named by onnxruntime-qnn after CONTEXT, which refers to it."""
GRAPH, TRACE = "qnn_graph.json", "qnn_trace.json"
FLOAT_MODEL = "model.float.onnx"
COMMANDS = "qairt.sh"
SOC_MODEL = {"hexagon-8gen1": 36, "hexagon-8gen2": 43, "hexagon-8gen3": 57, "hexagon-8elite": 69, "hexagon-8elite5": 87, "hexagon-xelite": 60,
             "hexagon-qcs6490": 93, "hexagon-qcs9075": 77}
"""Qnn_SocModel_t of SM8450, SM8550, SM8650, SM8750, SM8850, SC8380XP, QCM6490 and QCS9100. Source: QnnTypes.h of QAIRT, the most of it repeated in
ExecuTorch's qc_schema.py (2026); QCM6490's number was not checked there. onnxruntime-qnn 2.7.0 compiled for each."""
OLDEST_SIMULATED = 73
SIMULATED_AS = {"htp_arch": "73", "soc_model": "43"}
"""The simulator gives wrong values for V68 and V69 and for no architecture (tried: cosine -0.31 on a MobileNet): those plans are simulated as V73."""
LIMIT_LSB = {8: 1.0, 16: 256.0}
"""Steps of a layer's result from onnxruntime's, by its bits. With 16 the HTP does not compute to the last bits (found: 0 to 5 steps, one depthwise
Conv 153); more than one step of 8 bits is a fault."""
LEAST_SQNR_DB = 10.0
"""Of the whole network. Steps of single layers travel on (25 dB were found after 24 layers of 8 bits); what is compiled wrongly is below 0 dB."""
WEIGHTED = frozenset({"Conv", "ConvTranspose", "Gemm", "MatMul"})
BUILD_S = 1800.0
OPENED = "layers"
UNPROVEN_SQNR_DB = 20.0
"""Of the whole network where no layer could be looked at by itself, or all are float."""
CONVENTIONS = {
    "activations": "uint8, and uint16 where the plan says INT16; real = (q - zero_point) * scale; the compiler's graph tells offset = -zero_point",
    "weights": "int8 symmetric, narrow (-127 to 127), also under INT16 activations", "bias": "int32, scale of input times scale of weight",
    "resize": "a linear Resize ends in the scale of what it reads, and its codes are converted behind it: one rounding more, of half a step",
    "float": "FP16 on the HTP (enable_htp_fp16_precision); the graph calls such tensors float32",
    "encodings 0.6.1, 1.0.0": "offset = -zero_point of unsigned codes; -128 for symmetric int8", "encodings 2.0.0": "zero point of QuantizeLinear, left out when 0",
}

BOARD_CODE = '''
def infer(folder, feeds):
    """Outputs in order, in float. onnxruntime-qnn on the device; the context binary, with no fallback to the CPU."""
    import onnxruntime as ort
    import onnxruntime_qnn as qnn

    name = "QNNExecutionProvider"
    ort.register_execution_provider_library(name, qnn.get_library_path())
    devices = [d for d in ort.get_ep_devices() if d.ep_name == name][:1]
    options = ort.SessionOptions()
    options.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
    options.add_provider_for_devices(devices, {"backend_path": qnn.get_qnn_htp_path(), "htp_performance_mode": "burst"})
    return ort.InferenceSession(str(folder / "model.ctx.onnx"), options).run(None, feeds)
'''


@dataclass(frozen=True)
class QnnExporter:
    """The Q/DQ model as it is: INT16 are uint16 activations with int8 weights, layers without pairs run in FP16."""

    name: str = "qnn"
    title: str = "Qualcomm onnxruntime-qnn (Hexagon HTP)"
    toolchain: str = "qnn"

    def check(self, job: Job) -> None:
        """Raises an InputError for what the HTP is known to refuse."""
        if job.options:
            raise InputError(f"qnn: no option {next(iter(job.options))!r}; it takes none: chip and architecture are those of the target")
        provider_options(job.target)
        if job.plan.granularity == Granularity.PER_GROUP:
            raise PlanError("the plan has weights per group, which the HTP takes in no Q/DQ model of 8 bits: search again with --scale per-channel")
        if (layer := next((n for n, v in job.demanded.layers.items() if v.precision is Precision.FP32 and v.placement != "CPU"), None)) is not None:
            raise PrecisionUnavailable(f"layer {layer!r} is FP32, which no HTP computes, and the CPU is not used instead: "
                                       f"search again with {', '.join(str(p) for p in job.target.available(job.toolkit) if p is not Precision.FP32)}")
        weights = set(_weights(job.written.model))
        for key, tensor in job.demanded.tensors.items():
            weight = key.startswith("weight:")
            if key in weights and (tensor.dtype != "int8" or any(tensor.zero_point)):
                raise PlanError(f"{key}: {tensor.dtype} with zero point {tensor.zero_point[0]}; the HTP takes int8 symmetric weights: use the target's own scheme")
            if not weight and tensor.dtype == "int16":
                raise PlanError(f"{key}: activations of 16 bits are uint16 on the HTP; int16 fails for depthwise Conv and GlobalAveragePool: use the target's own scheme")
        if why := next(refusals(job), ""):
            raise ModelError(why)

    def write(self, job: Job, folder: Path, progress: Progress) -> Produced:
        """Encodings and commands for Qualcomm's converter, and the context binary where onnxruntime-qnn is here."""
        qdq.save(handed(job), folder / HANDED)
        told = {HANDED: "the Q/DQ model with static shapes, as onnxruntime-qnn takes it"} | converter_files(job, folder)
        toolchain = toolchains.load(self.toolchain)
        if toolchains.find(toolchain) is None:
            return Produced(False, told, None, f"{toolchain.package} is not here: {toolchains.how_to_get(toolchain)}", conventions=CONVENTIONS)
        return _built(job, folder, toolchains.need(self.toolchain), told, progress)


def _weights(model: ir.Model) -> Iterator[str]:
    """Keys of the stored constants that a layer multiplies with; those of an Add or Mul may have any type."""
    for node in model.graph:
        codes = node.inputs[0] if node.op_type == "DequantizeLinear" else None
        if codes is not None and codes.const_value is not None and any(r.op_type in WEIGHTED and i == 1 for r, i in node.outputs[0].uses()):
            yield f"weight:{str(codes.name).removesuffix('_q')}"


def provider_options(target: Target) -> dict[str, str]:
    """Architecture and chip, always both: an unknown or missing one silently compiles for an old default. Raises TargetError without them."""
    fact = target.facts.get("architecture")
    if target.name not in SOC_MODEL or fact is None:
        raise TargetError(f"qnn: which Hexagon is {target.name!r}? Its target file needs facts.architecture (\"V75\"), and the exporter its SoC model")
    return {"htp_arch": str(fact.value).removeprefix("V"), "soc_model": str(SOC_MODEL[target.name]), "enable_htp_fp16_precision": "1"}


def _built(job: Job, folder: Path, python: Path, told: Mapping[str, str], progress: Progress) -> Produced:
    """Compiled for the chip, simulated as it or as V73, read back."""
    provider = provider_options(job.target)
    itself = int(provider["htp_arch"]) >= OLDEST_SIMULATED
    work = folder / "work"
    progress(f"compiling for Hexagon V{provider['htp_arch']}", 0, 1 if itself else 2)
    place, seconds = HtpSimulator(job, folder, work, python, provider).run("chip", folder / HANDED, job.samples, simulate=itself)
    for name in (CONTEXT, BINARY):
        (place / name).replace(folder / name)
    for made, name in (("graph.json", GRAPH), ("trace.json", TRACE)):
        (place / made).replace(folder / name)
    remarks: tuple[str, ...] = ()
    simulator = HtpSimulator(job, folder, work, python, provider if itself else provider | SIMULATED_AS)
    if not itself:
        progress("simulating as Hexagon V73", 1, 2)
        place, _ = simulator.run("whole", folder / HANDED, job.samples, simulate=True)
        remarks = (f"the simulator is wrong for V{provider['htp_arch']}: the plan was simulated as V73, and the binary for the chip was not run",)
    simulations = simulator.compared(place)
    shutil.rmtree(work)
    graph = json.loads((folder / GRAPH).read_text(encoding="utf-8"))
    actual = Reader(graph, json.loads((folder / TRACE).read_text(encoding="utf-8")), job).contents()
    status, sdk = toolchains.check("qnn"), _sdk(folder / CONTEXT)
    rows = tuple({"name": name, "op": body["type"], "inputs": body["input_names"], "outputs": body["output_names"]} for name, body in graph["nodes"].items())
    artefacts = dict(told) | {CONTEXT: "onnxruntime model around the context binary", BINARY: f"context binary for Hexagon V{provider['htp_arch']}",
                              GRAPH: "the compiled graph, read back", TRACE: "which node became which operator"}
    return Produced(True, artefacts, actual, reference=HANDED, consent=on_codes(job, actual), requires={"runtime": f">={sdk}"}, conventions=CONVENTIONS,
                    simulations=simulations, layers=rows,
                    versions={"toolchain": f"onnxruntime-qnn {status.version}", "runtime": f"QAIRT {sdk}", "python": status.python},
                    facts={**provider, "build_seconds": round(seconds, 1), "operators": len(rows), "cpu_fallback": "disabled"},
                    remarks=(*remarks, "the simulator tells no latency: its cycles are the host's"), board_code=BOARD_CODE,
                    tolerance_lsb=1.0 + (simulations[0].lsb or 0.0))


@dataclass(frozen=True)
class HtpSimulator:
    """The worker, compiling for one chip; what it leaves behind goes into folders under `work`."""

    job: Job
    folder: Path
    work: Path
    python: Path
    provider: Mapping[str, str]

    def run(self, name: str, model: Path, samples: Sequence[Mapping[str, Array]], *, simulate: bool) -> tuple[Path, float]:
        """Where the worker left what it made, and the seconds it took to compile."""
        place = self.work / name
        place.mkdir(parents=True)
        arrays: dict[str, Any] = {f"{i}:{k}": v for i, s in enumerate(samples) for k, v in s.items()}
        np.savez(place / "samples.npz", **arrays)
        request = {"model": os.path.relpath(model, place), "context": CONTEXT, "provider": dict(self.provider), "samples": "samples.npz", "count": len(samples),
                   "inputs": list(samples[0]), "outputs": "outputs.npz" if simulate else ""}
        what = f"onnxruntime-qnn compiling {self.job.prepared.network.name}" + (", opened at every tensor" if name == OPENED else "")
        answer = ask(self.python, "qnn", request, folder=place, seconds=BUILD_S, what=what)
        return place, float(answer["seconds"])

    def outputs(self, place: Path, names: Iterable[str]) -> list[dict[str, Array]]:
        """Of every sample."""
        with np.load(place / "outputs.npz") as stored:
            return [{name: stored[f"{i}:{name}"] for name in names} for i in range(len(self.job.samples))]

    def compared(self, place: Path) -> tuple[Simulated, ...]:
        """The whole network against onnxruntime; where it is further off than a step, which deep networks are, every layer by itself too."""
        what = f"HTP simulator of onnxruntime-qnn, V{self.provider['htp_arch']}"
        got = self.outputs(place, [str(v.name) for v in self.job.written.model.graph.outputs])
        floats = any(v.precision.is_float for v in self.job.demanded.layers.values())
        whole = simulated(self.job, what, self.folder / HANDED, got, least_sqnr_db=LEAST_SQNR_DB,
                          note="FP16 layers round otherwise than onnxruntime's FP32" if floats else "")
        if whole.lsb is not None and whole.lsb <= LIMIT_LSB[8] and not floats:
            return (replace(whole, limit_lsb=LIMIT_LSB[8]),)
        opened = cut(self.job)
        if not opened.pairs:
            return (replace(whole, least_sqnr_db=UNPROVEN_SQNR_DB),)
        try:
            layers = tuple(self.layer_by_layer(f"{what}, layer by layer", opened))
            return judged_by_float(self.job, whole, self.folder / HANDED, got, "a step in an early layer travels on"), *layers
        except ToolError as error:
            return (replace(whole, least_sqnr_db=UNPROVEN_SQNR_DB, note="; ".join(filter(None, (whole.note, f"layer by layer it could not be simulated: {error}")))),)

    def layer_by_layer(self, what: str, opened: Cut) -> Iterator[Simulated]:
        """Every layer on onnxruntime's codes, 8-bit and 16-bit results apart."""
        for name, model in (("exposed.onnx", opened.exposed), ("open.onnx", opened.open)):
            qdq.save(model, self.work / name)
        wanted = reference_outputs(self.work / "exposed.onnx", self.job.samples)
        feeds = [dict(s) | opened.feeds(w) for s, w in zip(self.job.samples, wanted, strict=True)]
        place, _ = self.run(OPENED, self.work / "open.onnx", feeds, simulate=True)
        apart = furthest(opened.pairs, wanted, self.outputs(place, [p.codes for p in opened.pairs.values()]))
        for bits, limit in LIMIT_LSB.items():
            some = {k: v for k, v in apart.items() if k.endswith(f":int{bits}")}
            if some:
                worst, first = next(iter(some.items()))
                yield Simulated(f"{what}, {bits}-bit results", float(first.steps), min(v.sqnr_db for v in some.values()), limit,
                                note=f"{sum(v.steps > 1 for v in some.values())} of {len(some)} tensors differ by more than a step; furthest {worst}")


def _sdk(context: Path) -> str:
    """QAIRT's version, which a runtime must have at least."""
    told = next((n.attributes.get_string("ep_sdk_version", "") for n in ir.load(context).graph if n.op_type == "EPContext"), "") or ""
    return ".".join(told.removeprefix("v").split(".")[:3])


def converter_files(job: Job, folder: Path) -> dict[str, str]:
    """The float model, the encodings in three versions and the command lines for Qualcomm's own tools; file -> what it is."""
    qdq.save(job.prepared.model, folder / FLOAT_MODEL)
    found, told = entries(job), {FLOAT_MODEL: "the float model that the encodings speak of", COMMANDS: "command lines for Qualcomm's tools: not run here"}
    for version in VERSIONS:
        name = f"aimet_{version}.encodings"
        (folder / name).write_text(json.dumps(encodings(found, version), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        told[name] = f"AIMET encodings {version} of the plan"
    (folder / COMMANDS).write_text(commands(job), encoding="utf-8")
    return told


def commands(job: Job) -> str:
    """Shell lines for qairt-converter and what follows. Not run here: QAIRT is on no package registry."""
    network = job.prepared.network
    shapes = " ".join(f"--source_model_input_shape {shlex.quote(n)} {','.join(map(str, network.tensors[n].shape))}" for n in network.inputs)
    arch = provider_options(job.target)
    config = json.dumps({"devices": [{"soc_model": int(arch["soc_model"]), "dsp_arch": f"v{arch['htp_arch']}"}], "graphs": [{"graph_names": ["model"], "vtcm_mb": 0}]})
    return f"""#!/bin/sh
# Not compiled here: needs QAIRT. Source of the options: Qualcomm's converter and quantizer documents (80-63442-10).
# Tensors without an entry stay in float (--float_fallback): nothing is calibrated again.
set -eu
qairt-converter --input_network {FLOAT_MODEL} {shapes} \\
    --quantization_overrides aimet_1.0.0.encodings --float_bitwidth 16 --output_path model.dlc
qairt-quantizer --input_dlc model.dlc --output_dlc model.quantized.dlc --float_fallback
cat > htp_devices.json <<'END'
{config}
END
cat > htp.json <<'END'
{{"backend_extensions": {{"shared_library_path": "libQnnHtpNetRunExtensions.so", "config_file_path": "htp_devices.json"}}}}
END
qnn-context-binary-generator --backend libQnnHtp.so --model libQnnModelDlc.so --dlc_path model.quantized.dlc \\
    --config_file htp.json --binary_file model.htp
"""
