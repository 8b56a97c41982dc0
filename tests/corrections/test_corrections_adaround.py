"""Learned rounding: against exhaustive search, never worse than nearest, the same every time."""

from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest
from learned_layers import KINDS, four_bits, opened, output, quality_db, with_tensors
from models import Array, model, node, observe, plan, prepare

from qbench import qdq
from qbench.corrections import adaround
from qbench.corrections.adaround import annealed, learned_rounding, rectified_sigmoid
from qbench.corrections.bias import corrected_biases
from qbench.corrections.flips import flipped
from qbench.corrections.steps import AdaRound, BiasCorrection
from qbench.errors import InputError
from qbench.graph import PreparedModel
from qbench.plan import Granularity, Plan

QUICK = AdaRound(iterations=200, positions=1024, batch=256)


def codes(prepared: PreparedModel, made: Plan, weight: str) -> Array:
    """The codes of a weight in the written model."""
    value = next(v for k, v in qdq.write(prepared, made).model.graph.initializers.items() if k.startswith(f"{weight}_q"))
    assert value.const_value is not None
    return value.const_value.numpy()


@pytest.mark.parametrize("kind", KINDS)
def test_rounding_is_learned_on_every_kind_of_layer(kind: str) -> None:
    """At 4 bits, on samples it has not seen as well; codes stay within one of nearest and within the scheme."""
    prepared, made, samples = opened(kind)
    found = learned_rounding(prepared, made, samples, QUICK, threads=1, simulate=True)
    assert found.tensors, found.remarks
    after = with_tensors(made, found.tensors)
    assert quality_db(prepared, after, samples) > quality_db(prepared, made, samples) + 1
    for key, packed in found.tensors.items():
        weight = key.removeprefix("round:")
        assert packed.dtype == "int8" and set(np.unique(packed.array)) <= {-1, 0, 1} and packed.array.any()
        assert codes(prepared, after, weight).min() >= -7 and codes(prepared, after, weight).max() <= 7
        assert np.array_equal(codes(prepared, after, weight) - codes(prepared, made, weight), packed.array.reshape(codes(prepared, made, weight).shape))


@pytest.mark.parametrize("kind", ["conv", "transposed", "gemm", "gemm-t", "matmul-bias"])
def test_weights_in_blocks_are_learned_and_corrected_too(kind: str) -> None:
    """Per group: the codes lie in the file in another shape than the weight."""
    prepared, made, samples = opened(kind, granularity=Granularity.PER_GROUP)
    found = learned_rounding(prepared, made, samples, QUICK, threads=1, simulate=True)
    after = with_tensors(made, found.tensors)
    assert found.tensors and quality_db(prepared, after, samples) > quality_db(prepared, made, samples)
    bias = corrected_biases(prepared, after, samples, BiasCorrection(), threads=1, simulate=True)
    assert set(bias.tensors) == {"bias:first", "bias:second"}
    assert quality_db(prepared, with_tensors(after, bias.tensors), samples) > quality_db(prepared, made, samples)


def test_after_the_flips_no_weight_and_no_pair_can_do_better() -> None:
    """Oracle: the loss of every single and double flip, for eight weights on inputs of rank 1 and noise, from a random start."""
    import torch
    rng = np.random.default_rng(0)
    for _ in range(12):
        x = rng.normal(size=(1, 64, 1)) @ rng.normal(size=(1, 1, 8)) + 0.3 * rng.normal(size=(1, 64, 8))
        w = rng.normal(size=(1, 8, 3))
        low = np.floor(w * 4) / 4
        start = low + 0.25 * rng.integers(0, 2, w.shape)
        y, other = x @ w, np.where(start == low, low + 0.25, low)
        flips = flipped(*(torch.tensor(v) for v in (x, y, start, other))).numpy()
        for o in range(3):
            def loss(up: Array, o: int = o, x: Array = x, y: Array = y, start: Array = start, other: Array = other) -> float:
                return float(np.square(x[0] @ np.where(up, other[0, :, o], start[0, :, o]) - y[0, :, o]).mean())

            made = flips[0, :, o]
            reached = loss(made)
            for i, j in product(range(8), repeat=2):
                turned = made.copy()
                turned[[i, j]] ^= True
                assert loss(turned) >= reached * (1 - 1e-5)
            assert reached <= loss(np.zeros(8, bool))


def one_layer(seed: int, relu: bool) -> tuple[PreparedModel, Plan, list[dict[str, Array]], Array]:
    """Gemm 8 -> 1 on inputs that all lean one way, where rounding each weight by itself is bad."""
    rng = np.random.default_rng(seed)
    w = rng.normal(size=(8, 1)).astype(np.float32)
    nodes = [node("Gemm", ["x", "w"], ["g"], "first"), *([node("Relu", ["g"], ["y"], "relu")] if relu else [])]
    prepared = prepare(model(nodes, {"x": ["N", 8]}, {"y" if relu else "g": ["N", 1]}, {"w": w}))
    x = (rng.normal(size=(64, 1)) @ rng.normal(size=(1, 8)) + 0.3 * rng.normal(size=(64, 8))).astype(np.float32)
    samples = [{"x": row[None]} for row in x]
    scheme = {"int8": replace(four_bits()["int8"], activation=replace(four_bits()["int8"].activation, bits=16))}
    return prepared, plan(prepared, observe(prepared, samples), schemes=scheme), samples, w


@pytest.mark.parametrize("relu", [False, True])
def test_it_comes_close_to_the_best_of_all_roundings(relu: bool) -> None:
    """Oracle: all 2^8 ways to round the weights of a layer. Nearest is far from the best; what is learned is within 10 % of it."""
    ratios = []
    for seed in range(4):
        prepared, made, samples, w = one_layer(seed, relu)
        scale = float(np.abs(w).max() / 7)
        x = np.concatenate([s["x"] for s in samples])
        low, high = min(x.min(), 0.0), max(x.max(), 0.0)
        step = (high - low) / 65535
        x_q = (np.clip(np.rint(x / step) + np.rint(-low / step), 0, 65535) - np.rint(-low / step)) * step

        def loss(code: Array, x: Array = x, x_q: Array = x_q, w: Array = w, scale: float = scale) -> float:
            target, made_ = x @ w, x_q @ (code * scale)
            if relu:
                target, made_ = np.maximum(target, 0), np.maximum(made_, 0)
            return float(np.square(target - made_).mean())

        below = np.floor(w / scale)
        best = min(loss(np.clip(below + np.reshape(up, (8, 1)), -7, 7)) for up in product((0, 1), repeat=8))
        nearest = np.clip(np.rint(w / scale), -7, 7)
        found = learned_rounding(prepared, made, samples, AdaRound(iterations=400), threads=1, simulate=True)
        offsets = found.tensors["round:w"].array if found.tensors else np.zeros_like(nearest)
        ratios.append((loss(nearest + offsets) / best, loss(nearest) / best))
    learned, usual = np.mean(ratios, axis=0)
    assert usual > 1.5 and learned < 1.1, ratios


def test_a_layer_that_does_not_gain_keeps_nearest_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever learning comes up with, the real kernel's error decides."""
    prepared, made, samples = opened("conv")
    monkeypatch.setattr(adaround, "_learn", lambda layer, pool, step: 1.0 - np.rint(layer.weight / layer.codes.scales - layer.below))
    found = learned_rounding(prepared, made, samples, QUICK, threads=1, simulate=True)
    assert not found.tensors
    for layer in ("first", "second"):
        assert "stays rounded to nearest: squared error" in found.remarks[layer] and "held-out" in found.remarks[layer]


def test_what_fits_only_the_samples_it_was_learned_on_is_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    losses = iter([(1.0, 1.0), (0.5, 1.1), (1.0, 1.0), (0.5, 1.1)])
    monkeypatch.setattr(adaround, "_losses", lambda reference, made: next(losses))
    prepared, made, samples = opened("conv")
    found = learned_rounding(prepared, made, samples, QUICK, threads=1)
    assert not found.tensors and "0.5 times as large (1.1 times on held-out samples)" in found.remarks["first"]


def test_a_missing_device_is_refused() -> None:
    import torch
    if torch.cuda.is_available():
        pytest.skip("there is one here")
    prepared, made, samples = opened("gemm")
    with pytest.raises(InputError, match="device=cuda, but torch finds no CUDA device"):
        learned_rounding(prepared, made, samples, replace(QUICK, device="cuda"), threads=1)


def test_few_samples_hold_none_out() -> None:
    """Two samples: nothing to divide by in the texts, and the layer still learns or says why not."""
    prepared, made, samples = opened("conv")
    found = learned_rounding(prepared, made, samples[:2], QUICK, threads=1)
    assert set(found.tensors) | {f"round:w{i}" for i, layer in enumerate(("first", "second")) if layer in found.remarks} == {"round:w0", "round:w1"}
    assert (adaround._ratio(1.0, 0.0), adaround._ratio(0.0, 0.0), adaround._ratio(1.0, 2.0)) == ("infinitely often", "once", "0.5 times")


def test_the_loss_counts_every_fourth_sample_as_held_out() -> None:
    reference = [{"y": np.zeros((3, 2), np.float32)}, {"y": np.zeros((3, 2), np.float32)}]
    made = [{"y": np.array([[1, 0], [2, 0], [3, 0]], np.float32)}, {"y": np.array([[4, 0], [5, 0], [6, 0]], np.float32)}]
    assert adaround._losses(reference, made) == (91.0, 16.0)


def test_the_same_seed_gives_the_same_bits() -> None:
    prepared, made, samples = opened("conv")
    one, two = (learned_rounding(prepared, made, samples, QUICK, threads=1) for _ in range(2))
    assert one.tensors == two.tensors and one.remarks == two.remarks


def test_torch_is_left_as_it_was() -> None:
    import torch
    torch.set_num_threads(2)
    prepared, made, samples = opened("gemm")
    with torch.no_grad():
        assert learned_rounding(prepared, made, samples, QUICK, threads=1).tensors
        assert not torch.is_grad_enabled()
    assert torch.get_num_threads() == 2


@pytest.mark.parametrize(("case", "words"), [
    ("shared", "shared by several layers"), ("wide", "16-bit weights have nothing to gain"), ("exact", "its weights are codes already")])
def test_layers_with_nothing_to_learn_say_so(case: str, words: str) -> None:
    rng = np.random.default_rng(0)
    w = rng.integers(-7, 8, (4, 4, 1, 1)).astype(np.float32)
    w[:, 0] = 7
    weights = {"w0": w if case == "exact" else w + 0.3, "w1": w if case == "exact" else w - 0.3}
    nodes = [node("Conv", ["x", "w0"], ["a"], "first"), node("Conv", ["a", "w0" if case == "shared" else "w1"], ["y"], "second")]
    prepared = prepare(model(nodes, {"x": ["N", 4, 3, 3]}, {"y": None}, {k: v for k, v in weights.items() if case != "shared" or k == "w0"}))
    samples = [{"x": rng.normal(size=(1, 4, 3, 3)).astype(np.float32)} for _ in range(4)]
    made = plan(prepared, observe(prepared, samples), schemes=four_bits(16 if case == "wide" else 4), granularity=Granularity.PER_LAYER)
    found = learned_rounding(prepared, made, samples, QUICK, threads=1)
    assert not found.tensors and words in found.remarks["first"] and words in found.remarks["second"]


def test_the_regulariser_and_the_sigmoid_are_those_of_the_paper() -> None:
    """h(0) = 0.5, exact 0 and 1 within reach; the exponent falls from 20 to 2."""
    import torch
    h = rectified_sigmoid(torch.tensor([-10.0, -2.3979, 0.0, 2.3979, 10.0]))
    np.testing.assert_allclose(h.numpy(), [0.0, 0.0, 0.5, 1.0, 1.0], atol=1e-4)        # ln 11: where the stretched sigmoid meets 0
    assert annealed(0.2) == 20.0 and annealed(1.0) == pytest.approx(2.0) and annealed(0.6) == pytest.approx(11.0)


def activations() -> list[tuple[str, list[Any], dict[str, Array]]]:
    f = np.float32
    return [("Relu", [node("Relu", ["c"], ["y"])], {}), ("Clip", [node("Clip", ["c", "low", "high"], ["y"])], {"low": np.array(-0.5, f), "high": np.array(0.7, f)}),
            ("LeakyRelu", [node("LeakyRelu", ["c"], ["y"], alpha=0.3)], {}), ("PRelu", [node("PRelu", ["c", "s"], ["y"])], {"s": np.linspace(0, 1, 4, dtype=f).reshape(4, 1, 1)}),
            ("Sigmoid", [node("Sigmoid", ["c"], ["y"])], {}), ("Tanh", [node("Tanh", ["c"], ["y"])], {}), ("Elu", [node("Elu", ["c"], ["y"], alpha=0.7)], {}),
            ("HardSigmoid", [node("HardSigmoid", ["c"], ["y"], alpha=0.3)], {}), ("HardSwish", [node("HardSwish", ["c"], ["y"])], {}),
            ("Swish", [node("Sigmoid", ["c"], ["g"]), node("Mul", ["c", "g"], ["y"])], {}), ("Softplus", [node("Softplus", ["c"], ["y"])], {}),
            ("HardSigmoid x", [node("HardSigmoid", ["c"], ["g"]), node("Mul", ["c", "g"], ["y"])], {}), ("Selu", [node("Selu", ["c"], ["y"])], {}),
            ("nothing", [], {})]


@pytest.mark.parametrize(("name", "nodes", "weights"), activations(), ids=lambda v: v if isinstance(v, str) else "")
def test_the_function_behind_a_layer_is_the_networks(name: str, nodes: list[Any], weights: dict[str, Array]) -> None:
    """Oracle: onnxruntime's output of the fused kernel."""
    import torch

    from qbench.corrections.activations import activation_of
    from qbench.corrections.anchors import anchors
    rng = np.random.default_rng(0)
    held = {"w": rng.normal(size=(4, 3, 1, 1)).astype(np.float32), **weights}
    prepared = prepare(model([node("Conv", ["x", "w"], ["c"], "first"), *nodes], {"x": ["N", 3, 4, 4]}, {"y" if nodes else "c": None}, held))
    samples = [{"x": rng.normal(size=(2, 3, 4, 4)).astype(np.float32)}]
    function = activation_of(prepared.network.kernels[0], anchors(prepared.model.graph)["first"])
    c = torch.tensor(output(prepared, None, samples, "c")).reshape(2, 4, 16).permute(0, 2, 1)
    made = torch.cat([function(one[None]) for one in c]).permute(0, 2, 1).reshape(2, 4, 4, 4).numpy()
    np.testing.assert_allclose(made, output(prepared, None, samples), rtol=1e-5, atol=1e-6)
