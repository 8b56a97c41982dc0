"""Accuracy of plans: each candidate is a real Q/DQ model, built, loaded and run by onnxruntime on the evaluation data.

The float model runs once and its outputs are kept, so every figure of a candidate is paired with float on the same samples.
Where a plan leaves the first kernels in float, their outputs are computed once and only the rest of the graph runs again.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import onnx_ir as ir

from qbench import qdq
from qbench.errors import NonFinite
from qbench.graph import PreparedModel
from qbench.metrics import Fidelity, by_class, class_axis, interval, paired_drop
from qbench.network import Network
from qbench.plan import Plan
from qbench.protocols import Accuracy, Array, Batch, ClassAccuracy, Dataset, Metric, Progress, silent
from qbench.runtime import Session, integer_kernels_saturate

BATCH_ELEMENTS = 1 << 16
"""Input values per run when the batch axis is free: small networks are not worth one run a sample."""
KEEP_BYTES = 1 << 30
"""Float outputs above this size go to a temporary file."""
PREFIX_BYTES = 400 << 20
"""Most that the activations at a cut may take for all samples of one evaluation; above it the whole graph runs."""
BEGUN = 64
"""Plans whose first samples are remembered, so that the whole set costs only the others."""


@dataclass
class Cut:
    """The float prefix of the network up to kernel number `position`, already run on the first `samples` samples."""

    position: int
    samples: int
    batches: list[dict[str, Array]]


@dataclass
class Begun:
    """What is known of a plan: the metric's rows of its first samples, in pieces, and how far its outputs are from float there."""

    fidelity: Fidelity
    rows: list[Array] = field(default_factory=list)
    samples: int = 0


class OnnxEvaluator:
    """Implements `qbench.protocols.Evaluator`.

    float_pass_equivalents   work done so far in units of one float pass over the whole evaluation set, counted in
                             multiply-accumulates times samples: the price of a search, independent of the machine
    judged                   the output that the metric reads, the first where it names none; SQNR, cosine and KL are of this one
    """

    def __init__(self, prepared: PreparedModel, dataset: Dataset, metric: Metric, *, seed: int = 0, threads: int | None = None,
                 simulate: bool | None = None, policy: str = "stop", progress: Progress = silent) -> None:
        self.prepared, self.network, self.dataset, self.metric, self.seed, self.threads = (
            prepared, prepared.network, dataset, metric, seed, threads)
        self.simulate = integer_kernels_saturate() if simulate is None else simulate
        self.float_pass_equivalents = 0.0
        self.batch = batch_size(prepared.model, self.network)
        named = getattr(metric, "output", "")
        self.judged = named if isinstance(named, str) and named in self.network.outputs else self.network.outputs[0]
        self._cut: Cut | None = None
        self._begun: dict[str, Begun] = {}
        self._spill: tempfile.TemporaryDirectory[str] | None = None
        self._reference: list[dict[str, Array]] = []
        self._rows = np.empty((0, 1))
        self._seconds = 0.0
        self.warnings: list[str] = []
        self._lifted: frozenset[str] = frozenset()
        self._run_float(policy, progress)

    def _run_float(self, policy: str, progress: Progress) -> None:
        start, rows, done, kept = time.perf_counter(), [], 0, 0
        odd = 0
        with loaded(self.prepared.model, self.threads, False) as session:
            for batch in self.dataset.batches(1):
                self._lifted = frozenset(k for k, v in session.run(batch.feeds).items() if v.shape[:1] != (1,))
                break
            if self._lifted:
                self.batch = 1
            for batch in self.dataset.batches(self.batch):
                odd += not_finite(batch, self.dataset.name, policy)
                outputs = lifted(session.run(batch.feeds), self._lifted)
                rows.append(self.metric.statistics(outputs, batch.labels, outputs))
                kept += sum(v.nbytes for v in outputs.values())
                self._reference.append({k: self._keep(v, kept) for k, v in outputs.items()})
                done += size_of(batch)
                progress("float reference", done, len(self.dataset))
        self._rows = np.concatenate(rows)
        if odd:
            self.warnings.append(f"{odd} evaluation samples hold NaN or infinity")
        if constant_output(self._reference, self.judged):
            self.warnings.append(f"output {self.judged!r} is the same for every evaluation sample: its accuracy says nothing")
        self._seconds = time.perf_counter() - start
        self.float_pass_equivalents += 1.0

    def _keep(self, values: Array, kept: int) -> Array:
        if kept <= KEEP_BYTES:
            return values
        self._spill = self._spill or tempfile.TemporaryDirectory(prefix="qbench-")
        path = Path(self._spill.name) / f"{kept}-{id(values)}.npy"
        np.save(path, values, allow_pickle=False)
        spilled: Array = np.load(path, mmap_mode="r", allow_pickle=False)
        return spilled

    # -- what the search asks

    @property
    def rows(self) -> Array:
        """The metric's rows of the float model, one a sample."""
        return self._rows

    def reference(self, samples: int | None = None) -> Accuracy:
        """The float model itself."""
        rows = self._rows[:samples]
        value, low, high = interval(self.metric, rows, self.seed)
        return Accuracy(self.metric.name, value, low, high, len(rows), 0.0, 0.0, 0.0, float("inf"), 1.0, 0.0, self._seconds,
                        classes=self._classes(rows))

    def evaluate(self, plan: Plan, samples: int | None = None) -> Accuracy:
        """Build the plan's model and run it on the first `samples` samples (all when None).

        A plan without any integer unit is run with its FP16 rounding emulated: nothing else would tell it from float.
        Samples that the plan was evaluated on before do not run again, where they ended with a whole run.
        """
        position = first_integer(self.network, plan)
        all_float = position == len(self.network.kernels)
        as_float = not all_float and plan.model_key == self.network.model_key       # a correction may have moved the floats in front, too
        begun = self._begun.pop(plan.key, None)
        if begun is None or begun.samples > self._asked(samples):
            begun = self._new()
        found = self._go_on(begun, qdq.write(self.prepared, plan, emulate_fp16=all_float).model, samples, position if as_float else 0)
        if begun.samples < len(self.dataset) and begun.samples % self.batch == 0:
            self._begun[plan.key] = begun
            if len(self._begun) > BEGUN:
                del self._begun[next(iter(self._begun))]
        return found

    def evaluate_model(self, model: ir.Model, samples: int | None = None, position: int = 0) -> Accuracy:
        """Accuracy of a model with the network's inputs and outputs; kernels before `position` are as in the float model."""
        return self._go_on(self._new(), model, samples, position)

    def _go_on(self, begun: Begun, model: ir.Model, samples: int | None, position: int) -> Accuracy:
        """Runs the samples that `begun` does not know yet, and adds them to it. The float prefix is kept for the first samples only."""
        start = time.perf_counter()
        count, first = self._asked(samples), begun.samples
        cut = self._advance(position, count) if not first else None
        run = extract(model, cut_tensors(self.network, cut.position), self.network.outputs) if cut else model
        if run is None:
            run, cut = model, None
        output = self.judged
        if first < count:
            with loaded(run, self.threads, self.simulate) as session:
                for index, batch in enumerate(self._batches(count)):
                    if begun.samples >= (index + 1) * self.batch:
                        continue
                    size = size_of(batch)
                    outputs = lifted(session.run(dict(batch.feeds) | (cut.batches[index] if cut else {})), self._lifted)
                    reference = {k: v[:size] for k, v in self._reference[index].items()}
                    begun.rows.append(self.metric.statistics(outputs, batch.labels, reference))
                    begun.fidelity.update(reference[output], outputs[output])
                    begun.samples += size
            self._count(cut.position if cut else 0, len(self.network.kernels), begun.samples - first)
        return self._accuracy(np.concatenate(begun.rows), begun.fidelity, time.perf_counter() - start)

    def _new(self) -> Begun:
        return Begun(Fidelity(axis=class_axis(self.metric)))

    def _asked(self, samples: int | None) -> int:
        return min(samples or len(self.dataset), len(self.dataset))

    def _accuracy(self, rows: Array, fidelity: Fidelity, seconds: float) -> Accuracy:
        value, low, high = interval(self.metric, rows, self.seed)
        drop, drop_low, drop_high = paired_drop(self.metric, self._rows[:len(rows)], rows, self.seed)
        return Accuracy(self.metric.name, value, low, high, len(rows), drop, drop_low, drop_high,
                        fidelity.sqnr_db, fidelity.cosine, fidelity.kl, seconds, self.simulate, self._classes(rows))

    def _classes(self, rows: Array) -> tuple[ClassAccuracy, ...]:
        """Class by class on the whole set; on the first samples only, a class would rest on next to nothing."""
        return by_class(self.metric, self._rows, rows, self.seed) if len(rows) == len(self._rows) else ()

    # -- samples and prefixes

    def _batches(self, count: int) -> Iterator[Batch]:
        """The batches of the reference run, the last one shortened to `count` samples in all."""
        done = 0
        for batch in self.dataset.batches(self.batch):
            left = count - done
            if left <= 0:
                return
            size = size_of(batch)
            if size > left:
                batch = Batch({k: v[:left] for k, v in batch.feeds.items()}, None if batch.labels is None else batch.labels[:left], batch.first)
            yield batch
            done += min(size, left)

    def _advance(self, position: int, count: int) -> Cut | None:
        """Outputs of the float kernels before `position` on the first `count` samples; None when they are not worth keeping."""
        share = sum(k.macs for k in self.network.kernels[:position])
        if position == 0 or share == 0 or cut_bytes(self.network, position) * count > PREFIX_BYTES:
            return None
        old = self._cut
        if old is None or old.samples != count or old.position > position:
            old = None
        if old is not None and old.position == position:
            return old
        start = old.position if old else 0
        source = cut_tensors(self.network, start) if old else self.network.inputs
        goal = cut_tensors(self.network, position)
        passed = [t for t in goal if t in source]
        wanted = [t for t in goal if t not in source]
        batches: list[dict[str, Array]] = []
        part = extract(self.prepared.model, source, wanted)
        if part is None:
            return None
        with loaded(part, self.threads, False) as session:
            for index, batch in enumerate(self._batches(count)):
                feeds = old.batches[index] if old else batch.feeds
                made = session.run({**batch.feeds, **feeds}) if wanted else {}
                batches.append({**{t: feeds[t] for t in passed}, **made})
        self._count(start, position, count)
        self._cut = Cut(position, count, batches)
        return self._cut

    def _count(self, start: int, stop: int, samples: int) -> None:
        work = sum(k.macs for k in self.network.kernels[start:stop]) / max(self.network.macs, 1)
        self.float_pass_equivalents += work * samples / len(self.dataset)


def lifted(outputs: Mapping[str, Array], names: AbstractSet[str]) -> dict[str, Array]:
    """The outputs of one sample with an axis of samples in front of those in `names`, which have none there: time first, or none at all."""
    return {k: v[None] if k in names else v for k, v in outputs.items()}


def not_finite(batch: Batch, name: str, policy: str) -> int:
    """Samples of `batch` that hold NaN or infinity. Raises NonFinite naming the first, unless the policy is "ignore"."""
    bad = np.zeros(size_of(batch), bool)
    for key, values in batch.feeds.items():
        if values.dtype.kind == "f":
            odd = ~np.isfinite(values).reshape(len(values), -1).all(axis=1)
            if odd.any() and policy != "ignore":
                raise NonFinite(f"evaluation data set {name!r}: input {key!r} is not finite at sample {batch.first + int(np.argmax(odd))}. "
                                "Mend the sample, or go on with --non-finite ignore")
            bad |= odd
    return int(bad.sum())


def constant_output(outputs: list[dict[str, Array]], name: str) -> bool:
    """True when a network of more than one sample gives the same values for all of them."""
    first = outputs[0][name][:1]
    return sum(len(o[name]) for o in outputs) > 1 and all(bool((o[name] == first).all()) for o in outputs)


def first_integer(network: Network, plan: Plan) -> int:
    """Number of the first kernel, in execution order, that runs in integers; the number of kernels when none does."""
    for number, kernel in enumerate(network.kernels):
        if not plan.precision[network.unit_of_kernel[kernel.name]].is_float:
            return number
    return len(network.kernels)


def cut_tensors(network: Network, position: int) -> tuple[str, ...]:
    """Tensors that the kernels from `position` on, or the outside, need of what came before."""
    before = dict.fromkeys(network.inputs) | {t: None for k in network.kernels[:position] for t in k.outputs}
    needed = {t for k in network.kernels[position:] for t in k.inputs} | set(network.outputs)
    return tuple(t for t in before if t in needed)


def cut_bytes(network: Network, position: int) -> int:
    """Bytes of one sample at a cut."""
    return sum(network.tensors[t].elements * np.dtype(network.tensors[t].dtype).itemsize for t in cut_tensors(network, position)
               if network.tensors[t].dtype != "object")


def extract(model: ir.Model, inputs: tuple[str, ...] | list[str], outputs: tuple[str, ...] | list[str]) -> ir.Model | None:
    """The part of `model` between the named tensors, as a model of its own.

    None where more crosses the cut than the network shows: shape arithmetic of a dynamic model reads tensors at will.
    """
    try:
        graph = ir.convenience.extract(model.graph, list(inputs), list(outputs))
    except ValueError:
        return None
    return ir.Model(graph, ir_version=model.ir_version)


class loaded:
    """Context manager: a Session of `model`, through a temporary file where one protobuf cannot hold the weights."""

    def __init__(self, model: ir.Model, threads: int | None, simulate: bool) -> None:
        self.model, self.threads, self.simulate = model, threads, simulate
        self.folder: tempfile.TemporaryDirectory[str] | None = None

    def __enter__(self) -> Session:
        size = sum(v.const_value.nbytes for v in self.model.graph.initializers.values() if v.const_value is not None)
        if size <= qdq.BIG_MODEL_BYTES:
            return Session(qdq.to_bytes(self.model), self.threads, self.simulate)
        self.folder = tempfile.TemporaryDirectory(prefix="qbench-")
        path = Path(self.folder.name) / "model.onnx"
        qdq.save(self.model, path)
        return Session(path, self.threads, self.simulate)

    def __exit__(self, *exception: object) -> None:
        if self.folder is not None:
            self.folder.cleanup()


def size_of(batch: Batch) -> int:
    return len(next(iter(batch.feeds.values())))


def batch_size(model: ir.Model, network: Network) -> int:
    """How many samples one run takes: one when the model fixes its batch axis."""
    for value in model.graph.inputs:
        if value.shape is None or len(value.shape) == 0 or isinstance(value.shape[0], int):
            return 1
    elements = max((network.tensors[i].elements for i in network.inputs), default=1)
    return int(np.clip(BATCH_ELEMENTS // max(elements, 1), 1, 128))
