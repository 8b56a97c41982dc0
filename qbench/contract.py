"""What a model's input must be on a target, down to the byte, and what breaks that on a real array.

    Contract   one input: shape, type, layout, strides, alignment, colours, scale, normalisation and range
    Said       what nobody can see from an array, as the caller knows it
    Breach     one clause that is broken: found, needed, the cure in one line, and what leaving it costs

How an input is handed over decides what it must be: "model": as the file declares it, "pixels": 8-bit NHWC, the compiled model
normalises, "codes": already quantized. Through a runtime's ordinary call there is no rule about addresses and rows, since the runtime
copies; with zero copy the device reads the buffer itself, and there is.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any

import numpy as np

from qbench.affine import Affine
from qbench.buffers import LAYOUTS, aligned_empty, padded_width, strip_rows
from qbench.data.preprocessing import Preprocessing
from qbench.errors import InputError
from qbench.network import Network, TensorSpec
from qbench.protocols import Array
from qbench.target import Target

HANDOVERS = ("model", "pixels", "codes")
CLAUSES = ("kind", "device", "name", "shape", "layout", "dtype", "strides", "alignment", "channel order", "quantization", "normalisation",
           "finite", "range")
PICTURE_CHANNELS = (1, 3, 4)


@dataclass(frozen=True, slots=True)
class Contract:
    """One input of a model on a target.

    shape         elements, batch first, without padding
    layout        "NCHW", "NHWC" of a picture; "" for other tensors
    zero_copy     the device reads this buffer itself: alignments count
    base_align_bytes, width_align_elements   1: no demand
    channel_order "rgb", "bgr", "gray"; "" unknown or no picture
    scale, zero_point   of codes; None of reals
    normalised_by "host", "model", or "" where nobody said how pixels become values
    preprocessing value = (pixel * scale - mean) / std, by whom `normalised_by` says; None unknown
    low, high     values lie between them; None unknown
    copy_bytes_per_s    of the target's host, with its source; None: no constant
    sources       clause -> where it is written
    """

    name: str
    target: str
    handover: str
    shape: tuple[int, ...]
    dtype: str
    layout: str = ""
    zero_copy: bool = False
    base_align_bytes: int = 1
    width_align_elements: int = 1
    channel_order: str = ""
    scale: float | None = None
    zero_point: int | None = None
    normalised_by: str = ""
    preprocessing: Preprocessing | None = None
    low: float | None = None
    high: float | None = None
    copy_bytes_per_s: float | None = None
    sources: Mapping[str, str] = field(default_factory=dict)

    @property
    def itemsize(self) -> int:
        return np.dtype(self.dtype).itemsize

    @property
    def padded_shape(self) -> tuple[int, ...]:
        """`shape` with the width that rows are apart (`w_stride`)."""
        if self.layout not in LAYOUTS:
            return self.shape
        axis = LAYOUTS[self.layout]
        return (*self.shape[:axis], padded_width(self.shape[axis], self.width_align_elements), *self.shape[axis + 1:])

    @property
    def strides(self) -> tuple[int, ...]:
        """Bytes from one element to the next along each axis."""
        return dense_strides(self.padded_shape, self.itemsize)

    @property
    def row_bytes(self) -> int:
        """From one row of a picture to the next; of other tensors the last axis."""
        return _row(self.padded_shape, self.layout) * self.itemsize

    @property
    def packed_row_bytes(self) -> int:
        return _row(self.shape, self.layout) * self.itemsize

    @property
    def buffer_bytes(self) -> int:
        return prod(self.padded_shape) * self.itemsize

    @property
    def packed_bytes(self) -> int:
        return prod(self.shape) * self.itemsize

    def to_dict(self) -> dict[str, Any]:
        from dataclasses import asdict

        body = asdict(self) | {"preprocessing": self.preprocessing.text if self.preprocessing else None}
        return body | {"strides": list(self.strides), "row_bytes": self.row_bytes, "buffer_bytes": self.buffer_bytes, "packed_bytes": self.packed_bytes,
                       "width_stride": self.padded_shape[LAYOUTS[self.layout]] if self.layout else None, "shape": list(self.shape)}


@dataclass(frozen=True, slots=True)
class Said:
    """What an array does not show. None: not said, and not checked.

    normalised   mean and std are already applied
    """

    name: str | None = None
    channel_order: str | None = None
    scale: float | None = None
    zero_point: int | None = None
    normalised: bool | None = None


@dataclass(frozen=True, slots=True)
class Breach:
    """clause   one of CLAUSES
    bytes_moved, ms   read and written when it is mended, or by the runtime when it is left; None: no constant
    cost        what leaving it does, with what the milliseconds rest on
    level       "broken", or "advice": a claim without a public source, or something that only looks wrong
    """

    clause: str
    found: str
    needed: str
    cure: str
    cost: str
    bytes_moved: int = 0
    ms: float | None = None
    level: str = "broken"

    def __str__(self) -> str:
        return f"{self.clause}: found {self.found}, needed {self.needed}. Cure: {self.cure}. Left as it is: {self.cost}"


def contract_of(network: Network, target: Target, *, handover: str = "model", zero_copy: bool = False, preprocessing: Preprocessing | None = None,
                codes: Mapping[str, Affine] | None = None, width_align: int | None = None, declared: Mapping[str, str] | None = None) -> tuple[Contract, ...]:
    """The contract of each input, in the order of the model.

    handover       one of HANDOVERS; "pixels" concerns pictures only, other inputs stay as the model declares them
    preprocessing  how the pictures of this model become values; of inputs that are pictures
    codes          input name -> how it is quantized, for the handover "codes"
    width_align    pixels, where the runtime told it (`w_stride`); else that of the target's file
    declared       input name -> type in the file, where it was read in a wider one
    Raises InputError for a handover that the model has no input for.
    """
    if handover not in HANDOVERS:
        raise InputError(f"handover {handover!r}; known: {', '.join(HANDOVERS)}")
    specs = {name: replace(network.tensors[name], dtype=(declared or {}).get(name, network.tensors[name].dtype)) for name in network.inputs}
    made = tuple(_contract(specs[name], target, handover, zero_copy, preprocessing, (codes or {}).get(name), width_align)
                 for name in network.inputs)
    if handover == "pixels" and not any(c.handover == "pixels" for c in made):
        shapes = ", ".join(f"{c.name} {list(c.shape)}" for c in made)
        raise InputError(f"{network.name} has no input that is a picture of 1 or 3 channels ({shapes}): hand it over as the model declares it")
    return made


def _contract(spec: TensorSpec, target: Target, handover: str, zero_copy: bool, preprocessing: Preprocessing | None, codes: Affine | None,
              width_align: int | None) -> Contract:
    if spec.dtype not in np.sctypeDict or np.dtype(spec.dtype).kind not in "biufc":
        raise InputError(f"input {spec.name!r} is {spec.dtype}, which numpy arrays cannot hold: export the model with a float32 input")
    layout, rules = picture_layout(spec.shape), target.layout
    channels = spec.shape[1 if layout == "NCHW" else 3] if layout else 0
    picture = bool(layout) and channels in (1, 3)
    given = handover if handover == "model" or (handover == "pixels" and picture) or codes is not None else "model"
    if handover == "codes" and codes is None:
        raise InputError(f"input {spec.name!r}: its scale and zero point are not known; give the plan or the Q/DQ model that quantizes it")
    how = preprocessing if picture else None
    if how is not None:
        _check_size(spec, layout, channels, how)
    shape, kind, low, high = spec.shape, spec.dtype, None, None
    order = how.colour if how else "gray" if channels == 1 else ""
    if given == "pixels":
        shape = spec.shape if layout == "NHWC" else tuple(spec.shape[i] for i in (0, 2, 3, 1))
        layout, kind = "NHWC", "uint8"
    elif given == "codes" and codes is not None:
        kind = f"{'int' if codes.scheme.signed else 'uint'}{codes.scheme.bits}"
        low, high = float(codes.scheme.qmin), float(codes.scheme.qmax)
    elif how is not None and np.dtype(kind).kind == "f":
        low, high = value_range(how)
    if given != "codes" and np.dtype(kind).kind in "iu" and np.dtype(kind).itemsize == 1:
        low, high = float(np.iinfo(kind).min), float(np.iinfo(kind).max)
    sources = {"layout": rules.sources.get("native", ""), "copy": target.sources.get("cost.cpu_bytes_per_s", "")}
    if zero_copy:
        sources |= {"alignment": rules.sources.get("base_align_bytes", ""),
                    "strides": "given by the caller" if width_align else rules.sources.get("width_align_elements", "")}
    normalises = "model" if given == "pixels" or (how and np.dtype(kind).kind != "f" and given == "model") else "host" if how or given == "codes" else ""
    return Contract(
        spec.name, target.name, given, shape, kind, layout, zero_copy, (rules.base_align_bytes or 1) if zero_copy else 1,
        (width_align or rules.width_align_elements or 1) if zero_copy and layout else 1, order,
        codes.scale if codes and given == "codes" else None, codes.zero_point if codes and given == "codes" else None,
        normalises, how, low, high, target.cost.get("cpu_bytes_per_s"), {k: v for k, v in sources.items() if v})


def _check_size(spec: TensorSpec, layout: str, channels: int, how: Preprocessing) -> None:
    axes = (2, 3) if layout == "NCHW" else (1, 2)
    size = tuple(spec.shape[a] for a in axes)
    if how.size is not None and how.size != size:
        raise InputError(f"input {spec.name!r} is {size[0]}x{size[1]} pixels, the preprocessing says size={how.size[0]}x{how.size[1]}: correct one of them")
    if (channels == 1) != (how.colour == "gray"):
        raise InputError(f"input {spec.name!r} has {channels} channels, the preprocessing says colour={how.colour}: correct one of them")
    if how.layout.upper() != layout:
        raise InputError(f"input {spec.name!r} of shape {list(spec.shape)} is {layout}, the preprocessing says layout={how.layout}: correct one of them")


def picture_layout(shape: tuple[int, ...]) -> str:
    """"NCHW" or "NHWC" of four axes, "" of others; where both could be, the one of ONNX convolutions."""
    if len(shape) != 4:
        return ""
    return "NHWC" if shape[3] in PICTURE_CHANNELS and shape[1] not in PICTURE_CHANNELS else "NCHW"


def value_range(how: Preprocessing) -> tuple[float, float]:
    """Smallest and largest value that 8-bit pixels can become."""
    mean, std = (np.array(v, np.float64) for v in (how.mean, how.std))
    return float(((0.0 - mean) / std).min()), float(((255.0 * how.scale - mean) / std).max())


def dense_strides(shape: tuple[int, ...], itemsize: int) -> tuple[int, ...]:
    """Bytes, of a C-contiguous array."""
    return tuple(prod(shape[a + 1:]) * itemsize for a in range(len(shape)))


def _row(shape: tuple[int, ...], layout: str) -> int:
    return shape[2] * shape[3] if layout == "NHWC" else shape[-1] if shape else 1


def empty_for(contract: Contract) -> Array:
    """A buffer that keeps the contract, every value the allowed one nearest to 0; of a picture with padded rows the part without padding."""
    whole = aligned_empty(contract.padded_shape, contract.dtype, max(contract.base_align_bytes, contract.itemsize))
    whole[...] = np.asarray(np.clip(0.0, contract.low, contract.high) if contract.low is not None else 0.0).astype(contract.dtype)
    return strip_rows(whole, contract.shape[LAYOUTS[contract.layout]], contract.layout) if contract.layout else whole


def fitted(array: Array, contract: Contract) -> Array:
    """The values of `array` in such a buffer. Raises InputError when shape or type differ: those are no matter of memory."""
    if tuple(array.shape) != contract.shape or array.dtype != np.dtype(contract.dtype):
        raise InputError(f"input {contract.name!r} is {contract.dtype} {list(contract.shape)}, the array {array.dtype} {list(array.shape)}: convert it first")
    made = empty_for(contract)
    made[...] = array
    return made
