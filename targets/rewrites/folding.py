"""Work that can be done before the network runs, and nodes that do none."""

from __future__ import annotations

import logging

import numpy as np
import onnx_ir as ir
import onnx_ir.passes.common as passes
from onnxscript.rewriter import RewriteRuleSet
from onnxscript.rewriter.rules import common as rules

from qbench.graph.attributes import ints
from qbench.graph.prepare import fold_constants
from qbench.graph.quiet import quiet
from qbench.rewriting import Exactness
from qbench.targets.rewrites.registry import NORM_ROUNDED, whole_graph
from qbench.targets.rewrites.values import data, shape, slice_of

_BATCH_NORM = RewriteRuleSet([
    rules.fuse_batchnorm_into_conv_rule, rules.fuse_batchnorm_into_conv_transpose_rule, rules.fuse_batchnorm_into_gemm_rule])


@whole_graph("fold-constants", "ConstantOfShape", "Shape", "Range", "Size", "Constant", becomes="constants", exactness=Exactness.E, tidies=True)
def fold(model: ir.Model) -> None:
    """Chains of Shape, ConstantOfShape, Range and whatever reads constants only are computed once: at static shapes they end in constants."""
    with quiet("onnxscript", logging.ERROR):
        fold_constants(model, onnx_shape_inference=True)
        passes.LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0)(model)


@whole_graph("drop-idle", "Identity", "Dropout", "Cast", "Reshape", "Transpose", "Slice", "Pad", becomes="nothing", exactness=Exactness.E, tidies=True)
def drop_idle(model: ir.Model) -> None:
    """Identity and Dropout go; so do Cast, Reshape, Transpose, Slice and Pad that change nothing, and pairs of Transposes or Reshapes that undo
    or replace one another."""
    for node in list(model.graph):
        if node.graph is not None:
            _join(node)
            if _idle(node):
                _bypass(model.graph, node)


def _idle(node: ir.Node) -> bool:
    x, out = node.inputs[0] if node.inputs else None, node.outputs[0]
    if x is None or any(v.uses() or v.is_graph_output() for v in node.outputs[1:]):
        return False
    before, after = shape(x), shape(out)
    same = before is not None and before == after
    if node.op_type == "Dropout":
        training = node.inputs[2] if len(node.inputs) > 2 else None
        held = data(training)
        return training is None or (held is not None and not held.any())
    if node.op_type == "Cast":
        return x.dtype is not None and x.dtype == out.dtype
    if node.op_type == "Slice":
        return same and slice_of(node) is not None
    if node.op_type == "Pad":
        held = data(node.inputs[1]) if len(node.inputs) > 1 else None
        return held is not None and not held.any()
    if node.op_type == "Transpose":
        perm = list(ints(node, "perm", range(len(before or ()))[::-1]))
        return bool(perm) and perm == sorted(perm)
    return node.op_type == "Identity" or (node.op_type in ("Reshape", "Flatten", "Squeeze", "Unsqueeze", "Expand") and same)


def _join(node: ir.Node) -> None:
    """A Transpose behind a Transpose, or a Reshape behind a Reshape, reads from in front of the other one."""
    x = node.inputs[0] if node.inputs else None
    first = x.producer() if x is not None else None
    if first is None or first.op_type != node.op_type or first.inputs[0] is None:
        return
    if node.op_type == "Transpose" and "perm" in node.attributes and "perm" in first.attributes:
        inner = ints(first, "perm", ())
        node.attributes["perm"] = ir.AttrInt64s("perm", [inner[i] for i in ints(node, "perm", ())])
        node.replace_input_with(0, first.inputs[0])
    elif node.op_type == "Reshape":
        wanted = data(node.inputs[1])
        if wanted is not None and np.all(wanted != 0):           # a 0 copies a size of the first one's output
            node.replace_input_with(0, first.inputs[0])


def _bypass(graph: ir.Graph, node: ir.Node) -> None:
    """Takes `node` out. Outputs of the network keep their names: one that leads an input, a constant or another output out stays."""
    x, out = node.inputs[0], node.outputs[0]
    assert x is not None
    if out.is_graph_output() and (x.producer() is None or x.is_graph_output()):
        return
    name, leads_out = out.name, out.is_graph_output()
    ir.convenience.replace_all_uses_with(out, x, replace_graph_outputs=True)
    graph.remove(node, safe=True)
    if leads_out:
        x.name = name


@whole_graph("fold-batchnorm", "BatchNormalization", becomes="weights and bias of the layer in front", exactness=Exactness.N, tidies=True, tolerance=NORM_ROUNDED,
             source="Jacob et al. 2018 (arXiv 1712.05877), equation 14")
def fold_batchnorm(model: ir.Model) -> None:
    """A BatchNormalization behind Conv, ConvTranspose or Gemm goes into its weights and bias."""
    with quiet("onnxscript", logging.ERROR):
        _BATCH_NORM.apply_to_model(model)
