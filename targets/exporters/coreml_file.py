"""Reads a Core ML package without coremltools: the protocol buffer's wire format, the fields of MIL, the file of weights.

Source: coremltools 9.0 (2025), Model.proto and MIL.proto for the numbers of fields and types; MIL's blob storage (weight.bin): per blob, at a multiple
of 64 bytes, 0xDEADBEEF, type, size, offset of the data.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from qbench.errors import ToolError

Array = NDArray[Any]
MODEL, WEIGHTS = "Data/com.apple.CoreML/model.mlmodel", "Data/com.apple.CoreML/weights/weight.bin"
TYPES = {1: "bool", 2: "str", 10: "float16", 11: "float32", 12: "float64", 21: "int8", 22: "int16", 23: "int32", 24: "int64", 31: "uint8", 32: "uint16"}
PROGRAM = 502
SENTINEL = 0xDEADBEEF


class Field(NamedTuple):
    """number   of the field; value   an integer, or the bytes of what is delimited; at   where those begin in the file"""

    number: int
    value: Any
    at: int


def wire(data: bytes, base: int = 0) -> Iterator[Field]:
    """Fields of one message, in order. Raises ToolError where it is no protocol buffer."""
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        kind = key & 7
        if kind == 0:
            value, at = _varint(data, at)
            yield Field(key >> 3, value, base + at)
        elif kind == 2:
            size, at = _varint(data, at)
            if at + size > len(data):
                raise ToolError("the package's model ends inside a field")
            yield Field(key >> 3, data[at:at + size], base + at)
            at += size
        elif kind in (1, 5):
            size = 8 if kind == 1 else 4
            yield Field(key >> 3, data[at:at + size], base + at)
            at += size
        else:
            raise ToolError(f"the package's model has a field of wire type {kind}")


def _varint(data: bytes, at: int) -> tuple[int, int]:
    found = shift = 0
    while True:
        if at >= len(data):
            raise ToolError("the package's model ends inside a number")
        byte, at = data[at], at + 1
        found |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return found, at


@dataclass(frozen=True)
class Operation:
    """inputs    parameter -> names or arrays of its arguments
    outputs   name -> (type, shape)
    at        parameter -> where its immediate bytes lie in the file, 0 where they do not
    """

    kind: str
    inputs: Mapping[str, tuple[Any, ...]]
    outputs: Mapping[str, tuple[str, tuple[int, ...]]]
    at: Mapping[str, int] = field(default_factory=dict)

    def constant(self, parameter: str) -> Any:
        """Array, or text, of a parameter that is given at once; names of constants are looked up by `read`."""
        return self.inputs[parameter][0]


@dataclass(frozen=True)
class Program:
    """inputs   name -> (type, shape); outputs   names; operations   constants left out, their arrays stand where they are read"""

    inputs: Mapping[str, tuple[str, tuple[int, ...]]]
    outputs: tuple[str, ...]
    operations: tuple[Operation, ...]


def read(package: Path) -> Program:
    """Raises ToolError for what is no ML program with one function."""
    data = (package / MODEL).read_bytes()
    weights = (package / WEIGHTS).read_bytes() if (package / WEIGHTS).is_file() else b""
    program = next((f for f in wire(data) if f.number == PROGRAM), None)
    if program is None:
        raise ToolError(f"{package / MODEL} holds no ML program")
    main = next(f for f in _entry(next(f for f in wire(program.value, program.at) if f.number == 2)) if f.number == 2)
    inputs: dict[str, tuple[str, tuple[int, ...]]] = {}
    block = None
    for f in wire(main.value, main.at):
        if f.number == 1:
            inputs.update([_named(f)])
        elif f.number == 3:
            block = next(e for e in _entry(f) if e.number == 2)
    if block is None:
        raise ToolError(f"{package / MODEL}: its function has no block")
    outputs, constants, found = [], dict[str, tuple[Any, int]](), []
    for f in wire(block.value, block.at):
        if f.number == 2:
            outputs.append(f.value.decode())
        elif f.number == 3:
            made = _operation(f, weights, constants)
            if made.kind == "const":
                constants[next(iter(made.outputs))] = made.inputs["val"][0], made.at["val"]
            else:
                found.append(made)
    return Program(inputs, tuple(outputs), tuple(found))


def _entry(f: Field) -> list[Field]:
    return list(wire(f.value, f.at))


def _named(f: Field) -> tuple[str, tuple[str, tuple[int, ...]]]:
    parts = {e.number: e for e in _entry(f)}
    return parts[1].value.decode(), _type(parts[2])


def _type(f: Field) -> tuple[str, tuple[int, ...]]:
    """Type and shape of a ValueType; of a tensor, or of lists and others, which have none."""
    tensor = next((e for e in _entry(f) if e.number == 1), None)
    kind, shape = "", []
    for e in _entry(tensor) if tensor else ():
        if e.number == 1:
            kind = TYPES.get(e.value, f"type {e.value}")
        elif e.number == 3:
            constant = next((d for d in _entry(e) if d.number == 1), None)
            shape.append(next((d.value for d in _entry(constant) if d.number == 1), 0) if constant else -1)
    return kind, tuple(shape)


def _operation(f: Field, weights: bytes, constants: Mapping[str, tuple[Any, int]]) -> Operation:
    kind, inputs, outputs, places = "", dict[str, tuple[Any, ...]](), dict[str, tuple[str, tuple[int, ...]]](), dict[str, int]()
    for e in _entry(f):
        if e.number == 1:
            kind = e.value.decode()
        elif e.number == 2:
            key, value = (next(p for p in _entry(e) if p.number == n) for n in (1, 2))
            given = []
            for argument in (a for a in _entry(value) if a.number == 1):
                part = _entry(argument)[0]
                if part.number == 1:
                    name = part.value.decode()
                    array, place = constants.get(name, (name, 0))
                    given.append(array)
                else:
                    array, place = _value(part, weights)
                    given.append(array)
                places[key.value.decode()] = place
            inputs[key.value.decode()] = tuple(given)
        elif e.number == 3:
            outputs.update([_named(e)])
        elif e.number == 5:
            key, value = (next(p for p in _entry(e) if p.number == n) for n in (1, 2))
            array, place = _value(value, weights)
            inputs[key.value.decode()], places[key.value.decode()] = (array,), place
    return Operation(kind, inputs, outputs, places)


def _value(f: Field, weights: bytes) -> tuple[Any, int]:
    """Array or text of a Value, and where its bytes lie."""
    parts = {e.number: e for e in _entry(f)}
    kind, shape = _type(parts[2])
    if 5 in parts:
        offset = next((e.value for e in _entry(parts[5]) if e.number == 2), 0)
        return _blob(weights, offset, kind).reshape(shape), 0
    tensor = next((e for e in _entry(parts[3]) if e.number == 1), None)
    if tensor is None:
        return None, 0
    held = next(iter(_entry(tensor)), None)
    if kind == "str":
        return next((e.value.decode() for e in _entry(held) if e.number == 1), "") if held else "", 0
    if held is None:
        return np.zeros(shape, kind), 0
    values = next((e for e in _entry(held) if e.number == 1), None)
    if values is None:
        return np.zeros(shape, kind), 0
    if held.number == 7:
        array = np.frombuffer(values.value, kind)
    elif held.number in (1, 6):
        array = np.frombuffer(values.value, "<f4" if held.number == 1 else "<f8")
    else:
        array = np.asarray(_packed(values), np.int64).astype(kind)
    return array.reshape(shape), values.at


def _packed(f: Field) -> list[int]:
    found, at = [], 0
    while at < len(f.value):
        value, at = _varint(f.value, at)
        found.append(value - (1 << 64) if value >> 63 else value)
    return found


def _blob(weights: bytes, offset: int, kind: str) -> Array:
    sentinel, _, size, start = struct.unpack_from("<IIQQ", weights, offset)
    if sentinel != SENTINEL or start + size > len(weights):
        raise ToolError(f"weight.bin has no blob at byte {offset}")
    return np.frombuffer(weights[start:start + size], kind)
