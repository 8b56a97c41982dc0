"""What correction steps found, put into the float model before it is quantized: the arrays of `Plan.tensors`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from qbench.errors import PlanError
from qbench.graph.attributes import real
from qbench.graph.kernels import constant
from qbench.network import Network
from qbench.packed import Packed
from qbench.qdq.builder import Builder
from qbench.qdq.constants import BiasAt, to_numpy
from qbench.qdq.layout import Weight, weight_of

Array = NDArray[Any]


@dataclass
class Edits:
    """deltas   initializer -> int8 array for the codes of that weight
    added       name of a new Add -> name of the MatMul that it follows
    """

    deltas: dict[str, Array] = field(default_factory=dict)
    added: dict[str, str] = field(default_factory=dict)


def edit(builder: Builder, network: Network, tensors: Mapping[str, Packed]) -> Edits:
    """Put the arrays into the builder's model: first new constants, then biases; rounding is handed back.

    Raises PlanError for an entry that names nothing in the model, or whose array does not fit what it names.
    """
    found = Edits()
    nodes = {str(n.name): n for n in builder.graph}
    for kind, apply in (("constant", _constant), ("bias", _bias), ("round", _round)):
        for key, packed in tensors.items():
            if key.startswith(f"{kind}:"):
                apply(builder, network, nodes, key, packed, found)
    if odd := next((k for k in tensors if k.partition(":")[0] not in ("constant", "bias", "round")), None):
        raise PlanError(f"the plan holds an array {odd!r}; known kinds: constant:INITIALIZER, bias:NODE, round:INITIALIZER")
    return found


def bias_at(node: ir.Node, network: Network, nodes: Mapping[str, ir.Node]) -> BiasAt | None:
    """Where the bias of an anchor sits: its third input, or the constant of the Add that its kernel fuses behind a MatMul.

    Only a constant with one value, or one per output channel, counts as the bias of a MatMul: nothing else goes into accumulators.
    """
    if node.op_type != "MatMul":
        return BiasAt(node, 2) if len(node.inputs) > 2 and node.inputs[2] is not None else None
    weight, kernel = weight_of(node), network.kernel.get(str(node.name))
    if weight is None or kernel is None or len(kernel.nodes) < 2:
        return None
    add = nodes[kernel.nodes[1]]
    if add.op_type != "Add":
        return None
    index = next((i for i, v in enumerate(add.inputs) if v is not None and constant(v) and v.dtype == ir.DataType.FLOAT), None)
    value = None if index is None else add.inputs[index]
    if index is None or value is None or not _per_channel(tuple(to_numpy(value).shape), weight):
        return None
    return BiasAt(add, index)


def _per_channel(shape: tuple[int, ...], weight: Weight) -> bool:
    size = int(np.prod(shape, dtype=np.int64))
    axis = -2 if weight.left else -1
    return size == 1 or (len(shape) >= -axis and shape[axis] == size == weight.channels)


def _initializer(builder: Builder, key: str) -> ir.Value:
    name = key.partition(":")[2]
    value = builder.graph.initializers.get(name)
    if value is None or value.const_value is None or value.dtype != ir.DataType.FLOAT:
        raise PlanError(f"the plan holds {key!r}, but the model has no float32 initializer {name!r}: "
                        "it was made for another model or by another version of qbench")
    return value


def _fits(key: str, packed: Packed, dtype: str, shape: tuple[int, ...]) -> Array:
    if packed.dtype != dtype or packed.shape != shape:
        raise PlanError(f"the plan's {key!r} is {packed.dtype} {list(packed.shape)}; expected {dtype} {list(shape)}")
    return packed.array


def _constant(builder: Builder, network: Network, nodes: Mapping[str, ir.Node], key: str, packed: Packed, found: Edits) -> None:
    value = _initializer(builder, key)
    value.const_value = ir.Tensor(_fits(key, packed, "float32", tuple(to_numpy(value).shape)), name=value.name)


def _round(builder: Builder, network: Network, nodes: Mapping[str, ir.Node], key: str, packed: Packed, found: Edits) -> None:
    value = _initializer(builder, key)
    if not any(w is not None and n.inputs[w.index] is value for n, w in ((n, weight_of(n)) for n, _ in value.uses())):
        raise PlanError(f"the plan holds {key!r}, but {value.name!r} is no weight of a Conv, ConvTranspose, Gemm or MatMul")
    found.deltas[str(value.name)] = _fits(key, packed, "int8", tuple(to_numpy(value).shape))


def _bias(builder: Builder, network: Network, nodes: Mapping[str, ir.Node], key: str, packed: Packed, found: Edits) -> None:
    """Add to the bias of a node; where it has none, it gets one."""
    node = nodes.get(key.partition(":")[2])
    weight = weight_of(node) if node is not None else None
    if node is None or weight is None:
        what = "the model has no such node" if node is None else f"that {node.op_type} has no constant float32 weight"
        raise PlanError(f"the plan holds {key!r}, but {what}: it was made for another model or by another version of qbench")
    extra = _fits(key, packed, "float32", (weight.channels,))
    extra = extra.reshape(-1, 1) if weight.left else extra
    at = bias_at(node, network, nodes)
    old = at.node.inputs[at.index] if at is not None else None
    beta = real(node, "beta", 1.0) if node.op_type == "Gemm" else 1.0
    if node.op_type == "Gemm" and (old is None or beta == 0.0):
        node.attributes.add(ir.AttrFloat32("beta", 1.0))
        old, beta = None, 1.0
    if old is not None and (not constant(old) or old.dtype != ir.DataType.FLOAT):
        raise PlanError(f"the plan holds {key!r}, but the bias of that {node.op_type} is computed in the model, so nothing can be added to it")
    total = extra if old is None else to_numpy(old) + extra / np.float32(beta)
    new = builder.initializer(f"{node.name}_bias", np.ascontiguousarray(total, np.float32))
    if at is not None:
        at.node.replace_input_with(at.index, new)
    elif node.op_type == "MatMul":
        found.added[_add_behind(builder, node, new)] = str(node.name)
    else:
        node.resize_inputs(3)
        node.replace_input_with(2, new)


def _add_behind(builder: Builder, node: ir.Node, bias: ir.Value) -> str:
    """An Add behind a MatMul, which takes over the name of its output. Returns the new node's name."""
    product = node.outputs[0]
    name = str(product.name)
    total = ir.Value(name=name, type=product.type, shape=product.shape)
    ir.convenience.replace_all_uses_with(product, total, replace_graph_outputs=True)
    product.name = builder.free(f"{name}_product")
    add = ir.node("Add", [product, bias], outputs=[total], name=builder.free(f"{node.name}_Add"))
    node.append(add)
    return str(add.name)
