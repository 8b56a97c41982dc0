"""Host memory that a device may read: aligned buffers, padded rows, and where an array really lies.

`id(array)` is the address of a Python object, not of its values, and neither `numpy.empty` nor `numpy.ascontiguousarray` promises an
alignment: both give what malloc gives. So buffers are allocated larger and cut at the wanted address, and the address is read back.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from qbench.errors import InputError
from qbench.protocols import Array

LAYOUTS = {"NCHW": 3, "NHWC": 2}
"""Layout of a picture -> the axis of its width."""


def aligned_empty(shape: tuple[int, ...], dtype: DTypeLike, align: int) -> Array:
    """A C-contiguous array of unset values whose first byte lies at a multiple of `align` bytes.

    Raises InputError when `align` is no power of two.
    """
    if align < 1 or align & (align - 1):
        raise InputError(f"an alignment of {align} bytes: expected a power of two, such as 16, 64 or 4096")
    kind = np.dtype(dtype)
    size = int(np.prod(shape, dtype=np.int64)) * kind.itemsize
    room = np.empty(size + align, np.uint8)
    first = -address_of(room) % align
    return room[first:first + size].view(kind).reshape(shape)


def address_of(array: Any) -> int:
    """Address of the first value of a numpy array, a torch tensor or anything with the buffer protocol."""
    if isinstance(array, np.ndarray):
        return int(array.ctypes.data)
    if hasattr(array, "data_ptr"):
        return int(array.data_ptr())
    return int(np.frombuffer(array, np.uint8).ctypes.data)


def shares_memory(made: Any, source: Any) -> bool:
    """Whether the first value of `made` lies inside the bytes of `source`, so that handing it over copied nothing: by address.

    Both   numpy arrays, torch tensors or buffers; of strided ones the whole span counts
    """
    first, span = address_of(source), _span(source)
    low = first + min(span)
    return low <= address_of(made) < first + max(span)


def _span(array: Any) -> tuple[int, int]:
    """Bytes before (negative) and behind the first value that belong to an array."""
    if isinstance(array, np.ndarray):
        steps = [(n - 1) * s for n, s in zip(array.shape, array.strides, strict=True)]
        size = array.itemsize
    elif hasattr(array, "data_ptr"):
        size = array.element_size()
        steps = [(n - 1) * s * size for n, s in zip(array.shape, array.stride(), strict=True)]
    else:
        return 0, memoryview(array).nbytes
    return sum(s for s in steps if s < 0), sum(s for s in steps if s > 0) + size


def padded_width(width: int, align: int) -> int:
    """`width` rounded up to a multiple of `align`, both in pixels."""
    return -(-width // align) * align


def pad_rows(array: Array, align: int, layout: str = "NHWC", base_align: int = 1) -> Array:
    """A new buffer, C-contiguous, whose rows are `align` pixels apart or a multiple of it; what is added is 0.

    array       a picture tensor of four axes in `layout`: "NHWC" or "NCHW"
    base_align  alignment of its first byte
    Raises InputError for anything else. `strip_rows` gives the picture back.
    """
    axis = _width_axis(array, layout)
    if align < 1:
        raise InputError(f"a width alignment of {align} pixels: expected 1 or more")
    shape = (*array.shape[:axis], padded_width(array.shape[axis], align), *array.shape[axis + 1:])
    made = aligned_empty(shape, array.dtype, base_align)
    made[...] = 0
    strip_rows(made, array.shape[axis], layout)[...] = array
    return made


def strip_rows(buffer: Array, width: int, layout: str = "NHWC") -> Array:
    """The picture of `width` pixels in a buffer with padded rows: a view, nothing is copied. Raises InputError when it holds fewer."""
    axis = _width_axis(buffer, layout)
    if not 0 < width <= buffer.shape[axis]:
        raise InputError(f"a picture {width} pixels wide out of rows of {buffer.shape[axis]}: expected 1 to {buffer.shape[axis]}")
    return buffer[(slice(None),) * axis + (slice(width),)]


def _width_axis(array: Array, layout: str) -> int:
    if layout not in LAYOUTS or array.ndim != 4:
        raise InputError(f"rows of an array of shape {'x'.join(map(str, array.shape))} in layout {layout!r}: expected four axes, NHWC or NCHW")
    return LAYOUTS[layout]
