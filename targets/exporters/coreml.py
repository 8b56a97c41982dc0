"""Apple: a Core ML package with the plan's scales and the precision of every layer. Compiling and running it needs macOS: a script is written for that."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from qbench import qdq, toolchains
from qbench.errors import InputError, PlanError
from qbench.export import QDQ, Consent, Contents, Job, Layer, Produced, Simulated, StoredTensor, simulated
from qbench.network import Kernel, Precision
from qbench.protocols import Progress
from qbench.targets.exporters import coreml_file
from qbench.targets.exporters.coreml_half import with_half_scales
from qbench.targets.exporters.plain_graph import ARRAYS, PROGRAM, Plain, plain, refuse_operators
from qbench.targets.exporters.workers import ask

PACKAGE, ON_MAC = "model.mlpackage", "on_mac.py"
BUILD_S = 1800.0
REFERENCE = "model.coreml.onnx"
LEAST_SQNR_DB = 30.0
OPERATORS = frozenset((
    "QuantizeLinear", "DequantizeLinear", "Conv", "ConvTranspose", "Gemm", "MatMul", "Add", "Sub", "Mul", "Div", "Max", "Min", "Pow", "Relu",
    "Sigmoid", "Tanh", "Softplus", "Softsign", "Erf", "Exp", "Sqrt", "Abs", "Floor", "Ceil", "Sin", "Cos", "Identity", "Round", "Neg", "Reciprocal",
    "Log", "Clip", "LeakyRelu", "Elu", "PRelu", "HardSigmoid", "HardSwish", "Gelu", "Softmax", "Cast", "MaxPool", "AveragePool", "GlobalAveragePool",
    "GlobalMaxPool", "ReduceMean", "ReduceSum", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceL2", "Sum", "Concat", "Transpose", "Split", "Slice",
    "Pad", "Gather", "Expand", "DepthToSpace", "Resize", "Reshape", "Flatten", "Squeeze", "Unsqueeze", "BatchNormalization", "InstanceNormalization",
    "LayerNormalization"))
"""What the worker has a rule for."""
AS_HALF = "Core ML has no 16-bit integers: FP16 by --option int16=fp16"
HALVED = "rounded to float16: the scales of Core ML have the type of what they scale"
WHY_NOT = "Core ML compiles and runs on macOS only: copy the folder there and run on_mac.py"
NOT_COMPILED = ("no Core ML compiler has seen the package: the figures above are what its own files compute in onnxruntime, sums in float32; "
                "the second is what float16 scales cost, as Core ML has no others")
CONVENTIONS = {"activations": "int8, real = (q - zero_point) * scale, by MIL's quantize and dequantize (iOS 17); scales are rounded to float16",
               "weights": "int8 by constexpr_affine_dequantize, a float16 scale per output channel; biases float16",
               "float": "FP16; FP32 where the plan says so, with casts around it", "ends": "inputs and outputs are float32",
               "sums": "who computes int8 by int8 (from A17 Pro and M4 on) or in float16 is Core ML's choice"}

BOARD_CODE = '''
def infer(folder, feeds):
    """Outputs in order, in float. coremltools on macOS, CPU and Neural Engine."""
    import coremltools as ct

    model = ct.models.MLModel(str(folder / "model.mlpackage"), compute_units=ct.ComputeUnit.CPU_AND_NE)
    names, outputs = NAMES
    got = model.predict({names[k]: np.asarray(v, np.float32) for k, v in feeds.items()})
    return [got[n] for n in outputs]
'''
ON_MAC_CODE = '''"""Compiles the package on macOS, runs run.py, and tells on which unit every operation is planned. Written by qbench export; it was not run here.

    python3 on_mac.py        needs macOS 14 and: pip install coremltools
Exit status 0 when the golden outputs agree (run.py), 1 when they do not. Placement goes to placement.json.
"""

import json
import sys
from collections import Counter
from pathlib import Path


def placement(folder):
    """Every operation with the unit that Core ML prefers, and its share of the time as Core ML estimates it."""
    import coremltools as ct
    from coremltools.models.compute_plan import MLComputePlan

    compiled = ct.models.utils.compile_model(str(folder / "model.mlpackage"), str(folder / "model.mlmodelc"))
    plan = MLComputePlan.load_from_path(compiled, compute_units=ct.ComputeUnit.CPU_AND_NE)
    rows = []
    for function in plan.model_structure.program.functions.values():
        for operation in function.block.operations:
            usage = plan.get_compute_device_usage_for_mlprogram_operation(operation)
            cost = plan.get_estimated_cost_for_mlprogram_operation(operation)
            if usage is not None:
                rows.append({"operation": operation.operator_name, "outputs": [o.name for o in operation.outputs],
                             "unit": type(usage.preferred_compute_device).__name__, "cost": None if cost is None else cost.weight})
    return rows


def main():
    folder = Path(__file__).resolve().parent
    if sys.platform != "darwin":
        print("on_mac.py needs macOS: Core ML does not compile or run elsewhere")
        return 2
    import run

    wrong = run.main()
    rows = placement(folder)
    (folder / "placement.json").write_text(json.dumps(rows, indent=1) + "\\n", encoding="utf-8")
    for unit, count in Counter(r["unit"] for r in rows).most_common():
        print(f"{unit}: {count} operations")
    for row in rows:
        if "NeuralEngine" not in row["unit"]:
            print(f"not on the Neural Engine: {row['operation']} {', '.join(row['outputs'])}")
    return wrong


if __name__ == "__main__":
    sys.exit(main())
'''


@dataclass(frozen=True)
class CoremlExporter:
    """Pairs become quantize and dequantize, integer weights stay integers, float layers have their type."""

    name: str = "coreml"
    title: str = "Apple Core ML (Neural Engine)"
    toolchain: str = "coreml"

    def check(self, job: Job) -> None:
        """Raises an InputError for what Core ML cannot hold, naming layer, tensor or operator."""
        if odd := next((f"{k}={v}" for k, v in job.options.items() if (k, v) != ("int16", "fp16")), ""):
            raise InputError(f"coreml: no option {odd!r}; there is int16=fp16, which computes INT16 layers in FP16")
        for precision in dict.fromkeys(job.plan.precision.values()):
            if precision is not Precision.FP32 and (precision is not Precision.INT16 or not job.options):
                job.target.support(precision, job.toolkit)
        refuse_operators(job, OPERATORS, "a Core ML package")
        for key, tensor in job.demanded.tensors.items():
            if tensor.bits == 8 and not key.startswith("weight:") and float(np.float16(tensor.scale[0])) in (0.0, float("inf")):
                raise PlanError(f"{key}: scale {tensor.scale[0]:.3g} is no float16, the type of Core ML's scales: keep its layer in FP32")

    def write(self, job: Job, folder: Path, progress: Progress) -> Produced:
        """The package, read back and computed from its own files; without coremltools what its worker needs."""
        made = without_int16(plain(job), job)
        toolchain = toolchains.load(self.toolchain)
        names = made.body["names"]
        board = BOARD_CODE.replace("NAMES", repr(({n: names[n] for n in made.body["inputs"]}, [names[n] for n in made.body["outputs"]])))
        qdq.save(with_half_scales(job), folder / REFERENCE)
        told = {REFERENCE: "the Q/DQ model with float16 scales, whose output is the golden one"}
        consent = half_scales(job)
        if toolchains.find(toolchain) is None:
            made.save(folder)
            told |= {PROGRAM: "the Q/DQ model as plain JSON, for qbench's worker in coremltools' environment", ARRAYS: "its constants"}
            return Produced(False, told, None, f"{toolchain.package} is not here: {toolchains.how_to_get(toolchain)}", conventions=CONVENTIONS)
        progress("coremltools writes the package", 0, 2)
        version = _packaged(job, made, folder)
        progress("computing the package", 1, 2)
        proof, cost = _computed(job, made, folder)
        parts = sorted(p.relative_to(folder).as_posix() for p in (folder / PACKAGE).rglob("*") if p.is_file())
        (folder / ON_MAC).write_text(ON_MAC_CODE, encoding="utf-8", newline="\n")
        told |= {p: "Core ML package" for p in parts} | {ON_MAC: "compiles and runs it on macOS, tells the placement"}
        remarks = [NOT_COMPILED,
                   *([AS_HALF] if Precision.INT16 in job.plan.precision.values() else [])]
        return Produced(False, told, read_package(job, folder / PACKAGE, made), WHY_NOT, reference=REFERENCE, versions={"toolchain": f"coremltools {version}"},
                        requires={"ios": ">=17.0"}, conventions=CONVENTIONS, consent=consent, simulations=(proof, cost),
                        facts={"operations": len(coreml_file.read(folder / PACKAGE).operations)}, remarks=tuple(remarks), board_code=board, tolerance_lsb=3.0)


def without_int16(made: Plain, job: Job) -> Plain:
    """16-bit pairs gone, which `int16=fp16` allows: what they wrapped is FP16."""
    if Precision.INT16 not in job.plan.precision.values():
        return made
    zeros = {n["outputs"][0]: made.arrays[made.body["constants"][n["inputs"][2]]] for n in made.body["nodes"] if n["op"] == "QuantizeLinear"}
    wide = {name for name, zero in zeros.items() if zero.dtype.itemsize > 1}
    for node in made.body["nodes"]:
        if (node["op"] == "QuantizeLinear" and node["outputs"][0] in wide) or (node["op"] == "DequantizeLinear" and node["inputs"][0] in wide):
            node["op"], node["inputs"] = "Identity", node["inputs"][:1]
    return made


def half_scales(job: Job) -> dict[str, Consent]:
    """Scales as the package must hold them: float16, but for what FP32 layers make."""
    found = {}
    for key, tensor in job.demanded.tensors.items():
        maker = job.prepared.network.producer.get(key.rpartition(":")[0])
        rounded = tuple(float(np.float16(s)) for s in tensor.scale)
        if tensor.bits == 8 and rounded != tensor.scale and (maker is None or job.demanded.layers[maker].precision is not Precision.FP32):
            found[key] = Consent(StoredTensor(tensor.dtype, rounded, tensor.zero_point), HALVED)
    return found


def _packaged(job: Job, made: Plain, folder: Path) -> str:
    """Writes the package; the version of coremltools."""
    work = folder / "work"
    work.mkdir()
    made.save(work)
    answer = ask(toolchains.need("coreml"), "coreml", {"program": PROGRAM, "arrays": ARRAYS, "package": PACKAGE}, folder=work, seconds=BUILD_S,
                 what=f"coremltools writing {job.prepared.network.name}")
    (work / PACKAGE).replace(folder / PACKAGE)
    shutil.rmtree(work)
    return str(answer["version"])


def _computed(job: Job, made: Plain, folder: Path) -> tuple[Simulated, Simulated]:
    """What the package's own files compute, against the plan with float16 scales, and against the plan as it was evaluated."""
    from qbench.runtime import Session
    from qbench.targets.exporters.coreml_onnx import to_onnx

    names = made.body["names"]
    session = Session(to_onnx(coreml_file.read(folder / PACKAGE)).SerializeToString(), simulate=True)
    outputs = []
    for sample in job.samples:
        got = session.run({names[k]: np.asarray(v, np.float32) for k, v in sample.items()})
        outputs.append({n: got[names[n]] for n in made.body["outputs"]})
    note = "sums in float32: Apple's units are not simulated"
    return (simulated(job, "package computed here", folder / REFERENCE, outputs, limit_lsb=1.0, least_sqnr_db=LEAST_SQNR_DB, by_vendor=False, note=note),
            simulated(job, "the same against the plan as evaluated", folder / QDQ, outputs, by_vendor=False, note="float16 scales against float32 ones"))


def read_package(job: Job, package: Path, made: Plain) -> Contents:
    """What the package holds, in the words of the plan, read without coremltools. Of a pair whose halves differ, the half that is not the plan's is told."""
    consent = half_scales(job)
    program = coreml_file.read(package)
    types = {name: kind for op in program.operations for name, (kind, _) in op.outputs.items()}
    names, written = made.body["names"], job.written
    aliases = {o: str(op.inputs["x"][0]) for op in program.operations if op.kind == "cast" for o in op.outputs}
    quantized = {aliases.get(str(op.inputs["input"][0]), str(op.inputs["input"][0])): op for op in program.operations if op.kind == "quantize"}
    tensors: dict[str, StoredTensor] = {}
    for op in program.operations:
        if op.kind == "constexpr_affine_dequantize":
            key = next((s["key"] for v, s in made.body["stored"].items() if next(iter(op.outputs)) in (names[v], f"{names[v]}_fp32")), None)
            if key is not None:
                tensors[f"weight:{key}"] = _stored(op, op.constant("quantized_data").dtype.name)
    behind = _pairs(program)
    for tensor, value in (*written.raw.items(), *written.stored.items()):
        for op in (o for source, o in quantized.items() if source in _candidates(names[value])):
            key = f"{tensor}:int8"
            halves = [_stored(o, str(op.constant("output_dtype"))) for o in (op, *behind.get(next(iter(op.outputs)), ()))]
            change = consent.get(key)
            tensors[key] = next((h for h in halves if h != (change.instead if change else job.demanded.tensors.get(key))), halves[0])
    layers, silent = {}, {}
    for kernel in job.prepared.network.kernels:
        found = _layer(job, kernel, names, types, quantized)
        if found is None:
            silent[kernel.name] = "it leaves no operation of its own"
        else:
            layers[kernel.name] = found
            if found.precision is Precision.FP16 and job.demanded.layers[kernel.name].precision is Precision.INT16:
                silent[kernel.name] = AS_HALF
    for key, held in job.demanded.tensors.items():
        if held.bits == 16:
            silent[key] = AS_HALF
    return Contents(layers, tensors, f"{PACKAGE}: model.mlmodel and weight.bin", silent)


def _candidates(name: str) -> tuple[str, ...]:
    """Names under which a value of the model may be found: outputs of the model are converted at the end."""
    return (name, f"{name}_in")


def _pairs(program: coreml_file.Program) -> dict[str, list[coreml_file.Operation]]:
    """Codes -> the operations that dequantize them."""
    found: dict[str, list[coreml_file.Operation]] = {}
    for op in program.operations:
        if op.kind == "dequantize":
            found.setdefault(str(op.inputs["input"][0]), []).append(op)
    return found


def _stored(op: coreml_file.Operation, dtype: str) -> StoredTensor:
    scale, zero = np.asarray(op.constant("scale"), np.float64).reshape(-1), np.asarray(op.constant("zero_point")).reshape(-1)
    return StoredTensor(dtype, tuple(float(s) for s in scale), tuple(int(z) for z in zero))


def _layer(job: Job, kernel: Kernel, names: Mapping[str, str], types: Mapping[str, str], quantized: Mapping[str, Any]) -> Layer | None:
    """INT8 where a result goes through a pair that its readers see, else the type of the result."""
    written = job.written
    for tensor in (*kernel.outputs, *kernel.inner):
        raw = written.raw.get(tensor)
        if raw is not None and written.stored[tensor] != raw and any(n in quantized for n in _candidates(names[raw])):
            return Layer(Precision.INT8)
    for tensor in (*kernel.outputs, *kernel.inner):
        name = next((n for n in reversed(_candidates(names[written.raw.get(tensor, tensor)])) if n in types), None)
        if name is not None:
            return Layer({"float32": Precision.FP32}.get(types[name], Precision.FP16))
    return None
