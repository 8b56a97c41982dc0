"""What rknn-toolkit2 does otherwise than a plan and can be told nothing about, announced layer by layer; what it costs shows in the simulation."""

from __future__ import annotations

import numpy as np

from qbench.export import Consent, Contents, Job, Layer
from qbench.network import Kernel, Precision

AVERAGES = ("AveragePool", "GlobalAveragePool", "Resize")
"""Of a Resize only the linear one has a scale of its own."""
CAST = "a Cast computes nothing: the toolkit stores its result as the readers take it"
LAST = "the toolkit computes a Softmax at the end of the network in FP16, and what only moves its values with it"
POOLED = "the toolkit gives a pool (pass adjust_avgpool) and a linear Resize the scale of what it reads"
GATED = "the toolkit gives the output of a Sigmoid the range [0, 1]"
GATE_SCALE = float(np.float32(1.0 / 255.0))


def announced(job: Job, actual: Contents) -> dict[str, Consent]:
    """Integer layers around the last Softmax that came out in FP16, float Casts whose result is stored as the codes their readers take, averages
    that came out with their input's scale, and Sigmoids that came out from 0 to 1."""
    network, found = job.prepared.network, {}
    for kernel in network.kernels:
        have = actual.layers.get(kernel.name)
        if have is not None and have.precision is Precision.FP16 and not job.demanded.layers[kernel.name].precision.is_float and _last(job, kernel):
            found[kernel.name] = Consent(Layer(Precision.FP16), LAST)
        if (kernel.op == "Cast" and have is not None and have.precision is Precision.INT8 and job.demanded.layers[kernel.name].precision.is_float
                and any(f"{t}:int8" in job.demanded.tensors for t in kernel.outputs)):
            found[kernel.name] = Consent(Layer(Precision.INT8), CAST)
        key = f"{kernel.outputs[0]}:int8"
        behind, wanted = actual.tensors.get(key), job.demanded.tensors.get(key)
        if behind is None or wanted is None or behind.scale == wanted.scale:
            continue
        if kernel.op in AVERAGES:
            source = f"{kernel.inputs[0]}:int8"
            before = actual.tensors.get(source, job.demanded.tensors.get(source))
            if before is not None and (behind.scale, behind.steps) == (before.scale, before.steps):
                found[key] = Consent(behind, POOLED)
        elif kernel.op.endswith("Sigmoid") and behind.scale == (GATE_SCALE,) and behind.steps == (0,):
            found[key] = Consent(behind, GATED)
    return found


def _last(job: Job, kernel: Kernel) -> bool:
    """Whether it is a Softmax whose result leaves the network through moves at most, or such a move, or one that only feeds it."""
    network = job.prepared.network
    if kernel.kind == "reshape":
        maker = network.producer.get(kernel.inputs[0])
        readers = [k for k in network.kernels if set(kernel.outputs) & set(k.inputs)]
        behind = maker is not None and network.kernel[maker].kind != "reshape" and _last(job, network.kernel[maker])
        return behind or (bool(readers) and all(k.kind == "softmax" and _last(job, k) for k in readers))
    if kernel.kind != "softmax":
        return False
    ends = set(kernel.outputs)
    for later in network.kernels:                                  # in the order of execution
        if ends & set(later.inputs):
            if later.kind != "reshape":
                return False
            ends |= set(later.outputs)
    return True
