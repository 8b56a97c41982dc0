"""The walk over the kernels of a float and a quantized model, with whole runs of both as the oracle."""

from collections.abc import Iterator

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from models import Array, model, node, observe, plan, prepare

from qbench import qdq
from qbench.errors import DataError
from qbench.graph import PreparedModel
from qbench.network import Precision
from qbench.plan import Plan
from qbench.protocols import Batch
from qbench.runtime import Session
from qbench.walk import Walk, chunk_size, samples_of

RNG = np.random.default_rng(0)


def w(*shape: int) -> Array:
    return RNG.normal(0, 0.4, shape).astype(np.float32)


def branched(batch: int | str = "N") -> onnx.ModelProto:
    """Conv+Relu -> (MaxPool | Conv+Add+Relu) -> Concat -> Conv -> Sigmoid -> Mul, with a skip that stays alive for long."""
    weights = {"w0": w(4, 3, 3, 3), "b0": w(4), "w1": w(4, 4, 3, 3), "b1": w(4), "w2": w(5, 8, 1, 1), "half": np.array(0.5, np.float32)}
    nodes = [node("Conv", ["x", "w0", "b0"], ["c0"], "first", pads=[1, 1, 1, 1]), node("Relu", ["c0"], ["r0"], "relu0"),
             node("Conv", ["r0", "w1", "b1"], ["c1"], "second", pads=[1, 1, 1, 1]), node("Add", ["c1", "r0"], ["a1"], "residual"),
             node("Relu", ["a1"], ["r1"], "relu1"), node("Concat", ["r1", "r0"], ["cat"], "concat", axis=1),
             node("Conv", ["cat", "w2"], ["c2"], "third"), node("Sigmoid", ["c2"], ["s"], "gate"), node("Mul", ["s", "half"], ["y"], "scale")]
    return model(nodes, {"x": [batch, 3, 8, 8]}, {"y": [batch, 5, 8, 8], "r1": [batch, 4, 8, 8]}, weights)


class Listed:
    """A data set of the given arrays, one a sample."""

    name, key = "listed", "k"

    def __init__(self, arrays: list[Array]) -> None:
        self.arrays = arrays

    def __len__(self) -> int:
        return len(self.arrays)

    def batches(self, size: int = 1) -> Iterator[Batch]:
        return (Batch({"x": a}, None, n) for n, a in enumerate(self.arrays))


def data(count: int) -> list[dict[str, Array]]:
    return [{"x": RNG.normal(size=(1, 3, 8, 8)).astype(np.float32)} for _ in range(count)]


def opened(proto: onnx.ModelProto, samples: list[dict[str, Array]], floats: tuple[str, ...] = ()) -> tuple[PreparedModel, Plan]:
    prepared = prepare(proto)
    return prepared, plan(prepared, observe(prepared, samples), floats=floats)


def everything(graph_model: ir.Model, samples: list[dict[str, Array]], names: dict[str, str], simulate: bool) -> dict[str, Array]:
    """The values `names` of a whole model on all samples."""
    watched = graph_model.clone()
    values = {str(v.name): v for n in watched.graph for v in n.outputs}
    watched.graph.outputs.extend([values[n] for n in dict.fromkeys(names.values()) if not values[n].is_graph_output()])
    session = Session(qdq.to_bytes(watched), 1, simulate)
    runs = [session.run(s) for s in samples]
    return {t: np.concatenate([r[n] for r in runs]) for t, n in names.items()}


def joined(values: list[dict[str, Array]], tensor: str) -> Array:
    return np.concatenate([chunk[tensor] for chunk in values])


@pytest.mark.parametrize("batch", ["N", 1])
@pytest.mark.parametrize("floats", [(), ("second",), ("first", "third")])
def test_float_and_accumulated_values_are_those_of_the_whole_models(batch: int | str, floats: tuple[str, ...]) -> None:
    samples = data(6)
    prepared, made = opened(branched(batch), samples, floats)
    walk = Walk(prepared, made, samples, threads=1, simulate=True)
    seen = []
    floating = everything(walk.prepared.model, walk.feeds, {t: t for k in prepared.network.kernels for t in k.outputs}, False)
    whole = everything(walk.written.model, walk.feeds, {t: walk.written.stored[t] for k in prepared.network.kernels for t in k.outputs}, True)
    for step in walk.steps():
        seen.append(step.kernel.name)
        for tensor in step.kernel.outputs:
            np.testing.assert_allclose(joined(step.reference, tensor), floating[tensor], rtol=1e-5, atol=1e-6)
            np.testing.assert_allclose(joined(step.accumulated, tensor), whole[tensor], rtol=1e-5, atol=1e-5)
    assert seen == [k.name for k in prepared.network.kernels]
    assert walk.sample_count == 6


def test_an_isolated_error_is_the_kernels_own() -> None:
    """A kernel with weights and activations on the codes already errs nowhere, whatever the kernels before it lost."""
    weights = {"w0": w(3, 3, 1, 1), "w1": np.eye(3, dtype=np.float32).reshape(3, 3, 1, 1)}
    nodes = [node("Conv", ["x", "w0"], ["a"], "first"), node("Conv", ["a", "w1"], ["y"], "second")]
    samples = data(3)
    prepared, made = opened(model(nodes, {"x": ["N", 3, 8, 8]}, {"y": None}, weights), samples)
    first, second = Walk(prepared, made, samples, threads=1, simulate=True).steps()
    lost = np.abs(joined(first.accumulated, "a") - joined(first.reference, "a")).max()
    assert joined(first.isolated, "a").tolist() == joined(first.accumulated, "a").tolist()          # nothing quantized came before
    step = np.abs(joined(second.isolated, "y") - joined(second.reference, "y")).max()
    span = joined(first.reference, "a")
    assert 0 < step <= (span.max() - span.min()) / 255                                              # its own pairs alone
    assert np.abs(joined(second.accumulated, "y") - joined(first.accumulated, "a")).max() <= 1e-5   # and codes stay codes
    assert lost > step / 2


def test_float_kernels_before_any_integer_run_once() -> None:
    samples = data(4)
    prepared, made = opened(branched(), samples, ("first",))
    walk = Walk(prepared, made, samples, threads=1, simulate=True)
    step = next(iter(walk.steps()))
    assert step.accumulated is step.reference


def test_activations_live_only_as_long_as_they_are_read() -> None:
    samples = data(2)
    prepared, made = opened(branched(), samples)
    walk = Walk(prepared, made, samples, threads=1)
    held = {}
    for step in walk.steps():
        held[step.kernel.name] = set(walk.quantized_values[0])
    assert held["third"] >= {"cat"} and "r0" not in held["third"]
    assert set(walk.quantized_values[0]) == {"x"} == set(walk.float_values[0])


def test_steps_hold_the_inner_tensors_that_have_codes_of_their_own() -> None:
    samples = data(2)
    prepared, made = opened(branched(), samples)
    steps = {s.kernel.name: s for s in Walk(prepared, made, samples, threads=1, simulate=True).steps()}
    assert set(steps["first"].reference[0]) == {"r0"}                        # c0 is cut by the Relu: no pair
    assert set(steps["second"].reference[0]) == {"r1", "c1"}                 # c1 has one, in front of the residual


@pytest.mark.parametrize(("count", "size"), [(1, 1), (6, 6), (7, 7)])
def test_chunks_are_equally_long(count: int, size: int) -> None:
    assert chunk_size(prepare(branched()), data(count)) == size
    assert chunk_size(prepare(branched(1)), data(count)) == 1


def test_the_walk_takes_samples_of_one_shape_only() -> None:
    sides = (4, 6, 4)
    found = samples_of(Listed([np.full((1, 3, side, 4), n, np.float32) for n, side in enumerate(sides)]), 8)
    assert [int(s["x"].flat[0]) for s in found] == [0, 2]


def test_an_empty_data_set_is_refused() -> None:
    with pytest.raises(DataError, match="'listed' holds no sample"):
        samples_of(Listed([]), 4)


def test_integer_kernels_and_the_written_form_agree() -> None:
    """What the walk runs by default are the integer kernels that the shipped file runs by."""
    samples = data(4)
    prepared, made = opened(branched(), samples)
    for fast, slow in zip(Walk(prepared, made, samples, threads=1, simulate=False).steps(),
                          Walk(prepared, made, samples, threads=1, simulate=True).steps(), strict=True):
        for tensor in fast.kernel.outputs:
            a, b = joined(fast.isolated, tensor), joined(slow.isolated, tensor)
            step = (b.max() - min(b.min(), 0)) / 255
            assert np.abs(a - b).max() <= 1.01 * step
    assert Precision.INT8 in made.precision.values()
