"""The Q/DQ model as plain JSON and arrays, for workers whose environments have no ONNX."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from qbench.errors import ModelError
from qbench.export import Job

Array = NDArray[Any]
PROGRAM, ARRAYS = "program.json", "arrays.npz"
KEEPING = frozenset({"QuantizeLinear", "DequantizeLinear", "Clip", "Cast", "Identity", "Relu", "Softmax", "Sigmoid", "Tanh"})
"""They keep the shape of what they read: what the Q/DQ writer adds, and last layers whose result it renames."""
FROM_SHAPES = frozenset({"Reshape", "Flatten", "Squeeze", "Unsqueeze", "Expand", "Resize"})
"""What they make follows from the static shape of their result: their further inputs are left out."""


def refuse_operators(job: Job, known: frozenset[str], format_name: str) -> None:
    """Raises ModelError for the first node that a format's worker has no rule for, before anything is written."""
    layer = {n: k.name for k in job.prepared.network.kernels for n in k.nodes}
    for name in job.prepared.network.inputs:
        if (kind := job.prepared.network.tensors[name].dtype) != "float32":
            raise ModelError(f"input {name!r} holds {kind}, and qbench writes {format_name} with float inputs only: cut what looks it up off the model, and feed its result")
    for node in plain(job).body["nodes"]:
        if node["op"] not in known:
            raise ModelError(f"operator {node['op']} (node {node['name']!r}, layer {layer.get(node['name'], node['name'])!r}): qbench cannot write it as {format_name}. "
                             f"`qbench rewrite` knows other forms of some operators; it writes {', '.join(sorted(known - {'QuantizeLinear', 'DequantizeLinear'}))}")


def identifiers(model: ir.Model) -> dict[str, str]:
    """Value -> a name that is one in every format: letters, digits and underscores, unique."""
    found: dict[str, str] = {}
    taken: set[str] = set()
    values = [*model.graph.inputs, *(v for n in model.graph for v in n.outputs), *model.graph.initializers.values()]
    for name in (str(v.name) for v in values):
        stem = re.sub(r"\W", "_", name, flags=re.ASCII)
        stem = stem if re.match(r"[A-Za-z_]", stem) else f"v{stem}"
        made, number = stem, 1
        while made in taken:
            made, number = f"{stem}_{number}", number + 1
        taken.add(made)
        found[name] = made
    return found


@dataclass(frozen=True)
class Plain:
    """body   what goes to program.json, see `plain`; arrays   key -> constant, for arrays.npz"""

    body: dict[str, Any]
    arrays: dict[str, Array]

    def save(self, folder: Path) -> None:
        (folder / PROGRAM).write_text(json.dumps(self.body, indent=1) + "\n", encoding="utf-8")
        np.savez(folder / ARRAYS, **self.arrays)  # type: ignore[arg-type]  # numpy's stub takes the names for its own options


def plain(job: Job) -> Plain:
    """The job's Q/DQ model.

    nodes      op, name, inputs ("" for none left out), outputs, attributes, precision of the layer that they belong to ("" for pairs)
    shapes, kinds   value -> static shape, numpy name of its type; what the network does not tell is left out
    constants  value -> its array
    stored     value -> integers behind a DequantizeLinear: key of the plan, array of codes, scales, zero points, axis
    names      value -> identifier
    """
    network, model = job.prepared.network, job.written.model
    tensor_of = {v: t for t, v in job.written.raw.items()}
    precision = {n: str(job.demanded.layers[k.name].precision) for k in network.kernels for n in k.nodes}
    arrays: dict[str, Array] = {}
    body: dict[str, Any] = {"inputs": [str(v.name) for v in model.graph.inputs], "outputs": [str(v.name) for v in model.graph.outputs], "nodes": [],
                            "shapes": {}, "kinds": {}, "constants": {}, "stored": {}, "names": identifiers(model)}

    def keep(array: Array) -> str:
        arrays[key := f"a{len(arrays)}"] = array
        return key

    for value in model.graph.initializers.values():
        if value.const_value is not None and value.uses():
            data = value.const_value.numpy()
            body["shapes"][str(value.name)] = list(data.shape)
            body["kinds"][str(value.name)] = data.dtype.name
            if not all(use.node.op_type == "DequantizeLinear" and use.idx == 0 for use in value.uses()):
                body["constants"][str(value.name)] = keep(data)
    for value in model.graph.inputs:
        _describe(body, str(value.name), job, tensor_of)
    for node in model.graph:
        for value in node.outputs:
            _describe(body, str(value.name), job, tensor_of)
            first = str(node.inputs[0].name) if node.inputs and node.inputs[0] is not None else ""
            if node.op_type in KEEPING and str(value.name) not in body["shapes"] and first in body["shapes"]:
                body["shapes"][str(value.name)], body["kinds"][str(value.name)] = body["shapes"][first], "float32"
        codes = node.inputs[0] if node.inputs else None
        if node.op_type == "DequantizeLinear" and codes is not None and codes.const_value is not None:
            body["stored"][str(node.outputs[0].name)] = _stored(node, codes, keep)
            continue
        inputs = list(node.inputs[:1] if node.op_type in FROM_SHAPES else node.inputs)
        kind = "Add" if node.op_type == "Sum" and len(node.inputs) == 2 else node.op_type
        body["nodes"].append({"op": kind, "name": str(node.name), "precision": precision.get(str(node.name), ""),
                              "inputs": ["" if v is None else str(v.name) for v in inputs], "outputs": [str(v.name) for v in node.outputs],
                              "attributes": {k: _attribute(a) for k, a in node.attributes.items() if isinstance(a, ir.Attr)}})
    body["nodes"] = _needed(body)
    for node in body["nodes"]:
        if node["op"] == "ConvTranspose":
            _with_pads(node, body["shapes"])
    return Plain(body, arrays)


def _with_pads(node: dict[str, Any], shapes: Mapping[str, Any]) -> None:
    """Pads of a transposed convolution that says them by auto_pad or output_shape.

    Source: ONNX, ConvTranspose: total_padding, which SAME_UPPER halves downwards in front, all others upwards.
    """
    given = node["attributes"]
    auto = given.pop("auto_pad", "NOTSET")
    if auto not in ("SAME_UPPER", "SAME_LOWER") and "output_shape" not in given:
        return
    x, kernel, y = (shapes[name][2:] for name in (node["inputs"][0], node["inputs"][1], node["outputs"][0]))
    ones, zeros = [1] * len(x), [0] * len(x)
    stride, dilation, more = given.get("strides", ones), given.get("dilations", ones), given.get("output_padding", zeros)
    total = [max((x[i] - 1) * stride[i] + more[i] + (kernel[i] - 1) * dilation[i] + 1 - y[i], 0) for i in range(len(x))]
    front = [t // 2 if auto == "SAME_UPPER" else t - t // 2 for t in total]
    given.pop("output_shape", None)
    given["pads"] = [*front, *(t - f for t, f in zip(total, front, strict=True))]


def _needed(body: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Nodes that the outputs depend on, in order: what only computed sizes, which are static here, is gone."""
    wanted, found = set(body["outputs"]), []
    for node in reversed(body["nodes"]):
        if wanted & set(node["outputs"]):
            found.append(node)
            wanted |= set(node["inputs"])
    return found[::-1]


def _describe(body: dict[str, Any], name: str, job: Job, tensor_of: Mapping[str, str]) -> None:
    spec = job.prepared.network.tensors.get(tensor_of.get(name, name))
    if spec is not None:
        body["shapes"][name], body["kinds"][name] = list(spec.shape), spec.dtype


def _stored(node: ir.Node, codes: ir.Value, keep: Callable[[Array], str]) -> dict[str, Any]:
    data = codes.const_value.numpy()  # type: ignore[union-attr]
    scale, zero = (node.inputs[i].const_value.numpy() if i < len(node.inputs) and node.inputs[i] is not None else None for i in (1, 2))  # type: ignore[union-attr]
    assert scale is not None
    zeros = np.zeros(scale.shape, data.dtype) if zero is None else zero
    if node.attributes.get_int("block_size", 0):
        raise ModelError(f"weight {codes.name!r} has a scale per group: search again with --scale per-channel")
    return {"key": str(codes.name).removesuffix("_q"), "codes": keep(data), "scale": [float(s) for s in scale.reshape(-1)],
            "zero_point": [int(z) for z in zeros.reshape(-1)], "axis": node.attributes.get_int("axis", 1) % max(data.ndim, 1) if scale.ndim else None}


def _attribute(a: ir.Attr) -> Any:
    value = a.value
    if isinstance(value, bytes):
        return value.decode()
    if isinstance(value, tuple | list):
        return [v.decode() if isinstance(v, bytes) else v for v in value]
    return value if isinstance(value, int | float | str) else str(value)
