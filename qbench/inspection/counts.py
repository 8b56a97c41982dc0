"""What the compiler's graph optimisation leaves: nodes before and after, launches, and where the others went."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

import onnx_ir as ir

from qbench.cost import CostModel
from qbench.cost.npu import NpuModel
from qbench.graph.values import bodies, captured, constant
from qbench.network import Network, Precision

IDLE = {"Identity", "Dropout"}


@dataclass(frozen=True, slots=True)
class GraphCounts:
    """before       nodes of the file, constants not counted, functions inlined
    after        nodes once folded at static shapes
    kernels      fused kernels
    launches     predicted launches of the hardware; views are none; None where the target's model does not count them
    gone         reason -> nodes that vanish before fusion
    fused        operators in one kernel, "Conv+Relu" -> how often
    """

    before: int
    after: int
    kernels: int
    launches: float | None
    gone: Mapping[str, int]
    fused: Mapping[str, int]

    @property
    def fewer(self) -> float:
        """Share of the file's nodes that are no kernel of their own."""
        return 1.0 - self.kernels / self.before if self.before else 0.0


def graph_counts(spelled: ir.Graph, static: ir.Graph, network: Network, model: CostModel, precision: Precision) -> GraphCounts:
    """spelled   as in the file; static   folded at static shapes"""
    nodes = [n for n in spelled if n.op_type != "Constant"]
    live = _live(spelled)
    known: set[int] = set()
    gone: Counter[str] = Counter()
    for node in nodes:
        reads = [v for v in node.inputs if v is not None]
        if id(node) not in live:
            gone["dead: no output depends on it"] += 1
        elif reads and all(constant(v) or id(v) in known or _made_by_constant(v) for v in reads):
            known |= {id(v) for v in node.outputs}
            gone["computes with constants only"] += 1
        elif node.op_type in IDLE:
            gone["passes its input on"] += 1
    normalised = sum(n.op_type == "BatchNormalization" for n in nodes) - sum(n.op_type == "BatchNormalization" for n in static)
    if normalised > 0:
        gone["BatchNormalization folded into weights"] = normalised
    after = len(static)
    if (rest := len(nodes) - after - sum(gone.values())) > 0:
        gone["shape arithmetic, and what else folds at static shapes"] = rest
    fused = Counter(k.op for k in network.kernels if len(k.nodes) > 1)
    return GraphCounts(len(nodes), after, len(network.kernels), _launches(network, model, precision), dict(gone), dict(fused.most_common()))


def _made_by_constant(value: ir.Value) -> bool:
    maker = value.producer()
    return maker is not None and maker.op_type == "Constant"


def _live(graph: ir.Graph) -> set[int]:
    """Nodes that an output depends on; a body keeps alive what it captures."""
    found: set[int] = set()
    stack = [v.producer() for v in graph.outputs]
    while stack:
        node = stack.pop()
        if node is None or id(node) in found:
            continue
        found.add(id(node))
        stack += [v.producer() for v in (*node.inputs, *(c for b in bodies(node) for c in captured(b))) if v is not None]
    return found


def _launches(network: Network, model: CostModel, precision: Precision) -> float | None:
    if not isinstance(model, NpuModel):
        return None
    return sum(model.work(k, network, precision)[1].launches for k in network.kernels)
