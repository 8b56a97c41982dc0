"""Calibrators: pure questions to the statistics of a tensor, named and with options on the command line.

A spec is a name and options, `percentile:p=99.9`; the options are the fields of the calibrator's class. Third parties add
theirs as entry points of the group `qbench.calibrators`: the name, and the class behind it.
"""

from __future__ import annotations

import dataclasses
import inspect
from functools import cache
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from typing import Any, get_args, get_origin, get_type_hints

from qbench.errors import InputError, UnknownName
from qbench.protocols import Calibrator

__all__ = ["GROUP", "Calibrator", "describe", "make", "names", "spec"]

GROUP = "qbench.calibrators"

_OURS = {
    "kl": "qbench.calibrators.kl:Kl",
    "minmax": "qbench.calibrators.minmax:MinMax",
    "mse": "qbench.calibrators.mse:Mse",
    "percentile": "qbench.calibrators.percentile:Percentile",
}


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
    for part in filter(None, rest.split(",")):
        key, equals, value = (x.strip() for x in part.partition("="))
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
    changed = [f"{f.name}={getattr(calibrator, f.name)}" for f in dataclasses.fields(calibrator)  # type: ignore[arg-type]
               if getattr(calibrator, f.name) != f.default]
    return ":".join(filter(None, (name, ",".join(changed))))


def describe(name: str) -> tuple[str, dict[str, Any]]:
    """(documentation, option -> default) of a named calibrator, for lists and tables."""
    kind = _class(name)
    return inspect.getdoc(kind) or "", {f.name: f.default for f in dataclasses.fields(kind)}


def _place(kind: type) -> str:
    return f"{kind.__module__}:{kind.__qualname__}"


def _class(name: str) -> type[Any]:
    if name not in _known():
        raise UnknownName(f"no calibrator {name!r}; known: {', '.join(names())}")
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
