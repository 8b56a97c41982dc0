"""What qbench knows about a vendor's toolchain: one TOML file each."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from qbench.errors import unknown

FOLDER = Path(__file__).parent


@dataclass(frozen=True, slots=True)
class Toolchain:
    """package, version   the distribution that is the toolchain, and the version that the pins give
    python     conditions on the interpreter: ">=3.8", "<3.13"
    steps      arguments of one `pip install` after the other
    imports    modules that must import where it is installed
    does       what it can do, a phrase each
    shared     it lives well in qbench's own environment, so it may also be used from there
    size_mb    of its environment, about
    """

    name: str
    title: str
    package: str
    version: str
    python: tuple[str, ...]
    steps: tuple[tuple[str, ...], ...]
    imports: tuple[str, ...]
    does: tuple[str, ...]
    licence: str = ""
    shared: bool = False
    size_mb: int = 0


def names() -> tuple[str, ...]:
    """Names of the toolchains that qbench can use, sorted."""
    return tuple(sorted(p.stem for p in FOLDER.glob("*.toml")))


@cache
def load(name: str) -> Toolchain:
    """Raises UnknownName that lists the known ones."""
    if name not in names():
        raise unknown("toolchain", name, names())
    body = tomllib.loads((FOLDER / f"{name}.toml").read_text(encoding="utf-8"))
    lists = {k: tuple(body[k]) for k in ("python", "imports", "does")} | {"steps": tuple(tuple(s) for s in body["steps"])}
    return Toolchain(**(body | lists | {"name": name}))
