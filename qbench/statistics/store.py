"""The statistics of one model over one or more data sets: a mapping of tensors, merged by addition, kept in one file."""

from __future__ import annotations

import hashlib
import json
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qbench.errors import DataError, UnknownName
from qbench.files import replacing
from qbench.statistics.sketch import TensorStatistics

FORMAT = "qbench-statistics/1"

_ARRAYS = {"codes": np.int32, "counts": np.int64, "samples": np.int64, "sample_low": np.float32, "sample_high": np.float32,
           "channel_low": np.float32, "channel_high": np.float32, "sample_second": np.float32}
_SINCE = {"sample_second"}              # arrays that files of before do not hold; a tensor of theirs has them empty
_NUMBERS = ("zeros", "minimum", "maximum", "low_sample", "high_sample", "nan", "positive_inf", "negative_inf", "fp16_overflows")
_SUMS = ("total", "squares")


@dataclass(frozen=True, slots=True, order=True)
class Source:
    """Data that went in. key: content key of the data set and of how much of it was used; samples: how many."""

    key: str
    name: str
    samples: int


@dataclass(frozen=True)
class Statistics(Mapping[str, TensorStatistics]):
    """model_key  of the model whose tensors these are
    sources       by key; sample indices run through the sources in this order
    tensors       every tensor asked for that can be observed, in the order asked for; `count` is 0 if it never occurred
    absent        tensors asked for that cannot be observed -> the reason
    policy        what NaN and infinity did: "stop" or "ignore"
    """

    model_key: str
    sources: tuple[Source, ...]
    tensors: Mapping[str, TensorStatistics]
    absent: Mapping[str, str] = field(default_factory=dict)
    policy: str = "stop"

    def __getitem__(self, name: str) -> TensorStatistics:
        if name not in self.tensors:
            raise UnknownName(f"no statistics of tensor {name!r}: {self.absent.get(name, 'it was not asked for in this pass')}")
        return self.tensors[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.tensors)

    def __len__(self) -> int:
        return len(self.tensors)

    def __contains__(self, name: object) -> bool:
        return name in self.tensors

    @property
    def samples(self) -> int:
        return sum(s.samples for s in self.sources)

    @property
    def key(self) -> str:
        """Content key: equal when model, data, tensors and policy are."""
        return content_key(self.model_key, [s.key for s in self.sources], [*self.tensors, *self.absent], self.policy)

    @property
    def unobserved(self) -> dict[str, str]:
        """Tensors without a single finite value -> why; they must stay in float."""
        never = {name: "never observed: no sample reached it" if not t.non_finite else "never observed: not one value was finite"
                 for name, t in self.tensors.items() if not t.count}
        return {**never, **self.absent}

    def warnings(self) -> list[str]:
        """What a user has to know before trusting ranges made from these statistics, one line a tensor."""
        lines = []
        for name, t in self.tensors.items():
            if t.constant:
                lines.append(f"tensor {name}: constant over the whole calibration set ({t.minimum:g}); its scale says nothing "
                             "about other data")
            if t.non_finite:
                lines.append(f"tensor {name}: {counts_text(t.nan, t.positive_inf, t.negative_inf)} ignored; the range covers "
                             "the finite values only")
        return lines + [f"tensor {name}: {reason}" for name, reason in self.unobserved.items()]

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        shown: str = import_module("qbench.report.notebook").statistics(self)     # by name: the report knows this module, not the other way round
        return shown

    def save(self, path: Path) -> None:
        """One compressed .npz, without pickles."""
        header = {
            "format": FORMAT, "model_key": self.model_key, "policy": self.policy, "absent": dict(self.absent),
            "sources": [[s.key, s.name, s.samples] for s in self.sources],
            "tensors": [_header(name, t) for name, t in self.tensors.items()],
        }
        bodies: dict[str, NDArray[Any]] = {"header": np.frombuffer(json.dumps(header).encode(), np.uint8)}
        for field_name, dtype in _ARRAYS.items():
            parts = [getattr(t, field_name) for t in self.tensors.values()]
            filled = [p for p in parts if p is not None]
            bodies[field_name] = np.concatenate([np.empty(0, dtype), *filled])
        with replacing(Path(path)) as temporary, open(temporary, "wb") as file:
            np.savez_compressed(file, **bodies)   # type: ignore[arg-type]

    @staticmethod
    def load(path: Path) -> Statistics:
        """Raises DataError naming the file when it is not one that `save` wrote."""
        try:
            with np.load(path, allow_pickle=False) as bodies:
                return _parsed(json.loads(bodies["header"].tobytes()), {k: bodies[k] for k in _ARRAYS if k in bodies or k not in _SINCE})
        except OSError as error:
            raise DataError(f"{path}: cannot be read ({error.strerror or error}); give a file that `qbench stats -o` wrote") from error
        except (ValueError, KeyError, TypeError, EOFError, zipfile.BadZipFile, zlib.error) as error:
            raise DataError(f"{path}: is not a statistics file ({error}); make it again with `qbench stats`") from error


def content_key(model_key: str, data_keys: list[str], tensors: list[str], policy: str) -> str:
    """What `Statistics.key` of such a pass will be, so that a file can be used again without a new pass."""
    text = json.dumps([FORMAT, model_key, sorted(data_keys), sorted(tensors), policy])
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def counts_text(nan: int, positive: int, negative: int) -> str:
    named = ((nan, "NaN"), (positive, "+Inf"), (negative, "-Inf"))
    return ", ".join(f"{n} {what}" for n, what in named if n)


def merge(one: Statistics, two: Statistics) -> Statistics:
    """Statistics of the data of both, the same whichever comes first.

    Raises DataError when they come from different models or tensors, or share data, which would count twice.
    """
    if one.model_key != two.model_key:
        raise DataError(f"these statistics belong to different models ({one.model_key[:12]} and {two.model_key[:12]}); "
                        "merge shards of one model only")
    if odd := {*one.tensors, *one.absent} ^ {*two.tensors, *two.absent}:
        raise DataError(f"tensor {min(odd)!r} was asked for in one of the two only; collect both with the same tensors")
    if one.policy != two.policy:
        raise DataError(f"one pass had the NaN policy {one.policy!r}, the other {two.policy!r}; collect both with the same")
    if shared := {s.key for s in one.sources} & {s.key for s in two.sources}:
        name = next(s.name for s in one.sources if s.key in shared)
        raise DataError(f"both hold statistics of the data set {name!r}: its values would count twice; merge different shards")
    sources = tuple(sorted((*one.sources, *two.sources)))
    absent = {k: v for k, v in {**two.absent, **one.absent}.items() if k not in one.tensors and k not in two.tensors}
    left, right = _renumbered(one, sources), _renumbered(two, sources)
    names = [*one.tensors, *(n for n in two.tensors if n not in one.tensors)]
    tensors = {n: left.get(n, TensorStatistics.empty(n)).merged(right.get(n, TensorStatistics.empty(n))) for n in names}
    return Statistics(one.model_key, sources, tensors, absent, one.policy)


def _renumbered(part: Statistics, sources: tuple[Source, ...]) -> dict[str, TensorStatistics]:
    """The tensors of `part` with sample indices that run through `sources`, which include those of the part."""
    new, at = {}, 0
    for source in sources:
        new[source.key] = at
        at += source.samples
    ends = np.cumsum([s.samples for s in part.sources])
    shift = np.array([new[s.key] - (int(end) - s.samples) for s, end in zip(part.sources, ends, strict=True)])

    def moved(index: NDArray[np.int64]) -> NDArray[np.int64]:
        found: NDArray[np.int64] = index + shift[np.minimum(np.searchsorted(ends, index, side="right"), len(shift) - 1)]
        return found

    def one(t: TensorStatistics) -> TensorStatistics:
        low, high = (int(moved(np.array([i]))[0]) if i >= 0 else -1 for i in (t.low_sample, t.high_sample))
        return replace(t, low_sample=low, high_sample=high, samples=moved(t.samples))

    return {name: one(t) for name, t in part.tensors.items()}


def _header(name: str, t: TensorStatistics) -> dict[str, Any]:
    """What is not an array, and how long its arrays are; -1 for None."""
    sizes = {f: -1 if (a := getattr(t, f)) is None else int(a.size) for f in _ARRAYS}
    return {"name": name, "sizes": sizes, **{f: getattr(t, f) for f in _NUMBERS}, **{f: hex(getattr(t, f)) for f in _SUMS}}


def _parsed(header: dict[str, Any], bodies: Mapping[str, NDArray[Any]]) -> Statistics:
    if header["format"] != FORMAT:
        raise ValueError(f"format {header['format']!r}, expected {FORMAT!r}")
    if wrong := [f for f, body in bodies.items() if body.dtype != _ARRAYS[f]]:
        raise ValueError(f"array {wrong[0]} is {bodies[wrong[0]].dtype}")
    at = dict.fromkeys(_ARRAYS, 0)
    tensors = {}
    for entry in header["tensors"]:
        arrays: dict[str, NDArray[Any] | None] = {}
        for f, size in entry["sizes"].items():
            arrays[f] = None if size < 0 else bodies[f][at[f] : at[f] + size]
            at[f] += max(size, 0)
        numbers = {f: entry[f] for f in _NUMBERS} | {f: int(entry[f], 16) for f in _SUMS}
        tensors[entry["name"]] = TensorStatistics(name=entry["name"], **arrays, **numbers)   # type: ignore[arg-type]
    sources = tuple(Source(*s) for s in header["sources"])
    return Statistics(header["model_key"], sources, tensors, header["absent"], header["policy"])
