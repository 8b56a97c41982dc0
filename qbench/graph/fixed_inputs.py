"""Inputs that the user fixes to a constant, such as the sampling rate of a speech network: they become weights, and folding does the rest."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from math import prod

import numpy as np
import onnx_ir as ir

from qbench.errors import InputError
from qbench.graph.values import Array

TRUTH = {"true": True, "1": True, "false": False, "0": False}


def fix_inputs(model: ir.Model, values: Mapping[str, str], shapes: Mapping[str, tuple[int, ...]]) -> tuple[str, ...]:
    """Turns inputs into initializers of their type and shape, in place. Returns a line for the user about each.

    values   input name -> "16000", or one number for each element, "1,0,0", in the order of memory
    shapes   input name -> shape, for inputs with open axes
    Raises InputError for an unknown name, a value that the input's type cannot hold, and a count that its shape does not.
    """
    inputs = {str(v.name): v for v in model.graph.inputs if not v.is_initializer()}
    told = []
    for name, text in values.items():
        if name not in inputs:
            raise InputError(f"--input-value {name}={text}: the model has no input {name!r}; its inputs: {', '.join(inputs) or 'none'}")
        data = _array(inputs[name], text, shapes.get(name))
        _replace(model.graph, inputs[name], data)
        told.append(f"input {name!r} is fixed to {text}: the network that is measured and written has it no more")
    if values and not model.graph.inputs:
        raise InputError(f"--input-value fixes every input ({', '.join(values)}): nothing is left to feed the network with")
    return tuple(told)


def fixed_key(key: str, values: Mapping[str, str]) -> str:
    """The content key of a model with these inputs fixed: it is another network, with other plans and statistics."""
    return hashlib.sha256("\n".join([key, *(f"{n}={t}" for n, t in sorted(values.items()))]).encode()).hexdigest() if values else key


def _replace(graph: ir.Graph, value: ir.Value, data: Array) -> None:
    """Everybody reads a weight instead of the input; an output that is the input itself is led out by an Identity."""
    tensor = ir.StringTensor([str(t).encode() for t in data.reshape(-1)], shape=ir.Shape(data.shape), name=value.name) if data.dtype.kind == "O" \
        else ir.tensor(data, dtype=value.dtype, name=value.name)
    graph.inputs.remove(value)
    if value.is_graph_output():
        out = ir.Value(name=value.name, type=value.type, shape=ir.Shape(data.shape))
        for position, output in enumerate(graph.outputs):
            if output is value:
                graph.outputs[position] = out
        value.name = f"{value.name}_fixed"
        graph.append(ir.node("Identity", [value], outputs=[out]))
    value.const_value, value.shape = tensor, ir.Shape(data.shape)
    graph.register_initializer(value)


def _array(value: ir.Value, text: str, given: tuple[int, ...] | None) -> Array:
    where = f"--input-value {value.name}={text}"
    if not isinstance(value.type, ir.TensorType):
        raise InputError(f"{where}: only tensors can be fixed, and this input is none")
    parts = [_element(p.strip(), value, where) for p in text.split(",")]
    shape = _shape(value, given, len(parts), where)
    if len(parts) not in (1, prod(shape)):
        holds = "is one number" if not shape else f"holds {prod(shape)} values ({'x'.join(map(str, shape))})"
        raise InputError(f"{where}: {len(parts)} values, but the input {holds}: give one for all of it, or one for each")
    dtype = np.dtype(object) if value.dtype == ir.DataType.STRING else value.type.dtype.numpy()
    filled: Array = np.full(shape, parts[0], dtype) if len(parts) == 1 else np.array(parts, dtype).reshape(shape)
    return filled


def _shape(value: ir.Value, given: tuple[int, ...] | None, count: int, where: str) -> tuple[int, ...]:
    """The declared shape, with open axes as `given`; a vector of open length is as long as its values are many."""
    declared = value.shape
    if given is not None:
        fits = declared is None or (len(given) == len(declared) and all(not isinstance(d, int) or d in (g, 0, -1) for d, g in zip(declared, given, strict=True)))
        if not fits:
            raise InputError(f"{where}: the input is declared as [{', '.join(map(str, declared or ()))}], but --input-shape says {list(given)}")
        return given
    if declared is None:
        raise InputError(f"{where}: the input has no shape; give one, too: --input-shape {value.name}=1,3")
    sizes = [d if isinstance(d, int) and d > 0 else None for d in declared]
    if None in sizes and len(sizes) == 1 and count > 1:
        return (count,)
    if None in sizes:
        raise InputError(f"{where}: the input has open axes ([{', '.join(map(str, declared))}]); give its shape, too: --input-shape {value.name}="
                         + ",".join("1" if d is None else str(d) for d in sizes))
    return tuple(d for d in sizes if d is not None)


def _element(text: str, value: ir.Value, where: str) -> str | bool | int | float:
    """One value, as the input's type wants it."""
    if value.dtype == ir.DataType.STRING:
        return text
    assert isinstance(value.type, ir.TensorType)
    dtype = value.type.dtype.numpy()
    wants = f"{where}: {text!r} does not fit the input's type {value.type.dtype.name.lower()}"
    if dtype.kind == "b":
        if text.lower() not in TRUTH:
            raise InputError(f"{wants}; give true or false")
        return TRUTH[text.lower()]
    try:
        if dtype.kind not in "iu":
            return float(text)
        number = int(text)
    except ValueError:
        raise InputError(f"{wants}; give a {'whole ' if dtype.kind in 'iu' else ''}number") from None
    limits = np.iinfo(dtype)
    if not limits.min <= number <= limits.max:
        raise InputError(f"{wants}; it holds {limits.min} to {limits.max}")
    return number
