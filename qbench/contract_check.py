"""Checks a real array, tensor, buffer or file against a contract: every broken clause, each with its cure and what leaving it costs."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np

from qbench.buffers import LAYOUTS, address_of
from qbench.contract import CLAUSES, Breach, Contract, Said, dense_strides
from qbench.errors import InputError
from qbench.protocols import Array

WRONG = "wrong answers, no time"
REFUSED = "the runtime refuses it, or reads beyond it"
USUAL, ODD = 3.0, 5.0
"""A normalised picture lies within about -3 and 3; noise may pass that, so only what lies beyond 5 is spoken of."""
ROUNDING = 1e-3
PICTURES = (".png", ".jpg", ".jpeg", ".bmp", ".webp", ".gif", ".tif", ".tiff")


@dataclass(frozen=True, slots=True)
class Seen:
    """What an array is in memory.

    strides   bytes
    dtype     None: numpy has none such (bfloat16); `kind` is its name either way
    address   None: not in memory yet, so alignment says nothing
    values    the same on the host
    """

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    itemsize: int
    dtype: np.dtype[Any] | None
    kind: str
    address: int | None
    values: Array
    torch: bool = False


def check(array: Any, contract: Contract, said: Said | None = None) -> list[Breach]:
    """Broken clauses of `contract`, in the order of CLAUSES; empty when it is kept.

    array   a numpy array, a torch tensor, bytes-like (the raw buffer), or the path of a file: see `check_file`
    said    what the array does not show
    """
    said = said or Said()
    if isinstance(array, Path):
        return check_file(array, contract, said)
    if isinstance(array, memoryview) and not array.c_contiguous:
        return [priced(contract, "strides", "a buffer with gaps", "bytes without gaps", "memoryview(x.tobytes())", 2 * contract.packed_bytes, "refused: BufferError")]
    if isinstance(array, (bytes, bytearray, memoryview)):
        return [*_told(contract, said), *_raw(np.frombuffer(array, np.uint8), contract)]
    seen = observe(array)
    if isinstance(seen, Breach):
        return [seen]
    return _sorted([*_device(array, contract), *_told(contract, said), *_memory(seen, contract), *_values(seen.values, contract)])


def check_file(path: Path, contract: Contract, said: Said | None = None, member: str | None = None) -> list[Breach]:
    """The same for a .npy or .npz, a picture, or any other file as a raw buffer. A file has no address: alignment is not looked at.

    member   name in a .npz; default: the input's name, or the only one
    Raises InputError for what cannot be read.
    """
    try:
        if path.suffix.lower() in (".npy", ".npz"):
            array, name = _stored(path, contract, member)
            told = said or Said()
            return _without_address(check(array, replace(contract, base_align_bytes=1), told if told.name or not name else replace(told, name=name)))
        if path.suffix.lower() in PICTURES:
            return _sorted([*_told(contract, said or Said()), *_picture(path, contract)])
        return [*_told(contract, said or Said()), *_raw(np.fromfile(path, np.uint8), replace(contract, base_align_bytes=1))]
    except (OSError, ValueError, SyntaxError, EOFError, BadZipFile) as error:
        raise InputError(f"{path}: cannot be read ({error}); give a .npy, a .npz, a picture, or the raw bytes of the tensor") from error


def observe(array: Any) -> Seen | Breach:
    """A numpy array or a torch tensor as it lies in memory; a Breach of "kind" for anything else."""
    if isinstance(array, np.ndarray) and array.dtype.kind in "biufc":
        native = array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("="))
        kind = str(array.dtype) if array.dtype.isnative else f"{array.dtype.name}, bytes swapped ({array.dtype.str})"
        return Seen(array.shape, array.strides, array.itemsize, array.dtype, kind, address_of(array), native)
    if hasattr(array, "data_ptr") and hasattr(array, "stride"):
        import torch

        host = array.detach().cpu()
        kind = str(array.dtype).removeprefix("torch.")
        known = array.dtype != torch.bfloat16
        values = (host if known else host.float()).contiguous().numpy()
        size = array.element_size()
        address = address_of(array) if array.device.type == "cpu" else None
        return Seen(tuple(array.shape), tuple(s * size for s in array.stride()), size, values.dtype if known else None, kind, address, values, True)
    kind = f"array of {array.dtype}" if isinstance(array, np.ndarray) else type(array).__name__
    return Breach("kind", kind, "a numpy array, a torch tensor, or bytes", "numpy.asarray(x, dtype)", REFUSED)


def _sorted(found: list[Breach]) -> list[Breach]:
    return sorted(found, key=lambda b: CLAUSES.index(b.clause))


def _without_address(found: list[Breach]) -> list[Breach]:
    return [b for b in found if b.clause != "alignment"]


def _device(array: Any, contract: Contract) -> Iterator[Breach]:
    device = getattr(array, "device", None)
    kind = getattr(device, "type", "cpu")
    if hasattr(array, "data_ptr") and kind != "cpu":
        yield priced(contract, "device", f"a tensor on {device}", "host memory", "x.cpu()", contract.packed_bytes, "copied over the bus")
    elif getattr(array, "requires_grad", False):
        yield Breach("device", "a tensor that records gradients", "a plain one", "x.detach()", "x.numpy() raises RuntimeError")


def _told(contract: Contract, said: Said) -> Iterator[Breach]:
    if said.name is not None and said.name != contract.name:
        yield Breach("name", repr(said.name), repr(contract.name), f"feed it as {contract.name!r}", REFUSED)
    order = said.channel_order.lower() if said.channel_order else ""
    if order and contract.channel_order and order != contract.channel_order:
        swap = {"NCHW": "x[:, ::-1]", "NHWC": "x[..., ::-1]"}.get(contract.layout, "x[..., ::-1]")
        known = {order, contract.channel_order} == {"rgb", "bgr"}
        yield Breach("channel order", order, contract.channel_order, f"numpy.ascontiguousarray({swap})" if known else f"convert {order} to {contract.channel_order}",
                     WRONG)
    for what, have, want in (("scale", said.scale, contract.scale), ("zero point", said.zero_point, contract.zero_point)):
        if have is not None and (want is None or not np.isclose(have, want, rtol=1e-6, atol=0.0)):
            needed = f"{what} {want:g}" if want is not None else f"real values: no {what}"
            yield Breach("quantization", f"{what} {have:g}", needed, f"quantize again with {what} {want:g}" if want is not None else "hand over reals", WRONG)
    if said.normalised is not None and contract.normalised_by and said.normalised != (contract.normalised_by == "host"):
        by_model = contract.normalised_by == "model"
        yield Breach("normalisation", "mean and std applied on the host" if said.normalised else "mean and std not applied",
                     "mean and std left to the model" if by_model else "mean and std applied on the host",
                     "hand over the 8-bit pixels" if by_model else "x = (x * scale - mean) / std", WRONG)


def _memory(seen: Seen, contract: Contract) -> Iterator[Breach]:
    moved = (seen.itemsize + contract.itemsize) * int(np.prod(contract.shape))
    if seen.dtype != np.dtype(contract.dtype):
        to = f"x.{'to(torch.' + contract.dtype + ')' if seen.torch else 'astype(numpy.' + contract.dtype + ')'}"
        lossy = np.dtype(contract.dtype).kind in "iu" and (seen.dtype is None or seen.dtype.kind == "f")
        cure = f"quantize it: numpy.clip(numpy.rint(x / {contract.scale:g}) + {contract.zero_point}, ...)" if contract.scale else f"{to} (after rounding to whole numbers)" if lossy else to
        yield priced(contract, "dtype", seen.kind, contract.dtype, cure, moved, "converted, or its bytes are misread")
    right = seen.shape == contract.shape or seen.shape == contract.padded_shape
    if not right:
        yield from _shape(seen, contract)
    else:
        yield from _strides(seen, contract)
    if seen.address is not None and seen.address % contract.base_align_bytes:
        yield priced(contract, "alignment", f"address {seen.address:#x}, {_alignment(seen.address)}-byte aligned",
                     f"a multiple of {contract.base_align_bytes} bytes",
                     f"copy into qbench.buffers.aligned_empty(shape, dtype, {contract.base_align_bytes})", 2 * contract.buffer_bytes,
                     "no zero copy: the runtime refuses it or copies")


def _alignment(address: int) -> int:
    return address & -address


def _shape(seen: Seen, contract: Contract) -> Iterator[Breach]:
    have, want = list(seen.shape), list(contract.shape)
    swapped = _permuted(contract.shape, contract.layout)
    other = "NHWC" if contract.layout == "NCHW" else "NCHW"
    back = "0, 3, 1, 2" if contract.layout == "NCHW" else "0, 2, 3, 1"
    batchless = len(have) == len(want) - 1 and want[:1] == [1]
    if batchless:
        yield Breach("shape", f"{have}: the batch axis is missing", str(want), "x[None]", REFUSED)
        if have == want[1:]:
            return
        if swapped and tuple(have) != swapped[1:]:
            yield Breach("shape", str(have), str(want[1:]), "resize the picture before it becomes a tensor", REFUSED)
            return
    if swapped and (seen.shape == swapped or (batchless and tuple(have) == swapped[1:])):
        order = [int(i) for i in back.split(", ")]
        free = not batchless and dense_strides(contract.shape, seen.itemsize) == tuple(seen.strides[i] for i in order)
        moved = 0 if free else 2 * contract.packed_bytes
        turn = f"x.{'permute' if seen.torch else 'transpose'}({back})"
        yield priced(contract, "layout", f"{other} {have}", f"{contract.layout} {want}",
                     f"{turn}, free: the memory is {contract.layout} already" if free else
                     f"{turn}.contiguous()" if seen.torch else f"numpy.ascontiguousarray({turn})", moved, "refused, or read in the wrong order")
    elif not batchless:
        yield Breach("shape", str(have), str(want), _shape_cure(seen.shape, contract), REFUSED)


def _permuted(shape: tuple[int, ...], layout: str) -> tuple[int, ...]:
    if layout == "NCHW":
        return tuple(shape[i] for i in (0, 2, 3, 1))
    return tuple(shape[i] for i in (0, 3, 1, 2)) if layout == "NHWC" else ()


def _shape_cure(have: tuple[int, ...], contract: Contract) -> str:
    want = contract.shape
    if len(have) == len(want):
        if want and have[1:] == want[1:]:
            return f"feed {want[0]} samples a run" if have[0] % want[0] == 0 else "pad the batch"
        return _picture_cure(have, contract) if contract.layout else f"make it {list(want)}"
    if np.prod(have) == np.prod(want):
        return f"x.reshape({', '.join(map(str, want))}), if the order of the values is right"
    return f"make it {list(want)}"


def _picture_cure(have: tuple[int, ...], contract: Contract) -> str:
    """Other channels, sides exchanged, or another size."""
    want, at = contract.shape, 1 if contract.layout == "NCHW" else 3
    sides = (2, 3) if at == 1 else (1, 2)
    if have[at] != want[at]:
        front = "x[:, :3]" if at == 1 else "x[..., :3]"
        return {(1, 3): f"x.repeat(3, {at}), if a grey picture is meant", (4, 3): f"{front}: leave the alpha channel out", (3, 1): "decode the picture as grey"}.get(
            (have[at], want[at]), f"{have[at]} channels where the model reads {want[at]}: decode the picture otherwise")
    if (have[sides[1]], have[sides[0]]) == (want[sides[0]], want[sides[1]]):
        return f"rows and columns are exchanged: x.swapaxes{sides}; where the picture itself stands upright, resize it instead"
    return "resize the picture before it becomes a tensor"


def _strides(seen: Seen, contract: Contract) -> Iterator[Breach]:
    """Axes of one element are left out: their stride is never used."""
    padded = dense_strides(contract.padded_shape, seen.itemsize)
    moved = 2 * contract.buffer_bytes
    if not _same(seen.shape, seen.strides, padded):
        if contract.padded_shape != contract.shape and _same(seen.shape, seen.strides, dense_strides(contract.shape, seen.itemsize)):
            yield rows_breach(contract, contract.packed_row_bytes, contract.packed_bytes)
            return
        cure = "x.contiguous()" if seen.torch else "numpy.ascontiguousarray(x)"
        if contract.padded_shape != contract.shape:
            cure = f"qbench.buffers.pad_rows(x, {contract.width_align_elements}, {contract.layout!r})"
        yield priced(contract, "strides", f"{list(seen.strides)} bytes: {_why(seen, contract)}", f"{list(padded)} bytes", cure, moved,
                     "the runtime copies it silently, or reads other values")
    elif contract.shape[:1] == (1,) and len(seen.shape) > 1 and seen.strides[0] != padded[0]:
        yield Breach("strides", f"a batch stride of {seen.strides[0]} bytes", f"{padded[0]} bytes", "x.clone()" if seen.torch else "x.copy()",
                     "nothing by numpy's rules; that a runtime's batch-1 path depends on it has no public source", level="advice")


def _same(shape: tuple[int, ...], have: tuple[int, ...], want: tuple[int, ...]) -> bool:
    return all(n == 1 or a == b for n, a, b in zip(shape, have, want, strict=True))


def _why(seen: Seen, contract: Contract) -> str:
    long = [(s, n) for s, n in zip(seen.strides, seen.shape, strict=True) if n > 1]
    if any(s < 0 for s, _ in long):
        return "an axis runs backwards ([::-1])"
    if any(s == 0 for s, _ in long):
        return "an axis is broadcast, not stored"
    order = _permuted(tuple(range(4)), contract.layout)
    if order and _same(tuple(seen.shape[i] for i in order), tuple(seen.strides[i] for i in order),
                       dense_strides(tuple(seen.shape[i] for i in order), seen.itemsize)):
        return "the memory is channels_last" if contract.layout == "NCHW" else "the memory is channels first"
    if [s for s, _ in long] != sorted((s for s, _ in long), reverse=True):
        return "axes are exchanged (transpose, permute)"
    return "a part of a larger array (slice, narrow)"


def rows_breach(contract: Contract, row_bytes: int, size: int) -> Breach:
    """Rows of `row_bytes` in a buffer of `size` bytes, where the contract wants them further apart."""
    axis = LAYOUTS[contract.layout]
    return priced(contract, "strides", f"rows of {row_bytes:,} bytes, {size:,} bytes in all",
                  f"rows of {contract.row_bytes:,} bytes ({contract.padded_shape[axis]} pixels), {contract.buffer_bytes:,} bytes in all",
                  f"qbench.buffers.pad_rows(x, {contract.width_align_elements}, {contract.layout!r})", contract.packed_bytes + contract.buffer_bytes,
                  "a sheared picture, and reading beyond the end")


def _raw(data: Array, contract: Contract) -> list[Breach]:
    """A raw buffer: its size must be that of the contract to the byte; then its values are looked at."""
    if data.size == contract.buffer_bytes:
        whole = data.view(contract.dtype).reshape(contract.padded_shape)
        return check(whole, contract)
    if data.size == contract.packed_bytes:
        return [rows_breach(contract, contract.packed_row_bytes, data.size)]
    elements = int(np.prod(contract.shape))
    sizes = {8: "float64", 4: "float32", 2: "float16 or int16", 1: "uint8 or int8"}
    needed = f"{contract.buffer_bytes:,} bytes ({contract.dtype} {list(contract.shape)})"
    for size, kind in sizes.items():
        if data.size == elements * size and size != contract.itemsize:
            return [priced(contract, "dtype", f"{data.size:,} bytes, as of {kind}", needed, f"x.astype(numpy.{contract.dtype})", data.size + contract.packed_bytes,
                           "refused, or its bytes are misread")]
    if contract.layout == "NHWC" and data.size % max(contract.shape[1], 1) == 0 and data.size > contract.packed_bytes:
        row = data.size // contract.shape[1]
        return [priced(contract, "strides", f"{data.size:,} bytes, as of rows of {row:,} bytes", f"rows of {contract.row_bytes:,} bytes, {needed}",
                       "qbench.buffers.strip_rows, then pad_rows for this target", contract.packed_bytes + contract.buffer_bytes, "a sheared picture")]
    return [Breach("shape", f"{data.size:,} bytes", needed, "write the tensor again with x.tofile(path), x as the contract says", REFUSED)]


def _values(values: Array, contract: Contract) -> Iterator[Breach]:
    if values.size == 0:
        return
    if values.dtype.kind in "fc":
        bad = int(values.size - np.count_nonzero(np.isfinite(values)))
        if bad:
            yield Breach("finite", f"{bad} of {values.size} values are NaN or infinite", "finite values", "find the division or logarithm that made them",
                         "wrong answers in every layer behind it")
            return
    if values.dtype.kind == "c":
        return
    low, high = float(values.min()), float(values.max())
    if contract.low is not None and contract.high is not None:
        slack = ROUNDING * (contract.high - contract.low) if np.dtype(contract.dtype).kind == "f" else 0.0
        if low < contract.low - slack or high > contract.high + slack:
            yield Breach("range", f"values from {low:.4g} to {high:.4g}", f"from {contract.low:.4g} to {contract.high:.4g}",
                         _range_cure(low, high, contract), WRONG)
    elif contract.layout and np.dtype(contract.dtype).kind == "f" and max(-low, high) > ODD:
        pixels = low >= 0.0 and high <= 255.0
        yield Breach("range", f"values from {low:.4g} to {high:.4g}{', as of pixels' if pixels else ''}", f"about {-USUAL:g} to {USUAL:g}, as normalised pictures have",
                     "give --preprocess, or check what the training did to its pictures", "wrong answers, if the model was trained on normalised pictures",
                     level="advice")


def _range_cure(low: float, high: float, contract: Contract) -> str:
    if contract.preprocessing and contract.normalised_by == "host" and low >= 0.0 and high <= 255.0 and contract.handover == "model":
        return "normalise: (x * scale - mean) / std with " + re.sub(r"^size=[^,]*,", "", contract.preprocessing.text)
    return f"find what scales it; numpy.clip(x, {contract.low:g}, {contract.high:g}) hides it"


def _stored(path: Path, contract: Contract, member: str | None) -> tuple[Array, str]:
    """The array, and the name that a .npz gives it; "" where nobody named it."""
    with open(path, "rb") as opened:                      # opened here: np.load leaves it open when the archive is broken
        found = np.load(opened, allow_pickle=False)
        if isinstance(found, np.ndarray):
            return found, ""
        name = member or (contract.name if contract.name in found.files else found.files[0] if len(found.files) == 1 else "")
        if name not in found.files:
            raise InputError(f"{path} holds {', '.join(found.files) or 'nothing'}, but not {name or contract.name!r}: name the array after the model's input")
        array: Array = found[name]
        return array, "" if member or re.fullmatch(r"arr_\d+", name) else name


def _picture(path: Path, contract: Contract) -> Iterator[Breach]:
    """A picture file, which is decoded to 8-bit HWC pixels: what is left to do until it is the tensor."""
    from PIL import Image

    with Image.open(path) as picture:
        width, height, mode = picture.width, picture.height, picture.mode
        turned = picture.getexif().get(0x0112, 1)
    if not contract.layout:
        yield Breach("kind", f"a picture of {height}x{width}", f"{contract.dtype} {list(contract.shape)}", "this input is no picture: give its array", REFUSED)
        return
    axes = (2, 3) if contract.layout == "NCHW" else (1, 2)
    want = tuple(contract.shape[a] for a in axes)
    if (height, width) != want:
        yield Breach("shape", f"{height}x{width} pixels", f"{want[0]}x{want[1]}", f"picture.resize(({want[1]}, {want[0]}), bilinear, as in training)", REFUSED)
    if turned != 1:
        yield Breach("layout", f"EXIF orientation {turned}: the pixels are stored turned", "upright pixels", "PIL.ImageOps.exif_transpose(picture)", WRONG)
    wanted = "L" if contract.shape[1 if contract.layout == "NCHW" else 3] == 1 else "RGB"
    if mode != wanted:
        yield Breach("channel order", f"mode {mode}", f"mode {wanted}", f"picture.convert({wanted!r})", REFUSED)
    if contract.handover != "pixels" and contract.dtype != "uint8":
        yield priced(contract, "dtype", "8-bit pixels", f"{contract.dtype} {contract.layout}", "qbench contract ... --code writes the function that makes it",
                     contract.packed_bytes * 2, "an unprepared picture is refused")


def priced(contract: Contract, clause: str, found: str, needed: str, cure: str, moved: int, otherwise: str) -> Breach:
    """A breach whose cure moves bytes, with milliseconds where the target has a constant for its host."""
    rate = contract.copy_bytes_per_s
    if not moved:
        return Breach(clause, found, needed, cure, otherwise)
    if not rate:
        return Breach(clause, found, needed, cure, f"{moved:,} bytes moved; {otherwise} (no time: the target has no constant for its host)", moved)
    ms = moved / rate * 1e3
    source = contract.sources.get("copy", "")
    label = source if "validated" in source else f"{source}; unvalidated"
    return Breach(clause, found, needed, cure, f"{moved:,} bytes moved, {ms:.3g} ms predicted at {rate / 1e9:g} GB/s ({label}, no interval); {otherwise}", moved, ms)
