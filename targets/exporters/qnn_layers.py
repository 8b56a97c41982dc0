"""Layer by layer in the simulator: every layer gets onnxruntime's codes and must give onnxruntime's codes, so that no layer's rounding hides another's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf, log10

import numpy as np
import onnx_ir as ir

from qbench.export import Job
from qbench.protocols import Array
from qbench.targets.exporters.qnn_model import handed, kept_scales
from qbench.targets.exporters.qnn_readback import quantizers

GIVEN = "_given"


@dataclass(frozen=True)
class Pair:
    """codes   their name; tensor   of the network, whose values they are; scale, zero_point   of the codes
    as_reals   the opened model takes their reals, which it quantizes again"""

    codes: str
    tensor: str
    scale: float
    zero_point: int
    as_reals: bool

    def given(self, codes: Array) -> Array:
        """What the input of the opened model takes."""
        return ((codes.astype(np.float64) - self.zero_point) * self.scale).astype(np.float32) if self.as_reals else codes


@dataclass(frozen=True)
class Cut:
    """exposed   gives the codes of every pair beside its outputs; open   the same, but readers take what inputs give
    pairs   by key "TENSOR:int8"; the input of one is named after its codes, with GIVEN behind"""

    exposed: ir.Model
    open: ir.Model
    pairs: Mapping[str, Pair]

    def feeds(self, codes: Mapping[str, Array]) -> dict[str, Array]:
        """What the inputs of `open` take for the codes that `exposed` gave."""
        return {p.codes + GIVEN: p.given(codes[p.codes]) for p in self.pairs.values()}


def cut(job: Job) -> Cut:
    """The job's Q/DQ model, opened at every pair that the HTP takes from outside; the layer before any other is judged by the ones behind it.

    Codes of 8 bits are given as reals, which the model quantizes again: of codes that come from outside the HTP takes no Transpose, and
    onnxruntime puts some before element-wise layers. Reals pass as FP16, which is too coarse for 16 bits: those are given as codes, but
    where a Transpose reads them.
    """
    model = handed(job)
    makers = {str(n.outputs[0].name): n for n in model.graph if n.op_type == "QuantizeLinear"}
    found = {key: (str(node.outputs[0].name), key.rpartition(":")[0]) for key, node in quantizers(job)}
    found |= {f"{tensor}, before it is converted:int8": (codes, tensor) for tensor, codes in kept_scales(model).items()}
    pairs = {key: _pair(makers[codes], tensor) for key, (codes, tensor) in found.items() if codes in makers}
    pairs = {key: p for key, p in pairs.items() if p.as_reals or not _transposed(makers[p.codes].outputs[0])}
    return Cut(_outputs_added(job, pairs), _opened(_outputs_added(job, pairs), pairs), pairs)


def _pair(quantizer: ir.Node, tensor: str) -> Pair:
    scale, zero = (v.const_value.numpy() for v in quantizer.inputs[1:3] if v is not None and v.const_value is not None)
    return Pair(str(quantizer.outputs[0].name), tensor, float(scale.reshape(-1)[0]), int(zero.reshape(-1)[0]), zero.dtype.itemsize == 1)


def _transposed(codes: ir.Value) -> bool:
    """Whether a Transpose reads them."""
    return any(reader.op_type == "Transpose" for pair, _ in codes.uses() for reader, _ in pair.outputs[0].uses())


def _outputs_added(job: Job, pairs: Mapping[str, Pair]) -> ir.Model:
    model = handed(job)
    values = {str(v.name): v for n in model.graph for v in n.outputs}
    for pair in pairs.values():
        value = values[pair.codes]
        value.type, value.shape = ir.TensorType(_zero(value).dtype), ir.Shape(job.prepared.network.tensors[pair.tensor].shape)
        model.graph.outputs.append(value)
    return model


def _zero(codes: ir.Value) -> ir.TensorProtocol:
    maker = codes.producer()
    zero = None if maker is None else maker.inputs[2]
    assert zero is not None and zero.const_value is not None
    return zero.const_value


def _opened(model: ir.Model, pairs: Mapping[str, Pair]) -> ir.Model:
    values = {str(v.name): v for n in model.graph for v in n.outputs}
    for pair in pairs.values():
        made = values[pair.codes]
        given = ir.Value(name=pair.codes + GIVEN, type=ir.TensorType(ir.DataType.FLOAT) if pair.as_reals else made.type, shape=made.shape)
        model.graph.inputs.append(given)
        readers, taken = list(made.uses()), given
        if pair.as_reals:
            quantizer = made.producer()
            assert quantizer is not None
            taken = ir.Value(name=f"{pair.codes}_taken", type=made.type, shape=made.shape)
            model.graph.insert_before(quantizer, ir.node("QuantizeLinear", [given, *quantizer.inputs[1:]], domain=quantizer.domain, outputs=[taken],
                                                         name=f"{pair.codes}_again"))
        for reader, index in readers:
            reader.replace_input_with(index, taken)
    return model


@dataclass(frozen=True, slots=True)
class Apart:
    """steps   largest difference of a tensor's codes in any sample; sqnr_db   of its reals over all samples, infinite when equal"""

    steps: int
    sqnr_db: float


def furthest(pairs: Mapping[str, Pair], wanted: Sequence[Mapping[str, Array]], got: Sequence[Mapping[str, Array]]) -> dict[str, Apart]:
    """Key -> how far its codes are from those wanted; the worst first."""
    found = {}
    for key, pair in pairs.items():
        want, have = (np.stack([s[pair.codes] for s in some]).astype(np.int64) for some in (wanted, got))
        noise, signal = float(((want - have) ** 2).sum()), float(((want - pair.zero_point) ** 2).sum())
        found[key] = Apart(int(np.abs(want - have).max(initial=0)), 10.0 * log10(signal / noise) if noise and signal else -inf if noise else inf)
    return dict(sorted(found.items(), key=lambda item: -item[1].steps))
