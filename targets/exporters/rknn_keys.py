"""Which key of rknn-toolkit2's hybrid configuration is which of our tensors.

The toolkit's optimizer renames: a Reshape before a MatMul, a Transpose pushed through it, five nodes that become one. Names tell most of it, the
build log some, and the values the rest: a key is ours when the toolkit saw there, on the same samples, the range that onnxruntime sees.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from qbench.protocols import Array
from qbench.targets.exporters.rknn_model import Ranged

ALIKE = 1e-4
"""Of a range: how far the two float simulations may be apart. Different tensors that agree so well have the same values, or were not worth telling apart."""

Range = tuple[float, float]


@dataclass(frozen=True)
class Keyed:
    """ranges   key -> low and high of every channel; layers   key -> precision; aliases   our name -> keys that are not called so
    unknown   keys for which there is no range of ours"""

    ranges: Mapping[str, tuple[list[float], list[float]]]
    layers: Mapping[str, str]
    aliases: Mapping[str, tuple[str, ...]]
    unknown: tuple[str, ...]


def observed(model: Path, samples: Sequence[Mapping[str, Array]]) -> dict[str, Range]:
    """Tensor of a float model -> lowest and highest value over the samples."""
    import onnx_ir as ir

    from qbench.runtime import Session

    opened = ir.load(model)
    floats = [v for n in opened.graph for v in n.outputs if v.name and v.dtype is ir.DataType.FLOAT and not v.is_graph_output()]
    opened.graph.outputs.extend(floats)
    found: dict[str, Range] = {}
    session = Session(ir.to_proto(opened).SerializeToString(), simulate=True)
    for sample in samples:
        for name, value in session.run(sample).items():
            if value.size and value.dtype.kind == "f":
                low, high = found.get(name, (np.inf, -np.inf))
                found[name] = min(low, float(value.min())), max(high, float(value.max()))
    for name in (str(v.name) for v in opened.graph.inputs):
        values = [np.asarray(s[name]) for s in samples]
        if values[0].dtype.kind == "f":
            found[name] = min(float(v.min()) for v in values), max(float(v.max()) for v in values)
    return found


def keyed(ranged: Ranged, seen: Mapping[str, list[float]], mine: Mapping[str, Range], came: Mapping[str, Iterable[str]],
          weighted: Collection[str]) -> Keyed:
    """The configuration in the toolkit's keys.

    seen      key -> [low, high] that the toolkit saw; empty where it has one per channel
    mine      our name -> the same, seen by onnxruntime
    came      our name -> what the build log says became of it, the last first
    weighted  initializers that take a range of ours
    """
    owner = {k: name for name in mine for k in (name, f"{name}_int8", f"{name}_int16") if k in seen}
    owner |= {k: name for name in mine for k in (f"{name}-rs", f"{name}_rs") if k in seen and k not in owner and _alike(seen[k], mine[name])}
    for name in mine:
        owner |= {k: name for k in came.get(name, ()) if k in seen and k not in owner and _alike(seen[k], mine[name])}
    told = {name for name in mine if name in ranged.ranges or name in ranged.layers}
    for key in seen.keys() - owner.keys():
        same = [name for name in told if _alike(seen[key], mine[name])]
        if same and len({(ranged.ranges.get(n), ranged.layers.get(n)) for n in same}) == 1:
            owner[key] = min(same)
    ranges = {k: v for k, v in ranged.weights.items() if k in weighted}
    ranges |= {k: ([low], [high]) for k, name in owner.items() if name in ranged.ranges for low, high in [ranged.ranges[name]]}
    layers = {k: ranged.layers[name] for k, name in owner.items() if name in ranged.layers}
    aliases: dict[str, tuple[str, ...]] = {}
    for key, name in sorted(owner.items()):
        if key != name:
            aliases[name] = (*aliases.get(name, ()), key)
    return Keyed(ranges, layers, aliases, tuple(sorted(seen.keys() - ranges.keys() - layers.keys())))


def _alike(seen: Sequence[float], mine: Range) -> bool:
    """Both with 0 in them, which the toolkit adds to some."""
    if len(seen) != 2:
        return False
    low, high = min(mine[0], 0.0), max(mine[1], 0.0)
    return max(abs(min(seen[0], 0.0) - low), abs(max(seen[1], 0.0) - high)) <= ALIKE * max(high - low, 1e-12)
