"""Output ranges that a runtime prescribes instead of a calibrated one: Softmax, Sigmoid and their like (BUG case B12).

style        operators                            scale and zero point
"unit"       Softmax, Sigmoid                     the range [0, 1] over all codes: 1/255 and 0 for uint8 (-128 for int8),
                                                  1/65535 and 0 for uint16 (-32768 for int16)
"half-open"  Softmax, Sigmoid                     int8 1/256 and -128 (uint8: 0), int16 1/32768 and 0
             Tanh                                 int8 1/128 and 0 (uint8: 128), int16 1/32768 and 0
             LogSoftmax                           int8 16/256 and 127 (uint8: 255); no rule for 16 bits
""           none: ranges are as calibrated

The half-open range never reaches 1, so that its scale is a power of two. Where its rule asks for a zero point that a scheme does
not have, because it is symmetric, the scale is that of a range of [-1, 1) over the codes. For widths and signs that the
runtimes do not have, the rule of the next smaller width is carried over: int4 1/16 and -8, uint16 1/32768 and 32768.
Source: unit: onnxruntime pull request 18589, the fixed range of its Q/DQ Softmax; half-open: the LiteRT 8-bit quantization
specification (LOGISTIC, SOFTMAX, TANH, LOG_SOFTMAX), and TensorFlow Lite's kernels, which assert 1/32768 and 0 for int16.
"""

from __future__ import annotations

from qbench.affine import Range, Scheme
from qbench.errors import UnknownName

UNIT, HALF_OPEN, CALIBRATED = "unit", "half-open", ""
STYLES = (CALIBRATED, UNIT, HALF_OPEN)
PROBABILITIES = frozenset({"Softmax", "Sigmoid"})
LOG_SOFTMAX_REACH = 16.0
"""LogSoftmax covers [-16, 0]: exp(-16) is 1e-7."""


def fixed_range(op: str, style: str, scheme: Scheme) -> Range | None:
    """The range from which `affine` makes the prescribed scale and zero point for the output of `op`; None where nothing is prescribed.

    op      ONNX operator that makes the tensor
    Raises UnknownName for a style that does not exist.
    """
    if style not in STYLES:
        raise UnknownName(f"no convention {style!r} for fixed outputs; known: {', '.join(repr(s) for s in STYLES)}")
    if style == UNIT:
        return Range(0.0, 1.0) if op in PROBABILITIES else None
    if style == CALIBRATED or op not in PROBABILITIES | {"Tanh", "LogSoftmax"}:
        return None
    wide = scheme.bits > 8
    if op == "LogSoftmax":
        if wide or scheme.symmetric:
            return None
        return _codes(scheme, LOG_SOFTMAX_REACH / 2**scheme.bits, 2**scheme.bits - 1)
    if scheme.symmetric:
        end = scheme.reach * 2.0 ** -(scheme.bits - 1)
        return Range(-end if op == "Tanh" else 0.0, end)
    if op == "Tanh" or wide:
        return _codes(scheme, 2.0 ** -(scheme.bits - 1), 2 ** (scheme.bits - 1))
    return _codes(scheme, 2.0 ** -scheme.bits, 0)


def _codes(scheme: Scheme, scale: float, zero: int) -> Range:
    """The range of all codes at `scale`, 0 being code number `zero` from the lowest."""
    first = 1 if scheme.narrow else 0
    zero = max(zero, first)
    return Range((first - zero) * scale, (2**scheme.bits - 1 - zero) * scale)
