"""Write a plan into a model as QuantizeLinear / DequantizeLinear pairs: the file that is evaluated and shipped.

Rules, for an activation tensor t with producer precision p and a consumer of precision c:
  p integer             t is followed by Q/DQ with p's scheme, once; every consumer reads the DQ
  c integer, c != p     a second pair with c's scheme, once per (t, c): the conversion that the chip makes, too
  both float            nothing is added
A tensor between an anchor and its Relu or Clip gets no pair: the range of the kernel's output says the clamp.
Weights of integer units are stored as integers behind a DQ; biases as int32 with scale s_x * s_w. 16-bit pairs live in the
com.microsoft domain, because ONNX has them only since opset 21 (BUG case B18).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from qbench.affine import Affine, Range, Scheme, affine, quantize
from qbench.errors import PlanError
from qbench.files import replacing
from qbench.graph import PreparedModel
from qbench.graph.kernels import constant, moves_values
from qbench.network import Precision
from qbench.plan import Granularity, Plan, check_fits
from qbench.qdq.tensors import clamped
from qbench.qdq.weights import bias_codes, scales_that_hold_bias, weight_codes, weight_scales
from qbench.target import QuantScheme

Array = NDArray[Any]
MICROSOFT = "com.microsoft"
BIG_MODEL_BYTES = 1_500_000_000
"""Above this the weights go to a file beside the model: one protobuf holds 2 GB at most."""


@dataclass
class Written:
    """model    the Q/DQ model
    widened     weight tensors whose scale was raised so that the bias fits int32 (BUG case B08): name -> factor
    per_tensor  weights that could not be per channel: name -> why
    raw, stored activation tensor of the network -> value of the model as its kernel computes it, and as readers of the
                same precision see it (behind the Q/DQ pair); the same value where there is no pair
    """

    model: ir.Model
    raw: dict[str, str] = field(default_factory=dict)
    stored: dict[str, str] = field(default_factory=dict)
    widened: dict[str, float] = field(default_factory=dict)
    per_tensor: dict[str, str] = field(default_factory=dict)


def write(prepared: PreparedModel, plan: Plan, emulate_fp16: bool = False) -> Written:
    """The Q/DQ model of `plan`.

    emulate_fp16   round weights and outputs of FP16 units to float16 (sums stay float32), to check what the chip's FP16 does;
                   the file to ship has none of it
    Raises PlanError when the plan does not fit the model or lacks a range.
    """
    check_fits(plan, prepared.network)
    return _Writer(prepared, plan, emulate_fp16).run()


def save(model: ir.Model, path: Path) -> None:
    """Checked by onnx.checker, then renamed into place. Weights above the protobuf limit go to `NAME.data` beside it."""
    import onnx

    size = sum(v.const_value.nbytes for v in model.graph.initializers.values() if v.const_value is not None)
    if size > BIG_MODEL_BYTES:
        path.parent.mkdir(parents=True, exist_ok=True)
        ir.save(model, path, external_data=path.name + ".data")
        onnx.checker.check_model(str(path))
        return
    data = to_bytes(model)
    onnx.checker.check_model(data)
    with replacing(path) as temporary:
        temporary.write_bytes(data)


def to_bytes(model: ir.Model) -> bytes:
    data: bytes = ir.to_proto(model).SerializeToString(deterministic=True)
    return data


class _Writer:
    def __init__(self, prepared: PreparedModel, plan: Plan, emulate_fp16: bool) -> None:
        self.network, self.plan = prepared.network, plan
        self.emulate = emulate_fp16
        self.model = prepared.model.clone()
        self.graph = self.model.graph
        self.out = Written(self.model)
        self.nodes = {str(n.name): n for n in self.graph}
        self.names = {str(v.name) for n in self.graph for v in n.outputs if v.name} | set(self.graph.initializers) | {
            str(v.name) for v in self.graph.inputs} | {str(n.name) for n in self.model.graph.all_nodes()}
        self.values: dict[str, ir.Value] = {str(v.name): v for v in self.graph.inputs}
        self.values |= {str(v.name): v for n in self.graph for v in n.outputs}
        self.kernel_of = {n: k for k in self.network.kernels for n in k.nodes}
        self.constants: dict[tuple[Any, ...], ir.Value] = {}
        self.pairs: dict[tuple[str, Precision], ir.Value] = {}
        self.ends: dict[str, tuple[ir.Value, ir.Value]] = {}
        self.no_pair = {t for k in self.network.kernels for t in clamped(k)}
        ranges = plan.ranges.values()
        self.whole = (Range(min(r.low for r in ranges), max(r.high for r in ranges)) if ranges else None)
        self.microsoft = False

    # -- precision of things

    def of_kernel(self, kernel: str) -> Precision:
        return self.plan.precision[self.network.unit_of_kernel[kernel]]

    def stored(self, tensor: str) -> Precision:
        """Precision in which the producer leaves `tensor`; graph inputs arrive in float."""
        maker = self.network.producer.get(tensor)
        return Precision.FP32 if maker is None else self.of_kernel(maker)

    def scheme(self, precision: Precision) -> QuantScheme:
        try:
            return self.plan.schemes[str(precision)]
        except KeyError:
            raise PlanError(f"the plan uses {precision} but holds no scheme for it") from None

    def affine_of(self, tensor: str, precision: Precision) -> Affine:
        scheme = self.scheme(precision).activation
        if self.plan.granularity is Granularity.GLOBAL and self.whole is not None:
            return affine(self.whole, scheme)
        group = self.network.group_of[tensor].name
        if group not in self.plan.ranges:
            raise PlanError(f"the plan has no range for {group!r} (tensor {tensor!r}), which an {precision} unit needs")
        return affine(self.plan.ranges[group], scheme)

    # -- the walk

    def run(self) -> Written:
        for tensor, spec in self.network.tensors.items():
            if spec.dtype == "float32" and tensor in self.values:
                self._tensor(tensor)
        for name, node in list(self.nodes.items()):
            kernel = self.kernel_of.get(name)
            if kernel is None:
                continue
            precision = self.of_kernel(kernel.name)
            if not precision.is_float:
                self._constants(node, precision)
            elif self.emulate and precision is Precision.FP16:
                self._round_constants(node)
        self.out.raw = {t: str(v.name) for t, (v, _) in self.ends.items()}
        self.out.stored = {t: str(v.name) for t, (_, v) in self.ends.items()}
        if self.microsoft:
            self.model.opset_imports.setdefault(MICROSOFT, 1)
        ir.passes.common.RemoveUnusedNodesPass()(self.model)
        ir.passes.common.TopologicalSortPass()(self.model)
        return self.out

    def _tensor(self, tensor: str) -> None:
        """Insert the pairs that `tensor` needs and rewire its readers."""
        value, stored = self.values[tensor], self.stored(tensor)
        readers = list(value.uses())
        self.ends[tensor] = value, value
        if tensor in self.no_pair and not stored.is_float:
            return
        source = value
        if not stored.is_float and tensor in self.network.group_of:
            source = self._pair(value, self.affine_of(tensor, stored), tensor, stored)
        elif self.emulate and stored is Precision.FP16:
            source = self._half(value, tensor)
        self.ends[tensor] = value, source
        converted: dict[Precision, ir.Value] = {stored: source}
        for node, index in readers:
            wanted = self._wanted(node, stored)
            if wanted.is_float or tensor not in self.network.group_of:
                wanted = stored
            if wanted not in converted:
                converted[wanted] = self._pair(source, self.affine_of(tensor, wanted), tensor, wanted)
            if converted[wanted] is not value:
                node.replace_input_with(index, converted[wanted])
        if value.is_graph_output() and source is not value:
            self._replace_output(value, source)

    def _wanted(self, node: ir.Node, stored: Precision) -> Precision:
        kernel = self.kernel_of.get(str(node.name))
        return stored if kernel is None else self.of_kernel(kernel.name)

    def _replace_output(self, value: ir.Value, source: ir.Value) -> None:
        """The DQ takes the name of the graph output."""
        name = str(value.name)
        position = next(i for i, v in enumerate(self.graph.outputs) if v is value)
        value.name = self._free(f"{name}_float")
        source.name = name
        source.type, source.shape = value.type, value.shape
        self.graph.outputs[position] = source

    def _pair(self, value: ir.Value, a: Affine, tensor: str, precision: Precision) -> ir.Value:
        domain = self._domain(a.scheme)
        scale, zero = self._scale(a, f"{tensor}_{precision}")
        codes = ir.Value(name=self._free(f"{tensor}_{precision}_q"))
        reals = ir.Value(name=self._free(f"{tensor}_{precision}_dq"))
        q = ir.Node(domain, "QuantizeLinear", [value, scale, zero], outputs=[codes], name=self._free_node(f"{tensor}_{precision}_QuantizeLinear"))
        dq = ir.Node(domain, "DequantizeLinear", [codes, scale, zero], outputs=[reals],
                     name=self._free_node(f"{tensor}_{precision}_DequantizeLinear"))
        self.graph.extend([q, dq])
        return reals

    def _half(self, value: ir.Value, tensor: str) -> ir.Value:
        half, back = ir.Value(name=self._free(f"{tensor}_half")), ir.Value(name=self._free(f"{tensor}_rounded"))
        self.graph.extend([
            ir.node("Cast", [value], {"to": int(ir.DataType.FLOAT16)}, outputs=[half], name=self._free_node(f"{tensor}_to_half")),
            ir.node("Cast", [half], {"to": int(ir.DataType.FLOAT)}, outputs=[back], name=self._free_node(f"{tensor}_from_half"))])
        return back

    # -- constants

    def _constants(self, node: ir.Node, precision: Precision) -> None:
        """Integers for the constant operands of `node`."""
        if node.op_type in ("Conv", "ConvTranspose", "Gemm", "MatMul"):
            self._weights(node, precision)
            return
        if node.op_type in ("Add", "Sub", "Mul", "Div", "Max", "Min", "Concat"):
            for index, value in enumerate(node.inputs):
                if value is not None and constant(value) and value.dtype == ir.DataType.FLOAT:
                    node.replace_input_with(index, self._operand(node, value, precision))

    def _operand(self, node: ir.Node, value: ir.Value, precision: Precision) -> ir.Value:
        data = to_numpy(value)
        scheme = self.scheme(precision).activation
        if node.op_type == "Concat" and moves_values(node):
            a = self.affine_of(str(node.outputs[0].name), precision)
        else:
            a = affine(Range(float(data.min()), float(data.max())) if data.size else Range(0.0, 0.0), scheme)
        key = (value.name, a.scale, a.zero_point, a.scheme)
        if key not in self.constants:
            self.constants[key] = self._dequantized(str(value.name), quantize(data, a), np.float32(a.scale), a.zero_point, a.scheme, None)
        return self.constants[key]

    def _weights(self, node: ir.Node, precision: Precision) -> None:
        weight = node.inputs[1]
        scheme = self.scheme(precision)
        if weight is None or not constant(weight) or weight.dtype != ir.DataType.FLOAT:
            return
        data = to_numpy(weight)
        axis = self._axis(node, data, scheme, str(weight.name))
        bias = node.inputs[2] if len(node.inputs) > 2 else None
        bias = bias if bias is not None and constant(bias) and bias.dtype == ir.DataType.FLOAT and node.op_type != "MatMul" else None
        scales = weight_scales(data, axis, scheme.weight)
        input_scale = self._input_scale(node)
        if bias is not None and input_scale is not None and scheme.bias_bits == 32:
            raised = scales_that_hold_bias(scales, to_numpy(bias), input_scale)
            if np.any(raised > scales):
                self.out.widened[str(weight.name)] = float((raised / scales).max())
            scales = raised
        key = (weight.name, axis, scheme.weight, scales.tobytes())
        if key not in self.constants:
            codes = weight_codes(data, scales, axis, scheme.weight)
            self.constants[key] = self._dequantized(str(weight.name), codes, scales, 0, scheme.weight, axis)
        node.replace_input_with(1, self.constants[key])
        if bias is not None and input_scale is not None and scheme.bias_bits == 32:
            node.replace_input_with(2, self._bias(bias, scales, input_scale))

    def _axis(self, node: ir.Node, data: Array, scheme: QuantScheme, name: str) -> int | None:
        """Axis of the output channels, or None for one scale per tensor (BUG case B09)."""
        if self.plan.granularity is not Granularity.PER_CHANNEL or not scheme.weight_per_channel:
            return None
        if node.op_type == "Conv":
            return 0
        if node.op_type == "ConvTranspose":
            group = node.attributes.get("group")
            if group is not None and group.as_int() > 1:
                self.out.per_tensor[name] = "grouped ConvTranspose: one axis cannot hold a scale per output channel"
                return None
            return 1
        if data.ndim < 2:
            return None
        if node.op_type == "Gemm":
            transposed = node.attributes.get("transB")
            return 0 if transposed is not None and transposed.as_int() else 1
        return data.ndim - 1

    def _input_scale(self, node: ir.Node) -> float | None:
        """Scale of the DQ in front of the node's first input; None when it is not quantized."""
        value = node.inputs[0]
        maker = value.producer() if value is not None else None
        if maker is None or maker.op_type != "DequantizeLinear":
            return None
        scale = maker.inputs[1]
        return None if scale is None or scale.const_value is None else float(scale.const_value.numpy())

    def _bias(self, bias: ir.Value, scales: Array, input_scale: float) -> ir.Value:
        data = to_numpy(bias)
        codes, total = bias_codes(data, scales, input_scale)
        key = (bias.name, "bias", total.tobytes())
        if key not in self.constants:
            axis = data.ndim - 1 if total.ndim else None
            self.constants[key] = self._dequantized(str(bias.name), codes, total, 0, Scheme(32, True, True), axis)
        return self.constants[key]

    def _dequantized(self, name: str, codes: Array, scale: Any, zero: int, scheme: Scheme, axis: int | None) -> ir.Value:
        scales = np.asarray(scale, np.float32)
        scales = scales if axis is not None else scales.reshape(())
        zeros = np.full(scales.shape, zero, codes.dtype)
        inputs = [self._initializer(f"{name}_q", codes), self._initializer(f"{name}_scale", scales)]
        if codes.dtype != np.int32:
            inputs.append(self._initializer(f"{name}_zero_point", zeros))
        reals = ir.Value(name=self._free(f"{name}_dq"))
        attributes: dict[str, Any] = {} if axis is None else {"axis": axis}
        self.graph.extend([ir.node("DequantizeLinear", inputs, attributes, domain=self._domain(scheme), outputs=[reals],
                                   name=self._free_node(f"{name}_DequantizeLinear"))])
        return reals

    def _round_constants(self, node: ir.Node) -> None:
        for index, value in enumerate(node.inputs):
            if value is not None and constant(value) and value.dtype == ir.DataType.FLOAT:
                key = (value.name, "half")
                if key not in self.constants:
                    limit = float(np.finfo(np.float16).max)
                    rounded = np.clip(to_numpy(value), -limit, limit).astype(np.float16).astype(np.float32)
                    self.constants[key] = self._initializer(f"{value.name}_half", rounded)
                node.replace_input_with(index, self.constants[key])

    # -- small parts

    def _scale(self, a: Affine, name: str) -> tuple[ir.Value, ir.Value]:
        key = ("scale", a.scale, a.zero_point, a.scheme.dtype.name)
        if key not in self.constants:
            self.constants[key] = self._initializer(f"{name}_scale", np.asarray(a.scale, np.float32))
            self.constants[(*key, "zero")] = self._initializer(f"{name}_zero_point", np.asarray(a.zero_point, a.scheme.dtype))
        return self.constants[key], self.constants[(*key, "zero")]

    def _initializer(self, name: str, data: Array) -> ir.Value:
        name = self._free(name)
        value = ir.Value(name=name, const_value=ir.tensor(data, name=name), type=ir.TensorType(ir.DataType.from_numpy(data.dtype)),
                         shape=ir.Shape(data.shape))
        self.graph.register_initializer(value)
        return value

    def _domain(self, scheme: Scheme) -> str:
        if scheme.bits == 16:
            self.microsoft = True
            return MICROSOFT
        return ""

    def _free(self, name: str) -> str:
        return _unique(name, self.names)

    def _free_node(self, name: str) -> str:
        return _unique(name, self.names)


def _unique(name: str, taken: set[str]) -> str:
    number, stem = 0, name
    while name in taken:
        number += 1
        name = f"{stem}_{number}"
    taken.add(name)
    return name


def to_numpy(value: ir.Value) -> Array:
    """The data of a constant."""
    assert value.const_value is not None
    return value.const_value.numpy()
