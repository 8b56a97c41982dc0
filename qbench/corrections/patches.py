"""A layer at some of its output positions as one matrix product: patches [groups, positions, inputs * taps] times weights.

Convolutions of one to three dimensions, transposed ones, Gemm and MatMul look alike this way, so that what learns on layers
knows none of their attributes.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import numpy as np
from numpy.typing import NDArray

from qbench.corrections.anchors import Anchor, Array, data_of
from qbench.graph.attributes import ints, real, text

Indices = NDArray[np.int64]


@dataclass(frozen=True)
class Window:
    """Where the taps of a convolution lie, axis by axis. before: padding in front"""

    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    before: tuple[int, ...]
    source: tuple[int, ...]
    target: tuple[int, ...]
    transposed: bool


def window(anchor: Anchor, source: tuple[int, ...], target: tuple[int, ...]) -> Window:
    """The window of a Conv or ConvTranspose that reads `source` and writes `target`, sizes without batch and channels."""
    kernel = tuple(int(k) for k in data_of(anchor.weight).shape[2:])
    axes, node = len(kernel), anchor.node
    strides, dilations = ints(node, "strides", [1] * axes), ints(node, "dilations", [1] * axes)
    auto, transposed = text(node, "auto_pad", "NOTSET"), anchor.op == "ConvTranspose"
    before = list(ints(node, "pads", [0] * (2 * axes))[:axes])
    if auto.startswith("SAME") or (transposed and "output_shape" in node.attributes):
        extra = ints(node, "output_padding", [0] * axes)
        for a in range(axes):
            reach = dilations[a] * (kernel[a] - 1) + 1
            total = (strides[a] * (source[a] - 1) + extra[a] + reach - target[a] if transposed
                     else max(strides[a] * (target[a] - 1) + reach - source[a], 0))
            half = max(total, 0) // 2
            more_behind = auto == "SAME_UPPER"
            before[a] = half if more_behind else max(total, 0) - half
    elif auto == "VALID":
        before = [0] * axes
    return Window(kernel, tuple(strides), tuple(dilations), tuple(before), source, target, transposed)


def taps(w: Window, positions: Indices) -> Indices:
    """Input position that each tap reads at each output position, int64 [positions, taps]; prod(source) where it reads padding."""
    at = np.unravel_index(positions, w.target)
    outside = np.zeros((len(positions), 1), bool)
    flat = np.zeros((len(positions), 1), np.int64)
    for axis, size in enumerate(w.source):
        tap = np.arange(w.kernel[axis]) * w.dilations[axis] - w.before[axis]
        if w.transposed:
            read, rest = np.divmod(at[axis][:, None] - tap, w.strides[axis])
            bad = (rest != 0) | (read < 0) | (read >= size)
        else:
            read = at[axis][:, None] * w.strides[axis] + tap
            bad = (read < 0) | (read >= size)
        count = flat.shape[1] * read.shape[1]
        outside = (outside[:, :, None] | bad[:, None, :]).reshape(len(positions), count)
        flat = (flat[:, :, None] * size + np.where(bad, 0, read)[:, None, :]).reshape(len(positions), count)
    return np.where(outside, prod(w.source), flat)


def positions_of(anchor: Anchor, source: tuple[int, ...], target: tuple[int, ...]) -> int:
    """Output positions of one sample; `source` and `target` with batch and channels."""
    return prod(target[2:] if anchor.channel_axis == 1 else source[1:-1])


def patches(anchor: Anchor, x: Array, positions: Indices, target: tuple[int, ...]) -> Array:
    """What the layer reads at `positions` of one sample: float32 [groups, positions, inputs / groups * taps].

    x        [channels, ...] of a convolution, [..., channels] otherwise
    target   shape of the layer's output, with batch and channels
    """
    if anchor.channel_axis != 1:
        return np.ascontiguousarray(x.reshape(-1, anchor.inputs)[positions][None])
    w = window(anchor, x.shape[1:], target[2:])
    padded = np.concatenate([x.reshape(anchor.inputs, -1), np.zeros((anchor.inputs, 1), x.dtype)], axis=1)
    read = padded[:, taps(w, positions)].reshape(anchor.groups, anchor.inputs // anchor.groups, len(positions), -1)
    return read.transpose(0, 2, 1, 3).reshape(anchor.groups, len(positions), -1)


def matrix(anchor: Anchor, weight: Array) -> Array:
    """A weight, or an array of its shape, as [groups, inputs / groups * taps, outputs / groups]."""
    canonical = anchor.canonical(weight)
    g, i, o, t = canonical.shape
    return canonical.transpose(0, 1, 3, 2).reshape(g, i * t, o)


def from_matrix(anchor: Anchor, data: Array) -> Array:
    """The inverse of `matrix`."""
    g, i = anchor.groups, anchor.inputs // anchor.groups
    return anchor.original(data.reshape(g, i, -1, data.shape[2]).transpose(0, 1, 3, 2))


def bias_row(anchor: Anchor) -> Array:
    """The bias as [groups, 1, outputs / groups]; zeros where there is none."""
    if anchor.bias is None:
        return np.zeros((anchor.groups, 1, anchor.outputs // anchor.groups), np.float32)
    factor = factor_of(anchor, "beta") if anchor.op == "Gemm" else 1.0
    return (data_of(anchor.bias.value) * np.float32(factor)).reshape(anchor.groups, 1, -1)


def factor_of(anchor: Anchor, name: str) -> float:
    """`alpha` or `beta` of a Gemm; 1 for every other anchor."""
    return real(anchor.node, name, 1.0) if anchor.op == "Gemm" else 1.0
