"""Does a board have what an artefact needs? Asked before anything is measured (BUG case B27)."""

from __future__ import annotations

import re
from collections.abc import Mapping

from qbench.errors import ToolError

_CLAUSE = re.compile(r"\s*(==|>=|<=|<|>)\s*(\S+)\s*")


def check_versions(requires: Mapping[str, str], reported: Mapping[str, str], board: str) -> None:
    """Raises ToolError that names both sides and which one to change, when the board's versions do not do.

    requires   "runtime" -> "==2.5.0" or ">=0.9.6, <1.0", of manifest.json; reported   what the board said
    """
    for what, wanted in requires.items():
        have = reported.get(what, "")
        if not have:
            raise ToolError(f"{board} does not say which {what} it has, and the artefact needs {what} {wanted}: nothing is measured without it. Update the board's agent")
        if not satisfies(have, wanted):
            raise ToolError(f"{board} has {what} {have}, the artefact needs {what} {wanted}: install that {what} on the board, "
                            f"or export again with the toolkit that goes with {have}")


def satisfies(version: str, wanted: str) -> bool:
    """Does "1.6.0" meet ">=1.6, <2"? Compared number by number; what follows them ("b1", "@2024") does not count. Raises ValueError for a clause that cannot be read."""
    have = _numbers(version)
    for clause in wanted.split(","):
        found = _CLAUSE.fullmatch(clause)
        if found is None:
            raise ValueError(f"{clause.strip()!r} is no condition such as >=1.6.0")
        want = _numbers(found[2])
        width = max(len(have), len(want))
        a, b = ((*v, *(0,) * (width - len(v))) for v in (have, want))
        if not {"==": a == b, ">=": a >= b, "<=": a <= b, "<": a < b, ">": a > b}[found[1]]:
            return False
    return True


def _numbers(version: str) -> tuple[int, ...]:
    found = re.match(r"v?(\d+(?:\.\d+)*)", version.strip())
    if found is None:
        raise ValueError(f"{version!r} does not begin with a version")
    return tuple(int(n) for n in found[1].split("."))
