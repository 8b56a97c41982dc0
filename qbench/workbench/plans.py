"""From statistics to plans: ranges by any calibrator, the precisions that each unit may take, and why not the others."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from qbench import calibrators
from qbench.affine import Range
from qbench.errors import PrecisionUnavailable
from qbench.graph import PreparedModel
from qbench.network import Network, Precision, Unit
from qbench.plan import Granularity, Plan, make_plan
from qbench.protocols import Dataset, Progress, silent
from qbench.qdq import quantized_tensors
from qbench.statistics import Statistics, collect, content_key
from qbench.target import QuantScheme, Target

FP16_MAX = 65504.0
FP16_SAFETY = 2.0
"""FP16 is offered where this many times the largest value seen still fits (BUG case B22)."""


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
    _ranges: dict[tuple[str, int], dict[str, Range]] = field(default_factory=dict)

    def __call__(self, precision: Mapping[str, Precision], calibrator: str, granularity: Granularity, op_point: str) -> Plan:
        ranges = self._mixed(precision, calibrator)
        return make_plan(self.network, precision, ranges, self.schemes, calibrator=calibrator, granularity=granularity,
                         target=self.target, toolkit=self.toolkit, op_point=op_point)

    def _mixed(self, precision: Mapping[str, Precision], calibrator: str) -> dict[str, Range]:
        """Ranges for 8-bit codes where any 8-bit unit reads or writes the group, for 16-bit ones elsewhere."""
        widths = {p: s.activation.levels for p, s in self.schemes.items()}
        narrow = self.ranges(calibrator, widths.get("int8", min(widths.values(), default=256)))
        if Precision.INT16 not in precision.values() or "int16" not in widths:
            return narrow
        wide = self.ranges(calibrator, widths["int16"])
        eight = {self.network.group_of[t].name for k in self.network.kernels
                 if precision[self.network.unit_of_kernel[k.name]] is Precision.INT8
                 for t in (*k.inputs, *k.inner, *k.outputs) if t in self.network.group_of}
        return {g: narrow[g] if g in eight else wide[g] for g in narrow}

    def ranges(self, calibrator: str, levels: int) -> dict[str, Range]:
        """Range of every observed scale group: the union over its sources."""
        key = (calibrator, levels)
        if key not in self._ranges:
            self._ranges[key] = ranges_of(self.network, self.statistics, calibrators.make(calibrator), levels)
        return self._ranges[key]


def ranges_of(network: Network, statistics: Statistics, calibrator: calibrators.Calibrator, levels: int) -> dict[str, Range]:
    """scale group -> range, for the groups whose sources were all observed."""
    found: dict[str, Range] = {}
    for group in network.groups:
        seen = [statistics[t] for t in group.sources if t in statistics and statistics[t].count]
        if len(seen) != len(group.sources):
            continue
        parts = [calibrator.range(s, levels) for s in seen]
        total = parts[0]
        for part in parts[1:]:
            total = total.union(part)
        found[group.name] = total
    return found


def allowed_precisions(network: Network, statistics: Statistics, target: Target, toolkit: str | None,
                       wanted: tuple[Precision, ...] | None = None) -> tuple[dict[str, tuple[Precision, ...]], dict[str, str]]:
    """unit -> precisions it may take on the target, and unit -> why something is missing.

    wanted   what the user restricts the search to; each must be available
    Raises PrecisionUnavailable for a wanted precision that the target or toolkit lacks, or when a unit is left with none.
    """
    available = target.available(toolkit)
    for precision in wanted or ():
        target.support(precision, toolkit)
    available = tuple(p for p in available if wanted is None or p in wanted)
    floats = tuple(p for p in available if p.is_float)
    allowed: dict[str, tuple[Precision, ...]] = {}
    reasons: dict[str, str] = {}
    for unit in network.units:
        why_no_integer = unit.reason if not unit.quantizable else _unobserved(network, statistics, unit)
        why_no_half = _overflows(network, statistics, unit) if Precision.FP16 in floats else ""
        fine = tuple(p for p in available if (not why_no_integer if not p.is_float else not (p is Precision.FP16 and why_no_half)))
        if not fine and floats:
            fine = floats                                   # nothing else can run it: offered with the warning below
        if not fine:
            raise PrecisionUnavailable(f"unit {unit.name!r} must stay in float ({why_no_integer}), and {target.name} is limited to "
                                       f"{', '.join(available)}; allow a float precision")
        allowed[unit.name] = fine
        if why := "; ".join(filter(None, (why_no_integer, why_no_half))):
            reasons[unit.name] = why
    return allowed, reasons


def _unobserved(network: Network, statistics: Statistics, unit: Unit) -> str:
    for name in unit.kernels:
        kernel = network.kernel[name]
        for tensor in (*kernel.inputs, *kernel.outputs):
            group = network.group_of.get(tensor)
            for source in group.sources if group else ():
                if source in statistics.unobserved:
                    return f"tensor {source!r}: {statistics.unobserved[source]}"
    return ""


def _overflows(network: Network, statistics: Statistics, unit: Unit) -> str:
    for name in unit.kernels:
        for tensor in (*network.kernel[name].inputs, *network.kernel[name].outputs):
            if tensor in statistics and statistics[tensor].count and statistics[tensor].magnitude * FP16_SAFETY > FP16_MAX:
                return f"FP16 could overflow: tensor {tensor!r} reaches {statistics[tensor].magnitude:.6g}, and {FP16_SAFETY:g} times that exceeds 65504"
    return ""


def schemes_of(target: Target, toolkit: str | None) -> dict[str, QuantScheme]:
    """Integer storage of every integer precision that the toolkit offers."""
    return {str(p): s for p in target.available(toolkit) if (s := target.support(p, toolkit).scheme) is not None}
