"""The two forms in which rknn-toolkit2 takes a plan: a Q/DQ model (INT8 and FP16), or a float model with ranges beside it (INT16 too).

What the toolkit needs otherwise than ONNX has it, found with 2.5.0:
  shapes are static; every DequantizeLinear names its zero point;
  a tensor whose zero points are all 0 is taken as symmetric and gets scales 128/127 as large: codes and zero points move by one, which
  changes no real value of a weight; an activation loses its lowest code and gains one above;
  a DequantizeLinear that an integer layer and a float layer read makes it mix up their precisions: each gets its own;
  a MatMul of two axes with its bias in an Add behind it is typed FP16 and refused: written as one Gemm it is not.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from qbench.errors import PlanError
from qbench.export import Consent, Job, StoredTensor
from qbench.network import Precision
from qbench.qdq import clamped
from qbench.targets.exporters.shapes import with_static_shapes

Array = NDArray[Any]
INTEGER_16 = 65535
MIDDLE = 128
"""Codes below the zero point that the toolkit takes as symmetric."""
SYMMETRIC = "the toolkit takes zero point 0 as symmetric and changes the scale by 128/127: the zero point moves by one code"
TWO_WIDTHS = "the toolkit keeps one range for both widths of a tensor: the 16-bit codes cover the range of the 8-bit ones"


@dataclass(frozen=True)
class Adapted:
    """model   what the toolkit reads; consent   what differs from the plan in it"""

    model: ir.Model
    consent: Mapping[str, Consent]


@dataclass(frozen=True)
class Ranged:
    """A float model and what the toolkit's hybrid configuration must say of it.

    names    tensor of the network -> its name in `model`
    ranges   name in `model` -> [low, high], which give the scales of the plan
    weights  name of an initializer of `model` -> low and high of every channel
    layers   name in `model` -> "float16" or "int16", for the tensors of layers that are not INT8
    """

    model: ir.Model
    names: Mapping[str, str]
    ranges: Mapping[str, tuple[float, float]]
    weights: Mapping[str, tuple[list[float], list[float]]]
    layers: Mapping[str, str]
    consent: Mapping[str, Consent]


def quantized_form(job: Job) -> Adapted:
    """Path A: the plan's Q/DQ model as the toolkit reads it without changing a scale."""
    model = job.written.model.clone()
    with_static_shapes(model, job.prepared.network)
    consent = _asymmetric(model, job)
    _own_readers(model, job)
    _as_gemm(model, job)
    return Adapted(model, consent)


def _as_gemm(model: ir.Model, job: Job) -> None:
    """One Gemm for a MatMul of two axes and the Add of its int32 bias; the name is the MatMul's."""
    network = job.prepared.network
    flat = {k.name for k in network.kernels if k.inputs and len(network.tensors[k.inputs[0]].shape) == 2}
    for product in [n for n in model.graph if n.op_type == "MatMul" and n.name in flat]:
        value, readers = product.outputs[0], list(product.outputs[0].uses())
        if len(readers) != 1 or value.is_graph_output():
            continue
        add = readers[0][0]
        bias = next((v for v in add.inputs if v is not value), None) if add.op_type == "Add" else None
        maker = None if bias is None else bias.producer()
        stored = None if maker is None or maker.op_type != "DequantizeLinear" or maker.inputs[0] is None else maker.inputs[0].const_value
        if stored is None or stored.dtype is not ir.DataType.INT32 or len(stored.shape) != 1:
            continue
        gemm = ir.node("Gemm", [*product.inputs, bias], name=product.name)
        gemm.outputs[0].name, gemm.outputs[0].type, gemm.outputs[0].shape = add.outputs[0].name, add.outputs[0].type, add.outputs[0].shape
        model.graph.insert_after(add, gemm)
        ir.convenience.replace_all_uses_with(add.outputs[0], gemm.outputs[0], replace_graph_outputs=True)
        model.graph.remove([add, product], safe=True)


def _asymmetric(model: ir.Model, job: Job) -> dict[str, Consent]:
    """Zero points everywhere, none of them 0 as int8."""
    made: dict[str, ir.Value] = {}
    for node in [n for n in model.graph if n.op_type == "DequantizeLinear"]:
        codes, scale = node.inputs[0], node.inputs[1]
        assert codes is not None and scale is not None
        stored = None if codes.const_value is None else codes.const_value.numpy()
        if len(node.inputs) < 3 or node.inputs[2] is None:
            dtype = np.dtype(np.uint8) if stored is None else stored.dtype
            node.resize_inputs(3)
            node.replace_input_with(2, _constant(model, f"{node.outputs[0].name}_zero_point", np.zeros(_array(scale).shape, dtype)))
        elif stored is not None and stored.dtype == np.int8 and not _array(node.inputs[2]).any():
            if stored.min(initial=0) < -127:
                raise PlanError(f"weight {codes.name!r} holds the code -128, and the toolkit needs codes that can move by one: "
                                "use weights int8:symmetric,narrow (the target's own scheme)")
            if str(codes.name) not in made:
                made[str(codes.name)] = _constant(model, f"{codes.name}_moved", stored - np.int8(1))
            node.replace_input_with(0, made[str(codes.name)])
            node.replace_input_with(2, _constant(model, f"{codes.name}_moved_zero_point", _array(node.inputs[2]) - np.int8(1)))
    _move_activations(model)
    return {key: Consent(StoredTensor(t.dtype, t.scale, (t.zero_point[0] - 1,)), SYMMETRIC)
            for key, t in job.demanded.tensors.items() if not key.startswith("weight:") and t.bits == 8 and t.steps == (MIDDLE,)}


def _move_activations(model: ir.Model) -> None:
    """One code down with the zero point of every 8-bit activation that has it in the middle."""
    moved: dict[ir.Value, ir.Value] = {}
    for node in [n for n in model.graph if n.op_type in ("QuantizeLinear", "DequantizeLinear")]:
        codes, zero = node.inputs[0], node.inputs[2]
        if zero is None or (node.op_type == "DequantizeLinear" and codes is not None and codes.const_value is not None):
            continue
        value = _array(zero)
        if value.dtype.itemsize == 1 and value.ndim == 0 and int(value) - int(np.iinfo(value.dtype).min) == MIDDLE:
            if zero not in moved:
                moved[zero] = _constant(model, f"{zero.name}_moved", value - value.dtype.type(1))
            node.replace_input_with(2, moved[zero])


def _own_readers(model: ir.Model, job: Job) -> None:
    """One DequantizeLinear for the integer readers of a tensor and one for the float ones."""
    network, plan = job.prepared.network, job.plan
    kernel_of = {n: k.name for k in network.kernels for n in k.nodes}

    def kind(node: ir.Node) -> bool:
        kernel = kernel_of.get(str(node.name))
        return kernel is not None and plan.precision[network.unit_of_kernel[kernel]].is_float

    for node in [n for n in model.graph if n.op_type == "DequantizeLinear" and n.inputs[0] is not None and n.inputs[0].const_value is None]:
        value = node.outputs[0]
        floats = [(reader, index) for reader, index in value.uses() if kind(reader)]
        if not floats or (len(floats) == len(list(value.uses())) and not value.is_graph_output()):
            continue
        twin = ir.node("DequantizeLinear", node.inputs, dict(node.attributes), domain=node.domain, name=f"{node.name}_float",
                       outputs=[ir.Value(name=f"{value.name}_float", type=value.type)])
        model.graph.insert_after(node, twin)
        for reader, index in floats:
            reader.replace_input_with(index, twin.outputs[0])


def ranged_form(job: Job) -> Ranged:
    """Path B: the float model whose weights are already rounded to the plan's codes, and the ranges that give the plan's scales."""
    network, written = job.prepared.network, job.written
    model = written.model.clone()
    values = {str(v.name): v for n in model.graph for v in n.outputs} | {str(v.name): v for v in model.graph.inputs}
    raw = {t: values[name] for t, name in written.raw.items() if name in values}
    weights: dict[str, tuple[list[float], list[float]]] = {}
    for node in list(model.graph):
        if node.op_type not in ("QuantizeLinear", "DequantizeLinear"):
            continue
        source, old = node.inputs[0], node.outputs[0]
        assert source is not None
        if node.op_type == "DequantizeLinear" and source.const_value is not None:
            source = _reals(model, node, weights)
        name, ends = str(old.name), old.is_graph_output()
        ir.convenience.replace_all_uses_with(old, source, replace_graph_outputs=True)
        model.graph.remove(node, safe=True)
        if ends:
            source.name, source.type, source.shape = name, old.type, old.shape
    for domain in [d for d in model.opset_imports if d and not any(n.domain == d for n in model.graph)]:
        del model.opset_imports[domain]
    ir.passes.common.RemoveUnusedNodesPass()(model)
    ir.passes.common.TopologicalSortPass()(model)
    with_static_shapes(model, network)
    names = {t: str(v.name) for t, v in raw.items()}
    ranges, consent = _ranges(job, names)
    words = {Precision.FP16: "float16", Precision.FP32: "float16", Precision.INT16: "int16"}
    layers = {names[t]: words[p] for k in network.kernels if (p := job.plan.precision[network.unit_of_kernel[k.name]]) in words
              for t in (*k.inner, *k.outputs) if t in names and t in network.group_of}
    return Ranged(model, names, ranges, weights, layers, consent)


def _ranges(job: Job, names: Mapping[str, str]) -> tuple[dict[str, tuple[float, float]], dict[str, Consent]]:
    """Ranges by name in the model; the narrower codes decide where a tensor has two widths, and what a Relu cuts has the range behind it."""
    found: dict[str, tuple[float, float]] = {}
    consent: dict[str, Consent] = {}
    for tensor, name in names.items():
        eight, sixteen = (job.demanded.tensors.get(f"{tensor}:{p}") for p in ("int8", "int16"))
        stored = eight or sixteen
        if stored is None:
            continue
        found[name] = reach(stored)
        if eight is not None and sixteen is not None:
            low, high = found[name]
            scale = (high - low) / INTEGER_16
            consent[f"{tensor}:int16"] = Consent(StoredTensor("int16", (scale,), (round(-32768 - low / scale),)), TWO_WIDTHS)
    for kernel in job.prepared.network.kernels:
        for tensor in clamped(kernel):
            behind = names.get(kernel.outputs[0]) if kernel.outputs else None
            if behind in found and tensor in names:
                found[names[tensor]] = found[behind]
    return found, consent


def reach(stored: StoredTensor) -> tuple[float, float]:
    """The reals of the lowest and of the highest code."""
    kind, scale, zero = np.iinfo(stored.dtype), stored.scale[0], stored.zero_point[0]
    return (int(kind.min) - zero) * scale, (int(kind.max) - zero) * scale


def _reals(model: ir.Model, node: ir.Node, weights: dict[str, tuple[list[float], list[float]]]) -> ir.Value:
    """A float initializer of the values that a DequantizeLinear makes of stored codes; its range goes into `weights`."""
    codes, scale = _array(node.inputs[0]), _array(node.inputs[1])
    zero = _array(node.inputs[2]) if len(node.inputs) > 2 and node.inputs[2] is not None else np.zeros(scale.shape, codes.dtype)
    axis = node.attributes.get_int("axis", 1)
    shape = [1] * codes.ndim
    if scale.ndim:
        shape[axis] = -1
    reals = ((codes.astype(np.int64) - zero.astype(np.int64).reshape(shape)) * scale.reshape(shape)).astype(np.float32)
    name = f"{node.outputs[0].name}_reals"
    if codes.dtype.itemsize <= 2:
        kind, offset = np.iinfo(codes.dtype), 1 if codes.dtype == np.int8 else 0          # codes moved by one, as in path A
        steps = np.atleast_1d(scale).astype(np.float64)
        weights[name] = [float(s) for s in (int(kind.min) + offset) * steps], [float(s) for s in (int(kind.max) + offset) * steps]
    return _constant(model, name, reals.reshape(codes.shape))


def _array(value: ir.Value | None) -> Array:
    assert value is not None and value.const_value is not None
    return value.const_value.numpy()


def _constant(model: ir.Model, name: str, data: Array) -> ir.Value:
    value = ir.Value(name=name, const_value=ir.Tensor(np.asarray(data), name=name), type=ir.TensorType(ir.DataType.from_numpy(np.asarray(data).dtype)),
                     shape=ir.Shape(np.shape(data)))
    model.graph.register_initializer(value)
    return value
