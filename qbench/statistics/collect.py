"""One pass over the data: run the model, count its activations, forget them.

Each worker thread takes the next batch, runs it in onnxruntime and counts what came out while it is still in the caches.
onnxruntime and the counting loops both release the interpreter lock, so workers keep every core busy, and neither has to
wait for the other. Only the batches in flight are in memory, however many samples there are (BUG case B01).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Literal

from qbench.errors import InputError, ModelError, NonFinite, QbenchError
from qbench.protocols import Array, Batch, Dataset, Progress, silent
from qbench.statistics.counter import Counter
from qbench.statistics.feeds import check_batch, check_not_empty
from qbench.statistics.store import Source, Statistics, counts_text

if TYPE_CHECKING:
    import onnx_ir as ir

    from qbench.statistics.observe import Observed
    from qbench.statistics.stages import Stage

MOST_WORKERS = 8
"""Batches in flight at most: each holds all watched activations of one batch. More threads go into each run."""

Policy = Literal["stop", "ignore"]


def collect(model: Path | str | bytes | ir.Model, tensors: Sequence[str], data: Dataset, *, batch: int = 1, limit: int | None = None,
            policy: str = "stop", threads: int | None = None, model_key: str = "", progress: Progress = silent) -> Statistics:
    """Statistics of activation tensors over a data set, in one pass.

    tensors    names of activations or graph inputs
    batch      samples to a run; the answers do not depend on it, but for the order of additions within a sample
    limit      use the first that many samples only
    policy     "stop": NaN or infinity raises NonFinite; "ignore": they are counted, and ranges are of the finite values
    threads    cores to use, default all; two batches are held in memory for two threads, and so on up to MOST_WORKERS
    model_key  names the model in the result; default: SHA-256 of the model
    Raises DataError before anything runs when the data do not fit the model, InputError for unknown tensors.
    """
    from qbench.runtime import default_threads
    from qbench.statistics.observe import observe

    if policy not in ("stop", "ignore"):
        raise InputError(f"policy {policy!r} for NaN and infinity; known: stop, ignore")
    if batch < 1 or (limit is not None and limit < 1) or (threads is not None and threads < 1):
        raise InputError(f"batch, limit and threads must be 1 or more, got {batch}, {limit}, {threads}")
    total = min(len(data), limit or len(data))
    threads = threads or default_threads()
    workers = max(1, min(threads, MOST_WORKERS, -(-total // batch)))
    watched = observe(model, list(dict.fromkeys(tensors)), max(1, threads // workers))
    check_not_empty(data, watched.expected)
    run = _Pass(watched, data, _Cut(data.batches(batch), total), total, policy == "stop", progress)
    run.go(workers)
    key = data.key if total == len(data) else f"{data.key}[:{total}]"
    with ThreadPoolExecutor(workers) as pool:
        seen = dict(zip(watched.outputs, pool.map(Counter.statistics, run.counters.values()), strict=True))
    return Statistics(model_key or _key(model), (Source(key, data.name, run.done),), seen, watched.absent, policy)


class _Cut:
    """The batches of a data set up to a number of samples."""

    def __init__(self, batches: Iterator[Batch], total: int) -> None:
        self._batches, self._left = batches, total

    def take(self) -> Batch | None:
        found = next(self._batches, None) if self._left > 0 else None
        if found is None:
            return None
        size = samples_in(found)
        if size > self._left:
            found = Batch({k: v[: self._left] for k, v in found.feeds.items()},
                          None if found.labels is None else found.labels[: self._left], found.first)
        self._left -= size
        return found


def samples_in(batch: Batch) -> int:
    return max((len(v) for v in batch.feeds.values() if v.ndim), default=1)


@dataclass
class _Pass:
    """The state that the workers share."""

    watched: Observed
    data: Dataset
    source: _Cut
    total: int
    stop: bool
    progress: Progress
    counters: dict[str, Counter] = field(init=False)
    _lock: Lock = field(default_factory=Lock)
    done: int = 0
    _faults: list[tuple[int, QbenchError]] = field(default_factory=list)
    _broken: bool = False

    def __post_init__(self) -> None:
        self.counters = {t: Counter(t) for t in self.watched.outputs}

    def go(self, workers: int) -> None:
        """Run everything; of several faults the one of the first sample is raised."""
        with ThreadPoolExecutor(workers, "statistics") as pool:
            jobs = [pool.submit(self._work) for _ in range(workers)]
            try:
                for job in jobs:
                    job.result()
            finally:
                self._broken = True                             # after Ctrl-C too: workers end with the batch they have
        if self._faults:
            raise min(self._faults, key=lambda f: f[0])[1]

    def _work(self) -> None:
        tensor_of = {o: t for t, o in self.watched.outputs.items()}
        while (batch := self._next()) is not None:
            try:
                check_batch(self.data, batch, self.watched.expected)
                self._count(batch, {t: batch.feeds[t] for t in self.watched.inputs})
                feeds = dict(batch.feeds)
                for stage in self.watched.stages:
                    made = self._run(stage, batch, feeds)
                    self._count(batch, {tensor_of[o]: made[o] for o in stage.outputs})
                    feeds = {stage.carried: made[stage.carried]} if stage.carried else {}
                    made.clear()                                # its buffers serve the next stage
            except QbenchError as error:
                with self._lock:
                    self._faults.append((batch.first, error))
                return
            with self._lock:
                self.done += samples_in(batch)
                self.progress("statistics", self.done, self.total)

    def _next(self) -> Batch | None:
        """Batches are handed out in order, so when one fails all samples before it are with some worker."""
        with self._lock:
            if self._faults or self._broken:
                return None
            try:
                return self.source.take()
            except Exception:
                self._broken = True
                raise

    def _run(self, stage: Stage, batch: Batch, feeds: dict[str, Array]) -> dict[str, Array]:
        try:
            values = stage.session.run(list(stage.outputs), {k: feeds[k] for k in stage.inputs if k in feeds})
        except Exception as error:
            raise ModelError(f"onnxruntime fails on sample {batch.first} of data set {self.data.name!r}: "
                             f"{str(error).splitlines()[0][:300]}") from error
        return dict(zip(stage.outputs, values, strict=True))

    def _count(self, batch: Batch, values: dict[str, Array]) -> None:
        size = samples_in(batch)
        left, faults = list(values), {}
        while left:
            tensor = next((t for t in left if not self.counters[t].busy), left[0])      # rather than wait for another worker
            left.remove(tensor)
            counts = self.counters[tensor].update(values[tensor], batch.first, size)
            if any(counts):
                faults[tensor] = counts
        if self.stop and faults:
            tensor = next(t for t in values if t in faults)     # the first on the way through the network is to blame
            raise NonFinite(self._text(tensor, values[tensor], batch, size, faults[tensor]))

    def _text(self, tensor: str, array: Array, batch: Batch, size: int, counts: tuple[int, int, int]) -> str:
        import numpy as np

        sample = batch.first
        if array.shape[:1] == (size,):
            sample += int(np.argmax(~np.isfinite(array).reshape(size, -1).all(axis=1)))
        where = f"samples {batch.first} to {batch.first + size - 1}" if size > 1 else "it"
        return (f"tensor {tensor!r} from {self.watched.producer[tensor]} is not finite at sample {sample} of data set "
                f"{self.data.name!r}: {where} gave {counts_text(*counts)}. Look at the sample and the model there, or "
                "go on with the finite values by the policy 'ignore' (--non-finite ignore)")


def _key(model: Path | str | bytes | ir.Model) -> str:
    if isinstance(model, bytes):
        return hashlib.sha256(model).hexdigest()
    if isinstance(model, Path | str):
        from qbench.modelfiles import file_key, weight_files

        return file_key(Path(model), weight_files(Path(model)))
    import onnx_ir as ir

    return hashlib.sha256(ir.to_proto(model).SerializeToString(deterministic=True)).hexdigest()
