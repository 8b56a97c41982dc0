"""The text form `name:key=value,key=value` of anything whose options are the fields of a frozen dataclass."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, Field, fields
from typing import Any, TypeVar

from qbench.errors import InputError, unknown

T = TypeVar("T")


def split(text: str) -> tuple[str, dict[str, str]]:
    """("percentile", {"p": "99.9"}) from "percentile:p=99.9". Raises InputError for an option without a value or given twice."""
    name, _, rest = text.partition(":")
    options: dict[str, str] = {}
    for part in filter(None, (p.strip() for p in rest.split(","))):
        key, equals, value = (p.strip() for p in part.partition("="))
        if not equals or not key or not value or key in options:
            why = "is given twice" if key in options else "is not of the form key=value"
            raise InputError(f"{text!r}: {part!r} {why}; write name:key=value,key=value")
        options[key] = value
    return name.strip(), options


def build(text: str, known: Mapping[str, type[T]], kind: str) -> T:
    """The object that `text` describes. `known` maps names to dataclasses; `kind` is the word for the error ("metric").

    A field of type int, float or str takes one value, of type tuple several joined by "/".
    Raises UnknownName or InputError, listing what there is.
    """
    name, options = split(text)
    if name not in known:
        raise unknown(kind, name, sorted(known))
    chosen = known[name]
    have = {f.name: f for f in fields(chosen)}  # type: ignore[arg-type]
    if odd := [k for k in options if k not in have]:
        takes = ", ".join(have) or "none"
        raise InputError(f"{kind} {name!r} has no option {odd[0]!r}; its options: {takes}")
    if lacking := [k for k, f in have.items() if f.default is MISSING and f.default_factory is MISSING and k not in options]:
        raise InputError(f"{kind} {name!r} needs {', '.join(f'{k}=...' for k in lacking)}")
    return chosen(**{k: _convert(text, have[k], v) for k, v in options.items()})


def _convert(text: str, field: Field[Any], value: str) -> Any:
    """`value` as the field's annotated type (annotations are text under `from __future__ import annotations`)."""
    wanted = str(field.type).removesuffix(" | None")
    try:
        if wanted.startswith("tuple[int"):
            return tuple(int(v) for v in value.split("/"))
        return {"int": int, "float": float, "str": str}[wanted](value)
    except ValueError as error:
        raise InputError(f"{text!r}: {field.name}={value} is not {'a whole number' if 'int' in wanted else 'a number'}") from error
