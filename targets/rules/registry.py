"""Rules about operators: one function a rule, whose docstring is the text that users see.

    @rule("Conv", puts=Placement.CPU, source="...")
    def kernel_fits(op, case):
        \"""Each kernel side lies between 1 and 31.\"""
        return the reason why `op` breaks the rule, or None

A rule set is a `Book`: its rules, and what a list says of an operator that breaks none.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from qbench.network import Precision
from qbench.placement.record import Operator, Placement, Verdict
from qbench.target import Target


@dataclass(frozen=True, slots=True)
class Case:
    """For which chip, precision and toolkit version a rule is asked."""

    target: Target
    precision: Precision
    toolkit: str


Check = Callable[[Operator, Case], str | None]
Listed = Callable[[Operator, Case], Verdict]
Remark = Callable[[Mapping[str, Operator], str], str | None]
"""(operators, toolkit) -> what to know, or None."""


@dataclass(frozen=True, slots=True)
class Rule:
    """ops       ONNX operators that it is about
    puts      where an operator goes that breaks it
    toolkits  versions it holds for; empty: all
    """

    ops: tuple[str, ...]
    puts: Placement
    source: str
    check: Check
    toolkits: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        return " ".join((self.check.__doc__ or "").split())

    def holds_for(self, op: str, toolkit: str) -> bool:
        return op in self.ops and (not self.toolkits or toolkit in self.toolkits)


@dataclass(frozen=True)
class Book:
    """The rules of one toolchain; the protocol is `qbench.placement.record.Rules`.

    listed          answers for an operator that breaks none of them
    fuses           function that the toolchain takes for one operator where it is spelled in several -> what is said of its members, which then
                    break no rule; see `Operator.chain`
    highest_opset   that the toolchain was seen to take; 0: not known
    whole           what it is known to do with a network of some kind, though it takes each operator
    """

    listed: Listed
    rules: list[Rule] = field(default_factory=list)
    highest_opset: int = 0
    fuses: Mapping[str, Verdict] = field(default_factory=dict)
    whole: list[Remark] = field(default_factory=list)

    def rule(self, *ops: str, puts: Placement, source: str, toolkits: tuple[str, ...] = ()) -> Callable[[Check], Check]:
        """Adds the decorated function."""
        def add(check: Check) -> Check:
            self.rules.append(Rule(ops, puts, source, check, toolkits))
            return check
        return add

    def judge(self, op: Operator, target: Target, precision: Precision, toolkit: str) -> Verdict:
        """The worst of what the list says and the rules that `op` breaks."""
        if op.chain in self.fuses:
            return self.fuses[op.chain]
        case = Case(target, precision, toolkit)
        verdicts = [self.listed(op, case)]
        if verdicts[0].placement is Placement.UNKNOWN:
            return verdicts[0]
        for r in self.rules:
            if r.holds_for(op.op, toolkit) and (why := r.check(op, case)) is not None:
                verdicts.append(Verdict(r.puts, why, r.text, r.source))
        return max(verdicts, key=lambda v: v.placement.severity)

    def remarks(self, operators: Mapping[str, Operator], toolkit: str) -> tuple[str, ...]:
        return tuple(text for remark in self.whole if (text := remark(operators, toolkit)) is not None)

    def limits(self, op: str, toolkit: str) -> tuple[str, ...]:
        return tuple(r.text for r in self.rules if r.holds_for(op, toolkit))
