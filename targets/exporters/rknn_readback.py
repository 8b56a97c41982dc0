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
INSIDE = "inside {} {}, which the toolkit runs as one"
FOLDED = "the toolkit worked the layer that makes it into its neighbours"
FUNCTIONS = {"_2gelu": "ExGelu", "_2hs": "HardSwish", "_2exswish": "ExSwish"}
"""End of the name that the optimizer gives an operator made of several -> that operator's name where the compiler fuses it into the one before."""
IN_FLOAT = "the layer that makes it is in FP16 there"
MOVES = "it moves no values, and the toolkit folded it away"


@dataclass
class Reader:
    """One .rknn beside the job that it was made for.

    became   node of the handed-over model -> nodes that the toolkit's optimizer put in its place (from the build log)
    names    tensor of the network -> its name in the handed-over model
    aliases  name in the handed-over model -> other names that the toolkit gives the same values
    folded   node of the handed-over model -> the toolkit's pass that worked it into its neighbours
    """

    file: RknnFile
    job: Job
    became: Mapping[str, tuple[str, ...]]
    names: Mapping[str, str]
    aliases: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    folded: Mapping[str, str] = field(default_factory=dict)
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
                if precision is not self.job.demanded.layers[kernel.name].precision and self.kept_inside(kernel, op):
                    silent[kernel.name] = INSIDE.format(op.kind, op.node)
                else:
                    layers[kernel.name] = Layer(precision, op.processor)
            elif op is not None:
                silent[kernel.name] = f"{op.kind} makes {self.file.tensors[op.outputs[0]].dtype if op.outputs else 'nothing'}, no quantizable tensor"
            elif kernel.kind == "reshape":
                silent[kernel.name] = MOVES
            elif gone := [self.folded[n] for n in kernel.nodes if n in self.folded]:
                silent[kernel.name] = f"the toolkit worked it into its neighbours ({', '.join(dict.fromkeys(gone))}); the simulator's outputs prove it"
        tensors: dict[str, StoredTensor] = {}
        inside = {t: k for k in network.kernels for t in k.inner}
        for key in self.job.demanded.tensors:
            name, _, precision_name = key.rpartition(":")
            if key.startswith("weight:"):
                silent[key] = WEIGHTS
            elif (stored := self.named(name, precision_name)) is not None:
                tensors[key] = stored
            elif (op := self.swallowed(name)) is not None:
                silent[key] = INSIDE.format(op.kind, op.node)
            elif (stored := self.made(name, precision_name)) is not None:
                tensors[key] = stored
            elif name in inside and (op := self.operator(inside[name])) is not None:
                silent[key] = INSIDE.format(op.kind, op.node)
            elif name in network.producer and any(n in self.folded for n in network.kernel[network.producer[name]].nodes):
                silent[key] = FOLDED
            elif name in network.producer and (op := self.operator(network.kernel[network.producer[name]])) is not None and self.precision(op) is Precision.FP16:
                silent[key] = IN_FLOAT
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
        maker = next((self.makers[n] for t in kernel.outputs for n in self.called(t) if n in self.makers), None)
        return maker if maker is not None else self.fused(kernel)

    def called(self, tensor: str) -> tuple[str, ...]:
        """Names under which the toolkit may have a tensor of the network."""
        name = self.names.get(tensor, tensor)
        return name, tensor, *self.aliases.get(name, ())

    def fused(self, kernel: Kernel) -> RknnOperator | None:
        """The operator with the layer before, which the compiler fused the kernel's function into."""
        ending = next((e for n in kernel.nodes for became in self.became.get(n, ()) for e in FUNCTIONS if became.endswith(e)), None)
        network = self.job.prepared.network
        while ending is not None and kernel.inputs and (maker := network.producer.get(kernel.inputs[0])) is not None:
            kernel = network.kernel[maker]
            for node in kernel.nodes:
                for name in (node, *self.became.get(node, ())):
                    if (op := self.operators.get(name.partition("#")[0])) is not None:
                        return op if op.kind.endswith(FUNCTIONS[ending]) else None
        return None

    def kept_inside(self, kernel: Kernel, op: RknnOperator) -> bool:
        """Whether all that a kernel makes is read by kernels that `op` does, too: what it computes in then is its own affair, and the last of them tells."""
        readers = [k for k in self.job.prepared.network.kernels if set(kernel.outputs) & set(k.inputs)]
        return bool(readers) and not set(kernel.outputs) & set(self.job.prepared.network.outputs) and all(self.operator(k) is op for k in readers)

    def swallowed(self, tensor: str) -> RknnOperator | None:
        """The operator that both makes and reads a tensor, and so keeps it to itself.

        A kernel that passes of the optimizer spread over several operators counts as any of them, but for the one that bears its own name.
        """
        network = self.job.prepared.network
        makers = [k for k in network.kernels if tensor in k.outputs]
        readers = [k for k in network.kernels if tensor in k.inputs]
        found = {op.node: op for k in (*makers, *readers) for op in [self.operator(k)] if op is not None}
        if makers and len(found) == 1:
            return next(iter(found.values()))
        if not makers or not readers:
            return None
        common = [{op.node: op for op in self.parts(k)} for k in (*makers, *readers)]
        shared = set.intersection(*map(set, common)) - set(makers[0].nodes)
        return common[0][min(shared)] if shared else None

    def parts(self, kernel: Kernel) -> list[RknnOperator]:
        """Every operator that a node of the kernel is part of, by its name or by what it became."""
        names = (name.partition("#")[0] for n in kernel.nodes for name in (n, *(part for b in self.became.get(n, ()) for part in (b, b.partition("#")[0]))))
        return [self.operators[n] for n in dict.fromkeys(names) if n in self.operators]

    def precision(self, op: RknnOperator) -> Precision | None:
        return next((PRECISIONS[d] for i in op.outputs if (d := self.file.tensors[i].dtype) in PRECISIONS), None)

    def named(self, tensor: str, precision: str) -> StoredTensor | None:
        """Scale and zero point of the codes of `tensor` in `precision`, also under the names that the toolkit gives conversions."""
        for name in self.called(tensor):
            for candidate in (name, f"{name}__{precision}", f"{name}_{precision}_q", f"{name}_{precision}_dq", f"{name}_{precision}"):
                found = self.tensors.get(candidate)
                if found is not None and found.dtype == precision and found.scale:
                    return _stored(found)
        return None

    def made(self, tensor: str, precision: str) -> StoredTensor | None:
        """The same by the operator that makes it, where the toolkit gave the tensor a name of its own."""
        network = self.job.prepared.network
        maker = network.producer.get(tensor)
        kernel = network.kernel[maker] if maker is not None else None
        if kernel is None or tensor in kernel.inner or any(name in self.tensors for name in self.called(tensor)):
            return None
        op = self.operator(kernel, last=True)
        return None if op is None else next((_stored(t) for i in op.outputs if (t := self.file.tensors[i]).dtype == precision and t.scale), None)


def _stored(tensor: RknnTensor) -> StoredTensor:
    return StoredTensor(tensor.dtype, tensor.scale, tensor.zero_point)
