"""What one kernel asks of a chip whose compiler manages the on-chip memory: counts, padding included. No fitted constant enters here.

The array works on tiles of pixels and groups of channels; tensors stay on chip while a kernel's own fit; a vector unit maps elements;
graph inputs and outputs change their layout once.
"""

from __future__ import annotations

from math import ceil

from qbench.cost.parameters import NpuParameters
from qbench.cost.work import ARRAY, DENSE, FREE_ACTIVATIONS, Work, up
from qbench.network import Kernel, Network, Precision

VIEWS = frozenset({"Reshape", "Flatten", "Squeeze", "Unsqueeze", "Identity", "Dropout", "Cast"})     # nothing moves
FUNCTIONS = frozenset({"Erf", "Sigmoid", "HardSwish", "HardSigmoid", "Exp", "Log", "Tanh", "Gelu", "Sqrt", "Softplus", "Elu", "Mish"})
REDUCING = frozenset({"softmax", "norm", "reduce", "global_pool"})
SPATIAL = frozenset({"conv", "depthwise", "deconv", "pool", "resize", "concat"})
CHAIN = 3                                           # operators behind Erf that make up a GELU


def channel_groups(precision: Precision, p: NpuParameters) -> tuple[float, float]:
    """Input and output channels of one step of the array."""
    if p.group_bytes:
        return p.group_bytes / precision.activation_bytes, p.output_group_channels
    return p.input_group_channels, p.output_group_channels


def padded_macs(k: Kernel, precision: Precision, p: NpuParameters) -> float:
    """MACs of the padded array for a convolution, product or recurrence."""
    group_in, group_out = channel_groups(precision, p)
    if k.kind == "rnn":                              # one step at a time: a single pixel fills one row of the tile
        return k.macs * p.pixel_group
    groups, cin, cout = float(max(1, k.groups)), k.in_channels / max(1, k.groups), k.out_channels / max(1, k.groups)
    if p.pack_groups and groups > 1:
        together = max(1, int(min(group_in, group_out) // max(cin, cout)))
        groups, cin, cout = ceil(groups / together), cin * together, cout * together
    rows, columns = (k.in_h, k.in_w) if k.kind == "deconv" else (k.out_h, k.out_w)
    if k.kind == "matmul":
        pixels = up(rows * columns, p.pixel_group)
    else:
        pixels = up(up(rows, p.pixel_tile_h) * up(columns, p.pixel_tile_w), p.pixel_group)
    return float(k.batch * pixels * groups * up(cin, group_in) * up(cout, group_out) * k.kernel_h * k.kernel_w)


def depthwise_macs(k: Kernel, p: NpuParameters) -> float:
    """MACs of a depthwise convolution, rows, columns and channels padded."""
    pixels = up(k.out_h, p.pixel_tile_h) * up(k.out_w, p.pixel_tile_w)
    return float(k.batch * pixels * up(k.out_channels, p.depthwise_group_channels) * k.kernel_h * k.kernel_w)


def tensor_bytes(tensor: str, network: Network, precision: Precision, p: NpuParameters, padded: bool) -> float:
    """Bytes of a tensor on chip; `padded` where it lies in groups of channels."""
    spec = network.tensors[tensor]
    if padded and len(spec.shape) == 4 and tensor not in network.inputs:
        n, c, h, w = spec.shape
        return float(n * h * w * up(c * precision.activation_bytes, p.atom_bytes))
    return float(spec.elements * precision.activation_bytes)


def edge_bytes(k: Kernel, network: Network, precision: Precision, p: NpuParameters) -> float:
    """Bytes of graph inputs and outputs that this kernel brings into the chip's layout, or out of it."""
    found = 0.0
    for t in dict.fromkeys((*k.inputs, *k.outputs)):
        if t in network.outputs or (t in network.inputs and network.consumers[t][0] == k.name):
            shape = network.tensors[t].shape
            whole = shape[0] * up(shape[1], p.edge_channels) * shape[2] * shape[3] if len(shape) == 4 else network.tensors[t].elements
            found += whole * precision.activation_bytes
    return found


def in_gelu(k: Kernel, network: Network) -> bool:
    """Whether an elementwise kernel belongs to the chain around an Erf: x * (1 + erf(x / sqrt 2)) / 2."""
    if k.kind != "eltwise" or not k.outputs:
        return False
    ahead = network.consumers.get(k.outputs[0], ())
    if len(ahead) == 1 and "Erf" in network.kernel[ahead[0]].op.split("+") and len(set(k.inputs)) == 1:
        return True
    front = [k]
    for _ in range(CHAIN):
        makers = [network.kernel[m] for f in front for t in f.inputs if (m := network.producer.get(t))]
        if any("Erf" in m.op.split("+") for m in makers):
            return True
        front = [m for m in makers if m.kind == "eltwise" and len(network.consumers.get(m.outputs[0], ())) == 1]
    return False


def swaps_channels(k: Kernel, network: Network) -> bool:
    """Whether a Transpose goes between NCHW and NHWC."""
    if k.op != "Transpose":
        return False
    a, b = network.tensors[k.inputs[0]].shape, network.tensors[k.outputs[0]].shape
    return len(a) == len(b) == 4 and b in ((a[0], a[2], a[3], a[1]), (a[0], a[3], a[1], a[2]))


def in_place(k: Kernel, network: Network, p: NpuParameters) -> bool:
    """Whether a Concat, Split or Slice of whole groups of channels only renames memory: its parts lie inside the whole."""
    joins = k.kind == "concat"
    if not joins and k.kind != "split" and k.op != "Slice":
        return False
    shapes = [network.tensors[t].shape for t in (*k.inputs, *k.outputs)]
    if any(len(s) != 4 or s[0] != shapes[0][0] or s[2:] != shapes[0][2:] for s in shapes):
        return False
    return all(network.tensors[t].shape[1] % p.input_group_channels == 0 for t in (k.inputs if joins else k.outputs))


def vanishes(k: Kernel, network: Network, p: NpuParameters) -> bool:
    """Whether the compiler leaves nothing of the kernel."""
    if k.kind == "reshape" and k.op in VIEWS:
        return True
    return bool(p.fused_chains) and (swaps_channels(k, network) or in_gelu(k, network) or in_place(k, network, p))


def tile_work(k: Kernel, network: Network, precision: Precision, macs_per_cycle: float, weight_bytes: float, p: NpuParameters) -> Work:
    """Counts of kernel `k` when its unit has `precision`. weight_bytes   of the stored weights, biases included"""
    if vanishes(k, network, p):
        return Work(launches=0.0, edge_bytes=edge_bytes(k, network, precision, p))
    sizes = [tensor_bytes(t, network, precision, p, k.kind in SPATIAL) for t in dict.fromkeys((*k.inputs, *k.outputs))]
    ends = [t for t in dict.fromkeys((*k.inputs, *k.outputs)) if t in network.inputs or t in network.outputs]
    moved = weight_bytes + sum(network.tensors[t].elements * precision.activation_bytes for t in ends)
    spilled = max(0.0, sum(sizes) - p.onchip_bytes)
    elements = sum(network.tensors[t].elements for t in k.outputs)
    read = sum(network.tensors[t].elements for t in dict.fromkeys(k.inputs))
    dense = padded_macs(k, precision, p) if k.kind in DENSE else 0.0
    depthwise = depthwise_macs(k, p) if k.kind == "depthwise" else 0.0
    function = k.activation not in FREE_ACTIVATIONS or (k.kind not in DENSE and any(op in FUNCTIONS for op in k.op.split("+")))
    mapped, reduced, layout = 0.0, 0.0, 0.0
    normalises = k.kind in REDUCING and "BatchNormalization" not in k.op
    if k.kind in DENSE or k.kind == "depthwise":
        mapped = elements if len(k.inputs) > 1 and k.kind != "matmul" else 0.0
    elif normalises:
        reduced = max(read, elements)
    elif k.op == "Transpose":
        layout = (read + elements) * precision.activation_bytes
    elif k.kind in ("pool", "resize"):
        mapped = elements * (k.kernel_h * k.kernel_w if k.kind == "pool" else 4)
    elif not function:
        mapped = elements
    factor = p.spill_factor_8bit if precision.activation_bytes == 1 else p.spill_factor_16bit
    return Work(cycles=dense / macs_per_cycle, dram_bytes=moved + factor * spilled, lut_elements=elements if function and not normalises else 0.0,
                layout_bytes=layout, launches=p.elementwise_launch_share if k.kind in ("eltwise", "activation") else 1.0, macs=k.macs,
                padded_macs=max(dense + depthwise, k.macs), depthwise_macs=depthwise, mapped_elements=mapped, reduced_elements=reduced,
                edge_bytes=edge_bytes(k, network, precision, p), onchip_bytes=sum(sizes), spilled_bytes=spilled,
                vector_launches=float(k.kind == "depthwise" or (k.kind not in DENSE and k.kind not in ("concat", "split"))) + float(function and k.kind in ARRAY))
