"""Cycles per MAC of an STM32H7: fits the three constants of the microcontroller model on the published MobileNetV1 latencies.

    python experiments/fit_stm32h7.py            prints the constants and the errors with one network left out
    python experiments/fit_stm32h7.py --write    also writes targets/stm32h7.toml

Source of the figures: STM32 AI model zoo READMEs, STM32H747I-DISCO at 400 MHz, STM32Cube.AI 10.0.0, int8 (2026). Four rows of one design
cannot tell much about another one; the interval says so.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import exp, log

import numpy as np
from fit_targets import write_target
from numpy.typing import NDArray
from scipy.optimize import least_squares
from validation import Prediction
from validation import replace as write_validation

from qbench.cost import cost_model
from qbench.cost.mcu import McuModel
from qbench.network import Kernel, Network, Precision, TensorSpec, Unit
from qbench.targets import load

# width, pixels, milliseconds
PUBLISHED = [(1.0, 224, 1642.0), (0.5, 224, 504.0), (0.25, 224, 167.0), (0.25, 96, 30.0)]     # the last from its 1.6 cycles per MAC
PRIOR = {"cycles_per_mac_dense": (1.1, 1.0), "cycles_per_mac_depthwise": (2.5, 1.0), "cycles_per_output": (4.0, 0.5)}    # start, weight per factor of e
BLOCKS = [(64, 1), (128, 2), (128, 1), (256, 2), (256, 1), (512, 2), *[(512, 1)] * 5, (1024, 2), (1024, 1)]


def mobilenet_v1(width: float, pixels: int) -> Network:
    """MobileNetV1 (arXiv 1704.04861, table 1) without its classifier's softmax."""
    channels, size = max(8, int(32 * width)), -(-pixels // 2)
    shapes: dict[str, tuple[int, ...]] = {"x": (1, 3, pixels, pixels), "t0": (1, channels, size, size)}
    kernels = [_conv("stem", "x", "t0", 3, channels, pixels, size, 3, 2, 1)]
    for i, (wide, stride) in enumerate(BLOCKS):
        out, goal = max(8, int(wide * width)), -(-size // stride)
        shapes |= {f"d{i}": (1, channels, goal, goal), f"t{i + 1}": (1, out, goal, goal)}
        kernels += [_conv(f"depthwise{i}", f"t{i}", f"d{i}", channels, channels, size, goal, 3, stride, channels),
                    _conv(f"pointwise{i}", f"d{i}", f"t{i + 1}", channels, out, goal, goal, 1, 1, 1)]
        channels, size = out, goal
    shapes |= {"y": (1, 1000)}
    kernels.append(Kernel("classes", "GlobalAveragePool+Gemm", "matmul", ("classes",), (f"t{len(BLOCKS)}",), ("y",), macs=channels * 1000,
                          weights=channels * 1000, biases=1000, in_channels=channels, out_channels=1000))
    specs = {t: TensorSpec(t, s, "float32") for t, s in shapes.items()}
    return Network("mobilenet_v1", "", ("x",), ("y",), specs, tuple(kernels), tuple(Unit(k.name, (k.name,)) for k in kernels), ())


def _conv(name: str, source: str, goal: str, cin: int, cout: int, size: int, out: int, kernel: int, stride: int, groups: int) -> Kernel:
    taps = kernel * kernel * cin // groups
    return Kernel(name, "Conv+Relu", "depthwise" if groups > 1 else "conv", (name,), (source,), (goal,), macs=out * out * cout * taps, weights=cout * taps,
                  biases=cout, in_channels=cin, in_h=size, in_w=size, out_channels=cout, out_h=out, out_w=out, kernel_h=kernel, kernel_w=kernel,
                  stride_h=stride, stride_w=stride, groups=groups, activation="Relu")


def milliseconds(network: Network, constants: Mapping[str, float]) -> float:
    model, point = cost_model(load("stm32h7")), load("stm32h7").operating_point("400MHz")
    assert isinstance(model, McuModel)
    model = replace(model, parameters=replace(model.parameters, **constants))
    return 1e3 * sum(model.kernel(k, network, Precision.INT8, point).seconds for k in network.kernels)


def fit(rows: Sequence[tuple[Network, float]]) -> dict[str, float]:
    names = list(PRIOR)
    start, weight = np.log([v for v, _ in PRIOR.values()]), np.array([w for _, w in PRIOR.values()])

    def residuals(x: NDArray[np.float64]) -> list[float]:
        constants = {k: exp(v) for k, v in zip(names, x, strict=True)}
        return [log(milliseconds(n, constants) / ms) / 0.1 for n, ms in rows] + list(weight * (x - start))
    return {k: exp(v) for k, v in zip(names, least_squares(residuals, start).x, strict=True)}


def main(argv: Sequence[str]) -> None:
    rows = [(mobilenet_v1(w, s), ms) for w, s, ms in PUBLISHED]
    constants, errors = fit(rows), []
    for i, (width, pixels, ms) in enumerate(PUBLISHED):
        inside = milliseconds(rows[i][0], constants) / ms - 1
        errors.append(milliseconds(rows[i][0], fit([r for j, r in enumerate(rows) if j != i])) / ms - 1)
        print(f"MobileNetV1 {width:g} at {pixels}: {rows[i][0].macs / 1e6:6.1f} M MACs {ms:7.0f} ms, in sample {inside:+.0%}, left out {errors[-1]:+.0%}")
    print(", ".join(f"{k} {v:.3g}" for k, v in constants.items()))
    if "--write" in argv:
        worst = max(abs(e) for e in errors)
        text = ("latency_factor_low = 0.500\nlatency_factor_high = 2.000\n\n[provenance]\n"
                'fitted_on = "4 published INT8 latencies of MobileNetV1 at three widths (STM32 AI model zoo, STM32H747I-DISCO at 400 MHz, STM32Cube.AI 10.0.0, 2026)"\n'
                f'validated_on = "leave one network out: mean error {np.mean(np.abs(errors)):.0%}, largest {worst:.0%}; one design only, so unvalidated for any other, and for '
                'fp32, 480 MHz, memory and energy"\ninterval = "a factor of 2 either way, since one design cannot calibrate one"\n')
        write_target("stm32h7", text, constants)
        write_validation(Prediction("stm32h7", f"mobilenet_v1 {width:g} at {pixels}", f"mobilenet_v1 {width:g} at {pixels}", "int8", ms, ms * (1 + e),
                                    ms * (1 + e) / 2, ms * (1 + e) * 2) for (width, pixels, ms), e in zip(PUBLISHED, errors, strict=True))


if __name__ == "__main__":
    main(sys.argv[1:])
