"""Writes the Python function that prepares an input as a contract wants it: decode, resize, colours and type, values and layout, memory.

The function needs numpy, and Pillow for pictures; after each step it checks what the step promised, and says what is wrong.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from qbench.buffers import LAYOUTS
from qbench.contract import Contract
from qbench.data.preprocessing import Preprocessing
from qbench.errors import InputError


def function_name(contract: Contract) -> str:
    """"prepare_x" for the input "x"; what no identifier takes becomes "_"."""
    return "prepare_" + "".join(c if c.isascii() and c.isalnum() else "_" for c in contract.name)


def code_for(contracts: Sequence[Contract]) -> str:
    """A module with one function per input. Raises InputError when two inputs would share a name."""
    names = [function_name(c) for c in contracts]
    if len(set(names)) < len(names):
        raise InputError(f"inputs {', '.join(c.name for c in contracts)} would share a function name: rename one of them in the model")
    pictures = any(_decodes(c) for c in contracts)
    head = ['"""Prepares inputs. Each step checks what it promised."""', "", "import numpy as np"]
    head += ["from PIL import Image, ImageOps"] if pictures else []
    parts = ["\n".join(head), *(["\n".join(_aligned())] if any(_copies(c) for c in contracts) else []), *("\n".join(_function(c)) for c in contracts)]
    return "\n\n\n".join(parts) + "\n"


def _decodes(c: Contract) -> bool:
    """Whether pixels are where this input begins; codes begin at them where the way to reals is known."""
    return c.shape[:1] == (1,) and (c.handover == "pixels" or bool(c.layout and c.preprocessing))


def _copies(c: Contract) -> bool:
    return c.base_align_bytes > 1 or c.padded_shape != c.shape


def _aligned() -> Iterator[str]:
    yield from (
        "def aligned_zeros(shape, dtype, align):",
        '    """Zeros whose first byte lies at a multiple of `align` bytes: allocated larger, cut at the address."""',
        "    size = int(np.prod(shape)) * np.dtype(dtype).itemsize",
        "    room = np.zeros(size + align, np.uint8)",
        "    first = -room.ctypes.data % align",
        "    return room[first:first + size].view(dtype).reshape(shape)",
    )


def _function(c: Contract) -> Iterator[str]:
    how = "pixels" if _decodes(c) else "array"
    took = "path of a picture, or its pixels: uint8 [H, W, 3] in RGB order, or [H, W]" if _decodes(c) else f"{c.dtype} {list(c.shape)}, or without the batch axis"
    yield f"def {function_name(c)}({'source' if _decodes(c) else 'x'}):"
    yield f'    """Input {_plain(c.name)} for {c.target}: {c.dtype} {list(c.shape)}{" " + c.layout if c.layout else ""}. source: {took}."""' if how == "pixels" else (
        f'    """Input {_plain(c.name)} for {c.target}: {c.dtype} {list(c.shape)}. x: {took}."""')
    yield from (f"    {line}" if line else "" for line in (*(_picture(c) if _decodes(c) else _array(c)), *_memory(c)))


def _plain(name: str) -> str:
    return "".join(ch for ch in name if ch.isprintable() and ch not in '"\\')


def _picture(c: Contract) -> Iterator[str]:
    axes = (2, 3) if c.layout == "NCHW" else (1, 2)
    height, width = c.shape[axes[0]], c.shape[axes[1]]
    channels = c.shape[1 if c.layout == "NCHW" else 3]
    how = c.preprocessing or Preprocessing(colour="gray" if channels == 1 else "rgb")
    mode = "L" if channels == 1 else "RGB"
    yield "# 1. decode: upright 8-bit pixels in RGB order, height first"
    yield "if isinstance(source, np.ndarray) and source.dtype != np.uint8:"
    yield '    raise ValueError(f"pixels are {source.dtype}, needed uint8: decoded, not normalised")'
    yield "picture = Image.fromarray(source) if isinstance(source, np.ndarray) else ImageOps.exif_transpose(Image.open(source))"
    yield f"picture = picture.convert({mode!r})"
    yield "# 2. resize, as in training"
    if how.fit == "crop":
        yield f"picture = ImageOps.fit(picture, ({width}, {height}), Image.Resampling.BILINEAR)"
    else:
        yield f"picture = picture.resize(({width}, {height}), Image.Resampling.BILINEAR)"
    yield "x = np.asarray(picture)" + (".reshape(" + f"{height}, {width}, 1)" if channels == 1 else "")
    yield f"if x.shape != ({height}, {width}, {channels}) or x.dtype != np.uint8:"
    yield '    raise ValueError(f"decoding gave {x.dtype} {x.shape}")'
    yield f"# 3. channel order {how.colour}" + (" (training's order; Pillow decodes RGB)" if how.colour == "bgr" else "")
    if how.colour == "bgr":
        yield "x = x[..., ::-1]"
    if c.handover == "pixels" or (c.dtype == "uint8" and c.scale is None):
        yield "# 4. values: pixels as they are, mean and std are the model's; " + ("batch axis" if c.layout == "NHWC" else "channels first, batch axis")
        yield "x = x[None]" if c.layout == "NHWC" else "x = x.transpose(2, 0, 1)[None]"
        return
    yield "# 4. values: (pixel * scale - mean) / std; " + ("batch axis" if c.layout == "NHWC" else "channels first, batch axis")
    yield f"x = (x.astype(np.float32) * np.float32({how.scale!r}) - np.array({_list(how.mean)}, np.float32)) / np.array({_list(how.std)}, np.float32)"
    yield "x = x[None]" if c.layout == "NHWC" else "x = x.transpose(2, 0, 1)[None]"
    yield from _codes(c)
    if c.scale is None and c.low is not None and c.high is not None:
        slack = 1e-3 * (c.high - c.low)
        yield f"if not {c.low - slack!r} <= x.min() <= x.max() <= {c.high + slack!r}:"
        yield '    raise ValueError(f"values from {x.min()} to {x.max()}: pixels normalised twice, or not at all?")'


def _array(c: Contract) -> Iterator[str]:
    """No picture, or one whose normalisation nobody told: steps 1 to 4 are the caller's, and are checked."""
    yield "x = np.asarray(x)"
    if c.shape and c.shape[0] == 1:
        yield f"x = x[None] if x.shape == {c.shape[1:]!r} else x"
    yield f"if x.shape != {c.shape!r}:"
    yield f'    raise ValueError(f"shape {{x.shape}}, needed {c.shape!r}")'
    yield 'if x.dtype.kind == "f" and not np.isfinite(x).all():'
    yield '    raise ValueError("NaN or infinity in the input")'
    yield from _codes(c)


def _codes(c: Contract) -> Iterator[str]:
    if c.scale is not None:
        yield f"x = np.clip(np.rint(x / np.float32({c.scale!r})) + {c.zero_point}, {c.low:.0f}, {c.high:.0f})"


def _list(numbers: Sequence[float]) -> str:
    return "[" + ", ".join(repr(float(n)) for n in numbers) + "]"


def _memory(c: Contract) -> Iterator[str]:
    yield "# 5. type and memory"
    if not _decodes(c) and c.scale is None and np.dtype(c.dtype).kind != "f":
        yield f"if x.dtype != np.{c.dtype} and not np.array_equal(x, x.astype(np.{c.dtype})):"
        yield f'    raise ValueError(f"{{x.dtype}} values that {c.dtype} does not hold")'
    if not _copies(c):
        yield f"x = np.array(x, dtype=np.{c.dtype}, order=\"C\")"
    else:
        yield f"buffer = aligned_zeros({c.padded_shape!r}, np.{c.dtype}, {max(c.base_align_bytes, c.itemsize)})"
        cut = (slice(None),) * LAYOUTS[c.layout] if c.layout and c.padded_shape != c.shape else ()
        where = "[" + ", ".join([*(":" for _ in cut), f":{c.shape[LAYOUTS[c.layout]]}"]) + "]" if cut else ""
        yield f"view = buffer{where}"
        yield "view[...] = x"
        yield "x = view"
        yield f"if x.ctypes.data % {c.base_align_bytes} or x.strides != {c.strides!r}:"
        yield '    raise ValueError(f"address {x.ctypes.data:#x}, strides {x.strides}")'
    yield f"if x.shape != {c.shape!r} or x.dtype != np.{c.dtype}:"
    yield '    raise ValueError(f"made {x.dtype} {x.shape}")'
    yield "return x"
