"""What `qbench inspect` found, one record a target."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from qbench.inspection.counts import GraphCounts
from qbench.inspection.cures import Offer
from qbench.inspection.dtypes import TypeFinding
from qbench.inspection.layouts import Layouts
from qbench.inspection.onchip import OnChip
from qbench.inspection.operator_table import OperatorLine
from qbench.inspection.padding import Padding
from qbench.inspection.shapes import Origin
from qbench.inspection.sizes import Sizes
from qbench.placement.segments import Fallback


@dataclass(frozen=True, slots=True)
class AxisLine:
    """An open axis, and what it becomes once the inputs have sizes; None: it stays open, or its tensor folds away (`folds`)."""

    tensor: str
    axis: int | None
    symbol: str
    origins: tuple[Origin, ...]
    cures: tuple[str, ...]
    becomes: int | None
    folds: bool


@dataclass(frozen=True, slots=True)
class Shapes:
    """tensors   of the file, constants not counted
    assumed   input -> sizes that the rest of the report goes on with although the model leaves axes beyond the batch open; an open batch
              counts as 1, as everywhere
    static    why no static network can be had, "" when it can
    """

    tensors: int
    axes: tuple[AxisLine, ...]
    assumed: Mapping[str, tuple[int, ...]]
    static: str
    types: tuple[TypeFinding, ...]

    @property
    def by_origin(self) -> tuple[tuple[Origin, str, int, tuple[str, ...]], ...]:
        """(origin, cure, how many axes, first tensors), the most first."""
        count = Counter(o for a in self.axes for o in a.origins)
        cures = {o: c for a in self.axes for o, c in zip(a.origins, a.cures, strict=True)}
        return tuple((o, cures[o], n, tuple(dict.fromkeys(a.tensor for a in self.axes if o in a.origins))[:3]) for o, n in count.most_common())


@dataclass(frozen=True, slots=True)
class OnTarget:
    """The parts that need static shapes."""

    latency_ms: float
    latency_ms_low: float
    latency_ms_high: float
    operators: tuple[OperatorLine, ...]
    remarks: tuple[str, ...]
    fallback: Fallback
    padding: Padding
    sizes: Sizes
    layouts: Layouts
    onchip: OnChip
    graph: GraphCounts
    rewrites: tuple[Offer, ...]


@dataclass(frozen=True, slots=True)
class Inspection:
    """found   None where no static network can be had; `shapes.static` says why"""

    model: str
    target: str
    toolkit: str
    precision: str
    op_point: str
    shapes: Shapes
    found: OnTarget | None
    provenance: Mapping[str, str]

    def to_json(self) -> dict[str, Any]:
        """Plain data, each part a list of objects or an object; derived figures included."""
        body = {k: v for k, v in asdict(self).items() if k != "found"}
        body["shapes"]["by_origin"] = [{**asdict(o), "cure": c, "axes": n, "tensors": list(t)} for o, c, n, t in self.shapes.by_origin]
        if self.found is None:
            return body
        for part, value in asdict(self.found).items():
            body[part] = value
        best = self.found.sizes.best
        body["sizes"]["best"] = asdict(best) if best else None
        body["graph"]["fewer"] = self.found.graph.fewer
        body["segments"] = len(self.found.fallback.segments)
        return body
