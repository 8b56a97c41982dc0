"""Convolutions."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir

from qbench.graph.attributes import ints, text, whole
from qbench.rewriting import Exactness
from qbench.targets.rewrites.registry import rewrite
from qbench.targets.rewrites.values import constant, data, indices, node_of, shape, sliced, source


@rewrite("conv1d-to-conv", "Conv", becomes="Reshape, 2-D Conv, Reshape", exactness=Exactness.N)
def conv1d_to_conv(op: Any, y: ir.Value) -> ir.Value | None:
    """A convolution with one spatial axis becomes one with two, the first of height 1."""
    node, x, weight = node_of(y), source(y), data(source(y, 1))
    sizes, out = shape(x), shape(y)
    if x is None or sizes is None or out is None or len(sizes) != 3 or weight is None or text(node, "auto_pad", "NOTSET") != "NOTSET":
        return None
    pads = ints(node, "pads", (0, 0))
    wide = op.Conv(op.Reshape(x, indices(op, [*sizes[:2], 1, sizes[2]])), constant(op, weight[:, :, None], x, "weight"), *node.inputs[2:],
                   kernel_shape=[1, weight.shape[2]], strides=[1, *ints(node, "strides", (1,))], dilations=[1, *ints(node, "dilations", (1,))],
                   pads=[0, pads[0], 0, pads[1]], group=whole(node, "group", 1))
    made: ir.Value = op.Reshape(wide, indices(op, out))
    return made


@rewrite("conv3d-to-conv", "Conv", becomes="a sum of 2-D convolutions over the frames", exactness=Exactness.N)
def conv3d_to_conv(op: Any, y: ir.Value) -> ir.Value | None:
    """A convolution over time, height and width of one clip becomes a sum of 2-D convolutions with the frames as batch, one for each step of
    the kernel in time. The cost grows with that depth."""
    node, x, weight = node_of(y), source(y), data(source(y, 1))
    sizes, out = shape(x), shape(y)
    if (x is None or sizes is None or out is None or len(sizes) != 5 or sizes[0] != 1 or weight is None or text(node, "auto_pad", "NOTSET") != "NOTSET"):
        return None
    pads, strides, dilations = ints(node, "pads", (0,) * 6), ints(node, "strides", (1,) * 3), ints(node, "dilations", (1,) * 3)
    frames: Any = op.Reshape(op.Transpose(op.Reshape(x, indices(op, [sizes[1], sizes[2], sizes[3] * sizes[4]])), perm=[1, 0, 2]),
                             indices(op, [sizes[2], sizes[1], sizes[3], sizes[4]]))
    zeros = [constant(op, np.zeros((p, sizes[1], *sizes[3:])), x, "zeros") if p else None for p in (pads[0], pads[3])]
    if any(z is not None for z in zeros):
        frames = op.Concat(*[v for v in (zeros[0], frames, zeros[1]) if v is not None], axis=0)
    total: Any = None
    for k in range(weight.shape[2]):
        start = k * dilations[0]
        part = sliced(op, frames, 0, start, start + (out[2] - 1) * strides[0] + 1, strides[0])
        extra = list(node.inputs[2:]) if k == 0 else []
        term = op.Conv(part, constant(op, weight[:, :, k], x, "weight"), *extra, kernel_shape=list(weight.shape[3:]), strides=list(strides[1:]),
                       dilations=list(dilations[1:]), pads=[pads[1], pads[2], pads[4], pads[5]], group=whole(node, "group", 1))
        total = term if total is None else op.Add(total, term)
    made: ir.Value = op.Reshape(op.Transpose(op.Reshape(total, indices(op, [out[2], out[1], out[3] * out[4]])), perm=[1, 0, 2]), indices(op, out))
    return made


@rewrite("transposed-conv-stride", "ConvTranspose", becomes="zeros between the pixels, then Conv", exactness=Exactness.N,
         source="Dumoulin and Visin 2016 (arXiv 1603.07285), relationship 13")
def transposed_conv_stride(op: Any, y: ir.Value) -> ir.Value | None:
    """A ConvTranspose of a stride that is no power of two becomes a Conv of stride 1 over an image with zeros between its pixels."""
    node, x, weight = node_of(y), source(y), data(source(y, 1))
    sizes, strides, group = shape(x), ints(node, "strides", (1, 1)), whole(node, "group", 1)
    if (x is None or sizes is None or len(sizes) != 4 or weight is None or group != 1 or all(s in (1, 2, 4, 8) for s in strides)
            or set(ints(node, "dilations", (1, 1))) != {1} or text(node, "auto_pad", "NOTSET") != "NOTSET" or "output_shape" in node.attributes):
        return None
    n, c, h, w = sizes
    extra, pads, kernel = ints(node, "output_padding", (0, 0)), ints(node, "pads", (0,) * 4), weight.shape[2:]
    edges = [kernel[0] - 1 - pads[0], kernel[1] - 1 - pads[1], kernel[0] - 1 - pads[2] + extra[0], kernel[1] - 1 - pads[3] + extra[1]]
    if min(edges) < 0:
        return None
    (down, along), like = strides, x
    wide = op.Concat(op.Reshape(x, indices(op, [n * c, h, w, 1])), constant(op, np.zeros((n * c, h, w, along - 1)), like, "zeros"), axis=3)
    rows = op.Reshape(wide, indices(op, [n * c, h, 1, w * along]))
    tall = op.Reshape(op.Concat(rows, constant(op, np.zeros((n * c, h, down - 1, w * along)), like, "zeros"), axis=2), indices(op, [n, c, h * down, w * along]))
    image = sliced(op, sliced(op, tall, 2, 0, (h - 1) * down + 1), 3, 0, (w - 1) * along + 1)
    turned = weight.transpose(1, 0, 2, 3)[:, :, ::-1, ::-1]
    made: ir.Value = op.Conv(image, constant(op, turned, like, "weight"), *node.inputs[2:], kernel_shape=list(kernel), pads=edges, strides=[1, 1])
    return made


def _through(op: Any, x: Any, w1: Any, b1: Any, w2: Any) -> Any:
    return op.Conv(op.Relu(op.Conv(x, w1, b1, _outputs=["first"])), w2, _allow_other_inputs=True, _outputs=["y"])


CHANNELS = 16
"""Multiple of channels that arrays of 16 lanes read whole."""


@rewrite("pad-channels", "Conv", becomes="zero filters up to a multiple of 16 channels", exactness=Exactness.E, tolerance=1e-6, pattern=[_through])
def pad_channels(op: Any, y: ir.Value, x: ir.Value, w1: ir.Value, b1: ir.Value, w2: ir.Value, first: ir.Value) -> ir.Value | None:
    """The channels between Conv, Relu and Conv are filled up with zero filters to a multiple of 16. The zeros add nothing; a host's kernel may
    sum in another order then. The wasted MACs are counted in the price."""
    inner, outer = node_of(first), node_of(y)
    a, bias, b = data(w1), data(b1), data(w2)
    if a is None or bias is None or b is None or a.shape[0] % CHANNELS == 0 or whole(inner, "group", 1) != 1 or whole(outer, "group", 1) != 1:
        return None
    missing = -a.shape[0] % CHANNELS
    grown = op.Conv(x, constant(op, np.concatenate([a, np.zeros((missing, *a.shape[1:]))]), x, "weight"),
                    constant(op, np.concatenate([bias, np.zeros(missing)]), x, "bias"), **{k: v.value for k, v in inner.attributes.items()})
    weight = np.concatenate([b, np.zeros((b.shape[0], missing, *b.shape[2:]))], 1)
    made: ir.Value = op.Conv(op.Relu(grown), constant(op, weight, x, "weight"), *outer.inputs[2:], **{k: v.value for k, v in outer.attributes.items()})
    return made
