"""Stages: the same statistics as from one run, cut only where a single tensor crosses."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import onnx_ir as ir
import pytest
from models import Array, model, node

from qbench.data import ArrayDataset
from qbench.statistics import collect
from qbench.statistics import stages as module
from qbench.statistics.observe import observe

RNG = np.random.default_rng(0)
IMAGES = RNG.normal(size=(3, 4, 32, 32)).astype(np.float32)


def chain(skip: bool) -> ir.Model:
    """Six convolutions in a row; with `skip` the first one's output is also added to the last one's."""
    weights: dict[str, Array] = {f"w{i}": RNG.normal(0, 0.4, (4, 4, 1, 1)).astype(np.float32) for i in range(6)}
    nodes = [node("Conv", ["x" if i == 0 else f"t{i - 1}", f"w{i}"], [f"t{i}"], f"c{i}") for i in range(6)]
    nodes.append(node("Add", ["t5", "t0"], ["y"], "add") if skip else node("Relu", ["t5"], ["y"], "relu"))
    proto = model(nodes, {"x": [1, 4, 32, 32]}, {"y": [1, 4, 32, 32]}, weights)
    found = ir.serde.deserialize_model(proto)
    ir.passes.common.ShapeInferencePass()(found)
    return found


@pytest.mark.parametrize("skip", [False, True])
def test_stages_change_no_answer(skip: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    names = ["x", *(f"t{i}" for i in range(6)), "y"]
    net, data = chain(skip), ArrayDataset({"x": IMAGES})
    whole = collect(net, names, data)
    monkeypatch.setattr(module, "STAGE_BYTES", 4 * 4 * 32 * 32 * 2)
    cut = observe(net, names, 1).stages
    assert len(cut) == (1 if skip else 4)
    staged = collect(net, names, data)
    for name in names:
        assert np.array_equal(staged[name].codes, whole[name].codes) and np.array_equal(staged[name].counts, whole[name].counts)
        assert (staged[name].minimum, staged[name].maximum) == (whole[name].minimum, whole[name].maximum)


def test_a_stage_is_fed_what_the_one_before_put_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "STAGE_BYTES", 1)
    found = observe(chain(False), [f"t{i}" for i in range(6)], 1).stages
    assert found[0].inputs == ("x",)
    for before, after in pairwise(found):
        assert after.inputs == (before.carried,) and before.carried in before.outputs
    assert found[-1].carried == ""


def test_a_small_model_runs_whole() -> None:
    assert len(observe(chain(False), ["t0", "t5"], 1).stages) == 1
