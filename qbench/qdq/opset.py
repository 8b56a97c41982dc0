"""The opset that a plan's weights need: blocks of a DequantizeLinear exist since opset 21."""

from __future__ import annotations

import logging
from functools import lru_cache

import onnx_ir as ir

from qbench.errors import PlanError
from qbench.plan import Granularity, Plan
from qbench.qdq.builder import STANDARD_16_BIT_OPSET

BLOCK_OPSET = STANDARD_16_BIT_OPSET


def model_for(model: ir.Model, plan: Plan) -> ir.Model:
    """A copy of `model` to write `plan` into, at opset 21 or later where the plan stores weights in blocks.

    Raises PlanError when it asks for blocks and no scheme has any, or when the model cannot be raised.
    """
    if plan.granularity is not Granularity.PER_GROUP or not plan.schemes:
        return model.clone()
    if not any(s.weight_block for s in plan.schemes.values()):
        raise PlanError(f"the plan's granularity is {plan.granularity}, but none of its schemes ({', '.join(plan.schemes)}) has a weight_block: "
                        f"{plan.target or 'the target'} has no per-group weights; use {Granularity.PER_CHANNEL}")
    return raised(model).clone() if model.opset_imports.get("", 0) < BLOCK_OPSET else model.clone()


@lru_cache(maxsize=2)
def raised(model: ir.Model) -> ir.Model:
    """`model` at opset 21, names kept; converted once, as a search writes hundreds of plans of one model. Treat as read-only."""
    from onnx_ir.passes.common import LiftConstantsToInitializersPass
    from onnxscript import version_converter

    before = model.opset_imports.get("", 0)
    copy = model.clone()
    logger = logging.getLogger("onnxscript")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        version_converter.convert_version(copy, BLOCK_OPSET, fallback=True)
    except Exception as error:                        # onnx's converter and onnxscript's raise many kinds
        raise _refused(before, str(error).splitlines()[0][:200]) from error
    finally:
        logger.setLevel(level)
    LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0)(copy)
    after = copy.opset_imports.get("", 0)
    if after < BLOCK_OPSET:
        raise _refused(before, f"the converter stops at {after}")
    kept = {(str(n.name), n.op_type, tuple(str(v.name) for v in n.outputs)) for n in copy.graph}
    for node in model.graph:
        if (str(node.name), node.op_type, tuple(str(v.name) for v in node.outputs)) not in kept:
            raise _refused(before, f"node {node.name!r} ({node.op_type}) does not survive the conversion")
    return copy


def _refused(opset: int, why: str) -> PlanError:
    return PlanError(f"per-group weights need opset {BLOCK_OPSET}, and the model's opset {opset} cannot be raised: {why}. "
                     f"Use {Granularity.PER_CHANNEL}, or export the model with opset {BLOCK_OPSET}")
