"""Calibrators: pure questions to the statistics of a tensor, named and with options on the command line.

A spec is a name and options, `percentile:p=99.9`; the options are the fields of the calibrator's class. An option that holds
specs itself comes last and takes the rest of the text: `auto:among=minmax/percentile:p=99.9,sided=one`. Third parties add
theirs as entry points of the group `qbench.calibrators`: the name, and the class behind it.
"""

from __future__ import annotations

import dataclasses
import inspect
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from typing import Any, get_args, get_origin, get_type_hints

from qbench.affine import Range
from qbench.errors import InputError, UnknownName, unknown
from qbench.protocols import Calibrator, Seen

__all__ = ["GROUP", "Calibrator", "Specs", "describe", "is_auto", "make", "names", "ranges", "spec"]

GROUP = "qbench.calibrators"

_OURS = {
    "aciq": "qbench.calibrators.aciq:Aciq",
    "auto": "qbench.calibrators.auto:Auto",
    "extremes": "qbench.calibrators.extremes:Extremes",
    "kl": "qbench.calibrators.kl:Kl",
    "lp": "qbench.calibrators.lp:Lp",
    "mae": "qbench.calibrators.mae:Mae",
    "minmax": "qbench.calibrators.minmax:MinMax",
    "moving-average": "qbench.calibrators.moving_average:MovingAverage",
    "mse": "qbench.calibrators.mse:Mse",
    "order-preserving": "qbench.calibrators.order_preserving:OrderPreserving",
    "percentile": "qbench.calibrators.percentile:Percentile",
    "power-of-two": "qbench.calibrators.power_of_two:PowerOfTwo",
    "sqnr": "qbench.calibrators.sqnr:Sqnr",
}


class Specs(str):
    """Type of an option that holds the specs of other calibrators, joined by "/". A class has one at most."""

    __slots__ = ()


@cache
def _known() -> dict[str, EntryPoint]:
    """Ours last, so that no other package replaces one of them."""
    theirs = {e.name: e for e in entry_points(group=GROUP)}
    return theirs | {name: EntryPoint(name, place, GROUP) for name, place in _OURS.items()}


def names() -> tuple[str, ...]:
    """Every registered name, sorted."""
    return tuple(sorted(_known()))


def make(text: str) -> Calibrator:
    """The calibrator of a spec, "minmax" or "percentile:p=99.9,sided=magnitude".

    Raises UnknownName for the name, InputError for an option that does not exist or does not parse.
    """
    name, _, rest = text.strip().partition(":")
    kind = _class(name)
    hints = _options(kind)
    options: dict[str, Any] = {}
    while rest:
        part, _, rest = rest.partition(",")
        if not part:
            continue
        key, equals, value = (x.strip() for x in part.partition("="))
        if hints.get(key) is Specs and rest:
            value, rest = f"{value},{rest}", ""
        if not equals or key not in hints or key in options:
            fault = "is given twice" if key in options else "is not an option=value of it"
            raise InputError(f"calibrator {text!r}: {part.strip()!r} {fault}; {_known_options(name, kind)}")
        options[key] = _parsed(text, key, value, hints[key])
    made: Calibrator = kind(**options)
    return made


def spec(calibrator: Calibrator) -> str:
    """The text that `make` turns into an equal calibrator; options at their defaults are left out."""
    name = next((n for n in names() if _known()[n].value == _place(type(calibrator))), None)
    if name is None:
        raise UnknownName(f"{type(calibrator).__name__} is not a registered calibrator; known: {', '.join(names())}")
    fields = sorted(dataclasses.fields(calibrator), key=lambda f: isinstance(f.default, Specs))  # type: ignore[arg-type]
    changed = [f"{f.name}={getattr(calibrator, f.name)}" for f in fields if getattr(calibrator, f.name) != f.default]
    return ":".join(filter(None, (name, ",".join(changed))))


def is_auto(text: str) -> bool:
    """True for a spec of `auto`, which needs samples and the network to decide: see `qbench.workbench.auto`."""
    return text.strip().partition(":")[0] == "auto"


def describe(name: str) -> tuple[str, dict[str, Any]]:
    """(documentation, option -> default) of a named calibrator, for lists and tables."""
    kind = _class(name)
    return inspect.getdoc(kind) or "", {f.name: f.default for f in dataclasses.fields(kind)}


def ranges(calibrator: Calibrator, seen: Sequence[Seen], levels: int, symmetric: bool = False, threads: int | None = None) -> list[Range]:
    """Range of each tensor, in their order, computed on several threads: the compiled loops run side by side.

    threads  None: as many as the machine has cores for this process
    Raises NotObserved for the first tensor that never occurred.
    """
    workers = min(threads or _cores(), len(seen))
    if workers < 2:
        return [calibrator.range(s, levels, symmetric) for s in seen]
    with ThreadPoolExecutor(workers) as pool:
        return list(pool.map(lambda s: calibrator.range(s, levels, symmetric), seen))


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _place(kind: type) -> str:
    return f"{kind.__module__}:{kind.__qualname__}"


def _class(name: str) -> type[Any]:
    if name not in _known():
        raise unknown("calibrator", name, names())
    entry = _known()[name]
    if name in _OURS:                                   # EntryPoint.load would look for an installed package
        module, _, attribute = entry.value.partition(":")
        kind: type[Any] = getattr(import_module(module), attribute)
        return kind
    loaded: type[Any] = entry.load()
    return loaded


def _options(kind: type[Any]) -> dict[str, Any]:
    hints = get_type_hints(kind)
    return {f.name: hints[f.name] for f in dataclasses.fields(kind)}


def _known_options(name: str, kind: type[Any]) -> str:
    listed = ", ".join(f"{f.name}={f.default}" for f in dataclasses.fields(kind))
    return f"options of {name} and their defaults: {listed}" if listed else f"{name} has no options"


def _parsed(text: str, key: str, value: str, hint: Any) -> Any:
    """`value` as the type of the field: a number, a truth value, or one of the words of a Literal."""
    if get_origin(hint) is not None and all(isinstance(a, str) for a in get_args(hint)):
        return value                                    # the class itself refuses a word that it does not know
    if hint is bool:
        if value.lower() in ("true", "false"):
            return value.lower() == "true"
        raise InputError(f"calibrator {text!r}: {key} is {value!r}; expected true or false")
    try:
        return hint(value)
    except (TypeError, ValueError) as error:
        raise InputError(f"calibrator {text!r}: {key} is {value!r}; expected a value of type {hint.__name__}") from error
