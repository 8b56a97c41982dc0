"""Predicted latency, energy and memory of plans. Pure functions and frozen records, no I/O.

    CostTable.build(network, target, toolkit)   prices every kernel once; plans are priced by adding entries
    cost_model(target, toolkit)                 the latency model behind it
    changes(model, kernel, ...)                 what one change would save on a kernel
"""

from qbench.cost.changes import Change, changes
from qbench.cost.kernel import CostModel, KernelCost
from qbench.cost.memory import MemoryPlan
from qbench.cost.model import cost_model
from qbench.cost.table import CostTable, KernelRow, PairCost, PriceArrays, UnitCosts

__all__ = ["Change", "CostModel", "CostTable", "KernelCost", "KernelRow", "MemoryPlan", "PairCost", "PriceArrays", "UnitCosts", "changes", "cost_model"]
