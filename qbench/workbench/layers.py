"""SQNR of every kernel's output inside a quantized network: one run with the outputs laid open, not one per kernel as `qbench.walk` needs."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from qbench import qdq
from qbench.comparison import Layer
from qbench.evaluation import loaded
from qbench.graph import PreparedModel
from qbench.metrics.fidelity import sqnr_db
from qbench.protocols import Array
from qbench.qdq import Written

KEEP_BYTES = 512 << 20
"""Float outputs of all kernels up to this size are kept; above it the float network runs again for every plan."""


class LayerErrors:
    """Compares the kernels of quantized networks with those of one float network, on the same samples.

    samples    feeds with a first axis of 1
    simulate   run Q/DQ as written, in float
    """

    def __init__(self, prepared: PreparedModel, samples: Sequence[dict[str, Array]], *, threads: int | None = None, simulate: bool = False) -> None:
        self.prepared, self.samples, self.threads, self.simulate = prepared, samples, threads, simulate
        network = prepared.network
        self.tensors = {k.name: tuple(t for t in k.outputs if network.tensors[t].dtype == "float32") for k in network.kernels}
        wanted = [t for tensors in self.tensors.values() for t in tensors]
        self._float = laid_open(prepared.model, wanted)
        size = sum(network.tensors[t].elements * 4 for t in wanted) * len(samples)
        self._kept = self._run_float(range(len(samples))) if size <= KEEP_BYTES else None

    def _run_float(self, numbers: Sequence[int]) -> list[dict[str, Array]]:
        with loaded(self._float, self.threads, False) as session:
            return [session.run(self.samples[n]) for n in numbers]

    def of(self, written: Written) -> dict[str, float]:
        """Kernel -> dB over all its outputs and all samples, execution order; infinite where nothing differs.

        Kernels without a float output, and those whose output is zero throughout in float, are left out.
        """
        names = {t: written.stored.get(t, t) for tensors in self.tensors.values() for t in tensors}
        sums = {k: np.zeros(2) for k in self.tensors}
        with loaded(laid_open(written.model, list(names.values())), self.threads, self.simulate) as session:
            for number, feeds in enumerate(self.samples):
                reference = self._kept[number] if self._kept is not None else self._run_float([number])[0]
                made = session.run(feeds)
                for kernel, tensors in self.tensors.items():
                    for t in tensors:
                        sums[kernel] += _energies(reference[t], made[names[t]])
        return {k: float(sqnr_db(pair[0], pair[1])) for k, pair in sums.items() if pair[0] > 0.0}

    def worst(self, written: Written) -> Layer | None:
        """The kernel of lowest SQNR, the first of equals; None where every kernel equals float."""
        found = {k: db for k, db in self.of(written).items() if db != float("inf")}
        if not found:
            return None
        name = min(found, key=lambda k: found[k])
        return Layer(name, found[name])


def laid_open(model: ir.Model, names: Sequence[str]) -> ir.Model:
    """A copy of `model` that also puts out the float tensors `names`."""
    copy = model.clone()
    values = {str(v.name): v for n in copy.graph for v in n.outputs}
    there = {str(v.name) for v in copy.graph.outputs}
    for name in dict.fromkeys(names):
        if name not in there and name in values:
            value = values[name]
            value.type = value.type or ir.TensorType(ir.DataType.FLOAT)
            copy.graph.outputs.append(value)
    return copy


def size_bytes(model: ir.Model) -> int:
    """Bytes on disk of `qdq.save(model)`, the weights included that would lie beside it."""
    import tempfile
    from pathlib import Path

    if sum(v.const_value.nbytes for v in model.graph.initializers.values() if v.const_value is not None) <= qdq.BIG_MODEL_BYTES:
        return len(qdq.to_bytes(model))
    with tempfile.TemporaryDirectory(prefix="qbench-") as folder:
        qdq.save(model, Path(folder) / "model.onnx")
        return sum(p.stat().st_size for p in Path(folder).iterdir())


def _energies(reference: Array, made: Array) -> Array:
    """[signal, noise] over all values; those where the reference is not finite are left out."""
    r, m = reference.reshape(-1), made.reshape(-1)
    if not np.isfinite(r).all():
        m, r = m[np.isfinite(r)], r[np.isfinite(r)]
    d = m - r
    return np.array([np.einsum("i,i->", r, r, dtype=np.float64), np.einsum("i,i->", d, d, dtype=np.float64)])
