"""Predicted latency, energy and memory of plans. Pure functions and frozen records, no I/O.

    CostTable.build(network, target, toolkit)   prices every kernel once; plans are priced by adding entries
    cost_model(target, toolkit)                 the latency model behind it
"""

from qbench.cost.kernel import CostModel, KernelCost
from qbench.cost.memory import MemoryPlan
from qbench.cost.model import cost_model
from qbench.cost.table import CostTable, KernelRow, PairCost, PriceArrays, UnitCosts

__all__ = ["CostModel", "CostTable", "KernelCost", "KernelRow", "MemoryPlan", "PairCost", "PriceArrays", "UnitCosts", "cost_model"]
