"""OpenVINO's model files, read without OpenVINO: scales and zero points of the pairs.

model.xml lists layers (id, name, type) and edges; a Const lies in model.bin at its offset. A QuantizeLinear became a FakeQuantize between two
limits and a Convert of its name; a DequantizeLinear became Convert, Subtract and Multiply with the constants of the model.
Source: OpenVINO documentation, "Operation Sets: FakeQuantize-1" and "Intermediate Representation" (2025).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
from numpy.typing import NDArray

from qbench.errors import ToolError
from qbench.export import Contents, StoredTensor
from qbench.targets.exporters.host_layers import Names

KINDS = {"f32": "<f4", "i8": "i1", "u8": "u1", "i16": "<i2", "u16": "<u2", "i32": "<i4"}
LIMITS_APART = 1e-5
"""The limits of a FakeQuantize are float32 products of scale and code."""


@dataclass(frozen=True)
class _Layer:
    name: str
    kind: str
    data: Mapping[str, str]
    inputs: tuple[str, ...]


def read_ir(model: Path, weights: Path, names: Mapping[str, Names], demanded: Contents) -> dict[str, StoredTensor]:
    """Key -> what the files hold. Where the two halves of a pair differ, that of the FakeQuantize is told: it is not the plan's then.

    Raises ToolError for files that are no OpenVINO model.
    """
    layers, constants = _layers(model), weights.read_bytes()
    by_name = {v.name: v for v in layers.values()}
    halves = {layers[v.inputs[0]].name: v for v in layers.values() if v.kind == "Convert" and v.inputs and layers[v.inputs[0]].kind == "FakeQuantize"}
    limits = {convert.name: by_name[fake] for fake, convert in halves.items()}
    found: dict[str, StoredTensor] = {}
    for key, name in names.items():
        scale = _constant(by_name.get(name.scale), constants)
        if scale is None:
            continue
        zero = _constant(by_name.get(name.zero), constants)
        kind = demanded.tensors[key].dtype if zero is None else zero.dtype.name
        zeros = (0,) * scale.size if zero is None else tuple(int(z) for z in np.broadcast_to(zero.reshape(-1), scale.size))
        stored = StoredTensor(kind, tuple(float(s) for s in scale.reshape(-1)), zeros)
        quantize = limits.get(name.scale.removesuffix("_scale") + "_QuantizeLinear")
        found[key] = stored if quantize is None else _with_limits(stored, quantize, layers, constants)
    return found


def _with_limits(stored: StoredTensor, quantize: _Layer, layers: Mapping[str, _Layer], constants: bytes) -> StoredTensor:
    """`stored`, unless the FakeQuantize before it has other limits."""
    low, high = (_constant(layers[i], constants) for i in quantize.inputs[1:3])
    if low is None or high is None or stored.bits > 8:
        return stored
    step = (float(high.reshape(-1)[0]) - float(low.reshape(-1)[0])) / (int(quantize.data["levels"]) - 1)
    if abs(step / stored.scale[0] - 1.0) <= LIMITS_APART:
        return stored
    lowest = int(np.iinfo(stored.dtype).min)
    return StoredTensor(stored.dtype, (step,), (lowest + round(-float(low.reshape(-1)[0]) / step),))


def _layers(model: Path) -> dict[str, _Layer]:
    try:
        root = ElementTree.parse(model).getroot()
    except ElementTree.ParseError as error:
        raise ToolError(f"{model.name} is no OpenVINO model: {error}") from None
    sources: dict[str, list[tuple[int, str]]] = {}
    for edge in root.iterfind("edges/edge"):
        sources.setdefault(edge.attrib["to-layer"], []).append((int(edge.attrib["to-port"]), edge.attrib["from-layer"]))
    found = {}
    for layer in root.iterfind("layers/layer"):
        data: Any = layer.find("data")
        found[layer.attrib["id"]] = _Layer(layer.attrib["name"], layer.attrib["type"], {} if data is None else dict(data.attrib),
                                           tuple(i for _, i in sorted(sources.get(layer.attrib["id"], ()))))
    return found


def _constant(layer: _Layer | None, constants: bytes) -> NDArray[Any] | None:
    if layer is None or layer.kind != "Const" or layer.data["element_type"] not in KINDS:
        return None
    start, size = int(layer.data["offset"]), int(layer.data["size"])
    return np.frombuffer(constants[start:start + size], np.dtype(KINDS[layer.data["element_type"]]))
