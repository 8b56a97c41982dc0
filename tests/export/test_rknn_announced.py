"""What the toolkit does otherwise under hybrid quantization: announced where it is known, a fault everywhere else."""

from __future__ import annotations

import dataclasses

import models
import numpy as np
import onnx
import pytest
from target_cases import job_for

from qbench.export import Contents, differences
from qbench.network import Precision
from qbench.targets.exporters.rknn_announced import announced


def classifier(last: str = "Softmax", behind: str = "") -> onnx.ModelProto:
    """Conv, AveragePool, `last`, and `behind` it."""
    rng = np.random.default_rng(0)
    weights = {"w": rng.normal(0, 0.5, (8, 3, 1, 1)).astype(np.float32), "v": rng.normal(0, 0.5, (8, 8, 1, 1)).astype(np.float32)}
    ends = {"": [], "Flatten": [models.node("Flatten", ["s"], ["y"], "behind")], "Conv": [models.node("Conv", ["s", "v"], ["y"], "behind")]}[behind]
    nodes = [models.node("Conv", ["x", "w"], ["c"], "conv"), models.node("AveragePool", ["c"], ["p"], "pool", kernel_shape=[2, 2], strides=[2, 2]),
             models.node(last, ["p"], ["s" if behind else "y"], "last", **({"axis": 1} if last == "Softmax" else {})), *ends]
    return models.model(nodes, {"x": [1, 3, 4, 4]}, {"y": [1, 32] if behind == "Flatten" else [1, 8, 2, 2]}, weights)


def read(proto: onnx.ModelProto, floats: tuple[str, ...], pooled: bool = False) -> tuple[str, ...]:
    """Differences when the layers `floats` come out in FP16, and the pool with its input's scale."""
    job = job_for("rk3588", proto=proto)
    layers = {k: dataclasses.replace(v, precision=Precision.FP16) if k in floats else v for k, v in job.demanded.layers.items()}
    tensors = dict(job.demanded.tensors)
    if pooled:
        assert tensors["p:int8"] != tensors["c:int8"]
        tensors["p:int8"] = tensors["c:int8"]
    actual = Contents(layers, tensors, "stand-in")
    return tuple(f"{d.name} {d.what}" for d in differences(job.demanded, actual, consent=announced(job, actual)))


@pytest.mark.parametrize(("behind", "floats"), [("", ("last",)), ("Flatten", ("last", "behind"))])
def test_a_softmax_at_the_end_may_come_out_in_fp16(behind: str, floats: tuple[str, ...]) -> None:
    assert read(classifier(behind=behind), floats) == ()


def test_a_move_in_front_of_that_softmax_may_too_and_one_in_front_of_another_layer_not() -> None:
    w = {"w": np.random.default_rng(0).normal(0, 0.5, (8, 3, 1, 1)).astype(np.float32)}
    for last, told in (("Softmax", ()), ("Sigmoid", ("move precision",))):
        nodes = [models.node("Conv", ["x", "w"], ["c"], "conv"), models.node("Flatten", ["c"], ["f"], "move"), models.node(last, ["f"], ["y"], "last")]
        assert read(models.model(nodes, {"x": [1, 3, 2, 2]}, {"y": [1, 32]}, w), ("move",)) == told


@pytest.mark.parametrize(("proto", "floats"), [(classifier(behind="Conv"), ("last",)), (classifier("Relu"), ("last",)), (classifier(), ("conv",))])
def test_any_other_layer_in_fp16_is_a_fault(proto: onnx.ModelProto, floats: tuple[str, ...]) -> None:
    job = job_for("rk3588", proto=proto)
    (found,) = (k.name for k in job.prepared.network.kernels if set(floats) & set(k.nodes))
    assert read(proto, (found,)) == (f"{found} precision",)


def test_a_pool_may_have_the_scale_of_what_it_reads_and_no_other() -> None:
    assert read(classifier(), (), pooled=True) == ()


@pytest.mark.parametrize("precision", [Precision.INT8, Precision.FP16])
def test_a_float_cast_for_readers_of_codes_may_be_stored_as_either(precision: Precision) -> None:
    nodes = [models.node("Cast", ["x"], ["i"], "whole", to=onnx.TensorProto.INT32), models.node("Cast", ["i"], ["c"], "back", to=onnx.TensorProto.FLOAT),
             models.node("Mul", ["c", "x"], ["y"], "product")]
    job = job_for("rk3588", proto=models.model(nodes, {"x": [1, 8]}, {"y": [1, 8]}, {}))
    assert job.demanded.layers["back"].precision is Precision.FP16 and "c:int8" in job.demanded.tensors
    layers = {**job.demanded.layers, "back": dataclasses.replace(job.demanded.layers["back"], precision=precision)}
    actual = Contents(layers, job.demanded.tensors, "stand-in")
    assert not differences(job.demanded, actual, consent=announced(job, actual))
