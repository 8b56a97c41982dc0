"""A copy of a model that grows: fresh names, initializers stored once, QuantizeLinear / DequantizeLinear nodes."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from qbench.affine import Affine, Scheme

Array = NDArray[Any]
MICROSOFT = "com.microsoft"
STANDARD_16_BIT_OPSET = 21
"""Since this opset ONNX has 16-bit pairs and blocks; below it 16-bit pairs live in onnxruntime's own domain (BUG case B18)."""


class Builder:
    """Owns the copy. What it makes is appended: the graph must be sorted at the end.

    kept   values that several readers share, by content: a second request gives the first one's value
    """

    def __init__(self, model: ir.Model) -> None:
        self.model = model
        self.graph = model.graph
        self.names = {str(v.name) for n in self.graph for v in n.outputs if v.name} | set(self.graph.initializers) | {
            str(v.name) for v in self.graph.inputs} | {str(n.name) for n in model.graph.all_nodes()}
        self.kept: dict[Hashable, ir.Value] = {}
        self.standard = model.opset_imports.get("", 0) >= STANDARD_16_BIT_OPSET

    def free(self, name: str) -> str:
        """`name`, or the next one like it that no node and no tensor has."""
        number, stem = 0, name
        while name in self.names:
            number += 1
            name = f"{stem}_{number}"
        self.names.add(name)
        return name

    def initializer(self, name: str, data: Array) -> ir.Value:
        name = self.free(name)
        value = ir.Value(name=name, const_value=ir.Tensor(data, name=name), type=ir.TensorType(ir.DataType.from_numpy(data.dtype)),
                         shape=ir.Shape(data.shape))
        self.graph.register_initializer(value)
        return value

    def node(self, op: str, inputs: Sequence[ir.Value], stem: str, output: str, attributes: dict[str, Any] | None = None, domain: str = "") -> ir.Value:
        """The single output, named like `output`, of a new node named STEM_OP."""
        made = ir.Value(name=self.free(output))
        self.graph.append(ir.node(op, inputs, attributes or {}, domain=domain, outputs=[made], name=self.free(f"{stem}_{op}")))
        return made

    def domain(self, scheme: Scheme) -> str:
        """Of the pair that stores codes of `scheme`."""
        if self.standard or scheme.dtype.itemsize != 2:
            return ""
        self.model.opset_imports.setdefault(MICROSOFT, 1)
        return MICROSOFT

    def pair(self, value: ir.Value, a: Affine, stem: str, inside: bool = False) -> ir.Value:
        """`value` behind a QuantizeLinear and a DequantizeLinear.

        QuantizeLinear saturates where the type of the codes ends: codes of fewer bits get a Clip in front of it.
        inside   the values lie within the codes already: no Clip
        """
        scale, zero = self._parameters(a, stem)
        if not inside and a.scheme.bits != 8 * a.scheme.dtype.itemsize:
            low, high = ((q - a.zero_point) * np.float32(a.scale) for q in (a.scheme.qmin, a.scheme.qmax))
            ends = [self.initializer(f"{stem}_{n}", np.asarray(v, np.float32)) for n, v in (("low", low), ("high", high))]
            value = self.node("Clip", [value, *ends], stem, f"{stem}_clipped")
        domain = self.domain(a.scheme)
        codes = self.node("QuantizeLinear", [value, scale, zero], stem, f"{stem}_q", domain=domain)
        return self.node("DequantizeLinear", [codes, scale, zero], stem, f"{stem}_dq", domain=domain)

    def _parameters(self, a: Affine, stem: str) -> tuple[ir.Value, ir.Value]:
        key = ("scale", a.scale, a.zero_point, a.scheme.dtype.name)
        if key not in self.kept:
            self.kept[key] = self.initializer(f"{stem}_scale", np.asarray(a.scale, np.float32))
            self.kept[(*key, "zero")] = self.initializer(f"{stem}_zero_point", np.asarray(a.zero_point, a.scheme.dtype))
        return self.kept[key], self.kept[(*key, "zero")]

    def half(self, value: ir.Value, tensor: str) -> ir.Value:
        """`value` rounded to float16, as float32."""
        half = self.node("Cast", [value], f"{tensor}_to_half", f"{tensor}_half", {"to": int(ir.DataType.FLOAT16)})
        return self.node("Cast", [half], f"{tensor}_from_half", f"{tensor}_rounded", {"to": int(ir.DataType.FLOAT)})

    def dequantized(self, name: str, codes: Array, scales: Array, zero_points: Array | None, scheme: Scheme, axis: int | None = None,
                    block: int = 0, shape: tuple[int, ...] | None = None) -> ir.Value:
        """Integers behind a DequantizeLinear.

        zero_points   None leaves them out: int32 codes have none
        axis, block   as the operator's; None for one scale
        shape         what a Reshape makes of them, where it is not the shape of the codes
        """
        inputs = [self.initializer(f"{name}_q", codes), self.initializer(f"{name}_scale", scales)]
        if zero_points is not None:
            inputs.append(self.initializer(f"{name}_zero_point", zero_points))
        attributes = {} if axis is None else {"axis": axis} | ({"block_size": block} if block else {})
        reals = self.node("DequantizeLinear", inputs, name, f"{name}_dq", attributes, self.domain(scheme))
        if shape is None or shape == codes.shape:
            return reals
        target = self.initializer(f"{name}_shape", np.array(shape, np.int64))
        return self.node("Reshape", [reals, target], name, f"{name}_reshaped")
