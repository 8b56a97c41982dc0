"""What the HTP compiler made of a model, in the words of the plan: its graph and its trace of which node became which operator."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import onnx_ir as ir

from qbench.errors import ToolError
from qbench.export import Consent, Contents, Job, Layer, StoredTensor
from qbench.network import Kernel, Precision

FIXED = {0x0308: "int8", 0x0316: "int16", 0x0408: "uint8", 0x0416: "uint16"}
"""Qnn_DataType_t of quantized tensors. Source: QnnTypes.h of QAIRT, and graphs of known models."""
FLOATS = {0x0216, 0x0232}
"""Float tensors: the HTP computes both as FP16, as it is compiled with enable_htp_fp16_precision."""
PER_TENSOR, PER_AXIS = 0, 1
"""Quantization encodings of a tensor with one scale, and of one with a scale per channel, which tells only how many there are."""
MOVING = frozenset({"Transpose", "Dequantize", "Quantize", "Convert", "Cast"})
"""What the compiler puts around a layer."""
CHANNELS = "the compiler's graph tells type and number of channels of weights, not each scale: the simulator's outputs prove them"
FOLDED = "the compiler's graph has no weight of this name: it was folded into another form; the simulator's outputs prove it"
FUSED = "inside one operator of the compiler's graph"
MOVES = "it moves no values, and the compiler folded it away"
ON_CODES = "between two pairs onnxruntime-qnn takes a layer without weights for one on codes: the codes behind it are the same, to a step"


def quantizers(job: Job) -> Iterator[tuple[str, ir.Node]]:
    """"TENSOR:int8" -> the QuantizeLinear that makes the codes, through the Clip that narrow codes need."""
    named = {v: t for t, v in job.written.raw.items()} | {v: t for t, v in job.written.stored.items()}
    for node in job.written.model.graph:
        if node.op_type != "QuantizeLinear":
            continue
        value, zero = node.inputs[0], node.inputs[2]
        while value is not None and str(value.name) not in named and (maker := value.producer()) is not None and maker.op_type == "Clip":
            value = maker.inputs[0]
        if value is not None and str(value.name) in named and zero is not None and zero.const_value is not None:
            yield f"{named[str(value.name)]}:int{8 * zero.const_value.numpy().dtype.itemsize}", node


@dataclass
class Reader:
    """graph   "nodes" and "tensors" of the compiled graph; trace   "subgraph_traces" and "unsupported_nodes" """

    graph: Mapping[str, Any]
    trace: Mapping[str, Any]
    job: Job
    became: dict[str, list[str]] = field(init=False)
    refused: set[str] = field(init=False)

    def __post_init__(self) -> None:
        """became   node of the model -> operators of the graph; refused   nodes that stay on the CPU"""
        try:
            self.became = {}
            for part in self.trace["subgraph_traces"]:
                for row in part["op_mappings"]:
                    for source in row["sources"]:
                        if source["type"] == "OP":
                            self.became.setdefault(_plain(source["name"]), []).append(row["dst_name"])
            self.refused = {_plain(n["node_name"]) for n in self.trace["unsupported_nodes"]}
            self.operators: Mapping[str, Any] = self.graph["nodes"]
            self.tensors: Mapping[str, Any] = self.graph["tensors"]
        except (KeyError, TypeError) as error:
            raise ToolError(f"the compiler's graph or trace cannot be followed ({error!r} is missing): made by another version than onnxruntime-qnn 2.7?") from None

    def contents(self) -> Contents:
        """Every layer and tensor of the plan that the graph tells of; the others are silent, with the reason, or missing."""
        network, demanded, silent = self.job.prepared.network, self.job.demanded, {}
        layers: dict[str, Layer] = {}
        for kernel in network.kernels:
            wanted = demanded.layers[kernel.name].precision
            placement = "CPU" if any(n in self.refused for n in kernel.nodes) else "NPU"
            found = [p for op in self.operators_of(kernel) for p in self.precisions(op, wanted)]
            if placement == "CPU":
                layers[kernel.name] = Layer(wanted, placement)
            elif found:
                layers[kernel.name] = Layer(next((p for p in found if p is not wanted), wanted), placement)
            elif self.operators_of(kernel) or not any(t in network.group_of for t in (*kernel.outputs, *kernel.inner)):
                silent[kernel.name] = "its results are no reals"
            elif kernel.kind == "reshape":
                silent[kernel.name] = MOVES
        makers = dict(quantizers(self.job))
        tensors: dict[str, StoredTensor] = {}
        for key, want in demanded.tensors.items():
            if key.startswith("weight:"):
                stored, why = self.weight(key.removeprefix("weight:"), want)
            else:
                stored, why = self.activation(key, makers.get(key))
            if stored is not None:
                tensors[key] = stored
            if why:
                silent[key] = why
        return Contents(layers, tensors, "the HTP compiler's graph", silent)

    def operators_of(self, kernel: Kernel) -> list[str]:
        """Operators of the graph that do its nodes' work, in their order."""
        return list(dict.fromkeys(op for node in kernel.nodes for op in self.became.get(_plain(node), ()) if op in self.operators))

    def precisions(self, operator: str, wanted: Precision) -> Iterator[Precision]:
        """In which the operator's results are held; none for integers such as indices."""
        for name in self.operators[operator]["output_names"]:
            kind = self.tensors[name]["data_type"]
            if kind in FIXED:
                yield Precision.INT16 if FIXED[kind].endswith("16") else Precision.INT8
            elif kind in FLOATS and self.operators[operator]["type"] not in MOVING:
                yield wanted if wanted.is_float else Precision.FP16

    def activation(self, key: str, quantizer: ir.Node | None) -> tuple[StoredTensor | None, str]:
        """Its scale and zero point, or why the graph does not tell."""
        network, (tensor, _, precision) = self.job.prepared.network, key.rpartition(":")
        bits = int(precision.removeprefix("int"))
        names: list[str] = []
        if quantizer is not None:
            names = [str(quantizer.name), str(quantizer.outputs[0].name), *self._results(self.became.get(_plain(str(quantizer.name)), ()))]
        maker = network.producer.get(tensor)
        kernel = None if maker is None else network.kernel[maker]
        if kernel is not None and tensor not in kernel.inner:
            names += self._results(reversed(self.operators_of(kernel)))
        found = [s for n in names if n in self.tensors and (s := _stored(self.tensors[n])) is not None]
        for stored in found:
            if stored.bits == bits:
                return stored, ""
        if kernel is not None and tensor in kernel.inner and self.operators_of(kernel):
            return None, FUSED
        if kernel is not None and kernel.kind == "reshape" and not found:
            return None, MOVES
        return (found[0] if found else None), ""

    def _results(self, operators: Any) -> list[str]:
        return [name for op in operators if op in self.operators for name in self.operators[op]["output_names"]]

    def weight(self, name: str, want: StoredTensor) -> tuple[StoredTensor | None, str]:
        """What the graph tells of a weight: with one scale all of it, else type and number of channels."""
        tensor = self.tensors.get(f"{name}_q")
        if tensor is None:
            return None, FOLDED
        if (stored := _stored(tensor)) is not None:
            return stored, ""
        kind, quant = FIXED.get(tensor["data_type"], ""), tensor["quant_params"]
        channels = quant["scale_offset"]["offset"] if quant["encoding"] == PER_AXIS else 0
        if kind == want.dtype and channels == len(want.scale):
            return None, CHANNELS
        return (StoredTensor(kind, want.scale if channels == len(want.scale) else (0.0,) * channels, want.zero_point), "") if kind else (None, "")


def on_codes(job: Job, actual: Contents) -> dict[str, Consent]:
    """Float layers without weights between pairs of one width, which the HTP computes in it. Layers with weights are never announced: those are faults."""
    network, found = job.prepared.network, {}
    for kernel in network.kernels:
        wanted, have = job.demanded.layers[kernel.name], actual.layers.get(kernel.name)
        if have is None or kernel.macs or kernel.weights or not wanted.precision.is_float or have.precision.is_float:
            continue
        if all(f"{t}:{have.precision}" in job.demanded.tensors for t in (*kernel.inputs, *kernel.outputs) if t in network.group_of):
            found[kernel.name] = Consent(Layer(have.precision, wanted.placement), ON_CODES)
    return found


def _plain(name: str) -> str:
    """A node's own name, without what onnxruntime's passes add: of layouts, copies of DequantizeLinear, MatMul and Add made one Gemm."""
    return re.sub(r"(_token_\d+|/duplicated|/MatMulAddFusion)+$", "", name)


def _stored(tensor: Mapping[str, Any]) -> StoredTensor | None:
    """The compiler's offset is the zero point's negative: real = (q + offset) * scale (BUG case B11)."""
    kind, quant = FIXED.get(tensor["data_type"]), tensor["quant_params"]
    if kind is None or quant["encoding"] != PER_TENSOR:
        return None
    return StoredTensor(kind, (float(quant["scale_offset"]["scale"]),), (-int(quant["scale_offset"]["offset"]),))
