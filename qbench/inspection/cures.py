"""Known rewrites for operators that a target refuses or leaves to the CPU. Named only: `qbench inspect` applies none.

Exactness: E bit-exact for float graphs; N the same mathematics, rounding differs; A an approximation with a stated bound;
C changes the result and needs consent.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from qbench.inspection.placing import Placed
from qbench.support import Operator, Placement

MEANING = {"E": "bit-exact", "N": "same mathematics, other rounding", "A": "approximation", "C": "changes the result: needs consent"}


@dataclass(frozen=True, slots=True)
class Cure:
    """ops         that it replaces
    becomes     what stands there instead
    exactness   E, N, A or C
    note        bound, condition or catch
    mode        only for an operator with this `mode` attribute
    """

    ops: tuple[str, ...]
    becomes: str
    exactness: str
    note: str = ""
    mode: str = ""


CURES = (
    Cure(("Gelu",), "Erf form: x * 0.5 * (1 + Erf(x / sqrt 2))", "N", "toolchains fuse it back"),
    Cure(("Gelu", "Erf"), "tanh form", "A", "largest error 4.7e-4"),
    Cure(("Gelu", "Erf"), "x * Sigmoid(1.702 x)", "A", "largest error 2.0e-2"),
    Cure(("HardSwish",), "x * Clip(x / 6 + 0.5, 0, 1)", "N"),
    Cure(("Mish",), "x * Tanh(Softplus(x))", "N"),
    Cure(("LayerNormalization",), "ReduceMean, Sub, Mul, ReduceMean, Add, Sqrt, Div, Mul, Add", "N", "the variance may overflow in FP16: scale first"),
    Cure(("LayerNormalization",), "the same operator with its epsilon attribute written out", "E", "rknn-toolkit2 stops without it"),
    Cure(("GroupNormalization",), "Reshape + InstanceNormalization + Mul + Add", "N", "price the InstanceNormalization"),
    Cure(("ReduceL2", "RMSNormalization"), "Mul, ReduceSum or ReduceMean, Sqrt, Div", "N"),
    Cure(("Resize",), "linear in place of cubic", "C", "judge by the metric", mode="cubic"),
    Cure(("Resize", "Upsample"), "Tile or ConvTranspose", "E", "nearest, whole factors", mode="nearest"),
    Cure(("Resize",), "depthwise ConvTranspose with a triangle kernel", "N", "whole factors, exact inside; check the borders", mode="linear"),
    Cure(("Resize",), "half_pixel in place of align_corners", "C", "shifts values by less than a pixel", mode="linear"),
    Cure(("GlobalAveragePool",), "two-stage pooling, ReduceMean or a depthwise Conv", "N", "equal tiles only"),
    Cure(("MaxPool",), "a cascade of smaller MaxPools", "E", "stride 1, padded with -inf"),
    Cure(("AveragePool",), "depthwise Conv with 1 / k^2", "N", "one more rounding in INT8"),
    Cure(("Slice",), "MaxPool k=1 s=2, or a 1x1 identity Conv of stride 2", "E", "for step 2"),
    Cure(("Einsum",), "Transpose, Reshape, MatMul", "N"),
    Cure(("MatMul", "Gemm"), "1x1 Conv", "N"),
    Cure(("Conv",), "sum of 2-D convolutions for 3-D; Reshape to 2-D for 1-D", "N", "the cost of 3-D grows with depth"),
    Cure(("Conv",), "large or dilated kernels split, or space-to-batch", "N"),
    Cure(("Conv",), "an explicit Pad in front", "E", "for pads above the limit"),
    Cure(("ConvTranspose",), "sub-pixel Conv + DepthToSpace, or zero-stuffing + Conv", "N", "for strides that the chip lacks"),
    Cure(("Pow",), "Mul(x, x) for the exponent 2; Sqrt for 0.5", "E"),
    Cure(("Div",), "Mul by the reciprocal where the divisor is constant", "N", "exact for powers of two"),
    Cure(("Neg",), "Mul by -1", "E"), Cure(("Ceil",), "-Floor(-x)", "E"), Cure(("Abs",), "Max(x, -x)", "E"), Cure(("Sum", "Mean"), "a chain of Add", "N"),
    Cure(("Sub",), "Add of the negated constant", "E"),
    Cure(("Min",), "-Max(-a, -b)", "E"), Cure(("Reciprocal",), "1 / x as Div", "N"),
    Cure(("LogSoftmax",), "Log(Softmax(x)), or Softmax alone with the Log on the host", "N", "underflow"),
    Cure(("CumSum",), "MatMul with a triangle of ones", "N"),
    Cure(("Pad",), "Slice + Concat", "E", "for reflect"),
    Cure(("PRelu",), "Relu(x) - a * Relu(-x)", "N"),
    Cure(("ConstantOfShape", "Shape", "Range", "Size"), "Constant", "E", "once shapes are static"),
    Cure(("NonMaxSuppression", "TopK", "NonZero", "ArgMax", "ScatterND", "OneHot", "RoiAlign", "GatherND", "Unique", "Compress"),
         "cut the post-processing off and run it on the host", "E", "the host's time comes on top"),
    Cure(("If", "Loop", "Scan"), "unrolled, or the branch that is taken", "E", "only where it does not depend on data"),
    Cure(("DepthToSpace",), "Reshape, Transpose, Reshape; or permute the weights before it and use DCR", "E", mode="CRD"),
    Cure(("SpaceToDepth",), "a stride-2 Conv with permuted weights", "N"),
    Cure(("LSTM", "GRU"), "FP16 for this layer", "N", "the toolchains that build it do so in FP16"),
    Cure(("Sigmoid",), "HardSigmoid", "C", "largest error 0.069 (slope 1/6), 0.076 (slope 0.2)"),
    Cure(("Gather",), "a Slice for constant neighbouring indices, or flat indices and a Reshape", "E"),
)


@dataclass(frozen=True, slots=True)
class Offer:
    """A cure for operators of this model. applied is always False here: `qbench rewrite` does that."""

    op: str
    placement: str
    nodes: tuple[str, ...]
    becomes: str
    exactness: str
    meaning: str
    note: str
    applied: bool = False


def offers(placed: Placed, operators: Mapping[str, Operator]) -> tuple[Offer, ...]:
    """Cures for what is refused, on the CPU or split, the most nodes first; an operator without one says so."""
    found = []
    for line in placed.lines:
        away = [e.node for e in line.nodes if Placement(e.placement) in (Placement.CPU, Placement.PARTLY, Placement.REFUSED)]
        if not away:
            continue
        worst = str(line.worst)
        known = list(_for(line.op, [operators[n] for n in away]))
        found += [Offer(line.op, worst, tuple(away), c.becomes, c.exactness, MEANING[c.exactness], c.note) for c in known]
        if not known:
            found.append(Offer(line.op, worst, tuple(away), "no rewrite is known", "", "", ""))
    return tuple(found)


def _for(op: str, nodes: Iterable[Operator]) -> Iterable[Cure]:
    modes = {n.text("mode", "nearest" if op in ("Resize", "Upsample") else "") for n in nodes}
    return (c for c in CURES if op in c.ops and (not c.mode or c.mode in modes))
