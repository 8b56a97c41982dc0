"""What a process elsewhere needs to evaluate the plans of one search, and how it does so."""

from __future__ import annotations

import hashlib
import json
import tempfile
import threading
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Literal

from qbench.data import open_dataset, parse_preprocessing
from qbench.errors import InputError, QbenchError
from qbench.evaluation import OnnxEvaluator
from qbench.graph import PreparedModel, load_network
from qbench.metrics import make as make_metric
from qbench.plan import Plan
from qbench.protocols import Accuracy, Batch, Dataset
from qbench.qdq import BIG_MODEL_BYTES, to_bytes
from qbench.samples import load_sample
from qbench.statistics import Statistics
from qbench.workbench.case import Case, Opened, Shapes, input_specs


@dataclass(frozen=True)
class Station:
    """Plain values: it travels to other machines. The data set's files must be found there under the same name.

    model       the prepared float model; preparing it again gives the same network
    model_key   of the network that plans are written for
    shapes      of the inputs
    threads     of onnxruntime, per evaluation
    """

    model: bytes
    model_key: str
    shapes: Shapes
    opened: Opened
    metric: str
    seed: int
    policy: str
    simulate: bool
    threads: int | None

    @cached_property
    def key(self) -> str:
        """Content key."""
        rest = [self.model_key, sorted(self.shapes.items()), asdict(self.opened), self.metric, self.seed, self.policy, self.simulate, self.threads]
        return hashlib.sha256(self.model + json.dumps(rest).encode()).hexdigest()

    @staticmethod
    def of(case: Case, evaluator: OnnxEvaluator, seed: int, policy: str, threads: int | None = None) -> Station:
        """For evaluating plans. Raises InputError for a model that does not fit into one message."""
        return Station.at(case.prepared, case.opened, policy, case.metric.name, seed, evaluator.simulate, threads)

    @staticmethod
    def at(prepared: PreparedModel, opened: Opened, policy: str, metric: str = "", seed: int = 0, simulate: bool = False, threads: int | None = None) -> Station:
        """Without a metric it can only collect statistics."""
        model, network = prepared.model, prepared.network
        size = sum(v.const_value.nbytes for v in model.graph.initializers.values() if v.const_value is not None)
        if size > BIG_MODEL_BYTES:
            raise InputError(f"the model's weights take {size / 1e9:.1f} GB, more than can be sent to workers; leave out --executor")
        shapes = {name: network.tensors[name].shape for name in network.inputs}
        return Station(to_bytes(model), network.model_key, shapes, opened, metric, seed, policy, simulate, threads)

    def evaluator(self) -> OnnxEvaluator:
        """Loads model and data and runs the float model once."""
        prepared = self.prepared()
        return OnnxEvaluator(prepared, self.dataset(prepared), make_metric(self.metric), seed=self.seed, threads=self.threads, simulate=self.simulate,
                             policy=self.policy)

    def prepared(self) -> PreparedModel:
        with tempfile.TemporaryDirectory(prefix="qbench-") as folder:
            path = Path(folder) / "model.onnx"
            path.write_bytes(self.model)
            prepared = load_network(path, self.shapes)
        return replace(prepared, network=replace(prepared.network, model_key=self.model_key))

    def dataset(self, prepared: PreparedModel, which: Literal["evaluation", "calibration"] = "evaluation") -> Dataset:
        """The data set that was opened; of a built-in sample the one that `which` names. Raises InputError for one that was made in code."""
        o = self.opened
        if o.sample is not None:
            sample = load_sample(o.sample, o.limit)
            return sample.calibration if which == "calibration" else sample.evaluation
        if o.data is None:
            raise InputError("the data set was made in code, so workers cannot open it; name a file, a folder or module:function")
        pictures = parse_preprocessing(o.preprocess) if o.preprocess else None
        return open_dataset(o.data, inputs=input_specs(prepared), preprocessing=pictures, limit=o.limit)


_here: dict[tuple[str, int], OnnxEvaluator] = {}
_lock = threading.Lock()


def evaluate(station: Station, plan: Plan, samples: int | None) -> tuple[Accuracy | QbenchError, float]:
    """One plan on a station; the station's evaluator is made once per thread and kept. Also the passes that it cost."""
    key = (station.key, threading.get_ident())
    with _lock:
        evaluator = _here.get(key)
    try:
        if evaluator is None:
            evaluator = station.evaluator()
            with _lock:
                for old in [k for k in _here if k[0] != station.key]:
                    del _here[old]                      # a worker serves one search at a time; data sets are large
                _here[key] = evaluator
        before = evaluator.float_pass_equivalents
        found = evaluator.evaluate(plan, samples)
    except QbenchError as error:
        return error, 0.0
    return found, evaluator.float_pass_equivalents - before


@dataclass(frozen=True)
class Shard:
    """The Dataset of the samples `start` to `stop` of another, one after the other."""

    whole: Dataset
    start: int
    stop: int

    @property
    def name(self) -> str:
        return self.whole.name

    @property
    def key(self) -> str:
        """Sorts like the shards: sample numbers of merged statistics run through them in that order."""
        return f"{self.whole.key}[{self.start:012d}:{self.stop}]"

    def __len__(self) -> int:
        return self.stop - self.start

    def batches(self, size: int = 1) -> Iterator[Batch]:
        for batch in islice(self.whole.batches(1), self.start, self.stop):
            yield replace(batch, first=batch.first - self.start)


def collect_shard(station: Station, start: int, stop: int) -> Statistics | QbenchError:
    """Statistics of a stretch of the station's data set."""
    from qbench.workbench.plans import statistics_of

    try:
        prepared = station.prepared()
        return statistics_of(prepared, Shard(station.dataset(prepared, "calibration"), start, stop), policy=station.policy)
    except QbenchError as error:
        return error
