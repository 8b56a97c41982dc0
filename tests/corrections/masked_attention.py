"""Networks with masked attention, the mask written in the ways that exporters write it (BUG case B13)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
from models import Array, model, node
from onnx import TensorProto, numpy_helper

TOKENS, WIDTH, BATCH = 8, 16, 2
RNG = np.random.default_rng(0)
WEIGHTS = {n: RNG.normal(0, WIDTH**-0.5, (WIDTH, WIDTH)).astype(np.float32) * 1.5 for n in ("wq", "wk")}
CAUSAL = np.tril(np.ones((TOKENS, TOKENS), bool))
HUGE = (-np.inf, -3.4028235e38, -1e30, -65504.0, -1e4)
FORMS = ("add", "where", "added-where", "unsqueezed", "sub", "after-scale", "stacked", "floored", "with-bias", "filled", "compared")
"""Constant masks; the others come from the input."""
FROM_INPUT = ("one-minus", "minus-one", "integers", "selected", "taken", "kept", "twice", "of-itself", "guarded")


def data(seed: int = 0, samples: int = BATCH) -> dict[str, Array]:
    """Tokens, and 1 for the tokens to attend to, the first five at least."""
    rng = np.random.default_rng(seed)
    keep = (np.arange(TOKENS) < rng.integers(5, TOKENS + 1, samples)[:, None]).astype(np.float32)
    return {"x": rng.normal(size=(samples, TOKENS, WIDTH)).astype(np.float32), "keep": keep}


def attention(form: str, huge: float, opset: int = 17) -> onnx.ModelProto:
    """x -> Q Kt / 4 -> mask -> Softmax "attend" -> y; the mask is causal, or comes as the input "keep"."""
    causal = np.where(CAUSAL, 0.0, huge).astype(np.float32)
    weights: dict[str, Array] = dict(WEIGHTS) | {"scale": np.array(0.25, np.float32)}
    before = [node("MatMul", ["x", "wq"], ["q"], "query"), node("MatMul", ["x", "wk"], ["k"], "key"), node("Transpose", ["k"], ["kt"], perm=[0, 2, 1])]
    before += [node("MatMul", ["q", "kt"], ["raw"], "scores")]
    plain = [node("Mul", ["raw", "scale"], ["logits"], "scaled")]
    inputs: dict[str, Any] = {"x": ["N", TOKENS, WIDTH]}
    more: list[onnx.TensorProto] = []
    axes = numpy_helper.from_array(np.array([1], np.int64), "axes")

    def unsqueezed(source: str, made: str) -> onnx.NodeProto:
        if opset < 13:
            return node("Unsqueeze", [source], [made], axes=[1])
        more[:] = [axes]
        return node("Unsqueeze", [source, "axes"], [made])

    match form:
        case "add":
            weights |= {"mask": causal}
            nodes = [*plain, node("Add", ["logits", "mask"], ["masked"], "apply")]
        case "where" | "added-where":
            weights |= {"huge": np.array(huge, np.float32), "zero": np.array(0, np.float32)}
            more = [numpy_helper.from_array(CAUSAL, "causal")]
            nodes = [*plain, node("Where", ["causal", "logits", "huge"], ["masked"], "apply")] if form == "where" else [
                *plain, node("Slice", ["big", "from", "to"], ["cut"]), node("Where", ["cut", "zero", "huge"], ["mask"], "select"),
                node("Add", ["logits", "mask"], ["masked"], "apply")]
            if form == "added-where":
                more = [numpy_helper.from_array(np.tril(np.ones((20, TOKENS), bool)), "big"), numpy_helper.from_array(np.array([0], np.int64), "from"),
                        numpy_helper.from_array(np.array([TOKENS], np.int64), "to")]
        case "unsqueezed":
            weights |= {"mask": causal[None]}
            nodes = [*plain, node("Expand", ["mask", "shape"], ["wide"]), node("Add", ["wide", "logits"], ["masked"], "apply")]
            more = [numpy_helper.from_array(np.array([1, TOKENS, TOKENS], np.int64), "shape")]
        case "sub":
            weights |= {"mask": -causal}
            nodes = [*plain, node("Sub", ["logits", "mask"], ["masked"], "apply")]
        case "after-scale":
            weights |= {"mask": causal}
            nodes = [node("Add", ["raw", "mask"], ["sum"], "apply"), node("Mul", ["sum", "scale"], ["masked"], "scaled")]
        case "stacked":
            weights |= {"mask": causal, "second": np.where(np.arange(TOKENS) < 6, 0.0, huge).astype(np.float32)[None, None]}
            nodes = [*plain, node("Add", ["logits", "mask"], ["once"], "apply"), node("Add", ["once", "second"], ["masked"], "again")]
        case "floored":
            weights |= {"mask": causal, "floor": np.array(huge, np.float32)}
            nodes = [*plain, node("Add", ["logits", "mask"], ["sum"], "apply"), node("Max", ["sum", "floor"], ["masked"], "clamp")]
        case "with-bias":
            weights |= {"mask": causal, "bias": RNG.normal(size=(TOKENS, TOKENS)).astype(np.float32)}
            nodes = [*plain, node("Add", ["logits", "mask"], ["sum"], "apply"), node("Add", ["sum", "bias"], ["masked"], "shift")]
        case "filled" | "compared":                                   # of the input's own length, as in torch.full(...).triu(1)
            more = [numpy_helper.from_array(np.array([n], np.int64), name) for n, name in ((1, "one"), (2, "two"))]
            side = [node("Shape", ["q"], ["sizes"]), node("Slice", ["sizes", "one", "two"], ["side"]), node("Concat", ["side", "side"], ["square"], axis=0)]
            made = numpy_helper.from_array(np.array([huge if form == "filled" else 1], np.float32), "value")
            nodes = [*plain, *side, node("ConstantOfShape", ["square"], ["full"], "fill", value=made), node("Trilu", ["full", "one"], ["upper"], upper=1)]
            if form == "compared":
                weights |= {"zero": np.array(0, np.float32), "huge": np.array(huge, np.float32)}
                nodes += [node("Equal", ["upper", "zero"], ["kept"]), node("Where", ["kept", "zero", "huge"], ["mask"], "select")]
            nodes.append(node("Add", ["logits", "upper" if form == "filled" else "mask"], ["masked"], "apply"))
        case "taken" | "kept" | "twice" | "guarded":                  # Where on the logits themselves, as masked_fill is exported
            inputs |= {"keep": ["N", TOKENS]}
            weights |= {"one": np.array(1, np.float32), "huge": np.array(huge, np.float32)}
            off = [unsqueezed("keep", "wide"), node("Sub", ["one", "wide"], ["drop"]), node("Cast", ["wide" if form == "kept" else "drop"], ["which"], to=TensorProto.BOOL)]
            more += [numpy_helper.from_array(~CAUSAL, "later")]
            sides = ["logits", "huge"] if form == "kept" else ["huge", "logits"]
            nodes = [*plain, *off, node("Where", ["which", *sides], ["masked"], "apply")]
            if form == "twice":
                nodes = [*plain, *off, node("Where", ["later", "huge", "logits"], ["once"], "first"), node("Where", ["which", "huge", "once"], ["masked"], "apply")]
        case "one-minus" | "minus-one" | "integers" | "selected" | "of-itself":
            inputs |= {"keep": ["N", TOKENS]}
            nodes = [*plain, *_from_input(form, weights, huge, unsqueezed), node("Add", ["logits", "mask"], ["masked"], "apply")]
        case _:
            raise ValueError(form)
    ends = [node("Softmax", ["masked"], ["y"], "attend", axis=-1)]
    if form == "guarded":                                             # torch's own attention: rows without a number become 0
        weights |= {"none": np.array(0, np.float32)}
        ends = [node("Softmax", ["masked"], ["p"], "attend", axis=-1), node("IsNaN", ["p"], ["odd"]), node("Where", ["odd", "none", "p"], ["y"], "guard")]
    proto = model([*before, *nodes, *ends], inputs, {"y": ["N", TOKENS, TOKENS]}, weights, opset)
    proto.graph.initializer.extend(more)
    if form == "integers":
        proto.graph.input[1].type.tensor_type.elem_type = TensorProto.INT64
    return proto


def _from_input(form: str, weights: dict[str, Array], huge: float, unsqueezed: Any) -> list[onnx.NodeProto]:
    """(1 - keep) * huge and its like."""
    weights |= {"one": np.array(1, np.float32), "huge": np.array(huge, np.float32), "zero": np.array(0, np.float32)}
    wide = [unsqueezed("keep", "wide")]
    if form == "minus-one":
        weights["huge"] = -weights["huge"]
        return [*wide, node("Sub", ["wide", "one"], ["drop"]), node("Mul", ["huge", "drop"], ["mask"], "weigh")]
    if form == "of-itself":
        return [*wide, node("Sub", ["one", "wide"], ["drop"]), node("Cast", ["drop"], ["off"], to=TensorProto.BOOL),
                node("Where", ["off", "huge", "drop"], ["mask"], "weigh")]
    if form == "selected":
        return [*wide, node("Sub", ["one", "wide"], ["drop"]), node("Cast", ["drop"], ["off"], to=TensorProto.BOOL),
                node("Where", ["off", "huge", "zero"], ["mask"], "weigh")]
    cast = [node("Cast", ["wide"], ["real"], to=TensorProto.FLOAT)] if form == "integers" else []
    return [*wide, *cast, node("Sub", ["one", "real" if cast else "wide"], ["drop"]), node("Mul", ["drop", "huge"], ["mask"], "weigh")]


def feeds_of(form: str, feeds: Mapping[str, Array]) -> dict[str, Array]:
    """Those of `data` that a form takes."""
    if form not in FROM_INPUT:
        return {"x": feeds["x"]}
    return {"x": feeds["x"], "keep": feeds["keep"].astype(np.int64) if form == "integers" else feeds["keep"]}
