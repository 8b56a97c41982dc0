"""Built-in samples: `load_sample(name)`.

    brain      tissue in head MRI, a U-Net; the default
    fashion    ten kinds of clothing, small and fast
    face       is there a face? BlazeFace and labelled patches, loaded from their own packages: pip install 'qbench[face]'
    face-dark  the same with two all-black frames among the calibration pictures
"""

from __future__ import annotations

from collections.abc import Callable

from qbench.errors import UnknownName
from qbench.samples.blazeface import face, face_dark
from qbench.samples.record import Sample
from qbench.samples.shipped import brain, fashion

DEFAULT = "brain"
_SAMPLES: dict[str, Callable[[], Sample]] = {"brain": brain, "fashion": fashion, "face": face, "face-dark": face_dark}


def names() -> tuple[str, ...]:
    """The samples there are; the first is the default."""
    return tuple(_SAMPLES)


def load_sample(name: str = DEFAULT) -> Sample:
    """Raises UnknownName, or InputError when the sample needs packages that are not installed."""
    if name not in _SAMPLES:
        raise UnknownName(f"no sample {name!r}; known: {', '.join(_SAMPLES)}")
    return _SAMPLES[name]()


__all__ = ["DEFAULT", "Sample", "load_sample", "names"]
