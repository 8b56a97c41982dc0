"""Qualcomm Hexagon through ONNX Runtime's QNN execution provider."""

from __future__ import annotations

from qbench.network import Precision
from qbench.placement.record import Operator, Placement
from qbench.targets.rules.lists import listed
from qbench.targets.rules.registry import Book, Case

SOURCE = "onnxruntime-qnn op builder factory @cee6c0d (2026)"
BUILT = "onnxruntime-qnn 2.7.0, compiled for HTP (2026)"
BOOK = Book(listed)


@BOOK.rule("ArgMax", "ArgMin", puts=Placement.CPU, source=SOURCE)
def four_axes(op: Operator, case: Case) -> str | None:
    """ArgMax and ArgMin take tensors of at most four axes."""
    return f"its input has {len(op.shape(0))} axes" if len(op.shape(0)) > 4 else None


@BOOK.rule("BatchNormalization", puts=Placement.CPU, source=SOURCE)
def statistics_are_constant(op: Operator, case: Case) -> str | None:
    """Scale, bias, mean and variance of a BatchNormalization are constants."""
    computed = [v.name for v in op.inputs[1:5] if v is not None and not v.constant]
    return f"{', '.join(computed)} computed in the graph" if computed else None


@BOOK.rule("Conv", "GlobalAveragePool", puts=Placement.CPU, source=BUILT)
def not_in_sixteen_bit_symmetric(op: Operator, case: Case) -> str | None:
    """Depthwise Conv and GlobalAveragePool have no kernel for symmetric int16 activations; unsigned 16-bit ones run."""
    channels = (*op.shape(0), None, None)[1]
    depthwise = op.op == "Conv" and op.whole("group", 1) > 1 and op.whole("group", 1) == channels
    signed = case.precision is Precision.INT16 and _signed(case)
    return "16-bit activations are symmetric in this plan" if signed and (depthwise or op.op == "GlobalAveragePool") else None


def _signed(case: Case) -> bool:
    return any(p.precision is case.precision and p.scheme is not None and p.scheme.activation.signed for p in case.target.precisions)
