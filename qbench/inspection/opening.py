"""A model as its file spells it, and shapes to go on with where it leaves axes open."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import onnx_ir as ir
import onnx_ir.passes.common as passes

from qbench.errors import ModelError
from qbench.graph import PreparedModel, load_network, specialised
from qbench.graph.inference import infer_shapes
from qbench.graph.load import read
from qbench.graph.mend import mend
from qbench.graph.quantized import refuse_quantized
from qbench.inspection.shapes import symbol_of
from qbench.inspection.sizes import misfit

Shapes = Mapping[str, tuple[int, ...]]
TRIED = ((224, 128), (256, 16), (320, 64), (112, 32), (64, 1))
"""Sizes to assume, one pair after the other until the network goes together: of rows and columns of an image, of any other axis."""
IMAGE_CHANNELS = 4


def spelled(source: Path | str | ir.Model) -> ir.Model:
    """The model as its file has it, functions inlined and shapes inferred, axes still open. Raises ModelError as `load_network` does."""
    model, _, _ = read(source)
    if isinstance(source, ir.Model):
        model = model.clone()
    mend(model)
    refuse_quantized(model)
    passes.InlinePass()(model)
    passes.RemoveInitializersFromInputsPass()(model)
    for value in model.graph.inputs:
        if value.shape is not None:                              # -1 and 0 are how some exporters write an open axis
            value.shape = ir.Shape([d if not isinstance(d, int) or d > 0 else None for d in value.shape])
    infer_shapes(model)
    return model


@dataclass(frozen=True)
class Sized:
    """prepared, static   the prepared model and its graph folded at static shapes; None where no sizes go together
    shapes   of inputs: those given, and those assumed for open axes
    reason   why there is none, "" when there is
    """

    prepared: PreparedModel | None
    static: ir.Model | None
    shapes: Shapes
    reason: str = ""


def with_sizes(source: Path | str | ir.Model, graph: ir.Graph, given: Shapes, values: Mapping[str, str]) -> Sized:
    """The model at static shapes. Open axes that `given` leaves out get sizes that go together; the caller says that they are assumed.

    Raises ModelError for shapes in `given` that contradict the file.
    """
    _check(graph, given)
    reason = ""
    for shapes in _assumed(graph, given, values):
        try:
            prepared = load_network(source, shapes, values)
        except ModelError as error:
            reason = reason or str(error)
            continue
        static = specialised(prepared, {t: prepared.network.tensors[t].shape for t in prepared.network.inputs})
        fault = misfit(static.graph) if set(shapes) - set(given) else ""
        if not fault:
            return Sized(prepared, static, shapes)
        reason = reason or f"with {', '.join(as_option(n, s) for n, s in shapes.items())}, {fault}. Give sizes that go together: --input-shape"
    return Sized(None, None, given, reason)


def _check(graph: ir.Graph, given: Shapes) -> None:
    declared = {str(v.name): v.shape for v in graph.inputs}
    for name, sizes in given.items():
        if name not in declared:
            raise ModelError(f"--input-shape {name}: the model has no such input; its inputs: {', '.join(declared)}")
        shape = declared[name]
        if shape is not None and (len(shape) != len(sizes) or any(isinstance(d, int) and d != g for d, g in zip(shape, sizes, strict=True))):
            raise ModelError(f"input {name!r} is declared as [{', '.join(str(d) for d in shape)}], but --input-shape says {','.join(map(str, sizes))}: "
                             "only open axes can be given a size")


def _assumed(graph: ir.Graph, given: Shapes, values: Mapping[str, str]) -> Iterator[dict[str, tuple[int, ...]]]:
    wanted = [v for v in graph.inputs if v.shape is not None and v.name not in given and v.name not in values
              and any(not isinstance(d, int) for d in v.shape)]
    if not wanted:
        yield dict(given)
        return
    for image, other in TRIED:
        yield {**given, **{str(v.name): _sizes(v, image, other) for v in wanted}}


def _sizes(value: ir.Value, image: int, other: int) -> tuple[int, ...]:
    shape = list(value.shape or ())
    last = shape[-1] if shape else None
    channels_last = len(shape) == 4 and isinstance(last, int) and last <= IMAGE_CHANNELS
    spatial = (1, 2) if channels_last else (2, 3) if len(shape) == 4 else ()
    found = []
    for axis, d in enumerate(shape):
        if isinstance(d, int):
            found.append(d)
        elif axis == 0 or "batch" in symbol_of(d).lower():
            found.append(1)
        else:
            found.append(image if axis in spatial else 3 if len(shape) == 4 else other)
    return tuple(found)


def as_option(name: str, shape: tuple[int, ...]) -> str:
    """"x=1,3,224,224"."""
    return f"{name}={','.join(str(d) for d in shape)}"
