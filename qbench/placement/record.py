"""What a target does with an operator: the records and the protocol; the rules are in `qbench.targets.rules`.

    Operator    one node as a rule sees it: shapes, attributes, constants, nothing of onnx
    Verdict     where it runs, why, and who says so
    Rules       a set of rules, named by a target file
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from qbench.network import Precision
from qbench.target import Target


class Placement(StrEnum):
    """Where the toolchain runs an operator. UNKNOWN where no public table says: never taken for support."""

    NPU = "NPU"
    PARTLY = "CPU+NPU"               # the toolkit splits it
    CPU = "CPU"
    REFUSED = "refused"              # conversion stops
    UNKNOWN = "unknown"

    @property
    def severity(self) -> int:
        """0 for the NPU, more for what is worse; unknown stands between the NPU and what is known to be worse."""
        return (Placement.NPU, Placement.UNKNOWN, Placement.PARTLY, Placement.CPU, Placement.REFUSED).index(self)


@dataclass(frozen=True, slots=True)
class Operand:
    """A tensor that a node reads or writes.

    shape   None: not known; an axis that is not known is None
    value   the data of a constant of few elements (indices, sizes, exponents), else None
    """

    name: str
    shape: tuple[int | None, ...] | None
    dtype: str
    constant: bool = False
    value: NDArray[Any] | None = None


@dataclass(frozen=True, slots=True)
class Operator:
    """One node.

    inputs   None where an optional input is left out
    opset    of the model as the user gave it
    ends     True when a result of it leaves the network
    chain    "gelu", "normalisation" (by mean and variance), "statistic" (by another one), "softmax" or "focus" (space to depth by Slices) for a
             member of such a function that is spelled in primitive operators, else ""
    """

    name: str
    op: str
    inputs: tuple[Operand | None, ...]
    outputs: tuple[Operand, ...]
    attributes: Mapping[str, Any] = field(default_factory=dict)
    domain: str = ""
    opset: int = 17
    chain: str = ""
    ends: bool = False

    def ints(self, name: str, default: Sequence[int] = ()) -> tuple[int, ...]:
        return tuple(int(i) for i in self.attributes.get(name, default))

    def whole(self, name: str, default: int = 0) -> int:
        return int(self.attributes.get(name, default))

    def text(self, name: str, default: str = "") -> str:
        return str(self.attributes.get(name, default))

    def operand(self, index: int) -> Operand | None:
        return self.inputs[index] if index < len(self.inputs) else None

    def shape(self, index: int) -> tuple[int | None, ...]:
        """Of input `index`; () where it is not known."""
        found = self.operand(index)
        return found.shape or () if found is not None else ()

    def numbers(self, index: int) -> tuple[float, ...] | None:
        """The values of a constant input; None where it is computed, left out or large."""
        found = self.operand(index)
        return None if found is None or found.value is None else tuple(float(x) for x in np.asarray(found.value).reshape(-1))


@dataclass(frozen=True, slots=True)
class Verdict:
    """placement   of the operator as it stands
    why         the limit that it breaks, or what is known of it; "" for an operator that simply runs
    limit       text of the rule behind `why`, "" where a list says it
    source      who says so
    """

    placement: Placement
    why: str = ""
    limit: str = ""
    source: str = ""


class Rules(Protocol):
    """What a toolchain does with operators."""

    @property
    def highest_opset(self) -> int:
        """Of the standard domain, that the toolchain was seen to take; 0: not known."""
        ...

    def judge(self, op: Operator, target: Target, precision: Precision, toolkit: str) -> Verdict: ...

    def limits(self, op: str, toolkit: str) -> tuple[str, ...]:
        """Texts of the rules about an ONNX operator type, for the table of what is supported."""
        ...

    def remarks(self, operators: Mapping[str, Operator], toolkit: str) -> tuple[str, ...]:
        """What the toolchain is known to do with such a network as a whole."""
        ...
