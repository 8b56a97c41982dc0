"""The network that a plan is about: what its corrections make of the user's model before any integer is written."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

import numpy as np
import onnx_ir as ir

from qbench.corrections.anchors import set_data
from qbench.corrections.equalize import SUFFIX, Equalized, equalized
from qbench.corrections.steps import Equalization, of_plan
from qbench.errors import PlanError
from qbench.graph import PreparedModel, specialised
from qbench.graph.kernels import build_network
from qbench.packed import Packed
from qbench.plan import Plan

T = TypeVar("T")
CONSTANT = "constant:"
"""Key in `Plan.tensors` of new values of an initializer."""
VALUE = "_value"
MASKED = "+mask"
"""What the step "mask" adds to the key of a model."""


def rewritten(prepared: PreparedModel, plan: Plan) -> PreparedModel:
    """`prepared` as the corrections of `plan` change it; itself when they change nothing, or it is changed already.

    The same object comes back for the same model and plan, as long as the model lives.
    Raises PlanError for a correction that this version does not know, or a constant that the model does not have.
    """
    steps = of_plan(plan.corrections)
    if isinstance(step := steps.get("cle"), Equalization):
        prepared = equalized_once(prepared, step).model
    constants = {k.removeprefix(CONSTANT): v for k, v in plan.tensors.items() if k.startswith(CONSTANT)}
    return with_constants(prepared, constants, MASKED if "mask" in steps else "") if constants else prepared


def equalized_once(prepared: PreparedModel, step: Equalization) -> Equalized:
    """`equalized`, done once for a model; a model that is equalized already is returned as it is."""
    if SUFFIX in prepared.network.model_key:
        return Equalized(prepared, (), {}, 1.0)
    return _once(prepared, ("cle", step), lambda: equalized(prepared, step))


def filled(prepared: PreparedModel) -> PreparedModel:
    """The model with each float ConstantOfShape as an Expand of an initializer, "OUTPUT_value", which a plan can give a new value."""
    nodes = [n for n in prepared.model.graph if _fills(n)]
    return _once(prepared, "filled", lambda: _filled(prepared)) if nodes else prepared


def _fills(node: ir.Node) -> bool:
    """A ConstantOfShape that makes floats other than 0."""
    value = node.attributes.get("value")
    return node.op_type == "ConstantOfShape" and value is not None and value.as_tensor().dtype == ir.DataType.FLOAT


def _filled(prepared: PreparedModel) -> PreparedModel:
    model = prepared.model.clone()
    for node in [n for n in model.graph if _fills(n)]:
        out, data = node.outputs[0], node.attributes["value"].as_tensor().numpy().astype(np.float32)
        held = ir.Value(name=f"{out.name}{VALUE}", const_value=ir.tensor(data, name=f"{out.name}{VALUE}"), type=ir.TensorType(ir.DataType.FLOAT),
                        shape=ir.Shape(data.shape))
        model.graph.register_initializer(held)
        name, shape, (dtype, sizes) = node.name, node.inputs[0], (out.type, out.shape)
        made = ir.Value(name=str(out.name), type=dtype, shape=sizes)
        out.name = f"{out.name}_before"
        model.graph.insert_after(node, expand := ir.node("Expand", [held, shape], outputs=[made]))
        ir.convenience.replace_all_uses_with(out, made, replace_graph_outputs=True)
        model.graph.remove(node, safe=True)
        expand.name = name
    return _rebuilt(prepared, model)


def with_constants(prepared: PreparedModel, constants: dict[str, Packed], suffix: str = "") -> PreparedModel:
    """The model with new values of some initializers, those of `filled` among them. The network is built again: what was infinite may
    be quantizable now.

    suffix   for its key
    """
    if any(name not in prepared.model.graph.initializers for name in constants):
        prepared = filled(prepared)
    return _once(prepared, (suffix, tuple(sorted((k, v.data) for k, v in constants.items()))), lambda: _with(prepared, constants, suffix))


def _with(prepared: PreparedModel, constants: dict[str, Packed], suffix: str) -> PreparedModel:
    key = prepared.network.model_key
    if suffix and key.endswith(suffix):
        return prepared
    model = prepared.model.clone()
    for name, packed in constants.items():
        value = model.graph.initializers.get(name)
        if value is None or value.const_value is None:
            raise PlanError(f"the plan gives new values to initializer {name!r}, which the model does not have: use the model of the plan")
        if (shape := tuple(value.const_value.numpy().shape)) != packed.shape:
            raise PlanError(f"the plan gives initializer {name!r} shape {list(packed.shape)}, in the model it is {list(shape)}: "
                            "use the model of the plan")
        set_data(value, packed.array)
    return _rebuilt(prepared, model, suffix)


def _rebuilt(prepared: PreparedModel, model: ir.Model, suffix: str = "") -> PreparedModel:
    """`prepared` with a changed model, its network built again."""
    network = prepared.network
    static = specialised(replace(prepared, model=model), {i: network.tensors[i].shape for i in network.inputs})
    return replace(prepared, model=model, network=build_network(static, network.name, network.model_key + suffix, network.renamed))


_made: dict[int, dict[object, object]] = {}


def _once(prepared: PreparedModel, key: object, make: Callable[[], T]) -> T:
    """What `make` makes, kept for as long as `prepared` lives."""
    if id(prepared) not in _made:
        _made[id(prepared)] = {}
        weakref.finalize(prepared, _made.pop, id(prepared), None)
    kept = _made[id(prepared)]
    if key not in kept:
        kept[key] = make()
    found: T = kept[key]  # type: ignore[assignment]
    return found
