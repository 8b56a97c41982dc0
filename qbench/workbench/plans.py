"""From statistics to plans: ranges by any calibrator."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from qbench import calibrators
from qbench.affine import Range
from qbench.graph import PreparedModel
from qbench.network import Network, Precision
from qbench.plan import Granularity, Plan, make_plan
from qbench.protocols import Dataset, Progress, silent
from qbench.qdq import quantized_tensors
from qbench.statistics import Statistics, collect, content_key
from qbench.target import QuantScheme, Target


def statistics_of(prepared: PreparedModel, dataset: Dataset, *, keep: Path | None = None, policy: str = "stop",
                  progress: Progress = silent) -> Statistics:
    """One pass over `dataset`, or the file of an earlier equal pass in the folder `keep`."""
    names = quantized_tensors(prepared.network)
    key = content_key(prepared.network.model_key, [dataset.key], list(names), policy)
    path = keep / f"statistics-{key}.npz" if keep else None
    if path is not None and path.is_file():
        found = Statistics.load(path)
        if found.key == key:
            return found
    found = collect(prepared.model, names, dataset, model_key=prepared.network.model_key, policy=policy, progress=progress)
    if path is not None:
        found.save(path)
    return found


@dataclass
class Plans:
    """Makes plans of one network from one set of statistics; ranges are computed once per calibrator and width.

    schemes      how the target stores integers, by precision
    """

    network: Network
    statistics: Statistics
    schemes: Mapping[str, QuantScheme]
    target: str = ""
    toolkit: str = ""
    _ranges: dict[tuple[str, int, bool], dict[str, Range]] = field(default_factory=dict)

    def __call__(self, precision: Mapping[str, Precision], calibrator: str, granularity: Granularity, op_point: str) -> Plan:
        ranges = self._mixed(precision, calibrator)
        return make_plan(self.network, precision, ranges, self.schemes, calibrator=calibrator, granularity=granularity,
                         target=self.target, toolkit=self.toolkit, op_point=op_point)

    def _mixed(self, precision: Mapping[str, Precision], calibrator: str) -> dict[str, Range]:
        """Ranges for 8-bit codes where any 8-bit unit reads or writes the group, for 16-bit ones elsewhere."""
        widths = {p: (s.activation.levels, s.activation.symmetric) for p, s in self.schemes.items()}
        narrow = self.ranges(calibrator, *widths.get("int8", min(widths.values(), default=(256, False))))
        if Precision.INT16 not in precision.values() or "int16" not in widths:
            return narrow
        wide = self.ranges(calibrator, *widths["int16"])
        eight = {self.network.group_of[t].name for k in self.network.kernels
                 if precision[self.network.unit_of_kernel[k.name]] is Precision.INT8
                 for t in (*k.inputs, *k.inner, *k.outputs) if t in self.network.group_of}
        return {g: narrow[g] if g in eight else wide[g] for g in narrow}

    def ranges(self, calibrator: str, levels: int, symmetric: bool = False) -> dict[str, Range]:
        """Range of every observed scale group: the union over its sources."""
        key = (calibrator, levels, symmetric)
        if key not in self._ranges:
            self._ranges[key] = ranges_of(self.network, self.statistics, calibrators.make(calibrator), levels, symmetric)
        return self._ranges[key]


def ranges_of(network: Network, statistics: Statistics, calibrator: calibrators.Calibrator, levels: int,
              symmetric: bool = False) -> dict[str, Range]:
    """scale group -> range, for the groups whose sources were all observed."""
    found: dict[str, Range] = {}
    for group in network.groups:
        seen = [statistics[t] for t in group.sources if t in statistics and statistics[t].count]
        if len(seen) != len(group.sources):
            continue
        parts = [calibrator.range(s, levels, symmetric) for s in seen]
        total = parts[0]
        for part in parts[1:]:
            total = total.union(part)
        found[group.name] = total
    return found


def schemes_of(target: Target, toolkit: str | None) -> dict[str, QuantScheme]:
    """Integer storage of every integer precision that the toolkit offers."""
    return {str(p): s for p in target.available(toolkit) if (s := target.support(p, toolkit).scheme) is not None}
