"""Every operator with gradients against onnxruntime, in forms that networks have."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper, parser

from qbench.errors import ModelError
from qbench.runtime import Session
from qbench.torchgraph import Program
from qbench.torchgraph.operators import OPERATORS

RNG = np.random.default_rng(0)
MAP = (2, 4, 6, 6)

CASES = [
    ("Conv", "Conv<pads=[1,1,1,1], strides=[2,2]>(x, w)", {"w": RNG.normal(0, 1, (3, 4, 3, 3))}),
    ("Conv", 'Conv<auto_pad="SAME_UPPER", strides=[2,2]>(x, w, b)', {"w": RNG.normal(0, 1, (3, 4, 3, 3)), "b": RNG.normal(0, 1, 3)}),
    ("Conv", 'Conv<auto_pad="SAME_LOWER", group=2>(x, w)', {"w": RNG.normal(0, 1, (4, 2, 2, 2))}),
    ("Conv", "Conv<pads=[0,1,2,1], dilations=[2,1], group=4>(x, w)", {"w": RNG.normal(0, 1, (4, 1, 3, 3))}),
    ("ConvTranspose", "ConvTranspose<strides=[2,2], pads=[1,0,0,1], output_padding=[1,1]>(x, w)", {"w": RNG.normal(0, 1, (4, 2, 3, 3))}),
    ("MaxPool", "MaxPool<kernel_shape=[3,3], strides=[2,2], pads=[1,1,0,0]>(x)", {}),
    ("AveragePool", "AveragePool<kernel_shape=[3,3], pads=[1,1,1,1]>(x)", {}),
    ("AveragePool", "AveragePool<kernel_shape=[2,2], pads=[1,0,0,1], count_include_pad=1>(x)", {}),
    ("GlobalAveragePool", "GlobalAveragePool(x)", {}), ("GlobalMaxPool", "GlobalMaxPool(x)", {}),
    ("Relu", "Relu(x)", {}), ("Clip", "Clip(x, low, high)", {"low": np.float32(-0.3), "high": np.float32(0.5)}), ("Sigmoid", "Sigmoid(x)", {}),
    ("Tanh", "Tanh(x)", {}), ("Erf", "Erf(x)", {}), ("Exp", "Exp(x)", {}), ("Abs", "Abs(x)", {}), ("Neg", "Neg(x)", {}),
    ("Reciprocal", "Reciprocal(x)", {}), ("Softplus", "Softplus(x)", {}), ("Mish", "Mish(x)", {}), ("HardSwish", "HardSwish(x)", {}),
    ("Identity", "Identity(x)", {}), ("Dropout", "Dropout(x)", {}), ("HardSigmoid", "HardSigmoid<alpha=0.3, beta=0.4>(x)", {}),
    ("LeakyRelu", "LeakyRelu<alpha=0.2>(x)", {}), ("Elu", "Elu<alpha=0.7>(x)", {}), ("Gelu", "Gelu(x)", {}), ("Gelu", 'Gelu<approximate="tanh">(x)', {}),
    ("PRelu", "PRelu(x, s)", {"s": RNG.normal(0, 1, (4, 1, 1))}),
    ("Add", "Add(x, o)", {"o": RNG.normal(0, 1, (4, 1, 1))}), ("Sub", "Sub(x, o)", {"o": RNG.normal(0, 1, (1, 6))}), ("Mul", "Mul(x, x)", {}),
    ("Div", "Div(x, o)", {"o": np.float32(1.7)}), ("Pow", "Pow(x, o)", {"o": np.float32(2.0)}), ("Max", "Max(x, o)", {"o": np.float32(0.1)}),
    ("Min", "Min(x, o)", {"o": np.float32(0.1)}), ("Sum", "Sum(x, x, o)", {"o": np.float32(0.1)}),
    ("ReduceMean", "ReduceMean<keepdims=0>(x, a)", {"a": np.array([2, 3])}), ("ReduceSum", "ReduceSum(x, a)", {"a": np.array([-1])}),
    ("ReduceMax", "ReduceMax(x, a)", {"a": np.array([1])}), ("ReduceMin", "ReduceMin(x)", {}),
    ("Reshape", "Reshape(x, s)", {"s": np.array([0, -1, 6])}), ("Flatten", "Flatten<axis=2>(x)", {}), ("Transpose", "Transpose<perm=[0,2,3,1]>(x)", {}),
    ("Unsqueeze", "Unsqueeze(x, a)", {"a": np.array([1, -1])}), ("Concat", "Concat<axis=-1>(x, x, o)", {"o": RNG.normal(0, 1, (2, 4, 6, 1))}),
    ("Pad", "Pad(x, p, v)", {"p": np.array([0, 0, 1, 2, 0, 1, 0, 3]), "v": np.float32(0.5)}),
    ("Slice", "Slice(x, s, e, a, t)", {"s": np.array([-1, 1]), "e": np.array([-100, 4]), "a": np.array([2, 3]), "t": np.array([-2, 1])}),
    ("Gather", "Gather<axis=1>(x, i)", {"i": np.array([[0, -1], [2, 1]])}),
    ("Expand", "Expand(x, s)", {"s": np.array([3, 1, 1, 1, 6])}),
    ("Softmax", "Softmax<axis=1>(x)", {}), ("LogSoftmax", "LogSoftmax(x)", {}),
    ("LayerNormalization", "LayerNormalization<axis=-1, epsilon=0.01>(x, s, b)", {"s": RNG.normal(1, 0.1, 6), "b": RNG.normal(0, 1, 6)}),
    ("BatchNormalization", "BatchNormalization<epsilon=0.01>(x, s, b, m, v)",
     {"s": RNG.normal(1, 0.1, 4), "b": RNG.normal(0, 1, 4), "m": RNG.normal(0, 1, 4), "v": RNG.uniform(0.5, 2, 4)}),
    ("MatMul", "MatMul(x, w)", {"w": RNG.normal(0, 1, (6, 5))}),
]
PROGRAMS = [
    ("Gemm", "f = Flatten(x) y = Gemm<transB=1, alpha=0.5, beta=2.0>(f, w, b)", {"w": RNG.normal(0, 1, (5, 144)), "b": RNG.normal(0, 1, 5)}),
    ("Squeeze", "p = GlobalMaxPool(x) y = Squeeze(p, a)", {"a": np.array([2, 3])}),
    ("Split", "a, b = Split<axis=1>(x, n) y = Sub(b, a)", {"n": np.array([2, 2])}),
    ("Sqrt", "a = Abs(x) y = Sqrt(a)", {}), ("Log", "a = Exp(x) b = Add(a, a) y = Log(b)", {}),
    ("Where", "a = Relu(x) e = Equal(a, x) y = Where(e, x, o)", {"o": np.float32(9.0)}), ("Equal", "e = Equal(x, x) y = Cast<to=1>(e)", {}),
    ("Shape", "s = Shape(x) y = Cast<to=1>(s)", {}), ("Cast", "d = Cast<to=11>(x) y = Cast<to=1>(d)", {}),
    ("Constant", "c = Constant<value = float[2] {1.5, 2.0}>() r = ReduceMean<keepdims=1>(c) y = Mul(x, r)", {}),
]


def build(body: str, held: dict[str, Any], opset: int = 20) -> Any:
    proto = parser.parse_model(f'<ir_version: 8, opset_import: ["" : {opset}]> g (float[N, 4, 6, 6] x) => (float y) {{ {body} }}')
    del proto.graph.output[0].type.tensor_type.shape.dim[:]
    proto.graph.output[0].CopyFrom(helper.make_tensor_value_info("y", TensorProto.FLOAT, None))
    for name, value in held.items():
        array = np.asarray(value)
        array = array.astype(np.int64) if array.dtype.kind == "i" else array.astype(np.float32)
        proto.graph.initializer.append(numpy_helper.from_array(array, name))
    for number, node in enumerate(proto.graph.node):
        node.name = f"n{number}"
    return proto


@pytest.mark.parametrize(("op", "body", "held"), [(o, f"y = {b}", h) for o, b, h in CASES] + PROGRAMS, ids=lambda v: v if isinstance(v, str) and "=" not in v else "")
def test_an_operator_gives_what_onnxruntime_gives(op: str, body: str, held: dict[str, Any]) -> None:
    proto = build(body, held, 22 if "Mish" in body else 20)
    assert op in {n.op_type for n in proto.graph.node}
    x = np.random.default_rng(1).normal(0.0, 1.0, MAP).astype(np.float32)
    want = Session(proto.SerializeToString(), None, True).run({"x": x})["y"]
    got = Program(ir.serde.deserialize_model(proto)).run({"x": torch.from_numpy(x)})["y"].numpy()
    assert got.shape == want.shape
    np.testing.assert_allclose(got, want, rtol=2e-5, atol=2e-6)


def test_every_operator_is_tried() -> None:
    tried = {op for op, *_ in CASES} | {op for op, *_ in PROGRAMS}
    assert tried == set(OPERATORS)


def test_old_opsets_keep_their_attributes() -> None:
    body = "a = Clip<min=-0.5, max=0.4>(x) b = Softmax<axis=1>(a) c = Unsqueeze<axes=[0]>(b) d = Squeeze<axes=[0]>(c) y = ReduceSum<axes=[1], keepdims=0>(d)"
    for opset in (9, 10):
        proto = build(body, {}, opset)
        x = np.random.default_rng(1).normal(0.0, 1.0, MAP).astype(np.float32)
        want = Session(proto.SerializeToString(), None, True).run({"x": x})["y"]
        got = Program(ir.serde.deserialize_model(proto)).run({"x": torch.from_numpy(x)})["y"].numpy()
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


def test_the_gradient_is_that_of_the_network() -> None:
    body = "a = Conv<pads=[1,1,1,1]>(x, w) b = Sigmoid(a) p = GlobalAveragePool(b) f = Flatten(p) y = MatMul(f, v)"
    proto = build(body, {"w": RNG.normal(0, 1, (3, 4, 3, 3)), "v": RNG.normal(0, 1, (3, 1))})
    program = Program(ir.serde.deserialize_model(proto))
    program.constants = {k: v.double() if v.is_floating_point() else v for k, v in program.constants.items()}
    x = torch.randn(MAP, dtype=torch.float64, generator=torch.Generator().manual_seed(0), requires_grad=True)
    assert torch.autograd.gradcheck(lambda t: program.run({"x": t})["y"], x)


@pytest.mark.parametrize(("body", "said"), [
    ("y = Pad<mode=\"reflect\">(x, p)", "mode reflect"), ("y = MaxPool<kernel_shape=[3,3], strides=[2,2], ceil_mode=1>(x)", "ceil_mode")])
def test_a_form_that_has_no_torch_counterpart_is_refused(body: str, said: str) -> None:
    proto = build(body, {"p": np.array([0, 0, 1, 1, 0, 0, 1, 1])} if "Pad" in body else {})
    with pytest.raises(ModelError, match=rf"node 'n0'.*{said}.*--sensitivity measured"):
        Program(ir.serde.deserialize_model(proto)).run({"x": torch.zeros(MAP)})


def test_operators_without_a_torch_form_are_all_named() -> None:
    proto = build("a = Celu(x) y = Selu(a)", {})
    with pytest.raises(ModelError, match=r"no gradients for Celu \(node 'n0'\), Selu \(node 'n1'\)"):
        Program(ir.serde.deserialize_model(proto))
