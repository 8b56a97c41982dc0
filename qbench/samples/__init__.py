"""Built-in samples: `load_sample(name)`.

    brain      tissue in head MRI, a U-Net; the default
    fashion    ten kinds of clothing, small and fast
    face       is there a face? BlazeFace and labelled patches, loaded from their own packages: pip install 'qbench[face]'
    face-dark  the same with two all-black frames among the calibration pictures
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from qbench.data.arrays import take
from qbench.errors import unknown
from qbench.samples.blazeface import face, face_dark
from qbench.samples.record import Sample
from qbench.samples.shipped import brain, fashion

DEFAULT = "brain"
_SAMPLES: dict[str, Callable[[], Sample]] = {"brain": brain, "fashion": fashion, "face": face, "face-dark": face_dark}


def names() -> tuple[str, ...]:
    """The samples there are; the first is the default."""
    return tuple(_SAMPLES)


def load_sample(name: str = DEFAULT, limit: int | None = None) -> Sample:
    """A sample, or the first `limit` samples of each of its data sets.

    Raises UnknownName, or InputError when the sample needs packages that are not installed.
    """
    if name not in _SAMPLES:
        raise unknown("sample", name, _SAMPLES)
    sample = _SAMPLES[name]()
    if limit is None:
        return sample
    return replace(sample, calibration=take(sample.calibration, limit), evaluation=take(sample.evaluation, limit))


__all__ = ["DEFAULT", "Sample", "load_sample", "names"]
