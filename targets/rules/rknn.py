"""Rockchip's rknn-toolkit2. Support is a property of chip and toolkit version.

Version 2.5.0 was asked: one model per operator, and 74 real networks. What it answered wins; operators that it was not asked about follow
the vendor's lists of 2.3.2, and so do all under 2.3.2. The chips beside RK3588 were not asked: they are taken to share its answers.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from qbench.network import Precision
from qbench.placement.record import Operator, Placement, Verdict
from qbench.targets.rules.registry import Book, Case

LIST = "RKNN compiler operator list 2.3.2 (2025)"
ASKED = "rknn-toolkit2 2.5.0 (2025), single operators and 74 networks built for rk3588"
OLD = ("2.3.2",)
NEW = ("2.5.0",)
CASES = {"InstanceNormalization": "InstanceNorm", "BatchNormalization": "BatchNorm", "GroupNormalization": "GroupNorm18", "Gelu": "Gelu20",
         "NonMaxSuppression": "NMS", "Resize": "ResizeNearest", "Upsample": "ResizeNearest", "Conv": "DilatedConv"}
"""ONNX operator -> the single-operator model that asked about it, where the names differ."""
AS_RESHAPE = frozenset({"Flatten", "Squeeze", "Unsqueeze", "Dropout"})
ITS_RULES_SAY = {"LayerNormalization": Placement.NPU, "ScatterND": Placement.CPU, "LSTM": Placement.NPU}
"""Asked with a form that is refused; other forms, or the other precision, run here."""
FUSED = {"gelu": "part of a GELU chain, which the toolkit fuses (exGelu)", "normalisation": "part of a normalisation chain, which the toolkit fuses (exNorm)",
         "focus": "strided Slices that one Concat joins, which the toolkit merges (seen in swin_t)"}
ANSWERED = {Placement.NPU: "", Placement.CPU: "2.5.0 put it on the CPU", Placement.PARTLY: "2.5.0 put a part of it on the CPU",
            Placement.REFUSED: "2.5.0 refused it"}
HIGHEST_OPSET = 19


@cache
def data() -> dict[str, Any]:
    """The answers and the lists."""
    found: dict[str, Any] = json.loads((Path(__file__).parent / "rknn.json").read_text(encoding="utf-8"))
    return found


def listed(op: Operator, case: Case) -> Verdict:
    """What 2.5.0 answered, else what the lists of 2.3.2 say."""
    if op.domain:
        return Verdict(Placement.UNKNOWN, f"an operator of domain {op.domain!r}: a custom operator of the toolkit, or refused")
    asked, name = data()["asked"], "Reshape" if op.op in AS_RESHAPE else CASES.get(op.op, op.op)
    if case.toolkit == asked["toolkit"]:
        if op.op in ITS_RULES_SAY:
            return Verdict(ITS_RULES_SAY[op.op], source=asked["source"])
        if name in asked["answers"]:
            if op.op == "Gemm" and not op.ends:
                return Verdict(Placement.NPU, source=ASKED)               # the part on the CPU is the Reshape of what leaves the network
            placement = _answer(asked["answers"][name], case.precision)
            return Verdict(placement, ANSWERED[placement], source=asked["source"])
    return _by_list(op.op, "" if case.toolkit in OLD else f"not asked of {case.toolkit}; ")


def _answer(row: list[str], precision: Precision) -> Placement:
    """Of the columns fp16 and int8; INT16 was not asked and counts as the worse of the two."""
    fp16, int8 = Placement(row[0]), Placement(row[1])
    if precision.is_float:
        return fp16
    return int8 if precision is Precision.INT8 else max(fp16, int8, key=lambda p: p.severity)


def _by_list(op: str, proviso: str) -> Verdict:
    lists = data()["listed"]
    source = lists["source"]
    if op in lists["refused"]:
        return Verdict(Placement.REFUSED, f"{proviso}the ONNX table of 2.3.2 rejects it", source=source)
    if op in lists["npu"] or op in AS_RESHAPE or op == "Gemm":                # a Gemm is a MatMul with a bias
        return Verdict(Placement.NPU, proviso.removesuffix("; "), source=source)
    if op in lists["cpu"]:
        return Verdict(Placement.CPU, f"{proviso}in the CPU list of 2.3.2", source=source)
    said = "accepted by 2.3.2, which does not say where it runs" if op in lists["accepted"] else "in no list of 2.3.2"
    return Verdict(Placement.UNKNOWN, proviso + said, source=source)


BOOK = Book(listed, highest_opset=HIGHEST_OPSET, fuses={name: Verdict(Placement.NPU, why, source=ASKED) for name, why in FUSED.items()})
rule = BOOK.rule


def _outside(values: tuple[int, ...], low: int, high: int) -> list[int]:
    return [v for v in values if not low <= v <= high]


def _kernel(op: Operator) -> tuple[int, ...]:
    return op.ints("kernel_shape", tuple(d for d in op.shape(1)[2:] if d is not None))


def _depthwise(op: Operator) -> bool:
    channels = (*op.shape(0), None, None)[1]
    return op.op == "Conv" and 1 < op.whole("group", 1) == channels


def _patches(op: Operator, case: Case) -> bool:
    """Whether it cuts an image into patches that do not overlap (seen in vit_base_patch32_224, kernel and stride 32)."""
    return case.toolkit in NEW and op.op == "Conv" and op.ints("strides", (1, 1)) == _kernel(op)


def _axis(op: Operator, default: int) -> int:
    axis = op.whole("axis", default)
    return axis + len(op.shape(0)) if axis < 0 else axis


# ------------------------------------------------------------------------------------------------------------ convolutions

@rule("Conv", puts=Placement.PARTLY, source=ASKED)
def two_spatial_axes(op: Operator, case: Case) -> str | None:
    """A convolution with one or three spatial axes is split: reshapes or sums of it run on the CPU."""
    spatial = len(op.shape(1)) - 2
    return f"it has {spatial} spatial axes" if op.shape(1) and spatial != 2 else None


@rule("Conv", "ConvTranspose", puts=Placement.CPU, source=LIST)
def kernel_fits(op: Operator, case: Case) -> str | None:
    """Each side of a kernel lies between 1 and 31 (2.5.0 also runs patch embeddings, whose stride is the kernel)."""
    return f"kernel {list(_kernel(op))}" if _outside(_kernel(op), 1, 31) and not _patches(op, case) else None


@rule("Conv", puts=Placement.CPU, source=LIST, toolkits=OLD)
def depthwise_kernel_fits(op: Operator, case: Case) -> str | None:
    """Each side of a depthwise kernel lies between 1 and 8 (2.5.0 runs larger ones)."""
    return f"depthwise kernel {list(_kernel(op))}" if _depthwise(op) and _outside(_kernel(op), 1, 8) else None


@rule("Conv", puts=Placement.CPU, source=LIST)
def strides_fit(op: Operator, case: Case) -> str | None:
    """Each stride of a convolution lies between 1 and 7 (2.5.0 also runs patch embeddings, whose stride is the kernel)."""
    strides = op.ints("strides", (1, 1))
    return f"strides {list(strides)}" if _outside(strides, 1, 7) and not _patches(op, case) else None


@rule("Conv", puts=Placement.CPU, source=LIST, toolkits=OLD)
def pads_fit(op: Operator, case: Case) -> str | None:
    """Each pad of a convolution lies between 0 and 15 (2.5.0 takes 24 and 36: deeplabv3)."""
    bad = _outside(op.ints("pads"), 0, 15)
    return f"pads {list(op.ints('pads'))}" if bad else None


@rule("Conv", puts=Placement.CPU, source=LIST, toolkits=OLD)
def dilations_fit(op: Operator, case: Case) -> str | None:
    """Each dilation lies between 1 and 31; of a depthwise convolution, 32 (2.5.0 takes 36: deeplabv3)."""
    bad = _outside(op.ints("dilations"), 1, 32 if _depthwise(op) else 31)
    return f"dilations {list(op.ints('dilations'))}" if bad else None


@rule("ConvTranspose", puts=Placement.CPU, source=LIST)
def transposed_strides(op: Operator, case: Case) -> str | None:
    """The strides of a ConvTranspose are 1, 2, 4 or 8."""
    strides = op.ints("strides", (1, 1))
    return f"strides {list(strides)}" if any(s not in (1, 2, 4, 8) for s in strides) else None


@rule("ConvTranspose", puts=Placement.CPU, source=LIST)
def transposed_groups(op: Operator, case: Case) -> str | None:
    """A ConvTranspose has one group, or one per channel; it is dilated only with a 1x1 kernel."""
    group, channels = op.whole("group", 1), (*op.shape(0), None, None)[1]
    if group not in (1, channels):
        return f"{group} groups of {channels} channels"
    dilated = any(d != 1 for d in op.ints("dilations")) and any(k != 1 for k in _kernel(op))
    return f"dilations {list(op.ints('dilations'))}" if dilated else None


@rule("MatMul", "Gemm", puts=Placement.CPU, source=LIST)
def inner_length_fits(op: Operator, case: Case) -> str | None:
    """A product of two activations sums over at most 8192 elements."""
    right, left = op.operand(1), op.shape(0)
    length = left[-1] if left else None
    return f"it sums over {length}" if length is not None and length > 8192 and right is not None and not right.constant else None


# ------------------------------------------------------------------------------------------------------------ pools

@rule("MaxPool", puts=Placement.CPU, source=LIST)
def pool_window_fits(op: Operator, case: Case) -> str | None:
    """The window of a MaxPool is at most 7, its stride 8, its pads 7."""
    return _window(op)


@rule("AveragePool", puts=Placement.CPU, source=LIST, toolkits=OLD)
def average_window_fits(op: Operator, case: Case) -> str | None:
    """The window of an AveragePool is at most 7, its stride 8, its pads 7 (2.5.0 runs larger ones as convolutions)."""
    return _window(op)


def _window(op: Operator) -> str | None:
    kernel, strides, pads = op.ints("kernel_shape"), op.ints("strides", (1, 1)), op.ints("pads")
    bad = _outside(kernel, 1, 7) or _outside(strides, 1, 8) or _outside(pads, 0, 7)
    return f"window {list(kernel)}, strides {list(strides)}, pads {list(pads) or 0}" if bad else None


@rule("MaxPool", "AveragePool", puts=Placement.CPU, source=LIST, toolkits=OLD)
def no_ceil_mode(op: Operator, case: Case) -> str | None:
    """A pool does not round its output size up (2.5.0 takes ceil_mode)."""
    return "ceil_mode is 1" if op.whole("ceil_mode") else None


@rule("GlobalAveragePool", "GlobalMaxPool", puts=Placement.CPU, source=LIST, toolkits=OLD)
def small_map(op: Operator, case: Case) -> str | None:
    """A global pool reads a map of at most 7 x 7 (2.5.0 splits larger ones into stages)."""
    big = [d for d in op.shape(0)[2:] if d is not None and d > 7]
    return f"its map is {' x '.join(str(d) for d in op.shape(0)[2:])}" if big else None


# ------------------------------------------------------------------------------------------------------------ data movement

@rule("Resize", puts=Placement.REFUSED, source=ASKED)
def no_cubic(op: Operator, case: Case) -> str | None:
    """A Resize is nearest or linear: cubic ends the compiler."""
    return "mode is cubic" if op.text("mode", "nearest") == "cubic" else None


@rule("Resize", "Upsample", puts=Placement.CPU, source=LIST)
def whole_factors(op: Operator, case: Case) -> str | None:
    """A Resize enlarges by a whole factor of 1 to 8 in height and width, or spreads a 1 x 1 map."""
    before, after = op.shape(0)[2:], (op.outputs[0].shape or ())[2:]
    known = [(a, b) for a, b in zip(before, after, strict=False) if a and b]
    if all(a == 1 for a, _ in known) or all(b % a == 0 and b // a <= 8 for a, b in known):
        return None
    return f"{' x '.join(str(a) for a, _ in known)} to {' x '.join(str(b) for _, b in known)}"


@rule("Resize", puts=Placement.CPU, source=ASKED, toolkits=NEW)
def corners_not_aligned(op: Operator, case: Case) -> str | None:
    """A linear Resize with align_corners runs on the CPU, although the list of 2.3.2 names it (seen in sinet)."""
    aligned = op.text("mode", "nearest") == "linear" and op.text("coordinate_transformation_mode") == "align_corners"
    return "linear, align_corners" if aligned and any(d != 1 for d in op.shape(0)[2:]) else None


@rule("Slice", puts=Placement.CPU, source=LIST)
def unit_steps(op: Operator, case: Case) -> str | None:
    """A Slice has steps of 1."""
    steps = op.numbers(4) if len(op.inputs) > 4 else ()
    if steps is None:
        return "its steps are computed" if op.operand(4) is not None else None
    return f"steps {[int(s) for s in steps]}" if any(s != 1 for s in steps) else None


@rule("Gather", puts=Placement.CPU, source=LIST)
def flat_indices(op: Operator, case: Case) -> str | None:
    """The indices of a Gather have one axis at most."""
    return f"indices of {len(op.shape(1))} axes" if len(op.shape(1)) > 1 else None


@rule("Concat", puts=Placement.CPU, source=LIST)
def concat_axis(op: Operator, case: Case) -> str | None:
    """A Concat joins along one of the first four axes."""
    return f"axis {_axis(op, 0)}" if _axis(op, 0) > 3 else None


@rule("Pad", puts=Placement.CPU, source=LIST)
def padding_mode(op: Operator, case: Case) -> str | None:
    """A Pad is constant or reflect."""
    mode = op.text("mode", "constant")
    return f"mode {mode}" if mode not in ("constant", "reflect") else None


@rule("DepthToSpace", puts=Placement.CPU, source=ASKED, toolkits=NEW)
def depth_first(op: Operator, case: Case) -> str | None:
    """A DepthToSpace has mode DCR: CRD with a block of 3 (PixelShuffle) runs on the CPU (seen in quicksrnet, sesr)."""
    return f"mode CRD, block {op.whole('blocksize')}" if op.text("mode", "DCR") == "CRD" else None


@rule("ScatterND", puts=Placement.REFUSED, source=ASKED, toolkits=NEW)
def scatters_a_part(op: Operator, case: Case) -> str | None:
    """A ScatterND writes a part of its tensor: one that covers all is refused."""
    return "it writes every element" if op.shape(2) and op.shape(2) == op.shape(0) else None


# ------------------------------------------------------------------------------------------------------------ arithmetic

@rule("Softmax", puts=Placement.CPU, source=LIST)
def softmax_axis(op: Operator, case: Case) -> str | None:
    """The Softmax of a tensor with four axes runs along axis 1 or 3."""
    return f"axis {_axis(op, -1)}" if len(op.shape(0)) == 4 and _axis(op, -1) not in (1, 3) else None


@rule("Div", puts=Placement.CPU, source=f"{LIST}; {ASKED}")
def quotient_in_float(op: Operator, case: Case) -> str | None:
    """A quotient of two activations runs in FP16 only; a divisor that is constant becomes a factor."""
    right = op.operand(1)
    return "both sides are activations" if not case.precision.is_float and right is not None and not right.constant else None


@rule("Pow", puts=Placement.CPU, source=LIST, toolkits=OLD)
def exponents(op: Operator, case: Case) -> str | None:
    """The exponent of a Pow is 0, 1, 2, 3, 0.5 or -0.5 (2.5.0 puts every single Pow on the CPU)."""
    found = op.numbers(1)
    if found is None:
        return "its exponent is computed"
    return f"exponent {found[0]:g}" if any(x not in (0, 1, 2, 3, 0.5, -0.5) for x in found) else None


@rule("LayerNormalization", puts=Placement.REFUSED, source=ASKED, toolkits=NEW)
def epsilon_is_written(op: Operator, case: Case) -> str | None:
    """A LayerNormalization carries its epsilon attribute: the toolkit stops with a KeyError without."""
    return None if "epsilon" in op.attributes else "no epsilon attribute"


def flat_in_time(operators: Mapping[str, Operator], toolkit: str) -> str | None:
    """Convolutions over several frames whose kernels are 1 frame deep: the build of mc3_18 was stopped above 14 GB, that of r3d_18 was not."""
    flat = [o.name for o in operators.values() if o.op == "Conv" and len(o.shape(1)) == 5 and o.shape(1)[2] == 1 and (o.shape(1)[3] or 1) > 1]
    if toolkit not in NEW or not flat:
        return None
    return (f"{len(flat)} convolutions over frames have kernels 1 frame deep ({flat[0]}{', ...' if len(flat) > 1 else ''}): the build of such a network (mc3_18, 16 frames) took more "
            "than 14 GB and was stopped, after `qbench rewrite` too: build it where there is more memory, or feed the frames as a batch of pictures")


BOOK.whole.append(flat_in_time)


@rule("LayerNormalization", puts=Placement.CPU, source=LIST, toolkits=OLD)
def normalisation_in_float(op: Operator, case: Case) -> str | None:
    """LayerNormalization runs in FP16 only."""
    return None if case.precision.is_float else f"precision {case.precision}"


@rule("LSTM", "GRU", puts=Placement.CPU, source=LIST)
def batch_of_one(op: Operator, case: Case) -> str | None:
    """A recurrent layer has a batch of 1 or a multiple of 4."""
    batch = (*op.shape(0), None, None)[0 if op.whole("layout") else 1]
    return f"batch {batch}" if batch is not None and batch != 1 and batch % 4 else None


@rule("LSTM", puts=Placement.REFUSED, source=ASKED, toolkits=NEW)
def lstm_in_float(op: Operator, case: Case) -> str | None:
    """An LSTM runs in FP16 only: its INT8 build ends with "clip_truncate < 0, plz make sure bias_scale > weight_scale * input_scale"."""
    return None if case.precision.is_float else f"LSTM in {case.precision}: the build ends with \"clip_truncate < 0\"; FP16 is built"


@rule("GRU", puts=Placement.CPU, source=LIST, toolkits=OLD)
def gru_in_float(op: Operator, case: Case) -> str | None:
    """GRU runs in FP16 only (2.5.0 builds it in INT8)."""
    return None if case.precision.is_float else f"precision {case.precision}"
