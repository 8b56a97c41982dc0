"""Cross-layer equalization: per-channel factors move between neighbouring layers until their weight ranges agree.

Source: Nagel et al. 2019 (arXiv 1906.04721), section 4.1, equations 9 to 12.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from qbench.corrections.anchors import Anchor, Array, anchors, data_of, set_data
from qbench.corrections.channels import pairs
from qbench.corrections.steps import Equalization
from qbench.graph import PreparedModel

SUFFIX = "+cle"
STILL = 1e-4
"""A sweep that changes no factor by more than this part is the last one."""
BIAS_RATIO = 1000.0
"""A bias this many times its channel's weights counts as a weight: else a channel that is all but constant would be blown up
until its activations own the scale of the tensor."""


@dataclass(frozen=True)
class Equalized:
    """model     same names and function, other weights; its network's key ends in SUFFIX
    pairs        (first, second) layer of each pair
    skipped      layer -> why it leads no pair
    largest      largest factor that any channel was divided or multiplied by
    """

    model: PreparedModel
    pairs: tuple[tuple[str, str], ...]
    skipped: Mapping[str, str]
    largest: float


def equalized(prepared: PreparedModel, step: Equalization) -> Equalized:
    """The network with the ranges of its layers' channels equalized; the float function stays (but for float32 rounding)."""
    model = prepared.model.clone()
    shapes = {name: spec.shape for name, spec in prepared.network.tensors.items()}
    found = anchors(model.graph)
    chain, reasons = pairs(found, shapes)
    held = {name: _Layer(found[name]) for name in dict.fromkeys(n for p in chain for n in (p.first.name, p.second.name))}
    largest = balance([(held[p.first.name], held[p.second.name], p.repeat) for p in chain], step.sweeps)
    for layer in held.values():
        layer.store()
    network = replace(prepared.network, model_key=prepared.network.model_key + SUFFIX)
    return Equalized(replace(prepared, model=model, network=network), tuple((p.first.name, p.second.name) for p in chain), reasons, largest)


class _Layer:
    """Weights and bias of one anchor in float64 while they are balanced."""

    def __init__(self, anchor: Anchor) -> None:
        self.anchor = anchor
        self.weight = anchor.canonical(data_of(anchor.weight)).astype(np.float64)
        self.bias = None if anchor.bias is None else data_of(anchor.bias.value).astype(np.float64)

    def output_ranges(self) -> Array:
        """Largest magnitude of each output channel, [outputs]; 0 for a dead one."""
        weights: Array = np.abs(self.weight).max(axis=(1, 3), initial=0.0).reshape(-1)
        if self.bias is None:
            return weights
        return np.where(weights > 0.0, np.maximum(weights, np.abs(self.bias).reshape(-1) / BIAS_RATIO), 0.0)

    def input_ranges(self, repeat: int) -> Array:
        """Largest magnitude that meets each channel of the layer before, [inputs / repeat]."""
        each: Array = np.abs(self.weight).max(axis=(2, 3), initial=0.0).reshape(-1, repeat).max(axis=1)
        return each

    def divide_outputs(self, s: Array) -> None:
        groups, _, outputs, _ = self.weight.shape
        self.weight /= s.reshape(groups, 1, outputs, 1)
        if self.bias is not None:
            self.bias /= s.reshape(self.bias.shape)

    def multiply_inputs(self, s: Array, repeat: int) -> None:
        groups, inputs, _, _ = self.weight.shape
        self.weight *= np.repeat(s, repeat).reshape(groups, inputs, 1, 1)

    def store(self) -> None:
        set_data(self.anchor.weight, self.anchor.original(self.weight.astype(np.float32)))
        if self.anchor.bias is not None and self.bias is not None:
            set_data(self.anchor.bias.value, self.bias.astype(np.float32))


def balance(chain: list[tuple[_Layer, _Layer, int]], sweeps: int) -> float:
    """Equalize pair after pair until nothing moves. Returns the largest factor that a channel got in all."""
    total = [np.ones(first.anchor.outputs) for first, _, _ in chain]
    for _ in range(sweeps):
        moved = 0.0
        for (first, second, repeat), so_far in zip(chain, total, strict=True):
            s = factors(first.output_ranges(), second.input_ranges(repeat))
            first.divide_outputs(s)
            second.multiply_inputs(s, repeat)
            so_far *= s
            moved = max(moved, float(np.abs(np.log(s)).max(initial=0.0)))
        if moved < STILL:
            break
    return max((float(np.exp(np.abs(np.log(s)).max(initial=0.0))) for s in total), default=1.0)


def factors(first: Array, second: Array) -> Array:
    """sqrt(first / second), which makes both ranges their geometric mean; 1 where either is 0: a dead channel is left alone."""
    alive = (first > 0.0) & (second > 0.0)
    return np.sqrt(np.divide(first, second, out=np.ones_like(first), where=alive), out=np.ones_like(first), where=alive)


