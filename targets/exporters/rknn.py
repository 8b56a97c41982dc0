"""Rockchip NPUs through rknn-toolkit2: .rknn files, simulated and read back."""

from __future__ import annotations

import os
import shutil
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import onnx_ir as ir

from qbench import qdq, toolchains
from qbench.errors import InputError, ModelError, PrecisionUnavailable, ToolError
from qbench.export import QDQ, Consent, Job, Produced, Simulated, simulated
from qbench.export.comparing import judged_by_float
from qbench.network import Precision
from qbench.protocols import Progress
from qbench.targets.exporters.rknn_announced import announced
from qbench.targets.exporters.rknn_file import read_rknn
from qbench.targets.exporters.rknn_keys import Keyed, keyed, observed
from qbench.targets.exporters.rknn_log import analysis_in, folded, parse, rewrites
from qbench.targets.exporters.rknn_model import Ranged, quantized_form, ranged_form
from qbench.targets.exporters.rknn_readback import Reader
from qbench.targets.exporters.rknn_refusals import refusals
from qbench.targets.exporters.workers import ask, log_of

MODEL = "model.rknn"
HANDED = "model.rknn.onnx"
LOG = "build.log"
HIGHEST_OPSET = 19
FUSING_LEVEL = 3
"""Optimization level that the toolkit has by default: fuses an Add into the convolution before it, and so leaves a rounding out."""
LEVELS = (FUSING_LEVEL, 2, 0)
"""Tried in this order for an INT8 plan: the first within the limit is shipped."""
LIMIT_LSB = {3: 1.0, 2: 1.0, 0: 0.0}
"""Steps of an INT8 output in the simulator from onnxruntime on the same file."""
LEAST_SQNR_DB = 20.0
"""Where float layers round otherwise in both (FP16 there, FP32 here): less than this is a fault, not rounding."""
NOT_ANALYSED = "the toolkit's accuracy_analysis takes a Q/DQ model only with a board behind it: it was not run"
BUILD_S = 1800.0
WEIGHTED = frozenset({"Conv", "ConvTranspose", "Gemm", "MatMul", "exMatMul"})
"""Operators of the toolkit's graph whose weights take a range of ours; it refuses one for the table of a Gather."""
RECOMPUTED = 1e-6
"""Path B: the toolkit computes the scale again from a float32 range."""
NO_INT16 = {"2.3.2"}

BOARD_CODE = '''
def infer(folder, feeds):
    """Outputs in order, in float. rknnlite on the board; one core."""
    from rknnlite.api import RKNNLite

    kit = RKNNLite()
    if kit.load_rknn(str(folder / "model.rknn")) != 0 or kit.init_runtime(core_mask=RKNNLite.NPU_CORE_0) != 0:
        sys.exit("rknnlite cannot load model.rknn: its runtime must be as new as the toolkit in manifest.json")
    order = list(feeds)
    values = [np.ascontiguousarray(feeds[n]) for n in order]
    outputs = kit.inference(inputs=values, data_format=["nchw"] * len(values))
    kit.release()
    return outputs
'''


@dataclass(frozen=True)
class RknnExporter:
    """INT8 and FP16 plans go in as Q/DQ (path A: scales exact), plans with INT16 as a float model with ranges (path B)."""

    name: str = "rknn"
    title: str = "Rockchip rknn-toolkit2"
    toolchain: str = "rknn"

    def check(self, job: Job) -> None:
        """Raises an InputError for what the toolkit is known to refuse."""
        if odd := next((f"{k}={v}" for k, v in job.options.items() if k != "path" or v not in ("a", "b")), ""):
            raise InputError(f"rknn: no option {odd!r}; there is path=a (Q/DQ) and path=b (ranges), by default a, and b where the toolkit refuses a")
        if job.options.get("path") == "a" and Precision.INT16 in job.plan.precision.values():
            raise InputError("rknn: path=a takes no INT16; the plan has INT16 layers: leave the option out")
        opset = job.written.model.opset_imports.get("", 0)
        if opset > HIGHEST_OPSET:
            raise ModelError(f"the model has opset {opset}, rknn-toolkit2 reads {HIGHEST_OPSET} at most: export it with opset {HIGHEST_OPSET} or lower"
                             + (", and without per-group weights" if job.plan.granularity == "per-group" else ""))
        if Precision.INT16 in job.plan.precision.values() and job.toolkit in NO_INT16:
            raise PrecisionUnavailable(f"the plan has INT16 layers, which rknn-toolkit2 {job.toolkit} does not offer: search again with its precisions, or use 2.5.0")
        if why := next(refusals(job), ""):
            raise ModelError(why)

    def write(self, job: Job, folder: Path, progress: Progress) -> Produced:
        """The .rknn, or where the toolkit is missing the model for it and the steps that are left."""
        return self.built(job, folder, progress)[0]

    def built(self, job: Job, folder: Path, progress: Progress) -> tuple[Produced, list[dict[str, Any]]]:
        """The same, and the simulator's outputs of every sample of the job."""
        wide = Precision.INT16 in job.plan.precision.values()
        ways: dict[str, list[type[_Path]]] = {"": [_RangedPath] if wide else [_QuantizedPath, _RangedPath], "a": [_QuantizedPath], "b": [_RangedPath]}
        toolchain = toolchains.load(self.toolchain)
        remarks: tuple[str, ...] = ()
        for way in (chosen := ways[job.options.get("path", "")]):
            path = way(job, folder)
            path.hand_over()
            if toolchains.find(toolchain) is None:
                return Produced(False, {HANDED: "the model as rknn-toolkit2 takes it"}, None,
                                f"{toolchain.package} is not here: {toolchains.how_to_get(toolchain)}", conventions=path.conventions, consent=path.consent), []
            try:
                made = path.build(toolchains.need(self.toolchain), progress)
                return replace(made, remarks=(*remarks, *made.remarks)), path.simulated
            except ToolError as error:
                if way is chosen[-1]:
                    raise
                remarks = (f"path A was refused ({error}): path B was taken",)
        raise AssertionError("there is always a way")


def near(path: Path, place: Path) -> str:
    """`path` as seen from `place`: the toolkit keeps paths in what it writes, and equal inputs shall give equal bytes."""
    return os.path.relpath(path, place)


class _Path(ABC):
    """What both ways have in common. hand_over() writes the files, build() runs the toolkit."""

    conventions: ClassVar[Mapping[str, str]]
    reference = QDQ
    consent: Mapping[str, Consent]
    aliases: Mapping[str, tuple[str, ...]] = {}
    """Name in the handed-over model -> other names that the toolkit gives the same values."""

    @abstractmethod
    def hand_over(self) -> None:
        """Write the model as the toolkit takes it."""

    @abstractmethod
    def build(self, python: Path, progress: Progress) -> Produced:
        """Compile, simulate, read back."""

    def __init__(self, job: Job, folder: Path) -> None:
        self.job, self.folder = job, folder
        self.names: Mapping[str, str] = dict(job.written.raw)
        self.inputs = list(job.prepared.network.inputs)
        self.outputs = [str(v.name) for v in job.written.model.graph.outputs]
        self.work = folder / "work"
        self.simulated: list[dict[str, Any]] = []      # outputs of every sample, once it is built
        shutil.rmtree(self.work, ignore_errors=True)

    def run(self, python: Path, level: int, request: Mapping[str, Any], what: str) -> tuple[dict[str, Any], str]:
        """Answer and log of one call of the worker, which runs in a folder of its own: the toolkit leaves files behind."""
        place = self.work / f"{request['do']}{level}"
        place.mkdir(parents=True, exist_ok=True)
        full = {"platform": self.job.target.name, "level": level, "samples": near(self._samples(), place), "count": len(self.job.samples),
                "inputs": self.inputs, "rknn": MODEL, "outputs": "outputs.npz", **{k: near(v, place) if isinstance(v, Path) else v for k, v in request.items()}}
        answer = ask(python, "rknn", full, folder=place, seconds=BUILD_S, what=what)
        return answer | {"place": place}, log_of(place, "rknn")

    def _samples(self) -> Path:
        self.work.mkdir(exist_ok=True)
        path = self.work / "samples.npz"
        if not path.is_file():
            arrays: dict[str, Any] = {f"{i}:{k}": v for i, s in enumerate(self.job.samples) for k, v in s.items()}
            np.savez(path, **arrays)
        return path

    def outputs_of(self, place: Path) -> list[dict[str, Any]]:
        """The simulator's, of every sample."""
        with np.load(place / "outputs.npz") as stored:
            return [{name: stored[f"{i}:{k}"] for k, name in enumerate(self.outputs)} for i in range(len(self.job.samples))]

    def compare(self, place: Path, level: int) -> Simulated:
        """The simulator's outputs against onnxruntime's on the file that was handed over."""
        self.simulated = got = self.outputs_of(place)
        return simulated(self.job, f"rknn-toolkit2 simulator, optimization level {level}", self.folder / self.reference, got,
                         limit_lsb=LIMIT_LSB[level] if self.pure else None, least_sqnr_db=None if self.pure else LEAST_SQNR_DB,
                         note="" if self.pure else "float and INT16 layers round otherwise in the toolkit than in onnxruntime")

    @property
    def pure(self) -> bool:
        """Only INT8: then the simulator does the very arithmetic of the Q/DQ file."""
        return set(self.job.plan.precision.values()) == {Precision.INT8}

    def produced(self, python: Path, place: Path, log: str, seconds: float, simulations: tuple[Simulated, ...], level: int = FUSING_LEVEL,
                 **more: Any) -> Produced:
        """Moves the artefact and the log into place and reads them back."""
        analysis = analysis_in(place)
        (place / MODEL).replace(self.folder / MODEL)
        (self.folder / LOG).write_text(log, encoding="utf-8")
        shutil.rmtree(self.work)
        built, compiled = parse(log), read_rknn(self.folder / MODEL)
        actual = Reader(compiled, self.job, rewrites(log), self.names, self.aliases, folded(log)).contents()
        cycles = {"ddr_cycles", "npu_cycles", "total_cycles", "rw_kb"}
        rows = tuple({k: int(v) if k in cycles else v for k, v in row.items() if k not in ("internal_kb", "weight_kb")} for row in built.layers)
        on_cpu = [str(r["name"]) for r in rows if r["target"] == "CPU" and r["op"] not in ("InputOperator", "OutputOperator")]
        facts = {"total_cycles": built.total_cycles, "internal_kb": float(built.layers[0]["internal_kb"]), "weight_kb": float(built.layers[0]["weight_kb"]),
                 "build_seconds": round(seconds, 1), "on_cpu": on_cpu, "optimization_level": level, "accuracy_analysis": list(analysis)}
        status = toolchains.check("rknn")
        return Produced(True, {MODEL: f"compiled for {self.job.target.name}", HANDED: "the model as rknn-toolkit2 took it", LOG: "its verbose log"}, actual,
                        versions={"toolchain": f"rknn-toolkit2 {status.version}", "compiler": compiled.compiler, "python": status.python},
                        requires={"runtime": f">={status.version}"}, conventions=self.conventions, simulations=simulations, layers=rows, facts=facts,
                        board_code=BOARD_CODE, reference=self.reference, consent={**self.consent, **announced(self.job, actual)}, **more)


class _QuantizedPath(_Path):
    """Path A."""

    conventions: ClassVar[Mapping[str, str]] = {"path": "A: Q/DQ model, scales exact", "activations": "int8, real = (q - zero_point) * scale; zero point = that of the plan's uint8 - 128",
                   "weights": "int8 per output channel; codes and zero points moved by -1, reals unchanged", "bias": "int32, scale of input times scale of weight"}
    reference = HANDED

    def hand_over(self) -> None:
        adapted = quantized_form(self.job)
        self.consent = adapted.consent
        qdq.save(adapted.model, self.folder / HANDED)

    def build(self, python: Path, progress: Progress) -> Produced:
        what = f"rknn-toolkit2 building {self.job.prepared.network.name}"
        tried: list[Simulated] = []
        for number, level in enumerate(LEVELS):
            progress(f"rknn-toolkit2, optimization level {level}", number, len(LEVELS))
            answer, log = self.run(python, level, {"do": "build", "model": self.folder / HANDED, "analyse": False}, what)
            tried.append(self.compare(answer["place"], level))
            if not tried[-1].fails:
                break
        given_up = tuple(replace(s, limit_lsb=None, least_sqnr_db=None, note=f"not shipped: {s.fails}") for s in tried[:-1])
        remarks = (*(f"{s.note}; level {level} is shipped" for s in given_up), NOT_ANALYSED)
        return self.produced(python, answer["place"], log, answer["seconds"], (*given_up, tried[-1]), remarks=remarks, level=level)


class _RangedPath(_Path):
    """Path B."""

    conventions: ClassVar[Mapping[str, str]] = {"path": "B: float model with our ranges and hybrid quantization", "int16": "affine, as the toolkit's simulator does it; not verified on silicon",
                   "activations": "int8 or int16, scale = (high - low) / (levels - 1) of our ranges", "weights": "rounded to the plan's codes before they are handed over"}

    def hand_over(self) -> None:
        self.ranged: Ranged = ranged_form(self.job)
        self.consent, self.names = self.ranged.consent, self.ranged.names
        qdq.save(self.ranged.model, self.folder / HANDED)

    def build(self, python: Path, progress: Progress) -> Produced:
        what = f"rknn-toolkit2 building {self.job.prepared.network.name}"
        progress("rknn-toolkit2, hybrid quantization", 0, 2)
        stem = self.work / f"step1{FUSING_LEVEL}" / HANDED.removesuffix(".onnx")      # where the toolkit leaves its files
        first, log1 = self.run(python, FUSING_LEVEL, {"do": "step1", "model": self.folder / HANDED, "dataset": self._dataset(), "stem": stem}, what)
        keys = self._keyed(first["seen"], ir.load(f"{stem}.model", format="protobuf"), rewrites(log1))
        self.aliases = keys.aliases
        progress("rknn-toolkit2, hybrid quantization", 1, 2)
        second, log2 = self.run(python, FUSING_LEVEL, {"do": "step2", "stem": stem, "ranges": keys.ranges, "layers": keys.layers, "analyse": True}, what)
        remarks = tuple(f"tensor {name!r}: the toolkit introduced it and found its range itself" for name in keys.unknown)
        if "not_analysed" in second:
            remarks += (f"the toolkit's accuracy_analysis failed: {second['not_analysed']}",)
        return self.produced(python, second["place"], log1 + log2, first["seconds"] + second["seconds"], (self.compare(second["place"], FUSING_LEVEL),),
                             scale_tolerance=RECOMPUTED, remarks=remarks)

    def compare(self, place: Path, level: int) -> Simulated:
        """The toolkit computes attention and GELU as one, where the plan's Q/DQ model rounds between."""
        return judged_by_float(self.job, super().compare(place, level), self.folder / self.reference, self.simulated, "the toolkit rounds elsewhere")

    def _dataset(self) -> Path:
        """The samples as the toolkit reads them; it needs some for step 1, our ranges then take the place of what it finds."""
        lines = []
        self._samples()
        for i, sample in enumerate(self.job.samples):
            paths = []
            for k, name in enumerate(self.inputs):
                paths.append(str(self.work / f"sample{i}-{k}.npy"))
                np.save(paths[-1], np.asarray(sample[name]))
            lines.append(" ".join(paths))
        (self.work / "dataset.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
        return self.work / "dataset.txt"

    def _keyed(self, seen: Mapping[str, list[float]], optimized: ir.Model, became: Mapping[str, tuple[str, ...]]) -> Keyed:
        """Our ranges and our precisions under the toolkit's keys; see `Keys`."""
        model = self.folder / HANDED
        mine = observed(model, self.job.samples)
        nodes = {str(n.name): [str(v.name) for v in n.outputs] for n in optimized.graph}
        makers = {str(v.name): str(n.name) for n in self.ranged.model.graph for v in n.outputs}
        came = {name: [v for n in reversed(became.get(node, ())) for v in nodes.get(n, ())] for name, node in makers.items()}
        kept = {str(v.name) for n in optimized.graph if n.op_type in WEIGHTED for v in n.inputs if v is not None and v.is_initializer()}
        stored = {str(name) for name in optimized.graph.initializers}
        return keyed(self.ranged, {k: v for k, v in seen.items() if k not in stored}, mine, came, kept)
