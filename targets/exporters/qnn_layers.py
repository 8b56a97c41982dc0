"""Layer by layer in the simulator: every layer gets onnxruntime's codes and must give onnxruntime's codes, so that no layer's rounding hides another's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf, log10

import numpy as np
import onnx_ir as ir

from qbench.export import Job
from qbench.protocols import Array
from qbench.targets.exporters.qnn_model import handed
from qbench.targets.exporters.qnn_readback import quantizers

GIVEN = "_given"


@dataclass(frozen=True)
class Cut:
    """exposed   gives the codes of every pair beside its outputs; open   the same, but readers take the codes from inputs
    codes   key "TENSOR:int8" -> name of the codes in both; the input has GIVEN behind it"""

    exposed: ir.Model
    open: ir.Model
    codes: Mapping[str, str]


def cut(job: Job) -> Cut:
    """The job's Q/DQ model, opened at every pair but those that a Transpose reads."""
    codes = {key: str(node.outputs[0].name) for key, node in quantizers(job) if not _transposed(node.outputs[0])}
    return Cut(_outputs_added(job, codes), _opened(_outputs_added(job, codes), codes), codes)


def _transposed(codes: ir.Value) -> bool:
    """Whether a Transpose reads them: the HTP takes none of codes that come from outside, and the layer before is judged behind it."""
    return any(reader.op_type == "Transpose" for pair, _ in codes.uses() for reader, _ in pair.outputs[0].uses())


def _outputs_added(job: Job, codes: Mapping[str, str]) -> ir.Model:
    model = handed(job)
    values = {str(v.name): v for n in model.graph for v in n.outputs}
    for key, name in codes.items():
        value, zero = values[name], values[name].producer().inputs[2]  # type: ignore[union-attr]
        assert zero is not None and zero.const_value is not None
        value.type, value.shape = ir.TensorType(zero.const_value.dtype), ir.Shape(job.prepared.network.tensors[key.rpartition(":")[0]].shape)
        model.graph.outputs.append(value)
    return model


def _opened(model: ir.Model, codes: Mapping[str, str]) -> ir.Model:
    values = {str(v.name): v for n in model.graph for v in n.outputs}
    for name in codes.values():
        given = ir.Value(name=name + GIVEN, type=values[name].type, shape=values[name].shape)
        for reader, index in list(values[name].uses()):
            reader.replace_input_with(index, given)
        model.graph.inputs.append(given)
    return model


@dataclass(frozen=True, slots=True)
class Apart:
    """steps   largest difference of a tensor's codes in any sample; sqnr_db   of its reals over all samples, infinite when equal"""

    steps: int
    sqnr_db: float


def furthest(job: Job, codes: Mapping[str, str], wanted: Sequence[Mapping[str, Array]], got: Sequence[Mapping[str, Array]]) -> dict[str, Apart]:
    """Key -> how far its codes are from those wanted; the worst first."""
    found = {}
    for key, name in codes.items():
        zero = job.demanded.tensors[key].zero_point[0]
        want, have = (np.stack([s[name] for s in some]).astype(np.int64) for some in (wanted, got))
        noise, signal = float(((want - have) ** 2).sum()), float(((want - zero) ** 2).sum())
        found[key] = Apart(int(np.abs(want - have).max(initial=0)), 10.0 * log10(signal / noise) if noise and signal else -inf if noise else inf)
    return dict(sorted(found.items(), key=lambda item: -item[1].steps))
