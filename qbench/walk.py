"""Float and quantized model side by side, kernel by kernel, on the same samples: what diagnosis and corrections stand on.

Each kernel is cut out of the real Q/DQ model, pairs at its inputs and outputs included, and run by onnxruntime; so an error
seen here is one of the file that ships. Activations live only as long as a later kernel reads them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import onnx_ir as ir

from qbench import qdq
from qbench.corrections import rewritten
from qbench.errors import DataError
from qbench.evaluation import extract, loaded
from qbench.graph import PreparedModel, specialised
from qbench.network import Kernel
from qbench.plan import Plan
from qbench.protocols import Array, Dataset, Progress, silent
from qbench.runtime import integer_kernels_saturate

Values = list[dict[str, Array]]
"""One dict a chunk of samples: tensor -> array, first axis samples."""

CHUNK_ELEMENTS = 1 << 18
"""Input values per run, where the batch axis is free."""


@dataclass(frozen=True)
class Step:
    """One kernel on all samples: its outputs by name, and the tensors inside it that are stored as integers of their own.

    reference     float kernel on the float model's activations
    isolated      quantized kernel on the float model's activations: its own error alone
    accumulated   quantized kernel on the quantized model's activations: what the network sees
    """

    kernel: Kernel
    reference: Values
    isolated: Values
    accumulated: Values


def samples_of(dataset: Dataset, count: int) -> list[dict[str, Array]]:
    """The first `count` samples that have the shape of the first one, one dict each. Raises DataError for an empty set."""
    found: list[dict[str, Array]] = []
    for batch in dataset.batches(1):
        feeds = {k: np.asarray(v) for k, v in batch.feeds.items()}
        if not found or all(v.shape == found[0][k].shape for k, v in feeds.items()):
            found.append(feeds)
        if len(found) == count:
            break
    if not found:
        raise DataError(f"data set {dataset.name!r} holds no sample")
    return found


class Walk:
    """Goes through the kernels of one network under one plan.

    samples    from `samples_of`: feeds with a first axis of 1
    simulate   run Q/DQ as written, in float; default: where this machine's integer kernels saturate
    """

    def __init__(self, prepared: PreparedModel, plan: Plan, samples: Sequence[dict[str, Array]], *, threads: int | None = None,
                 simulate: bool | None = None, progress: Progress = silent) -> None:
        prepared = rewritten(prepared, plan)
        size = chunk_size(prepared, samples)
        chunks = [samples[i:i + size] for i in range(0, len(samples), size)]
        self.feeds: Values = [{k: np.concatenate([s[k] for s in c]) for k in c[0]} for c in chunks]
        static = specialised(prepared, {k: v.shape for k, v in self.feeds[0].items()})
        self.prepared = replace(prepared, model=static)
        self.network, self.plan, self.threads, self.progress = prepared.network, plan, threads, progress
        self.simulate = integer_kernels_saturate() if simulate is None else simulate
        self.written = qdq.write(self.prepared, without_constants(plan))
        self.position = {k.name: i for i, k in enumerate(self.network.kernels)}
        self.last = {t: i for i, k in enumerate(self.network.kernels) for t in k.inputs}
        self.float_values: Values = [dict(f) for f in self.feeds]
        self.quantized_values: Values = [dict(f) for f in self.feeds]
        self.untouched = set(self.network.inputs)                # tensors that nothing quantized has reached so far

    @property
    def sample_count(self) -> int:
        return sum(len(next(iter(f.values()))) for f in self.feeds)

    def steps(self) -> Iterator[Step]:
        """The plain walk, in execution order. One walk a time: the activations are the object's."""
        for kernel in self.kernels():
            step = self.step(kernel)
            yield step
            self.advance(kernel, step.reference, step.accumulated)

    def kernels(self) -> Iterator[Kernel]:
        """The kernels in execution order, with progress; the caller runs each, then calls `advance`."""
        for number, kernel in enumerate(self.network.kernels):
            self.progress("kernels", number, len(self.network.kernels))
            yield kernel
        self.progress("kernels", len(self.network.kernels), len(self.network.kernels))

    def step(self, kernel: Kernel, isolated: bool = True) -> Step:
        """All three runs of `kernel`; every kernel before it must have been advanced over.

        isolated   False: that run is left out, `Step.isolated` is the accumulated one
        """
        reference = self.run_float(kernel)
        accumulated = self.accumulated(kernel, reference)
        if self.in_float(kernel):
            return Step(kernel, reference, reference, accumulated)
        alone = isolated and not self.untouched.issuperset(kernel.inputs)
        return Step(kernel, reference, self.run_quantized(kernel, self.float_values) if alone else accumulated, accumulated)

    def accumulated(self, kernel: Kernel, reference: Values) -> Values:
        """`kernel` on the quantized model's activations; `reference` itself where nothing quantized has come so far."""
        if self.in_float(kernel) and self.untouched.issuperset(kernel.inputs):
            return reference
        return self.run_quantized(kernel, self.quantized_values)

    def in_float(self, kernel: Kernel) -> bool:
        return self.plan.precision[self.network.unit_of_kernel[kernel.name]].is_float

    def advance(self, kernel: Kernel, reference: Values, quantized: Values) -> None:
        """Take what `kernel` made into the activations, and drop what no later kernel reads."""
        here = self.position[kernel.name]
        if quantized is reference:
            self.untouched.update(kernel.outputs)
        for values, made in ((self.float_values, reference), (self.quantized_values, quantized)):
            for chunk, new in zip(values, made, strict=True):
                chunk |= {t: new[t] for t in kernel.outputs}
                for t in [t for t in chunk if t not in self.network.inputs and self.last.get(t, -1) <= here]:
                    del chunk[t]

    def tensors_of(self, kernel: Kernel) -> tuple[str, ...]:
        """What a step holds. Other inner tensors are not asked for: integer kernels would have to run in pieces, at half the speed."""
        stored, raw = self.written.stored, self.written.raw
        return (*kernel.outputs, *(t for t in kernel.inner if stored.get(t) != raw.get(t)))

    def run_float(self, kernel: Kernel, wanted: Sequence[str] = ()) -> Values:
        """The float kernel on the float activations. wanted: tensors of the kernel; default: what a step holds."""
        wanted = wanted or self.tensors_of(kernel)
        part = extract(self.prepared.model, kernel.inputs, list(wanted))
        if part is None:
            return self._whole(self.prepared.model, wanted, {t: t for t in wanted})
        return self.run(part, kernel, self.float_values, {t: t for t in wanted})

    def run_quantized(self, kernel: Kernel, values: Values, part: ir.Model | None = None) -> Values:
        """The quantized kernel on `values`.

        part   `quantized_part(kernel)` with an edit; default: as the plan writes it
        """
        names = {t: self.written.stored.get(t, t) for t in self.tensors_of(kernel)}
        part = part or self.quantized_part(kernel)
        if part is None:
            return self._whole(self.written.model, tuple(names.values()), names)
        return self.run(part, kernel, values, names)

    def quantized_part(self, kernel: Kernel, outputs: Sequence[str] = ()) -> ir.Model | None:
        """The kernel as a model of its own, a copy; None when more enters it than activations: then the whole model must run.

        outputs   values of `written.model` that it puts out; default: what a step holds
        """
        raw = self.written.raw
        return extract(self.written.model, [raw.get(t, t) for t in kernel.inputs],
                       list(dict.fromkeys(outputs or [self.written.stored.get(t, t) for t in self.tensors_of(kernel)])))

    def run(self, part: ir.Model, kernel: Kernel, values: Values, names: dict[str, str]) -> Values:
        """`part` on the kernel's inputs out of `values`. names: tensor -> output of `part`."""
        raw = self.written.raw
        with loaded(part, self.threads, self.simulate) as session:
            made = [session.run({k: v for t in kernel.inputs for k, v in ((t, chunk[t]), (raw.get(t, t), chunk[t]))}) for chunk in values]
        return [{t: found[n] for t, n in names.items()} for found in made]

    def _whole(self, model: ir.Model, wanted: Sequence[str], names: dict[str, str]) -> Values:
        """From the model's inputs: for kernels that cannot be cut out."""
        part = extract(model, self.network.inputs, list(dict.fromkeys(wanted)))
        assert part is not None, "every tensor depends on the inputs alone"
        with loaded(part, self.threads, self.simulate) as session:
            made = [session.run(chunk) for chunk in self.feeds]
        return [{t: found[n] for t, n in names.items()} for found in made]


def without_constants(plan: Plan) -> Plan:
    """The plan for a model that has the new constants already, under whatever name folding left them."""
    return replace(plan, tensors={k: v for k, v in plan.tensors.items() if not k.startswith("constant:")})


def chunk_size(prepared: PreparedModel, samples: Sequence[dict[str, Array]]) -> int:
    """Samples to a run: one where the model fixes its batch axis, else so many that all chunks are equally long."""
    for value in prepared.model.graph.inputs:
        if value.shape is None or len(value.shape) == 0 or isinstance(value.shape[0], int):
            return 1
    most = max(1, CHUNK_ELEMENTS // max(max(v.size for v in samples[0].values()), 1))
    return max(n for n in range(1, min(most, len(samples)) + 1) if len(samples) % n == 0)
