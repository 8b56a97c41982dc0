"""Changed networks: what a step does to the records that a price is computed from. Pure; weights are not touched, only counts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from math import ceil

from qbench.cost.work import FREE_ACTIVATIONS
from qbench.network import Kernel, Network, TensorSpec, Unit

MAPS = frozenset({"Sigmoid", "HardSigmoid", "HardSwish", "Tanh", "Gelu", "Swish", "Mish", "Elu", "Softplus"})
"""Functions that stand alone as a kernel and could be a Relu. Not Erf: it is part of a longer chain."""


def mapped(network: Network, change: Callable[[Kernel], Kernel]) -> Network:
    """The network with every kernel changed; names stay."""
    return replace(network, kernels=tuple(change(k) for k in network.kernels))


def functions(network: Network) -> tuple[str, ...]:
    """Names of kernels that apply a function which is not free on a MAC array's output stage."""
    return tuple(k.name for k in network.kernels if k.activation not in FREE_ACTIVATIONS or (k.op in MAPS and not k.macs))


def with_function(network: Network, function: str) -> Network:
    """Every one of `functions` replaced. Those that squash (Sigmoid, Tanh) into gates and outputs are replaced, too: an upper bound."""
    names = set(functions(network))

    def change(k: Kernel) -> Kernel:
        if k.name not in names:
            return k
        if not k.macs and k.op in MAPS:
            return replace(k, op=function, activation="")
        return replace(k, activation=function, op=_renamed(k, function))
    return mapped(network, change)


def _renamed(k: Kernel, function: str) -> str:
    """The kernel's operators with the fused function replaced; x * Sigmoid(x) are two of them."""
    parts = k.op.split("+")
    if k.activation == "Swish" and "Sigmoid" in parts:
        at = parts.index("Sigmoid")
        return "+".join([*parts[:at], function, *parts[at + 2:]])
    return "+".join(function if p == k.activation else p for p in parts)


def without_edge_transposes(network: Network) -> tuple[Network, tuple[str, ...]]:
    """The network without Transposes that only read an input or only write an output, and their names."""
    gone = [k for k in network.kernels if k.op == "Transpose" and len(network.kernels) > 1 and (
        (k.inputs[0] in network.inputs and network.consumers[k.inputs[0]] == (k.name,) and k.outputs[0] not in network.outputs)
        or (k.outputs[0] in network.outputs and k.outputs[0] not in network.consumers and k.inputs[0] not in network.inputs))]
    names = {k.name for k in gone}
    inputs = {k.inputs[0]: k.outputs[0] for k in gone if k.inputs[0] in network.inputs}
    outputs = {k.outputs[0]: k.inputs[0] for k in gone if k.outputs[0] in network.outputs}
    units = [Unit(u.name, tuple(k for k in u.kernels if k not in names), u.quantizable, u.reason) for u in network.units]
    kept = replace(network, kernels=tuple(k for k in network.kernels if k.name not in names), units=tuple(u for u in units if u.kernels),
                   inputs=tuple(inputs.get(t, t) for t in network.inputs), outputs=tuple(outputs.get(t, t) for t in network.outputs))
    return kept, tuple(k.name for k in gone)


def unfused(network: Network, norms: int = 0) -> Network:
    """Every fused operator as a kernel of its own, whose input and output go through memory.

    norms   convolutions, in execution order, that get the BatchNormalization back that was folded into them
    """
    kernels: list[Kernel] = []
    tensors = dict(network.tensors)
    apart: dict[str, list[str]] = {}
    for k in network.kernels:
        extra = k.op.split("+")[1:] if len(k.outputs) == 1 else []
        if norms and k.kind in ("conv", "depthwise", "deconv") and len(k.outputs) == 1:
            norms -= 1
            extra = ["BatchNormalization", *extra]
        kernels += _apart(k, extra, tensors)
        apart[k.name] = [p.name for p in kernels[-(len(extra) + 1):]]
    units = tuple(replace(u, kernels=tuple(n for k in u.kernels for n in apart[k])) for u in network.units)
    return replace(network, kernels=tuple(kernels), tensors=tensors, units=units)


def _apart(k: Kernel, extra: list[str], tensors: dict[str, TensorSpec]) -> list[Kernel]:
    if not extra:
        return [k]
    out = tensors[k.outputs[0]]
    steps = [f"{out.name} before {i} {op}" for i, op in enumerate(extra)]
    tensors |= {s: TensorSpec(s, out.shape, out.dtype) for s in steps}
    others = list(k.inputs[1:])
    first = replace(k, op=k.op.split("+")[0], inputs=k.inputs[:1] if "Add" in extra else k.inputs, outputs=(steps[0],), inner=(), activation="")
    parts = [first]
    for i, op in enumerate(extra):
        goal = steps[i + 1] if i + 1 < len(extra) else out.name
        reads = (steps[i], *(others[:1] if op == "Add" else ()))
        parts.append(Kernel(f"{k.name} {i} {op}", op, "eltwise", (), reads, (goal,), batch=k.batch, in_channels=k.out_channels, in_h=k.out_h, in_w=k.out_w,
                            out_channels=k.out_channels, out_h=k.out_h, out_w=k.out_w, activation=op if op in MAPS else ""))
    return parts


def narrowed(network: Network, group: int) -> tuple[Network, int]:
    """Hidden channels rounded down to whole groups of the array, and how many convolutions that touches.

    Graph inputs and outputs keep their channels, and so does whatever a grouped convolution, a split or a tensor without four axes meets.
    """
    wide: dict[str, int] = {}
    kernels, touched = [], 0
    for k in network.kernels:
        new = _narrowed(k, network, wide, group)
        touched += new is not k and new.macs != k.macs
        kernels.append(new)
        before = network.tensors[k.outputs[0]].shape if k.outputs else ()
        if len(before) == 4 and len(k.outputs) == 1 and (channels := _channels_out(k, new, network, wide)) != before[1]:
            wide[k.outputs[0]] = channels
    tensors = {**network.tensors, **{t: replace(network.tensors[t], shape=(s[0], c, *s[2:]))
                                     for t, c in wide.items() if (s := network.tensors[t].shape)}}
    return replace(network, kernels=tuple(kernels), tensors=tensors), touched


def _narrowed(k: Kernel, network: Network, wide: Mapping[str, int], group: int) -> Kernel:
    """The kernel with the channels that its inputs now have, and its own rounded down."""
    if k.kind not in ("conv", "depthwise") or not k.inputs or len(network.tensors[k.inputs[0]].shape) != 4:
        return k
    cin = wide.get(k.inputs[0], k.in_channels)
    if k.kind == "depthwise":
        cout = cin if k.out_channels == k.in_channels else k.out_channels
        share = cout / k.out_channels
        return k if share == 1 else replace(k, in_channels=cin, out_channels=cout, groups=cin, macs=round(k.macs * share),
                                            weights=round(k.weights * share), biases=round(k.biases * share))
    keeps = k.groups > 1 or any(t in network.outputs for t in k.outputs) or k.out_channels < group
    cout = k.out_channels if keeps else k.out_channels // group * group
    if k.groups > 1:
        cin = k.in_channels
    share = cin * cout / (k.in_channels * k.out_channels)
    return k if share == 1 else replace(k, in_channels=cin, out_channels=cout, macs=round(k.macs * share), weights=round(k.weights * share),
                                        biases=round(k.biases * cout / k.out_channels))


def _channels_out(k: Kernel, new: Kernel, network: Network, wide: Mapping[str, int]) -> int:
    """Channels of the kernel's output after its inputs changed."""
    now = network.tensors[k.outputs[0]].shape[1]
    if k.outputs[0] in network.outputs:
        return now
    if k.kind in ("conv", "depthwise"):
        return new.out_channels
    ins = [(network.tensors[t].shape[1], wide.get(t, network.tensors[t].shape[1])) for t in k.inputs if len(network.tensors[t].shape) == 4]
    if not ins:
        return now
    if k.kind == "concat" and sum(a for a, _ in ins) == now:
        return sum(b for _, b in ins)
    return ins[0][1] if k.kind in ("pool", "global_pool", "resize", "eltwise", "activation") and all(a in (now, 1) for a, _ in ins) else now


def waste(network: Network, group: int) -> int:
    """Convolutions whose input or output channels do not fill whole groups of the array."""
    dense = [k for k in network.kernels if k.kind in ("conv", "deconv", "matmul") and k.groups == 1]
    return sum(k.out_channels != ceil(k.out_channels / group) * group or k.in_channels != ceil(k.in_channels / group) * group for k in dense)
