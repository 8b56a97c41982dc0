"""The buffers that rknn-toolkit2 allots, in the order it runs kernels: what `place_as_run` then places as the toolkit does.

Read off the feature tables ("start, end, size" of every tensor) that rknn-toolkit2 2.5.0 prints for rk3588, over 34 networks and small
graphs made for one question each; experiments/memory_plans.py compares totals on 40 further networks. Left out, since no rule was found:
attention (the toolkit has one operator for it), the padded
copy that a linear Resize reads (a Kernel does not say how it interpolates), dilated convolutions, the order of parallel branches.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import ceil, prod

from qbench.cost.lowering import lowered
from qbench.cost.memory import Lifetime
from qbench.cost.parameters import NpuParameters
from qbench.cost.sharing import is_view
from qbench.cost.work import FREE_ACTIVATIONS, adds_apart, up
from qbench.network import Kernel, Network, Precision

PIXELS = 4                      # H * W is padded to a multiple, 1 x 1 excepted
BASE = 64                       # a buffer starts at a multiple of this
ATOMS = 2                       # a convolution writes this many atoms of channels at a time
REACH = 7                       # a global pool is a chain of convolutions that reach this far
WEIGHT_BYTES = 3072             # of one output channel: more are cut along the input channels, and the results added up
WIDE = 2048                     # rows of an image of this many pixels are cut, beside the first output
TABLE_BUFFERS = {"Swish": 3, "HardSwish": 3, "Elu": 3, "Softplus": 3, "Gelu": 3}     # a 16-bit function keeps its operands beside its result
OTHER_TABLES = 2
LONGEST_GELU = 10               # kernels
FLOAT_BYTES = 4
STATISTICS = 32                 # bytes a pixel, beside the 32-bit values of a LayerNormalization


@dataclass(frozen=True, slots=True)
class Step:
    """One launch. kernel   index of the kernel of the network it belongs to, -1 for a graph input"""

    kernel: int
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    in_place: bool = False


@dataclass
class _Builder:
    """Collects steps and sizes while it walks over the network."""

    network: Network
    precision: Mapping[str, Precision]                              # kernel -> precision
    p: NpuParameters
    steps: list[Step] = field(default_factory=list)
    sizes: dict[str, int] = field(default_factory=dict)
    lies_in: dict[str, str] = field(default_factory=dict)           # tensor -> the one whose bytes it has
    gelus: Mapping[str, str] = field(default_factory=dict)
    kept: list[tuple[int, str]] = field(default_factory=list)       # kernel that reads a copy, and what it is a copy of

    def stored(self, shape: tuple[int, ...], width: int, step: float, copies: int = 1) -> int:
        """Bytes of a tensor whose channels are padded to `step` bytes. width   bytes of an element"""
        if len(shape) != 4:
            return int(up(prod(shape) * width, BASE))
        n, c, h, w = shape
        pixels = h * w if h * w == 1 else up(h * w, PIXELS)
        return int(up(n * pixels * up(c * width, step) * copies, BASE))

    def shape(self, tensor: str) -> tuple[int, ...]:
        return self.network.tensors[tensor].shape

    def held(self, tensor: str) -> str:
        while tensor in self.lies_in:
            tensor = self.lies_in[tensor]
        return tensor

    def emit(self, kernel: int, reads: tuple[str, ...], writes: Mapping[str, int], in_place: bool = False) -> None:
        self.sizes |= writes
        self.steps.append(Step(kernel, tuple(dict.fromkeys(reads)), tuple(writes), in_place))


def _walk(network: Network, precision: Mapping[str, Precision], p: NpuParameters) -> _Builder:
    """Launches in order, bytes of every buffer, and tensors that lie in another one's buffer. precision   kernel -> the one it works in"""
    b = _Builder(network, precision, p, gelus=_gelus(network))
    for t in network.inputs:
        _graph_input(b, t)
    swapped = _swaps(network)
    late = {donor: taker for taker, donor in swapped.items()}
    parts = _joined_by_addition(network)
    for i, k in enumerate(network.kernels):
        if not k.outputs or k.name in late or (k.kind == "concat" and k.outputs[0] in parts):
            continue
        if (source := _vanishes(b, k)) is not None:
            b.lies_in[k.outputs[0]] = source
            continue
        reads = tuple(_converted(b, i, k, t) for t in k.inputs)
        if k.kind in ("conv", "depthwise", "deconv"):
            donor = network.kernel[swapped[k.name]] if k.name in swapped else None
            whole = [t for t in k.inputs if t in parts]
            _convolution(b, i, k, reads, donor, parts[whole[0]] if whole and donor is None else ())
        elif k.kind == "global_pool":
            _global_pool(b, i, k, reads)
        elif k.kind == "concat":
            _concat(b, i, k, reads)
        else:
            _other(b, i, k, reads)
    for i, t in b.kept:                                             # whether the toolkit frees it before is not known
        at = max(n for n, s in enumerate(b.steps) if s.kernel == i)
        b.steps[at] = replace(b.steps[at], reads=tuple(dict.fromkeys((*b.steps[at].reads, t))))
    return b


def buffers_of(network: Network, precision: Mapping[str, Precision], p: NpuParameters) -> tuple[list[Lifetime], dict[str, str]]:
    """Buffers with their lifetimes in launches, in the order they are allotted, and tensors that lie in another one's buffer."""
    b = _walk(network, precision, p)
    steps, sizes, aliases = b.steps, b.sizes, {t: b.held(t) for t in b.lies_in}
    last: dict[str, int] = {}
    for i, s in enumerate(steps):
        for t in (*s.reads, *s.writes):
            last[t] = i
    for t in network.outputs:
        last[aliases.get(t, t)] = len(steps)
    owner: dict[str, str] = {}
    spans: dict[str, list[int]] = {}
    for i, s in enumerate(steps):
        for t in s.writes:
            x = owner.get(s.reads[0], s.reads[0]) if s.reads else ""
            if s.in_place and spans[x][1] == i and sizes[x] == sizes[t]:
                owner[t], spans[x][1] = x, last[t]
            else:
                spans[t] = [i, last[t]]
    aliases = {t: owner.get(o, o) for t, o in aliases.items()} | owner
    return [Lifetime(t, sizes[t], first, end) for t, (first, end) in spans.items()], aliases


def bounds_of(network: Network, precisions: Sequence[Precision], tensors: Sequence[str], p: NpuParameters) -> tuple[
        set[int], dict[str, tuple[int, ...]], dict[str, tuple[int, ...]]]:
    """Kernels during which not all operands need to live at once; then per precision what each tensor takes at least, and a copy of it.

    A tensor that is not stored for itself at one of the precisions, or whose lifetime is not that of the network, counts nothing.
    """
    swapped, joined = _swaps(network), _joined_by_addition(network)
    elsewhere = {t for donor in swapped.values() for t in (*network.kernel[donor].inputs, *network.kernel[donor].outputs)}
    elsewhere |= {t for whole, parts in joined.items() for t in (whole, *parts)}
    loose: set[int] = set()
    found: dict[str, list[int]] = {t: [] for t in tensors}
    copies: dict[str, list[int]] = {t: [] for t in tensors}
    for precision in precisions:
        b = _walk(network, {k.name: precision for k in network.kernels}, p)
        launches = Counter(s.kernel for s in b.steps)
        loose |= {i for i in range(len(network.kernels)) if launches[i] != 1} | {s.kernel for s in b.steps if s.in_place}
        for t in tensors:
            counts = t not in elsewhere
            found[t].append(b.sizes[t] if counts and t in b.sizes and t not in b.lies_in else 0)
            copies[t].append(b.stored(b.shape(t), precision.activation_bytes, p.atom_bytes) if counts else 0)
    return loose, {t: tuple(v) for t, v in found.items()}, {t: tuple(v) for t, v in copies.items()}


# ------------------------------------------------------------------------------------------------------ structure

def _depths(network: Network) -> dict[str, int]:
    """Kernels on the longest way from the inputs to each tensor."""
    depth: dict[str, int] = {}
    for k in network.kernels:
        d = 1 + max((depth.get(t, 0) for t in k.inputs), default=0)
        depth |= dict.fromkeys(k.outputs, d)
    return depth


def _swaps(network: Network) -> dict[str, str]:
    """Kernels with a residual Add whose other operand is a convolution nearer to the input: that one runs last and adds."""
    depth, found = _depths(network), dict[str, str]()
    for k in network.kernels:
        if k.kind not in ("conv", "depthwise") or not k.op.startswith("Conv+Add") or len(k.inputs) != 2:
            continue
        other = network.kernel.get(network.producer.get(k.inputs[1], ""))
        if (other is not None and other.kind == "conv" and other.op == "Conv" and network.consumers[k.inputs[1]] == (k.name,)
                and k.inputs[1] not in network.outputs and depth.get(other.inputs[0], 0) < depth.get(k.inputs[0], 0)):
            found[k.name] = other.name
    return found


def _joined_by_addition(network: Network) -> dict[str, tuple[str, ...]]:
    """Concats that the toolkit avoids: where one convolution reads the whole and has less than half its channels, it runs part by part."""
    found = {}
    for k in network.kernels:
        if k.kind != "concat" or not k.outputs or len(set(k.inputs)) != len(k.inputs) or k.outputs[0] in network.outputs:
            continue
        y, readers = k.outputs[0], network.consumers.get(k.outputs[0], ())
        shape = network.tensors[y].shape
        parts = [network.tensors[t].shape for t in k.inputs]
        by_channel = len(shape) == 4 and all(len(s) == 4 and s[2:] == shape[2:] for s in parts) and sum(s[1] for s in parts) == shape[1]
        if not by_channel or len(readers) != 1:
            continue
        reader = network.kernel[readers[0]]
        if reader.kind == "conv" and reader.groups == 1 and reader.inputs[0] == y and 2 * reader.out_channels < shape[1]:
            found[y] = k.inputs
    return found


def _gelus(network: Network) -> dict[str, str]:
    """Kernels of a spelled GELU (Erf or Tanh and what is around it) behind a convolution or a product, and the tensor that they map."""
    found: dict[str, str] = {}
    for k in network.kernels:
        if k.kind not in ("conv", "depthwise", "matmul") or len(k.outputs) != 1:
            continue
        x, region = k.outputs[0], list[Kernel]()
        closed: list[Kernel] = []
        known, waiting = {x}, list(network.consumers.get(x, ()))
        while waiting and len(region) < LONGEST_GELU:
            ready = [n for n in waiting if set(network.kernel[n].inputs) <= known and network.kernel[n].kind in ("eltwise", "activation")]
            if not ready:
                break
            k = network.kernel[ready[0]]
            region.append(k)
            known.update(k.outputs)
            waiting = list(dict.fromkeys(n for t in known for n in network.consumers.get(t, ()) if n not in {r.name for r in region}))
            if {t for n in waiting for t in network.kernel[n].inputs if t in known} <= set(k.outputs):
                closed = list(region)
        if any(op in ("Erf", "Tanh") for r in closed for op in r.op.split("+")) and len(closed) > 2:
            found |= dict.fromkeys((r.name for r in closed), x)
    return found


def _vanishes(b: _Builder, k: Kernel) -> str | None:
    """The tensor in whose buffer the output lies: of views, of Slices of everything, of a GELU that its convolution applies; None elsewhere."""
    if k.name in b.gelus and b.precision[k.name] is b.precision[b.network.producer[b.gelus[k.name]]]:
        return b.gelus[k.name]
    whole = is_view(k) or (k.op == "Slice" and b.shape(k.inputs[0]) == b.shape(k.outputs[0]))
    return k.inputs[0] if whole and _stored_in(b, k.inputs[0]) is b.precision[k.name] else None


def _stored_in(b: _Builder, tensor: str) -> Precision:
    """Graph inputs are stored in the precision of their first reader."""
    return b.precision[b.network.producer.get(tensor) or b.network.consumers[tensor][0]]


# ------------------------------------------------------------------------------------------------------- launches

def _graph_input(b: _Builder, t: str) -> None:
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


def _converted(b: _Builder, i: int, k: Kernel, t: str) -> str:
    """The buffer that kernel `k` reads `t` from: a copy where it is stored in another precision, one per unit."""
    unit = b.network.unit_of_kernel[k.name]
    if _stored_in(b, t) is b.precision[k.name] or b.network.tensors[t].dtype != "float32":
        return b.held(t)
    copy = f"{t} as {b.precision[k.name]} for {unit}"
    b.kept.append((i, b.held(t)))
    if copy not in b.sizes:
        b.emit(i, (b.held(t),), {copy: b.stored(b.shape(t), b.precision[k.name].activation_bytes, b.p.atom_bytes)})
    return copy


def _convolution(b: _Builder, i: int, k: Kernel, reads: tuple[str, ...], donor: Kernel | None, parts: tuple[str, ...]) -> None:
    """A convolution with what is fused to it. donor   the one that runs behind it and adds; parts   of a Concat that is never built"""
    width, y, atom = b.precision[k.name].activation_bytes, k.outputs[0], b.p.atom_bytes
    shape = b.shape(y)
    function = "Gelu" if y in b.gelus.values() else k.activation
    copies = 1 if width == 1 or function in FREE_ACTIVATIONS else TABLE_BUFFERS.get(function, OTHER_TABLES)
    wide = b.p.depthwise_group_channels if k.kind == "depthwise" and copies == 1 else ATOMS * atom
    x, rest = reads[0], reads[1:]
    if donor is not None:
        plain = f"{y} before the Add"
        b.emit(i, (x,), {plain: b.stored(shape, width, wide)})
        x, rest, k = _converted(b, i, donor, donor.inputs[0]), (plain,), donor
    size = b.stored(shape, width, wide, copies)
    low = lowered(k, b.precision[k.name], b.p)
    if low.apart:
        _by_group(b, i, k, (x, *rest), y, width)
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
    pieces = [_converted(b, i, k, t) for t in parts] or _cut(b, i, k, x, y, width)
    pieces[:2] = pieces[1::-1]                                       # the toolkit begins with the second
    for n, piece in enumerate(pieces):
        last = n == len(pieces) - 1
        goal = y if last else f"{y} of {n + 1} parts"
        b.emit(i, (piece, *rest), {goal: size if last else b.stored(shape, width, wide)})
        rest = (goal,)


def _cut(b: _Builder, i: int, k: Kernel, x: str, y: str, width: int) -> list[str]:
    """The input, cut along its channels where the weights of an output channel are too many."""
    pieces = ceil(k.in_channels // k.groups * k.kernel_h * k.kernel_w * width / WEIGHT_BYTES) if k.kind == "conv" and k.groups == 1 else 1
    if pieces == 1:
        return [x]
    n, c, h, w = (*b.shape(k.inputs[0]), 1, 1)[:4]
    made = {f"{y} input {j}": b.stored((n, ceil(c / pieces), h, w), width, b.p.atom_bytes) for j in range(pieces)}
    b.emit(i, (x,), made)
    return list(made)


def _by_group(b: _Builder, i: int, k: Kernel, reads: tuple[str, ...], y: str, width: int) -> None:
    """Split, one convolution a group, Concat."""
    (n, c, h, w), (_, oc, oh, ow) = b.shape(k.inputs[0]), b.shape(y)
    atom, groups = b.p.atom_bytes, range(k.groups)
    b.emit(i, reads[:1], {f"{y} input {j}": b.stored((n, c // k.groups, h, w), width, atom) for j in groups})
    for j in groups:
        b.emit(i, (f"{y} input {j}",), {f"{y} group {j}": b.stored((n, oc // k.groups, oh, ow), width, ATOMS * atom)})
    b.emit(i, (*(f"{y} group {j}" for j in groups), *reads[1:]), {y: b.stored(b.shape(y), width, atom)})


def _global_pool(b: _Builder, i: int, k: Kernel, reads: tuple[str, ...]) -> None:
    x, y, h, w, n = reads[0], k.outputs[0], k.in_h, k.in_w, 0
    width, wide = b.precision[k.name].activation_bytes, b.p.depthwise_group_channels
    while max(h, w) > REACH:
        h, w, n = ceil(h / REACH), ceil(w / REACH), n + 1
        b.emit(i, (x,), {f"{y} pool {n}": b.stored((k.batch, k.in_channels, h, w), width, wide)})
        x = f"{y} pool {n}"
    b.emit(i, (x,), {y: b.stored(b.shape(y), width, wide)})


def _concat(b: _Builder, i: int, k: Kernel, reads: tuple[str, ...]) -> None:
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


def _other(b: _Builder, i: int, k: Kernel, reads: tuple[str, ...]) -> None:
    """Whatever is left. A function of one operand keeps 32-bit values, an 8-bit LayerNormalization has scratch for them."""
    width, wide = b.precision[k.name].activation_bytes, b.p.atom_bytes * (ATOMS if k.kind == "matmul" else 1)
    maps = len(k.inputs) == 1 and k.kind in ("eltwise", "activation")
    copies = FLOAT_BYTES // width if k.kind == "activation" and k.activation not in FREE_ACTIVATIONS else 1
    if k.op == "LayerNormalization" and width == 1:
        channels = b.shape(k.inputs[0])[-1]
        pixels = up(prod(b.shape(k.inputs[0])) // channels, PIXELS)
        b.emit(i, (), {f"{k.name} scratch": int(up(pixels * (channels * FLOAT_BYTES + STATISTICS), BASE))})
        reads = (*reads, f"{k.name} scratch")
    b.emit(i, reads, {t: b.stored(b.shape(t), width, wide, copies) for t in k.outputs}, maps)
