"""Names the slip in how samples were prepared, from statistics alone: what would have to be undone so that they look like the calibration data.

Each hypothesis says how the samples went wrong and how to undo it. Samples as they are, and as each hypothesis mends them, are compared
with the calibration statistics of the input and of the first tensors behind it; the hypothesis that comes closest is named, if it comes
clearly closer than the samples as they are. First tensors see what the input's histogram cannot: exchanged channels, scrambled pixels.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from qbench.data.preprocessing import Preprocessing
from qbench.protocols import Array
from qbench.statistics import TensorStatistics

QUANTILES = np.linspace(0.02, 0.98, 25)
CLEAR = 0.7
"""A hypothesis is named when it leaves at most this share of the distance of the samples as they are."""
NOISE = 0.1
"""Distances below are those of good samples; a single one may lie at 0.2, but no hypothesis then comes closer."""
IMAGENET = Preprocessing(mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225))


@dataclass(frozen=True, slots=True)
class Slip:
    """name   what went wrong; cure   one line; undo   samples -> as they should have been"""

    name: str
    cure: str
    undo: Callable[[Array], Array]


@dataclass(frozen=True, slots=True)
class Verdict:
    """slip        what most likely went wrong; "" nothing visible
    confidence  0 to 1: how much closer the mended samples come, no probability
    distance    of the samples as they are; mended of the best hypothesis
    tried       hypothesis -> distance
    """

    slip: str
    confidence: float
    cure: str
    distance: float
    mended: float
    tried: Mapping[str, float]

    def to_dict(self) -> dict[str, object]:
        return {"slip": self.slip, "confidence": self.confidence, "cure": self.cure, "distance": self.distance, "mended": self.mended,
                "tried": dict(self.tried)}


def slips(shape: Sequence[int], layout: str, how: Preprocessing | None) -> list[Slip]:
    """Hypotheses about samples that already have the shape of the input, [samples, ...].

    shape   of the input, batch first; how   its preprocessing; None: the usual ones are tried
    """
    if len(shape) != 4 or layout not in ("NCHW", "NHWC"):
        return []
    axis = 1 if layout == "NCHW" else 3
    channels = shape[axis]
    found = []
    if channels == 3:
        turn = "x[:, ::-1]" if axis == 1 else "x[..., ::-1]"
        found += _moved("channels swapped", "BGR for RGB or the reverse", f"x = {turn}", "pixels = pixels[..., ::-1]", lambda x: np.flip(x, axis), how, axis)
    if channels > 1:
        found += _scrambled(tuple(shape[1:]), layout, how, axis)
    ways = [how] if how is not None else [Preprocessing(), Preprocessing(mean=(0.5,), std=(0.5,)), *([IMAGENET] if channels == 3 else [])]
    for way in ways:
        found += _normalisation(way, axis)
    return found


def _moved(name: str, what: str, after: str, before: str, undo: Callable[[Array], Array], how: Preprocessing | None, axis: int) -> list[Slip]:
    """Values in the wrong place, after normalisation or before it: then they got the mean and std of another channel, which is undone too."""
    found = [Slip(f"{name} ({what}, after normalisation)", after, undo)]
    if how is not None and (len(set(how.mean)) > 1 or len(set(how.std)) > 1):
        mean, std = (_along(v, axis) for v in (how.mean, how.std))
        found.append(Slip(f"{name} ({what}, before normalisation)", f"{before}, then mean and std", lambda x: (undo(x * std + mean) - mean) / std))
    return found


def _scrambled(shape: tuple[int, ...], layout: str, how: Preprocessing | None, axis: int) -> list[Slip]:
    """Reshaped where it should have been transposed: the right shape, the wrong order."""
    if layout == "NCHW":
        c, h, w = shape
        cure = "x = x.transpose(2, 0, 1), never x.reshape(C, H, W)"
        return _moved("layout swapped", "HWC values reshaped to CHW", cure, cure, lambda x: x.reshape(-1, h, w, c).transpose(0, 3, 1, 2), how, axis)
    h, w, c = shape
    cure = "x = x.transpose(1, 2, 0), never x.reshape(H, W, C)"
    return _moved("layout swapped", "CHW values reshaped to HWC", cure, cure, lambda x: x.reshape(-1, c, h, w).transpose(0, 2, 3, 1), how, axis)


def _normalisation(way: Preprocessing, axis: int) -> list[Slip]:
    mean, std = (_along(v, axis) for v in (way.mean, way.std))
    scale, text = np.float32(way.scale), f"scale={way.scale:.6g}, mean={_words(way.mean)}, std={_words(way.std)}"

    def once(x: Array) -> Array:
        return (x * scale - mean) / std

    def back(x: Array) -> Array:
        return (x * std + mean) / scale

    found = [Slip(f"not normalised ({text})", f"x = (x * scale - mean) / std with {text}", once),
             Slip(f"normalised twice ({text})", "drop one of the two normalisations (the model's or the host's)", back)]
    if set(way.mean) != {0.0} or set(way.std) != {1.0}:
        found += [Slip(f"scaled to 0..1, but mean and std left out ({text})", f"x = (x - mean) / std with {text}", lambda x: (x - mean) / std),
                  Slip(f"mean and std applied twice ({text})", "drop one of the two normalisations (the model's or the host's)", lambda x: x * std + mean)]
    return found


def _along(values: Sequence[float], axis: int) -> Array:
    found = np.array(values, np.float32)
    return found.reshape(1, -1, 1, 1) if axis == 1 else found.reshape(1, 1, 1, -1)


def _words(numbers: Sequence[float]) -> str:
    return "/".join(f"{n:g}" for n in numbers)


def judge(seen: Mapping[str, Mapping[str, TensorStatistics]], known: Mapping[str, TensorStatistics], hypotheses: Sequence[Slip]) -> Verdict:
    """The verdict on statistics that were taken under each hypothesis.

    seen    "" (samples as they are) and name of a slip -> statistics of its mended samples, tensor by tensor
    known   the calibration statistics of the same tensors
    """
    tried = {name: distance(stats, known) for name, stats in seen.items()}
    now = tried.pop("")
    best = min(tried, key=lambda n: tried[n], default="")
    if not best or now <= NOISE or tried[best] > CLEAR * now:
        return Verdict("", 0.0, "", now, tried.get(best, now), tried)
    others = sorted(d for n, d in tried.items() if _family(n) != _family(best))
    margin = 1.0 - tried[best] / min(now, others[0] if others else now)
    confidence = float(np.clip((1.0 - tried[best] / now) * (0.5 + 0.5 * max(margin, 0.0)), 0.0, 0.99))
    slip = next(h for h in hypotheses if h.name == best)
    return Verdict(best, confidence, slip.cure, now, tried[best], tried)


def _family(name: str) -> str:
    return name.partition(" (")[0]


def distance(seen: Mapping[str, TensorStatistics], known: Mapping[str, TensorStatistics]) -> float:
    """Mean over tensors of how far two sets of statistics lie apart, 0 for equal ones; each tensor counts 4 at most."""
    common = [t for t in known if t in seen and known[t].count and seen[t].count]
    return float(np.mean([min(_apart(seen[t], known[t]), 4.0) for t in common])) if common else 0.0


def _apart(a: TensorStatistics, b: TensorStatistics) -> float:
    """Quantiles apart in units of the spread of `b`, and how unlike the channels are."""
    spread = max(b.quantile(0.98) - b.quantile(0.02), 1e-12 + 1e-3 * b.magnitude)
    whole = float(np.mean([abs(a.quantile(q) - b.quantile(q)) for q in QUANTILES])) / spread
    ends = [x.astype(np.float64) for x in (a.channel_low, a.channel_high, b.channel_low, b.channel_high) if x is not None]
    if len(ends) < 4 or len({x.size for x in ends}) > 1 or ends[0].size < 2 or not all(np.isfinite(x).all() for x in ends):
        return whole
    low, high, lowest, highest = ends
    reach = max(b.maximum - b.minimum, 1e-12)
    outside = float(np.mean(np.maximum(lowest - low, 0.0) + np.maximum(high - highest, 0.0))) / reach
    return whole + 2.0 * outside + 0.5 * (_unlike(low, lowest) + _unlike(high, highest))


def _unlike(few: Array, many: Array) -> float:
    """1 - correlation over channels of the extremes of few samples and of many: few reach less far, but the order of channels stays."""
    a, b = few - few.mean(), many - many.mean()
    size = float(np.sqrt((a * a).sum() * (b * b).sum()))
    return 1.0 - float((a * b).sum()) / size if size > 1e-12 else 0.0
