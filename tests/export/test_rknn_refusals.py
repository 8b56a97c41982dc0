"""What rknn-toolkit2 is known to refuse is said before it is built: operator, reason, cure."""

from __future__ import annotations

import dataclasses

import models
import numpy as np
import onnx
import pytest
from export_cases import job

from qbench.errors import ModelError
from qbench.export import Job
from qbench.network import Precision
from qbench.targets.exporters import make
from qbench.targets.exporters.rknn_log import analysed, folded
from qbench.targets.exporters.rknn_refusals import refusals


def lstm() -> onnx.ModelProto:
    rng = np.random.default_rng(0)
    weights = {"w": rng.normal(0, 0.3, (1, 16, 8)).astype(np.float32), "r": rng.normal(0, 0.3, (1, 16, 4)).astype(np.float32)}
    return models.model([models.node("LSTM", ["x", "w", "r"], ["y"], "memory", hidden_size=4)], {"x": [3, 1, 8]}, {"y": [3, 1, 1, 4]}, weights)


def planned_as(made: Job, precision: Precision) -> Job:
    return dataclasses.replace(made, plan=dataclasses.replace(made.plan, precision=dict.fromkeys(made.plan.precision, precision)))


def test_an_lstm_in_int8_is_refused_and_one_in_fp16_is_not() -> None:
    made = job(dict.fromkeys(["memory"], "fp16"), lstm(), samples=1)
    with pytest.raises(ModelError, match=r"node 'memory' \(LSTM\): .*clip_truncate < 0.*plan it in FP16"):
        make("rknn").check(planned_as(made, Precision.INT8))
    make("rknn").check(made)


def test_fp16_that_overflows_is_refused_for_the_unit_that_runs_in_it() -> None:
    made = job({"b": "fp16"})
    note = {"b": "kept in float; FP16 could overflow: tensor 'b0' reaches 199786, and 2 times that exceeds 65504"}
    noted = dataclasses.replace(made, plan=dataclasses.replace(made.plan, notes=note))
    with pytest.raises(ModelError, match=r"unit 'b' \(Conv, Relu\): FP16 could overflow: tensor 'b0' reaches 199786"):
        make("rknn").check(noted)
    make("rknn").check(planned_as(noted, Precision.INT8))


def test_a_network_without_faults_passes() -> None:
    assert list(refusals(job())) == []


def test_the_toolkits_accuracy_table_is_read() -> None:
    """Rows as accuracy_analysis of 2.5.0 wrote them; a convolution before its own Relu has no numbers."""
    text = ("layer_name                                             simulator_error                    \n"
            "[Input] input                                 1.00000 | 0.00000   1.00000 | 0.00000       \n"
            "[Conv] /c1/Conv_output_0                      \n"
            "[Relu] /Relu_output_0                         0.99991 | 0.52005   0.99992 | 0.41005       \n")
    first, second = analysed(text)
    assert first == {"op": "Input", "name": "input", "entire_cos": 1.0, "entire_euclidean": 0.0, "single_cos": 1.0, "single_euclidean": 0.0}
    assert (second["name"], second["single_cos"], second["single_euclidean"]) == ("/Relu_output_0", 0.99992, 0.41005)


def test_nodes_that_a_pass_only_takes_away_are_folded() -> None:
    log = "D     fuse_two_add: remove node = ['node_add_4']\nD     bypass: remove node = ['/tp'], add node = ['/x']\n"
    assert folded(log) == {"node_add_4": "fuse_two_add"}
