"""A Core ML program as an ONNX model, so that what a package holds can be computed without macOS.

The way back from MIL: made from the package alone (`coreml_file.read`), operator by operator from MIL's definitions. Scales and weights have the float16
values of the package; sums are float32, since no one outside Apple says how its units round them.
Source: coremltools 9.0 (2025), definitions of MIL operators, iOS 15 to iOS 17.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from qbench.errors import ToolError
from qbench.targets.exporters.coreml_file import Operation, Program

Array = NDArray[Any]
OPSET = 20
SAME = {"relu": "Relu", "sigmoid": "Sigmoid", "tanh": "Tanh", "softplus": "Softplus", "softsign": "Softsign", "erf": "Erf", "exp": "Exp", "sqrt": "Sqrt", "abs": "Abs",
        "floor": "Floor", "ceil": "Ceil", "sin": "Sin", "cos": "Cos", "identity": "Identity", "round": "Round", "log": "Log", "cast": "Identity"}
BINARY = {"add": "Add", "sub": "Sub", "mul": "Mul", "real_div": "Div", "maximum": "Max", "minimum": "Min", "pow": "Pow"}
REDUCE = {"reduce_mean": "ReduceMean", "reduce_sum": "ReduceSum", "reduce_max": "ReduceMax", "reduce_min": "ReduceMin", "reduce_prod": "ReduceProd",
          "reduce_l2_norm": "ReduceL2"}


def to_onnx(program: Program) -> onnx.ModelProto:
    """Inputs and outputs have the program's names. Raises ToolError for an operator that the exporter does not write."""
    return _Way(program).model()


class _Way:
    def __init__(self, program: Program) -> None:
        self.program = program
        self.nodes: list[onnx.NodeProto] = []
        self.held: list[onnx.TensorProto] = []
        self.shapes = {name: shape for name, (_, shape) in program.inputs.items()}
        self.shapes |= {name: shape for op in program.operations for name, (_, shape) in op.outputs.items()}

    def model(self) -> onnx.ModelProto:
        for op in self.program.operations:
            self._operation(op)
        graph = helper.make_graph(self.nodes, "mil", [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, (_, s) in self.program.inputs.items()],
                                  [helper.make_tensor_value_info(n, TensorProto.FLOAT, self.shapes[n]) for n in self.program.outputs], self.held)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=9)

    def _operation(self, op: Operation) -> None:
        self.op, self.out = op, list(op.outputs)
        rule: Callable[[], None] | None = getattr(self, f"_{op.kind}", None)
        if op.kind in SAME:
            self.put(SAME[op.kind], self.value("x"))
        elif op.kind in BINARY:
            self.put(BINARY[op.kind], self.value("x"), self.value("y"))
        elif op.kind in REDUCE:
            self.put(REDUCE[op.kind], self.value("x"), self.whole("axes"), keepdims=int(self.number("keep_dims")))
        elif rule is not None:
            rule()
        else:
            raise ToolError(f"the package has an operator {op.kind}, which qbench does not write")

    # -- operands

    def value(self, parameter: str, index: int = 0) -> str:
        """Name of a value in float32; arrays become initializers."""
        given = self.op.inputs[parameter][index]
        return given if isinstance(given, str) else self.hold(given.astype(np.float32) if given.dtype.kind == "f" else given)

    def hold(self, array: Array) -> str:
        name = f"held_{len(self.held)}"
        self.held.append(numpy_helper.from_array(np.ascontiguousarray(array).reshape(array.shape), name))
        return name

    def whole(self, parameter: str) -> str:
        return self.hold(np.asarray(self.op.constant(parameter), np.int64).reshape(-1))

    def ints(self, parameter: str) -> list[int]:
        return [int(v) for v in np.asarray(self.op.constant(parameter)).reshape(-1)] if parameter in self.op.inputs else []

    def number(self, parameter: str) -> float:
        return float(np.asarray(self.op.constant(parameter)).reshape(()))

    def real(self, parameter: str) -> str:
        return self.hold(np.asarray(self.op.constant(parameter), np.float32))

    def put(self, op: str, *inputs: str, output: str = "", **attributes: Any) -> str:
        name = output or self.out[0]
        self.nodes.append(helper.make_node(op, list(inputs), [name], **attributes))
        return name

    def shape(self, parameter: str) -> tuple[int, ...]:
        given = self.op.inputs[parameter][0]
        return self.shapes[given] if isinstance(given, str) else tuple(given.shape)

    # -- pairs

    def _quantize(self) -> None:
        self.put("QuantizeLinear", self.value("input"), self.real("scale"), self.hold(self.op.constant("zero_point")))

    def _dequantize(self) -> None:
        self.put("DequantizeLinear", self.value("input"), self.real("scale"), self.hold(self.op.constant("zero_point")))

    def _constexpr_affine_dequantize(self) -> None:
        self.put("DequantizeLinear", self.hold(self.op.constant("quantized_data")), self.real("scale"), self.hold(self.op.constant("zero_point")),
                 axis=int(self.number("axis")))

    # -- layers

    def _window(self) -> dict[str, Any]:
        """Padding, strides, dilations."""
        kind = self.op.constant("pad_type")
        found: dict[str, Any] = {"strides": self.ints("strides")}
        if kind == "custom":
            pad = self.ints("pad")
            found["pads"] = [*pad[::2], *pad[1::2]]
        else:
            found["auto_pad"] = {"valid": "VALID", "same": "SAME_UPPER", "same_lower": "SAME_LOWER"}[kind]
        if "dilations" in self.op.inputs:
            found["dilations"] = self.ints("dilations")
        return found

    def _conv(self) -> None:
        bias = [self.value("bias")] if "bias" in self.op.inputs else []
        self.put("Conv", self.value("x"), self.value("weight"), *bias, group=int(self.number("groups")), **self._window())

    def _conv_transpose(self) -> None:
        bias = [self.value("bias")] if "bias" in self.op.inputs else []
        window, x, y, kernel = self._window(), self.shape("x")[2:], self.shapes[self.out[0]][2:], self.shape("weight")[2:]
        count = len(x)
        ends = [(x[i] - 1) * window["strides"][i] + window["dilations"][i] * (kernel[i] - 1) + 1 - window["pads"][i] - window["pads"][i + count] for i in range(count)]
        self.put("ConvTranspose", self.value("x"), self.value("weight"), *bias, group=int(self.number("groups")),
                 output_padding=[y[i] - ends[i] for i in range(count)], **window)

    def _linear(self) -> None:
        bias = [self.value("bias")] if "bias" in self.op.inputs else []
        self.put("Gemm", self.value("x"), self.value("weight"), *bias, transB=1)

    def _matmul(self) -> None:
        sides = []
        for parameter in ("x", "y"):
            name = self.value(parameter)
            if self.number(f"transpose_{parameter}"):
                rank = len(self.shape(parameter))
                name = self.put("Transpose", name, output=f"{self.out[0]}_{parameter}", perm=[*range(rank - 2), rank - 1, rank - 2])
            sides.append(name)
        self.put("MatMul", *sides)

    def _silu(self) -> None:
        """coremltools itself joins x * sigmoid(x), whatever its pipeline."""
        self.put("Mul", self.value("x"), self.put("Sigmoid", self.value("x"), output=f"{self.out[0]}_gate"))

    def _clip(self) -> None:
        self.put("Clip", self.value("x"), self.real("alpha"), self.real("beta"))

    def _leaky_relu(self) -> None:
        self.put("LeakyRelu", self.value("x"), alpha=self.number("alpha"))

    def _elu(self) -> None:
        self.put("Elu", self.value("x"), alpha=self.number("alpha"))

    def _prelu(self) -> None:
        slope = np.asarray(self.op.constant("alpha"), np.float32)
        self.put("PRelu", self.value("x"), self.hold(slope.reshape(-1, *[1] * (len(self.shape("x")) - 2))))

    def _sigmoid_hard(self) -> None:
        self.put("HardSigmoid", self.value("x"), alpha=self.number("alpha"), beta=self.number("beta"))

    def _gelu(self) -> None:
        self.put("Gelu", self.value("x"), approximate="none" if self.op.constant("mode") == "EXACT" else "tanh")

    def _softmax(self) -> None:
        self.put("Softmax", self.value("x"), axis=int(self.number("axis")))

    def _max_pool(self) -> None:
        self.put("MaxPool", self.value("x"), kernel_shape=self.ints("kernel_sizes"), ceil_mode=int(self.number("ceil_mode")), **self._window())

    def _avg_pool(self) -> None:
        self.put("AveragePool", self.value("x"), kernel_shape=self.ints("kernel_sizes"), ceil_mode=int(self.number("ceil_mode")),
                 count_include_pad=int(not self.number("exclude_padding_from_average")), **self._window())

    # -- what moves values

    def _concat(self) -> None:
        self.put("Concat", *(self.value("values", i) for i in range(len(self.op.inputs["values"]))), axis=int(self.number("axis")))

    def _split(self) -> None:
        self.nodes.append(helper.make_node("Split", [self.value("x"), self.whole("split_sizes")], self.out, axis=int(self.number("axis"))))

    def _slice_by_index(self) -> None:
        axes = self.hold(np.arange(len(self.shape("x")), dtype=np.int64))
        self.put("Slice", self.value("x"), self.whole("begin"), self.whole("end"), axes, self.whole("stride"))

    def _reshape(self) -> None:
        self.put("Reshape", self.value("x"), self.whole("shape"))

    def _transpose(self) -> None:
        self.put("Transpose", self.value("x"), perm=self.ints("perm"))

    def _pad(self) -> None:
        pairs = self.ints("pad")
        pairs = [0] * (2 * len(self.shape("x")) - len(pairs)) + pairs
        mode = {"replicate": "edge"}.get(self.op.constant("mode"), self.op.constant("mode"))
        self.put("Pad", self.value("x"), self.hold(np.asarray([*pairs[::2], *pairs[1::2]], np.int64)), self.real("constant_val"), mode=mode)

    def _gather(self) -> None:
        self.put("Gather", self.value("x"), self.hold(np.asarray(self.op.constant("indices"), np.int64)), axis=int(self.number("axis")))

    def _tile(self) -> None:
        self.put("Tile", self.value("x"), self.whole("reps"))

    def _pixel_shuffle(self) -> None:
        self.put("DepthToSpace", self.value("x"), blocksize=int(self.number("upscale_factor")), mode="CRD")

    def _depth_to_space(self) -> None:
        self.put("DepthToSpace", self.value("x"), blocksize=int(self.number("block_size")), mode="DCR")

    def _upsample_nearest_neighbor(self) -> None:
        self._resize(mode="nearest", coordinate_transformation_mode="asymmetric", nearest_mode="floor")

    def _upsample_bilinear(self) -> None:
        where = "align_corners" if self.number("align_corners") else "half_pixel" if self.number("half_pixel_centers") else "asymmetric"
        self._resize(mode="linear", coordinate_transformation_mode=where)

    def _resize(self, **attributes: str) -> None:
        factors = np.asarray([1.0, 1.0, self.number("scale_factor_height"), self.number("scale_factor_width")], np.float32)
        self.put("Resize", self.value("x"), "", self.hold(factors), **attributes)

    # -- normalisations

    def _batch_norm(self) -> None:
        self.put("BatchNormalization", self.value("x"), *(self.value(p) for p in ("gamma", "beta", "mean", "variance")), epsilon=self.number("epsilon"))

    def _instance_norm(self) -> None:
        self.put("InstanceNormalization", self.value("x"), self.value("gamma"), self.value("beta"), epsilon=self.number("epsilon"))

    def _layer_norm(self) -> None:
        beta = [self.value("beta")] if "beta" in self.op.inputs else []
        self.put("LayerNormalization", self.value("x"), self.value("gamma"), *beta, axis=min(self.ints("axes")), epsilon=self.number("epsilon"))
