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
from qbench.graph.affine_tail import fold_affine_tails
from qbench.graph.fixed_inputs import fix_inputs, fixed_key
from qbench.graph.inference import drop_half_types, infer_shapes
from qbench.graph.kernels import build_network
from qbench.graph.load import read, weight_bytes
from qbench.graph.mend import mend
from qbench.graph.quantized import refuse_quantized
from qbench.graph.transposed import lift_activations
from qbench.graph.values import STANDARD
from qbench.graph.widen import drop_idle_casts, widened
from qbench.network import Network

LOWEST_OPSET = 13      # QuantizeLinear and DequantizeLinear know `axis` since 13 (BUG case B17)
RAISED_OPSET = 17
COMMON_OPSET = 26      # every onnxruntime from 1.28 on runs it
HIGHEST_OPSET = 27     # onnxruntime 1.32 runs operators of 28, but has no QuantizeLinear of it; 1.31 and older do not know 27
SCAN_OPSET = 9
EVEN_SPLIT_OPSET = 18  # Split has `num_outputs` since; before, it makes even parts of as many outputs as it has
LOWEST_IR = 8
IN_MEMORY_BYTES = 1_500_000_000
"""Weights up to this size are read at once; larger models keep them in their files until a tensor is needed."""
FOLD_LIMIT = 1 << 24   # elements: weights that are computed in the graph are folded, big tables are left alone

_BATCH_NORM = RewriteRuleSet([
    rules.fuse_batchnorm_into_conv_rule, rules.fuse_batchnorm_into_conv_transpose_rule, rules.fuse_batchnorm_into_gemm_rule])


@dataclass(frozen=True)
class PreparedModel:
    """model       folded and named, dynamic axes kept; treat as read-only, `clone()` before editing
    network     what the rest of qbench sees
    notes       what was changed beyond that, for the user
    """

    model: ir.Model
    network: Network
    notes: tuple[str, ...] = ()


def load_network(source: Path | str | ir.Model, input_shapes: Mapping[str, tuple[int, ...]] | None = None,
                 input_values: Mapping[str, str] | None = None) -> PreparedModel:
    """Read and prepare a model.

    input_shapes   input name -> static shape, for axes that the model leaves open; a batch axis left open counts as 1
    input_values   input name -> constant as text, "16000": it is an input no more (`qbench.graph.fixed_inputs`)
    Raises ModelError naming the node or input, e.g. for an open axis beyond the batch; InputError for values that do not fit.
    """
    model, name, key = read(source)
    if isinstance(source, ir.Model):
        model = _copy(source)
    mend(model)
    refuse_quantized(model)
    shapes, values = dict(input_shapes or {}), dict(input_values or {})
    notes = fix_inputs(model, values, shapes)
    _refuse_odd_inputs(model)
    big = weight_bytes(model) > IN_MEMORY_BYTES
    original = _normalise(model)
    if not big:
        ir.external_data.load_to_model(model)
    note = widened(model, big)
    if note:
        infer_shapes(model)
        drop_idle_casts(model)
    _raise_opset(model)
    before = {v: n.name for n in model.graph for v in _weight_names(n)}
    _fold(model)
    _restore_names(model, before)
    infer_shapes(model)
    drop_half_types(model)
    _check_outputs(model)
    static = _static_twin(model, {k: v for k, v in shapes.items() if k not in values})
    network = build_network(static, name, fixed_key(key, values), {k: v for k, v in original.items() if k != v})
    return PreparedModel(model, network, (*notes, note) if note else notes)


def _copy(model: ir.Model) -> ir.Model:
    try:
        return model.clone()
    except RuntimeError as error:
        raise ModelError("the model cannot be copied: a node reads a tensor that no earlier node makes; sort its nodes, or save it and give the file") from error


def _refuse_odd_inputs(model: ir.Model) -> None:
    for value in model.graph.inputs:
        if isinstance(value.type, ir.SequenceType | ir.OptionalType):
            kind = "a sequence" if isinstance(value.type, ir.SequenceType) else "an optional"
            raise ModelError(f"input {value.name!r} is {kind} of tensors, which no data set of qbench holds: export the model with one input per tensor")


def _check_outputs(model: ir.Model) -> None:
    """The written file must pass onnx's checker, which wants the number of axes of every output."""
    for value in model.graph.outputs:
        if isinstance(value.type, ir.TensorType) and value.shape is None:
            raise ModelError(f"output {value.name!r} has no shape, and onnx cannot infer how many axes it has: declare it in the model "
                             "(open axes may be names, e.g. ['N', 'boxes', 4])")


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
    """Those of the main graph, but for one that leads an input, a weight or another output out: outputs keep their names.

    Identities inside bodies stay: there they lead tensors of the outer graph out of a branch.
    """
    for node in list(model.graph):
        value = node.inputs[0] if node.op_type == "Identity" and node.domain in STANDARD else None
        if value is None:
            continue
        out = node.outputs[0]
        leads_out = out.is_graph_output()
        if leads_out and (value.producer() is None or value.is_graph_output() or not any(out is o for o in model.graph.outputs)):
            continue
        name = out.name
        ir.convenience.replace_all_uses_with(out, value, replace_graph_outputs=True)
        value.shape, value.type = value.shape if value.shape is not None else out.shape, value.type or out.type
        model.graph.remove(node, safe=True)
        if leads_out:
            value.name = name


def _drop_unused_weights(model: ir.Model) -> None:
    """Weights that no node reads, e.g. of a branch that was folded away: they would be written, and cannot be lent to onnxruntime."""
    read = {id(v) for g in model.graphs() for n in g for v in n.inputs} | {id(v) for g in model.graphs() for v in g.outputs}
    for graph in model.graphs():
        for name in [n for n, v in graph.initializers.items() if id(v) not in read]:
            del graph.initializers[name]


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
    from qbench import runtime

    version = model.opset_imports.get("", 0)
    if version == 0:
        raise ModelError("the model imports no standard ONNX operator set; re-export it with opset 13 or later")
    if version > COMMON_OPSET and version > (highest := HIGHEST_OPSET if runtime.runs_opset(HIGHEST_OPSET) else COMMON_OPSET):
        raise ModelError(f"the model has opset {version}, for which this onnxruntime has no QuantizeLinear; export it with opset {highest} or lower")
    if version >= LOWEST_OPSET:
        return
    if version < SCAN_OPSET and (scan := next((n for n in model.graph.all_nodes() if n.op_type == "Scan"), None)):
        raise ModelError(f"node {scan.name!r} is a Scan of opset {version}, which has a batch axis that later ones have not; export the model with opset 13 or later")
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
        fold_constants(model)
        passes.LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0)(model)
        _BATCH_NORM.apply_to_model(model)
        infer_shapes(model)
        fold_affine_tails(model)
        lift_activations(model)
        _drop_identities(model)
        passes.RemoveUnusedNodesPass()(model)
        passes.TopologicalSortPass()(model)
        _drop_unused_weights(model)
    finally:
        logger.setLevel(level)


def fold_constants(model: ir.Model, **options: bool) -> None:
    """onnxscript's folding, in place. Raises ModelError naming the node where it fails."""
    try:
        optimizer.fold_constants(model, input_size_limit=FOLD_LIMIT, output_size_limit=FOLD_LIMIT, should_fold=_should_fold, **options)
    except Exception as error:                                   # it evaluates nodes: anything may come out
        raise ModelError(f"the model's constants cannot be folded: {str(error).splitlines()[0][:200]}. "
                         "Simplify the model there, or export it anew") from error


    if model.opset_imports.get("", 0) < EVEN_SPLIT_OPSET:
        for node in model.graph.all_nodes():                     # what it makes of a SplitToSequence into even parts
            if node.op_type == "Split" and node.domain in STANDARD:
                node.attributes.pop("num_outputs", None)


def _should_fold(node: ir.Node) -> bool | None:
    """True for a ConstantOfShape of integers, which onnxscript leaves alone: pads and sizes are made with it, and shapes end there.

    False for text, which onnxscript folds to a tensor that cannot be written.
    """
    if any(v is not None and v.dtype == ir.DataType.STRING for v in (*node.inputs, *node.outputs)):
        return False
    if node.op_type != "ConstantOfShape" or node.domain not in STANDARD:
        return None
    value = node.attributes.get("value")
    return True if value is not None and value.as_tensor().dtype in (ir.DataType.INT64, ir.DataType.INT32) else None


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


def specialised(prepared: PreparedModel, shapes: Mapping[str, tuple[int, ...]]) -> ir.Model:
    """The prepared model with every input at a static shape and shape arithmetic folded away; names as in the network."""
    return _static_twin(prepared.model, shapes)


def _static_twin(model: ir.Model, shapes: Mapping[str, tuple[int, ...]]) -> ir.Model:
    twin = model.clone()
    names = [str(v.name) for v in twin.graph.inputs]
    if odd := sorted(set(shapes) - set(names)):
        raise ModelError(f"--input-shape {odd[0]}: the model has no such input; its inputs: {', '.join(names)}")
    declared = {v.name: v.shape for n in twin.graph for v in n.outputs if _known(v.shape)}
    for node in twin.graph.all_nodes():
        for value in node.outputs:
            value.shape = None
    for value in twin.graph.inputs:
        value.shape = ir.Shape(_static_shape(value, shapes))
    logger = logging.getLogger("onnxscript")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        fold_constants(twin, onnx_shape_inference=True)
        passes.LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0)(twin)
        infer_shapes(twin)
        for value in (v for n in twin.graph for v in n.outputs if v.name in declared and not _known(v.shape)):
            value.shape = declared[value.name]                   # what only the exporter knew
            infer_shapes(twin)
        passes.RemoveUnusedNodesPass()(twin)
    finally:
        logger.setLevel(level)
    return twin


def _known(shape: ir.Shape | None) -> bool:
    return shape is not None and all(isinstance(d, int) for d in shape)


def _static_shape(value: ir.Value, shapes: Mapping[str, tuple[int, ...]]) -> list[int]:
    name = str(value.name)
    declared: Any = value.shape
    if name in shapes:
        given = list(shapes[name])
        if min(given, default=1) < 1:
            raise ModelError(f"--input-shape {name}={','.join(map(str, given))}: an axis of {min(given)} holds nothing; give 1 or more")
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
