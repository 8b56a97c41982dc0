"""Reads a .tflite file without LiteRT: tensors with their scales, operators with what they read and write.

Source: tensorflow/lite/schema/schema.fbs, version 3 (ai-edge-litert 2.3.0, 2026), for slots and numbers; flatbuffers internals for tables and vectors.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from qbench.errors import ToolError
from qbench.export import StoredTensor

TYPES = {0: "float32", 1: "float16", 2: "int32", 3: "uint8", 4: "int64", 5: "string", 6: "bool", 7: "int16", 9: "int8", 16: "uint16"}
DEQUANTIZE, QUANTIZE = 6, 114
IDENTIFIER = b"TFL3"


@dataclass(frozen=True)
class Tensor:
    """scale, zero_point   of its codes, empty for floats; at   where type and first scale lie in the file, 0 for what is left at its default"""

    name: str
    dtype: str
    shape: tuple[int, ...]
    scale: tuple[float, ...]
    zero_point: tuple[int, ...]
    type_at: int
    scale_at: int

    @property
    def stored(self) -> StoredTensor:
        return StoredTensor(self.dtype, self.scale, self.zero_point)


@dataclass(frozen=True)
class Operator:
    """code   number of a built-in operator; inputs, outputs   names; -1 stands for an operand that is left out, which is dropped"""

    code: int
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


@dataclass(frozen=True)
class Model:
    tensors: dict[str, Tensor]
    operators: tuple[Operator, ...]

    def maker(self, name: str) -> Operator | None:
        return next((op for op in self.operators if name in op.outputs), None)


def read(path: Path) -> Model:
    """The first graph of the file. Raises ToolError for what is no .tflite file."""
    data = path.read_bytes()
    if data[4:8] != IDENTIFIER:
        raise ToolError(f"{path} is no .tflite file: it does not say TFL3")
    try:
        model = _Table(data, struct.unpack_from("<I", data)[0])
        codes = [max(c.number(0, "b"), c.number(3, "i")) for c in model.tables(1)]
        graph = next(model.tables(2))
        tensors = [_tensor(t) for t in graph.tables(0)]
        operators = tuple(Operator(codes[o.number(0, "I")], *(tuple(tensors[i].name for i in map(int, o.numbers(slot, "i")) if i >= 0) for slot in (1, 2)))
                          for o in graph.tables(3))
    except (struct.error, IndexError, StopIteration) as error:
        raise ToolError(f"{path} is damaged: {error}") from None
    return Model({t.name: t for t in tensors}, operators)


@dataclass(frozen=True)
class _Table:
    """A table of a FlatBuffer, at byte `at`."""

    data: bytes
    at: int

    def place(self, slot: int) -> int:
        """Where the field lies; 0 when it has its default."""
        table = self.at - struct.unpack_from("<i", self.data, self.at)[0]
        size = struct.unpack_from("<H", self.data, table)[0]
        offset = struct.unpack_from("<H", self.data, table + 4 + 2 * slot)[0] if 4 + 2 * slot < size else 0
        return self.at + offset if offset else 0

    def number(self, slot: int, kind: str) -> int:
        at = self.place(slot)
        return int(struct.unpack_from(f"<{kind}", self.data, at)[0]) if at else 0

    def vector(self, slot: int) -> tuple[int, int]:
        """(first byte, length); (0, 0) when there is none."""
        at = self.place(slot)
        if not at:
            return 0, 0
        start = at + struct.unpack_from("<I", self.data, at)[0]
        return start + 4, struct.unpack_from("<I", self.data, start)[0]

    def numbers(self, slot: int, kind: str) -> tuple[float, ...] | tuple[int, ...]:
        start, count = self.vector(slot)
        return struct.unpack_from(f"<{count}{kind}", self.data, start) if count else ()

    def text(self, slot: int) -> str:
        start, count = self.vector(slot)
        return self.data[start:start + count].decode()

    def table(self, slot: int) -> _Table | None:
        at = self.place(slot)
        return _Table(self.data, at + struct.unpack_from("<I", self.data, at)[0]) if at else None

    def tables(self, slot: int) -> Iterator[_Table]:
        start, count = self.vector(slot)
        for at in range(start, start + 4 * count, 4):
            yield _Table(self.data, at + struct.unpack_from("<I", self.data, at)[0])


def _tensor(t: _Table) -> Tensor:
    kind, quantization = t.number(1, "b"), t.table(4)
    scale = quantization.numbers(2, "f") if quantization else ()
    zero = quantization.numbers(3, "q") if quantization else ()
    return Tensor(t.text(3), TYPES.get(kind, f"type {kind}"), tuple(int(n) for n in t.numbers(0, "i")), tuple(float(s) for s in scale), tuple(int(z) for z in zero),
                  t.place(1), quantization.vector(2)[0] if quantization and scale else 0)
