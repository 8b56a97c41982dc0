"""Do channels matter that a plan turns into zeros? The float model is run without them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import onnx_ir as ir

from qbench.analysis.checks import Outputs
from qbench.analysis.records import Analysis, Check, KernelError, TensorError
from qbench.metrics.fidelity import MOST_DB


def collapsed(analysis: Analysis) -> list[tuple[KernelError, TensorError]]:
    """Tensors in which channels are zeros because they are smaller than a step: the first of each scale group, `dead_alone` cut down to these
    channels; those first that reach closest to a step."""
    seen: set[str] = set()
    found = []
    steps = {s.group: s.step for s in analysis.stored}
    for kernel in analysis.integer:
        for error in kernel.tensors:
            step = steps.get(error.group, 0.0)
            small = tuple(c for c in error.dead_alone if error.magnitudes[c] <= step)
            if small and error.group not in seen:
                seen.add(error.group)
                reach = max(error.magnitudes[c] for c in small)
                found.append((reach / step * len(small) / len(error.magnitudes), kernel, replace(error, dead_alone=small)))
    return [(k, e) for _, k, e in sorted(found, key=lambda f: -f[0])]


def check_without(outputs: Outputs, error: TensorError) -> list[Check]:
    """What the float model's outputs keep when the dead channels of a tensor are zero, as `Check` of kind "without"; [] where it cannot be run."""
    model = without_channels(outputs.walk.prepared.model, error.tensor, error.axis, error.dead_alone)
    if model is None:
        return []
    parts = tuple((name, MOST_DB, db) for name, db in outputs.of(model, simulate=False).items())
    return [Check("without", error.tensor, f"{len(error.dead_alone)} channels set to zero in float", parts)]


def without_channels(model: ir.Model, tensor: str, axis: int | None, channels: Sequence[int]) -> ir.Model | None:
    """A copy in which `channels` of `tensor` are multiplied by 0; None when the tensor or the length of its axis is unknown."""
    copy = model.clone()
    value = next((v for n in copy.graph for v in n.outputs if v.name == tensor), None)
    size = value.shape[axis] if value is not None and value.shape is not None and axis is not None and axis < len(value.shape) else None
    if value is None or value.shape is None or axis is None or not isinstance(size, int):
        return None
    mask = np.ones([size if i == axis else 1 for i in range(len(value.shape))], np.float32)
    mask[tuple(list(channels) if i == axis else slice(None) for i in range(mask.ndim))] = 0.0
    names = {str(v.name) for n in copy.graph for v in n.outputs} | set(copy.graph.initializers) | {str(n.name) for n in copy.graph}
    held = ir.Value(name=free(f"{tensor}_mask", names), const_value=ir.tensor(mask), type=ir.TensorType(ir.DataType.FLOAT),
                    shape=ir.Shape(mask.shape))
    copy.graph.register_initializer(held)
    readers, made = list(value.uses()), ir.Value(name=tensor, type=value.type, shape=value.shape)
    value.name = free(f"{tensor}_whole", names)
    maker = value.producer()
    assert maker is not None, "only tensors that a node writes were looked for"
    copy.graph.insert_after(maker, ir.node("Mul", [value, held], outputs=[made], name=free(f"{tensor}_without", names)))
    for node, index in readers:
        node.replace_input_with(index, made)
    for i, output in enumerate(copy.graph.outputs):
        if output is value:
            copy.graph.outputs[i] = made
    return copy


def free(name: str, taken: set[str]) -> str:
    """`name`, longer where it is taken already."""
    while name in taken:
        name += "_"
    taken.add(name)
    return name
