"""The operators of a network per type: where a target runs them, and why."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from qbench.network import Network, Precision
from qbench.placement.judging import Judged, kernels_of
from qbench.placement.record import Operator, Placement, Rules, Verdict


@dataclass(frozen=True, slots=True)
class Elsewhere:
    """A node that is not simply on the NPU."""

    node: str
    placement: str
    why: str


@dataclass(frozen=True, slots=True)
class OperatorLine:
    """One operator type.

    placements   how many nodes go where, each at the precision that it runs at
    at           precision -> the worst placement of its nodes; why_at   and the reason, where there is one
    why          reasons, one each, with the rule that is broken
    limits       texts of the rules about the type
    source       who says so
    """

    op: str
    count: int
    placements: Mapping[str, int]
    at: Mapping[str, str]
    why: tuple[str, ...]
    limits: tuple[str, ...]
    source: str
    nodes: tuple[Elsewhere, ...]
    why_at: Mapping[str, str] = field(default_factory=dict)

    @property
    def worst(self) -> Placement:
        return max((Placement(p) for p in self.placements), key=lambda p: p.severity)


@dataclass(frozen=True)
class Placed:
    """lines     operator types, worst first
    kernels   kernel -> the worst placement of its nodes, at the precision that it runs at
    remarks   about the model as a whole
    """

    lines: tuple[OperatorLine, ...]
    kernels: Mapping[str, Placement]
    remarks: tuple[str, ...]


def place_operators(operators: Mapping[str, Operator], network: Network, rules: Rules, judged: Judged, toolkit: str, used: Mapping[str, Precision]) -> Placed:
    """The verdicts per operator type. used   node -> precision that it runs at: what no integer can hold stays in float"""
    verdicts = {n: judged[used[n]][n] for n in operators}
    types: dict[str, list[Operator]] = {}
    for o in operators.values():
        types.setdefault(o.op, []).append(o)
    lines = [_line(op, members, judged, verdicts, rules, toolkit) for op, members in types.items()]
    return Placed(tuple(sorted(lines, key=lambda x: (-x.worst.severity, -x.count, x.op))), kernels_of(network, verdicts),
                  tuple(_remarks(operators, rules, toolkit)))


def _line(op: str, members: Sequence[Operator], judged: Judged, verdicts: Mapping[str, Verdict], rules: Rules,
          toolkit: str) -> OperatorLine:
    found = [(o.name, verdicts[o.name]) for o in members]
    counts: dict[str, int] = {}
    for _, v in found:
        counts[str(v.placement)] = counts.get(str(v.placement), 0) + 1
    worst = {str(p): max((each[o.name] for o in members), key=lambda v: v.placement.severity) for p, each in judged.items()}
    at = {p: str(v.placement) for p, v in worst.items()}
    alike = len({v.why for _, v in found}) == 1
    told = {v.why + (f" ({v.limit})" if v.limit else ""): None for _, v in found if v.why and (alike or v.placement is not Placement.NPU)}
    sources = {v.source: None for _, v in found if v.source}
    elsewhere = tuple(Elsewhere(n, str(v.placement), v.why) for n, v in found if v.placement is not Placement.NPU)
    return OperatorLine(op, len(members), counts, at, tuple(told), rules.limits(op, toolkit), "; ".join(sources), elsewhere, {p: v.why for p, v in worst.items() if v.why})


def _remarks(operators: Mapping[str, Operator], rules: Rules, toolkit: str) -> list[str]:
    found = list(rules.remarks(operators, toolkit))
    opset = max((o.opset for o in operators.values()), default=0)
    if rules.highest_opset and opset > rules.highest_opset:
        found.insert(0, f"the model has opset {opset}; toolkit {toolkit} refused models above opset {rules.highest_opset}: export it with {rules.highest_opset} or lower")
    return found
