"""What shares a scale and should not: parts of Concats, scale groups of unlike ranges, unequal channels of weights."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from analysis_cases import case, detection_head, noise_feeds, weights
from hypothesis import given
from hypothesis import strategies as st
from models import model, node, prepare, sqnr_db

from qbench.analysis.channels import layout_of
from qbench.analysis.groups import channel_magnitudes
from qbench.network import Precision
from qbench.plan import Granularity
from qbench.qdq.layout import weight_of
from qbench.runtime import Session


def error_of(found: Any, tensor: str) -> Any:
    return next(t for k in found.analysis.kernels for t in k.tensors if t.tensor == tensor)


def test_the_hidden_collapse_of_b16_is_seen_in_its_parts() -> None:
    """Whole tensor about 39 dB, half of its channels exactly zero (BUG case B16)."""
    found = case(detection_head(), noise_feeds((3, 8, 8)))
    error = error_of(found, "y")
    boxes, scores = error.parts
    assert error.accumulated.sqnr_db > 35.0
    assert (boxes.name, boxes.channels, boxes.dead) == ("boxes", (0, 4), 0)
    assert (scores.name, scores.channels, scores.dead) == ("scores", (4, 8), 4)
    assert scores.accumulated.sqnr_db == pytest.approx(0.0, abs=1e-6) and scores.accumulated.zeroed == 1.0
    assert boxes.accumulated.sqnr_db > 35.0
    assert error.dead == error.dead_alone == (4, 5, 6, 7)
    assert scores.magnitude <= 1.0
    assert boxes.magnitude > 100.0
    floats, whole = found.floats(["y"])["y"], found.quantized(found.plan, ["y"])["y"]
    assert boxes.accumulated.sqnr_db == pytest.approx(sqnr_db(floats[:, :4], whole[:, :4]), abs=0.02)


def test_the_group_and_the_concat_are_named_with_codes() -> None:
    found = case(detection_head(), noise_feeds((3, 8, 8)))
    group, = found.analysis.mixed
    assert (group.group, group.kernel, group.tensor, group.unit, group.inputs) == ("boxes", "join", "y", "scale", ("boxes", "scores"))
    assert [s.tensor for s in group.sources] == ["boxes", "scores"]
    values = found.floats(["boxes", "scores"])
    assert group.ratio == pytest.approx(np.abs(values["boxes"]).max() / values["scores"].max(), rel=1e-6)
    step = next(s.step for s in found.analysis.stored if s.group == "boxes")
    assert group.sources[1].codes == pytest.approx(values["scores"].max() / step, rel=1e-6)
    assert group.blocked == ""


@pytest.mark.parametrize(("factor", "base", "mixed"), [(150.0, Precision.INT8, True), (150.0, Precision.FP16, False), (2.0, Precision.INT8, False)])
def test_only_integers_of_unlike_range_are_a_mixed_group(factor: float, base: Precision, mixed: bool) -> None:
    found = case(detection_head(factor), noise_feeds((3, 8, 8)), base=base)
    assert bool(found.analysis.mixed) is mixed


def head(*behind: onnx.NodeProto, outputs: dict[str, list[int | str]]) -> onnx.ModelProto:
    w = weights(0, w=(4, 3, 3, 3)) | {"factor": np.array([150.0], np.float32), "w2": weights(1, w2=(2, 8, 1, 1))["w2"]}
    nodes = [node("Conv", ["x", "w"], ["c"], "conv", pads=[1] * 4), node("Mul", ["c", "factor"], ["boxes"], "scale"),
             node("Sigmoid", ["c"], ["scores"], "gate"), node("Concat", ["boxes", "scores"], ["j"], "join", axis=1), *behind]
    return model(nodes, {"x": ["N", 3, 8, 8]}, outputs, w)


def test_a_convolution_behind_the_concat_blocks_the_cut_with_its_name() -> None:
    found = case(head(node("Conv", ["j", "w2"], ["y"], "after"), outputs={"y": ["N", 2, 8, 8]}), noise_feeds((3, 8, 8)))
    assert "'after'" in found.analysis.mixed[0].blocked and "Conv" in found.analysis.mixed[0].blocked


def test_a_transpose_behind_the_concat_does_not_and_keeps_the_parts() -> None:
    found = case(head(node("Transpose", ["j"], ["y"], "turn", perm=[0, 2, 3, 1]), outputs={"y": ["N", 8, 8, 8]}), noise_feeds((3, 8, 8)))
    assert found.analysis.mixed[0].blocked == ""
    assert found.analysis.mixed[0].kernel == "join"
    error = error_of(found, "y")
    assert error.axis == 3
    assert [(p.name, p.channels, p.dead) for p in error.parts] == [("boxes", (0, 4), 0), ("scores", (4, 8), 4)]


def test_a_concat_along_another_axis_and_with_a_constant_keeps_its_order() -> None:
    nodes = [node("Relu", ["x"], ["r"], "relu"), node("Concat", ["r", "k", "x"], ["y"], "join", axis=-1)]
    proto = model(nodes, {"x": ["N", 2, 3]}, {"y": ["N", 2, 10]}, {"k": np.full((1, 2, 4), 0.5, np.float32)})
    prepared = prepare(proto)
    layout = layout_of(prepared.model)
    assert layout.axis["y"] == 2
    assert [(s.name, s.start, s.stop) for s in layout.segments["y"]] == [("r", 0, 3), ("k", 3, 7), ("x", 7, 10)]


def test_an_output_whose_channels_differ_widely_falls_into_runs() -> None:
    """One convolution that writes boxes and scores, as some heads do."""
    def of(w: dict[str, Any]) -> Any:
        return case(model([node("Conv", ["x", "w"], ["y"], "head")], {"x": ["N", 3, 4, 4]}, {"y": ["N", 6, 4, 4]}, w), noise_feeds((3, 4, 4)))

    w = weights(4, w=(6, 3, 1, 1))
    w["w"][:2] *= 1000.0
    found = of(w)
    parts = error_of(found, "y").parts
    assert [(p.name, p.channels) for p in parts] == [("channels 0 to 1", (0, 2)), ("channels 2 to 5", (2, 6))]
    assert parts[0].accumulated.sqnr_db > 30.0
    assert parts[1].accumulated.sqnr_db < 10.0
    assert error_of(of(weights(4, w=(6, 3, 1, 1))), "y").parts == ()


# -- weights

@given(seed=st.integers(0, 20), op=st.sampled_from(["Conv", "GroupedConv", "ConvTranspose", "GroupedConvTranspose", "Gemm", "GemmB", "MatMul"]))
def test_the_magnitude_of_an_output_channel_is_that_of_the_weights_that_reach_it(seed: int, op: str) -> None:
    """Oracle: onnxruntime's own kernel on the magnitudes, with one input position that is 1 everywhere: a weight of 0 reaches nothing.

    All weights but one channel's largest are cleared, so that exactly this channel of the output is not zero.
    """
    rng = np.random.default_rng(seed)
    shapes = {"Conv": (4, 3, 2, 2), "GroupedConv": (4, 2, 2, 2), "ConvTranspose": (4, 3, 2, 2), "GroupedConvTranspose": (4, 3, 2, 2), "Gemm": (4, 3),
              "GemmB": (3, 4), "MatMul": (4, 3)}
    kind = op.removeprefix("Grouped").removesuffix("B")
    attributes: dict[str, Any] = {"group": 2} if op.startswith("Grouped") else {"transB": 1} if op == "GemmB" else {}
    wide = kind.startswith("Conv")
    inputs: list[int | str] = [1, 3 if op == "Conv" else 4, 2, 2] if wide else [1, 4]
    data = rng.normal(size=shapes[op]).astype(np.float32)
    keep = np.unravel_index(int(rng.integers(data.size)), data.shape)
    only = np.zeros_like(data)
    only[keep] = data[keep]
    proto = model([node(kind, ["x", "w"], ["y"], "layer", **attributes)], {"x": inputs}, {"y": None}, {"w": only})
    layer = next(n for n in prepare(proto).model.graph if n.op_type == kind)
    weight = weight_of(layer)
    assert weight is not None
    made = Session(proto.SerializeToString(), 1).run({"x": np.ones([int(d) for d in inputs], np.float32)})["y"]
    expected = np.abs(made).reshape(made.shape[1], -1).max(1)
    assert channel_magnitudes(weight, only) == pytest.approx(expected, rel=1e-6)
    assert channel_magnitudes(weight, data).shape == (weight.channels,)
    assert channel_magnitudes(weight, data).max() == np.abs(data).max()


@pytest.mark.parametrize("granularity", [Granularity.PER_LAYER, Granularity.PER_CHANNEL])
def test_unequal_channels_of_a_weight_and_the_codes_that_one_scale_leaves(granularity: Granularity) -> None:
    w = weights(6, w=(8, 3, 3, 3))
    w["w"][5] *= 40.0
    proto = model([node("Conv", ["x", "w"], ["y"], "layer")], {"x": ["N", 3, 6, 6]}, {"y": ["N", 8, 4, 4]}, w)
    found = case(proto, noise_feeds((3, 6, 6)), granularity=granularity)
    spread, = found.analysis.weights
    reach = np.abs(w["w"]).reshape(8, -1).max(1)
    assert (spread.widest, spread.weight, spread.kernel, spread.channels) == (5, "w", "layer", 8)
    assert spread.ratio == pytest.approx(reach.max() / np.median(reach))
    assert spread.per_channel is (granularity is Granularity.PER_CHANNEL)
    assert spread.codes == pytest.approx(254.0 if spread.per_channel else 254.0 * np.median(reach) / reach.max())
