"""Predicted latency, energy and memory of plans. Pure functions and frozen records, no I/O.

    CostTable.build(network, target, toolkit)   prices every kernel once; plans are priced by adding entries
    cost_model(target, toolkit)                 the latency model behind it
    fits(network, target, precision)            largest batch and image for the on-chip memory or RAM
    residency(kernel, network, precision, model)   whether a kernel's operands stay on chip
    changes(model, kernel, ...)                 what one change would save on a kernel
"""

from qbench.cost.changes import Change, changes
from qbench.cost.fits import Fit, fits
from qbench.cost.kernel import CostModel, KernelCost
from qbench.cost.memory import MemoryPlan
from qbench.cost.model import cost_model
from qbench.cost.residency import residency
from qbench.cost.table import CostTable, KernelRow, PairCost, PriceArrays, UnitCosts

__all__ = ["Change", "CostModel", "CostTable", "Fit", "KernelCost", "KernelRow", "MemoryPlan", "PairCost", "PriceArrays", "UnitCosts", "changes", "cost_model", "fits", "residency"]
