"""The three ways in which AMD's NPU compiler takes Q/DQ models, as AMD's own quantizer writes them.

Source: models that AMD Quark 0.13 wrote (XINT8_QCONFIG, A8W8_QCONFIG, A16W8_QCONFIG) of three convolutions and an Add;
RyzenAI-SW 1.6 release notes (2025) name the three.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from math import frexp
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

MICROSOFT = "com.microsoft"


@dataclass(frozen=True, slots=True)
class Convention:
    """activation, weight, bias   type of the codes
    domain             of the pairs; "" is ONNX's own
    power_of_two       every scale is one
    one_scale          a weight has a single scale, as Quark writes by itself; a plan's scale per channel is kept where power_of_two is not asked
    zero_points_are_0  every one
    """

    activation: str
    weight: str
    bias: str
    domain: str
    power_of_two: bool
    one_scale: bool
    zero_points_are_0: bool = True


KNOWN: Mapping[str, Convention] = {
    "XINT8": Convention("int8", "int8", "int8", "", power_of_two=True, one_scale=True),
    "A8W8": Convention("int8", "int8", "int32", "", power_of_two=False, one_scale=True),
    "A16W8": Convention("int16", "int8", "int32", MICROSOFT, power_of_two=False, one_scale=True),
}


def is_power_of_two(scale: float) -> bool:
    return scale > 0.0 and frexp(scale)[0] == 0.5


def convention_of(model: ir.Model) -> Convention:
    """What a Q/DQ model does, by looking at it. A field on which its nodes differ holds both, joined by "+"."""
    seen: dict[str, set[Any]] = {f.name: set() for f in fields(Convention)}
    for node in model.graph:
        if node.op_type not in ("QuantizeLinear", "DequantizeLinear"):
            continue
        scale, zero, codes = (_array(node, i) for i in (1, 2, 0))
        assert scale is not None
        seen["domain"].add(node.domain)
        seen["zero_points_are_0"].add(zero is None or not zero.any())
        if node.op_type == "QuantizeLinear":
            seen["activation"].add("uint8" if zero is None else zero.dtype.name)
            seen["power_of_two"].add(all(map(is_power_of_two, scale.reshape(-1).tolist())))
        elif codes is not None and (codes.dtype == np.int32 or bias_reader(node) is not None):
            seen["bias"].add(codes.dtype.name)
        elif codes is not None:
            seen["weight"].add(codes.dtype.name)
            seen["one_scale"].add(scale.size == 1)
            seen["power_of_two"].add(all(map(is_power_of_two, scale.reshape(-1).tolist())))
    words = {k: "+".join(sorted(v)) for k, v in seen.items() if k in ("activation", "weight", "bias", "domain")}
    return Convention(**words, **{k: all(seen[k]) for k in ("power_of_two", "one_scale", "zero_points_are_0")})  # type: ignore[arg-type]


def bias_reader(node: ir.Node) -> ir.Node | None:
    """The layer whose bias a DequantizeLinear makes: it is the third input there."""
    return next((use.node for use in node.outputs[0].uses() if use.idx == 2 and use.node.op_type in ("Conv", "ConvTranspose", "Gemm")), None)


def _array(node: ir.Node, index: int) -> NDArray[Any] | None:
    value = node.inputs[index] if index < len(node.inputs) else None
    return None if value is None or value.const_value is None else value.const_value.numpy()
