"""Bias correction: rounding moves the mean of a layer's outputs, and its bias can take that back.

Source: Nagel et al. 2019 (arXiv 1906.04721), section 4.2 (analytic) and appendix D (empirical).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from qbench.corrections.anchors import Array, data_of
from qbench.corrections.parts import Place, left_out, mean_of_samples, places, reads, response, stored_weight, with_bias
from qbench.corrections.steps import BiasCorrection
from qbench.graph import PreparedModel
from qbench.packed import Packed
from qbench.plan import Plan
from qbench.protocols import Progress, silent
from qbench.walk import Walk

BIAS = "bias:"
"""Key in `Plan.tensors` of what is added to the bias of a node."""


@dataclass(frozen=True)
class Found:
    """tensors   for `Plan.tensors`
    remarks     layers left out -> why, and what else a reader wants to know
    """

    tensors: Mapping[str, Packed]
    remarks: Mapping[str, str] = field(default_factory=dict)


def corrected_biases(prepared: PreparedModel, plan: Plan, samples: Sequence[dict[str, Array]], step: BiasCorrection, *,
                     threads: int | None = None, simulate: bool | None = None, progress: Progress = silent) -> Found:
    """What to add to the bias of each integer layer, as the samples show it."""
    walk = Walk(prepared, plan, samples, threads=threads, simulate=simulate, progress=progress)
    return (_analytic if step.how == "analytic" else _empirical)(walk)


def _empirical(walk: Walk) -> Found:
    """Layer by layer: what is measured in front of the activation; later layers see the corrected activations.

    A layer is linear, so the mean of its outputs is its output on the mean input: one position map instead of all samples.
    """
    layers, tensors, remarks = places(walk), {}, left_out(walk)
    for kernel in walk.kernels():
        place = layers.get(kernel.name)
        part = walk.quantized_part(kernel) if place is not None else None
        if place is None or part is None or (why := no_bias(place)):
            if place is not None:
                remarks[place.anchor.name] = why if part is not None else "it cannot be cut out of the network"
            step = walk.step(kernel, isolated=False)
            walk.advance(kernel, step.reference, step.accumulated)
            continue
        shift = _float_mean(walk, place) - response(walk, place, stored_weight(walk, place), mean_of_samples(reads(walk, place)))
        tensors[BIAS + place.anchor.name] = Packed.of(shift.astype(np.float32))
        made = walk.run_quantized(kernel, walk.quantized_values, with_bias(walk, part, place, shift))
        walk.advance(kernel, walk.run_float(kernel), made)
    return Found(tensors, remarks)


def _analytic(walk: Walk) -> Found:
    """-(W_quantized - W) E[x]: E[x] is the float network's mean input, kept for every position so that padding counts as it is."""
    layers, tensors, remarks = places(walk), {}, left_out(walk)
    for kernel in walk.kernels():
        place = layers.get(kernel.name)
        if place is not None and (why := no_bias(place)):
            remarks[place.anchor.name] = why
        elif place is not None:
            mean = mean_of_samples([c[place.float_input] for c in walk.float_values])
            shift = _float_mean(walk, place) - response(walk, place, stored_weight(walk, place), mean)
            tensors[BIAS + place.anchor.name] = Packed.of(shift.astype(np.float32))
        made = walk.run_float(kernel)
        walk.advance(kernel, made, made)
    return Found(tensors, remarks)


def _float_mean(walk: Walk, place: Place) -> Array:
    return response(walk, place, data_of(place.anchor.weight), mean_of_samples([c[place.float_input] for c in walk.float_values]))


def no_bias(place: Place) -> str:
    """Why the writer could not add to the layer's bias, or ""."""
    node, bias = place.anchor.node, place.anchor.bias
    return "its bias is not a constant" if bias is None and len(node.inputs) > 2 and node.inputs[2] is not None else ""
