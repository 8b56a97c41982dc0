"""Data sets that lie in memory: what a `.npz` becomes, what the samples use, and what a library user hands in."""

from __future__ import annotations

import hashlib
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Protocol

import numpy as np

from qbench.data.inputs import LABELS, Inputs, InputSpec, fit, pick
from qbench.data.preprocessing import Preprocessing
from qbench.errors import DataError
from qbench.protocols import Array, Batch, Dataset


class Transform(Protocol):
    """From compact stored arrays to what the model is fed. Pure; `text` says what it does and goes into the content key."""

    @property
    def text(self) -> str: ...
    def __call__(self, stored: Mapping[str, Array]) -> Mapping[str, Array]: ...


@dataclass(frozen=True)
class ArrayDataset:
    """Samples along the first axis of in-memory arrays.

    arrays      model input name -> [samples, ...]; with `transform`, whatever that takes
    labels      [samples, ...] or None
    transform   applied to each batch, so that the compact form stays in memory
    """

    arrays: Mapping[str, Array]
    labels: Array | None = None
    name: str = "arrays"
    transform: Transform | None = None

    def __post_init__(self) -> None:
        lengths = {k: len(v) for k, v in self.arrays.items()}
        if self.labels is not None:
            lengths[LABELS] = len(self.labels)
        if not self.arrays or len(set(lengths.values())) != 1 or not min(lengths.values()):
            said = ", ".join(f"{k}: {n}" for k, n in lengths.items()) or "no arrays at all"
            raise DataError(f"{self.name}: every array needs the same number of samples, and at least one; got {said}")

    def __len__(self) -> int:
        return len(next(iter(self.arrays.values())))

    @cached_property
    def key(self) -> str:
        """SHA-256 over names, types, shapes and bytes of everything, and over the transform's text."""
        digest = hashlib.sha256(f"arrays/{self.transform.text if self.transform else ''}".encode())
        for name, array in [*sorted(self.arrays.items()), *([(LABELS, self.labels)] if self.labels is not None else [])]:
            update(digest, name, array)
        return digest.hexdigest()

    def batches(self, size: int = 1) -> Iterator[Batch]:
        for first in range(0, len(self), size):
            cut = {k: v[first:first + size] for k, v in self.arrays.items()}
            labels = None if self.labels is None else self.labels[first:first + size]
            yield Batch(self.transform(cut) if self.transform else cut, labels, first)


@dataclass(frozen=True)
class Head:
    """The first `count` samples of another data set."""

    whole: Dataset
    count: int

    @property
    def name(self) -> str:
        return f"{self.whole.name}[:{self.count}]"

    def __len__(self) -> int:
        return self.count

    @property
    def key(self) -> str:
        return hashlib.sha256(f"{self.whole.key}[:{self.count}]".encode()).hexdigest()

    def batches(self, size: int = 1) -> Iterator[Batch]:
        for batch in self.whole.batches(size):
            left = self.count - batch.first
            if left <= 0:
                return
            labels = None if batch.labels is None else batch.labels[:left]
            yield Batch({k: v[:left] for k, v in batch.feeds.items()}, labels, batch.first)
            if left <= len(next(iter(batch.feeds.values()))):
                return


def take(dataset: Dataset, count: int) -> Dataset:
    """The first `count` samples; the data set itself when it has no more than that."""
    if count < 1:
        raise DataError(f"{dataset.name}: asked for the first {count} samples; at least 1 is needed")
    return dataset if count >= len(dataset) else Head(dataset, count)


def update(digest: hashlib._Hash, name: str, array: Array) -> None:
    """Feed one named array to a hash; equal values of another dtype or shape give another hash."""
    digest.update(f"{name}/{array.dtype.str}/{array.shape}/".encode())
    digest.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)


def load_npz(path: Path) -> dict[str, Array]:
    """Every array of a `.npz`. Python objects are never unpickled. Raises DataError for a file that is broken or holds such."""
    try:
        with open(path, "rb") as opened:                      # opened here: np.load leaves it open when the archive is broken
            file = np.load(opened, allow_pickle=False)
            if not isinstance(file, np.lib.npyio.NpzFile):
                raise DataError(f"{path}: is one array, not an archive of named ones; save it with numpy.savez(path, input_name=array)")
            return {k: file[k] for k in file.files}
    except (ValueError, OSError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise DataError(f"{path}: cannot be read as a .npz ({error}); Python objects in it are refused, save plain arrays") from error


def open_npz(path: Path, inputs: Inputs, preprocessing: Preprocessing | None) -> ArrayDataset:
    """A `.npz` whose keys are the model's input names, with `labels` beside them. Other keys are left alone.

    Pixel arrays (uint8, [n, H, W] or [n, H, W, C]) go through `preprocessing` when there is one.
    """
    stored = load_npz(path)
    arrays = pick(stored, inputs, str(path))
    if preprocessing is not None:
        arrays = {k: np.stack([preprocessing.pixels(p) for p in v]) if v.dtype == np.uint8 and v.ndim in (3, 4) and len(v) else v
                  for k, v in arrays.items()}
    specs = {i[0]: InputSpec(*i) for i in inputs}
    fitted = {k: fit(v, specs[k], str(path)) for k, v in arrays.items()}
    return ArrayDataset(fitted, stored.get(LABELS), path.name)
