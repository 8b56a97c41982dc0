"""What a tensor's range does to the layers that read it: each is cut out of the Q/DQ model and run with the tensor rounded to the codes.

Everything else that a layer reads stays as in the float model, so that the error is that of the one range, and of the layer's own
integer weights. Layers that only move values (pooling by maximum, concatenation, reshape) say nothing; those behind them do.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from qbench.affine import Affine, Range, affine
from qbench.evaluation import extract, loaded
from qbench.network import Kernel, Precision
from qbench.protocols import Array, Progress, silent
from qbench.walk import Values, Walk

Errors = dict[str, dict[str, float]]
"""scale group -> candidate -> noise over signal."""
LEAST = 1e-20


def reading_errors(walk: Walk, ranges: Mapping[str, Mapping[str, Range]], progress: Progress = silent) -> Errors:
    """Noise over signal at the outputs of the kernels that read each group, geometric mean over the samples, summed over the kernels.

    walk     over the plan whose integer weights count; its activations are used up
    ranges   candidate -> scale group -> range
    For a tensor that leaves the network, and for one whose readers cannot be cut out, the error of the tensor itself.
    """
    reading = _Reading(walk, ranges)
    for number, kernel in enumerate(walk.network.kernels):
        progress("layers that read each tensor", number, len(walk.network.kernels))
        reading.kernel(kernel)
    return reading.errors


class _Reading:
    def __init__(self, walk: Walk, ranges: Mapping[str, Mapping[str, Range]]) -> None:
        self.walk, self.ranges, self.network = walk, ranges, walk.network
        self.groups = set(next(iter(ranges.values())))
        self.before = {str(n.name): n for n in walk.prepared.model.graph}
        self.after = {str(n.name): n for n in walk.written.model.graph}
        self.errors: Errors = {}

    def kernel(self, kernel: Kernel) -> None:
        """Add what `kernel` says of each group that it reads, and go on to the next."""
        walk, network = self.walk, self.network
        reference = walk.run_float(kernel)
        entering = self._entering(kernel)
        by_group: dict[str, list[str]] = {}
        for tensor, value in entering.items():
            group = network.group_of.get(tensor)
            if group is not None and group.name in self.groups and str(value.name) != walk.written.raw.get(tensor, tensor):
                by_group.setdefault(group.name, []).append(tensor)
        outputs = [t for t in kernel.outputs if network.tensors[t].dtype == "float32"]
        for group_name, tensors in by_group.items():
            moved = all(t in network.group_of and network.group_of[t].name == group_name for t in outputs)
            if outputs and not moved:
                self._read(kernel, group_name, tensors, entering, outputs, reference)
        for tensor in outputs:
            group = network.group_of.get(tensor)
            if tensor in network.outputs and group is not None and group.name in self.groups:
                self._itself(group.name, tensor, [chunk[tensor] for chunk in reference], self._precision(kernel, tensor))
        walk.advance(kernel, reference, reference)

    def _entering(self, kernel: Kernel) -> dict[str, ir.Value]:
        """Tensor that the kernel reads, or stores between its members -> value of the Q/DQ model that its nodes read."""
        wanted = {*kernel.inputs, *self.walk.tensors_of(kernel)} - set(kernel.outputs)
        found: dict[str, ir.Value] = {}
        for name in kernel.nodes:
            if name in self.before and name in self.after:
                for old, new in zip(self.before[name].inputs, self.after[name].inputs, strict=False):
                    if old is not None and new is not None and str(old.name) in wanted:
                        found[str(old.name)] = new
        return found

    def _precision(self, kernel: Kernel, tensor: str) -> Precision:
        """Of the codes in which `kernel` reads or writes `tensor`: its own, or where it runs in float, the producer's."""
        plan, network = self.walk.plan, self.network
        own = plan.precision[network.unit_of_kernel[kernel.name]]
        maker = network.producer.get(tensor)
        return plan.precision[network.unit_of_kernel[maker]] if own.is_float and maker is not None else own

    def _read(self, kernel: Kernel, group: str, tensors: Sequence[str], entering: Mapping[str, ir.Value], outputs: Sequence[str],
              reference: Values) -> None:
        """Errors at the kernel's outputs for each distinct range of `group`."""
        walk, precision = self.walk, self._precision(kernel, tensors[0])
        values = [{t: chunk[t] if t in chunk else made[t] for t in entering} for chunk, made in zip(walk.float_values, reference, strict=True)]
        feeds = {t: str(v.name) for t, v in entering.items() if t in tensors or t in kernel.inputs}
        for tensor in feeds:
            entering[tensor].type = entering[tensor].type or ir.TensorType(ir.DataType.FLOAT)
        raw = {t: walk.written.raw[t] for t in outputs}
        part = extract(walk.written.model, list(feeds.values()), list(raw.values()))
        if part is None:
            for tensor in tensors:
                self._itself(group, tensor, [v[tensor] for v in values], precision)
            return
        with loaded(part, walk.threads, walk.simulate) as session:
            for coded, specs in self._distinct(group, precision).items():
                noise, signal = [], []
                for chunk, want in zip(values, reference, strict=True):
                    fed = {name: fake_quantized(chunk[t], coded) if t in tensors else chunk[t] for t, name in feeds.items()}
                    made = session.run(fed)
                    pairs = [sample_energies(want[t], made[name]) for t, name in raw.items()]
                    noise.append(sum(p[0] for p in pairs))
                    signal.append(sum(p[1] for p in pairs))
                self._add(group, specs, ratio(np.concatenate(noise), np.concatenate(signal)))

    def _itself(self, group: str, tensor: str, chunks: Sequence[Array], precision: Precision) -> None:
        """The error of the tensor's own codes."""
        if precision.is_float or not chunks:
            return
        for coded, specs in self._distinct(group, precision).items():
            pairs = [sample_energies(x, fake_quantized(x, coded)) for x in chunks]
            self._add(group, specs, ratio(np.concatenate([p[0] for p in pairs]), np.concatenate([p[1] for p in pairs])))

    def _distinct(self, group: str, precision: Precision) -> dict[Affine, list[str]]:
        """Scale and zero point -> the candidates that lead to it."""
        scheme = self.walk.plan.schemes[str(precision)].activation
        found: dict[Affine, list[str]] = {}
        for spec, ranges in self.ranges.items():
            found.setdefault(affine(ranges[group], scheme), []).append(spec)
        return found

    def _add(self, group: str, specs: Sequence[str], error: float) -> None:
        sums = self.errors.setdefault(group, dict.fromkeys(self.ranges, 0.0))
        for spec in specs:
            sums[spec] += error


def fake_quantized(x: Array, a: Affine) -> NDArray[np.float32]:
    """`x` rounded to the codes of `a` and back, as QuantizeLinear and DequantizeLinear do it."""
    scale, scheme = np.float32(a.scale), a.scheme
    codes = np.asarray(np.divide(x, scale, dtype=np.float32))       # one number, too
    np.rint(codes, out=codes)
    np.clip(codes, scheme.qmin - a.zero_point, scheme.qmax - a.zero_point, out=codes)
    codes *= scale
    return codes


def ratio(noise: NDArray[np.float64], signal: NDArray[np.float64]) -> float:
    """Geometric mean over samples of noise / signal [samples]; samples without a signal say nothing. Infinite for an error that is not finite."""
    heard = signal > 0.0
    if not heard.any():
        return 0.0
    shares = noise[heard] / signal[heard]
    return float(np.exp(np.mean(np.log(np.maximum(shares, LEAST))))) if np.isfinite(shares).all() else float("inf")


def sample_energies(reference: Array, made: Array) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Noise and signal of each sample; values where the reference is not finite are left out."""
    rows = (len(reference), prod(reference.shape[1:])) if reference.ndim else (1, 1)     # one number is one sample
    r = reference.reshape(rows)
    d = made.reshape(rows) - r
    if not np.isfinite(r).all():
        d, r = np.where(np.isfinite(r), d, 0.0), np.where(np.isfinite(r), r, 0.0)
    return np.einsum("ni,ni->n", d, d, dtype=np.float64), np.einsum("ni,ni->n", r, r, dtype=np.float64)
