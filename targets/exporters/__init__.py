"""Exporters: from a plan into the toolchain of one vendor.

    for_target(name)   names of those that a target has, the default first
    make(name)         one of them

Ours are in the table below. Third parties add theirs as entry points of the group `qbench.exporters`: the name, and an
`Exporter` (a class without arguments) that says in `targets` for which targets it is.
"""

from __future__ import annotations

from functools import cache
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from typing import NamedTuple

from qbench.errors import UnknownName
from qbench.export import Exporter

__all__ = ["GROUP", "Listed", "for_target", "make", "names", "targets_of"]

GROUP = "qbench.exporters"


class Listed(NamedTuple):
    """place   "module:Class"; targets   names of target files, the order of the table says which exporter is a target's default"""

    place: str
    targets: tuple[str, ...]


_OURS = {
    "rknn": Listed("qbench.targets.exporters.rknn:RknnExporter", ("rk3588", "rk3576", "rk3566", "rk3562")),
    "qnn": Listed("qbench.targets.exporters.qnn:QnnExporter", ("hexagon-8gen1", "hexagon-8gen2", "hexagon-8gen3", "hexagon-8elite", "hexagon-8elite5",
                                                              "hexagon-xelite", "hexagon-qcs6490", "hexagon-qcs9075")),
    "onnxruntime": Listed("qbench.targets.exporters.host_onnxruntime:OnnxRuntimeExporter", ("host",)),
    "openvino": Listed("qbench.targets.exporters.host_openvino:OpenVinoExporter", ("host",)),
    "ascend": Listed("qbench.targets.exporters.ascend:AscendExporter", ("ascend310", "ascend310p")),
    "xdna": Listed("qbench.targets.exporters.xdna:XdnaExporter", ("xdna", "xdna2")),
    "cambricon": Listed("qbench.targets.exporters.cambricon:CambriconExporter", ("mlu220", "mlu270", "mlu370-s4", "mlu370-x4")),
    "coreml": Listed("qbench.targets.exporters.coreml:CoremlExporter", ("ane-a17pro", "ane-a16", "ane-m1", "ane-m2")),
    "mediatek": Listed("qbench.targets.exporters.mediatek:MediatekExporter", ("mediatek-apu",)),
}


@cache
def _theirs() -> dict[str, EntryPoint]:
    return {e.name: e for e in entry_points(group=GROUP) if e.name not in _OURS}


def names() -> tuple[str, ...]:
    return tuple(sorted({*_OURS, *_theirs()}))


def for_target(target: str) -> tuple[str, ...]:
    """Raises UnknownName for a target that nobody exports for."""
    found = (*(n for n, listed in _OURS.items() if target in listed.targets), *(n for n, e in _theirs().items() if target in getattr(e.load(), "targets", ())))
    if not found:
        served = sorted({t for listed in _OURS.values() for t in listed.targets})
        raise UnknownName(f"no exporter for target {target!r}; there is one for {', '.join(served)}. `qbench quantize --plan` writes the Q/DQ model")
    return found


def targets_of(name: str) -> tuple[str, ...]:
    """Targets that one of ours serves. Raises UnknownName."""
    if name not in _OURS:
        raise UnknownName(f"no exporter {name!r} of ours; there are {', '.join(_OURS)}")
    return _OURS[name].targets


def make(name: str) -> Exporter:
    """Raises UnknownName that lists the exporters."""
    if name in _OURS:
        module, _, kind = _OURS[name].place.partition(":")
        found: Exporter = getattr(import_module(module), kind)()
        return found
    if name not in _theirs():
        raise UnknownName(f"no exporter {name!r}; known: {', '.join(names())}")
    theirs: Exporter = _theirs()[name].load()()
    return theirs
