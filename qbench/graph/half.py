"""Constants that FP16 cannot hold (BUG case B22)."""

from __future__ import annotations

from collections.abc import Collection, Iterable

import numpy as np
import onnx_ir as ir

from qbench.graph.operators import SIZE_OPERANDS
from qbench.graph.values import STANDARD, Array, held

OVERFLOW = 65520.0
"""The least magnitude that float16 rounds to infinity; 65519.99 becomes 65504, the largest there is."""
UNDERFLOW = 2.0 ** -25
"""The largest magnitude that float16 rounds to 0."""
NOT_STORED = {*SIZE_OPERANDS, "Pad", "Clip", "Max", "Min"}
"""Sizes and scales keep their type; bounds and fillings beyond 65504 may be clamped to it, which changes no FP16 value."""


def constant_fault(chain: Iterable[ir.Node], guards: Collection[str]) -> str:
    """Why a kernel of these nodes cannot run in FP16 for its constants alone; "" when all fit.

    guards   nodes whose constant keeps a divisor away from 0: one that rounds to 0 would divide by it
    """
    for node in chain:
        for index, value in enumerate(node.inputs):
            data = held(value)
            if value is None or data is None or not data.size or node.domain not in STANDARD:
                continue
            if node.op_type not in NOT_STORED and (most := largest(data)) >= OVERFLOW:
                return f"FP16 could overflow: constant {value.name!r} of {node.op_type} {str(node.name)!r} reaches {most:.6g}, which exceeds 65504"
            kept = str(node.name) in guards and (node.op_type != "Clip" or index == 1)
            if kept and (least := float(data.min())) > 0 and least <= UNDERFLOW:
                return f"FP16 rounds constant {value.name!r} ({least:.3g}) of {node.op_type} {str(node.name)!r} to 0, and it keeps a divisor away from 0"
            if node.op_type == "Div" and index == 1 and 0 < (least := float(np.abs(data).min())) <= UNDERFLOW:
                return f"FP16 rounds constant {value.name!r} ({least:.3g}) of Div {str(node.name)!r} to 0, and it is divided by"
    return ""


def largest(data: Array) -> float:
    """Largest finite magnitude; looks at pieces, so that no copy of a large weight is made."""
    flat, most = data.reshape(-1), 0.0
    for i in range(0, flat.size, 1 << 22):
        piece = np.abs(flat[i:i + (1 << 22)])
        most = max(most, float(piece.max(initial=0.0, where=np.isfinite(piece))))
    return most
