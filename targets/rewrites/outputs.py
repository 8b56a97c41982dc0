"""Types and tails: what a chip's compiler cannot write out."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir

from qbench.rewriting import Exactness
from qbench.targets.rewrites.registry import rewrite, whole_graph
from qbench.targets.rewrites.values import attributes, axis_of, constant, data, node_of, shape, source

BYTE_BUG = "rknn-toolkit2 2.5.0 aborts with 'Not Support Dtype' at a Cast to a type of 8 bits at the end of a network"
NARROW = {ir.DataType.UINT8: (0, 255), ir.DataType.INT8: (-128, 127), ir.DataType.INT16: (-2 ** 15, 2 ** 15 - 1), ir.DataType.UINT16: (0, 2 ** 16 - 1)}
MOVES = {"Concat", "Reshape", "Squeeze", "Unsqueeze", "Transpose", "Flatten", "Identity", "Cast"}
LOWEST = -1e4
"""Largest finite mark that FP16 holds with room to add scores to it."""
ON_HOST = frozenset({"NonMaxSuppression", "TopK", "NonZero", "Unique", "Compress", "RoiAlign"})
"""Operators of post-processing that no NPU runs (the operator tables of `qbench.targets.rules`)."""


@whole_graph("widen-outputs", "Cast", becomes="the same values in the wider type that is cast", exactness=Exactness.E, hazards={"rknn": BYTE_BUG})
def widen_outputs(model: ir.Model) -> None:
    """A Cast of indices to 8 or 16 bits at the end of a network goes: the output keeps its name and values, its type is wider. Only where the
    indices, from an ArgMax, fit the narrow type."""
    for node in list(model.graph):
        out = node.outputs[0]
        if node.op_type != "Cast" or not out.is_graph_output() or out.uses() or out.dtype not in NARROW:
            continue
        x = node.inputs[0]
        if x is None or x.is_graph_output() or not _below(x, NARROW[out.dtype][1]):
            continue
        name = out.name
        ir.convenience.replace_all_uses_with(out, x, replace_graph_outputs=True)
        model.graph.remove(node, safe=True)
        x.name = name


def _below(value: ir.Value, highest: int) -> bool:
    """Whether `value` holds indices of an ArgMax or ArgMin up to `highest`, moved and joined only."""
    node = value.producer()
    if node is None:
        return False
    if node.op_type in ("ArgMax", "ArgMin"):
        sizes = shape(node.inputs[0])
        return sizes is not None and sizes[axis_of(node, len(sizes), 0)] - 1 <= highest
    moved = node.inputs if node.op_type == "Concat" else node.inputs[:1]
    return node.op_type in MOVES and all(v is not None and _below(v, highest) for v in moved)


@rewrite("int64-indices-to-int32", "Gather", becomes="int32 indices", exactness=Exactness.E)
def int64_indices_to_int32(op: Any, y: ir.Value) -> ir.Value | None:
    """Constant int64 indices of a Gather become int32, where all of them fit."""
    node, held = node_of(y), data(source(y, 1))
    if held is None or held.dtype != np.int64 or np.any(np.abs(held) > np.iinfo(np.int32).max):
        return None
    made: ir.Value = op.Gather(node.inputs[0], constant(op, held.astype(np.int32), name="indices"), **attributes(node))
    return made


@whole_graph("mask-to-finite", "Softmax", becomes="-1e4 in place of minus infinity", exactness=Exactness.A, tolerance=1e-4)
def mask_to_finite(model: ir.Model) -> None:
    """Constants of minus infinity, or below what FP16 holds, that an Add or Where puts in front of a Softmax become -1e4. A row that is masked
    as a whole changes its result."""
    for value in list(model.graph.initializers.values()):
        held = data(value)
        readers = [n for n, _ in value.uses()]
        if held is None or held.dtype.kind != "f" or not np.any(held < LOWEST * 6) or not readers or not all(_masks(n) for n in readers):
            continue
        array = np.where(held < LOWEST * 6, np.asarray(LOWEST, held.dtype), held)
        finite = ir.Value(name=f"{value.name}/finite", const_value=ir.tensor(array, name=f"{value.name}/finite"), shape=value.shape, type=value.type)
        model.graph.register_initializer(finite)
        ir.convenience.replace_all_uses_with(value, finite)


def _masks(node: ir.Node) -> bool:
    readers = [n for n, _ in node.outputs[0].uses()]
    return node.op_type in ("Add", "Where", "Mul") and bool(readers) and all(n.op_type == "Softmax" or (n.op_type != node.op_type and _masks(n)) for n in readers)


def _host_nodes(graph: ir.Graph) -> list[ir.Node]:
    """Operators for the host and everything behind them, in order."""
    made: set[int] = set()
    found = []
    for node in graph:
        if node.op_type in ON_HOST or any(id(v) in made for v in node.inputs):
            found.append(node)
            made |= {id(v) for v in node.outputs}
    return found


@whole_graph("post-processing-to-host", *sorted(ON_HOST), becomes="a second model for the host, beside the first", exactness=Exactness.E)
def post_processing_to_host(model: ir.Model) -> None:
    """NonMaxSuppression, TopK and their like, and all behind them, are cut off: the tensors that they read become outputs, and a second model,
    NAME.host.onnx, does the rest on the host. The host's time comes on top."""
    nodes = _host_nodes(model.graph)
    if not nodes or len(nodes) == len(model.graph):
        return
    inside = {id(n) for n in nodes}
    crossing = {id(v): v for n in nodes for v in n.inputs if v is not None and not v.is_initializer() and id(v.producer()) not in inside}
    kept = [v for v in model.graph.outputs if id(v.producer()) not in inside]
    produced = [v for v in crossing.values() if v.producer() is not None]
    if not produced:
        return
    model.graph.outputs[:] = [*kept, *(v for v in produced if not any(v is k for k in kept))]
    model.graph.remove(nodes[::-1], safe=True)


def host_part(before: ir.Model, after: ir.Model) -> ir.Model:
    """What `post_processing_to_host` cut off: a model from the outputs of `after`, and inputs, to the outputs of `before`."""
    model = before.clone()
    graph, gone = model.graph, {str(n.name) for n in before.graph} - {str(n.name) for n in after.graph}
    made = {str(v.name): v for n in graph for v in n.outputs}
    host = [n for n in graph if n.name in gone]
    inside = {id(n) for n in host}
    outside = {str(v.name): v for n in host for v in n.inputs if v is not None and not v.is_initializer() and id(v.producer()) not in inside}
    fed = []
    for name, value in outside.items():
        if name in made:
            fresh = ir.Value(name=name, type=value.type, shape=value.shape)
            for user, index in list(value.uses()):
                if id(user) in inside:
                    user.replace_input_with(index, fresh)
            fed.append(fresh)
        else:
            fed.append(value)
    graph.outputs[:] = [v for v in graph.outputs if id(v.producer()) in inside]
    graph.remove([n for n in graph if id(n) not in inside][::-1], safe=False)
    graph.inputs[:] = fed
    read = {id(v) for n in graph for v in n.inputs}
    for name in [k for k, v in graph.initializers.items() if id(v) not in read]:
        del graph.initializers[name]
    return model
