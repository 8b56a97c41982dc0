"""Axes that are not numbers yet: which tensors have them, where each comes from, and what would make it one."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import onnx_ir as ir

from qbench.graph.values import STANDARD, bodies, constant

DATA = {"NonZero": "as many as there are values other than 0", "Unique": "as many as there are distinct values", "NonMaxSuppression": "as many boxes as survive",
        "Compress": "as many as the condition holds for", "StringSplit": "as many parts as there are", "SequenceAt": "that of a member of a sequence",
        "ConcatFromSequence": "the sum over a sequence", "OptionalGetElement": "that of an optional", "SplitToSequence": "as many parts as asked for"}
"""Operator -> how long its result is: only the data tell."""
CONTROL = {"If": "a branch", "Loop": "the number of turns", "Scan": "the number of turns", "SequenceMap": "the length of a sequence"}
SIZED_BY = {"Reshape": (1,), "Resize": (2, 3), "Upsample": (1,), "Expand": (1,), "Slice": (1, 2, 3, 4), "Tile": (1,), "Pad": (1,), "ConstantOfShape": (0,),
            "Range": (0, 1, 2), "OneHot": (1,), "TopK": (1,), "CenterCropPad": (1,), "AffineGrid": (1,), "Split": (1,)}
"""Operator -> positions of the inputs that say how large its result is."""
MEASURES = {"Shape", "Size"}


@dataclass(frozen=True, slots=True)
class Origin:
    """Where an open axis comes from.

    kind   "input": an axis of a graph input; "computed": sizes computed from shapes; "value": sizes that are values of an input;
           "data", "control flow": only a run tells; "not inferred": onnx has no rule for the operator
    at     the input or the node
    what   in a sentence
    """

    kind: str
    at: str
    op: str
    what: str


@dataclass(frozen=True, slots=True)
class OpenAxis:
    """axis    None: not even the number of axes is known
    symbol   as the file or shape inference calls it, "?" for none
    """

    tensor: str
    axis: int | None
    symbol: str
    origins: tuple[Origin, ...]


def open_axes(graph: ir.Graph) -> tuple[OpenAxis, ...]:
    """Every axis of every tensor of `graph` and its bodies that is not a number, in the order of the graph. Shapes must be inferred."""
    tracer = _Tracer(graph)
    found = []
    for value in (*graph.inputs, *(v for n in graph.all_nodes() for v in n.outputs)):
        if not value.name or not isinstance(value.type, ir.TensorType | None):
            continue
        shape: Any = value.shape
        if shape is None:
            found.append(OpenAxis(str(value.name), None, "?", tracer.origins(value, None)))
            continue
        found += [OpenAxis(str(value.name), axis, symbol_of(d), tracer.origins(value, axis)) for axis, d in enumerate(shape) if not isinstance(d, int)]
    return tuple(found)


def symbol_of(dimension: Any) -> str:
    return str(getattr(dimension, "value", None) or "?")


class _Tracer:
    """Walks upwards from an axis to what made it open. Each (tensor, axis) is answered once."""

    def __init__(self, graph: ir.Graph) -> None:
        self.graph = graph
        self.inputs = {id(v) for v in graph.inputs}
        self.symbols: dict[str, tuple[str, int]] = {}
        for value in graph.inputs:
            for axis, d in enumerate(value.shape or ()):
                if not isinstance(d, int) and symbol_of(d) != "?":
                    self.symbols.setdefault(symbol_of(d), (str(value.name), axis))
        self.known: dict[tuple[int, int | None], tuple[Origin, ...]] = {}
        self.owner = {id(v): n for n in graph.all_nodes() for b in bodies(n) for v in b.inputs}

    def origins(self, value: ir.Value, axis: int | None) -> tuple[Origin, ...]:
        key = id(value), axis
        if key not in self.known:
            self.known[key] = ()                                  # a loop in the walk adds nothing
            self.known[key] = tuple(dict.fromkeys(self._trace(value, axis)))
        return self.known[key]

    def _trace(self, value: ir.Value, axis: int | None) -> Iterator[Origin]:
        if id(value) in self.inputs:
            yield self._input(value, axis)
            return
        symbol = "?" if axis is None else symbol_of((value.shape or ())[axis])
        named = [s for s in re.findall(r"[A-Za-z_]\w*", symbol) if s in self.symbols]
        node = value.producer()
        if named:
            for name in named:
                tensor, number = self.symbols[name]
                yield Origin("input", tensor, "", f"axis {number} ({name}) of input {tensor!r}")
            return
        if node is None:
            made = self.owner.get(id(value))
            yield Origin("control flow", str(made.name) if made else str(value.name), made.op_type if made else "",
                         f"enters the body of {words(made)}" if made else "nothing makes it")
            return
        yield from self._made(node, value, axis, symbol)

    def _input(self, value: ir.Value, axis: int | None) -> Origin:
        if axis is None:
            return Origin("input", str(value.name), "", f"input {value.name!r} declares no shape")
        return Origin("input", str(value.name), "", f"axis {axis} ({symbol_of((value.shape or ())[axis])}) of input {value.name!r}")

    def _made(self, node: ir.Node, value: ir.Value, axis: int | None, symbol: str) -> Iterator[Origin]:
        op, name = node.op_type, str(node.name)
        if node.domain not in STANDARD:
            yield Origin("not inferred", name, op, f"{words(node)} of domain {node.domain!r}, for which onnx knows no shapes{_adaptive(node)}")
            return
        if op in DATA:
            yield Origin("data", name, op, f"{words(node)}: {DATA[op]}")
            return
        if op in CONTROL:
            yield Origin("control flow", name, op, f"{words(node)}: {CONTROL[op]} decides")
            return
        passed = [(v, a) for v in node.inputs if v is not None and not constant(v) for a, d in enumerate(v.shape or ())
                  if symbol != "?" and not isinstance(d, int) and symbol_of(d) == symbol]
        if passed:
            for v, a in passed:
                yield from self.origins(v, a)
            return
        sized = [node.inputs[i] for i in SIZED_BY.get(op, ()) if i < len(node.inputs)]
        computed = [v for v in sized if v is not None and not constant(v)]
        if computed:
            for v in computed:
                yield from self._sizes(node, v)
            return
        above = [(v, i) for v in node.inputs if v is not None and not constant(v) for i in self._open(v)]
        above = [(v, i) for v, i in above if i is not None and i == _source_axis(node, axis)] or above
        if not above:
            yield Origin("not inferred", name, op, f"{words(node)}: onnx cannot infer its shape")
        for v, i in above:
            yield from self.origins(v, i)

    @staticmethod
    def _open(value: ir.Value) -> list[int | None]:
        if value.shape is None:
            return [None]
        return [a for a, d in enumerate(value.shape) if not isinstance(d, int)]

    def _sizes(self, node: ir.Node, operand: ir.Value) -> Iterator[Origin]:
        """Where the sizes that `node` takes come from."""
        stack, seen, measured = [operand], set(), []
        while stack:
            value = stack.pop()
            if id(value) in seen or constant(value):
                continue
            seen.add(id(value))
            maker = value.producer()
            if maker is None:
                yield Origin("value", str(value.name), node.op_type, f"{words(node)} takes its sizes from the values of {value.name!r}")
            elif maker.op_type in MEASURES:
                measured.append(str(maker.inputs[0].name) if maker.inputs[0] is not None else "?")
            elif maker.op_type in DATA:
                yield Origin("data", str(maker.name), maker.op_type, f"{words(node)} takes its sizes from {words(maker)}: {DATA[maker.op_type]}")
            elif maker.op_type in CONTROL:
                yield Origin("control flow", str(maker.name), maker.op_type, f"{words(node)} takes its sizes from {words(maker)}")
            else:
                stack += [v for v in maker.inputs if v is not None]
        if measured:
            of = " and ".join(repr(m) for m in sorted(set(measured))[:2])
            pooled = " (adaptive pooling spelled out?)" if node.op_type == "Slice" and _pools(node) else ""
            yield Origin("computed", str(node.name), node.op_type, f"{words(node)} computes its sizes from the shape of {of}{pooled}")


def _source_axis(node: ir.Node, axis: int | None) -> int | None:
    """The axis of the inputs that axis `axis` of the output most likely follows: the same one, but for a Transpose."""
    perm = node.attributes.get("perm")
    return perm.as_ints()[axis] if node.op_type == "Transpose" and perm is not None and axis is not None else axis


def words(node: ir.Node | None) -> str:
    """"Reshape 'r1'"; a node without a name is known by what it writes."""
    if node is None:
        return "a node"
    return f"{node.op_type} {node.name or next((v.name for v in node.outputs if v.name), '')!r}"


def _pools(node: ir.Node) -> bool:
    return any(n.op_type in ("ReduceMean", "ReduceMax", "AveragePool", "MaxPool", "GlobalAveragePool") for n, _ in node.outputs[0].uses())


def _adaptive(node: ir.Node) -> str:
    """ATen fall-backs of the exporter carry the name of the torch function."""
    told = node.attributes.get("operator")
    name = told.as_string() if told is not None else node.op_type
    return f" ({name}: adaptive pooling; export it with a fixed window)" if "adaptive" in name else ""


def cure(origin: Origin, fixes: Mapping[str, str]) -> str:
    """What makes the axis a number. fixes   input -> its shape as the option wants it, e.g. "x=1,3,224,224\""""
    if origin.kind == "input":
        return f"--input-shape {fixes[origin.at]}" if origin.at in fixes else "give the input a shape"
    if origin.kind == "computed":
        return "fix the inputs: the sizes fold to constants then"
    if origin.kind == "value":
        return f"--input-value {origin.at}=... where it is an input; else make the sizes constants"
    if origin.kind == "data":
        return "cut the model before it and run the rest on the host, or pad to a fixed length"
    if origin.kind == "control flow":
        return "export with the branch or the number of turns fixed (unrolled), or run it on the host"
    return "replace the operator by standard ones, or add the shape to the model's value_info"
