"""Known rewrites for operators that a target refuses or leaves to the CPU. `qbench inspect` names them, `qbench rewrite` applies those that have a name.

Exactness: E bit-exact for float graphs; N the same mathematics, rounding differs; A an approximation with a stated bound;
C changes the result and needs consent.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from qbench.inspection.operator_table import Placed
from qbench.placement.record import Operator, Placement

MEANING = {"E": "bit-exact", "N": "same mathematics, other rounding", "A": "approximation", "C": "changes the result: needs consent"}


@dataclass(frozen=True, slots=True)
class Cure:
    """ops         that it replaces
    becomes     what stands there instead
    exactness   E, N, A or C
    note        bound, condition or catch
    mode        only for an operator with this `mode` attribute
    rewrite     its name in `qbench rewrite`; "" where none applies it
    axes        only for a convolution with so many spatial axes; 0: any
    """

    ops: tuple[str, ...]
    becomes: str
    exactness: str
    note: str = ""
    mode: str = ""
    rewrite: str = ""
    axes: int = 0

    @property
    def advice(self) -> str:
        """The note, and how to have it done."""
        return "; ".join(filter(None, (self.note, f"qbench rewrite: {self.rewrite}" if self.rewrite else "")))


CURES = (
    Cure(("Gelu",), "Erf form: x * 0.5 * (1 + Erf(x / sqrt 2))", "N", "toolchains fuse it back", rewrite="gelu-to-erf"),
    Cure(("Gelu", "Erf"), "tanh form", "A", "largest error 4.7e-4", rewrite="gelu-to-tanh"),
    Cure(("Gelu", "Erf"), "x * Sigmoid(1.702 x)", "A", "largest error 2.0e-2", rewrite="gelu-to-sigmoid"),
    Cure(("HardSwish",), "x * Clip(x / 6 + 0.5, 0, 1)", "N", rewrite="hardswish-to-clip"),
    Cure(("Mish",), "x * Tanh(Softplus(x))", "N", rewrite="mish-split"),
    Cure(("LayerNormalization",), "ReduceMean, Sub, Mul, ReduceMean, Add, Sqrt, Div, Mul, Add", "N", "the variance may overflow in FP16: scale first", rewrite="layernorm-to-primitives"),
    Cure(("LayerNormalization",), "the same operator with its epsilon attribute written out", "E", "rknn-toolkit2 stops without it", rewrite="layernorm-epsilon"),
    Cure(("GroupNormalization",), "Reshape + InstanceNormalization + Mul + Add", "N", "price the InstanceNormalization", rewrite="groupnorm-to-instancenorm"),
    Cure(("ReduceL2",), "Mul, ReduceSum, Sqrt", "N", rewrite="reducel2-to-primitives"),
    Cure(("RMSNormalization",), "Mul, ReduceMean, Sqrt, Div", "N", rewrite="rmsnorm-to-primitives"),
    Cure(("InstanceNormalization",), "ReduceMean, Sub, Mul, ReduceMean, Add, Sqrt, Div, Mul, Add", "N", rewrite="instancenorm-to-primitives"),
    Cure(("Resize",), "linear in place of cubic", "C", "judge by the metric", mode="cubic", rewrite="resize-cubic-to-linear"),
    Cure(("Resize", "Upsample"), "Tile or ConvTranspose", "E", "nearest, whole factors", mode="nearest", rewrite="resize-nearest-to-transposed-conv"),
    Cure(("Resize",), "depthwise ConvTranspose with a triangle kernel", "N", "whole factors, exact inside; check the borders", mode="linear", rewrite="resize-linear-to-transposed-conv"),
    Cure(("Resize",), "half_pixel in place of align_corners", "C", "shifts values by less than a pixel", mode="linear", rewrite="resize-corners"),
    Cure(("GlobalAveragePool",), "two-stage pooling, ReduceMean or a depthwise Conv", "N", "equal tiles only", rewrite="global-pool-two-stage"),
    Cure(("MaxPool",), "a cascade of smaller MaxPools", "E", "stride 1, padded with -inf", rewrite="maxpool-cascade"),
    Cure(("AveragePool",), "depthwise Conv with 1 / k^2", "N", "one more rounding in INT8", rewrite="averagepool-to-conv"),
    Cure(("Slice",), "MaxPool k=1 s=2, or a 1x1 identity Conv of stride 2", "E", "for step 2", rewrite="slice-step-to-pool"),
    Cure(("Einsum",), "Transpose, Reshape, MatMul", "N", rewrite="einsum-to-matmul"),
    Cure(("MatMul",), "1x1 Conv", "N", rewrite="matmul-to-conv"),
    Cure(("Gemm",), "1x1 Conv", "N", rewrite="gemm-to-conv"),
    Cure(("Conv",), "sum of 2-D convolutions, for 3-D", "N", "the cost grows with depth", rewrite="conv3d-to-conv", axes=3),
    Cure(("Conv",), "Reshape to 2-D, for 1-D", "N", rewrite="conv1d-to-conv", axes=1),
    Cure(("Conv",), "large or dilated kernels split, or space-to-batch", "N", axes=2),
    Cure(("Conv",), "an explicit Pad in front", "E", "for pads above the limit", rewrite="explicit-pad", axes=2),
    Cure(("ConvTranspose",), "sub-pixel Conv + DepthToSpace, or zero-stuffing + Conv", "N", "for strides that the chip lacks", rewrite="transposed-conv-stride"),
    Cure(("Pow",), "Mul(x, x) for the exponent 2; Sqrt for 0.5", "N", rewrite="pow-to-mul"),
    Cure(("Div",), "Mul by the reciprocal where the divisor is constant", "N", "exact for powers of two", rewrite="div-to-mul"),
    Cure(("Neg",), "Mul by -1", "E", rewrite="neg-to-mul"), Cure(("Ceil",), "-Floor(-x)", "E", rewrite="ceil-to-floor"), Cure(("Abs",), "Max(x, -x)", "E", rewrite="abs-to-max"), Cure(("Sum", "Mean"), "a chain of Add", "N", rewrite="sum-to-add"),
    Cure(("Sub",), "Add of the negated constant", "E", rewrite="sub-to-add"),
    Cure(("Min",), "-Max(-a, -b)", "E", rewrite="min-to-max"), Cure(("Reciprocal",), "1 / x as Div", "N", rewrite="reciprocal-to-div"),
    Cure(("LogSoftmax",), "Log(Softmax(x)), or Softmax alone with the Log on the host", "N", "underflow", rewrite="logsoftmax-split"),
    Cure(("CumSum",), "MatMul with a triangle of ones", "N", rewrite="cumsum-to-matmul"),
    Cure(("Pad",), "Slice + Concat", "E", "for reflect", rewrite="pad-mirror-to-concat"),
    Cure(("PRelu",), "Relu(x) - a * Relu(-x)", "N", rewrite="prelu-split"),
    Cure(("ConstantOfShape", "Shape", "Range", "Size"), "Constant", "E", "once shapes are static", rewrite="fold-constants"),
    Cure(("NonMaxSuppression", "TopK", "NonZero", "RoiAlign", "Unique", "Compress"), "cut the post-processing off and run it on the host", "E",
         "the host's time comes on top", rewrite="post-processing-to-host"),
    Cure(("ArgMax", "ScatterND", "OneHot", "GatherND"), "cut the post-processing off and run it on the host", "E", "the host's time comes on top"),
    Cure(("If", "Loop", "Scan"), "unrolled, or the branch that is taken", "E", "only where it does not depend on data"),
    Cure(("DepthToSpace",), "Reshape, Transpose, Reshape; or permute the weights before it and use DCR", "E", mode="CRD", rewrite="depthtospace-to-reshape"),
    Cure(("SpaceToDepth",), "a Conv of kernel and stride b that picks pixels", "E", rewrite="spacetodepth-to-conv"),
    Cure(("LSTM", "GRU"), "FP16 for this layer", "N", "the toolchains that build it do so in FP16"),
    Cure(("Sigmoid",), "HardSigmoid", "C", "largest error 0.069 (slope 1/6), 0.076 (slope 0.2)", rewrite="sigmoid-to-hardsigmoid"),
    Cure(("Gather",), "a Slice for constant neighbouring indices, or flat indices and a Reshape", "E", rewrite="gather-to-slice"),
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
        found += [Offer(line.op, worst, tuple(away), c.becomes, c.exactness, MEANING[c.exactness], c.advice) for c in known]
        if not known:
            found.append(Offer(line.op, worst, tuple(away), "no rewrite is known", "", "", ""))
    return tuple(found)


def _for(op: str, nodes: Collection[Operator]) -> Iterable[Cure]:
    modes = {n.text("mode", "nearest" if op in ("Resize", "Upsample") else "") for n in nodes}
    axes = {len(n.shape(1)) - 2 for n in nodes}
    return (c for c in CURES if op in c.ops and (not c.mode or c.mode in modes) and (not c.axes or c.axes in axes))
