"""What onnxruntime-qnn leaves to the CPU is said before it is compiled: operator, reason, rewrite."""

from __future__ import annotations

import dataclasses
import math

import models
import numpy as np
import onnx
import pytest
from target_cases import job_for

from qbench.errors import ModelError
from qbench.targets.exporters import make
from qbench.targets.exporters.qnn_refusals import refusals


def gelu(last: str = "Erf") -> onnx.ModelProto:
    """Conv, then a GELU with the constant first in its last product, as torch.onnx writes it."""
    weights = {"w": np.random.default_rng(0).normal(0, 0.3, (8, 3, 3, 3)).astype(np.float32), "r": np.array(math.sqrt(2.0), np.float32), "one": np.array(1.0, np.float32),
               "half": np.array(0.5, np.float32)}
    nodes = [models.node("Conv", ["x", "w"], ["c"], "conv", pads=[1, 1, 1, 1]), models.node("Div", ["c", "r"], ["d"], "div"), models.node(last, ["d"], ["e"], "erf"),
             models.node("Add", ["e", "one"], ["a"], "plus"), models.node("Mul", ["half", "a"], ["m"], "half_of"), models.node("Mul", ["c", "m"], ["y"], "gelu")]
    return models.model(nodes, {"x": [1, 3, 8, 8]}, {"y": [1, 8, 8, 8]}, weights)


def test_erf_between_integers_is_refused_with_the_rewrite_that_fits() -> None:
    with pytest.raises(ModelError, match=r"node 'erf' \(Erf\): onnxruntime-qnn does not take it as planned .*qbench rewrite MODEL --target hexagon-8gen3 --allow gelu-to-tanh"):
        make("qnn").check(job_for("hexagon-8gen3", proto=gelu()))


def test_a_gelu_in_fp16_passes_and_so_does_a_network_without_erf() -> None:
    job = job_for("hexagon-8gen3", proto=gelu())
    floats = job_for("hexagon-8gen3", dict.fromkeys(job.plan.precision, "float"), gelu())
    assert list(refusals(floats)) == []
    assert list(refusals(job_for("hexagon-8gen3", proto=gelu("Tanh")))) == []


def test_an_operator_that_no_rewrite_replaces_is_refused_too() -> None:
    nodes = [models.node("ArgMax", ["x"], ["y"], "largest", axis=1, keepdims=1)]
    proto = models.model(nodes, {"x": [1, 4, 2, 2, 2]}, {"y": [1, 1, 2, 2, 2]}, {})
    proto.graph.output[0].type.tensor_type.elem_type = onnx.TensorProto.INT64
    (why,) = refusals(job_for("hexagon-8gen3", proto=proto))
    assert why == ("node 'largest' (ArgMax): onnxruntime-qnn does not take it as planned (its input has 5 axes), and the CPU is not used instead; end the model before it")


def test_a_prelu_in_integers_is_refused_with_its_rewrite() -> None:
    weights = {"w": np.random.default_rng(0).normal(0, 0.3, (8, 3, 1, 1)).astype(np.float32), "s": np.full((8, 1, 1), 0.2, np.float32)}
    nodes = [models.node("Conv", ["x", "w"], ["c"], "conv"), models.node("PRelu", ["c", "s"], ["y"], "slope")]
    proto = models.model(nodes, {"x": [1, 3, 4, 4]}, {"y": [1, 8, 4, 4]}, weights)
    with pytest.raises(ModelError, match=r"node 'slope' \(PRelu\): .*computes it in FP16.*--allow prelu-split"):
        make("qnn").check(job_for("hexagon-8gen3", proto=proto))


def test_fp16_that_overflows_is_refused_for_the_unit_that_runs_in_it() -> None:
    """The simulator keeps the range of float32 there; the chip does not."""
    made = job_for("hexagon-8gen3", {"b": "fp16"})
    note = {"b": "kept in float; FP16 could overflow: tensor 'b0' reaches 199786, and 2 times that exceeds 65504"}
    found = list(refusals(dataclasses.replace(made, plan=dataclasses.replace(made.plan, notes=note))))
    assert len(found) == 1 and found[0].startswith("unit 'b' (Conv, Relu): FP16 could overflow: tensor 'b0' reaches 199786") and "scale its input down" in found[0]
    assert list(refusals(made)) == []
