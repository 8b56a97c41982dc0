"""TensorFlow.js graph model -> ONNX without TensorFlow: channels last outside, channels first inside each convolution.

Covers the operators of the networks that fetch.py uses, and refuses others by name.
Source: the format of tfjs-core's `io` (model.json with weightsManifest), NodeDef attributes of TensorFlow.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

Array = NDArray[Any]
Node = Mapping[str, Any]
OPSET = 17
SAME_NAME = {
    "Add": "Add",
    "AddV2": "Add",
    "BiasAdd": "Add",
    "Mul": "Mul",
    "Sub": "Sub",
    "RealDiv": "Div",
    "Abs": "Abs",
    "Relu": "Relu",
    "Sigmoid": "Sigmoid",
    "Tanh": "Tanh",
    "Identity": "Identity",
    "Exp": "Exp",
    "Sqrt": "Sqrt",
    "Neg": "Neg",
    "Maximum": "Max",
    "Minimum": "Min",
    "Elu": "Elu",
}
STORED = {"float32": "<f4", "int32": "<i4", "bool": "?", "float16": "<f2", "uint8": "u1", "uint16": "<u2"}


class Unsupported(ValueError):
    """An operator or attribute that this converter does not know."""


def convert(path: Path) -> onnx.ModelProto:
    """The ONNX form, opset 17, of the graph model whose model.json is `path`."""
    body = json.loads(path.read_text(encoding="utf-8"))
    return _Converter(body, _weights(body, path.parent)).run()


def _weights(body: Mapping[str, Any], folder: Path) -> dict[str, Array]:
    found: dict[str, Array] = {}
    for group in body["weightsManifest"]:
        data, start = b"".join((folder / p).read_bytes() for p in group["paths"]), 0
        for entry in group["weights"]:
            packed = entry.get("quantization")
            kind = STORED[packed["dtype"] if packed else entry["dtype"]]
            raw = np.frombuffer(data, kind, int(np.prod(entry["shape"], dtype=np.int64)), start).reshape(entry["shape"])
            start += raw.nbytes
            real = raw.astype(np.float32) * packed["scale"] + packed["min"] if packed and "scale" in packed else raw
            found[entry["name"]] = np.array(real.astype(STORED[entry["dtype"]]))
    return found


def _clean(name: str) -> str:
    return name.lstrip("^").removesuffix(":0")


def _attribute(node: Node, key: str, default: Any = None) -> Any:
    """Value of a NodeDef attribute; lists of numbers as ints, texts decoded."""
    value = node.get("attr", {}).get(key)
    if value is None:
        return default
    if "list" in value:
        texts = value["list"].get("s")
        return [base64.b64decode(t).decode() for t in texts] if texts else [int(x) for x in value["list"].get("i", [])]
    if "s" in value:
        return base64.b64decode(value["s"]).decode()
    if "i" in value:
        return int(value["i"])
    return value.get("f", value.get("b", default))


class _Converter:
    def __init__(self, body: Mapping[str, Any], weights: dict[str, Array]) -> None:
        self.by_name = {n["name"]: n for n in body["modelTopology"]["node"]}
        self.weights = weights
        self.signature = body.get("signature") or (body.get("userDefinedMetadata") or {}).get("signature") or {}
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []
        self.inputs: list[onnx.ValueInfoProto] = []

    def run(self) -> onnx.ModelProto:
        wanted = self._outputs()
        needed = self._needed(wanted)
        for name, node in self.by_name.items():
            if name in needed:
                self._node(node)
        graph = helper.make_graph(
            self.nodes, "network", self.inputs, [helper.make_empty_tensor_value_info(o) for o in wanted], self.constants
        )
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=8)
        model = onnx.shape_inference.infer_shapes(model)
        onnx.checker.check_model(model)
        return model

    def _outputs(self) -> list[str]:
        named = [_clean(v["name"]) for v in self.signature.get("outputs", {}).values()]
        read = {_clean(i) for n in self.by_name.values() for i in n.get("input", [])}
        return [o for o in named if o in self.by_name] or [
            n for n, v in self.by_name.items() if n not in read and v["op"] != "Const"
        ]

    def _needed(self, wanted: Sequence[str]) -> set[str]:
        needed: set[str] = set()
        waiting = list(wanted)
        while waiting:
            if (name := waiting.pop()) not in needed:
                needed.add(name)
                waiting += self._reads(self.by_name[name])
        return needed

    @staticmethod
    def _reads(node: Node) -> list[str]:
        return [_clean(i) for i in node.get("input", []) if not i.startswith("^")]

    # -- building blocks

    def constant(self, value: Any) -> str:
        name = f"constant_{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.ascontiguousarray(value), name))
        return name

    def add(self, op: str, inputs: Sequence[str], output: str | None = None, **attributes: Any) -> str:
        output = output or f"{op.lower()}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, list(inputs), [output], name=output, **attributes))
        return output

    def first(self, name: str) -> str:
        return self.add("Transpose", [name], perm=[0, 3, 1, 2])

    def last(self, name: str, output: str) -> str:
        return self.add("Transpose", [name], output, perm=[0, 2, 3, 1])

    # -- one TensorFlow node

    def _node(self, node: Node) -> None:
        op, name, reads = node["op"], node["name"], self._reads(node)
        if op in SAME_NAME:
            self.add(SAME_NAME[op], reads[:2], name)
            return
        known: dict[str, Callable[[Node, str, list[str]], object]] = {
            "Const": lambda n, o, i: self.constants.append(numpy_helper.from_array(self.weights[o], o)),
            "Placeholder": self._input,
            "_FusedConv2D": self._conv,
            "Conv2D": self._conv,
            "FusedDepthwiseConv2dNative": self._conv,
            "DepthwiseConv2dNative": self._conv,
            "Conv2DBackpropInput": self._deconv,
            "MaxPool": self._pool,
            "AvgPool": self._pool,
            "AddN": lambda n, o, i: self.add("Sum", i, o),
            "Square": lambda n, o, i: self.add("Mul", [i[0], i[0]], o),
            "Rsqrt": lambda n, o, i: self.add("Reciprocal", [self.add("Sqrt", i)], o),
            "Relu6": lambda n, o, i: self._act("Relu6", i[0], o, n, ""),
            "Softmax": lambda n, o, i: self.add("Softmax", i, o, axis=-1),
            "Prelu": lambda n, o, i: self.add("PRelu", i, o),
            "Mean": self._mean,
            "Sum": self._sum,
            "Reshape": self._reshape,
            "Squeeze": self._squeeze,
            "Pad": self._pad_node,
            "PadV2": self._pad_node,
            "ConcatV2": lambda n, o, i: self.add("Concat", i[:-1], o, axis=int(self.weights[i[-1]])),
            "Transpose": lambda n, o, i: self.add("Transpose", [i[0]], o, perm=[int(x) for x in self.weights[i[1]]]),
            "MatMul": self._matmul,
            "_FusedMatMul": self._matmul,
            "ResizeBilinear": self._resize,
        }
        if op not in known:
            raise Unsupported(f"node {name!r}: operator {op}")
        known[op](node, name, reads)

    def _input(self, node: Node, name: str, reads: list[str]) -> None:
        shape = [d["size"] for d in _dims(node.get("attr", {}).get("shape", {}).get("shape", {}))]
        for value in self.signature.get("inputs", {}).values():
            if _clean(value["name"]) == name and _dims(value.get("tensorShape", {})):
                shape = [d["size"] for d in _dims(value["tensorShape"])]
        sizes = [int(d) if int(d) > 0 else "batch" for d in shape]
        self.inputs.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, sizes))

    def _act(self, kind: str, value: str, output: str | None, node: Node, slope: str) -> str:
        if kind in ("Relu", "Elu", "Sigmoid", "Tanh"):
            return self.add(kind, [value], output)
        if kind == "Relu6":
            return self.add("Clip", [value, self.constant(np.float32(0)), self.constant(np.float32(6))], output)
        if kind == "LeakyRelu":
            return self.add("LeakyRelu", [value], output, alpha=float(_attribute(node, "leakyrelu_alpha", 0.2)))
        if kind == "Prelu":
            return self.add("PRelu", [value, self.constant(self.weights[slope].reshape(-1, 1, 1))], output)
        raise Unsupported(f"node {node['name']!r}: fused activation {kind}")

    @staticmethod
    def _padding(node: Node) -> dict[str, Any]:
        kind = _attribute(node, "padding")
        if kind == "EXPLICIT":
            pads = _attribute(node, "explicit_paddings")
            return {"pads": [pads[2], pads[4], pads[3], pads[5]]}
        return {"auto_pad": "SAME_UPPER" if kind == "SAME" else "VALID"}

    def _conv(self, node: Node, name: str, reads: list[str]) -> None:
        weight, groups = self.weights[reads[1]], 1
        if "epthwise" in node["op"]:
            height, width, groups, times = weight.shape
            weight = weight.transpose(2, 3, 0, 1).reshape(groups * times, 1, height, width)
        else:
            weight = weight.transpose(3, 2, 0, 1)
        fused = _attribute(node, "fused_ops") or []
        inputs = [self.first(reads[0]), self.constant(weight)]
        if "BiasAdd" in fused:
            inputs.append(self.constant(self.weights[reads[2]].reshape(-1)))
        value = self.add(
            "Conv",
            inputs,
            strides=_attribute(node, "strides")[1:3],
            group=groups,
            dilations=(_attribute(node, "dilations") or [1, 1, 1, 1])[1:3],
            **self._padding(node),
        )
        for kind in fused:
            if kind != "BiasAdd":
                value = self._act(kind, value, None, node, reads[3] if len(reads) > 3 else "")
        self.last(value, name)

    def _deconv(self, node: Node, name: str, reads: list[str]) -> None:
        size = [int(x) for x in self.weights[reads[0]]]
        value = self.add(
            "ConvTranspose",
            [self.first(reads[2]), self.constant(self.weights[reads[1]].transpose(3, 2, 0, 1))],
            strides=_attribute(node, "strides")[1:3],
            output_shape=size[1:3],
            **self._padding(node),
        )
        self.last(value, name)

    def _pool(self, node: Node, name: str, reads: list[str]) -> None:
        op = "MaxPool" if node["op"] == "MaxPool" else "AveragePool"
        self.last(
            self.add(
                op,
                [self.first(reads[0])],
                kernel_shape=_attribute(node, "ksize")[1:3],
                strides=_attribute(node, "strides")[1:3],
                **self._padding(node),
            ),
            name,
        )

    def _axes(self, name: str) -> list[int]:
        return [int(x) for x in np.atleast_1d(self.weights[name])]

    def _mean(self, node: Node, name: str, reads: list[str]) -> None:
        self.add(
            "ReduceMean",
            [reads[0]],
            name,
            axes=self._axes(reads[1]),
            keepdims=int(bool(_attribute(node, "keep_dims", False))),
        )

    def _sum(self, node: Node, name: str, reads: list[str]) -> None:
        axes = self.constant(np.array(self._axes(reads[1]), np.int64))
        self.add("ReduceSum", [reads[0], axes], name, keepdims=int(bool(_attribute(node, "keep_dims", False))))

    def _reshape(self, node: Node, name: str, reads: list[str]) -> None:
        self.add("Reshape", [reads[0], self.constant(self.weights[reads[1]].astype(np.int64))], name)

    def _squeeze(self, node: Node, name: str, reads: list[str]) -> None:
        axes = _attribute(node, "squeeze_dims") or []
        self.add("Squeeze", [reads[0], *([self.constant(np.array(axes, np.int64))] if axes else [])], name)

    def _pad_node(self, node: Node, name: str, reads: list[str]) -> None:
        pads = self.weights[reads[1]].astype(np.int64).T.reshape(-1)
        self.add("Pad", [reads[0], self.constant(pads), *(reads[2:3] if node["op"] == "PadV2" else [])], name)

    def _matmul(self, node: Node, name: str, reads: list[str]) -> None:
        weight = self.weights[reads[1]]
        value = self.add("MatMul", [reads[0], self.constant(weight.T if _attribute(node, "transpose_b") else weight)])
        for kind in _attribute(node, "fused_ops") or []:
            value = self.add("Add", [value, reads[2]]) if kind == "BiasAdd" else self._act(kind, value, None, node, "")
        self.add("Identity", [value], name)

    def _resize(self, node: Node, name: str, reads: list[str]) -> None:
        mode = (
            "half_pixel"
            if _attribute(node, "half_pixel_centers")
            else "align_corners"
            if _attribute(node, "align_corners")
            else "asymmetric"
        )
        value = self.first(reads[0])
        kept = self.add(
            "Slice", [self.add("Shape", [value]), self.constant(np.array([0])), self.constant(np.array([2]))]
        )
        sizes = self.add("Concat", [kept, self.constant(self.weights[reads[1]].astype(np.int64))], axis=0)
        self.last(self.add("Resize", [value, "", "", sizes], mode="linear", coordinate_transformation_mode=mode), name)


def _dims(shape: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return list(shape.get("dim", []))
