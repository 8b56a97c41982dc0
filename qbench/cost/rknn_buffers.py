"""The buffers that rknn-toolkit2 allots, in the order it runs kernels: what `place_as_run` then places as the toolkit does.

Read off the feature tables ("start, end, size" of every tensor) that rknn-toolkit2 2.5.0 prints for rk3588, over 34 networks and small
graphs made for one question each; experiments/memory_plans.py compares totals on 54 further networks. Left out, since no rule was found:
attention in windows or of several images, the unfolding of mobilevit, normalisations spelled as nodes, LSTM, the order of parallel branches.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

from qbench.cost.memory import Lifetime
from qbench.cost.parameters import NpuParameters
from qbench.cost.rknn_fusion import folded_adds, gelus, joined_by_addition, swaps
from qbench.cost.rknn_launches import (
    Launches,
    attention,
    concat,
    converted,
    convolution,
    global_pool,
    graph_input,
    interpolated,
    other,
    vanishes,
)
from qbench.cost.rknn_tokens import attentions, channels_last, projects
from qbench.network import Network, Precision


def _walk(network: Network, precision: Mapping[str, Precision], p: NpuParameters) -> Launches:
    """Launches in order, bytes of every buffer, and tensors that lie in another one's buffer. precision   kernel -> the one it works in"""
    b = Launches(network, precision, p, gelus=gelus(network), tokens=channels_last(network))
    for t in network.inputs:
        graph_input(b, t)
    swapped = swaps(network)
    late = {donor: taker for taker, donor in swapped.items()}
    parts = joined_by_addition(network)
    at_once = [a for a in attentions(network) if len({precision[n] for n in (*a.kernels, *(network.producer[t] for t in a.roots))}) == 1]
    inside = {n for a in at_once for n in a.kernels} | {network.producer[t] for a in at_once for t in a.roots}
    starts = {max((n for n in network.kernel if n in {network.producer[t] for t in a.roots}), key=list(network.kernel).index): a for a in at_once}
    folded = folded_adds(network, precision)
    inside |= {n for chain in folded.values() for n in chain}
    for i, k in enumerate(network.kernels):
        if k.name in starts:
            attention(b, i, starts[k.name])
        if k.name in inside:
            continue
        if k.name in folded:
            add = network.kernel[folded[k.name][-1]]
            k = replace(k, inputs=(*k.inputs, *(t for t in add.inputs if t not in network.kernel[folded[k.name][-2]].outputs)), outputs=add.outputs)
        if not k.outputs or k.name in late or (k.kind == "concat" and k.outputs[0] in parts):
            continue
        if (source := vanishes(b, k)) is not None:
            b.lies_in[k.outputs[0]] = source
            continue
        reads = tuple(converted(b, i, k, t) for t in k.inputs)
        if k.kind in ("conv", "depthwise", "deconv") or projects(k, network):
            donor = network.kernel[swapped[k.name]] if k.name in swapped else None
            whole = [t for t in k.inputs if t in parts]
            convolution(b, i, k, reads, donor, parts[whole[0]] if whole and donor is None else ())
        elif k.kind == "global_pool":
            global_pool(b, i, k, reads)
        elif k.kind == "concat":
            concat(b, i, k, reads)
        elif k.kind == "resize" and k.interpolation:
            interpolated(b, i, k, reads)
        else:
            other(b, i, k, reads)
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
    swapped, joined = swaps(network), joined_by_addition(network)
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
