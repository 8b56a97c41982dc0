"""Huawei Ascend: the Q/DQ model for AMCT, its record, files of data types, atc's line. CANN is in no registry: nothing is compiled here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import onnx_ir as ir

from qbench import qdq
from qbench.errors import InputError, PlanError, ToolError
from qbench.export import QDQ, Contents, Job, Layer, Produced, read_qdq, simulated
from qbench.export.comparing import reference_outputs
from qbench.graph.values import is_float
from qbench.network import Kernel, Precision
from qbench.protocols import Progress
from qbench.targets.exporters import ascend_amct as amct
from qbench.targets.exporters import ascend_atc as atc
from qbench.targets.exporters import ascend_log as log
from qbench.targets.exporters import ascend_model as qat

HANDED, RECORD, CONFIG = "model.amct.onnx", "record.txt", "quant.cfg"
KEEP, CUSTOMIZE, CONVERT, SCRIPT = "keep_dtype.cfg", "customize_dtypes.cfg", "convert.py", "convert.sh"
DEPLOY = "model_deploy_model.onnx"
"""What convert_qat_model calls it."""
OPTIONS = ("soc_version", "precision_mode", "log", "weights", "atc_log")
SAME_DB = 10.0
WHY_NOT = ("CANN (AMCT and atc) is in no package registry and needs Huawei's installer: run convert.sh on a machine that has it, "
           "then give its log with --option atc_log=FILE")
CONVENTIONS = {"activations": "int8, real = (q - zero_point) * scale; offset_d is the zero point", "weights": "int8 symmetric, narrow (-127 to 127); offset_w 0; "
               "a scale per output channel for Conv and ConvTranspose, one for Gemm and MatMul", "bias": "float in the model; AMCT makes int32 of it",
               "fixed outputs": "as the plan says (Softmax and Sigmoid are calibrated unless the target fixes them)",
               "float": "FP16 (customize_dtypes.cfg), FP32 where the plan says so (keep_dtype.cfg)"}

CONVERT_CODE = '''"""AMCT: from the Q/DQ model to the deploy model that atc takes. Written by qbench export; run by convert.sh where CANN is installed."""

import amct_onnx as amct

amct.convert_qat_model("model.amct.onnx", "./model", "record.txt")
'''
BOARD_CODE = '''
def infer(folder, feeds):
    """Outputs in order, in float. ais_bench on the device."""
    from ais_bench.infer.interface import InferSession

    return InferSession(0, str(folder / "model.om")).infer([np.ascontiguousarray(v) for v in feeds.values()])
'''


@dataclass(frozen=True)
class AscendExporter:
    """INT8 through whole Q/DQ pairs and the record, float layers through the files of data types."""

    name: str = "ascend"
    title: str = "Huawei AMCT and ATC (Ascend)"
    toolchain: str = ""

    def check(self, job: Job) -> None:
        """Raises an InputError for what AMCT and atc are documented to refuse."""
        if odd := next((k for k in job.options if k not in OPTIONS), ""):
            raise InputError(f"ascend: no option {odd!r}; there are {', '.join(OPTIONS)}")
        for precision in dict.fromkeys(job.plan.precision.values()):
            if precision is not Precision.FP32:
                job.target.support(precision, job.toolkit)
        atc.check_command(command(job), job.prepared.network, job.target.name)
        weights = {x.weight for x in qat.layers(job)}
        for key, tensor in job.demanded.tensors.items():
            if tensor.dtype != "int8" or (key in weights and any(tensor.zero_point)):
                raise PlanError(f"{key}: {tensor}; AMCT takes int8, and weights with zero point 0: use the target's own scheme")
        if (many := qat.many_scales(job)) and job.options.get("weights") != "per-tensor":
            first, scales = many[0], len(job.demanded.tensors[many[0].weight].scale)
            raise PlanError(f"{first.weight} of {first.op} {first.node!r} has {scales} scales; AMCT: {qat.ONE_SCALE} ({len(many)} such layers). "
                            "Search again with --scale per-layer, or allow it with --option weights=per-tensor")
        if job.options.get("weights", "per-tensor") != "per-tensor":
            raise InputError(f"ascend: --option weights={job.options['weights']}: there is weights=per-tensor")
        if (path := job.options.get("atc_log")) is not None and not Path(path).is_file():
            raise InputError(f"ascend: --option atc_log={path}: there is no such file; give the log that convert.sh left (atc.log)")

    def write(self, job: Job, folder: Path, progress: Progress) -> Produced:
        """Everything up to the toolchain, read back from the files by their grammars."""
        progress("writing for AMCT and atc", 0, 2)
        made = qat.adapted(job)
        self._files(job, made, folder)
        _judge_log(job)
        progress("comparing with the plan as written", 1, 2)
        compared = simulated(job, "onnxruntime on the model for AMCT, as written", folder / QDQ, reference_outputs(folder / HANDED, job.samples),
                             limit_lsb=None if made.consent else 1.0, least_sqnr_db=SAME_DB,
                             note=f"{len(made.consent)} weights have one scale instead of one per channel" if made.consent else "", by_vendor=False)
        known = {HANDED: "Q/DQ model for AMCT's convert_qat_model", RECORD: "AMCT record: scales and offsets",
                 CONFIG: "AMCT simple configuration, to calibrate there instead",
                 CUSTOMIZE: "data types of the FP16 layers", KEEP: "layers that stay in FP32", CONVERT: "calls AMCT", SCRIPT: "AMCT and atc, to run where CANN is"}
        artefacts = {name: what for name, what in known.items() if (folder / name).is_file()}
        return Produced(False, artefacts, read_folder(job, folder), WHY_NOT, reference=HANDED, requires={"runtime": f">={job.toolkit}"}, conventions=CONVENTIONS,
                        consent=made.consent, simulations=(compared,), facts={"soc_version": command(job).soc_version, "records": len(made.records)},
                        remarks=("the record, the configuration and atc's line were parsed back by their documented grammars; no vendor's tool has seen them",
                                 "re-convert the .om when CANN on the device is another version"), board_code=BOARD_CODE)

    def _files(self, job: Job, made: qat.Adapted, folder: Path) -> None:
        qdq.save(made.model, folder / HANDED)
        floats = [k.name for k in job.prepared.network.kernels if job.demanded.layers[k.name].precision.is_float]
        offsets = any(t.steps[0] != 128 for k, t in job.demanded.tensors.items() if not k.startswith("weight:"))
        texts = {RECORD: amct.record_text(made.records), CONFIG: amct.config_text(amct.Config(offsets, tuple(floats))), KEEP: atc.keep_text(keep_nodes(job)),
                 CUSTOMIZE: atc.customize_text(customize_rows(job)), CONVERT: CONVERT_CODE, SCRIPT: script(job)}
        for name, text in ((n, t) for n, t in texts.items() if t or n not in (KEEP, CUSTOMIZE)):
            (folder / name).write_text(text, encoding="utf-8", newline="\n")


def command(job: Job) -> atc.Command:
    """atc's parameters, from the target, the model and the options."""
    network, options = job.prepared.network, job.options
    return atc.Command(framework=atc.ONNX, soc_version=options.get("soc_version", atc.SOC_VERSIONS.get(job.target.name, ("",))[0]),
                       input_shape={n: network.tensors[n].shape for n in network.inputs}, input_format=atc.input_format(network), output="model",
                       precision_mode=options.get("precision_mode", atc.PRECISION_MODES[0]), log=options.get("log", atc.LOGS[0]),
                       model=DEPLOY if job.demanded.tensors else HANDED, keep_dtype=KEEP if keep_nodes(job) else "", customize_dtypes=CUSTOMIZE if customize_rows(job) else "")


def script(job: Job) -> str:
    return ("#!/bin/sh\n# Written by qbench export. Needs CANN with AMCT (amct_onnx) and atc; not run here.\nset -e\ncd \"$(dirname \"$0\")\"\n"
            f"{f'python3 {CONVERT}{chr(10)}' if job.demanded.tensors else ''}{command(job).line()} > atc.log 2>&1 || {{ cat atc.log; exit 1; }}\n")


def _of(job: Job, precision: Precision) -> list[Kernel]:
    return [k for k in job.prepared.network.kernels if job.demanded.layers[k.name].precision is precision]


def keep_nodes(job: Job) -> tuple[str, ...]:
    return tuple(n for k in _of(job, Precision.FP32) for n in k.nodes)


def customize_rows(job: Job) -> tuple[atc.Dtypes, ...]:
    """Data types of every node of an FP16 layer: float16 for what is real, its own type for what is not."""
    nodes = {str(n.name): n for n in job.prepared.model.graph}
    tensors = job.prepared.network.tensors

    def kind(value: ir.Value) -> str:
        spec = tensors.get(str(value.name))
        if spec is not None:
            return "float16" if is_float(spec) else spec.dtype
        return "float16" if value.dtype in (None, ir.DataType.FLOAT) else value.dtype.numpy().name

    return tuple(atc.Dtypes(n, tuple(kind(v) for v in nodes[n].inputs if v is not None), tuple(kind(v) for v in nodes[n].outputs))
                 for k in _of(job, Precision.FP16) for n in k.nodes if n in nodes)


def _judge_log(job: Job) -> None:
    """Raises ToolError with what atc said, layer by layer, where a log was given and tells of errors."""
    path = job.options.get("atc_log")
    if path is None:
        return
    kernels = {n: k.name for k in job.prepared.network.kernels for n in k.nodes}
    read = log.parse(Path(path).read_text(encoding="utf-8", errors="replace"), kernels)
    if read.errors or read.succeeded is False:
        said = map(str, read.errors or ("it names no error: run again with --option log=info",))
        raise ToolError("\n  ".join([f"atc did not convert the model ({path}):", *said]))
    if read.succeeded is None:
        raise ToolError(f"{path} ends before atc says whether it succeeded: give the whole log")


def read_folder(job: Job, folder: Path) -> Contents:
    """What the files of an export say, each parsed by its own grammar: model, record, files of data types, atc's line.

    Raises ToolError for a file that its grammar does not allow, and InputError for an atc line whose parameters do not fit the model.
    """
    model = ir.load(folder / HANDED)
    read = read_qdq(model, job.prepared, job.written, job.demanded)
    records = {r.layer: r for r in amct.read_record((folder / RECORD).read_text(encoding="utf-8"))}
    tensors = qat.with_record(dict(read.tensors) | dict(qat.read_weights(model)), records, job)
    line = atc.read_command((folder / SCRIPT).read_text(encoding="utf-8"))
    atc.check_command(line, job.prepared.network, job.target.name)
    keep = set(atc.read_keep((folder / KEEP).read_text(encoding="utf-8"))) if line.keep_dtype else set()
    half = {r.name: r for r in atc.read_customize((folder / CUSTOMIZE).read_text(encoding="utf-8"))} if line.customize_dtypes else {}
    skipped = set(amct.read_config((folder / CONFIG).read_text(encoding="utf-8")).skip_layers)
    recorded = {x.node for x in qat.layers(job) if x.activation}
    found = {name: _layer(job.prepared.network.kernel[name], layer, records, recorded, keep, half, skipped) for name, layer in read.layers.items()}
    files = ", ".join(n for n in (HANDED, RECORD, CONFIG, CUSTOMIZE, KEEP) if (folder / n).is_file())
    return Contents(found, tensors, f"{files} and the atc line", read.silent)


def _layer(kernel: Kernel, read: Layer, records: Mapping[str, amct.Record], recorded: set[str], keep: set[str], half: Mapping[str, atc.Dtypes],
           skipped: set[str]) -> Layer:
    """A layer is what all files say of it; one that they contradict is told as what the file makes of it."""
    if not read.precision.is_float:
        missing = any(n in recorded and n not in records for n in kernel.nodes)
        wrong = next((records[n] for n in kernel.nodes if n in records and (records[n].act_type, records[n].wts_type) != (amct.INT8, amct.INT8)), None)
        contradicted = missing or kernel.name in skipped or any(n in half for n in kernel.nodes) or wrong is not None
        return Layer(Precision.FP16) if contradicted else read
    if any(n in records for n in kernel.nodes):
        return Layer(Precision.INT8)
    if all(n in keep for n in kernel.nodes):
        return Layer(Precision.FP32)
    rows = [half[n] for n in kernel.nodes if n in half]
    if any(t in ("int8", "uint8") for r in rows for t in (*r.inputs, *r.outputs)):
        return Layer(Precision.INT8)
    return Layer(Precision.FP16)
