"""Run a watched model in stages, so that what one stage puts out is counted while it still lies in the caches.

All activations of a network at once are tens of megabytes: by the time the last is written the first has left every cache,
and both the run and the count go at the speed of the memory. A stage holds a few megabytes and its buffers serve again.
Cuts lie where a single watched tensor is all that the rest of the network needs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import prod

import onnx_ir as ir
import onnxruntime as ort

STAGE_BYTES = 4 << 20
"""What a stage puts out, about: a sample's share of the caches."""


@dataclass(frozen=True)
class Stage:
    """inputs    tensors it is fed: model inputs, and what earlier stages put out
    outputs      watched tensors, in order
    carried      the one of them that the next stage is fed; "" for the last
    """

    session: ort.InferenceSession
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    carried: str = ""


def stages(model: ir.Model, outputs: Sequence[str], build: Callable[[ir.Model], ort.InferenceSession]) -> tuple[Stage, ...]:
    """The stages that give `outputs`, their sessions made by `build`; a single one where the model is small or has no place to cut."""
    cuts = _cuts(model, set(outputs))
    if not cuts:
        whole = build(model)
        return (Stage(whole, tuple(i.name for i in whole.get_inputs()), tuple(outputs)),)
    nodes, found, start = list(model.graph), [], 0
    inputs = tuple(str(v.name) for v in model.graph.inputs if v.name not in model.graph.initializers)
    for stop, carried in [*cuts, (len(nodes), "")]:
        made = {str(v.name) for n in nodes[start:stop] for v in n.outputs}
        mine = tuple(o for o in outputs if o in made)
        if mine:
            part = ir.convenience.extract(model.graph, list(inputs), list(mine))      # bounded: one tensor crosses a cut
            found.append(Stage(build(ir.Model(part, ir_version=model.ir_version)), inputs, mine, carried))
        inputs, start = (carried,), stop
    return (*found[:-1], replace(found[-1], carried=""))


def _cuts(model: ir.Model, watched: set[str]) -> list[tuple[int, str]]:
    """(number of nodes before it, the one tensor that crosses it), ascending."""
    nodes = list(model.graph)
    if any(a.type in (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS) for n in nodes for a in n.attributes.values()):
        return []
    last = {id(v): i for i, n in enumerate(nodes) for v in n.inputs if v is not None}
    live: dict[int, ir.Value] = {id(v): v for v in model.graph.inputs if id(v) in last and not v.is_initializer()}
    cuts, put_out = [], 0
    for i, node in enumerate(nodes[:-1]):
        live |= {id(v): v for v in node.outputs}
        put_out += sum(4 * _elements(v) for v in node.outputs if v.name in watched)
        live = {k: v for k, v in live.items() if last.get(k, -1) > i}
        crossing = next(iter(live.values())) if len(live) == 1 else None
        if put_out >= STAGE_BYTES and crossing is not None and crossing.name in watched:
            cuts.append((i + 1, str(crossing.name)))
            put_out = 0
    return cuts


def _elements(value: ir.Value) -> int:
    """Of one sample; 0 where the shape is not known."""
    return prod(d if isinstance(d, int) else 1 for d in value.shape) if value.shape is not None else 0
