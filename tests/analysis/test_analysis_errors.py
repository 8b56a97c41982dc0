"""Isolated and accumulated errors against models of their own, and the sums behind them against numpy."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import onnx
import pytest
from analysis_cases import case, chain, detection_head, noise_feeds, residual, weights
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from models import model, node, sqnr_db

from qbench.analysis.energy import channel_db, channel_sums, dead_channels, error_of, joined
from qbench.network import Precision
from qbench.plan import Granularity

CLOSE_DB = 0.02          # fused and unfused float sums differ in the last bit, which may move a code of a few thousand
NETWORKS: list[Callable[[], onnx.ModelProto]] = [chain, residual, detection_head]


def feeds_of(proto: onnx.ModelProto) -> list[dict[str, Any]]:
    shape = [d.dim_value for d in proto.graph.input[0].type.tensor_type.shape.dim][1:]
    return noise_feeds(shape)


@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("granularity", [Granularity.PER_CHANNEL, Granularity.PER_LAYER])
def test_accumulated_is_the_tensor_of_the_whole_quantized_model(network: Callable[[], onnx.ModelProto], granularity: Granularity) -> None:
    proto = network()
    found = case(proto, feeds_of(proto), granularity=granularity)
    names = [t.tensor for k in found.analysis.kernels for t in k.tensors]
    floats, whole = found.floats(names), found.quantized(found.plan, names)
    assert names
    for kernel in found.analysis.kernels:
        for error in kernel.tensors:
            assert error.accumulated.sqnr_db == pytest.approx(sqnr_db(floats[error.tensor], whole[error.tensor]), abs=CLOSE_DB), error.tensor
            r, q = (x[error.tensor].astype(np.float64).ravel() for x in (floats, whole))
            norms = np.sqrt((r @ r) * (q @ q))
            assert error.accumulated.cosine == pytest.approx(r @ q / norms if norms else 0.0, abs=1e-6)


@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("base", [Precision.INT8, Precision.INT16])
def test_isolated_is_the_error_of_a_model_in_which_only_that_kernel_is_quantized(network: Callable[[], onnx.ModelProto], base: Precision) -> None:
    """For units of one kernel: a plan decides by unit."""
    proto = network()
    found = case(proto, feeds_of(proto), base=base)
    alone = {u.kernels[0] for u in found.prepared.network.units if len(u.kernels) == 1}
    checked = 0
    for kernel in (k for k in found.analysis.kernels if k.name in alone):
        only = replace(found.plan, precision={u: p if u == kernel.unit else Precision.FP16 for u, p in found.plan.precision.items()})
        names = [t.tensor for t in kernel.tensors]
        floats, made = found.floats(names), found.quantized(only, names)
        for error in kernel.tensors:
            assert error.isolated.sqnr_db == pytest.approx(sqnr_db(floats[error.tensor], made[error.tensor]), abs=CLOSE_DB), error.tensor
            checked += 1
    assert checked >= 1


def test_a_float_kernel_has_no_error_of_its_own_and_passes_on_what_arrives() -> None:
    found = case(chain(), noise_feeds((3, 10, 10)), floats=["conv1", "conv3"])
    by_name = {k.name: k for k in found.analysis.kernels}
    assert by_name["conv1"].tensors[0].accumulated.sqnr_db == 200.0
    assert by_name["conv3"].tensors[0].isolated.sqnr_db == 200.0
    assert by_name["conv3"].tensors[0].accumulated.sqnr_db < 60.0
    assert by_name["conv3"].arrives_db == by_name["conv2"].tensors[0].accumulated.sqnr_db
    assert by_name["conv1"].arrives_db == 200.0
    assert [k.is_float for k in found.analysis.kernels] == [True, False, True, False]


def test_the_inner_tensor_with_a_scale_of_its_own_is_shown() -> None:
    found = case(residual(), noise_feeds((3, 8, 8)))
    body = next(k for k in found.analysis.kernels if k.name == "body")
    assert [(t.tensor, t.role) for t in body.tensors] == [("r", "output"), ("b", "inner")]
    stem = next(k for k in found.analysis.kernels if k.name == "stem")
    assert [t.role for t in stem.tensors] == ["output"]                       # its Conv output is clamped: no scale, nothing to show


def test_channels_are_those_of_axis_one_and_agree_with_numpy() -> None:
    found = case(chain(outlier=300.0), noise_feeds((3, 10, 10)))
    error = next(k for k in found.analysis.kernels if k.name == "conv2").tensors[0]
    floats, whole = found.floats(["b"])["b"], found.quantized(found.plan, ["b"])["b"]
    expected = [sqnr_db(floats[:, c], whole[:, c]) for c in range(8)]
    assert error.axis == 1
    assert error.channels_db == pytest.approx(expected, abs=CLOSE_DB)
    assert error.magnitudes == pytest.approx(np.abs(floats).max(axis=(0, 2, 3)), rel=1e-3)
    assert error.dead == tuple(c for c in range(8) if not whole[:, c].any() and floats[:, c].any())
    zeroed = np.count_nonzero((floats != 0) & (whole == 0)) / np.count_nonzero(floats)
    assert error.accumulated.zeroed == pytest.approx(zeroed, abs=2e-3)


def test_the_channels_of_a_matmul_are_its_last_axis_through_elementwise_operators_and_transposes() -> None:
    w = weights(2, w=(6, 7), b=(1, 7))
    nodes = [node("MatMul", ["x", "w"], ["m"], "mm"), node("Sigmoid", ["m"], ["s"], "gate"), node("Mul", ["s", "m"], ["p"], "product"),
             node("Transpose", ["p"], ["y"], "turn", perm=[0, 2, 1])]
    found = case(model(nodes, {"x": ["N", 5, 6]}, {"y": ["N", 7, 5]}, w), noise_feeds((5, 6)))
    axes = {t.tensor: t.axis for k in found.analysis.kernels for t in k.tensors}
    assert axes["p"] == 2
    assert axes["y"] == 1
    assert {len(t.channels_db) for k in found.analysis.kernels for t in k.tensors} == {7}


def test_an_axis_of_positions_gets_no_figure_for_each() -> None:
    nodes = [node("Mul", ["x", "k"], ["y"], "scale")]
    found = case(model(nodes, {"x": ["N", 5000, 2]}, {"y": ["N", 5000, 2]}, {"k": np.array([2.0], np.float32)}), noise_feeds((5000, 2), 2))
    error = found.analysis.kernels[0].tensors[0]
    assert error.channels_db == () and error.dead == ()
    assert "5000" in error.left_out


# -- sums

arrays = hnp.arrays(np.float32, st.tuples(st.integers(1, 3), st.integers(1, 4), st.integers(0, 9)),
                    elements=st.floats(-1e4, 1e4, width=32) | st.just(0.0))


@given(reference=arrays, seed=st.integers(0, 99))
def test_sums_are_those_of_numpy(reference: Any, seed: int) -> None:
    rng = np.random.default_rng(seed)
    output = np.where(rng.random(reference.shape) < 0.3, 0.0, reference + rng.normal(size=reference.shape)).astype(np.float32)
    sums = channel_sums(reference, output, 1)
    r, o = (np.moveaxis(x, 1, 0).reshape(x.shape[1], -1).astype(np.float64) for x in (reference, output))
    wanted = ((r * r).sum(1), (o * o).sum(1), (r * o).sum(1), ((o - r)**2).sum(1), (r != 0).sum(1), ((r != 0) & (o == 0)).sum(1),
              np.abs(r).max(1, initial=0), np.abs(o).max(1, initial=0))
    for column, expected in enumerate(wanted):
        assert sums[:, column] == pytest.approx(expected, rel=1e-12, abs=1e-12)
    assert dead_channels(sums) == tuple(np.flatnonzero(np.abs(r).max(1, initial=0).astype(bool) & (np.abs(o).max(1, initial=0) == 0)))


@given(reference=arrays, split=st.integers(0, 3))
def test_sums_do_not_depend_on_how_samples_are_cut(reference: Any, split: int) -> None:
    output = np.round(reference)
    whole = channel_sums(reference, output, 1)
    parts = joined(joined(None, channel_sums(reference[:split], output[:split], 1)), channel_sums(reference[split:], output[split:], 1))
    assert parts == pytest.approx(whole, rel=1e-12)


def test_an_axis_other_than_one_is_moved() -> None:
    rng = np.random.default_rng(0)
    reference = rng.normal(size=(2, 3, 5)).astype(np.float32)
    output = np.round(reference, 1).astype(np.float32)
    assert channel_sums(reference, output, 2) == pytest.approx(channel_sums(reference.transpose(0, 2, 1), output.transpose(0, 2, 1), 1))
    assert len(channel_sums(reference, output, None)) == 1
    assert error_of(channel_sums(reference, output, None)).sqnr_db == pytest.approx(sqnr_db(reference, output))


def test_what_is_not_finite_in_float_does_not_count_and_in_the_quantized_model_does() -> None:
    reference = np.array([[[1.0, np.nan, 2.0, np.inf]]], np.float32)
    same = np.array([[[1.0, 5.0, 2.0, 7.0]]], np.float32)
    assert error_of(channel_sums(reference, same, 1)).sqnr_db == 200.0
    finite = np.array([[[1.0, 2.0]]], np.float32)
    for bad in (np.nan, np.inf):
        found = error_of(channel_sums(finite, np.array([[[1.0, bad]]], np.float32), 1))
        assert (found.sqnr_db, found.cosine) == (-200.0, 0.0)
    assert channel_db(channel_sums(finite, finite * 0, 1)) == (0.0,)          # all zeros: the noise is the signal


def test_tensors_whose_shape_depends_on_the_values_are_left_out_with_a_warning() -> None:
    """NonZero finds more or fewer places after quantization."""
    w = weights(2, w=(4, 3, 3, 3))
    nodes = [node("Conv", ["x", "w"], ["c_"], "conv"), node("Relu", ["c_"], ["c"], "relu"), node("NonZero", ["c"], ["places"], "find"),
             node("Cast", ["places"], ["z"], "cast", to=1), node("GlobalAveragePool", ["c"], ["y"], "pool")]
    proto = model(nodes, {"x": ["N", 3, 8, 8]}, {"y": ["N", 4, 1, 1], "z": [4, "k"]}, w)
    found = case(proto, noise_feeds((3, 8, 8)), checks=1)
    assert any("'z'" in line and "depends on the values" in line for line in found.analysis.warnings)
    assert [name for name, _ in found.analysis.outputs] == ["y"]
    assert {t.tensor for k in found.analysis.kernels for t in k.tensors} == {"c", "y"}
    assert found.findings
