"""Prepare a model once: real inputs, unique names, an opset that can say per-channel, folded constants and BatchNorm.

Two models come out. The prepared model keeps the user's dynamic axes and is the one that statistics, Q/DQ and evaluation
use; its static twin (batch 1) only serves to read shapes, from which `qbench.graph.kernels` builds the Network.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx_ir as ir
import onnx_ir.passes.common as passes
from onnxscript import optimizer, version_converter
from onnxscript.rewriter import RewriteRuleSet
from onnxscript.rewriter.rules import common as rules

from qbench.errors import ModelError
from qbench.graph.kernels import build_network
from qbench.graph.load import read
from qbench.network import Network

LOWEST_OPSET = 13      # QuantizeLinear and DequantizeLinear know `axis` since 13 (BUG case B17)
RAISED_OPSET = 17
LOWEST_IR = 8
IN_MEMORY_BYTES = 1_500_000_000
"""Weights up to this size are read at once; larger models keep them in their files until a tensor is needed."""
FOLD_LIMIT = 1 << 24   # elements: weights that are computed in the graph are folded, big tables are left alone

_BATCH_NORM = RewriteRuleSet([
    rules.fuse_batchnorm_into_conv_rule, rules.fuse_batchnorm_into_conv_transpose_rule, rules.fuse_batchnorm_into_gemm_rule])


@dataclass(frozen=True)
class PreparedModel:
    """model    folded and named, dynamic axes kept; treat as read-only, `clone()` before editing
    network     what the rest of qbench sees
    """

    model: ir.Model
    network: Network


def load_network(source: Path | str | ir.Model, input_shapes: Mapping[str, tuple[int, ...]] | None = None) -> PreparedModel:
    """Read and prepare a model.

    input_shapes   input name -> static shape, for axes that the model leaves open; a batch axis left open counts as 1
    Raises ModelError naming the node or input, e.g. for an open axis beyond the batch.
    """
    model, name, key = read(source)
    if isinstance(source, ir.Model):
        model = model.clone()
    _refuse_quantized(model)
    if sum(v.const_value.nbytes for v in model.graph.initializers.values() if v.const_value is not None) <= IN_MEMORY_BYTES:
        ir.external_data.load_to_model(model)
    original = _normalise(model)
    _raise_opset(model)
    before = {v: n.name for n in model.graph for v in _weight_names(n)}
    _fold(model)
    _restore_names(model, before)
    _infer_shapes(model)
    static = _static_twin(model, input_shapes or {})
    network = build_network(static, name, key, {k: v for k, v in original.items() if k != v})
    return PreparedModel(model, network)


def _normalise(model: ir.Model) -> dict[str, str]:
    """Inline functions, make weights weights, give every node and tensor a unique name. Returns new name -> original name."""
    passes.InlinePass()(model)
    passes.RemoveInitializersFromInputsPass()(model)             # IR version 3 style (BUG case B20)
    for value in model.graph.inputs:
        if value.shape is not None:                              # some exporters write open axes as -1 or 0
            value.shape = ir.Shape([d if not isinstance(d, int) or d > 0 else None for d in value.shape])
    passes.LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0)(model)
    model.ir_version = max(model.ir_version, LOWEST_IR)
    original: dict[int, str] = {id(n): n.name or "" for n in model.graph.all_nodes()}
    _name_nodes(model)
    passes.NameFixPass()(model)
    _drop_identities(model)
    passes.RemoveUnusedNodesPass()(model)
    return {str(n.name): original.get(id(n), "") for n in model.graph.all_nodes()}


def _drop_identities(model: ir.Model) -> None:
    """Not in models with bodies: an Identity that leads a tensor of the outer graph out of an If branch cannot be dropped."""
    if not any(a.type in (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS) for n in model.graph.all_nodes() for a in n.attributes.values()):
        passes.IdentityEliminationPass()(model)


def _name_nodes(model: ir.Model) -> None:
    """Unnamed nodes become Conv_0, Conv_1 ... by position; a repeated name gets the next free number (BUG case B21)."""
    taken = {n.name for n in model.graph.all_nodes() if n.name}
    seen: set[str] = set()
    counts: dict[str, int] = {}
    for node in model.graph.all_nodes():
        if node.name and node.name not in seen:
            seen.add(node.name)
            continue
        stem = node.name or node.op_type
        while True:
            number = counts.get(stem, 0)
            counts[stem] = number + 1
            if (name := f"{stem}_{number}") not in taken:
                break
        node.name = name
        taken.add(name)
        seen.add(name)


def _raise_opset(model: ir.Model) -> None:
    version = model.opset_imports.get("", 0)
    if version == 0:
        raise ModelError("the model imports no standard ONNX operator set; re-export it with opset 13 or later")
    if version >= LOWEST_OPSET:
        return
    level = logging.getLogger("onnxscript").level
    logging.getLogger("onnxscript").setLevel(logging.ERROR)
    try:
        version_converter.convert_version(model, RAISED_OPSET, fallback=True)
    except Exception as error:
        raise ModelError(f"opset {version} cannot be raised to {RAISED_OPSET}, which per-channel quantization needs: "
                         f"{str(error).splitlines()[0][:200]}. Re-export the model with opset 13 or later") from error
    finally:
        logging.getLogger("onnxscript").setLevel(level)
    if model.opset_imports.get("", 0) < LOWEST_OPSET:
        raise ModelError(f"opset {version} could not be raised to {RAISED_OPSET}; re-export the model with opset 13 or later")
    passes.LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0)(model)
    _name_nodes(model)
    passes.NameFixPass()(model)


def _fold(model: ir.Model) -> None:
    """Constants first, then BatchNorm into the convolution before it."""
    logger = logging.getLogger("onnxscript")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        optimizer.fold_constants(model, input_size_limit=FOLD_LIMIT, output_size_limit=FOLD_LIMIT)
        passes.LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0)(model)
        _BATCH_NORM.apply_to_model(model)
        _drop_identities(model)
        passes.RemoveUnusedNodesPass()(model)
        passes.TopologicalSortPass()(model)
    finally:
        logger.setLevel(level)


def _weight_names(node: ir.Node) -> list[str]:
    return [v.name for v in node.inputs[1:2] if v is not None and v.name and v.is_initializer()]


def _restore_names(model: ir.Model, before: Mapping[str, str | None]) -> None:
    """A folded convolution is a new node: it takes the name back of the one that owned its weights."""
    used = {n.name for n in model.graph.all_nodes() if n.name}
    for node in model.graph:
        for weight in _weight_names(node):
            name = before.get(weight)
            if name and node.name != name and name not in used:
                node.name = name
                used.add(name)
    _name_nodes(model)
    passes.NameFixPass()(model)


KEEPS_SHAPE = {"GroupNormalization", "InstanceNormalization", "LayerNormalization", "RMSNormalization", "Gelu", "Mish", "Swish", "HardSwish",
               "Softplus", "Softsign", "ThresholdedRelu", "Selu", "Celu", "Elu", "Clip", "LRN", "MeanVarianceNormalization"}
"""Operators whose output has the shape of their first input; onnx does not infer all of them in every opset."""


def _infer_shapes(model: ir.Model) -> None:
    """onnx's shape inference, helped over operators that keep their input's shape."""
    while True:
        passes.ShapeInferencePass()(model)
        helped = False
        for node in model.graph.all_nodes():
            source = node.inputs[0] if node.inputs else None
            if node.op_type in KEEPS_SHAPE and node.outputs[0].shape is None and source is not None and source.shape is not None:
                node.outputs[0].shape, node.outputs[0].type = source.shape.copy(), source.type
                helped = True
        if not helped:
            return


def specialised(prepared: PreparedModel, shapes: Mapping[str, tuple[int, ...]]) -> ir.Model:
    """The prepared model with every input at a static shape and shape arithmetic folded away; names as in the network."""
    return _static_twin(prepared.model, shapes)


def _static_twin(model: ir.Model, shapes: Mapping[str, tuple[int, ...]]) -> ir.Model:
    twin = model.clone()
    names = [str(v.name) for v in twin.graph.inputs]
    if odd := sorted(set(shapes) - set(names)):
        raise ModelError(f"--input-shape {odd[0]}: the model has no such input; its inputs: {', '.join(names)}")
    for value in twin.graph.inputs:
        value.shape = ir.Shape(_static_shape(value, shapes))
    for node in twin.graph.all_nodes():
        for value in node.outputs:
            if not value.is_graph_output():
                value.shape = None
    for value in twin.graph.outputs:
        value.shape = None
    logger = logging.getLogger("onnxscript")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        optimizer.fold_constants(twin, input_size_limit=FOLD_LIMIT, output_size_limit=FOLD_LIMIT, onnx_shape_inference=True)
        _infer_shapes(twin)
        passes.RemoveUnusedNodesPass()(twin)
    finally:
        logger.setLevel(level)
    return twin


def _static_shape(value: ir.Value, shapes: Mapping[str, tuple[int, ...]]) -> list[int]:
    name = str(value.name)
    declared: Any = value.shape
    if name in shapes:
        given = list(shapes[name])
        if declared is not None and (len(given) != len(declared) or any(
                isinstance(d, int) and d != g for d, g in zip(declared, given, strict=True))):
            raise ModelError(f"input {name!r} is declared as [{', '.join(str(d) for d in declared)}], but shape {given} was given")
        return given
    if declared is None:
        raise ModelError(f"input {name!r} has no shape; give one: --input-shape {name}=1,3,224,224")
    result = []
    for axis, size in enumerate(declared):
        if isinstance(size, int) and size > 0:
            result.append(size)
        elif axis == 0:
            result.append(1)
        else:
            raise ModelError(f"input {name!r}, axis {axis} is open ({size}); chips want static shapes. "
                             f"Give one: --input-shape {name}=" + ",".join(
                                 str(d) if isinstance(d, int) else "1" if i == 0 else "?" for i, d in enumerate(declared)))
    return result


def _refuse_quantized(model: ir.Model) -> None:
    for node in model.graph.all_nodes():
        if node.op_type in ("QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear", "QLinearConv", "QLinearMatMul",
                            "ConvInteger", "MatMulInteger", "FakeQuantize"):
            raise ModelError(f"node {node.name!r} is a {node.op_type}: the model is already quantized. "
                             "Give the float model that it was made from")
    for value in model.graph.inputs:
        if value.dtype == ir.DataType.FLOAT16:
            raise ModelError(f"input {value.name!r} is float16: give the float32 model, qbench decides what runs in FP16")
