"""Models as exporters and people really write them, and the way of any model through qbench, for the robustness tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
from models import Array
from numpy.typing import ArrayLike
from onnx import TensorProto, helper, numpy_helper

from qbench import qdq, targets
from qbench.graph import PreparedModel, load_network
from qbench.network import Precision
from qbench.plan import Granularity, Plan
from qbench.protocols import Batch
from qbench.runtime import Session
from qbench.statistics import Statistics
from qbench.workbench import allowed_precisions, statistics_of
from qbench.workbench.plans import Plans, schemes_of

FLOAT, INT64, BOOL, UINT8, HALF, DOUBLE = (TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL, TensorProto.UINT8, TensorProto.FLOAT16,
                                           TensorProto.DOUBLE)
Feeds = Mapping[str, Array]
TYPES = {np.dtype(t): helper.np_dtype_to_tensor_dtype(np.dtype(t)) for t in ("float32", "float16", "float64", "int64", "int32", "bool", "uint8")}


class Samples:
    """A data set of given batches, for models whose inputs have no common batch axis."""

    def __init__(self, *feeds: Feeds) -> None:
        self.name, self.key, self._feeds = "odd", "odd", feeds

    def __len__(self) -> int:
        return sum(map(_samples, self._feeds))

    def batches(self, size: int = 1) -> Iterator[Batch]:
        first = 0
        for feeds in self._feeds:
            yield Batch(dict(feeds), None, first)
            first += _samples(feeds)


def _samples(feeds: Feeds) -> int:
    return max((len(v) for v in feeds.values() if v.ndim), default=1)


@dataclass(frozen=True)
class Trip:
    """What came of a model. float, quantized   outputs of the last sample"""

    prepared: PreparedModel
    statistics: Statistics
    plan: Plan
    written: onnx.ModelProto
    float: dict[str, Array]
    quantized: dict[str, Array]


def info(name: str, shape: Sequence[int | str] | None, dtype: int = FLOAT) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, dtype, shape)


def odd_model(nodes: Sequence[onnx.NodeProto], inputs: Sequence[onnx.ValueInfoProto], outputs: Sequence[onnx.ValueInfoProto],
              weights: Mapping[str, ArrayLike] | None = None, *, opset: int = 17, ir_version: int = 8, domains: Sequence[str] = (),
              functions: Sequence[onnx.FunctionProto] = ()) -> onnx.ModelProto:
    held = [numpy_helper.from_array(np.asarray(w), k) for k, w in (weights or {}).items()]
    graph = helper.make_graph(list(nodes), "g", list(inputs), list(outputs), held)
    imports = [helper.make_opsetid("", opset), *(helper.make_opsetid(d, 1) for d in domains)]
    return helper.make_model(graph, opset_imports=imports, ir_version=ir_version, functions=list(functions))


def prepared_of(model: onnx.ModelProto | Path, shapes: Mapping[str, tuple[int, ...]] | None = None) -> PreparedModel:
    return load_network(model if isinstance(model, Path) else ir.serde.deserialize_model(model), shapes)


def trip(model: onnx.ModelProto | Path, *feeds: Feeds, precision: Precision = Precision.INT8, policy: str = "stop",
         shapes: Mapping[str, tuple[int, ...]] | None = None, target: str = "rk3588", floats: Callable[[str], bool] = lambda unit: False) -> Trip:
    """Load, observe, plan (every unit that may be `precision` is), write, check with onnx, load and run, float and quantized.

    floats   units, by name, that the plan keeps in float
    """
    prepared = prepared_of(model, shapes)
    chip = targets.load(target)
    version = chip.toolkit(None)
    statistics = statistics_of(prepared, Samples(*feeds), policy=policy)
    allowed, _ = allowed_precisions(prepared.network, statistics, chip, version)
    chosen = {u: precision if precision in p and not floats(u) else next(f for f in (*p, Precision.FP16) if f.is_float) for u, p in allowed.items()}
    plans = Plans(prepared.network, statistics, schemes_of(chip, version))
    plan = plans(chosen, "minmax", Granularity.PER_CHANNEL, "")
    written = ir.to_proto(qdq.write(prepared, plan).model)
    onnx.checker.check_model(written, full_check=True)
    run = dict(feeds[-1])
    return Trip(prepared, statistics, plan, written, Session(qdq.to_bytes(prepared.model), 1).run(run),
                Session(written.SerializeToString(), 1, simulate=True).run(run))


def reference(model: onnx.ModelProto, feeds: Feeds) -> dict[str, Array]:
    """Outputs of the model as the user gave it, by onnxruntime alone."""
    return Session(model.SerializeToString(), 1).run(feeds)
