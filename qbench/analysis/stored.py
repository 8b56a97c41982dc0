"""How the tensors lie in integers: codes as the written file has them, and what the statistics say of values outside them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from qbench.affine import Range, Scheme, affine
from qbench.analysis.records import Histogram, StoredTensor, capped
from qbench.metrics.fidelity import sqnr_db
from qbench.network import Network
from qbench.plan import Plan
from qbench.protocols import Array
from qbench.qdq import Written
from qbench.statistics import Statistics, TensorStatistics
from qbench.statistics.sketch import Reals

BINS = 96
CELL = 2.0**-10
"""Width of a cell of the sketch, relative to its value."""


@dataclass(frozen=True, slots=True)
class Codes:
    """Scale and zero point of a QuantizeLinear, and the codes that come out of it."""

    scale: float
    zero_point: int
    qmin: int
    qmax: int

    @property
    def bits(self) -> int:
        return (self.qmax - self.qmin).bit_length()

    @property
    def reach(self) -> Range:
        return Range((self.qmin - self.zero_point) * self.scale, (self.qmax - self.zero_point) * self.scale)


def codes_of(seen: Range, scheme: Scheme) -> Codes:
    """The codes that a range gets under a scheme."""
    a = affine(seen, scheme)
    return Codes(a.scale, a.zero_point, scheme.qmin, scheme.qmax)


def written_codes(network: Network, written: Written) -> dict[str, tuple[Codes, ...]]:
    """Activation tensor -> every way in which the written model stores it, narrowest first; tensors without a pair are absent."""
    own = {n for k in network.kernels for n in k.nodes}
    values: dict[str, ir.Value] = {str(v.name): v for v in written.model.graph.inputs}
    values |= {str(v.name): v for n in written.model.graph for v in n.outputs}
    found: dict[str, tuple[Codes, ...]] = {}
    for tensor, raw in written.raw.items():
        ends = [values[name] for name in dict.fromkeys((raw, written.stored.get(tensor, raw))) if name in values]
        pairs = dict.fromkeys(c for value in ends for n, _ in value.uses() if str(n.name) not in own and (c := _codes(n)) is not None)
        if pairs:
            found[tensor] = tuple(sorted(pairs, key=lambda c: (c.bits, c.scale)))
    return found


def _codes(node: ir.Node) -> Codes | None:
    """Of a QuantizeLinear, or of the Clip that the writer puts in front of one whose codes are fewer than its type has."""
    if node.op_type == "Clip":
        behind = next((n for n, _ in node.outputs[0].uses()), None)
        found = _codes(behind) if behind is not None and behind.op_type == "QuantizeLinear" else None
        ends = [_constant(v) for v in node.inputs[1:3]]
        if found is None or len(ends) < 2 or ends[0] is None or ends[1] is None:
            return found
        low, high = (round(float(e.reshape(-1)[0]) / found.scale) + found.zero_point for e in ends if e is not None)
        return Codes(found.scale, found.zero_point, max(low, found.qmin), min(high, found.qmax))
    if node.op_type != "QuantizeLinear" or len(node.inputs) < 3:
        return None
    scale, point = _constant(node.inputs[1]), _constant(node.inputs[2])
    if scale is None or point is None:
        return None
    limits = np.iinfo(point.dtype)
    return Codes(float(scale.reshape(-1)[0]), int(point.reshape(-1)[0]), int(limits.min), int(limits.max))


def _constant(value: ir.Value | None) -> Array | None:
    return value.const_value.numpy() if value is not None and value.const_value is not None else None


def stored_tensors(network: Network, plan: Plan, written: Written, statistics: Statistics,
                   best: Mapping[int, Mapping[str, Range]]) -> tuple[StoredTensor, ...]:
    """Every observed source tensor that the model stores in integers, in network order.

    best   bits -> scale group -> range of least squared error, where it is known
    """
    schemes = {s.activation.bits: s.activation for s in plan.schemes.values()}
    rows = []
    for tensor, codes in written_codes(network, written).items():
        if tensor in statistics and statistics[tensor].count:
            group, narrowest = network.group_of[tensor].name, codes[0]
            optimum = best.get(narrowest.bits, {}).get(group)
            other = codes_of(optimum, schemes[narrowest.bits]) if optimum is not None and narrowest.bits in schemes else None
            rows.append(_stored(statistics[tensor], tensor, group, network.producer.get(tensor, ""), narrowest, other))
    return tuple(rows)


def _stored(seen: TensorStatistics, tensor: str, group: str, kernel: str, codes: Codes, other: Codes | None) -> StoredTensor:
    x, counts = seen.histogram()
    signal, reach = float(counts @ (x * x)), codes.reach
    noise, outside = _noise(x, counts, codes)
    below, to_top = seen.below(np.array([reach.low - codes.scale / 2, reach.high + codes.scale / 2]))
    optimum, least = reach, noise
    if other is not None and (found := _noise(x, counts, other)[0]) < noise:
        optimum, least = other.reach, found
    return StoredTensor(
        tensor, group, kernel, codes.bits, reach.low, reach.high, codes.scale, codes.zero_point, seen.minimum, seen.maximum,
        float(below + seen.count - to_top) / seen.count, outside / noise if noise else 0.0, _db(signal, noise),
        optimum.low, optimum.high, _db(signal, least), seen.constant, histogram(seen, reach))


def _db(signal: float, noise: float) -> float:
    return capped(float(sqnr_db(np.array(signal), np.array(noise))))


def _noise(x: Reals, counts: Array, codes: Codes) -> tuple[float, float]:
    """Squared error of storing the values, and the part of it that values beyond the codes make.

    Where a cell of the sketch is wider than a step, the values in it lie anywhere between two codes: a twelfth of a step squared.
    """
    q = np.clip(np.rint(x / codes.scale) + codes.zero_point, codes.qmin, codes.qmax)
    error = (q - codes.zero_point) * codes.scale - x
    beyond = (x < codes.reach.low - codes.scale / 2) | (x > codes.reach.high + codes.scale / 2)
    squared = np.where(~beyond & (np.abs(x) * CELL >= codes.scale), codes.scale**2 / 12, error * error)
    return float(counts @ squared), float(counts[beyond] @ squared[beyond])


def histogram(seen: TensorStatistics, reach: Range) -> Histogram:
    """Counts in BINS equal bins over all that was seen and all that the codes reach."""
    low, high = min(seen.minimum, reach.low), max(seen.maximum, reach.high)
    if not low < high:
        return Histogram(low, high, (seen.count,))
    edges = np.linspace(low, high, BINS + 1)
    below = seen.below(edges)
    below[-1] = seen.count
    return Histogram(low, high, tuple(int(v) for v in np.diff(np.rint(below))))
