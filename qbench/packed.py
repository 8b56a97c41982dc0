"""Small arrays inside a JSON plan: exact, comparable, hashable."""

from __future__ import annotations

import base64
import zlib
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
KINDS = ("float32", "int8", "int16")


@dataclass(frozen=True, slots=True)
class Packed:
    """An array as bytes. dtype: one of KINDS; data: its values, little-endian, C order."""

    dtype: str
    shape: tuple[int, ...]
    data: bytes

    @staticmethod
    def of(array: Array) -> Packed:
        """Raises ValueError for a dtype that a plan cannot hold."""
        if array.dtype.name not in KINDS:
            raise ValueError(f"a plan holds arrays of {', '.join(KINDS)}, not {array.dtype.name}")
        return Packed(array.dtype.name, array.shape, np.ascontiguousarray(array, array.dtype.newbyteorder("<")).tobytes())

    @property
    def array(self) -> Array:
        """A copy in the machine's byte order."""
        return np.frombuffer(self.data, np.dtype(self.dtype).newbyteorder("<")).reshape(self.shape).astype(self.dtype)

    def to_json(self) -> dict[str, Any]:
        return {"dtype": self.dtype, "shape": list(self.shape), "zlib": base64.b64encode(zlib.compress(self.data, 9)).decode()}

    @staticmethod
    def from_json(body: dict[str, Any]) -> Packed:
        """Raises ValueError when the pieces do not fit together."""
        dtype, shape = str(body["dtype"]), tuple(int(n) for n in body["shape"])
        if dtype not in KINDS or min(shape, default=0) < 0:
            raise ValueError(f"an array of {dtype} {list(shape)} is not one that a plan holds")
        size = int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize
        unpacked = zlib.decompressobj()
        try:
            data = unpacked.decompress(base64.b64decode(body["zlib"], validate=True), size + 1)      # never more than the shape says
        except (zlib.error, ValueError) as error:
            raise ValueError(f"broken data of an array of {dtype} {list(shape)}: {error}") from error
        if len(data) != size:
            raise ValueError(f"an array of {dtype} {list(shape)} takes {size} bytes, {len(data)} or more were found")
        return Packed(dtype, shape, data)
