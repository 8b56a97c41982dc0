"""The Q/DQ model as plain JSON: names, shapes, what is left out."""

from __future__ import annotations

import re
from typing import Any

import models
import numpy as np
import pytest
from target_cases import job_for

from qbench.errors import ModelError
from qbench.targets.exporters import make
from qbench.targets.exporters.plain_graph import plain


def odd_names() -> models.onnx.ModelProto:  # type: ignore[name-defined]
    """Two values whose names differ only in what no identifier may hold, and one that begins with a digit."""
    weights = {"w": np.ones((4, 3, 1, 1), np.float32)}
    nodes = [models.node("Conv", ["x:0", "w"], ["a/b"], "conv"), models.node("Relu", ["a/b"], ["a.b"], "relu"), models.node("Sigmoid", ["a.b"], ["1st"], "gate"),
             models.node("Mul", ["a.b", "1st"], ["y"], "mul")]
    return models.model(nodes, {"x:0": [1, 3, 4, 4]}, {"y": None}, weights)


def test_names_are_identifiers_and_differ() -> None:
    names = plain(job_for("mediatek-apu", proto=odd_names())).body["names"]
    assert len(set(names.values())) == len(names)
    assert all(re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", n) for n in names.values())


def test_every_value_has_its_shape_and_every_weight_its_codes() -> None:
    job = job_for("mediatek-apu")
    found = plain(job)
    assert {v for n in found.body["nodes"] for v in n["outputs"]} <= set(found.body["shapes"])
    held = {s["key"]: s for s in found.body["stored"].values()}
    assert {f"weight:{k}" for k in held if not k.startswith("b")} == {k for k in job.demanded.tensors if k.startswith("weight:")}
    for key in ("wa", "wb", "wc"):
        assert found.arrays[held[key]["codes"]].dtype == np.int8
        assert tuple(held[key]["scale"]) == job.demanded.tensors[f"weight:{key}"].scale


def test_what_only_computes_sizes_is_left_out() -> None:
    """The batch is open in the model: Shape, Gather and Concat make the target of the Reshape."""
    held: dict[str, Any] = {"zero": np.asarray(0, np.int64), "axis": np.asarray([0], np.int64), "rest": np.asarray([48], np.int64), "w": np.ones((48, 2), np.float32)}
    nodes = [models.node("Shape", ["x"], ["s"], "shape"), models.node("Gather", ["s", "zero"], ["n"], "batch"), models.node("Unsqueeze", ["n", "axis"], ["n1"], "list"),
             models.node("Concat", ["n1", "rest"], ["t"], "sizes", axis=0), models.node("Reshape", ["x", "t"], ["f"], "flatten"), models.node("MatMul", ["f", "w"], ["y"], "product")]
    job = job_for("mediatek-apu", proto=models.model(nodes, {"x": ["N", 3, 4, 4]}, {"y": ["N", 2]}, held))
    ops = {n["op"] for n in plain(job).body["nodes"]}
    assert "Reshape" in ops and not ops & {"Shape", "Gather", "Unsqueeze", "Concat"}


@pytest.mark.parametrize(("exporter", "target", "words"), [("coreml", "ane-a17pro", "a Core ML package"), ("mediatek", "mediatek-apu", "a .tflite file")])
def test_an_operator_without_a_rule_is_named(exporter: str, target: str, words: str) -> None:
    proto = models.model([models.node("Selu", ["x"], ["y"], "odd one")], {"x": [1, 3, 4, 4]}, {"y": None}, {})
    with pytest.raises(ModelError, match=rf"operator Selu \(node 'odd one', layer 'odd one'\): qbench cannot write it as {words}") as refused:
        make(exporter).check(job_for(target, proto=proto))
    assert refused.value.exit_code == 2
