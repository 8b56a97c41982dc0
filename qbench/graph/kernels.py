"""Fuse the static model into kernels, and describe each: what it reads and writes, its geometry, its work."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from math import prod
from typing import Any

import onnx_ir as ir

from qbench.errors import ModelError
from qbench.graph import operators as ops
from qbench.graph.attributes import ints, text, whole
from qbench.graph.delicate import delicate
from qbench.graph.half import constant_fault
from qbench.graph.norms import normalisations
from qbench.graph.units import scale_groups, units_of
from qbench.graph.values import STANDARD, activations_of, constant, moves_values, sizes
from qbench.network import Kernel, Network, TensorSpec

__all__ = ["build_network", "constant", "moves_values"]


def build_network(model: ir.Model, name: str, key: str, renamed: Mapping[str, str]) -> Network:
    """Describe a prepared model whose input shapes are static.

    Raises ModelError naming the first tensor that still has no static shape.
    """
    graph = model.graph
    tensors = _tensors(graph)
    chains = _fuse(graph)
    norms = normalisations(graph)
    small = delicate(graph, norms)
    kernels = tuple(replace(_kernel(c, tensors), fp16_constant=constant_fault(c, small.guards)) for c in chains)
    kernels = _as_norms(kernels, {n for c in norms for n in c.nodes if not c.softmax})
    groups = scale_groups(graph, tensors)
    units = units_of(graph, kernels, groups, tensors, norms, small.reasons)
    return Network(name, key, tuple(str(v.name) for v in graph.inputs), tuple(str(v.name) for v in graph.outputs),
                   tensors, kernels, units, groups, dict(renamed))


def _tensors(graph: ir.Graph) -> dict[str, TensorSpec]:
    found: dict[str, TensorSpec] = {}
    for value in [*graph.inputs, *(v for n in graph for v in n.outputs if v.name)]:
        shape: Any = value.shape
        if not isinstance(value.type, ir.TensorType):            # a sequence, an optional, or not known
            found[str(value.name)] = TensorSpec(str(value.name), (), "object")
            continue
        dtype = value.type.dtype.numpy().name if value.type.dtype != ir.DataType.STRING else "object"
        static = tuple(int(d) for d in shape) if shape is not None and all(isinstance(d, int) for d in shape) else None
        if static is None:
            if _behind_control_flow(value):
                static = ()
            else:
                node = value.producer()
                raise ModelError(f"tensor {value.name!r} of node {node.name if node else '?'!r} ({node.op_type if node else 'input'}) has no static "
                                 f"shape ({shape}). Where inputs have open axes, give them with --input-shape NAME=1,3,224,224; otherwise onnx cannot "
                                 f"infer the shape of {node.op_type if node else 'this input'}: add it to the model's value_info, or cut the model before it")
        found[str(value.name)] = TensorSpec(str(value.name), static, dtype)
    return found


_DATA_DEPENDENT = {"If", "Loop", "Scan", "NonZero", "NonMaxSuppression", "Unique", "TopK", "Compress", "LSTM", "GRU", "RNN", "Range",
                   "ConstantOfShape", "SequenceAt", "ConcatFromSequence", "SequenceMap", "OptionalGetElement"}


def _behind_control_flow(value: ir.Value) -> bool:
    """True when the shape depends on data: such tensors stay in float and cost nothing in the model, which is said in the report."""
    seen: set[int] = set()
    stack = [value]
    while stack:
        node = stack.pop().producer()
        if node is None or id(node) in seen:
            continue
        seen.add(id(node))
        if node.op_type in _DATA_DEPENDENT or node.domain not in STANDARD:
            return True
        stack += [v for v in node.inputs if v is not None]
    return False


# ---------------------------------------------------------------------------------------------------------------- fusion

def _fuse(graph: ir.Graph) -> list[list[ir.Node]]:
    """Chains of nodes, one per kernel, ordered by their last node: a chain runs when all that it reads is there."""
    order = {id(n): i for i, n in enumerate(graph)}
    taken: set[int] = set()
    chains: list[list[ir.Node]] = []
    for node in graph:
        if id(node) in taken:
            continue
        chain = [node]
        taken.add(id(node))
        if node.op_type in ops.ANCHORS and node.domain in STANDARD:
            _grow(chain, taken, order)
        elif node.op_type in ("Add", "BatchNormalization"):
            _grow_activation(chain, taken)
        elif node.op_type == "Sigmoid":
            _grow_swish_alone(chain, taken)
        chains.append(chain)
    chains.sort(key=lambda c: order[id(c[-1])])
    return chains


def _only_reader(value: ir.Value) -> ir.Node | None:
    """The single node that reads `value`, or None when there are several or it leaves the graph."""
    users = {id(n): n for n, _ in value.uses()}
    if len(users) != 1 or value.is_graph_output():
        return None
    user: ir.Node = next(iter(users.values()))
    return user if user.graph is value.graph else None


def _take(chain: list[ir.Node], taken: set[int], *nodes: ir.Node) -> None:
    chain.extend(nodes)
    taken.update(id(n) for n in nodes)


def _grow(chain: list[ir.Node], taken: set[int], order: Mapping[int, int]) -> None:
    """Anchor, then constant bias Add, activation, residual Add, activation: each at most once."""
    _grow_bias(chain, taken)
    activated = _grow_activation(chain, taken)
    reader = _only_reader(chain[-1].outputs[0])
    if reader is not None and reader.op_type == "Add" and id(reader) not in taken:
        other = [v for v in reader.inputs if v is not None and v is not chain[-1].outputs[0]]
        same_shape = len(other) == 1 and not constant(other[0]) and sizes(other[0]) == sizes(chain[-1].outputs[0])
        ready = same_shape and ((p := other[0].producer()) is None or order[id(p)] < order[id(chain[0])])
        if ready:
            _take(chain, taken, reader)
            if not activated:
                _grow_activation(chain, taken)


def _grow_bias(chain: list[ir.Node], taken: set[int]) -> None:
    reader = _only_reader(chain[-1].outputs[0])
    if chain[0].op_type == "MatMul" and reader is not None and reader.op_type == "Add" and id(reader) not in taken and any(
            constant(v) for v in reader.inputs):
        _take(chain, taken, reader)


def _grow_activation(chain: list[ir.Node], taken: set[int]) -> bool:
    out = chain[-1].outputs[0]
    reader = _only_reader(out)
    if reader is not None and reader.op_type in ops.ACTIVATIONS and id(reader) not in taken and reader.inputs[0] is out:
        _take(chain, taken, reader)
        return True
    swish = _swish(out)
    if swish and not any(id(n) in taken for n in swish):
        _take(chain, taken, *swish)
        return True
    return False


def _grow_swish_alone(chain: list[ir.Node], taken: set[int]) -> None:
    x, reader = chain[0].inputs[0], _only_reader(chain[0].outputs[0])
    if x is not None and reader is not None and reader.op_type == "Mul" and any(v is x for v in reader.inputs) and id(reader) not in taken:
        _take(chain, taken, reader)


def _swish(x: ir.Value) -> tuple[ir.Node, ir.Node] | None:
    """The pair (Sigmoid, Mul) that computes x * sigmoid(x), when nobody else reads x."""
    users = {id(n): n for n, _ in x.uses()}.values()
    if len(users) != 2 or x.is_graph_output():
        return None
    gate = next((n for n in users if n.op_type in ("Sigmoid", "HardSigmoid")), None)
    mul = next((n for n in users if n.op_type == "Mul"), None)
    if gate is None or mul is None or _only_reader(gate.outputs[0]) is not mul:
        return None
    return gate, mul


# ---------------------------------------------------------------------------------------------------------------- kernels

def _kernel(chain: list[ir.Node], tensors: Mapping[str, TensorSpec]) -> Kernel:
    members = {id(n) for n in chain}
    inputs: list[str] = []
    outputs: list[str] = []
    inner: list[str] = []
    for node in chain:
        produced = {str(v.name) for n in chain for v in n.outputs}
        inputs += [t for t in activations_of(node) if t not in produced]
        for value in node.outputs:
            if not value.name:
                continue
            outside = value.is_graph_output() or not value.uses() or any(id(n) not in members for n, _ in value.uses())
            (outputs if outside else inner).append(str(value.name))
    anchor = chain[0]
    return Kernel(name=str(anchor.name), op="+".join(n.op_type for n in chain), nodes=tuple(str(n.name) for n in chain),
                  inputs=tuple(dict.fromkeys(inputs)), outputs=tuple(outputs), inner=tuple(inner),
                  activation=_activation(chain), interpolation=_interpolation(anchor), **_geometry(anchor, tensors))


def _as_norms(kernels: tuple[Kernel, ...], nodes: Collection[str]) -> tuple[Kernel, ...]:
    """Kernels of a spelled normalisation have the kind of one, but for those that only move values."""
    return tuple(replace(k, kind="norm") if set(k.nodes) <= set(nodes) and k.kind in ("eltwise", "reduce", "activation", "other") else k
                 for k in kernels)


def _activation(chain: list[ir.Node]) -> str:
    names = [n.op_type for n in chain if n.op_type in ops.ACTIVATIONS]
    if "Mul" in [n.op_type for n in chain[1:]] and names:
        return {"Sigmoid": "Swish", "HardSigmoid": "HardSwish"}.get(names[-1], names[-1])
    return names[-1] if names and (len(chain) > 1 or chain[0].op_type in ops.ACTIVATIONS) else ""


def _interpolation(node: ir.Node) -> str:
    if node.op_type not in ("Resize", "Upsample") or (mode := text(node, "mode", "nearest")) == "nearest":
        return ""
    return f"{mode} {text(node, 'coordinate_transformation_mode', 'half_pixel' if node.op_type == 'Resize' else 'asymmetric')}"


def _geometry(node: ir.Node, tensors: Mapping[str, TensorSpec]) -> dict[str, Any]:
    x = sizes(next((v for v in node.inputs if v is not None and not constant(v)), None))
    y = sizes(node.outputs[0]) if node.outputs else ()
    if node.op_type in ("Conv", "ConvTranspose"):
        return _convolution(node, x, y)
    if node.op_type in ("Gemm", "MatMul"):
        return _matmul(node, y)
    kernel = ([*ints(node, "kernel_shape", [1, 1]), 1])[:2]
    strides = ([*ints(node, "strides", [1, 1]), 1])[:2]
    n, c, h, w = _four(x)
    _, oc, oh, ow = _four(y)
    return {"kind": ops.KINDS.get(node.op_type, "other"), "batch": n, "in_channels": c, "in_h": h, "in_w": w, "out_channels": oc, "out_h": oh,
            "out_w": ow, "kernel_h": kernel[0], "kernel_w": kernel[1], "stride_h": strides[0], "stride_w": strides[1]} | _recurrent(node, y)


def _recurrent(node: ir.Node, y: tuple[int, ...]) -> dict[str, int]:
    if node.op_type not in ("LSTM", "GRU", "RNN"):
        return {}
    elements = sum(prod(sizes(v)) for v in node.inputs[1:3])
    steps_and_sequences = prod(sizes(node.inputs[0])[:2])        # whichever of the two comes first
    return {"weights": elements, "macs": elements * steps_and_sequences}


def _four(shape: tuple[int, ...]) -> tuple[int, int, int, int]:
    """Any shape as N, C, H, W: what is missing is 1, what is too much goes into W."""
    if len(shape) <= 4:
        n, c, h, w = (*shape, *(1,) * (4 - len(shape)))[:4]
        return n, c, h, w
    return shape[0], shape[1], shape[2], prod(shape[3:])


def _convolution(node: ir.Node, x: tuple[int, ...], y: tuple[int, ...]) -> dict[str, Any]:
    weight = sizes(node.inputs[1])
    groups = whole(node, "group", 1)
    kernel = list(weight[2:]) or [1]
    spatial = len(kernel)
    strides, dilations = ints(node, "strides", [1] * spatial), ints(node, "dilations", [1] * spatial)
    n, c, h, w = _four(x)
    _, oc, oh, ow = _four(y)
    transposed = node.op_type == "ConvTranspose"
    positions = prod(x[2:]) if transposed else prod(y[2:])
    depthwise = not transposed and groups > 1 and groups == c
    return {"kind": "deconv" if transposed else "depthwise" if depthwise else "conv", "batch": n, "in_channels": c, "in_h": h, "in_w": w,
            "out_channels": oc, "out_h": oh, "out_w": ow, "kernel_h": kernel[0], "kernel_w": prod(kernel[1:]), "stride_h": strides[0],
            "stride_w": ([*strides, 1])[1] if spatial > 1 else 1, "dilation_h": dilations[0], "groups": groups,
            "macs": n * positions * prod(weight), "weights": prod(weight), "biases": oc if len(node.inputs) > 2 and node.inputs[2] else 0}


def _matmul(node: ir.Node, y: tuple[int, ...]) -> dict[str, Any]:
    a, b = sizes(node.inputs[0]), sizes(node.inputs[1])
    if node.op_type == "Gemm" and whole(node, "transA", 0):
        a = a[::-1]
    k = a[-1] if a else 1
    columns = y[-1] if y else 1
    rows = prod(y) // max(columns, 1)
    fixed = constant(node.inputs[1])
    return {"kind": "matmul", "in_channels": k, "in_h": rows, "in_w": 1, "out_channels": columns, "out_h": rows, "out_w": 1, "macs": rows * columns * k,
            "weights": prod(b) if fixed else 0, "biases": columns if len(node.inputs) > 2 and node.inputs[2] else 0}
