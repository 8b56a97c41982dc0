"""AIMET's encodings, the files in which Qualcomm's converter takes scales: 0.6.1, 1.0.0 and 2.0.0, written and read.

How a zero point is told (BUG case B11):
  0.6.1, 1.0.0   offset counted down from the lowest code of an unsigned type: real = (q + offset) * scale with q from 0;
                 a symmetric int8 weight has offset -128
  2.0.0          as ONNX: type and zero point of QuantizeLinear, and a zero point of 0 is left out; it has no word for float, such tensors are left out
Source: files that aimet-onnx 2.42.0 wrote; it read ours.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from qbench.errors import InputError
from qbench.export import Job, StoredTensor

VERSIONS = ("0.6.1", "1.0.0", "2.0.0")
BIAS = "int32"


@dataclass(frozen=True)
class Entry:
    """One tensor.

    stored     None: it stays in float
    parameter  a weight or a bias; axis  of its channels, None: one scale for all
    """

    name: str
    stored: StoredTensor | None
    parameter: bool = False
    axis: int | None = None

    @property
    def symmetric(self) -> bool:
        return self.stored is not None and self.parameter and not any(self.stored.zero_point)


def entries(job: Job) -> tuple[Entry, ...]:
    """An entry for every parameter that is stored as integers, every weight of a float layer and every activation that holds reals.

    A tensor with codes of two widths has the entry of the layer that makes it, or the narrower one where that layer is float: the file has one place.
    """
    found = [e for n in job.written.model.graph if n.op_type == "DequantizeLinear" and (e := _parameter(n)) is not None]
    network, demanded = job.prepared.network, job.demanded
    floats = {n for k in network.kernels if demanded.layers[k.name].precision.is_float for n in k.nodes}
    kept = [v for n in job.written.model.graph if str(n.name) in floats for v in n.inputs if v is not None and v.is_initializer()]
    found += [Entry(name, None, True) for name in dict.fromkeys(str(v.name) for v in kept if v.dtype is ir.DataType.FLOAT and v.shape is not None and v.shape.rank() > 1)]
    for tensor in (t for t in job.written.raw if t in network.group_of):
        maker = network.producer.get(tensor)
        own = None if maker is None else demanded.tensors.get(f"{tensor}:{demanded.layers[maker].precision}")
        other = demanded.tensors.get(f"{tensor}:int8") or demanded.tensors.get(f"{tensor}:int16")
        if (own or other) is not None or (maker is not None and demanded.layers[maker].precision.is_float):
            found.append(Entry(tensor, own or other))
    return tuple(found)


def _parameter(node: ir.Node) -> Entry | None:
    codes, scale = node.inputs[0], node.inputs[1]
    if codes is None or codes.const_value is None or scale is None or scale.const_value is None:
        return None
    zero = node.inputs[2].const_value if len(node.inputs) > 2 and node.inputs[2] is not None else None
    scales = scale.const_value.numpy()
    zeros = np.zeros(scales.shape, np.int64) if zero is None else zero.numpy()
    stored = StoredTensor(codes.const_value.numpy().dtype.name, tuple(float(s) for s in scales.reshape(-1)), tuple(int(z) for z in zeros.reshape(-1)))
    return Entry(str(codes.name).removesuffix("_q"), stored, True, node.attributes.get_int("axis", 1) if scales.ndim else None)


def encodings(found: Iterable[Entry], version: str) -> dict[str, Any]:
    """The file's body. Raises InputError for a version that it does not know."""
    if version not in VERSIONS:
        raise InputError(f"no AIMET encodings of version {version!r}; there are {', '.join(VERSIONS)}")
    rows = tuple(found)
    producer = {"package": "qbench"}
    if version == "2.0.0":
        return {"version": version, "encodings": [_onnx_entry(e, e.stored) for e in rows if e.stored is not None], "producer": producer}
    parameters = [e for e in rows if e.parameter and (e.stored is None or e.stored.dtype != BIAS)]        # biases follow from the others
    activations = [e for e in rows if not e.parameter]
    sections: dict[str, Any]
    if version == "1.0.0":
        sections = {"activation_encodings": [_listed(e) for e in activations], "param_encodings": [_listed(e) for e in parameters]}
    else:
        sections = {"activation_encodings": {e.name: _channels(e) for e in activations}, "param_encodings": {e.name: _channels(e) for e in parameters}}
    widths = [e.stored.bits for e in activations if e.stored is not None]
    args = {"activation_bitwidth": min(widths, default=16), "dtype": "int" if widths else "float", "is_symmetric": True, "param_bitwidth": 8,
            "per_channel_quantization": any(e.axis is not None for e in parameters), "quant_scheme": "min_max"}
    return {"version": version, **sections, "quantizer_args": args, "producer": producer}


def _onnx_entry(entry: Entry, stored: StoredTensor) -> dict[str, Any]:
    many = entry.axis is not None
    body: dict[str, Any] = {"name": entry.name, "output_dtype": stored.dtype, "y_scale": list(stored.scale) if many else stored.scale[0]}
    if any(stored.zero_point):
        body["y_zero_point"] = list(stored.zero_point) if many else stored.zero_point[0]
    return body | ({"axis": entry.axis} if many else {})


def _listed(entry: Entry) -> dict[str, Any]:
    stored, kind = entry.stored, "PER_TENSOR" if entry.axis is None else "PER_CHANNEL"
    if stored is None:
        return {"name": entry.name, "bw": 16, "dtype": "FLOAT", "enc_type": kind}
    return {"name": entry.name, "bw": stored.bits, "dtype": "INT", "enc_type": kind, "is_sym": entry.symmetric, "scale": list(stored.scale),
            "offset": [float(-s) for s in stored.steps]}


def _channels(entry: Entry) -> list[dict[str, Any]]:
    stored = entry.stored
    if stored is None:
        return [{"bitwidth": 16, "dtype": "float"}]
    return [{"bitwidth": stored.bits, "dtype": "int", "is_symmetric": str(entry.symmetric), "scale": scale, "offset": float(-steps),
             "min": scale * -steps, "max": scale * (2**stored.bits - 1 - steps)} for scale, steps in zip(stored.scale, stored.steps, strict=True)]


def read_encodings(body: Mapping[str, Any]) -> tuple[Entry, ...]:
    """What a file of any of the three versions says. 0.6.1 and 1.0.0 keep no axis: it reads as 0 where there are several scales.

    Raises InputError for another version.
    """
    version = body.get("version")
    if version not in VERSIONS:
        raise InputError(f"AIMET encodings of version {version!r} are not known; there are {', '.join(VERSIONS)}")
    if version == "2.0.0":
        return tuple(_from_onnx(e) for e in body["encodings"])
    found = []
    for section, parameter in (("activation_encodings", False), ("param_encodings", True)):
        rows = [(e["name"], _together(e)) for e in body[section]] if version == "1.0.0" else [(n, _joined(e)) for n, e in body[section].items()]
        for name, (bits, symmetric, scales, offsets) in rows:
            found.append(Entry(name, _offset_form(bits, symmetric and parameter, scales, offsets), parameter, 0 if parameter and len(scales) > 1 else None))
    return tuple(found)


def _together(entry: Mapping[str, Any]) -> tuple[int, bool, list[float], list[float]]:
    return entry["bw"], bool(entry.get("is_sym")), list(entry.get("scale", ())), list(entry.get("offset", ()))


def _joined(channels: list[Mapping[str, Any]]) -> tuple[int, bool, list[float], list[float]]:
    some = [c for c in channels if "scale" in c]
    return channels[0]["bitwidth"], channels[0].get("is_symmetric") == "True", [c["scale"] for c in some], [c["offset"] for c in some]


def _offset_form(bits: int, symmetric: bool, scales: list[float], offsets: list[float]) -> StoredTensor | None:
    """Unsigned codes, or signed ones about 0 for symmetric parameters."""
    if not scales:
        return None
    lowest = -(2 ** (bits - 1)) if symmetric else 0
    return StoredTensor(f"{'int' if symmetric else 'uint'}{bits}", tuple(scales), tuple(lowest - int(o) for o in offsets))


def _from_onnx(entry: Mapping[str, Any]) -> Entry:
    kind, scale, zero = entry["output_dtype"], entry["y_scale"], entry.get("y_zero_point", 0)
    scales = tuple(scale) if isinstance(scale, list) else (scale,)
    zeros = tuple(zero) if isinstance(zero, list) else (zero,) * len(scales)
    return Entry(entry["name"], StoredTensor(kind, scales, zeros), kind in ("int8", BIAS), entry.get("axis"))
