"""A network run by torch, node by node, with gradients.

The prepared graph is run, and not the user's file: its tensors are the ones that plans quantize, whether it came as .onnx or as .pt2.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import onnx_ir as ir

from qbench.errors import ModelError

if TYPE_CHECKING:
    from torch import Tensor

Values = dict[str, "Tensor"]


class Program:
    """Runs nodes of `model`, which is left as it is.

    Raises ModelError naming each operator that has no torch form here, before anything runs.
    """

    def __init__(self, model: ir.Model) -> None:
        import torch

        from qbench.torchgraph.operators import OPERATORS

        self.nodes = {str(n.name): n for n in model.graph}
        unknown: dict[str, str] = {}
        for name, node in self.nodes.items():
            if node.op_type not in OPERATORS or node.domain not in ("", "ai.onnx"):
                unknown.setdefault(node.op_type, name)
        if unknown:
            said = ", ".join(f"{op} (node {name!r})" for op, name in unknown.items())
            raise ModelError(f"no gradients for {said}: qbench has no torch form of it. Search with --sensitivity measured, which needs none")
        self.version = int(model.graph.opset_imports.get("", 0))
        self.constants: Values = {str(v.name): torch.from_numpy(v.const_value.numpy().copy()) for v in model.graph.initializers.values() if v.const_value is not None}

    def run(self, values: Mapping[str, Tensor], nodes: Iterable[str] | None = None) -> Values:
        """`values` and every tensor that `nodes` (all when None), in their order, make of them.

        Raises ModelError naming the node, when its attributes ask for what its torch form cannot do.
        """
        found: Values = {**self.constants, **values}
        for name in self.nodes if nodes is None else nodes:
            node = self.nodes[name]
            made = self._one(node, [None if v is None else found[str(v.name)] for v in node.inputs])
            found |= {str(v.name): t for v, t in zip(node.outputs, made, strict=False)}
        return found

    def _one(self, node: ir.Node, inputs: Sequence[Tensor | None]) -> Sequence[Tensor]:
        import torch

        from qbench.torchgraph.operators import OPERATORS, Call

        try:
            made = OPERATORS[node.op_type](Call(node, inputs, self.version))
        except (NotImplementedError, RuntimeError, TypeError, ValueError) as error:
            raise ModelError(f"node {node.name!r} ({node.op_type}) does not run in torch: {str(error).splitlines()[0]}. "
                             "Search with --sensitivity measured, which needs no gradients") from error
        return [made] if isinstance(made, torch.Tensor) else made
