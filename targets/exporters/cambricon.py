"""Cambricon MLU: MagicMind's builder configuration, ranges and precisions per node, the script that builds. MagicMind is in no registry."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import onnx_ir as ir

from qbench import qdq
from qbench.errors import InputError, PlanError, TargetError, ToolError
from qbench.export import Contents, Job, Layer, Produced, StoredTensor
from qbench.graph.operators import ANCHORS
from qbench.network import Precision
from qbench.plan import Granularity
from qbench.protocols import Progress
from qbench.targets.exporters import cambricon_files as files
from qbench.targets.exporters.qnn_readback import quantizers
from qbench.targets.exporters.rknn_model import ranged_form

HANDED, BUILDER, LAYERS, SCRIPT = "model.float.onnx", "builder_config.json", "layers.json", "build.py"
SCRIPT_SOURCE = Path(__file__).with_name("cambricon_build.py")
ARCHS: Mapping[str, Mapping[str, list[int]]] = {"mlu220": {"mtp_220": [4]}, "mlu270": {"mtp_270": [4, 16]}, "mlu370-s4": {"mtp_372": [6, 8]},
                                                "mlu370-x4": {"mtp_372": [6, 8]}}
"""Chip and numbers of cores. Source: mtp_372 with 6 and 8 is what the samples of Cambricon/magicmind_cloud build (2023); the others are assumed."""
HIGHEST = {8: 127, 16: 32767}
"""Code that a symmetric range's end is."""
RECOMPUTED = 1e-6
"""MagicMind computes the scale again from a float32 range."""
TYPES = {Precision.INT8: "QINT8", Precision.INT16: "QINT16", Precision.FP16: "FLOAT16", Precision.FP32: "FLOAT32"}
PRECISIONS = {v: k for k, v in TYPES.items()}
WHY_NOT = "MagicMind is in no package registry: run build.py where Cambricon's Neuware is installed (it needs an MLU only with --calibrate)"
CONVENTIONS = {"ranges": "symmetric: -x to x, scale = x / 127 for QINT8 and x / 32767 for QINT16; only ranges are handed over, the scale is computed again",
               "activations": "signed, zero point 0", "weights": "signed, zero point 0, narrow; float weights are the plan's codes times their scale",
               "bias": "float", "fixed outputs": "as the plan says", "float": "FLOAT16, FLOAT32 where the plan says so"}

BOARD_CODE = '''
def infer(folder, feeds):
    """Outputs in order, in float. MagicMind's runtime on the MLU; follows the public samples, not run by qbench."""
    import magicmind.python.runtime as mm

    with mm.System():
        model = mm.Model()
        assert model.deserialize_from_file(str(folder / "model.mm")).ok(), "model.mm cannot be read: it and the runtime must be of one version"
        device = mm.Device()
        device.id = 0
        assert device.active().ok(), "no MLU"
        engine = model.create_i_engine()
        context = engine.create_i_context()
        queue = device.create_queue()
        inputs = context.create_inputs()
        for tensor, value in zip(inputs, feeds.values()):
            tensor.from_numpy(np.ascontiguousarray(value))
            tensor.to(device)
        outputs = []
        assert context.enqueue(inputs, outputs, queue).ok() and queue.sync().ok()
        return [o.asnumpy() for o in outputs]
'''


@dataclass(frozen=True)
class CambriconExporter:
    """A float model of the plan's rounded weights; ranges and precisions go in node by node."""

    name: str = "cambricon"
    title: str = "Cambricon MagicMind (MLU)"
    toolchain: str = ""

    def check(self, job: Job) -> None:
        """Raises an InputError for what ranges of MagicMind cannot say."""
        if job.options:
            raise InputError(f"cambricon: no option {next(iter(job.options))!r}; it takes none")
        if job.target.name not in ARCHS:
            raise TargetError(f"cambricon: which architecture is {job.target.name!r}? known are {', '.join(ARCHS)}")
        for precision in dict.fromkeys(job.plan.precision.values()):
            if precision is not Precision.FP32:
                job.target.support(precision, job.toolkit)
        if job.plan.granularity == Granularity.PER_GROUP:
            raise PlanError("the plan has weights per group, which MagicMind does not take: search again with --scale per-channel")
        for key, tensor in job.demanded.tensors.items():
            if any(tensor.zero_point) or not tensor.dtype.startswith("int"):
                raise PlanError(f"{key}: {tensor}; the ranges handed to MagicMind are symmetric: use the target's own scheme")

    def write(self, job: Job, folder: Path, progress: Progress) -> Produced:
        """Model, configuration, layers and script, read back by their schema."""
        progress("writing for MagicMind", 0, 1)
        ranged = ranged_form(job)
        qdq.save(ranged.model, folder / HANDED)
        (folder / BUILDER).write_text(files.text(builder_config(job)), encoding="utf-8", newline="\n")
        (folder / LAYERS).write_text(files.text(layers(job)), encoding="utf-8", newline="\n")
        (folder / SCRIPT).write_text(SCRIPT_SOURCE.read_text(encoding="utf-8"), encoding="utf-8", newline="\n")
        told = {HANDED: "float model with the plan's rounded weights", BUILDER: "MagicMind builder configuration",
                LAYERS: "range and precision of every node",
                SCRIPT: "builds model.mm; --calibrate lets MagicMind find the ranges itself, to compare"}
        remarks = ["both JSON files were parsed back by a schema made from public samples; no vendor's tool has seen them, and the script was not run",
                   "numbers of cores in builder_config.json: those of mtp_372 are Cambricon's samples', others are assumed"]
        return Produced(False, told, read_folder(job, folder), WHY_NOT, requires={"runtime": f">={job.toolkit}"}, conventions=CONVENTIONS,
                        scale_tolerance=RECOMPUTED, facts={"nodes": len(layers(job).nodes)}, remarks=tuple(remarks), board_code=BOARD_CODE, tolerance_lsb=2.0)


def builder_config(job: Job) -> files.BuilderConfig:
    """The mode is that of most of the plan; every node is set by itself anyway."""
    used = set(job.plan.precision.values())
    per_axis = any(k.startswith("weight:") and len(t.scale) > 1 for k, t in job.demanded.tensors.items())
    precision = files.PrecisionConfig(precision_mode=_mode(used), activation_quant_algo="symmetric",
                                      weight_quant_granularity="per_axis" if per_axis else "per_tensor")
    return files.BuilderConfig(archs=[dict(ARCHS[job.target.name])], graph_shape_mutable=False, precision_config=precision,  # type: ignore[list-item]
                               opt_config=files.OptConfig(type64to32_conversion=True, conv_scale_fold=True))


def _mode(used: set[Precision]) -> files.Mode:
    wide_float = Precision.FP32 in used and Precision.FP16 not in used
    if Precision.INT8 in used:
        return "qint8_mixed_float32" if wide_float else "qint8_mixed_float16"
    if Precision.INT16 in used:
        return "qint16_mixed_float32" if wide_float else "qint16_mixed_float16"
    return "force_float32" if wide_float else "force_float16"


def layers(job: Job) -> files.Layers:
    """Every node of every kernel, with the ranges that its inputs are read in and its results are stored in."""
    network, keys = job.prepared.network, {str(q.outputs[0].name): key for key, q in quantizers(job)}
    nodes = {str(n.name): n for n in job.written.model.graph}
    raw = {v: t for t, v in job.written.raw.items()}
    rows = []
    for kernel in network.kernels:
        precision = job.demanded.layers[kernel.name].precision
        for name in (n for n in kernel.nodes if n in nodes):
            node = nodes[name]
            inputs = [found for i in range(len(node.inputs)) if (found := _input(job, node, i, precision, keys)) is not None]
            outputs = [_output(job, i, raw.get(str(v.name), str(v.name)), precision) for i, v in enumerate(node.outputs)]
            rows.append(files.Node(name=name, layer=kernel.name, inputs=inputs, outputs=outputs))
    ends = [_output(job, i, t, None) for i, t in enumerate(network.inputs)]
    return files.Layers(nodes=rows, inputs=[e for e in ends if e.ranges is not None])


def _input(job: Job, node: ir.Node, index: int, precision: Precision, keys: Mapping[str, str]) -> files.Tensor | None:
    """How a node reads an input; None for what holds no reals (shapes, indices) and for biases, which stay float."""
    value = node.inputs[index]
    if value is None or (node.op_type in ANCHORS and index == 2):
        return None
    before = value.producer()
    codes = before.inputs[0] if before is not None and before.op_type == "DequantizeLinear" else None
    if codes is not None:
        key = keys.get(str(codes.name), f"weight:{str(codes.name).removesuffix('_q')}")
        stored = job.demanded.tensors.get(key)
        if stored is None:
            return None
        if precision.is_float:
            return files.Tensor(index=index, type=TYPES[precision])  # type: ignore[arg-type]
        return files.Tensor(index=index, type=_type(stored), key=key, ranges=_ranges(stored))  # type: ignore[arg-type]
    spec = job.prepared.network.tensors.get(str(value.name))
    if (spec.dtype != "float32" if spec is not None else value.dtype not in (None, ir.DataType.FLOAT)):
        return None
    return files.Tensor(index=index, type=TYPES[precision] if precision.is_float else "FLOAT16")  # type: ignore[arg-type]


def _output(job: Job, index: int, tensor: str, precision: Precision | None) -> files.Tensor:
    """Results leave a node in float, and are stored in the range that the plan gives them: their readers quantize them."""
    stored_as = [precision] if precision is not None and not precision.is_float else [Precision.INT8, Precision.INT16]
    found = [k for k in (f"{tensor}:{p}" for p in stored_as) if k in job.demanded.tensors]
    kind = "FLOAT32" if precision is Precision.FP32 else "FLOAT16"
    if not found or (precision is not None and precision.is_float):
        return files.Tensor(index=index, type=kind)  # type: ignore[arg-type]
    stored = job.demanded.tensors[found[0]]
    return files.Tensor(index=index, type=kind if precision is not None else _type(stored), key=found[0], ranges=_ranges(stored))  # type: ignore[arg-type]


def _type(stored: StoredTensor) -> str:
    return "QINT8" if stored.bits == 8 else "QINT16"


def _ranges(stored: StoredTensor) -> list[tuple[float, float]]:
    ends = [HIGHEST[stored.bits] * s for s in stored.scale]
    return [(-e, e) for e in ends]


def read_folder(job: Job, folder: Path) -> Contents:
    """What the JSON files say. Raises ToolError for files that the schema does not allow, or that are for another chip."""
    builder = files.read_builder((folder / BUILDER).read_text(encoding="utf-8"))
    told = files.read_layers((folder / LAYERS).read_text(encoding="utf-8"))
    if builder.archs != [dict(ARCHS[job.target.name])]:
        raise ToolError(f"builder_config.json: archs are {builder.archs}, {job.target.name} is {[dict(ARCHS[job.target.name])]}")
    collected: dict[str, list[StoredTensor]] = {}
    for key, stored in _tensors(told):
        collected.setdefault(key, []).append(stored)
    tensors = {key: _shown(found, job.demanded.tensors.get(key)) for key, found in collected.items()}
    layers_: dict[str, Layer] = {}
    silent: dict[str, str] = {}
    for kernel in job.prepared.network.kernels:
        rows = [n for n in told.nodes if n.layer == kernel.name]
        types = [t.type for n in rows for t in n.inputs]
        wanted = job.demanded.layers[kernel.name].precision
        if not types:
            silent[kernel.name] = "its inputs are no reals"
        elif wanted.is_float:
            layers_[kernel.name] = Layer(next((p for t in types if (p := PRECISIONS[t]) is not wanted), wanted))
        else:
            integer = [PRECISIONS[t] for t in types if t in files.BITS]
            layers_[kernel.name] = Layer(_lone(integer, wanted, rows))
    return Contents(layers_, tensors, f"{BUILDER} and {LAYERS}", silent)


def _lone(integer: list[Precision], wanted: Precision, rows: list[files.Node]) -> Precision:
    """Of an integer layer: FP16 where an input that has a range is read in float; weights may be narrower than activations."""
    if any(t.ranges is not None and t.type not in files.BITS for n in rows for t in n.inputs):
        return Precision.FP16
    activations = [PRECISIONS[t.type] for n in rows for t in n.inputs if t.type in files.BITS and not t.key.startswith("weight:")]
    return next((p for p in activations or integer if p is not wanted), wanted if integer else Precision.FP16)


def _tensors(told: files.Layers) -> Iterator[tuple[str, StoredTensor]]:
    """Key -> scale. A tensor is told of by the node that makes it and by each that reads it: one that is not the plan's is the one to show."""
    for tensor in (*told.inputs, *(t for n in told.nodes for t in (*n.inputs, *n.outputs))):
        if tensor.ranges is None or not tensor.key:
            continue
        bits = files.BITS.get(tensor.type, 16 if tensor.key.endswith(":int16") else 8)
        yield tensor.key, StoredTensor(f"int{bits}", tuple(high / HIGHEST[bits] for _, high in tensor.ranges), (0,) * len(tensor.ranges))


def _shown(found: list[StoredTensor], plan: StoredTensor | None) -> StoredTensor:
    def equal(stored: StoredTensor) -> bool:
        return plan is not None and stored.bits == plan.bits and len(stored.scale) == len(plan.scale) and all(
            abs(a / b - 1.0) <= RECOMPUTED for a, b in zip(stored.scale, plan.scale, strict=True))

    return next((s for s in found if not equal(s)), found[0])
