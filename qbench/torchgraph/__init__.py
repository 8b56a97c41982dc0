"""A prepared network as torch operations, so that losses have gradients: `Program`. torch is imported only when one is built."""

from qbench.torchgraph.program import Program

__all__ = ["Program"]
