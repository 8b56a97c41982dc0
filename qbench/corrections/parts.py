"""Kernels cut out of a Q/DQ model, looked into and edited, so that a correction sees its own effect before the plan holds it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from qbench.corrections.anchors import Anchor, Array, anchor_of, anchors, data_of, set_data
from qbench.corrections.patches import factor_of
from qbench.evaluation import extract, loaded
from qbench.graph.kernels import constant
from qbench.graph.operators import ANCHORS
from qbench.network import Kernel
from qbench.qdq.weights import INT32_MAX
from qbench.walk import Walk


@dataclass(frozen=True)
class Place:
    """An integer kernel and its anchor.

    float_input    activation that the float model's anchor reads
    stored_input   what the Q/DQ model's anchor reads in its place: behind a pair
    stored_weight  value of the Q/DQ model that it reads as its weight: behind a DequantizeLinear
    """

    kernel: Kernel
    anchor: Anchor
    float_input: str
    stored_input: str
    stored_weight: str


def places(walk: Walk) -> dict[str, Place]:
    """Kernel name -> place, of every kernel that runs its weights in integers."""
    found = anchors(walk.prepared.model.graph)
    written = {str(n.name): n for n in walk.written.model.graph}
    made = {}
    for kernel in walk.network.kernels:
        anchor = found.get(kernel.nodes[0])
        if anchor is None or walk.in_float(kernel):
            continue
        (x, w), read = written[anchor.name].inputs[:2], anchor.node.inputs[0]
        if x is not None and w is not None and read is not None and not w.is_initializer():
            made[kernel.name] = Place(kernel, anchor, str(read.name), str(x.name), str(w.name))
    return made


def left_out(walk: Walk) -> dict[str, str]:
    """Integer kernels with a weight that `places` does not know -> why."""
    known, reasons = places(walk), {}
    nodes = {str(n.name): n for n in walk.prepared.model.graph}
    for kernel in walk.network.kernels:
        node = nodes.get(kernel.nodes[0])
        if node is not None and node.op_type in ANCHORS and kernel.name not in known and not walk.in_float(kernel) and any(
                v is not None and constant(v) for v in node.inputs[:2]):
            why = anchor_of(node)
            reasons[kernel.name] = why if isinstance(why, str) else "its weight is stored in float"
    return reasons


def reads(walk: Walk, place: Place) -> list[Array]:
    """What the quantized anchor reads on the quantized network's activations, one array a chunk."""
    tensor = place.float_input
    if place.stored_input == walk.written.stored[tensor]:            # whole already, as the kernel before left it
        return [chunk[tensor] for chunk in walk.quantized_values]
    raw = walk.written.raw[tensor]
    part = extract(walk.written.model, [raw], [place.stored_input])
    assert part is not None, "a pair reads one activation"
    with loaded(part, walk.threads, walk.simulate) as session:
        return [session.run({raw: chunk[tensor]})[place.stored_input] for chunk in walk.quantized_values]


def stored_weight(walk: Walk, place: Place) -> Array:
    """The quantized weight in reals."""
    part = extract(walk.written.model, [], [place.stored_weight])
    assert part is not None, "a weight depends on no activation"
    with loaded(part, walk.threads, True) as session:
        return session.run({})[place.stored_weight]


def mean_of_samples(chunks: list[Array]) -> Array:
    """Mean over the first axis of all chunks, which are equally long; float32, the axis kept with length 1."""
    total = sum((c.sum(axis=0, keepdims=True, dtype=np.float64) for c in chunks), np.zeros(()))
    return (total / sum(len(c) for c in chunks)).astype(np.float32)


def response(walk: Walk, place: Place, weight: Array, x: Array) -> Array:
    """Mean of each output channel that the anchor makes of `x` with this weight and without a bias, float64 [outputs]."""
    anchor = place.anchor
    made = str(anchor.node.outputs[0].name)
    part = extract(walk.prepared.model, [place.float_input], [made])
    assert part is not None, "an anchor reads one activation"
    for value in (*part.graph.inputs, *part.graph.outputs):
        value.shape = None                                           # of one sample here, of a chunk in the walk
    node = node_named(part, anchor.name)
    for index, held in enumerate(node.inputs):
        if index and held is not None:
            set_data(held, weight if index == 1 else np.zeros_like(data_of(held)))
    with loaded(part, walk.threads, True) as session:
        return anchor.mean_of_channels(session.run({place.float_input: x})[made])


def with_bias(walk: Walk, part: ir.Model, place: Place, shift: Array) -> ir.Model:
    """The quantized kernel `part`, changed: `shift` [outputs] is added to the anchor's bias."""
    bias = place.anchor.bias
    held = None if bias is None else node_named(part, str(bias.node.name)).inputs[bias.index]
    maker = None if held is None else held.producer()
    if bias is not None and maker is not None and maker.inputs[0] is not None and maker.inputs[0].dtype == ir.DataType.INT32:
        codes, scale = maker.inputs[0], maker.inputs[1]
        assert scale is not None
        shape = data_of(codes).shape
        total = np.broadcast_to(data_of(bias.value).reshape(-1) + shift / factor_of(place.anchor, "beta"), shift.shape)
        exact = (total / data_of(scale)).reshape(shape)                      # rounded as the writer will round it
        set_data(codes, np.clip(np.rint(exact), -INT32_MAX, INT32_MAX).astype(np.int32))
        return part
    return _shifted(part, walk.written.raw[str(place.anchor.output.name)], place.anchor.per_channel(shift))


def _shifted(part: ir.Model, output: str, shift: Array) -> ir.Model:
    """`part`, changed: value `output` is `shift` more, whoever reads it."""
    value = next(v for n in part.graph for v in n.outputs if v.name == output)
    name, maker = f"{output}_shift", value.producer()
    assert maker is not None
    held = ir.Value(name=name, const_value=ir.tensor(shift.astype(np.float32), name=name), type=ir.TensorType(ir.DataType.FLOAT),
                    shape=ir.Shape(shift.shape))
    part.graph.register_initializer(held)
    readers = list(value.uses())
    moved = ir.Value(name=f"{output}_shifted", type=value.type, shape=value.shape)
    part.graph.insert_after(maker, ir.node("Add", [value, held], outputs=[moved], name=f"{name}_Add"))
    for reader, index in readers:
        reader.replace_input_with(index, moved)
    if value.is_graph_output():
        position = next(i for i, v in enumerate(part.graph.outputs) if v is value)
        value.name, moved.name = f"{output}_before", output
        part.graph.outputs[position] = moved
    return part


@dataclass(frozen=True)
class Codes:
    """Of a quantized weight, each in the shape of the weight: codes (float64), scales, zero points."""

    codes: Array
    scales: Array
    zero_points: Array


def codes_of(walk: Walk, place: Place) -> Codes:
    """Whatever the form in which they are stored: per channel, in blocks, packed."""
    part = extract(walk.written.model, [], [place.stored_weight])
    assert part is not None, "a weight depends on no activation"
    held = _codes_in(part, place.stored_weight)
    stored, shape = data_of(held), data_of(place.anchor.weight).shape
    seen = []
    for codes in (np.zeros_like(stored), np.ones_like(stored)):
        set_data(held, codes)
        with loaded(part, walk.threads, True) as session:
            seen.append(session.run({})[place.stored_weight].astype(np.float64))
    scales = seen[1] - seen[0]
    return Codes(stored.astype(np.float64).reshape(shape), scales, np.rint(-seen[0] / scales))


def with_codes(part: ir.Model, place: Place, offsets: Array) -> ir.Model:
    """The quantized kernel `part`, changed: `offsets`, in the shape of the weight, are added to the codes of the anchor's weight."""
    held = _codes_in(part, place.stored_weight)
    codes = data_of(held)
    set_data(held, (codes.astype(np.int64) + offsets.reshape(codes.shape)).astype(codes.dtype))
    return part


def _codes_in(part: ir.Model, weight: str) -> ir.Value:
    """The initializer with the codes of `weight`, a value that a DequantizeLinear, or a Reshape behind one, makes."""
    node = next(n for n in part.graph for v in n.outputs if v.name == weight)
    while node.op_type != "DequantizeLinear":
        before = node.inputs[0]
        maker = None if before is None else before.producer()
        assert maker is not None, "integers reach a weight through a DequantizeLinear"
        node = maker
    assert node.inputs[0] is not None
    return node.inputs[0]


def node_named(model: ir.Model, name: str) -> ir.Node:
    return next(n for n in model.graph if n.name == name)

