"""A case: the model, the data it is calibrated and judged on, and the metric."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import onnx_ir as ir

from qbench.data import open_dataset, parse_preprocessing
from qbench.errors import InputError
from qbench.graph import PreparedModel, load_network
from qbench.metrics import make as make_metric
from qbench.network import Network
from qbench.protocols import Dataset, Metric
from qbench.samples import DEFAULT, Sample, load_sample
from qbench.workbench.labels import class_notes

FEW = 30
"""Evaluation samples below which an accuracy comes with a warning."""
Shapes = Mapping[str, tuple[int, ...]]
Values = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Opened:
    """How the evaluation data came about, so that another process can open them too. All None: made in code.

    data     absolute path, or module:function; sample   name of a built-in one instead
    """

    data: str | None = None
    sample: str | None = None
    preprocess: str | None = None
    limit: int | None = None


@dataclass(frozen=True)
class Case:
    """calibration, evaluation   data sets; the same one when the user gave one only, which `warnings` then says
    metric                       what a search keeps high
    sample                       the built-in sample, or None
    """

    prepared: PreparedModel
    calibration: Dataset
    evaluation: Dataset
    metric: Metric
    sample: Sample | None = None
    warnings: tuple[str, ...] = ()
    opened: Opened = Opened()

    @property
    def network(self) -> Network:
        return self.prepared.network

    @property
    def data_key(self) -> str:
        text = f"{self.calibration.key}\n{self.evaluation.key}\n{self.metric.name}"
        return hashlib.sha256(text.encode()).hexdigest()


def open_case(model: Path | None = None, data: str | None = None, eval_data: str | None = None, *, sample: str | None = None,
              metric: str | None = None, preprocess: str | None = None, input_shapes: Shapes | None = None,
              input_values: Values | None = None, limit: int | None = None) -> Case:
    """The user's model and data, or the built-in `sample` when there is no model.

    preprocess   how pictures become inputs, e.g. "size=224x224,colour=rgb,mean=...,std=..."
    Raises InputError when model and data do not go together.
    """
    if model is None:
        if data is not None or eval_data is not None:
            raise InputError("--data without --model: give the model the data belong to, or leave both out to use the built-in sample")
        if preprocess is not None or input_shapes or input_values:
            raise InputError("--preprocess, --input-shape and --input-value are for a model of your own: the built-in samples come ready")
        return _sample_case(load_sample(sample or DEFAULT, limit), metric, Opened(sample=sample or DEFAULT, limit=limit))
    if sample is not None:
        raise InputError(f"--sample {sample} and --model {model}: give one of the two")
    if data is None:
        raise InputError(f"{model}: no calibration data; add --data FILE.npz, a folder, or module:function")
    prepared = load_network(model, input_shapes, input_values)
    refuse_odd_outputs(prepared)
    calibration = open_data(data, prepared, preprocess, limit)
    evaluation = open_data(eval_data, prepared, preprocess, limit) if eval_data else calibration
    for found in [calibration, evaluation] if input_shapes else []:
        _same_shape(found, prepared.network, input_shapes or {})
    warnings = prepared.notes
    if not eval_data:
        warnings = (*warnings, "calibrated and evaluated on the same samples: accuracies are optimistic; give others with --eval-data",)
    warnings = (*warnings, *_few(evaluation))
    chosen = make_metric(metric) if metric else _default_metric(prepared.network, evaluation)
    warnings = (*warnings, *class_notes(evaluation, prepared.network, chosen))
    if not metric:
        warnings = (*warnings, f"no --metric given: {chosen.name} is used")
    return Case(prepared, calibration, evaluation, chosen, None, warnings, opened(eval_data or data, preprocess, limit))


def opened(spec: str, preprocess: str | None = None, limit: int | None = None) -> Opened:
    """How a data set of the user's came about; a path is made absolute."""
    return Opened(str(Path(spec).resolve()) if Path(spec).exists() else spec, None, preprocess, limit)


def refuse_odd_outputs(prepared: PreparedModel) -> None:
    """Raises InputError for an output that no metric can compare: a sequence, an optional, or text."""
    for value in prepared.model.graph.outputs:
        if not isinstance(value.type, ir.TensorType) or value.dtype == ir.DataType.STRING:
            kind = "text" if isinstance(value.type, ir.TensorType) else "no tensor but a sequence or an optional"
            raise InputError(f"output {value.name!r} is {kind}, which cannot be compared with float: export the model without it "
                             "(`qbench quantize` takes it as it is)")


def _sample_case(sample: Sample, metric: str | None, how: Opened) -> Case:
    prepared = load_network(sample.model)
    return Case(prepared, sample.calibration, sample.evaluation, make_metric(metric or sample.metric), sample, _few(sample.evaluation), how)


def _few(evaluation: Dataset) -> tuple[str, ...]:
    return (f"only {len(evaluation)} evaluation samples: their accuracy says little; {FEW} or more are better",) if len(evaluation) < FEW else ()


def _same_shape(data: Dataset, network: Network, shapes: Shapes) -> None:
    """Accuracy and latency must be of one network: the shapes given for open axes are those that the chip will run."""
    feeds = next(iter(data.batches(1))).feeds
    for name in set(shapes) & set(network.inputs):
        want, got = network.tensors[name].shape, feeds[name].shape
        if got[1:] != want[1:]:
            raise InputError(f"--input-shape {name}={','.join(map(str, want))}, but data set {data.name} holds samples of shape "
                             f"{list(got[1:])}: latency and accuracy would be of two different networks. Give the shape of the data, or resize them")


def open_data(spec: str, prepared: PreparedModel, preprocess: str | None = None, limit: int | None = None) -> Dataset:
    """The data set that `spec` names, checked against the model's inputs; `preprocess` as in `open_case`."""
    pictures = parse_preprocessing(preprocess) if preprocess else None
    return open_dataset(spec, inputs=input_specs(prepared), preprocessing=pictures, limit=limit)


def input_specs(prepared: PreparedModel) -> tuple[tuple[str, tuple[int | None, ...], str], ...]:
    """(name, shape, dtype) of each model input; open axes are None."""
    specs = []
    for value in prepared.model.graph.inputs:
        shape = tuple(d if isinstance(d, int) else None for d in value.shape) if value.shape is not None else ()
        specs.append((str(value.name), shape, prepared.network.tensors[str(value.name)].dtype))
    return tuple(specs)


def _default_metric(network: Network, evaluation: Dataset) -> Metric:
    """top1 for one label a sample and class scores [1, classes]; cosine to the float output otherwise."""
    labels = next(iter(evaluation.batches(1))).labels
    shape = network.tensors[network.outputs[0]].shape
    one_label = labels is not None and labels.dtype.kind in "iu" and labels.ndim == 1
    return make_metric("top1" if one_label and len(shape) == 2 and shape[1] > 1 else "cosine")
