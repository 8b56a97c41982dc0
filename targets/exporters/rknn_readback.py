"""What a compiled .rknn holds, in the words of the plan: which operator is which kernel, which tensor is which."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from qbench.export import Contents, Job, Layer, StoredTensor
from qbench.network import Kernel, Precision
from qbench.qdq import clamped
from qbench.targets.exporters.rknn_file import RknnFile, RknnOperator, RknnTensor

PRECISIONS = {"int8": Precision.INT8, "int16": Precision.INT16, "float16": Precision.FP16}
WEIGHTS = "a .rknn keeps the codes of weights in the order of the array, and no scales of them: the simulator's outputs prove them"
MOVES = "it moves no values, and the toolkit folded it away"


@dataclass
class Reader:
    """One .rknn beside the job that it was made for.

    became   node of the handed-over model -> nodes that the toolkit's optimizer put in its place (from the build log)
    names    tensor of the network -> its name in the handed-over model
    """

    file: RknnFile
    job: Job
    became: Mapping[str, tuple[str, ...]]
    names: Mapping[str, str]
    operators: dict[str, RknnOperator] = field(init=False)
    tensors: dict[str, RknnTensor] = field(init=False)
    makers: dict[str, RknnOperator] = field(init=False)

    def __post_init__(self) -> None:
        self.operators = {}
        for op in self.file.operators:
            self.operators.setdefault(op.node.removesuffix(f"_{op.kind}"), op)
        self.tensors = {t.name: t for t in self.file.tensors if t.name}
        self.makers = {self.file.tensors[i].name: op for op in self.file.operators for i in op.outputs}

    def contents(self) -> Contents:
        """Every layer and activation of the plan that the file tells of; the others are silent, with the reason, or missing."""
        network, silent = self.job.prepared.network, {}
        layers: dict[str, Layer] = {}
        for kernel in network.kernels:
            op = self.operator(kernel)
            if op is not None and (precision := self.precision(op)) is not None:
                layers[kernel.name] = Layer(precision, op.processor)
            elif op is not None:
                silent[kernel.name] = f"{op.kind} makes {self.file.tensors[op.outputs[0]].dtype if op.outputs else 'nothing'}, no quantizable tensor"
            elif kernel.kind == "reshape":
                silent[kernel.name] = MOVES
        tensors: dict[str, StoredTensor] = {}
        inside = {t: k for k in network.kernels for t in k.inner}
        for key in self.job.demanded.tensors:
            name, _, precision_name = key.rpartition(":")
            if key.startswith("weight:"):
                silent[key] = WEIGHTS
            elif (stored := self.stored(name, precision_name)) is not None:
                tensors[key] = stored
            elif name in inside and (op := self.operator(inside[name])) is not None:
                silent[key] = f"inside {op.kind} {op.node}, which the toolkit runs as one"
            elif name in network.producer and network.kernel[network.producer[name]].kind == "reshape" and self.names[name] not in self.tensors:
                silent[key] = MOVES
        tensors |= dict(self._unplanned())
        return Contents(layers, tensors, "the compiled .rknn", silent)

    def _unplanned(self) -> Iterator[tuple[str, StoredTensor]]:
        """Integer tensors that the plan leaves in float; what a kernel's own Relu cuts has no entry in a plan."""
        cut = {t for k in self.job.prepared.network.kernels for t in clamped(k)}
        for tensor, name in self.names.items():
            found = self.tensors.get(name)
            key = f"{tensor}:{found.dtype}" if found is not None else ""
            if found is not None and found.scale and found.dtype in PRECISIONS and tensor not in cut and key not in self.job.demanded.tensors:
                yield key, _stored(found)

    def operator(self, kernel: Kernel, last: bool = False) -> RknnOperator | None:
        """The operator that does the kernel's work: by name, by what its nodes became, by the tensor that it writes.

        last   the one that makes its result, where the toolkit runs a kernel as several
        """
        for node in reversed(kernel.nodes) if last else kernel.nodes:
            for name in (node, *reversed(self.became.get(node, ()))):
                if (op := self.operators.get(name.partition("#")[0])) is not None:
                    return op
        return next((self.makers[n] for t in kernel.outputs if (n := self.names.get(t, t)) in self.makers), None)

    def precision(self, op: RknnOperator) -> Precision | None:
        return next((PRECISIONS[d] for i in op.outputs if (d := self.file.tensors[i].dtype) in PRECISIONS), None)

    def stored(self, tensor: str, precision: str) -> StoredTensor | None:
        """Scale and zero point of the codes of `tensor` in `precision`, also under the names that the toolkit gives conversions."""
        names = (self.names.get(tensor, tensor), tensor)
        for name in names:
            for candidate in (name, f"{name}__{precision}", f"{name}_{precision}_q", f"{name}_{precision}_dq", f"{name}_{precision}"):
                found = self.tensors.get(candidate)
                if found is not None and found.dtype == precision and found.scale:
                    return _stored(found)
        maker = self.job.prepared.network.producer.get(tensor)
        kernel = self.job.prepared.network.kernel[maker] if maker is not None else None
        if kernel is None or tensor in kernel.inner or any(name in self.tensors for name in names):
            return None
        op = self.operator(kernel, last=True)
        return None if op is None else next((_stored(t) for i in op.outputs if (t := self.file.tensors[i]).dtype == precision and t.scale), None)


def _stored(tensor: RknnTensor) -> StoredTensor:
    return StoredTensor(tensor.dtype, tensor.scale, tensor.zero_point)
