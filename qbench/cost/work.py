"""What one kernel asks of the hardware, in counts. No fitted constant enters here.

Source: the padding rules were read off the cycle table of the RKNN toolkit 2.5.0 for RK3588 (experiments/fit_rk3588.py repeats the
comparison); the buffer rules are those of the Mesa rocket driver (rkt_task.c, 2024), which follow NVDLA.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, floor, prod

from qbench.cost.lowering import lowered
from qbench.cost.parameters import NpuParameters
from qbench.network import Kernel, Network, Precision, TensorSpec

# Functions that the output stage applies for nothing; every other one goes through a lookup table.
FREE_ACTIVATIONS = frozenset({"", "Relu", "Relu6", "Clip", "LeakyRelu", "PRelu", "Identity"})
DENSE = frozenset({"conv", "deconv", "matmul", "rnn"})
ARRAY = DENSE | {"depthwise", "global_pool"}
PARTING_OPS = frozenset({"Slice", "Gather"})                  # read no more than they write
KEEPING_OPS = frozenset({"Pad", "Identity", "Dropout", "Tile", "Expand"})
LUT_OPS = frozenset({"Softmax", "LogSoftmax", "LayerNormalization", "InstanceNormalization", "GroupNormalization"})


@dataclass(frozen=True, slots=True)
class Work:
    """Counts of one kernel at one precision.

    cycles         of the MAC array, padding included
    dram_bytes     read and written after tiling
    lut_elements   output elements that pass a lookup table
    layout_bytes   bytes that have to be re-packed
    launches       of the hardware
    macs, padded_macs
    depthwise_macs, mapped_elements, reduced_elements, edge_bytes, onchip_bytes, spilled_bytes, vector_launches   see `qbench.cost.tile`, which fills them;
                   dram_bytes holds the traffic of the spilled ones already
    """

    cycles: float = 0.0
    dram_bytes: float = 0.0
    lut_elements: float = 0.0
    layout_bytes: float = 0.0
    launches: float = 1.0
    macs: float = 0.0
    padded_macs: float = 0.0
    depthwise_macs: float = 0.0
    mapped_elements: float = 0.0
    reduced_elements: float = 0.0
    edge_bytes: float = 0.0
    onchip_bytes: float = 0.0
    spilled_bytes: float = 0.0
    vector_launches: float = 0.0


def up(x: float, step: float) -> float:
    """The next multiple of `step` at or above `x`."""
    return ceil(x / step) * step


def stored_bytes(t: TensorSpec, precision: Precision, p: NpuParameters, image: bool = False) -> float:
    """Bytes of an activation tensor in the NPU's channel-packed layout (NC1HWC2).

    image  a graph input that feeds a convolution: it stays unpacked when its channels are few
    """
    b = precision.activation_bytes
    if image and len(t.shape) == 4 and t.shape[1] <= p.raw_input_channels:
        return t.elements * b
    if len(t.shape) == 4:
        n, c, h, w = t.shape
        return n * h * w * up(c * b, p.atom_bytes)
    return up(t.elements * b, p.atom_bytes)


def stored_weight_bytes(k: Kernel, precision: Precision, p: NpuParameters) -> float:
    """Bytes of weights and biases; the first layer's are padded to an atom of input channels, biases to 32 channels."""
    b = precision.activation_bytes
    weights = k.weights * b
    if k.kind == "conv" and 0 < k.in_channels <= p.raw_input_channels:
        weights = int(weights * up(k.in_channels * b, p.atom_bytes) / (k.in_channels * b))
    bias = up(k.out_channels, 32) * (8 if b == 1 else 4) if k.biases or k.kind in ("conv", "depthwise", "deconv") else 0
    return weights + bias if k.weights else 0.0


def array_cycles(k: Kernel, macs_per_cycle: float, p: NpuParameters) -> float:
    """Cycles of the MAC array: pixels, input and output channels are padded to the array.

    macs_per_cycle / input_group_channels is the number of output channels that the array computes at a time; per such group
    a pixel takes at least as long as writing its outputs. INT8 with 1024 MAC/cycle: 32 x 32; FP16 with 512: 32 x 16.
    """
    taps = k.kernel_h * k.kernel_w
    pixels = k.batch * up(k.out_h * k.out_w, p.pixel_group)
    if k.kind == "depthwise":
        return pixels * taps * ceil(k.out_channels / p.depthwise_group_channels)
    if k.kind == "global_pool":                  # the toolkit runs it as depthwise convolutions of at most 7 x 7
        first = up(ceil(k.in_h / 7) * ceil(k.in_w / 7), p.pixel_group) * min(k.in_h, 7) * min(k.in_w, 7)
        second = p.pixel_group * ceil(k.in_h / 7) * ceil(k.in_w / 7) if max(k.in_h, k.in_w) > 7 else 0
        return k.batch * (first + second) * ceil(k.in_channels / p.depthwise_group_channels)
    if k.kind == "rnn":                          # one step at a time: a single pixel fills one row of the pixel group
        return k.macs * p.pixel_group / macs_per_cycle
    columns = macs_per_cycle / p.input_group_channels
    steps = taps * ceil(k.in_channels / k.groups / p.input_group_channels)
    floor_cycles = columns / p.output_elements_per_cycle
    return pixels * k.groups * ceil(k.out_channels / k.groups / columns) * max(steps, floor_cycles)


def input_entries_per_row(k: Kernel, element_bytes: int, p: NpuParameters) -> int:
    """Buffer entries that one input row takes: 8 atoms of 16 bytes each; a remainder of 3 atoms is charged a full entry."""
    atoms = ceil(k.in_channels / k.groups * element_bytes / p.atom_bytes) if k.kind != "depthwise" else ceil(
        k.in_channels * element_bytes / p.atom_bytes)
    whole, rest = divmod(atoms, int(p.entry_atoms))
    return whole * k.in_w + (k.in_w if rest == 3 else ceil(rest * k.in_w / p.entry_atoms))


def input_banks(k: Kernel, element_bytes: int, p: NpuParameters) -> int:
    """Banks of the on-chip buffer that the whole input takes."""
    return ceil(input_entries_per_row(k, element_bytes, p) * k.in_h / p.bank_entries)


def weight_banks(weight_bytes: float, p: NpuParameters) -> int:
    """Banks that the weights take, with the spare one that the hardware wants."""
    return ceil(weight_bytes / p.bank_bytes) + 1


def tiled_bytes(k: Kernel, element_bytes: int, read: float, weights: float, p: NpuParameters) -> float:
    """Input and weight bytes read from DRAM: the cheapest of the four ways to share the buffer (section 3.3).

    read     bytes of the input, once
    weights  bytes of the weights, once
    """
    banks = int(p.buffer_banks)
    need_i, need_w = input_banks(k, element_bytes, p), weight_banks(weights, p)
    if need_i + need_w <= banks or need_i <= banks - 1:            # all fits, or the input stays and weights stream past
        return read + weights
    rows = input_entries_per_row(k, element_bytes, p)
    halo = max(k.kernel_h - k.stride_h, 0)

    def banded(free: int) -> float | None:                         # input in bands of rows that overlap by the halo
        per_band = floor(free * p.bank_entries / rows)
        fresh = per_band - halo
        return read * (1 + halo / fresh) if per_band >= k.kernel_h and fresh > 0 else None

    ways = []
    if need_w < banks and (kept := banded(banks - need_w)) is not None:
        ways.append(kept + weights)
    share = max(1, floor(banks * p.input_share))
    streamed = banded(share) or read * max(1.0, k.kernel_h / max(1, k.stride_h))      # no band fits: every row once for each of its uses
    ways.append(streamed + weights * ceil(need_i / share))
    ways.append(streamed * ceil(weights / max(1, banks - share) / p.bank_bytes) + weights)
    return min(ways)


def runs_at(k: Kernel, precision: Precision) -> Precision:
    """The arithmetic a kernel really uses: a product of two activations runs in 16 bits whatever the plan says (toolkit table)."""
    return Precision.FP16 if k.kind == "matmul" and k.weights == 0 and precision is Precision.INT8 else precision


def repacks(k: Kernel, network: Network, precision: Precision, p: NpuParameters) -> bool:
    """Whether a kernel that moves data breaks the channel packing and so loses the wide accesses.

    Transposes and reshapes do, unless at most one axis is longer than 1; Split and Slice do when the channels of a part do not
    fill whole atoms, and so does whatever cuts or joins tensors without a channel axis.
    """
    parted = k.kind in ("concat", "split") or k.op in PARTING_OPS
    if not parted and k.kind != "reshape":
        return False
    ends = [network.tensors[t].shape for t in (*k.inputs, *k.outputs)]
    if not parted:
        return any(sum(d > 1 for d in s) > 1 for s in ends) and k.op not in KEEPING_OPS
    if joins_densely(k, network, precision, p):
        return False
    if any(len(s) != 4 for s in ends):
        return True
    by_channel = k.kind != "concat" and len({s[1] for s in ends}) > 1
    return by_channel and any(network.tensors[t].shape[1] * precision.activation_bytes % p.atom_bytes for t in k.outputs)


def joins_densely(k: Kernel, network: Network, precision: Precision, p: NpuParameters) -> bool:
    """Whether a Concat runs as a 1x1 convolution with a permutation matrix: parts whose channels do not fill whole atoms.

    Tensors [N, C, L] with L of 4 or more are folded first and stay cheap. Both read off the toolkit's table (ghostnet,
    yolov8n-pose, retinaface: 17 MB for a Concat to 4200 channels).
    """
    if k.kind != "concat" or not k.outputs:
        return False
    parts, whole = [network.tensors[t].shape for t in k.inputs], network.tensors[k.outputs[0]].shape
    if any(len(s) != len(whole) for s in parts) or not 3 <= len(whole) <= 4 or (len(whole) == 3 and whole[2] >= 4):
        return False
    by_channel = any(s[1] != whole[1] for s in parts)
    return by_channel and any(s[1] * precision.activation_bytes % p.atom_bytes for s in parts)


def dense_join(k: Kernel, network: Network, precision: Precision, p: NpuParameters) -> tuple[float, float]:
    """Weight bytes and padded MACs of the permutation matrix of such a Concat."""
    b = precision.activation_bytes
    columns = sum(up(network.tensors[t].shape[1] * b, p.atom_bytes) / b for t in k.inputs)
    shape = network.tensors[k.outputs[0]].shape
    pixels = shape[0] * up(prod(shape[2:]), p.pixel_group)
    macs = pixels * up(columns, p.input_group_channels) * up(shape[1], p.input_group_channels)
    return columns * shape[1] * b, macs


def lut_elements(k: Kernel, network: Network) -> int:
    """Elements that pass a lookup table: the output of a kernel with a table activation, or of a softmax or a normalisation."""
    through = k.activation not in FREE_ACTIVATIONS or any(op in LUT_OPS for op in k.op.split("+"))
    return sum(network.tensors[t].elements for t in k.outputs) if through else 0


def image_packing(k: Kernel, network: Network, precision: Precision, macs_per_cycle: float, p: NpuParameters) -> tuple[float, float]:
    """Array cycles and bytes of bringing a graph input of few channels into the packed layout.

    The array's first layer reads an image as it is; for any other reader the toolkit sets a 1x1 convolution before it (its table:
    posenet, resnet50_v2, vit_base_patch32).
    """
    cycles = moved = 0.0
    for t in dict.fromkeys(k.inputs):
        shape = network.tensors[t].shape
        if t in network.inputs and network.consumers[t][0] == k.name and len(shape) == 4 and shape[1] <= p.raw_input_channels:
            columns = macs_per_cycle / p.input_group_channels
            cycles += shape[0] * up(shape[2] * shape[3], p.pixel_group) * max(1.0, columns / p.output_elements_per_cycle)
            moved += stored_bytes(network.tensors[t], precision, p, image=True) + stored_bytes(network.tensors[t], precision, p)
    return cycles, moved


def siblings(k: Kernel, network: Network) -> int:
    """Slices of one tensor that the toolkit merges into one Split."""
    if k.op != "Slice":
        return 1
    readers = network.consumers.get(k.inputs[0], ())
    return max(1, sum(network.kernel[r].op == "Slice" for r in readers))


def adds_apart(k: Kernel) -> bool:
    """Whether the residual Add of a fused kernel is a launch of its own: behind a table activation the toolkit does not fuse it."""
    return k.activation not in FREE_ACTIVATIONS and k.op.split("+")[-1] == "Add" and k.kind in ARRAY


def kernel_work(k: Kernel, network: Network, precision: Precision, macs_per_cycle: float, p: NpuParameters) -> Work:
    """Counts of kernel `k` when its unit has `precision`. `macs_per_cycle` is that of `runs_at(k, precision)`."""
    tensors = network.tensors
    image = k.kind == "conv"
    read = [stored_bytes(tensors[t], precision, p, image and t in network.inputs) for t in dict.fromkeys(k.inputs)]
    written = sum(stored_bytes(tensors[t], precision, p) for t in k.outputs)
    lut = lut_elements(k, network)
    if k.kind not in ARRAY:
        moved = (written if k.op in PARTING_OPS else sum(read)) + written + stored_weight_bytes(k, precision, p)
        layout = moved if repacks(k, network, precision, p) else 0.0
        matrix, padded = dense_join(k, network, precision, p) if joins_densely(k, network, precision, p) else (0.0, 0.0)
        packing, extra = image_packing(k, network, precision, macs_per_cycle, p)
        return Work(cycles=padded / macs_per_cycle + packing, dram_bytes=moved - layout + matrix + extra, lut_elements=lut, layout_bytes=layout,
                    launches=1 / siblings(k, network) + (packing > 0), padded_macs=padded)
    low = lowered(k, precision, p)
    run = low.kernel
    cycles = array_cycles(run, macs_per_cycle, p)
    weights = stored_weight_bytes(run, precision, p)
    if k.kind in ("conv", "depthwise", "deconv") and read:
        traffic = tiled_bytes(run, precision.activation_bytes, read[0], weights, p) + sum(read[1:])
    else:
        traffic = sum(read) + weights
    launches = (run.groups if run.kind == "conv" else 1) * low.pieces
    if adds_apart(k):                            # the anchor's output goes to DRAM and comes back
        traffic += 2 * written
        launches += 1
    if low.apart:                                # Split and Concat around the groups
        traffic += 2 * (read[0] + written)
        launches += 2
    if low.selects(k) or low.pieces > 1:         # the finer output, once for each piece, goes to DRAM and comes back
        traffic += 2 * written * low.pieces * run.out_h * run.out_w / (k.out_h * k.out_w)
        launches += low.pieces
    padded = cycles * (macs_per_cycle if run.kind in DENSE else p.depthwise_group_channels)
    return Work(cycles=cycles, dram_bytes=traffic + written, lut_elements=lut, launches=launches, macs=k.macs, padded_macs=max(padded, k.macs))
