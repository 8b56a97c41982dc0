"""Where unlike things share one scale: sources of a scale group (BUG case B16), and output channels of a weight."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx_ir as ir

from qbench.analysis.channels import Layout
from qbench.analysis.records import GroupSource, MixedGroup, WeightSpread
from qbench.analysis.stored import Codes
from qbench.network import Kernel, Network, ScaleGroup
from qbench.plan import Plan
from qbench.protocols import Array
from qbench.qdq.layout import Weight, channel_axis, cut, weight_of
from qbench.statistics import Statistics
from qbench.target import QuantScheme

MIXED_RATIO = 50.0
"""Sources of one scale group that differ by more than this share it badly: of 256 codes the smaller one is left with 5."""
LEADS_OUT = {"Transpose", "Identity", "Reshape", "Flatten", "Squeeze", "Unsqueeze", "Cast"}
"""Operators behind a Concat that are as well done outside of the network."""


def mixed_groups(network: Network, model: ir.Model, layout: Layout, codes: Mapping[str, tuple[Codes, ...]], statistics: Statistics,
                 ) -> tuple[MixedGroup, ...]:
    """Groups stored in integers whose sources differ by more than MIXED_RATIO, widest first. Sources that are always 0 do not count."""
    found = []
    for group in network.groups:
        stored = next((codes[t][0] for t in group.tensors if t in codes), None)
        seen = [statistics[t] for t in group.sources if t in statistics and statistics[t].count and statistics[t].magnitude > 0]
        if stored is None or len(seen) < 2:
            continue
        spans = {s.name: (max(s.maximum, 0.0) - min(s.minimum, 0.0)) / stored.scale for s in seen}
        sources = tuple(sorted((GroupSource(s.name, s.minimum, s.maximum, spans[s.name]) for s in seen), key=lambda s: -s.magnitude))
        ratio = sources[0].magnitude / sources[-1].magnitude
        if ratio > MIXED_RATIO and (meeting := _meeting(network, group, sources, layout)) is not None:
            kernel, tensor = meeting
            inputs = tuple(s.name for s in layout.segments.get(tensor, ()) if s.name in group.tensors)
            found.append(MixedGroup(group.name, network.unit_of_kernel[kernel.name], kernel.name, tensor, inputs, sources, ratio,
                                    _blocked(network, model, kernel, tensor)))
    return tuple(sorted(found, key=lambda g: -g.ratio))


def _meeting(network: Network, group: ScaleGroup, sources: tuple[GroupSource, ...], layout: Layout) -> tuple[Kernel, str] | None:
    """The Concat, and its output, where the largest source first meets the smallest."""
    wanted = {sources[0].tensor, sources[-1].tensor}
    reached: dict[str, set[str]] = {t: {t} for t in group.sources}
    for kernel in network.kernels:
        came = {s for t in kernel.inputs for s in reached.get(t, ())}
        inside = [t for t in kernel.outputs if t in group.tensors and t not in group.sources]
        for tensor in inside:
            reached[tensor] = came
            if wanted <= came and tensor in layout.segments:
                return kernel, tensor
    return None


def _blocked(network: Network, model: ir.Model, kernel: Kernel, tensor: str) -> str:
    """Why the parts cannot leave the network one by one, "" when nothing computes with the joined tensor."""
    ops = {str(n.name): n.op_type for n in model.graph}
    stack, seen = [tensor], {tensor}
    while stack:
        for name in network.consumers.get(stack.pop(), ()):
            reader = network.kernel[name]
            if not {ops.get(n, "") for n in reader.nodes} <= LEADS_OUT:
                return f"{reader.op} {name!r} computes with the joined tensor"
            fresh = [t for t in reader.outputs if t not in seen]
            stack += fresh
            seen.update(fresh)
    return "" if seen & set(network.outputs) else f"the tensor of {kernel.name!r} leads nowhere"


def weight_spreads(network: Network, plan: Plan, model: ir.Model) -> tuple[WeightSpread, ...]:
    """One row for each weight that the plan stores in integers, most unequal first."""
    nodes = {str(n.name): n for n in model.graph}
    rows = []
    for kernel in network.kernels:
        precision = plan.precision[network.unit_of_kernel[kernel.name]]
        scheme = None if precision.is_float else plan.schemes.get(str(precision))
        for name in kernel.nodes if scheme is not None else ():
            if scheme is not None and name in nodes and (found := _spread(kernel.name, nodes[name], plan, scheme)) is not None:
                rows.append(found)
    return tuple(sorted(rows, key=lambda r: -r.ratio))


def _spread(kernel: str, node: ir.Node, plan: Plan, scheme: QuantScheme) -> WeightSpread | None:
    weight = weight_of(node)
    value = node.inputs[weight.index] if weight is not None else None
    if weight is None or value is None or value.const_value is None:
        return None
    reach = channel_magnitudes(weight, value.const_value.numpy())
    used = reach[reach > 0]
    if len(used) < 2:
        return None
    median, largest = float(np.median(used)), float(reach.max())
    per_channel = bool(cut(weight, plan.granularity, scheme).slices.kept)
    return WeightSpread(kernel, str(value.name), len(reach), largest, median, largest / median, int(reach.argmax()), per_channel, scheme.weight.bits,
                        2 * scheme.weight.reach / (1.0 if per_channel else largest / median))


def channel_magnitudes(weight: Weight, data: Array) -> Array:
    """Largest |w| of each output channel, [channels]; one value for a vector."""
    axis = channel_axis(weight)
    if axis is None or not data.size:
        return np.asarray(np.abs(data).max(initial=0.0)).reshape(1)
    if weight.op == "ConvTranspose":                                               # [groups, inputs of a group, outputs of a group, taps]
        grouped = data.reshape(weight.groups, -1, data.shape[1], int(np.prod(data.shape[2:])))
        return np.asarray(np.abs(grouped).max(axis=(1, 3))).reshape(-1)
    return np.asarray(np.abs(np.moveaxis(data, axis, 0)).reshape(data.shape[axis], -1).max(axis=1))
