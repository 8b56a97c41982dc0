"""Each rewrite against onnxruntime on drawn shapes, within its own tolerance; and left alone where it does not fit."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from rewrite_cases import FITS, MISSES, gelu_chain, net, one, silu, whole

from qbench.errors import UnknownName
from qbench.graph.inference import infer_shapes
from qbench.rewriting import Exactness
from qbench.targets.rewrites import REWRITES, named
from qbench.targets.rewrites.outputs import host_part
from qbench.workbench.proving import answers, difference, random_feeds

BY_BOUND = {"gelu-to-tanh": 4.8e-4, "gelu-to-sigmoid": 2.1e-2, "silu-to-hardswish": 0.143, "sigmoid-to-hardsigmoid": 0.07}
"""Approximations whose bound is an absolute one."""


def read(proto: onnx.ModelProto) -> ir.Model:
    model = ir.from_proto(proto)
    infer_shapes(model)
    return model


def test_each_rewrite_is_described_and_has_cases_for_and_against() -> None:
    readme = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
    assert f"| {len(REWRITES)} rewrites of what" in readme
    for name, rewrite in REWRITES.items():
        assert rewrite.text.endswith(".") and rewrite.becomes and (rewrite.ops or name == "lower-operator-set") and re.fullmatch(r"[a-z0-9-]+", name)
        assert (rewrite.tolerance > 0) or rewrite.exactness is Exactness.E
        assert name in FITS and name in MISSES, name
    assert set(FITS) == set(REWRITES) == set(MISSES)


@pytest.mark.parametrize("name", sorted(FITS))
@settings(max_examples=6, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_same_answers_within_the_tolerance(name: str, data: st.DataObject) -> None:
    build = data.draw(st.sampled_from(FITS[name]))
    model, rewrite = read(build(data.draw)), REWRITES[name]
    before, twin = model.clone(), model.clone()
    changes = rewrite.apply(twin)
    assert changes
    assert all(c.rewrite == name and c.old for c in changes)
    onnx.checker.check_model(ir.to_proto(twin), full_check=True)
    names = [n.name for n in twin.graph]
    assert len(set(names)) == len(names) and all(n in names for c in changes for n in c.new)
    assert {v.name for v in twin.graph.outputs} == {v.name for v in before.graph.outputs} or name == "post-processing-to-host"
    feeds = random_feeds(before, 1)
    one_, other = answers([before], feeds), answers([twin, host_part(before, twin)] if name == "post-processing-to-host" else [twin], feeds)
    if name in BY_BOUND:
        assert all(np.abs(a - other.outputs[0][k]).max() <= BY_BOUND[name] for k, a in one_.outputs[0].items())
    elif rewrite.exactness is not Exactness.C:
        assert difference(one_, other) <= rewrite.tolerance
    else:
        assert all(a.shape == other.outputs[0][k].shape for k, a in one_.outputs[0].items())


@pytest.mark.parametrize("name", sorted(MISSES))
def test_left_alone_where_it_does_not_fit(name: str) -> None:
    for proto in MISSES[name]:
        model = read(proto)
        before = ir.to_proto(model).SerializeToString(deterministic=True)
        assert REWRITES[name].places(model) == () and REWRITES[name].apply(model) == ()
        assert {n.op_type for n in model.graph} == {n.op_type for n in ir.from_proto(onnx.load_model_from_string(before)).graph}


@pytest.mark.parametrize("name", ["gelu-to-tanh", "gelu-to-sigmoid", "silu-to-hardswish", "sigmoid-to-hardsigmoid"])
def test_bounds_of_the_approximations_are_reached_and_kept(name: str) -> None:
    # on a fine grid the largest error comes within 3 % of the bound that is told
    x = np.linspace(-8, 8, 200_001, dtype=np.float32)[None]
    proto = gelu_chain(x.shape) if "gelu" in name else silu(x.shape) if name == "silu-to-hardswish" else one("Sigmoid", x.shape)
    model = read(proto)
    twin = model.clone()
    REWRITES[name].apply(twin)
    feeds = [{str(model.graph.inputs[0].name): x}]
    worst = float(np.abs(answers([model], feeds).outputs[0]["y"] - answers([twin], feeds).outputs[0]["y"]).max())
    assert 0.94 * BY_BOUND[name] <= worst <= BY_BOUND[name]


def test_only_wanted_nodes_are_replaced_and_names_are_told() -> None:
    model = read(net([("Neg", ["x"], ["a"], {}), ("Neg", ["a"], ["y"], {})], {"x": (1, 4)}))
    changes = REWRITES["neg-to-mul"].apply(model, lambda names: "neg1" in names)
    assert [(c.old, c.new) for c in changes] == [(("neg1",), ("neg1/Mul",))]
    assert [n.op_type for n in model.graph] == ["Neg", "Mul"]


def test_places_change_nothing() -> None:
    model = read(one("Neg", (1, 4)))
    assert REWRITES["neg-to-mul"].places(model) == (("neg0",),)
    assert [n.op_type for n in model.graph] == ["Neg"]


def test_inner_values_that_others_read_keep_their_nodes() -> None:
    # the Pad feeds an Add too, so it stays
    proto = net([("Pad", ["x", "p"], ["w"], {}), ("Conv", ["w", "k"], ["c"], {"pads": [1] * 4}), ("Add", ["c", "w"], ["y"], {})], {"x": (1, 1, 4, 4)},
                {"p": whole(0, 0, 1, 1, 0, 0, 1, 1), "k": np.ones((1, 1, 3, 3), np.float32)})
    assert REWRITES["fold-pad"].apply(read(proto)) == ()


def test_an_unknown_rewrite_names_those_there_are() -> None:
    with pytest.raises(UnknownName, match=r"no rewrite 'gelu-to-magic'; known: .*gelu-to-erf"):
        named("gelu-to-magic")
