"""Attributes of a node, with the value that ONNX says holds where one is left out."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir


def ints(node: ir.Node, name: str, default: Sequence[int]) -> tuple[int, ...]:
    found = node.attributes.get(name)
    return tuple(int(i) for i in (default if found is None else found.as_ints()))


def whole(node: ir.Node, name: str, default: int) -> int:
    found = node.attributes.get(name)
    return default if found is None else int(found.as_int())


def real(node: ir.Node, name: str, default: float) -> float:
    found = node.attributes.get(name)
    return default if found is None else float(found.as_float())


def text(node: ir.Node, name: str, default: str) -> str:
    found = node.attributes.get(name)
    return default if found is None else str(found.as_string())
