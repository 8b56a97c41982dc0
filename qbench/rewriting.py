"""Rewrites of a graph: the records and the protocol; the rewrites themselves are in `qbench.targets.rewrites`.

    Exactness   how far the new graph's answers may lie from the old one's
    Change      what one application replaced
    Rewrite     a pattern, what stands there instead, and how exact that is
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import onnx_ir as ir


class Exactness(StrEnum):
    """Classes of HARDWARE terms: E and N are applied where they help, A and C need the user's consent."""

    E = "E"
    N = "N"
    A = "A"
    C = "C"

    @property
    def meaning(self) -> str:
        return {"E": "bit-exact", "N": "same mathematics, other rounding", "A": "approximation: needs consent",
                "C": "changes the result: needs consent"}[self.value]

    @property
    def needs_consent(self) -> bool:
        return self in (Exactness.A, Exactness.C)


@dataclass(frozen=True, slots=True)
class Change:
    """One place where a rewrite was applied: names of the nodes that went, and of those that came."""

    rewrite: str
    old: tuple[str, ...]
    new: tuple[str, ...]


Wanted = Callable[[tuple[str, ...]], bool]
"""Whether the nodes of these names may be replaced."""


class Rewrite(Protocol):
    """A pattern and its replacement.

    ops        operators that it takes away
    becomes    what stands there instead, in a few words
    tolerance  largest error allowed: the difference of an output over that output's largest magnitude
    hazards    rule set -> why its toolchain stops at the pattern although it knows each operator
    tidies     True for one that is applied wherever it fits: it only takes work away
    speeds     True for one that may pay although the target runs the pattern: it is tried, and kept where it is priced lower
    """

    @property
    def name(self) -> str: ...
    @property
    def ops(self) -> tuple[str, ...]: ...
    @property
    def becomes(self) -> str: ...
    @property
    def exactness(self) -> Exactness: ...
    @property
    def tolerance(self) -> float: ...
    @property
    def text(self) -> str: ...
    @property
    def source(self) -> str: ...
    @property
    def hazards(self) -> Mapping[str, str]: ...
    @property
    def tidies(self) -> bool: ...
    @property
    def speeds(self) -> bool: ...

    def places(self, model: ir.Model) -> tuple[tuple[str, ...], ...]:
        """Names of the nodes of each place where it fits; nothing is changed."""
        ...

    def apply(self, model: ir.Model, wanted: Wanted = ...) -> tuple[Change, ...]:
        """Rewrites `model` in place wherever it fits and `wanted` says yes."""
        ...
