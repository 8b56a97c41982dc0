# mypy: ignore-errors
"""Which layers are integer operators, and the tensors that they read and write. Part of tflite_worker.py, beside which it is copied."""

import numpy as np
from ai_edge_litert import schema_py_generated as schema
from answering import Refused
from tflite_flat import Flat

TO_NHWC, TO_NCHW = (0, 2, 3, 1), (0, 3, 1, 2)
PLACE = {0: 0, 1: 3, 2: 1, 3: 2}
"""Axis of N, C, H, W -> where it lies."""
UNARY = {"Relu": "RELU", "Sigmoid": "LOGISTIC", "Tanh": "TANH", "Exp": "EXP", "Sqrt": "SQRT", "Abs": "ABS", "Floor": "FLOOR", "Ceil": "CEIL", "Sin": "SIN",
         "Cos": "COS", "Neg": "NEG", "Log": "LOG", "HardSwish": "HARD_SWISH", "Round": "ROUND", "Elu": "ELU"}
BINARY = {"Add": ("ADD", "Add"), "Sub": ("SUB", "Sub"), "Mul": ("MUL", "Mul"), "Div": ("DIV", "Div"), "Max": ("MAXIMUM", "MaximumMinimum"),
          "Min": ("MINIMUM", "MaximumMinimum"), "Pow": ("POW", "Pow")}
REDUCE = {"ReduceMean": "MEAN", "ReduceSum": "SUM", "ReduceMax": "REDUCE_MAX", "ReduceMin": "REDUCE_MIN", "ReduceProd": "REDUCE_PROD"}
SHAPING = ("Reshape", "Flatten", "Squeeze", "Unsqueeze")
FIXED = {("Softmax", 8): (1 / 256, -128), ("Sigmoid", 8): (1 / 256, -128), ("Tanh", 8): (1 / 128, 0), ("Softmax", 16): (1 / 32768, 0), ("Sigmoid", 16): (1 / 32768, 0),
         ("Tanh", 16): (1 / 32768, 0)}
"""Scale and zero point that the kernels insist on."""
MOVING = frozenset({"MaxPool", "GlobalMaxPool", "Concat", "Split", "Slice", "Pad", "Transpose", "Gather", "Resize", "Max", "Min", "ReduceMax", "ReduceMin",
                    "DepthToSpace", *SHAPING})
"""Kernels that take one scale for all that they read and write."""
INTEGER = MOVING | {"AveragePool", "Conv", "ConvTranspose", "Gemm", "MatMul", "Add", "Sub", "Mul", "Relu", "Clip", "LeakyRelu", "PRelu", "Sigmoid", "Tanh", "Softmax",
                    "HardSwish", "GlobalAveragePool", "ReduceMean", "ReduceSum", "Identity"}
"""Operators that have an integer kernel."""
NARROW = INTEGER - {"HardSwish", "DepthToSpace", "PRelu", "ReduceMax", "ReduceMin"}
"""Those that have one for int16, too."""
ACTIVATION = {(0.0, 6.0): "RELU6", (-1.0, 1.0): "RELU_N1_TO_1"}


class Operands:
    """Walks the program; the rules of its operators are in the class below it (tflite_rules.py).

    floats  value -> tensor; codes  value of codes -> (tensor, scale, zero point, type); pair  value behind a pair -> its codes
    """

    def __init__(self, body, arrays):
        self.body, self.arrays, self.flat = body, arrays, Flat()
        self.floats, self.codes, self.pair, self.kept = {}, {}, {}, {}
        self.done, self.in_float = set(), []
        self.readers = {}
        for node in body["nodes"]:
            for name in node["inputs"]:
                self.readers.setdefault(name, []).append(node)

    def run(self):
        for name in self.body["inputs"]:
            self.floats[name] = self.flat.tensor(self.body["names"][name], self.lies(name), "float32")
        self.flat.inputs = [self.floats[n] for n in self.body["inputs"]]
        for node in self.body["nodes"]:
            if node["name"] not in self.done:
                self.emit(node)
        self.flat.outputs = [self.floating(n) for n in self.body["outputs"]]

    def emit(self, node):
        self.node, self.after, op = node, [], node["op"]
        self.chain = self.integer_end(node)
        self.whole = self.chain is not None
        if node["precision"].startswith("int") and not self.whole:
            self.in_float.append(node["name"])
        rule = getattr(self, f"op_{op}", None)
        if op in UNARY:
            self.unary()
        elif op in BINARY:
            self.binary()
        elif op in REDUCE:
            self.reduce()
        elif op in SHAPING:
            shape = self.shape(self.output())
            self.logical(lambda xs, y: self.flat.op("RESHAPE", [xs[0], self.ints(shape)], [y], "Reshape", newShape=list(shape)), 1)
        elif rule is None:
            raise Refused(f"operator {op} (node {node['name']!r}) has no rule")
        else:
            rule()
        for finish in self.after:
            finish()
        if self.whole:
            self.done |= {n["name"] for n in self.chain[1]}

    # -- what is integer

    def integer_end(self, node):
        """(codes behind the node, nodes that it swallows, activation, bias, limits) where it can be one integer operator; else None."""
        if not node["precision"].startswith("int") or node["op"] not in (INTEGER if node["precision"] == "int8" else NARROW):
            return None
        anchor = node["op"] in ("Conv", "ConvTranspose", "Gemm", "MatMul")
        weights = 1 if anchor and node["inputs"][1] in self.body["stored"] else None
        wide = 8 if node["precision"] == "int8" else 16
        for index, name in enumerate(node["inputs"]):
            if index == weights or not name or (anchor and index == 2) or (self.real_index(node, index) is False):
                continue
            if name in self.pair:
                if 8 * self.codes[self.pair[name]][3].itemsize != wide:
                    return None
            elif name not in self.body["stored"] or 8 * self.arrays[self.body["stored"][name]["codes"]].dtype.itemsize != wide:
                return None
        ends, swallowed, activation, bias, bounds = [], [], "NONE", None, None
        for output in node["outputs"]:
            value, last = output, node
            while True:
                readers = self.readers.get(value, [])
                quantizers = [r for r in readers if r["op"] == "QuantizeLinear"]
                if value in self.body["outputs"] or not readers:
                    return None
                if len(quantizers) == len(readers) == 1:
                    ends.append(quantizers[0]["outputs"][0])
                    break
                if not (anchor or node["op"] in ("Add", "Sub", "Mul")) or len(readers) != 1 or quantizers:
                    return None
                after = readers[0]
                if after["op"] == "Add" and last is node and node["op"] == "MatMul" and weights and any(n in self.body["stored"] for n in after["inputs"]):
                    bias = next(n for n in after["inputs"] if n in self.body["stored"])
                elif after["op"] in ("Relu", "Clip"):
                    limits = self.limits(after)
                    if after["op"] == "Clip" and limits is None:
                        return None
                    activation = "RELU" if after["op"] == "Relu" else ACTIVATION.get(limits, "NONE")
                    bounds = limits if activation == "NONE" and not self.inside(after, limits) else None
                else:
                    return None
                swallowed.append(after)
                last, value = after, after["outputs"][0]
        return ends, swallowed, activation, bias, bounds

    def real_index(self, node, index):
        """False for operands that are sizes, indices and limits."""
        return not (index > 0 and node["op"] in ("Clip", "Slice", "Pad", "Gather", "Resize", "Split", *SHAPING, *REDUCE))

    def limits(self, node):
        found = [float(self.arrays[self.body["constants"][n]].item()) if n in self.body["constants"] else None for n in [*node["inputs"][1:], "", ""][:2]]
        return None if node["op"] != "Clip" or None in found else tuple(found)

    def inside(self, clip, limits):
        """The codes behind a Clip hold no value beyond its limits."""
        after = self.readers.get(clip["outputs"][0], [])
        if len(after) != 1 or after[0]["op"] != "QuantizeLinear" or limits is None:
            return False
        scale, zero = (self.arrays[self.body["constants"][n]] for n in after[0]["inputs"][1:3])
        ends = [(np.iinfo(zero.dtype).min - int(zero)) * float(scale), (np.iinfo(zero.dtype).max - int(zero)) * float(scale)]
        return limits[0] <= ends[0] + float(scale) / 2 and ends[1] - float(scale) / 2 <= limits[1]

    # -- operands

    def refuse(self, what):
        raise Refused(f"{self.node['op']} (node {self.node['name']!r}): {what}")

    def shape(self, name):
        if name not in self.body["shapes"]:
            self.refuse(f"the shape of {name!r} is not known")
        return tuple(self.body["shapes"][name])

    def lies(self, name):
        shape = self.shape(name)
        return tuple(shape[a] for a in TO_NHWC) if len(shape) == 4 else shape

    def name(self, index):
        return self.node["inputs"][index] if index < len(self.node["inputs"]) else ""

    def output(self, index=0):
        return self.node["outputs"][index]

    def attribute(self, key, default=None):
        return self.node["attributes"].get(key, default)

    def constant(self, index):
        return self.arrays[self.body["constants"][self.name(index)]] if self.name(index) in self.body["constants"] else None

    def ints(self, values, dtype="int32"):
        key = ("ints", dtype, tuple(np.asarray(values).reshape(-1).tolist()), np.shape(values))
        if key not in self.kept:
            self.kept[key] = self.flat.tensor(f"ints_{len(self.kept)}", np.shape(values), dtype, np.asarray(values))
        return self.kept[key]

    def x(self, index=0):
        """Tensor of an operand: codes for an integer operator, else float."""
        name = self.name(index)
        if not self.whole:
            return self.floating(name)
        if name in self.pair:
            return self.codes[self.pair[name]][0]
        return self.stored(name)

    def y(self, index=0):
        if not self.whole:
            name = self.output(index)
            self.floats[name] = self.flat.tensor(self.body["names"][name], self.lies(name), "float32")
            return self.floats[name]
        y = self.coded(self.chain[0][index])
        if self.chain[4] is None:
            return y
        free = self.spare(y, suffix="free")
        self.after.append(lambda: self.clamped(free, self.chain[4], y))
        return free

    def clamped(self, x, limits, y):
        """Between limits in the scale of `y`: codes are monotonous."""
        scale, zero = self.quant(y)
        kind = "int8" if self.flat.tensors[y].type == schema.TensorType.INT8 else "int16"
        for bound, builtin, out in zip(limits, ("MAXIMUM", "MINIMUM"), (self.spare(y, suffix="low"), y), strict=True):
            code = np.clip(np.rint(np.float32(bound) / np.float32(scale)) + zero, np.iinfo(kind).min, np.iinfo(kind).max)
            held = self.flat.tensor(f"bound_{len(self.flat.tensors)}", (), kind, code.astype(kind), (scale, zero))
            self.flat.op(builtin, [x, held], [out], "MaximumMinimum")
            x = out

    def coded(self, codes):
        """The tensor of the codes that a QuantizeLinear makes."""
        if codes not in self.codes:
            node = next(n for n in self.body["nodes"] if codes in n["outputs"])
            scale, zero = (self.arrays[self.body["constants"][n]] for n in node["inputs"][1:3])
            tensor = self.flat.tensor(self.body["names"][codes], self.lies(node["inputs"][0]), zero.dtype, None, (scale, zero))
            self.codes[codes] = tensor, float(scale), int(zero), zero.dtype
            for behind in self.readers.get(codes, []):
                self.pair[behind["outputs"][0]] = codes
        return self.codes[codes][0]

    def floating(self, name):
        if name not in self.floats:
            if name in self.pair:
                self.floats[name] = self.flat.tensor(self.body["names"][name], self.lies(name), "float32")
                self.flat.op("DEQUANTIZE", [self.codes[self.pair[name]][0]], [self.floats[name]], "Dequantize")
            else:
                data = self.array(name)
                self.floats[name] = self.flat.tensor(self.body["names"][name], np.shape(self.laid(data)), "float32", self.laid(data))
        return self.floats[name]

    def array(self, name):
        """A constant in float."""
        if name in self.body["constants"]:
            return self.arrays[self.body["constants"][name]].astype(np.float32)
        if name not in self.body["stored"]:
            self.refuse(f"operand {name!r} is made by nothing that is written")
        codes, scale, zero, axis = self.parts(name)
        shape = [-1 if a == axis else 1 for a in range(codes.ndim)] if axis is not None else []
        return ((codes.astype(np.float64) - np.reshape(zero, shape)) * np.reshape(scale, shape)).astype(np.float32)

    def parts(self, name):
        held = self.body["stored"][name]
        return self.arrays[held["codes"]], np.array(held["scale"], np.float32), np.array(held["zero_point"], np.int64), held["axis"]

    def laid(self, data):
        """A constant operand, as its partner lies."""
        rank = max(len(self.body["shapes"].get(n, ())) for n in (*self.node["inputs"], *self.node["outputs"]))
        if rank != 4 or data.ndim == 0:
            return data
        return data.reshape((1,) * (4 - data.ndim) + data.shape).transpose(TO_NHWC)

    def stored(self, name):
        if name not in self.kept:
            codes, scale, zero, axis = self.parts(name)
            if axis is not None:
                self.refuse(f"operand {name!r} has a scale per channel")
            self.kept[name] = self.flat.tensor(self.body["names"][name], np.shape(self.laid(codes)), codes.dtype, self.laid(codes), (scale, zero))
        return self.kept[name]

    def quant(self, tensor):
        q = self.flat.tensors[tensor].quantization
        return float(q.scale[0]), int(q.zeroPoint[0])

    def spare(self, like, shape=None, quant=None, suffix="moved"):
        """A tensor beside `like`, of its type and, where it has codes, its scale."""
        old = self.flat.tensors[like]
        if quant is None and old.quantization is not None:
            quant = self.quant(like)
        dtype = next(k for k, v in vars(schema.TensorType).items() if v == old.type).lower()
        return self.flat.tensor(f"{old.name}_{suffix}_{len(self.flat.tensors)}", old.shape if shape is None else shape, dtype, None, quant)

    def matched(self, x, y):
        """`x` with the scale of `y`, which kernels that only move values insist on."""
        if not self.whole or self.quant(x) == self.quant(y):
            return x
        made = self.spare(x, quant=self.quant(y), suffix="as")
        self.flat.op("QUANTIZE", [x], [made], "Quantize")
        return made

    def computed(self, x, y):
        """A result in the scale of `x`, for kernels that compute in it; converted to that of `y` afterwards, since `y` may not hold all of `x`."""
        if not self.whole or self.quant(x) == self.quant(y):
            return y
        made = self.spare(y, quant=self.quant(x), suffix="as")
        self.after.append(lambda: self.flat.op("QUANTIZE", [made], [y], "Quantize"))
        return made

    def moved(self, x, perm, suffix):
        shape = self.flat.tensors[x].shape
        made = self.spare(x, [shape[a] for a in perm], suffix=suffix)
        self.flat.op("TRANSPOSE", [x, self.ints(perm)], [made], "Transpose")
        return made

    def logical(self, build, operands, output=0):
        """`build(xs, y)` on tensors that lie as ONNX says: N, C, H, W."""
        xs = []
        for index in range(operands):
            x = self.x(index)
            xs.append(self.moved(x, TO_NCHW, "nchw") if len(self.flat.tensors[x].shape) == 4 and self.name(index) not in self.body["constants"] else x)
        y, shape = self.y(output), self.shape(self.output(output))
        if self.whole and self.node["op"] in MOVING:
            xs = [self.matched(x, y) for x in xs]
        if len(shape) != 4:
            build(xs, y)
            return
        plain = self.spare(y, shape, suffix="nchw")
        build(xs, plain)
        self.flat.op("TRANSPOSE", [plain, self.ints(TO_NHWC)], [y], "Transpose")

    def axis(self, axis, name):
        rank = len(self.shape(name))
        return PLACE[axis % rank] if rank == 4 else axis % rank

    # -- pairs

    def op_QuantizeLinear(self):
        codes, source = self.output(), self.name(0)
        if codes in self.codes:
            return
        x = self.codes[self.pair[source]] if source in self.pair else None
        y = self.coded(codes)
        if x is not None and (x[3].name, self.codes[codes][3].name) in (("int8", "int8"), ("int16", "int16"), ("int16", "int8")):
            self.flat.op("QUANTIZE", [x[0]], [y], "Quantize")
        else:                                            # LiteRT has no kernel from int8 to int16: over float, which is exact
            self.flat.op("QUANTIZE", [self.floating(source)], [y], "Quantize")

    def op_DequantizeLinear(self):
        self.coded(self.name(0))

    def op_Identity(self):
        x, y = self.x(), self.y()
        self.flat.op("RESHAPE", [self.matched(x, y), self.ints(self.lies(self.output()))], [y], "Reshape", newShape=list(self.lies(self.output())))
