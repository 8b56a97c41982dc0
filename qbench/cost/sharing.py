"""Buffers of a plan on a chip whose compiler may let tensors share bytes: views, in-place maps, parts of a Concat, parts of a Split.

Aliases need equal precision at both ends, and the same bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

from qbench.cost.memory import Lifetime
from qbench.cost.tile import VIEWS
from qbench.network import Kernel, Network

WAYS = ("view", "in place", "concat", "split", "input")
"""What may share bytes: a reshape its input's; an elementwise kernel the input that dies there; parts of a Concat or Split those of the
whole, where they lie in one piece; "input" lets the first two overwrite graph inputs."""
DEFAULT = ("view", "in place", "concat", "split")


@dataclass
class _Block:
    """Bytes of one buffer and the tensors in it. `whole` is False once it holds tensors of several sizes."""

    size_bytes: int
    first: int
    last: int
    tensors: list[str]
    whole: bool = True


def lifetimes(network: Network) -> dict[str, tuple[int, int]]:
    """First and last step of every tensor; steps are positions in `network.kernels`. Graph inputs begin at 0, outputs stay to the end."""
    step = {k.name: i for i, k in enumerate(network.kernels)}
    end = len(network.kernels) - 1
    span: dict[str, tuple[int, int]] = {}
    for t in (*network.inputs, *(o for k in network.kernels for o in k.outputs)):
        first = step[network.producer[t]] if t in network.producer else 0
        uses = [step[c] for c in network.consumers.get(t, ())]
        span[t] = first, end if t in network.outputs else max(uses, default=first)
    return span


def apart(network: Network) -> dict[str, tuple[int, int]]:
    """Steps at which the bytes of a tensor are surely its own, whatever shares: empty where the last lies before the first.

    A view or a part of a Split counts once all that it may lie in is dead; whatever lies in a part of a Concat counts until that runs.
    """
    span = lifetimes(network)
    root, until = {t: t for t in span}, {t: last for t, (_, last) in span.items()}
    stop: dict[str, int] = {}
    found = dict(span)
    for step, k in enumerate(network.kernels):
        if (is_view(k) or k.kind == "split") and k.inputs:
            whole = root[k.inputs[0]]
            for y in k.outputs:
                root[y] = whole
                found[y] = max(found[y][0], until[whole] + 1), found[y][1]
            until[whole] = max(until[whole], *(span[y][1] for y in k.outputs))
        elif k.kind == "concat":
            for t in k.inputs:
                stop[root[t]] = min(stop.get(root[t], step), step)
    return {t: (first, min(last, stop.get(root[t], last + 1) - 1)) for t, (first, last) in found.items()}


def is_view(kernel: Kernel) -> bool:
    """Whether a kernel moves no data at all."""
    return kernel.kind == "reshape" and all(op in VIEWS and op != "Cast" for op in kernel.op.split("+"))


def shares(kernel: Kernel) -> bool:
    """Whether a kernel's output may lie in bytes of its inputs, or the other way round."""
    return is_view(kernel) or kernel.kind in ("eltwise", "activation", "concat", "split")


def contiguous(part: tuple[int, ...], whole: tuple[int, ...]) -> bool:
    """Whether a part that is cut from `whole` along one axis lies in one piece: every axis before that one has length 1."""
    if len(part) != len(whole):
        return False
    differing = [i for i, (a, b) in enumerate(zip(part, whole, strict=True)) if a != b]
    return len(differing) == 1 and prod(whole[:differing[0]]) == 1


def shared(network: Network, sizes: Mapping[str, int], codes: Mapping[str, int], readers: Mapping[str, int],
           ways: tuple[str, ...]) -> tuple[list[Lifetime], dict[str, str]]:
    """Buffers after sharing, and for each tensor that lies in another one's bytes the tensor whose bytes they are.

    sizes    tensor -> stored bytes
    codes    tensor -> precision that it is stored in, as an index
    readers  kernel -> precision that it works in
    """
    span = lifetimes(network)
    block = {t: _Block(sizes[t], *span[t], [t]) for t in span if t in sizes}

    def join(block_into: _Block, other: _Block, whole: bool) -> None:
        block_into.first, block_into.last = min(block_into.first, other.first), max(block_into.last, other.last)
        block_into.tensors += other.tensors
        block_into.whole &= whole
        for t in other.tensors:
            block[t] = block_into

    for step, k in enumerate(network.kernels):
        ends = dict.fromkeys((*k.inputs, *k.outputs))
        if any(t not in block or codes[t] != readers[k.name] for t in ends) or not k.inputs or not k.outputs:
            continue
        x, y = k.inputs[0], k.outputs[0]
        if is_view(k) and "view" in ways and sizes[x] == sizes[y]:
            join(block[x], block[y], True)
        elif k.kind in ("eltwise", "activation") and "in place" in ways:
            kept = set(network.outputs if "input" in ways else (*network.inputs, *network.outputs))
            dying = [t for t in k.inputs if block[t].whole and block[t].last == step and sizes[t] == sizes[y] and block[t].size_bytes == sizes[y]
                     and not kept & set(block[t].tensors)]
            if dying:
                join(block[dying[0]], block[y], True)
        elif k.kind in ("concat", "split") and k.kind in ways:
            parts, goal = (k.inputs, y) if k.kind == "concat" else (k.outputs, x)
            shapes = network.tensors
            apart = len({id(block[t]) for t in parts}) == len(parts) and all(block[t].size_bytes == sizes[t] and t not in network.inputs for t in parts)
            if (apart and sum(sizes[t] for t in parts) == block[goal].size_bytes == sizes[goal]
                    and all(contiguous(shapes[t].shape, shapes[goal].shape) for t in parts)):
                for t in parts:
                    join(block[goal], block[t], False)
    found = {id(b): b for b in block.values()}.values()
    named = {id(b): max(b.tensors, key=lambda t: sizes[t]) for b in found}
    aliases = {t: named[id(b)] for b in found for t in b.tensors if t != named[id(b)]}
    return [Lifetime(named[id(b)], b.size_bytes, b.first, b.last) for b in found], aliases
