"""Largest batch and image, and whether a kernel's operands stay on chip."""

from __future__ import annotations

import pytest
from cost_networks import branched, conv, network
from memory_networks import plain

from qbench.cost import cost_model, fits, residency
from qbench.cost.fits import (
    batched,
    fixed_resolution,
    image_step,
    largest_batch,
    largest_resolution,
    needed_bytes,
    resized,
)
from qbench.errors import TargetError
from qbench.network import Kernel, Network, Precision
from qbench.targets import load

INT8 = Precision.INT8


def pyramid(pixels: int = 224) -> Network:
    """A convolution at half, one at a quarter of the image, a global pool and a classifier."""
    half, quarter = pixels // 2, pixels // 4
    kernels = [conv("a", "x", "s", 3, 32, half), conv("b", "s", "t", 32, 64, quarter),
               Kernel("p", "GlobalAveragePool", "global_pool", ("p",), ("t",), ("u",), in_channels=64, in_h=quarter, in_w=quarter, out_channels=64),
               plain("f", "Flatten", "reshape", ("u",), ("v",)), Kernel("c", "Gemm", "matmul", ("c",), ("v",), ("y",), weights=640, in_channels=64, out_channels=10)]
    shapes = {"x": (1, 3, pixels, pixels), "s": (1, 32, half, half), "t": (1, 64, quarter, quarter), "u": (1, 64, 1, 1), "v": (1, 64), "y": (1, 10)}
    return network(kernels, shapes, ("x",), ("y",))


def test_the_answer_is_the_largest_that_fits() -> None:
    net, target, memory = pyramid(), load("stm32h7"), 2_000_000
    batch, rows = largest_batch(net, target, INT8, memory), largest_resolution(net, target, INT8, memory)
    step, exact = image_step(net)
    assert (step, exact) == (4, True)
    assert needed_bytes(batched(net, batch), target, INT8) <= memory < needed_bytes(batched(net, batch + 1), target, INT8)
    assert needed_bytes(resized(net, rows, 224), target, INT8) <= memory < needed_bytes(resized(net, rows + step, 224), target, INT8)
    found = fits(net, target, INT8, memory)
    assert (found.batch, found.resolution, found.where, found.resolution_reason) == (batch, (rows, rows), "given", "")
    assert found.needed_bytes == needed_bytes(net, target, INT8)


def test_bytes_by_hand() -> None:
    """Input and output of the widest kernel: 3 x 224 x 224 and 32 x 112 x 112 bytes, and the runtime's 16 KiB."""
    assert needed_bytes(pyramid(), load("stm32h7"), INT8) == 32 * 112 * 112 + max(3 * 224 * 224, 64 * 56 * 56) + 16384


def test_a_resized_network_is_the_one_made_for_that_size() -> None:
    assert {t: s.shape for t, s in resized(pyramid(224), 160, 224).tensors.items()} == {t: s.shape for t, s in pyramid(160).tensors.items()}


def test_on_chip_memory_or_ram_is_the_default_and_nothing_may_fit() -> None:
    found = fits(pyramid(), load("rk3588"), INT8)
    assert (found.memory_bytes, found.where, found.batch) == (384 * 1024, "on-chip memory", 0)
    assert found.resolution[0] < 224
    assert fits(pyramid(), load("stm32h7"), INT8).where == "RAM"
    nothing = fits(pyramid(), load("stm32h7"), INT8, 10_000)                   # less than the runtime alone
    assert (nothing.batch, nothing.resolution) == (0, (0, 0))


def test_a_target_without_a_known_memory_is_asked_for_one() -> None:
    with pytest.raises(TargetError, match=r"target host: no size of its on-chip memory or RAM is known; give the bytes, for example 1500000"):
        fits(pyramid(), load("host"), INT8)
    assert fits(pyramid(), load("host"), INT8, 1_500_000).batch >= 1


def test_a_classifier_on_a_flattened_image_fixes_the_resolution() -> None:
    kernels = [conv("a", "x", "s", 3, 16, 8), plain("f", "Flatten", "reshape", ("s",), ("v",)),
               Kernel("c", "Gemm", "matmul", ("c",), ("v",), ("y",), weights=10240, in_channels=1024, out_channels=10)]
    net = network(kernels, {"x": (1, 3, 16, 16), "s": (1, 16, 8, 8), "v": (1, 1024), "y": (1, 10)}, ("x",), ("y",))
    assert fixed_resolution(net) == "kernel 'f' (Flatten) turns an image of 8x8 into (1, 1024): what follows is made for that size"
    assert fits(net, load("stm32h7"), INT8).resolution == (0, 0)
    flat = network([plain("r", "Relu", "activation", ("x",), ("y",))], {"x": (1, 64), "y": (1, 64)}, ("x",), ("y",))
    assert fixed_resolution(flat) == "no graph input has four axes, so there is no image size to change"


def test_residency_by_hand() -> None:
    """RK3588, 12 banks: 64 channels at 56 x 56 take 7 banks (COST_MODELS section 10); weights of 3 x 3 x 64 x 64 bytes take 3, of 5 times as many 7."""
    model = cost_model(load("rk3588"))
    shapes = {"x": (1, 64, 56, 56), "y": (1, 64, 56, 56), "w": (1, 320, 56, 56), "big": (1, 64, 224, 224), "out": (1, 64, 224, 224)}
    kernels = [conv("fits", "x", "y", 64, 64, 56), conv("weights", "x", "w", 64, 320, 56), conv("rows", "big", "out", 64, 64, 224),
               plain("map", "Relu", "activation", ("y",), ("y2",))]
    net = network(kernels, shapes | {"y2": (1, 64, 56, 56)}, ("x", "big"), ("w", "out", "y2"))
    assert [residency(k, net, INT8, model) for k in kernels] == ["resident", "streamed", "banded", ""]
    managed, mcu = cost_model(load("hexagon")), cost_model(load("stm32h7"))
    assert [residency(k, net, INT8, managed) for k in kernels[:3]] == ["resident", "resident", "resident"]
    assert residency(kernels[2], net, Precision.FP16, managed) == "streamed"
    assert residency(kernels[0], branched(), INT8, mcu) == ""
