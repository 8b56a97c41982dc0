"""This machine's CPU through onnxruntime: the Q/DQ model, the graph that onnxruntime makes of it, and the time it takes."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import onnx
from onnx import numpy_helper

from qbench.board import Request
from qbench.errors import InputError
from qbench.export import QDQ, Job, Produced, StoredTensor, simulated
from qbench.protocols import Progress
from qbench.targets.boards.local import Local
from qbench.targets.exporters.host_layers import LEAST_SQNR_DB, Names, Ran, Reading, moves, reading, stored_names
from qbench.targets.exporters.qnn_readback import quantizers as planned_quantizers

OPTIMIZED = "model.optimized.onnx"
KEEPS_CODES = frozenset({"Transpose", "Reshape", "Squeeze", "Unsqueeze", "Flatten", "MaxPool", "NhwcMaxPool", "Concat", "Split", "Slice", "Gather", "Resize",
                         "Identity"})
"""Operators that onnxruntime runs on codes when their input is codes."""
INTEGER = re.compile(r"QLinear.+|QGemm|QAttention|MatMulInteger.*|ConvInteger")
"""Names of onnxruntime's integer kernels. Source: docs/ContribOperators.md of onnxruntime 1.32."""
_COPIED = re.compile(r"(_token_\d+|_nchwc|_nhwc)+$")
CONVENTIONS = {"activations": "as in the plan: uint8 with a zero point, real = (q - zero_point) * scale", "weights": "int8 symmetric, narrow (-127 to 127)",
               "bias": "int32, scale of input times scale of weight", "float": "FP32 on the CPU"}

BOARD_CODE = '''
def infer(folder, feeds):
    """Outputs in order, in float. onnxruntime on the CPU, integer kernels where it has them."""
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.log_severity_level = 3
    session = ort.InferenceSession(str(folder / "model.qdq.onnx"), options, providers=["CPUExecutionProvider"],
                                   disabled_optimizers=["WeightBiasQuantization"])
    return session.run(None, feeds)
'''


@dataclass(frozen=True)
class OnnxRuntimeExporter:
    """The Q/DQ model as it is."""

    name: str = "onnxruntime"
    title: str = "onnxruntime on this machine's CPU"
    toolchain: str = ""

    def check(self, job: Job) -> None:
        """Raises an InputError for an option, as there are none."""
        if job.options:
            raise InputError(f"onnxruntime: no option {next(iter(job.options))!r}; it takes none")

    def write(self, job: Job, folder: Path, progress: Progress) -> Produced:
        """The graph that onnxruntime runs, read back, compared with the plan as written, and timed."""
        import onnxruntime as ort

        progress("onnxruntime optimizes", 0, 3)
        outputs = _optimized(job, folder)
        progress("reading its graph", 1, 3)
        model = onnx.load(folder / OPTIMIZED)
        read = read_optimized(job, model)
        progress("measuring", 2, 3)
        took = Local("local://").measure(folder / QDQ, [job.golden], Request(runs=20, seconds=0.3))
        compared = replace(simulated(job, "onnxruntime with integer kernels", folder / QDQ, outputs, least_sqnr_db=LEAST_SQNR_DB, by_vendor=False),
                           note="rounding ties go either way: in deep networks they travel on")
        minor = ".".join(ort.__version__.split(".")[:2])
        times = {"latency_ms_median": round(took.latency_ms, 4), "latency_ms_p90": round(took.percentile(90), 4), "runs": len(took.samples_ms)}
        return Produced(True, {OPTIMIZED: "the graph that onnxruntime runs on this machine, for this machine only"}, read.contents, consent=read.consent,
                        versions={"toolchain": f"onnxruntime {ort.__version__}"}, requires={"runtime": f">={minor}"}, conventions=CONVENTIONS,
                        simulations=(compared,), layers=rows(model), facts=facts(job, read) | times, remarks=remarks(read), board_code=BOARD_CODE,
                        tolerance_lsb=1.0 + (compared.lsb or 0.0))


def _optimized(job: Job, folder: Path) -> list[Mapping[str, Any]]:
    """Writes the graph that onnxruntime makes of the Q/DQ model, and runs the samples through it."""
    import onnxruntime as ort

    from qbench.runtime import UNASKED

    options = ort.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = 1
    options.optimized_model_filepath = str(folder / OPTIMIZED)
    session = ort.InferenceSession(str(folder / QDQ), options, providers=["CPUExecutionProvider"], disabled_optimizers=UNASKED)
    names = [o.name for o in session.get_outputs()]
    return [dict(zip(names, session.run(None, {i.name: s[i.name] for i in session.get_inputs()}), strict=True)) for s in job.samples]


def read_optimized(job: Job, model: onnx.ModelProto) -> Reading:
    """What an optimized graph holds: scales and zero points of its initializers that a node still reads, and the kernel of every layer."""
    tensors = dict(_Constants(job, model).read())
    kernels = _kernels(model)
    ran = {}
    for kernel in job.prepared.network.kernels:
        found = [kernels[n] for n in kernel.nodes if n in kernels]
        if integer := next((op for op, codes in found if codes), ""):
            ran[kernel.name] = Ran(True, integer)
        elif found or not moves(job, kernel):
            ran[kernel.name] = Ran(False, found[0][0] if found else "inside a float kernel")
    return reading(job, ran, tensors, "the graph that onnxruntime optimized")


@dataclass
class _Constants:
    """Scales and zero points of an optimized graph.

    An initializer that equals another is shared (onnxruntime's ConstantSharing), so a name of ours may be gone: then the node says which is read.
    """

    job: Job
    model: onnx.ModelProto

    def __post_init__(self) -> None:
        self.arrays = {i.name: numpy_helper.to_array(i) for i in self.model.graph.initializer if i.data_type != onnx.TensorProto.STRING}
        self.used = {name for node in self.model.graph.node for name in node.input}
        self.named = {_COPIED.sub("", n.name): n for n in self.model.graph.node}
        self.readers = {name: n for n in self.model.graph.node for name in n.input}

    def read(self) -> Iterator[tuple[str, StoredTensor]]:
        quantizers = {key: str(node.name) for key, node in planned_quantizers(self.job)}
        for key, names in stored_names(self.job).items():
            kind = self.job.demanded.tensors[key].dtype
            if names.scale not in self.used or names.scale not in self.arrays:
                found = self._of_weight(key) if key.startswith("weight:") else self._of_activation(key, quantizers.get(key, ""))
                if found is None:
                    continue
                names = found
            scale, zero = self.arrays[names.scale].reshape(-1), self.arrays.get(names.zero)
            zeros = (0,) * len(scale) if zero is None else tuple(map(int, zero.reshape(-1)))
            yield key, StoredTensor(kind if zero is None else zero.dtype.name, tuple(map(float, scale)), zeros)

    def _of_weight(self, key: str) -> Names | None:
        codes = key.removeprefix("weight:") + "_q"
        node = self.readers.get(codes)
        at = -1 if node is None else list(node.input).index(codes)
        return self._pair(node, at + 1) if node is not None else None

    def _of_activation(self, key: str, quantizer: str) -> Names | None:
        """Of the quantizer of that name, or of the integer kernel that makes the codes itself: there it is the last pair."""
        if (node := self.named.get(quantizer)) is not None:
            return self._pair(node, 1)
        network, tensor = self.job.prepared.network, key.rpartition(":")[0]
        nodes = network.kernel[network.producer[tensor]].nodes if tensor in network.producer else ()
        for node in (self.named[n] for n in reversed(nodes) if n in self.named and INTEGER.fullmatch(self.named[n].op_type)):
            if (found := next((p for i in reversed(range(len(node.input))) if (p := self._pair(node, i)) is not None), None)) is not None:
                return found
        return None

    def _pair(self, node: onnx.NodeProto, at: int) -> Names | None:
        """The scale that a node reads at a place, and the zero point behind it."""
        names = [*node.input, "", ""][at:at + 2]
        if len(names) < 2 or names[0] not in self.arrays or self.arrays[names[0]].dtype.kind != "f":
            return None
        zero = self.arrays.get(names[1])
        return Names(names[0], names[1]) if zero is not None and zero.dtype.kind in "iu" and zero.dtype.itemsize <= 2 else None


def _kernels(model: onnx.ModelProto) -> dict[str, tuple[str, bool]]:
    """Node of the plan's model -> operator that stands for it, and whether it computes on codes."""
    codes: set[str] = {i.name for i in model.graph.initializer if i.data_type in (onnx.TensorProto.INT8, onnx.TensorProto.UINT8)}
    found: dict[str, tuple[str, bool]] = {}
    for node in model.graph.node:
        integer = INTEGER.fullmatch(node.op_type) is not None or (node.op_type in KEEPS_CODES and bool(node.input) and node.input[0] in codes)
        if integer or node.op_type == "QuantizeLinear":
            codes.update(node.output)
        found[_COPIED.sub("", node.name)] = (node.op_type, integer)
    return found


def rows(model: onnx.ModelProto) -> tuple[Mapping[str, Any], ...]:
    """The optimized graph as a table."""
    return tuple({"name": n.name, "op": n.op_type, "domain": n.domain or "ai.onnx", "integer": INTEGER.fullmatch(n.op_type) is not None, "target": "CPU"}
                 for n in model.graph.node)


def facts(job: Job, read: Reading) -> dict[str, Any]:
    """How many layers run in integers, of how many that the plan wants so."""
    wanted = [k for k, v in job.demanded.layers.items() if not v.precision.is_float]
    return {"integer_layers_planned": len(wanted), "integer_kernels": len(set(read.integer) & set(wanted)), "in_float_between_pairs": list(read.simulated)}


def remarks(read: Reading) -> tuple[str, ...]:
    if not read.simulated:
        return ()
    shown = ", ".join(read.simulated[:3]) + (", ..." if len(read.simulated) > 3 else "")
    line = (f"{len(read.simulated)} integer layers run in float between their pairs, as the runtime has no integer kernel for them ({shown}): "
            "same values, no time saved")
    return (line,)
