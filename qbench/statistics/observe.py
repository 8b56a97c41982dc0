"""A twin of the model that also puts out the activation tensors to be watched, as a session ready to run.

Tensors inside the branches of an If are led out through extra outputs of the If: the branch not taken gives an empty
tensor, so a branch that no sample takes shows as "never observed" (BUG case B06). Bodies of Loop and Scan stay closed.
Weights in external files are neither read nor copied (BUG case B19), those in memory are lent to onnxruntime.
"""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
from numpy.typing import NDArray

from qbench.errors import InputError, ModelError
from qbench.modelfiles import external_files
from qbench.statistics.feeds import Expected
from qbench.statistics.stages import Stage, stages

Source = Path | str | bytes | ir.Model
Lent = tuple[NDArray[Any], ort.OrtValue]                # a weight, and the same memory as onnxruntime knows it

_NUMPY = {"float": "float32", "double": "float64", "string": "object"}      # other names of onnxruntime are those of numpy
LENT_BYTES = 4096               # smaller ones may hold shapes, which onnxruntime looks into
_FLOATS = {"float32", "float64", "float16", "bfloat16"}


@dataclass(frozen=True)
class Observed:
    """outputs   tensor asked for -> output of a stage that holds it; graph inputs map to themselves
    stages       one after the other they put out everything
    inputs       graph inputs among the tensors: taken from the feeds
    absent       tensor asked for -> why it cannot be watched
    producer     tensor asked for -> text that names the node it comes from
    weights      what `session` borrows: must live as long
    """

    stages: tuple[Stage, ...]
    expected: tuple[Expected, ...]
    outputs: dict[str, str]
    inputs: frozenset[str]
    absent: dict[str, str]
    producer: dict[str, str]
    weights: tuple[Lent, ...]


def observe(source: Source, tensors: Sequence[str], threads: int) -> Observed:
    """The twin in stages, its sessions `threads` wide.

    Raises InputError for a tensor that the model does not have, ModelError when the twin does not load.
    """
    model = _copy(source)
    graph = model.graph
    inputs = frozenset(str(v.name) for v in graph.inputs) - set(graph.initializers)
    inside = _places(graph, "")
    _check_known(tensors, inside, inputs, graph)
    absent = {t: inside[t] for t in tensors if inside.get(t, "").startswith("inside")}
    absent |= {str(v.name): "holds a sequence or an optional, which is not a tensor" for v in _values(graph)
               if v.name in tensors and isinstance(v.type, ir.SequenceType | ir.OptionalType)}
    led = _lead_out(graph, {t for t in tensors if t not in inputs and t not in absent}, _Names(model))
    declared = {id(v) for v in graph.outputs}
    graph.outputs.extend(v for v in led.values() if id(v) not in declared)
    weights = _lent(graph)
    build = cache(partial(_session, threads=threads, lent=weights))
    types = {str(v.name): _dtype(v.dtype) for v in (*graph.inputs, *led.values())}
    if "" in types.values():                                    # not inferred, but onnxruntime knows
        types = {o.name: _ort_dtype(o.type) for o in (*build(model).get_outputs(), *build(model).get_inputs())}
    outputs = {t: t if t in inputs else str(led[t].name) for t in tensors if t in inputs or t in led}
    absent |= {t: f"holds {types[o]}, which is not a float type" for t, o in outputs.items() if types[o] not in _FLOATS}
    expected = tuple(Expected(str(v.name), types[str(v.name)], _shape(v.shape)) for v in graph.inputs if v.name in inputs)
    kept = {t: o for t, o in outputs.items() if t not in absent}
    wanted = [o for t, o in kept.items() if t not in inputs]
    parts = stages(model, wanted, build) if wanted else ()
    return Observed(parts, expected, kept, inputs & kept.keys(), {t: absent[t] for t in tensors if t in absent},
                    {t: "model input" if t in inputs else inside[t] for t in kept}, tuple(weights.values()))


def _copy(source: Source) -> ir.Model:
    try:
        if isinstance(source, ir.Model):
            return source.clone()
        if isinstance(source, bytes):
            return ir.from_proto(onnx.load_model_from_string(source))
        model = ir.load(source)
        external_files(model, Path(source).parent)
        return model
    except ModelError:
        raise
    except Exception as error:                                      # protobuf and onnx_ir raise many kinds here
        name = "model" if isinstance(source, bytes | ir.Model) else source
        raise ModelError(f"{name}: not a readable ONNX file ({type(error).__name__}: {str(error)[:200]})") from error


def _places(graph: ir.Graph, closed: str) -> dict[str, str]:
    """tensor -> node it comes from; where it cannot be reached, a text that begins with "inside"."""
    found = {}
    for node in graph:
        for value in node.outputs:
            if value.name:
                found[value.name] = closed or f"node {node.name!r} ({node.op_type})"
        shut = closed or ("" if node.op_type == "If" else
                          f"inside the body of {node.op_type} node {node.name!r}, whose tensors cannot be watched")
        for body in _bodies(node):
            found |= _places(body, shut)
    return found


def _values(graph: ir.Graph) -> list[ir.Value]:
    """Inputs, and what nodes make, in bodies too."""
    return [*graph.inputs, *(v for n in graph.all_nodes() for v in n.outputs)]


def _bodies(node: ir.Node) -> list[ir.Graph]:
    return [a.as_graph() for a in node.attributes.values() if a.type == ir.AttributeType.GRAPH]


def _check_known(tensors: Sequence[str], inside: dict[str, str], inputs: frozenset[str], graph: ir.Graph) -> None:
    for name in tensors:
        if name in inside or name in inputs:
            continue
        if name in graph.initializers:
            raise InputError(f"tensor {name!r} is a weight; statistics are of activations: weights are read from the model")
        near = difflib.get_close_matches(name, [*inside, *inputs], 3, 0.5)
        raise InputError(f"the model has no tensor {name!r}" + (f"; near: {', '.join(near)}" if near else ""))


class _Names:
    """Tensor names that no graph of the model uses yet (BUG case B21)."""

    def __init__(self, model: ir.Model) -> None:
        self._used = {v.name for n in model.graph.all_nodes() for v in (*n.inputs, *n.outputs) if v is not None}
        self._next = 0

    def fresh(self) -> str:
        while (name := f"watched_{self._next}") in self._used:
            self._next += 1
        self._used.add(name)
        return name


def _lead_out(graph: ir.Graph, wanted: set[str], names: _Names) -> dict[str, ir.Value]:
    """Wanted tensor -> a value of `graph` that holds it, for those in it and in the branches of its Ifs."""
    found: dict[str, ir.Value] = {}
    for node in list(graph):
        found |= {str(v.name): v for v in node.outputs if v.name in wanted}
        if node.op_type != "If":
            continue
        branches = _bodies(node)
        for taken in branches:
            for name, value in _lead_out(taken, wanted, names).items():
                found[name] = _through_if(node, taken, [b for b in branches if b is not taken], value, names)
    return found


def _through_if(node: ir.Node, taken: ir.Graph, others: list[ir.Graph], value: ir.Value, names: _Names) -> ir.Value:
    """A new output of the If `node` with the value of the branch `taken`, or with no elements when another is taken."""
    dtype = value.dtype or ir.DataType.FLOAT
    same = ir.node("Identity", [value])
    empty = ir.tensor(np.empty(0, dtype.numpy()), dtype)
    for branch, extra in [(taken, same), *((b, ir.node("Constant", [], {"value": empty})) for b in others)]:
        extra.outputs[0].name = names.fresh()
        extra.outputs[0].type = ir.TensorType(dtype)
        branch.append(extra)
        branch.outputs.append(extra.outputs[0])
    node.resize_outputs(len(node.outputs) + 1)
    out = node.outputs[-1]
    out.name, out.type = names.fresh(), ir.TensorType(dtype)
    return out


def _lent(graph: ir.Graph) -> dict[str, Lent]:
    """Takes the large float32 weights out of the graph, leaving references: writing and parsing them takes longer than a run.

    Weights that nobody reads are dropped: onnxruntime does so itself, and then refuses to borrow them.
    """
    lent = {}
    overridable = {v.name for v in graph.inputs}
    read = {id(v) for n in graph.all_nodes() for v in n.inputs} | {id(v) for v in graph.outputs} | {
        id(v) for n in graph.all_nodes() for b in _bodies(n) for v in b.outputs}
    for name, value in list(graph.initializers.items()):
        if id(value) not in read:
            del graph.initializers[name]
            continue
        held = value.const_value
        if held is None or isinstance(held, ir.ExternalTensor) or name in overridable:
            continue
        if held.dtype == ir.DataType.FLOAT and held.nbytes >= LENT_BYTES:
            array = np.ascontiguousarray(held.numpy())
            lent[name] = array, ort.OrtValue.ortvalue_from_numpy(array)
            value.const_value = ir.ExternalTensor("lent", 0, held.nbytes, held.dtype, name=name, shape=ir.Shape(array.shape), base_dir="")
    return lent


def _session(model: ir.Model, threads: int, lent: dict[str, Lent]) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 3
    options.enable_mem_pattern = False      # a planned block for all activations does not suit outputs that outlive the run: 10 % slower
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")    # the cores count while no kernel runs
    mine = {name: lent[name][1] for name in model.graph.initializers if name in lent}
    options.add_external_initializers(list(mine), list(mine.values()))
    folders = [v.const_value.base_dir for n, v in model.graph.initializers.items()
               if isinstance(v.const_value, ir.ExternalTensor) and n not in mine]
    if folders:
        options.add_session_config_entry("session.model_external_initializers_file_folder_path", str(Path(folders[0]).resolve()))
    try:
        return ort.InferenceSession(ir.to_proto(model).SerializeToString(), options, providers=["CPUExecutionProvider"])
    except Exception as error:
        raise ModelError(f"onnxruntime cannot load the model with its activations as outputs: {str(error).splitlines()[0][:300]}") from error


def _dtype(dtype: ir.DataType | None) -> str:
    """numpy name; "" when it is not known."""
    if dtype is None or dtype == ir.DataType.UNDEFINED:
        return ""
    return "object" if dtype == ir.DataType.STRING else str(dtype.numpy())


def _ort_dtype(text: str) -> str:
    """numpy name of onnxruntime's "tensor(float)"."""
    inner = text[text.find("(") + 1 : -1] if text.startswith("tensor(") else text
    return _NUMPY.get(inner, inner)


def _shape(shape: Any) -> tuple[int | str, ...] | None:
    return tuple(d if isinstance(d, int) else (d.value or "?") for d in shape) if shape is not None else None
