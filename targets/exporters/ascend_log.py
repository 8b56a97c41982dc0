"""What atc said: errors with the operator that they are about, and what helps.

Source: Huawei CANN documents, "Error codes" (atlaserrorcode_15_0308 to 0310 and their neighbours, 2025): code and text of each message.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

SUCCESS = "ATC run success"
FAILED = "ATC run failed"
_CODE = re.compile(r"\b(E[A-Z]?\d{4,5})\b:?\s*(.*)")
_OPERATOR = (re.compile(r"are found for \[(?P<op>[^\],]+)\], optype \[(?P<type>[^\]]+)\]"),
             re.compile(r"Optype \[(?P<type>[^\]]+)\] of Ops kernel \[[^\]]+\] is unsupported"),
             re.compile(r"for Op \[(?P<op>[^\],]+), optype \[(?P<type>[^\]]+)\]\]"),
             re.compile(r"\bop(?:\s*name)?[ :\[]+(?P<op>[\w./:-]+)\]?,?\s*(?:op)?type[ :\[]+(?P<type>\w+)", re.IGNORECASE))
CURES: Mapping[str, str] = {
    "E10001": "a parameter has a value that atc does not take: compare with the atc line in convert.sh, which was checked",
    "E10002": "a shape cannot be read: write --input_shape as NAME:1,3,224,224;NAME2:...",
    "E10010": "--log takes debug, info, warning, error or null",
    "E10011": "shapes are positive and fixed: give every dimension of --input_shape",
    "E10012": "shapes are positive and fixed: give every dimension of --input_shape",
    "E10016": "--input_shape or a file of data types names a node that the model lacks: atc may have renamed or fused it",
    "E10031": "--input_shape names no input of the model: use the names in manifest.json",
    "E10041": "framework and model do not go together: --framework=5 is ONNX",
    "EZ0501": "the operator has no definition in this CANN: `qbench advise` lists rewrites, or keep it on the host",
    "EZ3002": "the operator exists, not in this form: change its attributes or type; `qbench rewrite` lists what can be written otherwise",
    "EZ3003": "no kernel of this chip takes the operator: check that the OPP package is installed; `qbench rewrite` lists what can be written otherwise",
    "EZ9010": "atc's ONNX parser does not know the operator: lower the opset, or rewrite it",
    "E13003": "no kernel of this chip takes the operator: check that the OPP package is installed; `qbench rewrite` lists what can be written otherwise",
    "E19999": "an error inside atc: look for the first error above it, then report it to Huawei",
    "EZ9999": "an error inside atc: look for the first error above it, then report it to Huawei",
}
UNKNOWN = "see this code in the CANN document \"Error codes\""


@dataclass(frozen=True, slots=True)
class AtcError:
    """operator, type   "" where the message names none; layer   the kernel of the network that it belongs to, "" unknown"""

    code: str
    message: str
    operator: str
    type: str
    cure: str
    layer: str = ""

    def __str__(self) -> str:
        about = f" at {self.operator} ({self.type})" if self.operator else f" ({self.type})" if self.type else ""
        where = f", layer {self.layer}" if self.layer and self.layer != self.operator else ""
        return f"{self.code}{about}{where}: {self.message}. {self.cure}"


@dataclass(frozen=True)
class AtcLog:
    """succeeded   None: the log ends before atc says so"""

    succeeded: bool | None
    errors: tuple[AtcError, ...]


def parse(text: str, kernel_of: Mapping[str, str] | None = None) -> AtcLog:
    """kernel_of   node -> kernel of the network, to say which layer an operator belongs to"""
    succeeded = True if SUCCESS in text else False if FAILED in text else None
    return AtcLog(succeeded, tuple(dict.fromkeys(_errors(text, kernel_of or {}))))


def _errors(text: str, kernel_of: Mapping[str, str]) -> Iterator[AtcError]:
    for line in text.splitlines():
        found = _CODE.search(line)
        if found is None or not found[2].strip():
            continue
        named = next((m.groupdict() for p in _OPERATOR if (m := p.search(found[2])) is not None), {})
        operator = named.get("op", "")
        yield AtcError(found[1], found[2].strip().rstrip("."), operator, named.get("type", ""), CURES.get(found[1], UNKNOWN), kernel_of.get(operator, ""))
