"""What the report shows of the chosen plan beside its kernels: the memory plan, and how its worst activations lie in their codes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import reduce
from typing import Any

import numpy as np

from qbench import calibrators
from qbench.affine import Range, Scheme
from qbench.analysis.records import capped
from qbench.analysis.stored import Codes, codes_of, stored_tensors
from qbench.cost import CostTable
from qbench.metrics.fidelity import sqnr_db
from qbench.network import Network
from qbench.plan import Plan
from qbench.qdq import Written
from qbench.statistics import Statistics, TensorStatistics
from qbench.workbench.costing import memory_row

SHOWN = 8
"""Activation tensors that the report draws, those that storing harms most."""


def panels(network: Network, plan: Plan, written: Written, pricer: CostTable, statistics: Statistics, specs: Sequence[str]) -> dict[str, Any]:
    """JSON-ready. memory: of `qbench cost`; stored: one row a tensor, with the range of each calibrator of `specs` and the SQNR that it would give."""
    found = sorted(stored_tensors(network, plan, written, statistics, {}), key=lambda s: s.noise_db)[:SHOWN]
    schemes = {s.activation.bits: s.activation for s in plan.schemes.values()}
    return {"memory": memory_row(pricer.memory(plan), pricer.target.memory),
            "stored": [asdict(s) | {"calibrators": [_answer(network, statistics, s.tensor, spec, schemes[s.bits]) for spec in specs if s.bits in schemes]}
                       for s in found]}


def _answer(network: Network, statistics: Statistics, tensor: str, spec: str, scheme: Scheme) -> Mapping[str, Any]:
    """The range that a calibrator gives to the tensor's scale group, and what storing the tensor with it would leave."""
    calibrator = calibrators.make(spec)
    seen = [statistics[t] for t in network.group_of[tensor].sources if t in statistics and statistics[t].count]
    codes = codes_of(reduce(Range.union, (calibrator.range(s, scheme.levels, scheme.symmetric) for s in seen)), scheme)
    return {"spec": spec, "low": codes.reach.low, "high": codes.reach.high, "noise_db": _sqnr(statistics[tensor], codes)}


def _sqnr(seen: TensorStatistics, codes: Codes) -> float:
    x, counts = seen.histogram()
    back = (np.clip(np.rint(x / codes.scale) + codes.zero_point, codes.qmin, codes.qmax) - codes.zero_point) * codes.scale
    return capped(float(sqnr_db(np.array(counts @ (x * x)), np.array(counts @ ((back - x) ** 2)))))
