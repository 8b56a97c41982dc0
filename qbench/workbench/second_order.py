"""The increases behind `qbench search --sensitivity fisher`: one forward and one backward pass a sample, and each unit once in integers.

For every sample: g from torch, at every kernel's output; d from onnxruntime, which runs each unit of the uniform plan's own Q/DQ model on the
float model's activations, so that rounding is the evaluator's. A tensor between two kernels of one unit is rounded once: the second kernel's
error is taken from the rounded value on.

Task loss: where the metric knows the class axis, cross-entropy, against the labels where there is one whole number a decision, otherwise
against a class drawn from the float model's own answer (whose mean square is the curvature of the KL divergence). For other metrics, the
squared distance of the judged output, or score, to the float model's: its curvature by one random projection (Hutchinson).
Source: Kunstner et al. 2019 (NeurIPS, arXiv 1905.12558), section 2: Fisher, empirical Fisher, Gauss-Newton; Hutchinson 1990.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from qbench import qdq
from qbench.errors import ModelError
from qbench.evaluation import extract, loaded, size_of
from qbench.files import write_text
from qbench.metrics import class_axis
from qbench.metrics.classification import Scored
from qbench.network import Network, Precision, Unit
from qbench.plan import Plan
from qbench.protocols import Array, Batch, Metric, Progress, silent
from qbench.runtime import Session
from qbench.search.second_order import Increase, increases
from qbench.torchgraph import Program
from qbench.workbench.case import Case

if TYPE_CHECKING:
    from torch import Generator, Tensor

SAMPLES = 256
"""Samples that a figure rests on, at most."""
BACKWARD = 2.0
"""A backward pass costs as much as this many forward passes."""
FORMAT = 1


@dataclass
class FisherCurvature:
    """Implements `qbench.search.second_order.Curvature`.

    batch    samples per run
    keep     folder of the file that remembers figures by content, or None
    passes   what the last call cost, in passes of the float model over the evaluation set; 0 when it was remembered
    """

    case: Case
    batch: int = 1
    keep: Path | None = None
    seed: int = 0
    samples: int = SAMPLES
    progress: Progress = silent
    passes: float = field(default=0.0, init=False)

    def __call__(self, uniform: Mapping[Precision, Plan]) -> list[Increase]:
        """Raises ModelError naming what torch cannot run or differentiate."""
        path = self.keep / f"second-order-{self._key(uniform)}.json" if self.keep else None
        self.passes = 0.0
        if path is not None and path.is_file():
            return [Increase(**{**row, "precision": Precision(row["precision"])}) for row in json.loads(path.read_text(encoding="utf-8"))]
        found = increases(self._first_order(uniform))
        if path is not None:
            write_text(path, json.dumps([asdict(i) for i in found]))
        return found

    def _key(self, uniform: Mapping[Precision, Plan]) -> str:
        body = [FORMAT, self.case.prepared.network.model_key, self.case.data_key, {str(p): plan.key for p, plan in uniform.items()}, self.seed, self.samples]
        return sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()[:16]

    def _first_order(self, uniform: Mapping[Precision, Plan]) -> dict[tuple[int, Precision], Array]:
        """g . d, float64 [samples], of every unit that has integers in a plan."""
        import torch

        network = self.case.network
        program = Program(self.case.prepared.model)
        parts = [_Part.cut(self.case, written, p, index, unit) for p, plan in uniform.items() for written in [qdq.write(self.case.prepared, plan)]
                 for index, unit in enumerate(network.units) if plan.precision[unit.name] is p]
        watched = [t for k in network.kernels for t in k.outputs if network.tensors[t].dtype == "float32"]
        batch = self.batch if all(network.tensors[t].shape[:1] == (1,) for t in watched) else 1
        generator = torch.Generator().manual_seed(self.seed)
        total = min(self.samples, len(self.case.evaluation))
        found: dict[tuple[int, Precision], list[Array]] = {(p.index, p.precision): [] for p in parts}
        done = 0
        for one in self.case.evaluation.batches(batch):
            size = min(size_of(one), total - done)
            if size <= 0:
                break
            values, slopes = _backward(program, network, _first(one, size), watched, self.case.metric, generator)
            for part in parts:
                found[part.index, part.precision].append(part.change(program, values, slopes, size))
            done += size
            self.progress("curvature", done, total)
        self._count(parts, done)
        return {key: np.concatenate(pieces) for key, pieces in found.items()}

    def _count(self, parts: Sequence[_Part], samples: int) -> None:
        kernels = self.case.network.kernel
        again = sum(kernels[k].macs for p in parts for k in p.unit.kernels) / max(self.case.network.macs, 1)
        self.passes = (1.0 + BACKWARD + again) * samples / len(self.case.evaluation)


@dataclass(frozen=True)
class _Part:
    """One unit of a uniform plan's Q/DQ model, ready to run.

    reads    tensors from outside the unit; stored   float tensor of the unit -> its name in the Q/DQ model, behind its pair
    """

    index: int
    precision: Precision
    unit: Unit
    network: Network
    session: Session
    reads: tuple[str, ...]
    stored: Mapping[str, str]

    @classmethod
    def cut(cls, case: Case, written: qdq.Written, precision: Precision, index: int, unit: Unit) -> _Part:
        network = case.network
        kernels = [network.kernel[k] for k in unit.kernels]
        own = {t for k in kernels for t in (*k.outputs, *k.inner)}
        reads = tuple(dict.fromkeys(t for k in kernels for t in k.inputs if t not in own))
        stored = {t: written.stored[t] for k in kernels for t in k.outputs if t in written.stored}
        part = extract(written.model, reads, tuple(dict.fromkeys(stored.values())))
        if part is None:
            raise ModelError(f"unit {unit.name!r} cannot be run apart from the network: it needs tensors that no kernel shows. "
                             "Search with --sensitivity measured, which runs whole networks")
        with loaded(part, None, True) as session:
            return cls(index, precision, unit, network, session, reads, stored)

    def change(self, program: Program, values: Mapping[str, Tensor], slopes: Mapping[str, Tensor], size: int) -> Array:
        """First-order change of each sample's loss, float64 [size]."""
        import torch

        made = self.session.run({t: values[t].numpy() for t in self.reads})
        rounded = {t: torch.from_numpy(np.ascontiguousarray(made[name])) for t, name in self.stored.items()}
        total = torch.zeros(size, dtype=torch.float64)
        for name in self.unit.kernels:
            kernel = self.network.kernel[name]
            again = {t: rounded[t] for t in kernel.inputs if t in rounded}
            base = program.run({**values, **again}, kernel.nodes) if again else values
            for t in kernel.outputs:
                if t in rounded and t in slopes:
                    total += ((rounded[t] - base[t]).double() * slopes[t].double()).reshape(size, -1).sum(1)
        return np.asarray(total.numpy())


def _first(batch: Batch, size: int) -> Batch:
    return Batch({k: v[:size] for k, v in batch.feeds.items()}, None if batch.labels is None else batch.labels[:size], batch.first)


def _backward(program: Program, network: Network, batch: Batch, watched: Sequence[str], metric: Metric,
              generator: Generator) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Every tensor of the float network, and the gradient of the task loss at those `watched` that it depends on."""
    import torch

    feeds = {k: torch.from_numpy(np.ascontiguousarray(v)) for k, v in batch.feeds.items()}
    with torch.enable_grad():
        values = program.run({k: v.requires_grad_(v.is_floating_point()) for k, v in feeds.items()})
        loss = task_loss({t: values[t] for t in network.outputs}, batch.labels, metric, generator)
        if not loss.requires_grad:
            raise ModelError(f"the judged output of metric {metric.name} does not depend on the inputs by anything that has a gradient. "
                             "Search with --sensitivity measured")
        reached = [t for t in watched if t in values and values[t].requires_grad]
        slopes = torch.autograd.grad(loss, [values[t] for t in reached], allow_unused=True)
    return {k: v.detach() for k, v in values.items()}, {t: g for t, g in zip(reached, slopes, strict=True) if g is not None}


def task_loss(outputs: Mapping[str, Tensor], labels: Array | None, metric: Metric, generator: Generator) -> Tensor:
    """A number whose gradients, squared, average to the curvature of the task loss: summed over samples, the mean over each one's decisions."""
    import torch

    judged = outputs.get(getattr(metric, "output", "")) if getattr(metric, "output", "") else next(iter(outputs.values()))
    assert judged is not None, "the evaluator has judged this output before"
    axis = class_axis(metric)
    if axis is not None and judged.dim() > 1:
        scores = judged.movedim(axis, -1).reshape(len(judged), -1, judged.shape[axis])
        shares = bool((scores.min() >= 0.0) and torch.allclose(scores.sum(-1), torch.ones(()), atol=1e-3))
        log = scores.clamp_min(1e-12).log() if shares else torch.log_softmax(scores, -1)
        ignored = getattr(metric, "ignore", None)
        if labels is not None and labels.dtype.kind in "iu" and labels.size == log.shape[0] * log.shape[1]:
            want = torch.from_numpy(labels.astype(np.int64)).reshape(log.shape[:2])
        else:
            want = torch.multinomial(log.detach().exp().flatten(0, 1), 1, generator=generator).reshape(log.shape[:2])
        counts = torch.ones_like(want, dtype=torch.bool) if ignored is None else want != ignored
        chosen = log.gather(-1, torch.where(counts, want, torch.zeros_like(want))[..., None])[..., 0]
        return -(chosen * counts).mean(1).sum()
    if isinstance(metric, Scored):
        flat = judged.flatten(1)
        judged = flat.amax(1) if metric.column is None else flat[:, metric.column]
    return torch.sum(judged * torch.randn(judged.shape, generator=generator))
