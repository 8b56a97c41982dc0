"""Matrix products."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir

from qbench.graph.attributes import ints, real, text, whole
from qbench.rewriting import Exactness
from qbench.targets.rewrites.registry import rewrite
from qbench.targets.rewrites.values import constant, data, indices, is_float, node_of, shape, source

EINSUM_BUG = "rknn-toolkit2 converts an Einsum, and the RK3588 aborts on it (airockchip/rknn-toolkit2 issue 387)"
HEADS_BUG = "rknn-toolkit2 2.5.0 stops with a TypeError (_p_fuse_conv_conv_add) where two Gemms of one tensor are added"
ATTENTION_BUG = "rknn-toolkit2 2.5.0 stops with an IndexError (_p_fuse_exmatmul_add_mul_exsoftmax13_exmatmul_to_sdpa) where values stand left of the attention"


@rewrite("einsum-to-matmul", "Einsum", becomes="Transpose, Reshape, MatMul", exactness=Exactness.N, source="numpy.einsum, the rule of its operands",
         hazards={"rknn": EINSUM_BUG})
def einsum_to_matmul(op: Any, y: ir.Value) -> ir.Value | None:
    """An Einsum of two tensors becomes Transposes, a MatMul and a Reshape. Not for repeated letters in one tensor, dots, or a letter that is
    summed in one tensor alone."""
    node = node_of(y)
    equation = text(node, "equation", "").replace(" ", "")
    if len(node.inputs) != 2 or "->" not in equation or "." in equation or not is_float(y):
        return None
    terms, out = equation.split("->")
    left, right = terms.split(",")
    sizes: dict[str, int] = {}
    for letters, value in ((left, node.inputs[0]), (right, node.inputs[1])):
        found = shape(value)
        if found is None or len(found) != len(letters) or len(set(letters)) != len(letters):
            return None
        sizes |= {k: max(s, sizes.get(k, 1)) for k, s in zip(letters, found, strict=True)}
        if any(sizes[k] != s for k, s in zip(letters, found, strict=True)):
            return None                                          # broadcast along a letter
    shared, summed = [k for k in left if k in right and k in out], [k for k in left if k in right and k not in out]
    rows, columns = [k for k in left if k not in right], [k for k in right if k not in left]
    if any(k not in out for k in rows + columns) or set(out) != set(shared + rows + columns) or not summed:
        return None

    def arranged(value: Any, letters: str, order: list[str], form: list[list[str]]) -> Any:
        perm = [letters.index(k) for k in order]
        moved = value if perm == sorted(perm) else op.Transpose(value, perm=perm)
        wanted = [*(sizes[k] for k in shared), *(int(np.prod([sizes[k] for k in part])) for part in form)]
        return moved if wanted == [sizes[k] for k in order] else op.Reshape(moved, indices(op, wanted))

    a = arranged(node.inputs[0], left, [*shared, *rows, *summed], [rows, summed])
    b = arranged(node.inputs[1], right, [*shared, *summed, *columns], [summed, columns])
    product, order = op.MatMul(a, b), [*shared, *rows, *columns]
    if len(rows) != 1 or len(columns) != 1:
        product = op.Reshape(product, indices(op, [sizes[k] for k in order]))
    made: ir.Value = product if order == list(out) else op.Transpose(product, perm=[order.index(k) for k in out])
    return made


@rewrite("matmul-to-conv", "MatMul", becomes="1x1 Conv", exactness=Exactness.N, speeds=True)
def matmul_to_conv(op: Any, y: ir.Value) -> ir.Value | None:
    """A MatMul of a [1, length, channels] tensor with a constant matrix becomes a 1x1 Conv of [1, channels, 1, length]."""
    x, weight = source(y), data(source(y, 1))
    sizes, out = shape(x), shape(y)
    if x is None or sizes is None or out is None or weight is None or weight.ndim != 2 or len(sizes) not in (2, 3) or data(x) is not None or not is_float(x):
        return None
    if len(sizes) == 3 and sizes[0] != 1:
        return None
    length, channels = sizes[-2:]
    image = op.Reshape(op.Transpose(x, perm=[*range(len(sizes) - 2), len(sizes) - 1, len(sizes) - 2]), indices(op, [1, channels, 1, length]))
    wide = op.Conv(image, constant(op, weight.T[:, :, None, None], x, "weight"), kernel_shape=[1, 1])
    flat = op.Reshape(wide, indices(op, [*sizes[:-2], weight.shape[1], length]))
    made: ir.Value = op.Transpose(flat, perm=[*range(len(sizes) - 2), len(sizes) - 1, len(sizes) - 2])
    return made


@rewrite("gemm-to-conv", "Gemm", becomes="Reshape, 1x1 Conv, Reshape", exactness=Exactness.N, speeds=True)
def gemm_to_conv(op: Any, y: ir.Value) -> ir.Value | None:
    """A Gemm with constant weights becomes a 1x1 Conv of a 1x1 image."""
    node, x, weight, bias = node_of(y), source(y), data(source(y, 1)), data(source(y, 2))
    sizes, out = shape(x), shape(y)
    if (x is None or sizes is None or out is None or weight is None or whole(node, "transA", 0) or not is_float(x)
            or (source(y, 2) is not None and (bias is None or bias.size not in (1, out[1])))):
        return None
    rows = real(node, "alpha", 1.0) * (weight if whole(node, "transB", 0) else weight.T)
    others = [] if bias is None else [constant(op, np.broadcast_to(real(node, "beta", 1.0) * bias.reshape(-1), (out[1],)), x, "bias")]
    wide = op.Conv(op.Reshape(x, indices(op, [*sizes, 1, 1])), constant(op, rows[:, :, None, None], x, "weight"), *others, kernel_shape=[1, 1])
    made: ir.Value = op.Reshape(wide, indices(op, out))
    return made


def _two_heads(op: Any, x: Any, w1: Any, b1: Any, w2: Any, b2: Any) -> Any:
    return op.Add(op.Gemm(x, w1, b1, _outputs=["first"]), op.Gemm(x, w2, b2, _outputs=["second"]), _outputs=["y"])


@rewrite("merge-gemms", "Gemm", becomes="one Gemm with the sums of weights and biases", exactness=Exactness.N, pattern=[_two_heads],
         hazards={"rknn": HEADS_BUG}, tidies=True)
def merge_gemms(op: Any, y: ir.Value, x: ir.Value, w1: ir.Value, b1: ir.Value, w2: ir.Value, b2: ir.Value, first: ir.Value, second: ir.Value) -> ir.Value | None:
    """Two Gemms of one tensor whose results are added (heads of distilled transformers) become one with summed weights."""
    nodes = node_of(first), node_of(second)
    plain = [(whole(n, "transA", 0), whole(n, "transB", 0), real(n, "alpha", 1.0), real(n, "beta", 1.0)) for n in nodes]
    arrays = [data(v) for v in (w1, b1, w2, b2)]
    if plain[0] != plain[1] or any(a is None for a in arrays):
        return None
    weights, biases = ([a.astype(np.float64) for a in (arrays[i], arrays[i + 2]) if a is not None] for i in (0, 1))
    if weights[0].shape != weights[1].shape or biases[0].shape != biases[1].shape:
        return None
    made: ir.Value = op.Gemm(x, constant(op, weights[0] + weights[1], x, "weight"), constant(op, biases[0] + biases[1], x, "bias"),
                             **{k: v.value for k, v in nodes[0].attributes.items()})
    return made


def _values_left(op: Any, values: Any, scores: Any) -> Any:
    return op.MatMul(values, op.Transpose(op.Softmax(scores, _outputs=["weights"]), _outputs=["turned"]), _outputs=["y"])


@rewrite("attention-values-right", "MatMul", "Transpose", becomes="Transpose of (attention x Transpose of values)", exactness=Exactness.N, pattern=[_values_left],
         hazards={"rknn": ATTENTION_BUG}, source="(A B)^T = B^T A^T")
def attention_values_right(op: Any, y: ir.Value, values: ir.Value, scores: ir.Value, weights: ir.Value, turned: ir.Value) -> ir.Value | None:
    """values x attention^T becomes (attention x values^T)^T, the order that toolchains know attention by."""
    sizes = shape(y)
    if sizes is None:
        return None
    swap = [*range(len(sizes) - 2), len(sizes) - 1, len(sizes) - 2]
    if list(ints(node_of(turned), "perm", swap[::-1])) != swap or len(shape(values) or ()) != len(sizes):
        return None
    attention = op.Softmax(scores, **{k: v.value for k, v in node_of(weights).attributes.items()})
    made: ir.Value = op.Transpose(op.MatMul(attention, op.Transpose(values, perm=swap)), perm=swap)
    return made
