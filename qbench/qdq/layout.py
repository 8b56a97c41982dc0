"""Which values of a weight share a scale: the axis, or the blocks, of every operator that has weights.

    operator             weight                          output channels   input channels
    Conv                 [out, in / groups, ...]         axis 0            axis 1
    ConvTranspose        [in, out / groups, ...]         axis 1            axis 0
    Gemm                 [in, out], transB [out, in]     the one           the other
    MatMul(x, W)         [..., in, out]                  last              last but one
    MatMul(W, x)         [..., out, in]                  last but one      last

onnxruntime 1.32 fuses a DequantizeLinear into an integer Conv or MatMul without asking whether its scales have a form that the
integer kernel takes: blocks, columns of a batch of matrices, rows of a left operand. It then fails at the first run. Those
weights are stored in another shape, and a Reshape between the two keeps it off.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import onnx_ir as ir

from qbench.graph.attributes import whole
from qbench.graph.kernels import constant
from qbench.plan import Granularity
from qbench.target import QuantScheme


@dataclass(frozen=True, slots=True)
class Slices:
    """How a weight is cut into slices, each with a scale of its own.

    view      shape in which the slices can be seen: along its axes `kept` the scale changes, along the others it does not
    stored    shape of the codes in the file; a Reshape leads back where the weight has another
    scales    shape of the scales in the file; () for one scale
    axis      of `stored`, None for one scale
    block     values along `axis` that share a scale; 0: one scale per index, without blocks
    taps      times that each scale is repeated in the file, where ONNX wants one per kernel position
    groups    of a transposed convolution whose groups share the scales: output channel c has scale c modulo len(scales)
    inputs    the scale changes along the input channels, so that an output has no single step of its sum
    """

    view: tuple[int, ...]
    kept: tuple[int, ...]
    stored: tuple[int, ...]
    scales: tuple[int, ...]
    axis: int | None = None
    block: int = 0
    taps: int = 1
    groups: int = 1
    inputs: bool = False


@dataclass(frozen=True, slots=True)
class Weight:
    """The weight operand of a node.

    index     its input
    left      it is the first factor of a product: its rows are the output channels
    transposed   output channels come first (Gemm)
    groups    of a convolution
    channels  output channels; 1 for a vector, whose product has no such axis
    """

    op: str
    index: int
    shape: tuple[int, ...]
    left: bool
    transposed: bool
    groups: int
    channels: int


@dataclass(frozen=True, slots=True)
class Cut:
    """How a weight is cut, and why not finer: each text is "" or a reason."""

    slices: Slices
    per_tensor: str = ""           # one scale, although the plan wants one per channel
    shared: str = ""               # output channels share scales in part
    per_channel: str = ""          # no blocks, although the plan wants them


def weight_of(node: ir.Node) -> Weight | None:
    """The constant float32 weight of an anchor; None when it has none."""
    if node.op_type not in ("Conv", "ConvTranspose", "Gemm", "MatMul"):
        return None
    for index in (1, 0) if node.op_type in ("Gemm", "MatMul") else (1,):
        value = node.inputs[index]
        if value is None or not constant(value) or value.dtype != ir.DataType.FLOAT or value.const_value is None:
            continue
        shape = tuple(value.const_value.numpy().shape)
        left = index == 0
        transposed = node.op_type == "Gemm" and bool(whole(node, "transA" if left else "transB", 0)) != left
        groups = whole(node, "group", 1) if node.op_type.startswith("Conv") else 1
        found = Weight(node.op_type, index, shape, left, transposed, groups, 1)
        axis = channel_axis(found)
        channels = 1 if axis is None else shape[axis] * (groups if node.op_type == "ConvTranspose" else 1)
        return Weight(node.op_type, index, shape, left, transposed, groups, channels)
    return None


def channel_axis(weight: Weight) -> int | None:
    """Axis of the output channels; None for a vector."""
    if weight.op in ("Conv", "ConvTranspose"):
        return int(weight.op == "ConvTranspose")
    if len(weight.shape) < 2:
        return None
    if weight.op == "Gemm":
        return 0 if weight.transposed else 1
    return len(weight.shape) - (2 if weight.left else 1)


def cut(weight: Weight, granularity: Granularity, scheme: QuantScheme) -> Cut:
    """The slices of `weight` at the finest granularity that the plan asks for and the layer allows."""
    if granularity in (Granularity.GLOBAL, Granularity.PER_LAYER) or not prod(weight.shape):
        return Cut(per_tensor(weight.shape))
    axis, why_not = scheme.axis_of(weight.op), ""
    if scheme.weight_per_channel and axis == "tensor":
        return Cut(per_tensor(weight.shape), f"the target takes one scale per weight tensor of {weight.op}")
    if axis == "input":
        return Cut(Slices(weight.shape, (0,), weight.shape, weight.shape[:1], 0, inputs=True))
    if granularity is Granularity.PER_GROUP:
        blocks = per_group(weight, scheme.weight_block)
        if isinstance(blocks, Slices):
            return Cut(blocks)
        why_not = blocks
    if not scheme.weight_per_channel:
        return Cut(per_tensor(weight.shape), "the target takes one scale per weight tensor", per_channel=why_not)
    if channel_axis(weight) is None:
        return Cut(per_tensor(weight.shape), "a vector: its product has no channels", per_channel=why_not)
    slices = per_channel(weight)
    if slices.groups > 1:
        return Cut(slices, shared=f"grouped {weight.op}: one axis cannot hold a scale per output channel, so its {slices.groups} groups "
                                  "share one per position", per_channel=why_not)
    return Cut(slices, per_channel=why_not)


def per_tensor(shape: tuple[int, ...]) -> Slices:
    return Slices(shape, (), shape, ())


def per_channel(weight: Weight) -> Slices:
    """One scale per output channel, as far as one axis can say so (BUG case B09)."""
    shape, axis, groups = weight.shape, channel_axis(weight), 1
    assert axis is not None
    if weight.op == "ConvTranspose" and weight.groups > 1:
        if shape[0] == weight.groups and shape[1] == 1:
            axis = 0                                  # depthwise: input channel c makes output channel c
        else:
            groups = weight.groups
    if weight.op == "MatMul" and weight.left:
        return Slices(shape, (axis,), (*shape, 1), (shape[axis],), axis)
    if weight.op == "MatMul" and len(shape) > 2:
        rows = (prod(shape[:-1]), shape[-1])
        return Slices(rows, (1,), rows, (shape[-1],), 1)
    return Slices(shape, (axis,), shape, (shape[axis],), axis, groups=groups)


def per_group(weight: Weight, block: int) -> Slices | str:
    """One scale per output channel and `block` input channels, or the reason why there are no blocks."""
    shape, op = weight.shape, weight.op
    if block < 1:
        return "the target has no per-group weights at this precision"
    if len(shape) < 2:
        return "a vector: its product has no channels"
    inputs = _inputs(weight)
    if inputs == 1 and weight.groups > 1:
        return "depthwise: each output channel has one input channel"
    if inputs % block:
        return f"its {inputs} input channels are not divisible by blocks of {block}"
    count, taps = inputs // block, prod(shape[2:])
    if count == 1 and op != "ConvTranspose":
        return f"its {inputs} input channels are one block of {block}"
    if op == "Conv":
        return Slices((shape[0], count, block * taps), (0, 1), (shape[0], inputs * taps), (shape[0], count), 1, block * taps)
    if op == "ConvTranspose":
        blocks = shape[0] // block
        return Slices((blocks, block, shape[1], taps), (0, 2), shape, (blocks, *shape[1:]), 0, block, taps=taps)
    if op == "Gemm":
        if weight.transposed:
            return Slices((shape[0], count, block), (0, 1), shape, (shape[0], count), 1, block)
        return Slices((count, block, shape[1]), (0, 2), shape, (count, shape[1]), 0, block)
    batch, axes = shape[:-2], tuple(range(len(shape) - 2))
    if weight.left:
        view = (*batch, shape[-2], count, block)
        return Slices(view, (*axes, len(axes), len(axes) + 1), view, (*batch, shape[-2], count, 1), len(view) - 1, block)
    view = (*batch, count, block, shape[-1])
    return Slices(view, (*axes, len(axes), len(axes) + 2), view, (*batch, count, 1, shape[-1]), len(view) - 2, block)


def _inputs(weight: Weight) -> int:
    """Input channels that one output channel reads."""
    if weight.op == "ConvTranspose":
        return weight.shape[0] // weight.groups
    if weight.op == "Conv":
        return weight.shape[1]
    axis = channel_axis(weight)
    assert axis is not None
    matrix = weight.shape[-2:]
    return matrix[1 - (axis - len(weight.shape) + 2)]
