"""MediaTek: a quantized .tflite with the plan's scales and codes, run in LiteRT's interpreter, and the line of ncc-tflite, which is not public."""

from __future__ import annotations

import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from qbench import toolchains
from qbench.errors import InputError, PlanError
from qbench.export import QDQ, Consent, Contents, Job, Layer, Produced, Simulated, StoredTensor, simulated
from qbench.network import Kernel, Precision
from qbench.protocols import Progress
from qbench.targets.exporters import tflite_file
from qbench.targets.exporters.plain_graph import ARRAYS, PROGRAM, Plain, plain, refuse_operators
from qbench.targets.exporters.workers import ask

MODEL, SCRIPT = "model.tflite", "compile.sh"
RUN_S = 1800.0
LEAST_SQNR_DB = 5.0
"""A guard against a wrong file: LiteRT's own two sets of kernels lie 14 to 24 dB apart on deep networks of 8 bits."""
ARCH = "mdla3.0"
OPERATORS = frozenset((
    "QuantizeLinear", "DequantizeLinear", "Conv", "ConvTranspose", "Gemm", "MatMul", "Add", "Sub", "Mul", "Div", "Max", "Min", "Pow", "Relu", "Clip",
    "LeakyRelu", "PRelu", "Elu", "Sigmoid", "Tanh", "HardSwish", "HardSigmoid", "Gelu", "Exp", "Sqrt", "Abs", "Floor", "Ceil", "Sin", "Cos", "Neg",
    "Log", "Round", "Identity", "Softmax", "MaxPool", "AveragePool", "GlobalAveragePool", "GlobalMaxPool", "ReduceMean", "ReduceSum", "ReduceMax",
    "ReduceMin", "ReduceProd", "Reciprocal", "Sum", "Concat", "Transpose", "Split", "Slice", "Pad", "Gather", "DepthToSpace", "Resize", "Reshape",
    "Flatten", "Squeeze", "Unsqueeze", "LayerNormalization", "BatchNormalization"))
"""What the worker has a rule for."""
NO_KERNEL = "LiteRT has no integer kernel for this form: it runs in float between its pairs"
FLOAT_CONSTANT = "its layer runs in float"
WHY_NOT = "ncc-tflite is in MediaTek's NeuroPilot SDK, which is in no registry: run compile.sh on a machine that has it"
CONVENTIONS = {"activations": "int8, real = (q - zero_point) * scale; int16 with zero point 0", "weights": "int8, -127 to 127, a scale per output channel",
               "bias": "int32 (int64 beside int16), scale of input times scale of weight",
               "layout": "four axes lie as N, H, W, C, also of inputs and outputs, which are float32",
               "fixed outputs": "Softmax and Sigmoid 1/256, -128 (int16: 1/32768, 0), Tanh 1/128, 0, as LiteRT's kernels insist",
               "float": "float32 in the file; FP16 on the chip by --relax-fp32"}

BOARD_CODE = '''
def infer(folder, feeds):
    """Outputs in order, in float. LiteRT on the CPU; with the environment variable NEURON_DELEGATE, the path of MediaTek's delegate, on the APU."""
    import os

    from ai_edge_litert.interpreter import Interpreter, load_delegate

    delegates = [load_delegate(os.environ["NEURON_DELEGATE"])] if os.environ.get("NEURON_DELEGATE") else None
    interpreter = Interpreter(model_path=str(folder / "model.tflite"), experimental_delegates=delegates)
    interpreter.allocate_tensors()
    for detail, value in zip(interpreter.get_input_details(), feeds.values()):
        value = np.asarray(value, np.float32)
        interpreter.set_tensor(detail["index"], np.ascontiguousarray(value.transpose(0, 2, 3, 1) if value.ndim == 4 else value))
    interpreter.invoke()
    outputs = [interpreter.get_tensor(d["index"]) for d in interpreter.get_output_details()]
    return [o.transpose(0, 3, 1, 2) if o.ndim == 4 else o for o in outputs]
'''


@dataclass(frozen=True)
class MediatekExporter:
    """A layer between pairs is one integer operator; a float layer is float."""

    name: str = "mediatek"
    title: str = "MediaTek APU (LiteRT .tflite for ncc-tflite)"
    toolchain: str = "mediatek"

    def check(self, job: Job) -> None:
        """Raises an InputError for what LiteRT's integer kernels cannot hold, naming layer, tensor or operator."""
        if odd := next((f"{k}={v}" for k, v in job.options.items() if k != "arch" or not re.fullmatch(r"mdla\d\.\d", v)), ""):
            raise InputError(f"mediatek: no option {odd!r}; there is arch=mdlaX.Y for ncc-tflite (default {ARCH})")
        used = set(job.plan.precision.values())
        for precision in used - {Precision.FP32}:
            job.target.support(precision, job.toolkit)
        if {Precision.FP16, Precision.FP32} <= used:
            raise PlanError("the plan has FP16 and FP32 layers, and ncc-tflite has one switch for all (--relax-fp32): use one of the two")
        refuse_operators(job, OPERATORS, "a .tflite file")
        for key, tensor in job.demanded.tensors.items():
            symmetric = tensor.bits == 16 or key.startswith("weight:")
            if tensor.dtype not in ("int8", "int16") or (symmetric and tensor.bits == 16 and any(tensor.zero_point)):
                raise PlanError(f"{key}: {tensor}; LiteRT's kernels take int8, and int16 with zero point 0: use the target's own scheme")

    def write(self, job: Job, folder: Path, progress: Progress) -> Produced:
        """The model, run by LiteRT and read back; without LiteRT what its worker needs."""
        made, toolchain = plain(job), toolchains.load(self.toolchain)
        (folder / SCRIPT).write_text(script(job), encoding="utf-8", newline="\n")
        told = {SCRIPT: "ncc-tflite, to run where NeuroPilot is"}
        if toolchains.find(toolchain) is None:
            made.save(folder)
            told |= {PROGRAM: "the Q/DQ model as plain JSON, for qbench's worker in LiteRT's environment", ARRAYS: "its constants"}
            return Produced(False, told, None, f"{toolchain.package} is not here: {toolchains.how_to_get(toolchain)}", conventions=CONVENTIONS)
        progress("LiteRT writes and runs the model", 0, 1)
        version, outputs = _written(job, made, folder)
        model = tflite_file.read(folder / MODEL)
        actual = read_model(job, model, made)
        consent = in_float(job, actual)
        compared: Simulated = simulated(job, "LiteRT interpreter", folder / QDQ, outputs, least_sqnr_db=LEAST_SQNR_DB,
                                        note="its integer kernels round sums twice: ties go either way, and in deep networks they travel on")
        told[MODEL] = "quantized LiteRT model"
        remarks = ["LiteRT ran the file on this machine's CPU; no MediaTek compiler has seen it",
                   *([f"{len(consent)} integer layers run in float between their pairs ({', '.join(list(consent)[:3])}): same values, no time saved"] if consent else [])]
        return Produced(False, told, actual, WHY_NOT, versions={"toolchain": f"ai-edge-litert {version}"}, requires={"litert": f">={version}"},
                        conventions=CONVENTIONS, consent=consent, simulations=(compared,), facts={"operators": len(model.operators)}, remarks=tuple(remarks),
                        board_code=BOARD_CODE, tolerance_lsb=1.0 + (compared.lsb or 0.0))


def script(job: Job) -> str:
    relax = "" if Precision.FP32 in job.plan.precision.values() else " --relax-fp32"
    return ("#!/bin/sh\n# Written by qbench export. Needs ncc-tflite of MediaTek's NeuroPilot SDK; not run here.\nset -e\ncd \"$(dirname \"$0\")\"\n"
            f"ncc-tflite --arch={job.options.get('arch', ARCH)}{relax} -o model.dla {MODEL}\n")


def _written(job: Job, made: Plain, folder: Path) -> tuple[str, list[dict[str, Any]]]:
    """Version of LiteRT and the outputs of every sample; the model lies in `folder`."""
    work = folder / "work"
    work.mkdir()
    made.save(work)
    arrays: dict[str, Any] = {f"{i}:{k}": v for i, s in enumerate(job.samples) for k, v in s.items()}
    np.savez(work / "samples.npz", **arrays)
    request = {"program": PROGRAM, "arrays": ARRAYS, "model": MODEL, "samples": "samples.npz", "count": len(job.samples), "answers": "outputs.npz"}
    answer = ask(toolchains.need("mediatek"), "tflite", request, folder=work, seconds=RUN_S, what=f"LiteRT writing {job.prepared.network.name}")
    (work / MODEL).replace(folder / MODEL)
    with np.load(work / "outputs.npz") as stored:
        outputs = [{name: stored[f"{i}:{name}"] for name in made.body["outputs"]} for i in range(len(job.samples))]
    shutil.rmtree(work)
    return str(answer["version"]), outputs


def in_float(job: Job, actual: Contents) -> dict[str, Consent]:
    """Integer layers without multiplications that the file has in float: same values. Layers with weights are never announced: those are faults."""
    return {k.name: Consent(Layer(Precision.FP16), NO_KERNEL) for k in job.prepared.network.kernels
            if k.macs == 0 and not job.demanded.layers[k.name].precision.is_float and k.name in actual.layers and actual.layers[k.name].precision.is_float}


def read_model(job: Job, model: tflite_file.Model, made: Plain) -> Contents:
    """What the file holds, in the words of the plan, read without LiteRT."""
    names, written = made.body["names"], job.written
    codes = {n["inputs"][0]: [] for n in made.body["nodes"] if n["op"] == "QuantizeLinear"}  # type: dict[str, list[str]]
    for node in made.body["nodes"]:
        if node["op"] == "QuantizeLinear":
            codes[node["inputs"][0]].append(names[node["outputs"][0]])
    tensors: dict[str, StoredTensor] = {}
    silent: dict[str, str] = {}
    for tensor, value in (*written.raw.items(), *written.stored.items()):
        for name in codes.get(value, ()):
            if (found := model.tensors.get(name)) is not None and found.scale:
                tensors[f"{tensor}:int{found.stored.bits if found.dtype in ('int8', 'int16') else 0}"] = found.stored
    for value, held in made.body["stored"].items():
        found = model.tensors.get(names[value])
        if found is not None and found.scale and found.dtype in ("int8", "int16", "uint8"):
            tensors[f"weight:{held['key']}"] = found.stored
        elif found is not None and not found.scale:
            silent[f"weight:{held['key']}"] = FLOAT_CONSTANT
    layers = {}
    for kernel in job.prepared.network.kernels:
        layer = _layer(job, kernel, model, codes, names)
        if layer is None:
            silent[kernel.name] = "its results are no reals"
        else:
            layers[kernel.name] = layer
    return Contents(layers, tensors, f"{MODEL}: tensors and operators", silent)


def _layer(job: Job, kernel: Kernel, model: tflite_file.Model, codes: Mapping[str, list[str]], names: Mapping[str, str]) -> Layer | None:
    """INT8 or INT16 where an operator other than a conversion writes codes of a result; else float, of which such a file has one kind."""
    wanted = job.demanded.layers[kernel.name].precision
    tensors = [t for t in (*kernel.outputs, *kernel.inner) if t in job.prepared.network.group_of]
    if not tensors:
        return None
    for tensor in tensors:
        for name in codes.get(job.written.raw.get(tensor, tensor), ()):
            maker, found = model.maker(name), model.tensors.get(name)
            if maker is None or found is None or found.dtype not in ("int8", "int16"):
                continue
            if maker.code != tflite_file.QUANTIZE or model.tensors[maker.inputs[0]].dtype != "float32":
                return Layer(Precision.INT8 if found.dtype == "int8" else Precision.INT16)
    return Layer(wanted if wanted.is_float else Precision.FP16)
