"""A stand-in for an accelerator: runs a Q/DQ file in whole numbers with numpy alone, rightly or with one fault built into its arithmetic.

It shares no code with `qbench.diagnosis` or onnxruntime: convolutions are sums over windows of codes, requantization is in float64.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import numpy_helper

Array = NDArray[Any]


def half_even(x: Array) -> Array:
    return np.rint(x)


def half_away(x: Array) -> Array:
    return np.sign(x) * np.floor(np.abs(x) + 0.5)


def truncate(x: Array) -> Array:
    return np.trunc(x)


def saturate16(acc: Array) -> Array:
    return np.clip(acc, -2**15, 2**15 - 1)


def wrap16(acc: Array) -> Array:
    return (acc + 2**15) % 2**16 - 2**15


@dataclass
class FakeBoard:
    """rounding    of reals to codes; input_rounding of the network's inputs alone, where it is another
    accumulate  node name -> what its sums of codes become; running the node whose sums saturate at 16 bits after each product
    wrap_codes  codes run over instead of saturating
    half        sums are kept in float16
    """

    model: onnx.ModelProto
    rounding: Callable[[Array], Array] = half_even
    input_rounding: Callable[[Array], Array] | None = None
    accumulate: Mapping[str, Callable[[Array], Array]] | None = None
    running: str = ""
    wrap_codes: bool = False
    half: bool = False

    def run(self, feeds: Mapping[str, Array], wanted: Sequence[str] = ()) -> dict[str, Array]:
        """Outputs, or the values `wanted`, of one batch of samples."""
        g = self.model.graph
        self.values: dict[str, Array] = {i.name: numpy_helper.to_array(i) for i in g.initializer} | {k: np.asarray(v) for k, v in feeds.items()}
        self.code: dict[str, tuple[Array, Array]] = {}
        self.inputs = set(feeds)
        for n in g.node:
            made = getattr(self, n.op_type)(n, [self.values[i] for i in n.input if i], {a.name: onnx.helper.get_attribute_value(a) for a in n.attribute})
            self.values[n.output[0]] = made
        return {k: self.values[k].astype(np.float32) for k in (wanted or [o.name for o in g.output])}

    def QuantizeLinear(self, n: onnx.NodeProto, x: list[Array], a: dict[str, Any]) -> Array:
        zero = x[2]
        limits = np.iinfo(zero.dtype)
        way = self.input_rounding if n.input[0] in self.inputs and self.input_rounding is not None else self.rounding
        q = way(x[0].astype(np.float64) / x[1]) + float(zero)
        if self.wrap_codes:
            return np.asarray((q - limits.min) % (int(limits.max) - int(limits.min) + 1) + limits.min).astype(zero.dtype)
        return np.asarray(np.clip(q, limits.min, limits.max).astype(zero.dtype))

    def DequantizeLinear(self, n: onnx.NodeProto, x: list[Array], a: dict[str, Any]) -> Array:
        scale, zero = x[1].astype(np.float64), (x[2].astype(np.float64) if len(x) > 2 else np.float64(0))
        if scale.ndim and x[0].ndim > 1:
            shape = [1] * x[0].ndim
            shape[a.get("axis", 1)] = scale.size
            scale, zero = scale.reshape(shape), zero.reshape(shape) if np.ndim(zero) else zero
        q = x[0].astype(np.float64) - zero
        self.code[n.output[0]] = (q, scale)
        return np.asarray(q * scale)

    def _sums(self, n: onnx.NodeProto, exact: Callable[[Array, Array], Array], channel: tuple[int, ...]) -> Array:
        (xq, xs), (wq, ws) = self.code[n.input[0]], self.code[n.input[1]]
        unit = xs * ws.reshape(-1).reshape(channel if ws.size > 1 else ())
        acc = exact(xq, wq)
        if len(n.input) > 2:
            acc = acc + np.rint(self.values[n.input[2]].reshape(channel) / unit)
        for name, change in (self.accumulate or {}).items():
            if name in (n.name, "*"):
                acc = change(acc)
        real = acc * unit
        return np.asarray(real.astype(np.float16).astype(np.float64) if self.half else real)

    def Conv(self, n: onnx.NodeProto, x: list[Array], a: dict[str, Any]) -> Array:
        stride, pads, groups = a.get("strides", [1, 1]), a.get("pads", [0, 0, 0, 0]), a.get("group", 1)

        def exact(q: Array, w: Array) -> Array:
            q = np.pad(q, ((0, 0), (0, 0), (pads[0], pads[2]), (pads[1], pads[3])))
            windows = np.lib.stride_tricks.sliding_window_view(q, w.shape[2:], (2, 3))[:, :, ::stride[0], ::stride[1]]
            parts = []
            for i in range(groups):
                some = windows[:, i * w.shape[1]:(i + 1) * w.shape[1]]
                kernel = w[i * (len(w) // groups):(i + 1) * (len(w) // groups)]
                if self.running == n.name:
                    parts.append(_running(some, kernel))
                else:
                    parts.append(np.einsum("nchwij,ocij->nohw", some, kernel, optimize=True))
            return np.concatenate(parts, 1)
        return self._sums(n, exact, (1, -1, 1, 1))

    def Gemm(self, n: onnx.NodeProto, x: list[Array], a: dict[str, Any]) -> Array:
        return self._sums(n, lambda q, w: q @ (w.T if a.get("transB") else w), (-1,))

    def Relu(self, n: onnx.NodeProto, x: list[Array], a: dict[str, Any]) -> Array:
        return np.maximum(x[0], 0.0)

    def Add(self, n: onnx.NodeProto, x: list[Array], a: dict[str, Any]) -> Array:
        return np.asarray(x[0] + x[1])

    def ReduceMean(self, n: onnx.NodeProto, x: list[Array], a: dict[str, Any]) -> Array:
        axes = a.get("axes", list(x[1]) if len(x) > 1 else [])
        return np.asarray(x[0].mean(tuple(axes), keepdims=bool(a.get("keepdims", 1))))


def _running(windows: Array, kernel: Array) -> Array:
    """Sums that saturate at 16 bits after each product, channel by channel."""
    n, c, h, w, kh, kw = windows.shape
    acc = np.zeros((n, len(kernel), h, w))
    for ch in range(c):
        for i in range(kh):
            for j in range(kw):
                acc = saturate16(acc + windows[:, ch, :, :, i, j][:, None] * kernel[:, ch, i, j][None, :, None, None])
    return acc
