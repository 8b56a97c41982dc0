"""AMCT's text files: the record of scales and offsets, and the simple configuration. Written, and parsed by protobuf with the documented grammar.

Sources: Huawei CANN documents, "Record Files" (atlasamct_16_0170, 9.2, 2026; the same text in 8.0's atlasamct_16_0165): messages, field numbers
and defaults of scale_offset_record_onnx.proto; "Simplified PTQ Configuration File" (atlasamct_16_0163): names and types of
calibration_config_onnx.proto, whose numbers are not published; in text form none are needed, those here are ours.
offset_w may only be 0; offset_d is the zero point of int8 codes.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import Any

from qbench.errors import ToolError

_LABEL = {"optional": 1, "repeated": 3}
_TYPE = {"float": 2, "int32": 5, "bool": 8, "string": 9, "uint32": 13}
_RECORD: dict[str, tuple[tuple[str, int, str, str], ...]] = {
    "SingleLayerRecord": (("scale_d", 1, "float", "optional"), ("offset_d", 2, "int32", "optional"), ("scale_w", 3, "float", "repeated"),
                          ("offset_w", 4, "int32", "repeated"), ("shift_bit", 5, "uint32", "repeated"), ("skip_fusion", 6, "bool", "optional"),
                          ("is_tensor_quantize", 10, "bool", "optional"), ("tensor_balance_factor", 13, "float", "repeated"),
                          ("op_data_type", 15, "string", "optional"), ("act_type", 20, "string", "optional"), ("wts_type", 21, "string", "optional")),
    "MapFiledEntry": (("key", 1, "string", "optional"), ("value", 2, "SingleLayerRecord", "optional")),
    "ScaleOffsetRecord": (("record", 1, "MapFiledEntry", "repeated"),),
}
_CONFIG: dict[str, tuple[tuple[str, int, str, str], ...]] = {
    "AMCTConfig": (("batch_num", 1, "uint32", "optional"), ("activation_offset", 2, "bool", "optional"), ("skip_layers", 3, "string", "repeated"),
                   ("skip_layer_types", 4, "string", "repeated"), ("joint_quant", 5, "bool", "optional"), ("do_fusion", 6, "bool", "optional"),
                   ("skip_fusion_layers", 7, "string", "repeated")),
}
INT8 = "INT8"


@dataclass(frozen=True)
class Record:
    """One layer with weights.

    layer      its node in the model
    scale, offset   of its input; offset as int8
    weights    scales, one, or one per output channel
    """

    layer: str
    scale: float
    offset: int
    weights: tuple[float, ...]
    act_type: str = INT8
    wts_type: str = INT8


@dataclass(frozen=True)
class Config:
    """activation_offset   activations may have an offset; skip_layers   they stay in float"""

    activation_offset: bool
    skip_layers: tuple[str, ...]


def _protobuf(module: str) -> Any:
    """Of the package that comes with onnx; it has no types."""
    return import_module(f"google.protobuf.{module}")


@cache
def _message(package: str, name: str) -> Any:
    file = _protobuf("descriptor_pb2").FileDescriptorProto(name=f"{package}.proto", package=package, syntax="proto2")
    for message, fields in (_RECORD if package == "record" else _CONFIG).items():
        made = file.message_type.add(name=message)
        for field, number, kind, label in fields:
            one: Any = made.field.add(name=field, number=number, label=_LABEL[label], type=_TYPE.get(kind, 11))
            if kind not in _TYPE:
                one.type_name = f".{package}.{kind}"
    pool = _protobuf("descriptor_pool").DescriptorPool()
    pool.Add(file)
    return _protobuf("message_factory").GetMessageClass(pool.FindMessageTypeByName(f"{package}.{name}"))


def record_text(records: Iterable[Record]) -> str:
    """record.txt"""
    body = _message("record", "ScaleOffsetRecord")()
    for r in records:
        entry = body.record.add(key=r.layer)
        value = entry.value
        value.scale_d, value.offset_d = r.scale, r.offset
        value.scale_w.extend(r.weights)
        value.offset_w.extend([0] * len(r.weights))
        value.skip_fusion, value.is_tensor_quantize, value.act_type, value.wts_type = True, False, r.act_type, r.wts_type
    return str(_protobuf("text_format").MessageToString(body))


def read_record(text: str) -> tuple[Record, ...]:
    """Raises ToolError for text that the grammar does not allow, and for what AMCT does not take: a weight with an offset, scales without offsets."""
    body = _parsed(text, _message("record", "ScaleOffsetRecord")(), "record.txt")
    found = []
    for entry in body.record:
        value = entry.value
        if any(value.offset_w) or len(value.offset_w) != len(value.scale_w):
            raise ToolError(f"record.txt: layer {entry.key!r} has offset_w {list(value.offset_w)[:4]}; AMCT takes a 0 for each scale_w and "
                            "nothing else")
        if not -128 <= value.offset_d <= 127 or not value.scale_d > 0.0 or not all(s > 0.0 for s in value.scale_w):
            raise ToolError(f"record.txt: layer {entry.key!r} has scale_d {value.scale_d:g}, offset_d {value.offset_d}: scales are positive, "
                            "offsets lie in int8")
        weights = tuple(float(s) for s in value.scale_w)
        found.append(Record(entry.key, float(value.scale_d), int(value.offset_d), weights, value.act_type or INT8, value.wts_type or INT8))
    return tuple(found)


def config_text(config: Config) -> str:
    """quant.cfg"""
    body = _message("config", "AMCTConfig")(batch_num=1, activation_offset=config.activation_offset, skip_layers=config.skip_layers)
    return str(_protobuf("text_format").MessageToString(body))


def read_config(text: str) -> Config:
    """Raises ToolError for text that the grammar does not allow."""
    body = _parsed(text, _message("config", "AMCTConfig")(), "quant.cfg")
    return Config(bool(body.activation_offset), tuple(body.skip_layers))


def _parsed(text: str, message: Any, name: str) -> Any:
    text_format = _protobuf("text_format")
    try:
        return text_format.Parse(text, message)
    except text_format.ParseError as error:
        raise ToolError(f"{name} is not what AMCT's grammar allows: {error}") from None

