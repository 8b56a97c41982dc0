"""The launches of rknn-toolkit2, kernel by kernel: what each reads and writes, and the bytes of every buffer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil, prod

from qbench.cost.lowering import LARGEST_KERNEL, lowered
from qbench.cost.parameters import NpuParameters
from qbench.cost.rknn_dilated import Passes, passes
from qbench.cost.rknn_tokens import NORM, Attention, norm_scratch, projects, row_pieces, same_order
from qbench.cost.sharing import is_view
from qbench.cost.work import FREE_ACTIVATIONS, adds_apart, up
from qbench.network import Kernel, Network, Precision

PIXELS = 4                      # H * W is padded to a multiple, 1 x 1 excepted
BASE = 64                       # a buffer starts at a multiple of this
ATOMS = 2                       # a convolution writes this many atoms of channels at a time
REACH = 7                       # a global pool is a chain of convolutions that reach this far
WIDE = 2048                     # rows of an image of this many pixels are cut, beside the first output
TABLE_BUFFERS = {"Swish": 3, "HardSwish": 3, "Elu": 3, "Softplus": 3, "Gelu": 3}     # a 16-bit function keeps its operands beside its result
OTHER_TABLES = 2
FARTHEST = 8                    # factor of a linear Resize; beyond it the copy that it reads is as wide as the output
FLOAT_BYTES = 4
HALF_BYTES = 2


@dataclass(frozen=True, slots=True)
class Step:
    """One launch. kernel   index of the kernel of the network it belongs to, -1 for a graph input"""

    kernel: int
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    in_place: bool = False


@dataclass
class Launches:
    """Collects steps and sizes while it walks over the network."""

    network: Network
    precision: Mapping[str, Precision]                              # kernel -> precision
    p: NpuParameters
    steps: list[Step] = field(default_factory=list)
    sizes: dict[str, int] = field(default_factory=dict)
    lies_in: dict[str, str] = field(default_factory=dict)           # tensor -> the one whose bytes it has
    gelus: Mapping[str, str] = field(default_factory=dict)
    kept: list[tuple[int, str]] = field(default_factory=list)       # kernel that reads a copy, and what it is a copy of
    tokens: frozenset[str] = frozenset()                            # tensors whose last axis is the channels

    def stored(self, shape: tuple[int, ...], width: int, step: float, copies: int = 1) -> int:
        """Bytes of a tensor whose channels are padded to `step` bytes. width   bytes of an element"""
        if len(shape) != 4:
            return int(up(prod(shape) * width, BASE))
        n, c, h, w = shape
        pixels = h * w if h * w == 1 else up(h * w, PIXELS)
        return int(up(n * pixels * up(c * width, step) * copies, BASE))

    def shape(self, tensor: str) -> tuple[int, ...]:
        """Channels second; tokens are the pixels of one row."""
        shape = self.network.tensors[tensor].shape
        if tensor not in self.tokens:
            return shape
        images, pixels = (shape[0], prod(shape[1:-1])) if len(shape) > 2 and prod(shape[1:-1]) > 1 else (1, prod(shape[:-1]))
        return images, shape[-1], 1, pixels

    def normalised(self, tensor: str) -> bool:
        """Whether a LayerNormalization reads these values, as they are or as a view; it wants 32 bits."""
        readers = [self.network.kernel[r] for r in self.network.consumers.get(tensor, ())]
        return any(r.op == NORM or (r.op == "Transpose" and vanishes(self, r) and self.normalised(r.outputs[0])) for r in readers)

    def held(self, tensor: str) -> str:
        while tensor in self.lies_in:
            tensor = self.lies_in[tensor]
        return tensor

    def emit(self, kernel: int, reads: tuple[str, ...], writes: Mapping[str, int], in_place: bool = False) -> None:
        self.sizes |= writes
        self.steps.append(Step(kernel, tuple(dict.fromkeys(reads)), tuple(writes), in_place))


def vanishes(b: Launches, k: Kernel) -> str | None:
    """The tensor in whose buffer the output lies: of views, of Slices of everything, of a GELU that its convolution applies; None elsewhere."""
    if k.name in b.gelus and b.precision[k.name] is b.precision[b.network.producer[b.gelus[k.name]]]:
        return b.gelus[k.name]
    x, y = (b.shape(t) for t in (k.inputs[0], k.outputs[0])) if k.inputs and k.outputs else ((), ())
    turned = k.op == "Transpose" and (same_order(x, y) or (len(x) == len(y) == 4 and (x[0], x[1], x[2] * x[3]) == (y[0], y[1], y[2] * y[3])))
    whole = is_view(k) or turned or (k.op == "Slice" and x == y)
    return k.inputs[0] if whole and _stored_in(b, k.inputs[0]) is b.precision[k.name] else None


def _stored_in(b: Launches, tensor: str) -> Precision:
    """Graph inputs are stored in the precision of their first reader."""
    return b.precision[b.network.producer.get(tensor) or b.network.consumers[tensor][0]]


def graph_input(b: Launches, t: str) -> None:
    """An image of few channels stays unpacked, its rows padded to an atom; who is no convolution reads a packed copy."""
    readers = [b.network.kernel[r] for r in b.network.consumers.get(t, ())]
    if not readers:
        return
    width, shape, atom = _stored_in(b, t).activation_bytes, b.shape(t), b.p.atom_bytes
    if len(shape) == 4 and shape[1] <= b.p.raw_input_channels:
        n, c, h, w = shape
        b.emit(-1, (), {t: int(up(n * c * h * up(w, atom / width) * width, BASE))})
        if any(k.kind != "conv" for k in readers):
            b.emit(-1, (t,), {f"{t} packed": b.stored(shape, width, ATOMS * atom)})
            b.lies_in[t] = f"{t} packed"
    else:
        b.emit(-1, (), {t: b.stored(shape, width, atom)})


def converted(b: Launches, i: int, k: Kernel, t: str) -> str:
    """The buffer that kernel `k` reads `t` from: a copy where it is stored in another precision, one per unit."""
    unit = b.network.unit_of_kernel[k.name]
    if _stored_in(b, t) is b.precision[k.name] or b.network.tensors[t].dtype != "float32":
        return b.held(t)
    copy = f"{t} as {b.precision[k.name]} for {unit}"
    b.kept.append((i, b.held(t)))
    if copy not in b.sizes:
        b.emit(i, (b.held(t),), {copy: b.stored(b.shape(t), b.precision[k.name].activation_bytes, b.p.atom_bytes)})
    return copy


def convolution(b: Launches, i: int, k: Kernel, reads: tuple[str, ...], donor: Kernel | None, parts: tuple[str, ...]) -> None:
    """A convolution with what is fused to it. donor   the one that runs behind it and adds; parts   of a Concat that is never built"""
    width, y, atom = b.precision[k.name].activation_bytes, k.outputs[0], b.p.atom_bytes
    shape = b.shape(y)
    function = "Gelu" if y in b.gelus.values() else k.activation
    copies = 1 if width == 1 or function in FREE_ACTIVATIONS else TABLE_BUFFERS.get(function, OTHER_TABLES)
    if width > 1 and copies == 1 and b.normalised(y):
        copies = FLOAT_BYTES // width
    wide = b.p.depthwise_group_channels if k.kind == "depthwise" and copies == 1 else ATOMS * atom
    x, rest = reads[0], reads[1:]
    if donor is not None:
        plain = f"{y} before the Add"
        b.emit(i, (x,), {plain: b.stored(shape, width, wide)})
        x, rest, k = converted(b, i, donor, donor.inputs[0]), (plain,), donor
    size = b.stored(shape, width, wide, copies)
    low = lowered(k, b.precision[k.name], b.p)
    if low.apart:
        _by_group(b, i, k, (x, *rest), y, width)
        return
    if low.pieces > 1 and len(b.shape(k.inputs[0])) == 4 and k.kind == "conv":
        _by_window(b, i, k, low.kernel, (x, *rest), width)
        return
    if low.selects(k) or low.pieces > 1:
        b.emit(i, (x,), {f"{y} finer": b.stored((shape[0], shape[1], low.kernel.out_h, low.kernel.out_w), width, wide)})
        b.emit(i, (f"{y} finer", *rest), {y: b.stored(shape, width, atom)})
        return
    if adds_apart(k):
        b.emit(i, (x,), {f"{y} before the Add": size})
        b.emit(i, (f"{y} before the Add", *(rest or (x,))), {y: b.stored(shape, width, atom)})
        return
    raw = b.shape(k.inputs[0])
    if k.inputs[0] in b.network.inputs and x == k.inputs[0] and len(raw) == 4 and raw[1] <= b.p.raw_input_channels and raw[3] >= WIDE:
        size += int(raw[0] * raw[1] * raw[2] * (raw[3] * width - atom))
    done = passes(k, width) if k.kind in ("conv", "matmul") and low.kernel.groups == 1 else Passes((k.in_channels,))
    if parts:
        sources = [converted(b, i, k, t) for t in parts]
    else:
        sources = _cut(b, i, k, done, _spread_out(b, i, k, done, x, y, width), y, HALF_BYTES if done.in_half else width)
    if projects(k, b.network) and (views := row_pieces(_row(b, k), max(done.channels), width)) > 1:
        _row_by_row(b, i, sources, views, rest, y, size, b.stored(shape, width, wide))
        return
    sources[:2] = sources[1::-1]                                     # the toolkit begins with the second
    alone = done.in_half or (done.views and copies > 1)              # the function runs behind
    held = HALF_BYTES if done.in_half else width
    for n, source in enumerate(sources):
        last = n == len(sources) - 1 and not alone
        goal = y if last else f"{y} of {n + 1} parts"
        b.emit(i, (source, *rest), {goal: size if last else b.stored(shape, held, wide)})
        rest = (goal,)
    if done.in_half:
        b.emit(i, rest, {f"{y} before the function" if k.activation not in FREE_ACTIVATIONS else y: b.stored(shape, width, wide)})
        rest = (f"{y} before the function",)
    if alone and y not in b.sizes:
        b.emit(i, rest, {y: b.stored(shape, width, wide, FLOAT_BYTES // width)})


def _spread_out(b: Launches, i: int, k: Kernel, done: Passes, x: str, y: str, width: int) -> str:
    """What a dilated convolution reads instead of its input: padded, with its lines gathered, in 16 bits."""
    n, c, h, w = (*b.shape(k.inputs[0]), 1, 1)[:4]

    def made(what: str, high: int, wide: int, held: int = width) -> None:
        nonlocal x, h, w
        b.emit(i, (x,), {f"{y} {what}": b.stored((n, c, high, wide), held, b.p.atom_bytes)})
        x, h, w = f"{y} {what}", high, wide

    if done.pad:
        made("padded", h + 2 * done.pad, w + 2 * done.pad)
    if done.rows:
        made("with a row of zeros", h + 1, w)
        made("rows", k.out_h * k.kernel_h, w)
    if done.columns:
        made("with a column of zeros", h, w + 1)
        made("columns", h, k.out_w * k.kernel_w)
    if done.in_half:
        made("in 16 bits", h, w, HALF_BYTES)
    return x


def _cut(b: Launches, i: int, k: Kernel, done: Passes, x: str, y: str, width: int) -> list[str]:
    """The input, cut along its channels where the weights of an output channel are too many."""
    if done.views or len(done.channels) == 1:
        return [x] * len(done.channels)
    n, _, h, w = (*b.shape(k.inputs[0]), 1, 1)[:4]
    h, w = k.out_h * k.kernel_h if done.rows else h, k.out_w * k.kernel_w if done.columns else w
    made = {f"{y} input {j}": b.stored((n, c, h, w), width, b.p.atom_bytes) for j, c in enumerate(done.channels)}
    b.emit(i, (x,), made)
    return list(made)


def _by_window(b: Launches, i: int, k: Kernel, fine: Kernel, reads: tuple[str, ...], width: int) -> None:
    """A kernel too large for the array: parts of it over parts of the image, first by columns, then by rows; each selects its pixels; Adds."""
    y, atom = k.outputs[0], b.p.atom_bytes
    n, c, h, w = b.shape(k.inputs[0])
    shape, x = b.shape(y), reads[0]
    high, wide = ((ceil(size / LARGEST_KERNEL)) for size in (k.kernel_h, k.kernel_w))
    size = b.stored(shape, width, ATOMS * atom)
    if k.inputs[0] in b.network.inputs and c <= b.p.raw_input_channels:
        b.emit(i, (x,), {f"{y} image": b.stored((n, c, h, w), width, ATOMS * atom)})
        x = f"{y} image"
    columns = list[str]()
    for j in range(wide):
        cut, rows = f"{y} columns {j}", list[str]()
        b.emit(i, (x,), {cut: b.stored((n, c, h, w - LARGEST_KERNEL * (wide - 1)), width, atom)})
        for r in range(high):
            part, at = (n, c, h - LARGEST_KERNEL * (high - 1), w - LARGEST_KERNEL * (wide - 1)), f"{y} window {j} {r}"
            b.emit(i, (cut,), {f"{at} image": b.stored(part, width, atom)})
            b.emit(i, (f"{at} image",), {f"{at} finer": b.stored((n, shape[1], fine.out_h, fine.out_w), width, ATOMS * atom)})
            b.emit(i, (f"{at} finer",), {at: size})
            rows.append(at)
        columns.append(_summed(b, i, rows, f"{y} sum {j}", size))
    last = _summed(b, i, columns, f"{y} sum", size)
    b.emit(i, (last, *reads[1:]), {y: size}, True)


def _summed(b: Launches, i: int, parts: Sequence[str], goal: str, size: int) -> str:
    total = parts[0]
    for n, part in enumerate(parts[1:]):
        b.emit(i, (total, part), {f"{goal} of {n + 2}": size})
        total = f"{goal} of {n + 2}"
    return total


def _row_by_row(b: Launches, i: int, sources: Sequence[str], views: int, rest: tuple[str, ...], y: str, size: int, partial: int) -> None:
    """A projection of more tokens than the buffer holds: by views of each source, then the sums of the sources, then a residual."""
    sums = list[str]()
    for j, source in enumerate(sources):
        b.emit(i, (source,), {f"{y} view 0 of {j}": partial})
    for j, source in enumerate(sources):
        for v in range(1, views):
            last = len(sources) == 1 and v == views - 1
            goal = y if last else f"{y} view {v} of {j}"
            b.emit(i, (source, f"{y} view {v - 1} of {j}", *(rest if last else ())), {goal: size if last else partial})
        sums.append(f"{y} view {views - 1} of {j}")
    for j in range(1, len(sums)):
        last = j == len(sums) - 1 and not rest
        b.emit(i, (sums[0], sums[j]), {y if last else f"{y} sum {j}": size if last else partial})
        sums[0] = f"{y} sum {j}"
    if len(sums) > 1 and rest:
        b.emit(i, (sums[0], *rest), {y: size})


def attention(b: Launches, i: int, a: Attention) -> None:
    """Projections, values first; a Reshape of each to heads, in place with scratch of the same size; the product; a Reshape back."""
    makers = [b.network.kernel[b.network.producer[t]] for t in a.roots]
    p, y = b.precision[makers[0].name], a.output
    width, atom = p.activation_bytes, b.p.atom_bytes
    whole = b.stored((1, a.heads * a.channels, 1, a.tokens), width, ATOMS * atom)
    by_head = b.stored((a.heads, a.channels, 1, a.tokens), width, atom)
    names = [f"{y} {what}" for what in ("queries", "keys", "values")]

    def reshaped(what: str, size: int, goal: str, into: int) -> None:
        b.emit(i, (), {f"{goal} scratch": size})
        b.emit(i, (what, f"{goal} scratch"), {goal: into}, True)

    if len(makers) == 1 and not a.parted:
        x = converted(b, i, makers[0], makers[0].inputs[0])
        size = b.stored((1, 3 * a.heads * a.channels, 1, a.tokens), width, ATOMS * atom)
        _projected(b, i, makers[0], x, f"{y} all", size)
        reshaped(f"{y} all", size, f"{y} all by head", b.stored((a.heads, 3 * a.channels, 1, a.tokens), width, atom))
        b.emit(i, (f"{y} all by head",), {f"{n} by head": by_head for n in reversed(names)})
    else:
        each = makers if len(makers) == 3 else makers * 3
        for k, name in zip(reversed(each), reversed(names), strict=True):
            _projected(b, i, k, converted(b, i, k, k.inputs[0]), name, whole)
        for name in names:
            reshaped(name, whole, f"{name} by head", by_head)
    b.emit(i, (), {f"{y} scores": a.scratch_bytes(width)})
    b.emit(i, (*(f"{n} by head" for n in names), f"{y} scores"), {f"{y} by head": by_head})
    reshaped(f"{y} by head", by_head, y, whole)


def _row(b: Launches, k: Kernel) -> int:
    """Tokens in one row of what a projection reads."""
    return b.network.tensors[k.inputs[0]].shape[-2]


def _projected(b: Launches, i: int, k: Kernel, x: str, goal: str, size: int) -> None:
    views = row_pieces(_row(b, k), k.in_channels, b.precision[k.name].activation_bytes)
    if views > 1:
        _row_by_row(b, i, [x], views, (), goal, size, size)
    else:
        b.emit(i, (x,), {goal: size})


def _by_group(b: Launches, i: int, k: Kernel, reads: tuple[str, ...], y: str, width: int) -> None:
    """Split, one convolution a group, Concat."""
    (n, c, h, w), (_, oc, oh, ow) = b.shape(k.inputs[0]), b.shape(y)
    atom, groups = b.p.atom_bytes, range(k.groups)
    b.emit(i, reads[:1], {f"{y} input {j}": b.stored((n, c // k.groups, h, w), width, atom) for j in groups})
    for j in groups:
        b.emit(i, (f"{y} input {j}",), {f"{y} group {j}": b.stored((n, oc // k.groups, oh, ow), width, ATOMS * atom)})
    b.emit(i, (*(f"{y} group {j}" for j in groups), *reads[1:]), {y: b.stored(b.shape(y), width, atom)})


def global_pool(b: Launches, i: int, k: Kernel, reads: tuple[str, ...]) -> None:
    x, y, h, w, n = reads[0], k.outputs[0], k.in_h, k.in_w, 0
    width, wide = b.precision[k.name].activation_bytes, b.p.depthwise_group_channels
    while max(h, w) > REACH:
        h, w, n = ceil(h / REACH), ceil(w / REACH), n + 1
        b.emit(i, (x,), {f"{y} pool {n}": b.stored((k.batch, k.in_channels, h, w), width, wide)})
        x = f"{y} pool {n}"
    b.emit(i, (x,), {y: b.stored(b.shape(y), width, wide)})


def interpolated(b: Launches, i: int, k: Kernel, reads: tuple[str, ...]) -> None:
    """A Resize that is not nearest. By whole factors the NPU does it, from a copy with a border; else the CPU."""
    y, width, atom = k.outputs[0], b.precision[k.name].activation_bytes, b.p.atom_bytes
    mode, _, at = k.interpolation.partition(" ")
    less = int(at == "align_corners" and k.in_h > 1 and k.in_w > 1)
    whole = all((o - less) % (i - less) == 0 for o, i in ((k.out_h, k.in_h), (k.out_w, k.in_w)))
    on_npu = mode == "linear" and (whole or (k.in_h % k.out_h == 0 and k.in_w % k.out_w == 0))
    if on_npu and whole and not less and k.in_h * k.in_w > 1:
        border = 1 if at == "asymmetric" else 2
        far = max(k.out_h / k.in_h, k.out_w / k.in_w) > FARTHEST
        copy = k.batch, k.in_channels, k.in_h + border, k.out_w if far else k.in_w + border
        b.emit(i, reads, {f"{y} border": b.stored(copy, width, atom)})
        reads = (*reads, f"{y} border")
    b.emit(i, reads, {y: b.stored(b.shape(y), width, (2 if on_npu else 1) * ATOMS * atom)})


def concat(b: Launches, i: int, k: Kernel, reads: tuple[str, ...]) -> None:
    """Parts that do not fill whole atoms are joined by a convolution, with scratch as large as the result."""
    y, width, atom = k.outputs[0], b.precision[k.name].activation_bytes, b.p.atom_bytes
    shape, shapes = b.shape(y), [b.shape(t) for t in k.inputs]
    ragged = len(shape) == 4 and any(len(s) == 4 and s[1] != shape[1] and s[1] * width % atom for s in shapes)
    size = b.stored(shape, width, ATOMS * atom if ragged else atom)
    if ragged:
        b.emit(i, (), {f"{y} scratch": size})
        b.emit(i, (*reads, f"{y} scratch"), {y: size})
    else:
        b.emit(i, reads, {y: size})


def other(b: Launches, i: int, k: Kernel, reads: tuple[str, ...]) -> None:
    """Whatever is left. A function of one operand keeps 32-bit values, an 8-bit LayerNormalization has scratch for them."""
    width, wide = b.precision[k.name].activation_bytes, b.p.atom_bytes * (ATOMS if k.kind == "matmul" else 1)
    maps = len(k.inputs) == 1 and k.kind in ("eltwise", "activation")
    copies = FLOAT_BYTES // width if k.kind == "activation" and k.activation not in FREE_ACTIVATIONS else 1
    if k.op == NORM:
        images, channels, *pixels = b.shape(k.outputs[0])
        b.emit(i, (), {f"{k.name} scratch": norm_scratch(images, prod(pixels), channels, width)})
        reads = (*reads, f"{k.name} scratch")
    if k.kind in ("eltwise", "norm") and width < FLOAT_BYTES and width > 1 and any(b.normalised(t) for t in k.outputs):
        copies = FLOAT_BYTES // width
    b.emit(i, reads, {t: b.stored(b.shape(t), width, wide, copies) for t in k.outputs}, maps)
