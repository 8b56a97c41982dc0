"""What qbench knows about ONNX operators: which fuse, which only move data, which may be stored as integers."""

from __future__ import annotations

ANCHORS = {"Conv", "ConvTranspose", "Gemm", "MatMul"}
"""Operators with weights: a kernel is built around each."""

CLAMPS = {"Relu", "Clip"}
"""Activations that an output range can express: no Q/DQ in front of them."""

ACTIVATIONS = CLAMPS | {"LeakyRelu", "PRelu", "Sigmoid", "Tanh", "HardSwish", "HardSigmoid", "Elu", "Selu", "Gelu", "Softplus", "Mish"}
"""Element-wise functions of one tensor that compilers fuse behind an anchor."""

ELEMENTWISE = {"Add", "Sub", "Mul", "Div", "Max", "Min"}

SAME_SCALE = {"Concat", "Split", "MaxPool", "Reshape", "Transpose", "Flatten", "Squeeze", "Unsqueeze", "Slice", "Pad", "Identity",
              "DepthToSpace", "SpaceToDepth", "Tile", "Expand", "Gather", "Dropout", "Where"}
"""Operators that move values without changing them: inputs and outputs share one scale (BUG case B15)."""

JOINS = {"Concat", "Where"}
"""Those of them that put constants beside computed values."""

KINDS = {
    "MaxPool": "pool", "AveragePool": "pool", "GlobalAveragePool": "global_pool", "GlobalMaxPool": "global_pool", "LpPool": "pool",
    "Resize": "resize", "Upsample": "resize", "Concat": "concat", "Split": "split", "Softmax": "softmax", "LogSoftmax": "softmax",
    "LayerNormalization": "norm", "InstanceNormalization": "norm", "GroupNormalization": "norm", "BatchNormalization": "norm",
    "LSTM": "rnn", "GRU": "rnn", "RNN": "rnn",
    **dict.fromkeys(("Reshape", "Transpose", "Flatten", "Squeeze", "Unsqueeze", "Slice", "Pad", "Identity", "DepthToSpace", "SpaceToDepth",
                     "Tile", "Expand", "Gather", "Dropout"), "reshape"),
    **dict.fromkeys(("ReduceMean", "ReduceSum", "ReduceMax", "ReduceMin", "ReduceL2", "ReduceProd"), "reduce"),
    **dict.fromkeys((*ELEMENTWISE, "Where"), "eltwise"),
    **dict.fromkeys((*ACTIVATIONS, "Erf"), "activation"),
}

INTEGER = ANCHORS | ACTIVATIONS | SAME_SCALE | {
    "Add", "Sub", "Mul", "Max", "Min", "AveragePool", "GlobalAveragePool", "GlobalMaxPool", "Resize", "Softmax", "BatchNormalization",
    "ReduceMean", "ReduceMax", "ReduceMin", "Erf"}
"""Operators that may read and write integer tensors."""

SIZE_OPERANDS = {"Resize": (1, 2), "Upsample": (1,), "Dropout": (1,)}
"""Inputs, by position, that are float and yet no values to compute with: rounded to a grid they would change shapes."""

WHY_FLOAT = {
    "LSTM": "recurrent state: no integer kernel in onnxruntime or in the targets' toolkits",
    "GRU": "recurrent state: no integer kernel in onnxruntime or in the targets' toolkits",
    "RNN": "recurrent state: no integer kernel in onnxruntime or in the targets' toolkits",
    "LayerNormalization": "small variances vanish on an integer grid (fp16 only on the targets that have it)",
    "InstanceNormalization": "small variances vanish on an integer grid",
    "GroupNormalization": "small variances vanish on an integer grid",
    "Div": "a quotient of codes is unbounded where the divisor rounds to 0",
    "Sqrt": "values near 0 vanish on an integer grid", "Pow": "its range grows without bound",
    "Exp": "its range grows without bound", "Log": "it is unbounded near 0", "Reciprocal": "it is unbounded near 0",
    "If": "its bodies run or not; tensors inside are never observed together", "Loop": "the body's tensors change with each turn",
    "Scan": "the body's tensors change with each turn",
}


def why_float(op: str) -> str:
    """Reason, for the reader, that `op` is kept in float."""
    return f"{op}: {WHY_FLOAT.get(op, 'no integer form is known for it')}"
