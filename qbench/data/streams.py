"""Data sets that are read while they are used: a folder of samples, or a function of the user's that yields them."""

from __future__ import annotations

import hashlib
import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from qbench.data.arrays import load_npz, update
from qbench.data.inputs import LABELS, Inputs, InputSpec, fit, pick
from qbench.data.preprocessing import Preprocessing
from qbench.errors import DataError
from qbench.files import sha256
from qbench.protocols import Array, Batch

IMAGES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".ppm", ".pgm")
SUFFIXES = (".npy", ".npz", *IMAGES)


@dataclass(frozen=True, slots=True)
class Sample:
    """feeds   input name -> [1, ...]; label   a number, an array (a mask), or None"""

    feeds: Mapping[str, Array]
    label: Array | None


def grouped(samples: Iterable[Sample], size: int) -> Iterator[Batch]:
    """Neighbours of equal shape together, at most `size` of them; a batch never mixes shapes."""
    first, waiting = 0, list[Sample]()
    for sample in samples:
        if waiting and (len(waiting) == size or _shape(sample) != _shape(waiting[0])):
            yield _stack(waiting, first)
            first, waiting = first + len(waiting), []
        waiting.append(sample)
    if waiting:
        yield _stack(waiting, first)


def _shape(sample: Sample) -> tuple[Any, ...]:
    label = None if sample.label is None else sample.label.shape
    return (*((k, v.shape) for k, v in sample.feeds.items()), label)


def _stack(samples: list[Sample], first: int) -> Batch:
    feeds = {k: np.concatenate([s.feeds[k] for s in samples]) for k in samples[0].feeds}
    labels = [s.label for s in samples if s.label is not None]
    return Batch(feeds, np.stack(labels) if labels else None, first)


def one_by_one(stored: Mapping[str, Array], inputs: Inputs, where: str) -> Iterator[Sample]:
    """The samples of one stored mapping: arrays with a batch axis may hold several, arrays without hold one."""
    specs = [InputSpec(*i) for i in inputs]
    feeds = {s.name: _batched(pick(stored, inputs, where)[s.name], s, where) for s in specs}
    counts = {len(v) for v in feeds.values()}
    if len(counts) != 1:
        raise DataError(f"{where}: the inputs hold different numbers of samples: "
                        + ", ".join(f"{k} {len(v)}" for k, v in feeds.items()))
    count = counts.pop()
    labels = np.asarray(stored[LABELS]) if LABELS in stored else None
    bare = labels is not None and count == 1 and (labels.ndim == 0 or len(labels) != 1)      # a label without batch axis
    if labels is not None and not bare and (labels.ndim == 0 or len(labels) != count):
        raise DataError(f"{where}: {count} samples and labels of shape {labels.shape}; one label per sample, please")
    for n in range(count):
        label = None if labels is None else labels if bare else labels[n]
        yield Sample({k: v[n:n + 1] for k, v in feeds.items()}, None if label is None else np.asarray(label))


def _batched(array: Array, spec: InputSpec, where: str) -> Array:
    array = np.asarray(array)
    return fit(array[None] if array.ndim == len(spec.shape) - 1 else array, spec, where)


@dataclass(frozen=True)
class FolderDataset:
    """One `.npy`, `.npz` or picture a sample; shapes may differ. Sub-folders are classes, numbered in sorted order.

    Classes take turns (first of each, second of each, ...), so that the first N samples are as balanced as the folder.
    """

    folder: Path
    inputs: Inputs
    preprocessing: Preprocessing | None
    files: tuple[tuple[Path, int | None], ...]      # path and class
    classes: tuple[str, ...] = ()                   # names of the sub-folders, empty ones too

    @property
    def name(self) -> str:
        return self.folder.name

    def __len__(self) -> int:
        return len(self.files)

    @cached_property
    def key(self) -> str:
        """SHA-256 over the files' relative names, contents and classes, the preprocessing and the input types."""
        how = self.preprocessing.text if self.preprocessing else ""
        digest = hashlib.sha256(f"folder/{how}/{[tuple(i) for i in self.inputs]}".encode())
        for path, label in self.files:
            digest.update(f"{path.relative_to(self.folder).as_posix()}/{label}/{sha256(path)}/".encode())
        return digest.hexdigest()

    def batches(self, size: int = 1) -> Iterator[Batch]:
        return grouped((self.read(path, label) for path, label in self.files), size)

    def read(self, path: Path, label: int | None) -> Sample:
        """The one sample in `path`. Raises DataError when it holds none, several, or one that does not fit."""
        samples = list(one_by_one(self._stored(path), self.inputs, str(path)))
        if len(samples) != 1:
            raise DataError(f"{path}: holds {len(samples)} samples; in a folder each file is one sample")
        return samples[0] if label is None else Sample(samples[0].feeds, np.asarray(label, np.int64))

    def _stored(self, path: Path) -> Mapping[str, Array]:
        if path.suffix.lower() == ".npz":
            return load_npz(path)
        if len(self.inputs) != 1:
            raise DataError(f"{path}: the model has {len(self.inputs)} inputs ({', '.join(i[0] for i in self.inputs)}); "
                            "save each sample as a .npz with one array for each")
        if path.suffix.lower() == ".npy":
            return {self.inputs[0][0]: _load_npy(path)}
        if self.preprocessing is None:
            raise DataError(f"{path}: pictures need a preprocessing, and none was given; for this model perhaps --preprocess "
                            f"{_suggest(self.inputs[0])} (use the numbers it was trained with)")
        return {self.inputs[0][0]: self.preprocessing.open(path)}


def _load_npy(path: Path) -> Array:
    try:
        with open(path, "rb") as opened:
            return np.asarray(np.load(opened, allow_pickle=False))
    except (ValueError, OSError, EOFError) as error:
        raise DataError(f"{path}: cannot be read as a .npy ({error}); Python objects in it are refused, save a plain array") from error


def _suggest(spec: tuple[str, tuple[int | None, ...], str]) -> str:
    """A preprocessing text with the size, layout and colour of the input filled in."""
    shape = spec[1]
    last = len(shape) == 4 and shape[3] in (1, 3) and shape[1] not in (1, 3)
    height, width, channels = (224, 224, 3) if len(shape) != 4 else shape[1:] if last else (*shape[2:], shape[1])
    colour = "colour=gray,mean=0.5,std=0.5" if channels == 1 else "colour=rgb,mean=0.485/0.456/0.406,std=0.229/0.224/0.225"
    return f"size={height or 224}x{width or 224},{colour},layout={'nhwc' if last else 'nchw'}"


def open_folder(folder: Path, inputs: Inputs, preprocessing: Preprocessing | None, limit: int | None = None) -> FolderDataset:
    """The first `limit` samples of a folder. Raises DataError for a folder without samples, or with samples both beside and inside sub-folders."""
    entries = sorted(p for p in folder.iterdir() if not p.name.startswith("."))
    flat = [p for p in entries if p.is_file() and p.suffix.lower() in SUFFIXES]
    folders = [p for p in entries if p.is_dir()]
    classes = [sorted(q for q in p.iterdir() if q.is_file() and q.suffix.lower() in SUFFIXES and not q.name.startswith(".")) for p in folders]
    if flat and any(classes):
        raise DataError(f"{folder}: {flat[0].name} lies beside sub-folders with samples; sub-folders are classes, "
                        "so put every sample into one, or none")
    turns = itertools.zip_longest(*classes)
    dealt = [(path, label) for turn in turns for label, path in enumerate(turn) if path is not None]
    files: list[tuple[Path, int | None]] = [(p, None) for p in flat] or list(dealt)
    if not files:
        seen = Counter(p.suffix or p.name for p in folder.rglob("*") if p.is_file())
        said = ", ".join(f"{n} x {s}" for s, n in seen.most_common(5)) or "nothing"
        raise DataError(f"{folder}: no sample in it. Wanted {' '.join(SUFFIXES)}, in the folder or one folder per class; found {said}")
    return FolderDataset(folder, inputs, preprocessing, tuple(files[:limit]), () if flat else tuple(p.name for p in folders))


@dataclass(frozen=True)
class FunctionDataset:
    """What a function of the user's yields: dicts of input name -> array, with or without batch axis, `labels` beside them.

    The function is called without arguments once for each pass and must yield the same samples every time. It may go on
    for ever when there is a `limit` (in samples).
    """

    name: str
    function: Callable[[], Iterable[Mapping[str, Array]]]
    inputs: Inputs
    limit: int | None = None

    def samples(self) -> Iterator[Sample]:
        return itertools.islice(self._all(), self.limit)

    def _all(self) -> Iterator[Sample]:
        for n, stored in enumerate(self.function()):
            if not isinstance(stored, Mapping):
                raise DataError(f"{self.name}: item {n} is a {type(stored).__name__}; wanted one dict of input name -> array "
                                f"per sample: yield them one by one, or return a list of dicts")
            yield from one_by_one({k: np.asarray(v) for k, v in stored.items()}, self.inputs, f"{self.name}, item {n}")

    @cached_property
    def _first_pass(self) -> tuple[int, str]:
        """Number of samples and SHA-256 of all of them."""
        count, digest = 0, hashlib.sha256(b"function/")
        for sample in self.samples():
            count += 1
            _update(digest, sample)
        if not count:
            raise DataError(f"{self.name}: yielded no sample")
        return count, digest.hexdigest()

    def __len__(self) -> int:
        return self._first_pass[0]

    @property
    def key(self) -> str:
        return self._first_pass[1]

    def batches(self, size: int = 1) -> Iterator[Batch]:
        return grouped(self._checked(), size)

    def _checked(self) -> Iterator[Sample]:
        """The samples of one more pass. Raises DataError at its end when they were others than in the first."""
        digest = hashlib.sha256(b"function/")
        for sample in self.samples():
            _update(digest, sample)
            yield sample
        if digest.hexdigest() != self.key:
            raise DataError(f"{self.name}: yields other samples each time it is called; seed its random numbers, "
                            "and start a new iterator in each call")


def _update(digest: hashlib._Hash, sample: Sample) -> None:
    for name, array in sorted(sample.feeds.items()):
        update(digest, name, array)
    if sample.label is not None:
        update(digest, LABELS, sample.label)
