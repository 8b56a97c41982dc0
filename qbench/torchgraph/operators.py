"""ONNX operators as torch functions that have gradients. Import it lazily: it loads torch.

Source: ONNX operator specification, https://onnx.ai/onnx/operators, opsets 11 to 23.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce

import numpy as np
import onnx_ir as ir
import torch
import torch.nn.functional as F
from torch import Tensor

from qbench.graph.attributes import ints, real, text, whole


@dataclass(frozen=True)
class Call:
    """One node with the tensors that it reads. opset   of the default domain"""

    node: ir.Node
    inputs: Sequence[Tensor | None]
    opset: int

    def __getitem__(self, index: int) -> Tensor:
        found = self.get(index)
        if found is None:
            raise ValueError(f"input {index} is missing")
        return found

    def get(self, index: int) -> Tensor | None:
        return self.inputs[index] if index < len(self.inputs) else None

    def all(self) -> list[Tensor]:
        return [t for t in self.inputs if t is not None]

    def numbers(self, index: int, attribute: str) -> list[int] | None:
        """Whole numbers that older opsets give as an attribute and newer ones as an input."""
        if (given := self.get(index)) is not None:
            return [int(i) for i in given.reshape(-1).tolist()]
        return list(ints(self.node, attribute, ())) if attribute in self.node.attributes else None


def _padded(c: Call, x: Tensor, kernel: Sequence[int], fill: float) -> Tensor:
    """`x` with the explicit or automatic pads of a sliding window around its spatial axes."""
    axes = len(kernel)
    strides, dilations = ints(c.node, "strides", [1] * axes), ints(c.node, "dilations", [1] * axes)
    mode = text(c.node, "auto_pad", "NOTSET")
    pads = list(ints(c.node, "pads", [0] * 2 * axes))
    if mode.startswith("SAME"):
        need = [max((-(-n // s) - 1) * s + (k - 1) * d + 1 - n, 0) for n, s, k, d in zip(x.shape[2:], strides, kernel, dilations, strict=True)]
        small, large = [n // 2 for n in need], [n - n // 2 for n in need]
        pads = small + large if mode == "SAME_UPPER" else large + small
    flat = [p for a in reversed(range(axes)) for p in (pads[a], pads[a + axes])]
    return F.pad(x, flat, value=fill) if any(flat) else x


def _conv(c: Call) -> Tensor:
    w = c[1]
    axes = w.dim() - 2
    run = (F.conv1d, F.conv2d, F.conv3d)[axes - 1]
    return run(_padded(c, c[0], w.shape[2:], 0.0), w, c.get(2), list(ints(c.node, "strides", [1] * axes)), 0,
               list(ints(c.node, "dilations", [1] * axes)), whole(c.node, "group", 1))


def _conv_transpose(c: Call) -> Tensor:
    w = c[1]
    axes = w.dim() - 2
    if text(c.node, "auto_pad", "NOTSET") != "NOTSET" or "output_shape" in c.node.attributes:
        raise NotImplementedError("pads that follow from the output's shape")
    run = (F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d)[axes - 1]
    pads = ints(c.node, "pads", [0] * 2 * axes)
    out = run(c[0], w, c.get(2), list(ints(c.node, "strides", [1] * axes)), 0, list(ints(c.node, "output_padding", [0] * axes)),
              whole(c.node, "group", 1), list(ints(c.node, "dilations", [1] * axes)))
    for a in range(axes):
        out = out.narrow(a + 2, pads[a], out.shape[a + 2] - pads[a] - pads[a + axes])
    return out


def _gemm(c: Call) -> Tensor:
    a, b = (t.transpose(0, 1) if whole(c.node, name, 0) else t for t, name in ((c[0], "transA"), (c[1], "transB")))
    product = real(c.node, "alpha", 1.0) * (a @ b)
    return product if c.get(2) is None else product + real(c.node, "beta", 1.0) * c[2]


def _pool(c: Call) -> tuple[int, list[int], list[int], list[int]]:
    kernel = list(ints(c.node, "kernel_shape", ()))
    if whole(c.node, "ceil_mode", 0):
        raise NotImplementedError("ceil_mode")
    return len(kernel), kernel, list(ints(c.node, "strides", [1] * len(kernel))), list(ints(c.node, "dilations", [1] * len(kernel)))


def _max_pool(c: Call) -> Tensor:
    axes, kernel, strides, dilations = _pool(c)
    return (F.max_pool1d, F.max_pool2d, F.max_pool3d)[axes - 1](_padded(c, c[0], kernel, -torch.inf), kernel, strides, 0, dilations)


def _average_pool(c: Call) -> Tensor:
    axes, kernel, strides, dilations = _pool(c)
    if max(dilations) > 1:
        raise NotImplementedError("dilations")
    run = (F.avg_pool1d, F.avg_pool2d, F.avg_pool3d)[axes - 1]
    mean = run(_padded(c, c[0], kernel, 0.0), kernel, strides)
    if whole(c.node, "count_include_pad", 0):
        return mean
    return mean / run(_padded(c, torch.ones_like(c[0]), kernel, 0.0), kernel, strides)


def _clip(c: Call) -> Tensor:
    low, high = c.get(1), c.get(2)
    if c.opset < 11:
        return torch.clamp(c[0], real(c.node, "min", -np.inf), real(c.node, "max", np.inf))
    return torch.clamp(c[0], low, high) if low is not None or high is not None else c[0]


def _reduce(run: Callable[..., Tensor]) -> Callable[[Call], Tensor]:
    def reduced(c: Call) -> Tensor:
        axes = c.numbers(1, "axes")
        if not axes and whole(c.node, "noop_with_empty_axes", 0):
            return c[0]
        return run(c[0], axes or list(range(c[0].dim())), keepdim=bool(whole(c.node, "keepdims", 1)))
    return reduced


def _reshape(c: Call) -> Tensor:
    shape = [int(n) for n in c[1].tolist()]
    if not whole(c.node, "allowzero", 0):
        shape = [c[0].shape[i] if n == 0 else n for i, n in enumerate(shape)]
    return c[0].reshape(shape)


def _flatten(c: Call) -> Tensor:
    axis = whole(c.node, "axis", 1) % (c[0].dim() + 1)
    return c[0].reshape(int(np.prod(c[0].shape[:axis])), -1)


def _squeeze(c: Call) -> Tensor:
    axes = c.numbers(1, "axes")
    return c[0].squeeze(tuple(axes)) if axes else c[0].squeeze()


def _unsqueeze(c: Call) -> Tensor:
    x, axes = c[0], c.numbers(1, "axes") or []
    for axis in sorted(a % (x.dim() + len(axes)) for a in axes):
        x = x.unsqueeze(axis)
    return x


def _pad(c: Call) -> Tensor:
    if text(c.node, "mode", "constant") != "constant":
        raise NotImplementedError(f"mode {text(c.node, 'mode', '')}")
    x, pads = c[0], c.numbers(1, "pads") or []
    axes = c.numbers(3, "axes") or list(range(x.dim()))
    fill = c.get(2)
    around = [[0, 0] for _ in range(x.dim())]
    for i, axis in enumerate(axes):
        around[axis] = [pads[i], pads[i + len(axes)]]
    value = float(fill) if fill is not None else real(c.node, "value", 0.0)
    return F.pad(x, [p for pair in reversed(around) for p in pair], value=value)


def _slice(c: Call) -> Tensor:
    x, starts, ends = c[0], c.numbers(1, "starts") or [], c.numbers(2, "ends") or []
    axes, steps = c.numbers(3, "axes") or list(range(len(starts))), c.numbers(4, "steps") or [1] * len(starts)
    for axis, start, end, step in zip(axes, starts, ends, steps, strict=True):
        x = x.index_select(axis, torch.tensor(range(*slice(start, None if step < 0 and end < -x.shape[axis] else end, step).indices(x.shape[axis]))))
    return x


def _gather(c: Call) -> Tensor:
    axis, where = whole(c.node, "axis", 0) % c[0].dim(), c[1]
    where = torch.where(where < 0, where + c[0].shape[axis], where)
    return c[0].index_select(axis, where.reshape(-1).long()).reshape(*c[0].shape[:axis], *where.shape, *c[0].shape[axis + 1:])


def _split(c: Call) -> tuple[Tensor, ...]:
    axis = whole(c.node, "axis", 0)
    sizes, parts = c.numbers(1, "split"), len(c.node.outputs)
    return torch.split(c[0], sizes or -(-c[0].shape[axis] // parts), axis)


def _softmax(run: Callable[..., Tensor]) -> Callable[[Call], Tensor]:
    def soft(c: Call) -> Tensor:
        if c.opset < 13:
            axis = whole(c.node, "axis", 1) % c[0].dim()
            return run(c[0].flatten(axis), -1).reshape(c[0].shape)
        return run(c[0], whole(c.node, "axis", -1))
    return soft


def _layer_norm(c: Call) -> Tensor:
    axis = whole(c.node, "axis", -1) % c[0].dim()
    return F.layer_norm(c[0], c[0].shape[axis:], c[1], c.get(2), real(c.node, "epsilon", 1e-5))


def _batch_norm(c: Call) -> Tensor:
    return F.batch_norm(c[0], c[3], c[4], c[1], c[2], eps=real(c.node, "epsilon", 1e-5))


def _prelu(c: Call) -> Tensor:
    return torch.where(c[0] < 0, c[0] * c[1], c[0])


def _cast(c: Call) -> Tensor:
    kind = ir.DataType(whole(c.node, "to", 1))
    return c[0].to(getattr(torch, str(np.dtype(kind.numpy())).replace("bool_", "bool")))


def _constant(c: Call) -> Tensor:
    value = c.node.attributes.get("value")
    if value is None:
        raise NotImplementedError("a constant that is no tensor")
    return torch.from_numpy(value.as_tensor().numpy().copy())


def _map(run: Callable[[Tensor], Tensor]) -> Callable[[Call], Tensor]:
    return lambda c: run(c[0])


def _pair(run: Callable[[Tensor, Tensor], Tensor]) -> Callable[[Call], Tensor]:
    return lambda c: run(c[0], c[1])


OPERATORS: dict[str, Callable[[Call], Tensor | Sequence[Tensor]]] = {
    "Conv": _conv, "ConvTranspose": _conv_transpose, "Gemm": _gemm, "MatMul": _pair(torch.matmul),
    "MaxPool": _max_pool, "AveragePool": _average_pool,
    "GlobalAveragePool": lambda c: c[0].mean(list(range(2, c[0].dim())), keepdim=True),
    "GlobalMaxPool": lambda c: c[0].amax(list(range(2, c[0].dim())), keepdim=True),
    "Relu": _map(torch.relu), "Clip": _clip, "Sigmoid": _map(torch.sigmoid), "Tanh": _map(torch.tanh), "Erf": _map(torch.erf),
    "Exp": _map(torch.exp), "Log": _map(torch.log), "Sqrt": _map(torch.sqrt), "Abs": _map(torch.abs), "Neg": _map(torch.neg),
    "Reciprocal": _map(torch.reciprocal), "Softplus": _map(F.softplus), "Mish": _map(F.mish), "HardSwish": _map(F.hardswish),
    "Identity": _map(lambda x: x), "Dropout": _map(lambda x: x),
    "HardSigmoid": lambda c: torch.clamp(real(c.node, "alpha", 0.2) * c[0] + real(c.node, "beta", 0.5), 0.0, 1.0),
    "LeakyRelu": lambda c: F.leaky_relu(c[0], real(c.node, "alpha", 0.01)), "Elu": lambda c: F.elu(c[0], real(c.node, "alpha", 1.0)),
    "Gelu": lambda c: F.gelu(c[0], approximate=text(c.node, "approximate", "none")), "PRelu": _prelu,
    "Add": _pair(torch.add), "Sub": _pair(torch.sub), "Mul": _pair(torch.mul), "Div": _pair(torch.div), "Pow": _pair(torch.pow),
    "Max": lambda c: reduce(torch.maximum, c.all()), "Min": lambda c: reduce(torch.minimum, c.all()), "Sum": lambda c: reduce(torch.add, c.all()),
    "ReduceMean": _reduce(torch.mean), "ReduceSum": _reduce(torch.sum), "ReduceMax": _reduce(torch.amax), "ReduceMin": _reduce(torch.amin),
    "Reshape": _reshape, "Flatten": _flatten, "Transpose": lambda c: c[0].permute(ints(c.node, "perm", range(c[0].dim())[::-1])),
    "Squeeze": _squeeze, "Unsqueeze": _unsqueeze, "Concat": lambda c: torch.cat(c.all(), whole(c.node, "axis", 0)), "Pad": _pad, "Slice": _slice,
    "Gather": _gather, "Split": _split, "Expand": lambda c: c[0] * torch.ones([int(n) for n in c[1].tolist()], dtype=c[0].dtype),
    "Equal": _pair(torch.eq), "Where": lambda c: torch.where(c[0], c[1], c[2]),
    "Shape": lambda c: torch.tensor(c[0].shape), "Cast": _cast, "Constant": _constant,
    "Softmax": _softmax(torch.softmax), "LogSoftmax": _softmax(torch.log_softmax), "LayerNormalization": _layer_norm, "BatchNormalization": _batch_norm,
}
