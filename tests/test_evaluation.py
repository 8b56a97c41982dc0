"""The evaluator: pairing, prefix reuse, counting."""

from dataclasses import replace
from typing import Any

import numpy as np
import onnx
import pytest
from models import Array, model, node, observe, plan, prepare

from qbench import qdq
from qbench.data import ArrayDataset
from qbench.evaluation import OnnxEvaluator, cut_tensors, first_integer
from qbench.graph import PreparedModel
from qbench.metrics import make
from qbench.network import Precision
from qbench.protocols import Accuracy
from qbench.runtime import Session, integer_kernels_saturate

RNG = np.random.default_rng(0)
IMAGES = RNG.normal(size=(37, 3, 16, 16)).astype(np.float32)


def w(*shape: int) -> Array:
    return RNG.normal(0, 0.4, shape).astype(np.float32)


@pytest.fixture(scope="module")
def net() -> PreparedModel:
    """Conv -> Conv -> Concat with a skip -> Conv -> pooled class scores; the batch axis is free."""
    nodes = [node("Conv", ["x", "w0"], ["a"], "c0", pads=[1] * 4), node("Relu", ["a"], ["ar"], "r0"),
             node("Conv", ["ar", "w1"], ["b"], "c1", pads=[1] * 4), node("Relu", ["b"], ["br"], "r1"),
             node("Concat", ["br", "ar"], ["cat"], "cat", axis=1), node("Conv", ["cat", "w2"], ["d"], "c2"),
             node("GlobalAveragePool", ["d"], ["p"], "pool"), node("Flatten", ["p"], ["y"], "flat")]
    return prepare(model(nodes, {"x": ["N", 3, 16, 16]}, {"y": ["N", 5]}, {"w0": w(8, 3, 3, 3), "w1": w(8, 8, 3, 3), "w2": w(5, 16, 1, 1)}))


@pytest.fixture(scope="module")
def evaluator(net: PreparedModel) -> OnnxEvaluator:
    labels = Session(net_bytes(net), 1).run({"x": IMAGES})["y"].argmax(1)
    labels[::5] = (labels[::5] + 1) % 5
    return OnnxEvaluator(net, ArrayDataset({"x": IMAGES}, labels), make("top1"), threads=1)


def net_bytes(net: PreparedModel) -> bytes:
    from qbench.qdq import to_bytes

    return to_bytes(net.model)


@pytest.fixture(scope="module")
def ranges(net: PreparedModel) -> Any:
    return observe(net, [{"x": IMAGES}])


def test_the_float_reference_scores_what_the_labels_say(evaluator: OnnxEvaluator) -> None:
    reference = evaluator.reference()
    assert reference.value == pytest.approx(29 / 37)
    assert reference.low < reference.value < reference.high
    assert reference.drop == 0.0


def test_a_candidate_is_paired_with_float_on_the_same_samples(net: PreparedModel, evaluator: OnnxEvaluator, ranges: Any) -> None:
    found = evaluator.evaluate(plan(net, ranges), 10)
    assert found.samples == 10
    assert found.drop == pytest.approx(evaluator.reference(10).value - found.value)
    assert found.drop_low <= found.drop <= found.drop_high
    assert 20 < found.sqnr_db < 80


def test_sixteen_bit_is_closer_than_eight(net: PreparedModel, evaluator: OnnxEvaluator, ranges: Any) -> None:
    eight, sixteen = (evaluator.evaluate(plan(net, ranges, base=p)) for p in (Precision.INT8, Precision.INT16))
    assert sixteen.sqnr_db > eight.sqnr_db + 20
    assert sixteen.kl < eight.kl


@pytest.mark.parametrize("first", ["c2", "pool"])
def test_a_reused_prefix_changes_nothing_and_costs_less(net: PreparedModel, evaluator: OnnxEvaluator, ranges: Any, first: str,
                                                        monkeypatch: pytest.MonkeyPatch) -> None:
    floats = [u.name for u in net.network.units if first not in u.kernels]
    made = plan(net, ranges, floats=floats)
    assert first_integer(net.network, made) > 0
    evaluator.evaluate(made)
    before = evaluator.float_pass_equivalents
    reused = evaluator.evaluate(made)
    assert evaluator.float_pass_equivalents - before < 0.9
    monkeypatch.setattr(evaluator, "_advance", lambda *_: None)
    whole = evaluator.evaluate(made)
    assert (reused.value, reused.drop) == (whole.value, whole.drop)
    assert reused.sqnr_db == pytest.approx(whole.sqnr_db, abs=0.5)


def test_a_cut_holds_the_skip_connection(net: PreparedModel) -> None:
    position = next(i for i, k in enumerate(net.network.kernels) if k.name == "cat")
    assert cut_tensors(net.network, position) == ("ar", "br")


def test_an_all_fp16_plan_is_emulated_not_copied_from_float(net: PreparedModel, evaluator: OnnxEvaluator) -> None:
    found = evaluator.evaluate(plan(net, {}, floats=[u.name for u in net.network.units]))
    assert 40 < found.sqnr_db < 90


def test_float_pass_equivalents_count_samples(net: PreparedModel, ranges: Any) -> None:
    labels = np.zeros(37, np.int64)
    fresh = OnnxEvaluator(net, ArrayDataset({"x": IMAGES}, labels), make("top1"), threads=1)
    assert fresh.float_pass_equivalents == 1.0
    fresh.evaluate(plan(net, ranges), 10)
    assert fresh.float_pass_equivalents == pytest.approx(1.0 + 10 / 37)


@pytest.mark.parametrize("looks", [(8,), (8, 24), (8, 8), (30,)])
def test_growing_subsets_give_the_same_as_one_go(net: PreparedModel, ranges: Any, looks: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    """Samples that were seen do not run again; a look that ends within a run (30 samples, 8 at a time) does not count as seen."""
    monkeypatch.setattr("qbench.evaluation.BATCH_ELEMENTS", 8 * 3 * 16 * 16)
    labels = np.arange(len(IMAGES)) % 5
    fresh = OnnxEvaluator(net, ArrayDataset({"x": IMAGES}, labels), make("top1"), threads=1)
    grown = OnnxEvaluator(net, ArrayDataset({"x": IMAGES}, labels), make("top1"), threads=1)
    int8 = plan(net, ranges)
    start = grown.float_pass_equivalents
    for n in looks:
        seen = grown.evaluate(int8, n)
        assert seen.samples == n
        assert same(seen, fresh.evaluate_model(qdq.write(net, int8).model, n))
    whole = grown.evaluate(int8)
    assert whole.samples == len(IMAGES)
    assert same(whole, fresh.evaluate_model(qdq.write(net, int8).model))
    wasted = looks[-1] if looks[-1] % 8 else 0
    assert grown.float_pass_equivalents - start == pytest.approx(1.0 + wasted / len(IMAGES))


def same(a: Accuracy, b: Accuracy) -> bool:
    return replace(a, seconds=0.0) == replace(b, seconds=0.0) or (np.isnan(a.kl) and replace(a, seconds=0.0, kl=0.0) == replace(b, seconds=0.0, kl=0.0))


def test_simulated_and_integer_kernels_agree_where_this_cpu_does_not_saturate(net: PreparedModel, evaluator: OnnxEvaluator, ranges: Any) -> None:
    if integer_kernels_saturate():
        assert evaluator.simulate
        return
    labels = np.zeros(37, np.int64)
    simulated = OnnxEvaluator(net, ArrayDataset({"x": IMAGES}, labels), make("top1"), threads=1, simulate=True)
    a, b = simulated.evaluate(plan(net, ranges)), evaluator.evaluate(plan(net, ranges))
    assert a.simulated and not b.simulated
    assert a.sqnr_db == pytest.approx(b.sqnr_db, abs=2.0)


def test_shape_arithmetic_across_a_cut_runs_the_whole_graph(ranges: Any) -> None:
    """A dynamic model reads the shape of its input behind the cut: no prefix can be kept, and the figures stay right."""
    nodes = [node("Conv", ["x", "w0"], ["a"], "c0", pads=[1] * 4), node("Relu", ["a"], ["b"], "r0"), node("Shape", ["x"], ["s"], "shape"),
             node("Gather", ["s", "zero"], ["n"], "first", axis=0), node("Concat", ["n", "rest"], ["t"], "target", axis=0),
             node("Reshape", ["b", "t"], ["flat"], "flat"), node("MatMul", ["flat", "w1"], ["y"], "head")]
    proto = model(nodes, {"x": ["N", 3, 16, 16]}, {"y": ["N", 5]}, {"w0": w(4, 3, 3, 3), "w1": w(1024, 5)})
    proto.graph.initializer.extend([onnx.numpy_helper.from_array(np.array([0]), "zero"), onnx.numpy_helper.from_array(np.array([-1]), "rest")])
    prepared = prepare(proto)
    dynamic = OnnxEvaluator(prepared, ArrayDataset({"x": IMAGES}, np.zeros(37, np.int64)), make("top1"), threads=1)
    made = plan(prepared, observe(prepared, [{"x": IMAGES}]), floats=["c0"])
    assert first_integer(prepared.network, made) > 0
    before = dynamic.float_pass_equivalents
    found = dynamic.evaluate(made)
    assert found.samples == 37 and found.sqnr_db > 20
    assert dynamic.float_pass_equivalents - before == pytest.approx(1.0)


def test_a_float_layer_between_integer_ones_keeps_its_float_weights() -> None:
    """onnxruntime's WeightBiasQuantization would store them in 8 bits, one scale for all channels."""
    nodes = [node("Conv", ["x", "w0"], ["a"], "first"), node("Conv", ["a", "w1"], ["b"], "second"), node("Conv", ["b", "w2"], ["y"], "third")]
    spread = np.exp(RNG.normal(0, 3, (8, 1, 1, 1))).astype(np.float32)
    prepared = prepare(model(nodes, {"x": [1, 3, 16, 16]}, {"y": [1, 8, 16, 16]}, {"w0": w(8, 3, 1, 1), "w1": w(8, 8, 1, 1) * spread, "w2": w(8, 8, 1, 1)}))
    feeds = {"x": IMAGES[:1]}
    written = qdq.write(prepared, plan(prepared, observe(prepared, [feeds]), floats=["second"])).model
    written.graph.outputs.append(next(v for n in written.graph for v in n.outputs if v.name == "b"))
    fed = next(v for n in written.graph if n.name == "second" for v in n.inputs if v is not None)
    written.graph.outputs.append(fed)
    made = Session(qdq.to_bytes(written), 1).run(feeds)
    expected = np.einsum("oi,nihw->nohw", weights_of(prepared)["w1"][:, :, 0, 0], made[str(fed.name)])
    assert np.allclose(made["b"], expected, rtol=1e-4, atol=1e-5)


def weights_of(prepared: PreparedModel) -> dict[str, Array]:
    return {k: v.const_value.numpy() for k, v in prepared.model.graph.initializers.items() if v.const_value is not None}


@pytest.mark.parametrize("perm", [[2, 0, 1, 3], [1, 2, 3, 0]])
def test_outputs_need_not_begin_with_the_samples(perm: list[int]) -> None:
    """A recurrent network puts out [time, samples, classes]; some put samples last. The batch axis of the input is free."""
    nodes = [node("Conv", ["x", "w"], ["c"], "conv"), node("Transpose", ["c"], ["y"], "turn", perm=perm)]
    prepared = prepare(model(nodes, {"x": ["N", 3, 8, 8]}, {"y": None}, {"w": w(4, 3, 1, 1)}))
    images = IMAGES[:5, :, :8, :8]
    found = OnnxEvaluator(prepared, ArrayDataset({"x": images}), make("sqnr"), threads=1)
    made = plan(prepared, observe(prepared, [{"x": images}]))
    accuracy = found.evaluate(made)
    session, integers = Session(net_bytes(prepared), 1), Session(qdq.to_bytes(qdq.write(prepared, made).model), 1, found.simulate)
    was, now = (np.stack([s.run({"x": i[None]})["y"].astype(np.float64) for i in images]) for s in (session, integers))
    assert accuracy.samples == 5
    assert accuracy.sqnr_db == pytest.approx(10 * np.log10((was**2).sum() / ((was - now) ** 2).sum()), abs=0.01)
