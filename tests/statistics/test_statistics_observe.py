"""The watching session: weights that are lent to it, types that only onnxruntime knows, tensors another worker is counting."""

from __future__ import annotations

from collections.abc import Callable
from threading import Event, Thread
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
from models import Array, model, node

from qbench.data import ArrayDataset
from qbench.errors import NonFinite
from qbench.statistics import collect, counting
from qbench.statistics import observe as module
from qbench.statistics.counter import Counter

RNG = np.random.default_rng(0)
IMAGES = RNG.normal(size=(4, 16, 8, 8)).astype(np.float32)
WEIGHT = RNG.normal(0, 0.2, (16, 16, 3, 3)).astype(np.float32)      # 9216 bytes


def two_convs() -> ir.Model:
    """No shape or type inference was run: the type of `c` is not in the model."""
    weights: dict[str, Array] = {"w": WEIGHT, "v": WEIGHT[:, :, :1, :1].copy()}
    return ir.serde.deserialize_model(model([node("Conv", ["x", "w"], ["c"], "first"), node("Conv", ["c", "v"], ["y"], "second")],
                                            {"x": ["N", 16, 8, 8]}, {"y": ["N", 16, 6, 6]}, weights))


def test_lent_weights_change_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    net, data = two_convs(), ArrayDataset({"x": IMAGES})
    assert [array.nbytes for array, _ in module.observe(net, ["c"], 1).weights] == [WEIGHT.nbytes]
    lent = collect(net, ["c", "y"], data)
    monkeypatch.setattr(module, "LENT_BYTES", 1 << 30)
    assert module.observe(net, ["c"], 1).weights == ()
    held = collect(net, ["c", "y"], data)
    for name in ("c", "y"):
        assert np.array_equal(lent[name].codes, held[name].codes) and np.array_equal(lent[name].counts, held[name].counts)
        assert (lent[name].total, lent[name].squares) == (held[name].total, held[name].squares)


def test_the_model_of_the_caller_keeps_its_weights() -> None:
    net = two_convs()
    module.observe(net, ["c"], 1)
    kept = net.graph.initializers["w"].const_value
    assert kept is not None and np.array_equal(kept.numpy(), WEIGHT)


def test_inputs_are_known_without_a_session() -> None:
    (found,) = module.observe(two_convs(), ["x"], 1).expected
    assert str(found) == "x: float32 [N, 16, 8, 8]"


def test_a_tensor_that_another_worker_counts_is_taken_last(monkeypatch: pytest.MonkeyPatch) -> None:
    """And it is still the first on the way through the network that gets the blame."""
    order: list[str] = []
    update: Callable[..., Any] = Counter.update

    def noted(counter: Counter, *arguments: Any) -> Any:
        order.append(counter.name)
        return update(counter, *arguments)

    monkeypatch.setattr(Counter, "update", noted)
    monkeypatch.setattr(Counter, "busy", property(lambda self: self.name == "c"))
    images = IMAGES[:1].copy()
    images[0, 0, 0, 0] = np.nan
    with pytest.raises(NonFinite, match=r"tensor 'c' from node 'first'"):
        collect(two_convs(), ["c", "y"], ArrayDataset({"x": images}), threads=1)
    assert order == ["y", "c"]


def test_busy_while_another_thread_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    counter, inside, go_on, count = Counter("x"), Event(), Event(), counting.count

    def slow(*arguments: Any) -> Any:
        inside.set()
        assert go_on.wait(10)
        return count(*arguments)

    monkeypatch.setattr(counting, "count", slow)
    thread = Thread(target=counter.update, args=(IMAGES, 0, 4))
    thread.start()
    assert inside.wait(10)
    assert counter.busy
    go_on.set()
    thread.join()
    assert not counter.busy
    assert counter.statistics().count == IMAGES.size
