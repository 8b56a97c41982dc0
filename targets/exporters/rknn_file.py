"""Reads a compiled .rknn: which operator runs where, and how every activation is stored.

The file is a header of 64 bytes, a FlatBuffer, and JSON behind it. Its schema is not published: the field numbers below were found by
comparing files of rknn-toolkit2 2.5.0 with their sources (file version 6). Weights lie in the order of the array, without scales.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from qbench.errors import ToolError

HEADER_BYTES = 64
FILE_VERSION = 6
GRAPHS, COMPILER = 2, 7                                       # fields of the root
TENSORS, OPERATORS = 0, 1                                     # of a graph
DTYPE, NAME, SCALE, ZERO_POINT = 0, 5, 10, 11                 # of a tensor
KIND, FULL_NAME, PROCESSOR, INPUTS, OUTPUTS = 1, 2, 3, 4, 5   # of an operator
DTYPES = {3: "int8", 5: "int16", 6: "int32", 7: "int64", 10: "float16"}
PROCESSORS = {0: "CPU", 1: "GPU", 2: "NPU"}


@dataclass(frozen=True, slots=True)
class RknnTensor:
    """scale, zero_point   empty for one that is not quantized, and for weights"""

    name: str
    dtype: str
    scale: tuple[float, ...]
    zero_point: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class RknnOperator:
    """node   name behind the "TYPE:" of its full name, without the "#2" of a rewrite; inputs, outputs   indices of tensors"""

    kind: str
    node: str
    processor: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class RknnFile:
    compiler: str
    tensors: tuple[RknnTensor, ...]
    operators: tuple[RknnOperator, ...]


def read_rknn(path: Path) -> RknnFile:
    """Raises ToolError for a file that is not of the known version, or that cannot be followed."""
    data = path.read_bytes()
    version = struct.unpack_from("<Q", data, 8)[0] if len(data) > HEADER_BYTES else 0
    if data[:4] != b"RKNN" or version != FILE_VERSION:
        raise ToolError(f"{path.name} is no .rknn of file version {FILE_VERSION} (found {data[:4]!r}, version {version}): what was compiled cannot be read back; "
                        "use rknn-toolkit2 2.5.0")
    try:
        return _Reader(data).read()
    except (struct.error, IndexError, UnicodeDecodeError, KeyError) as error:
        raise ToolError(f"{path.name}: its tables cannot be followed ({type(error).__name__}: {error}); what was compiled cannot be read back") from error


class _Reader:
    """A FlatBuffer as tables of fields. Source: FlatBuffers internals, flatbuffers.dev (tables, vtables, vectors)."""

    def __init__(self, data: bytes) -> None:
        self.data = data

    def read(self) -> RknnFile:
        root = self._fields(HEADER_BYTES + self._u32(HEADER_BYTES))
        graph = self._fields(self._tables(root[GRAPHS])[0])
        return RknnFile(self._text(root[COMPILER]), tuple(self._tensor(self._fields(t)) for t in self._tables(graph[TENSORS])),
                        tuple(self._operator(self._fields(o)) for o in self._tables(graph[OPERATORS])))

    def _tensor(self, f: dict[int, int]) -> RknnTensor:
        kind = self.data[f[DTYPE]] if DTYPE in f else -1
        name = self._text(f[NAME]) if NAME in f else ""
        return RknnTensor(name, DTYPES.get(kind, f"type {kind}"), tuple(self._vector(f, SCALE, "<f")), tuple(int(z) for z in self._vector(f, ZERO_POINT, "<i")))

    def _operator(self, f: dict[int, int]) -> RknnOperator:
        node = self._text(f[FULL_NAME]).partition(":")[2].partition("#")[0]
        processor = PROCESSORS.get(self.data[f[PROCESSOR]] if PROCESSOR in f else 0, "?")
        return RknnOperator(self._text(f[KIND]), node, processor, *(tuple(int(i) for i in self._vector(f, k, "<I")) for k in (INPUTS, OUTPUTS)))

    def _u32(self, at: int) -> int:
        return int(struct.unpack_from("<I", self.data, at)[0])

    def _fields(self, table: int) -> dict[int, int]:
        """Field number -> where its value lies; absent fields have their default."""
        virtual = table - struct.unpack_from("<i", self.data, table)[0]
        count = (struct.unpack_from("<H", self.data, virtual)[0] - 4) // 2
        offsets = struct.unpack_from(f"<{count}H", self.data, virtual + 4)
        return {i: table + o for i, o in enumerate(offsets) if o}

    def _target(self, at: int) -> int:
        return at + self._u32(at)

    def _text(self, at: int) -> str:
        start = self._target(at)
        return self.data[start + 4:start + 4 + self._u32(start)].decode()

    def _tables(self, at: int) -> list[int]:
        return self._elements(at, self._target)

    def _elements(self, at: int, read: Callable[[int], int]) -> list[int]:
        start = self._target(at)
        return [read(start + 4 + 4 * i) for i in range(self._u32(start))]

    def _vector(self, f: dict[int, int], field: int, form: str) -> list[float]:
        if field not in f:
            return []
        start = self._target(f[field])
        return [struct.unpack_from(form, self.data, start + 4 + 4 * i)[0] for i in range(self._u32(start))]
