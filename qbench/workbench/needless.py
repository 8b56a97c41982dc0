"""Nodes that do nothing, or that undo one another, taken out of a copy: what `qbench rewrite` would take away without asking."""

from __future__ import annotations

import onnx_ir as ir

from qbench.graph import PreparedModel, load_network, specialised
from qbench.targets.rewrites import named

REWRITE = "drop-idle"


def without_needless(prepared: PreparedModel) -> tuple[PreparedModel, tuple[tuple[str, str], ...]]:
    """The network without them, and (node, operator) of each that went; the network itself where there are none."""
    network = prepared.network
    return slimmed(prepared, specialised(prepared, {t: network.tensors[t].shape for t in network.inputs}))


def slimmed(prepared: PreparedModel, static: ir.Model) -> tuple[PreparedModel, tuple[tuple[str, str], ...]]:
    """The same, where the graph at static shapes is there already."""
    copy = static.clone()
    named(REWRITE).apply(copy)
    kept = {n.name for n in copy.graph}
    gone = tuple((str(n.name), n.op_type) for n in static.graph if n.name not in kept)
    return (load_network(copy) if gone else prepared), gone
