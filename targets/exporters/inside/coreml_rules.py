# mypy: ignore-errors
"""MIL operators for ONNX's, one rule each. Part of coreml_worker.py, beside which it is copied."""

import numpy as np
from answering import Refused

HALF_MAX = float(np.finfo(np.float16).max)
UNARY = {"Relu": "relu", "Sigmoid": "sigmoid", "Tanh": "tanh", "Softplus": "softplus", "Softsign": "softsign", "Erf": "erf", "Exp": "exp", "Sqrt": "sqrt",
         "Abs": "abs", "Floor": "floor", "Ceil": "ceil", "Sin": "sin", "Cos": "cos", "Identity": "identity", "Round": "round"}
BINARY = {"Add": "add", "Sub": "sub", "Mul": "mul", "Div": "real_div", "Max": "maximum", "Min": "minimum", "Pow": "pow"}
REDUCE = {"ReduceMean": "reduce_mean", "ReduceSum": "reduce_sum", "ReduceMax": "reduce_max", "ReduceMin": "reduce_min", "ReduceProd": "reduce_prod",
          "ReduceL2": "reduce_l2_norm"}
SHAPING = ("Reshape", "Flatten", "Squeeze", "Unsqueeze")


class Emitter:
    """values   name -> variable; casts  (name, type) -> the same in that type; kinds  codes -> type of their scale"""

    def __init__(self, mb, body, arrays):
        self.mb, self.body, self.arrays = mb, body, arrays
        self.values, self.casts, self.kinds = {}, {}, {}

    def run(self, given):
        self.values |= dict(zip(self.body["inputs"], given, strict=True))
        for node in self.body["nodes"]:
            rule = getattr(self, f"op_{node['op']}", None)
            self.node, self.type = node, "fp32" if node["precision"] == "fp32" else "fp16"
            if node["op"] in UNARY:
                self.unary()
            elif node["op"] in BINARY:
                self.binary()
            elif node["op"] in REDUCE:
                self.reduce()
            elif node["op"] in SHAPING:
                self.put(self.mb.reshape, x=self.real(0), shape=np.array(self.shape(node["outputs"][0]), np.int32))
            elif rule is None:
                raise Refused(f"operator {node['op']} (node {node['name']!r}) has no rule")
            else:
                rule()
        return self.ends()

    def ends(self):
        found = []
        for name in self.body["outputs"]:
            value = self.values[name]
            plain = self.body["names"][name]
            found.append(self.mb.identity(x=value, name=plain) if dtype(value) == "fp32" and value.name != plain else value if dtype(value) == "fp32"
                         else self.mb.cast(x=value, dtype="fp32", name=plain))
        return found

    # -- operands

    def refuse(self, what):
        raise Refused(f"{self.node['op']} (node {self.node['name']!r}): {what}")

    def name(self, index):
        return self.node["inputs"][index] if index < len(self.node["inputs"]) else ""

    def shape(self, name):
        if name not in self.body["shapes"]:
            self.refuse(f"the shape of {name!r} is not known")
        return tuple(self.body["shapes"][name])

    def attribute(self, key, default=None):
        return self.node["attributes"].get(key, default)

    def constant(self, index):
        """The array of a constant operand; None where it is left out or computed."""
        name = self.name(index)
        return self.arrays[self.body["constants"][name]] if name in self.body["constants"] else None

    def real(self, index, kind=None):
        """An operand in the type of the layer."""
        name, kind = self.name(index), kind or self.type
        if (name, kind) not in self.casts:
            self.casts[name, kind] = self.made(name, kind)
        return self.casts[name, kind]

    def made(self, name, kind):
        real = np.float16 if kind == "fp16" else np.float32
        if name in self.body["constants"]:
            data = self.arrays[self.body["constants"][name]]
            return data if data.dtype.kind != "f" else np.clip(data, -HALF_MAX, HALF_MAX).astype(real) if kind == "fp16" else data.astype(real)
        if name in self.body["stored"]:
            return self.dequantized(self.body["stored"][name], real, name, kind)
        value = self.values[name]
        if dtype(value) in (kind, "int32", "bool"):
            return value
        return self.mb.cast(x=value, dtype=kind, name=f"{value.name}_as_{kind}")

    def dequantized(self, stored, real, name, kind):
        codes = self.arrays[stored["codes"]]
        scale, zero = np.array(stored["scale"], np.float32), np.array(stored["zero_point"])
        many = stored["axis"] is not None
        if codes.dtype.itemsize > 1:                 # a bias, whose scale follows from the others, or a constant of an INT16 layer
            shape = [-1 if a == stored["axis"] else 1 for a in range(codes.ndim)] if many else []
            return np.clip((codes.astype(np.float64) - zero.reshape(shape)) * scale.reshape(shape), -HALF_MAX, HALF_MAX).astype(real)
        if not codes.ndim:
            codes = codes.reshape(1)
        return self.mb.constexpr_affine_dequantize(
            quantized_data=codes, scale=scale.astype(real) if many else real(scale[0]), zero_point=zero.astype(codes.dtype) if many else codes.dtype.type(zero[0]),
            axis=np.int32(stored["axis"] or 0), name=f"{self.body['names'][name]}{'' if kind == 'fp16' else '_fp32'}")

    def put(self, build, index=0, **operands):
        name = self.node["outputs"][index]
        self.values[name] = build(**operands, name=self.free(name))

    def free(self, name):
        """The value's own name; graph outputs, which are float32 at the end, get theirs there."""
        return self.body["names"][name] + ("_in" if name in self.body["outputs"] else "")

    # -- pairs

    def op_QuantizeLinear(self):
        """In the type of what it reads; graph inputs arrive in float32, and are codes of their float16."""
        name = self.name(0)
        kind = "fp16" if name in self.body["inputs"] else dtype(self.values[name])
        scale, zero = self.constant(1), self.constant(2)
        self.put(self.mb.quantize, input=self.real(0, kind), scale=(np.float16 if kind == "fp16" else np.float32)(scale), zero_point=zero.dtype.type(zero),
                 output_dtype=zero.dtype.name)
        self.kinds[self.node["outputs"][0]] = kind

    def op_DequantizeLinear(self):
        scale, zero = self.constant(1), self.constant(2)
        real = np.float16 if self.kinds[self.name(0)] == "fp16" else np.float32
        self.put(self.mb.dequantize, input=self.values[self.name(0)], scale=real(scale), zero_point=zero.dtype.type(zero))

    # -- layers

    def op_Conv(self):
        spatial = len(self.shape(self.node["inputs"][0])) - 2
        self.put(self.mb.conv, x=self.real(0), weight=self.real(1), **self.bias(), strides=self.attribute("strides", [1] * spatial),
                 dilations=self.attribute("dilations", [1] * spatial), groups=self.attribute("group", 1), **self.padding(spatial))

    def op_ConvTranspose(self):
        x, y = self.shape(self.node["inputs"][0]), self.shape(self.node["outputs"][0])
        spatial = len(x) - 2
        self.put(self.mb.conv_transpose, x=self.real(0), weight=self.real(1), **self.bias(), strides=self.attribute("strides", [1] * spatial),
                 dilations=self.attribute("dilations", [1] * spatial), groups=self.attribute("group", 1), output_shape=np.array(y, np.int32), **self.padding(spatial))

    def bias(self):
        return {"bias": self.real(2)} if self.name(2) else {}

    def padding(self, spatial):
        auto = self.attribute("auto_pad", "NOTSET")
        if auto in ("SAME_UPPER", "SAME_LOWER"):
            return {"pad_type": "same" if auto == "SAME_UPPER" else "same_lower"}
        pads = self.attribute("pads", [0] * 2 * spatial)
        return {"pad_type": "custom", "pad": [pads[i + side * spatial] for i in range(spatial) for side in (0, 1)]}

    def op_Gemm(self):
        if self.attribute("alpha", 1.0) != 1.0 or self.attribute("beta", 1.0) != 1.0 or self.attribute("transA", 0):
            self.refuse("alpha, beta and transA have no rule")
        bias = self.bias()
        shape = self.shape(self.node["outputs"][0])
        if self.attribute("transB", 0) and (not bias or np.shape(bias["bias"]) == shape[1:]):
            self.put(self.mb.linear, x=self.real(0), weight=self.real(1), **bias)
            return
        name = self.free(self.node["outputs"][0])
        product = self.mb.matmul(x=self.real(0), y=self.real(1), transpose_y=bool(self.attribute("transB", 0)), name=f"{name}_product" if bias else name)
        self.values[self.node["outputs"][0]] = self.mb.add(x=product, y=bias["bias"], name=name) if bias else product

    def op_MatMul(self):
        self.put(self.mb.matmul, x=self.real(0), y=self.real(1))

    def unary(self):
        self.put(getattr(self.mb, UNARY[self.node["op"]]), x=self.real(0))

    def binary(self):
        if len(self.node["inputs"]) != 2:
            self.refuse("it takes two operands here")
        x, y = self.real(0), self.real(1)
        if isinstance(x, np.ndarray):                  # MIL wants a variable first
            x = self.mb.const(val=x, name=f"{self.free(self.node['outputs'][0])}_x")
        self.put(getattr(self.mb, BINARY[self.node["op"]]), x=x, y=y)

    def reduce(self):
        axes = self.constant(1) if self.name(1) else self.attribute("axes")
        rank = len(self.shape(self.node["inputs"][0]))
        self.put(getattr(self.mb, REDUCE[self.node["op"]]), x=self.real(0), axes=[int(a) for a in (range(rank) if axes is None else axes)],
                 keep_dims=bool(self.attribute("keepdims", 1)))

    def number(self, value):
        return (np.float16 if self.type == "fp16" else np.float32)(value)

    def op_Neg(self):
        self.put(self.mb.mul, x=self.real(0), y=self.number(-1.0))

    def op_Reciprocal(self):
        self.put(self.mb.real_div, x=self.number(1.0), y=self.real(0))

    def op_Log(self):
        self.put(self.mb.log, x=self.real(0), epsilon=self.number(0.0))

    def op_Clip(self):
        limit = HALF_MAX if self.type == "fp16" else float(np.finfo(np.float32).max)
        low, high = (None if (v := self.constant(i)) is None else float(v.item()) for i in (1, 2))
        if (self.name(1) and low is None) or (self.name(2) and high is None):
            self.refuse("its limits are computed")
        self.put(self.mb.clip, x=self.real(0), alpha=self.number(-limit if low is None else max(low, -limit)),
                 beta=self.number(limit if high is None else min(high, limit)))

    def op_LeakyRelu(self):
        self.put(self.mb.leaky_relu, x=self.real(0), alpha=self.number(self.attribute("alpha", 0.01)))

    def op_Elu(self):
        self.put(self.mb.elu, x=self.real(0), alpha=self.number(self.attribute("alpha", 1.0)))

    def op_PRelu(self):
        slope, shape = self.constant(1), self.shape(self.node["inputs"][0])
        if slope is None or slope.size not in (1, shape[1]):
            self.refuse("its slope is neither one number nor one per channel")
        self.put(self.mb.prelu, x=self.real(0), alpha=np.broadcast_to(slope.reshape(-1), (shape[1],)).astype(np.float16 if self.type == "fp16" else np.float32))

    def op_HardSigmoid(self):
        self.put(self.mb.sigmoid_hard, x=self.real(0), alpha=self.number(self.attribute("alpha", 0.2)), beta=self.number(self.attribute("beta", 0.5)))

    def op_HardSwish(self):
        gate = self.mb.sigmoid_hard(x=self.real(0), alpha=self.number(1 / 6), beta=self.number(0.5), name=f"{self.free(self.node['outputs'][0])}_gate")
        self.put(self.mb.mul, x=self.real(0), y=gate)

    def op_Gelu(self):
        self.put(self.mb.gelu, x=self.real(0), mode="TANH_APPROXIMATION" if self.attribute("approximate", "none") == "tanh" else "EXACT")

    def op_Softmax(self):
        self.put(self.mb.softmax, x=self.real(0), axis=self.attribute("axis", -1))

    def op_Cast(self):
        if self.body["kinds"].get(self.node["outputs"][0], "float32") != "float32" or dtype(self.values[self.name(0)]) in ("int32", "bool"):
            self.refuse("casts to or from integers have no rule")
        self.values[self.node["outputs"][0]] = self.values[self.name(0)]

    # -- windows

    def op_MaxPool(self):
        self.pool(self.mb.max_pool)

    def op_AveragePool(self):
        self.pool(self.mb.avg_pool, exclude_padding_from_average=not self.attribute("count_include_pad", 0))

    def pool(self, build, **more):
        kernel = self.attribute("kernel_shape")
        if any(d != 1 for d in self.attribute("dilations", [1])) or len(self.node["outputs"]) > 1:
            self.refuse("dilations and indices have no rule")
        self.put(build, x=self.real(0), kernel_sizes=kernel, strides=self.attribute("strides", [1] * len(kernel)), ceil_mode=bool(self.attribute("ceil_mode", 0)),
                 **self.padding(len(kernel)), **more)
        got, want = tuple(self.values[self.node["outputs"][0]].shape), self.shape(self.node["outputs"][0])
        if got != want:
            self.refuse(f"Core ML makes {list(got)} of it, ONNX {list(want)}: write its padding as a Pad")

    def op_GlobalAveragePool(self):
        self.put(self.mb.reduce_mean, x=self.real(0), axes=list(range(2, len(self.shape(self.node["inputs"][0])))), keep_dims=True)

    def op_GlobalMaxPool(self):
        self.put(self.mb.reduce_max, x=self.real(0), axes=list(range(2, len(self.shape(self.node["inputs"][0])))), keep_dims=True)

    # -- what moves values

    def op_Concat(self):
        self.put(self.mb.concat, values=[self.real(i) for i in range(len(self.node["inputs"]))], axis=self.attribute("axis"))

    def op_Transpose(self):
        rank = len(self.shape(self.node["inputs"][0]))
        self.put(self.mb.transpose, x=self.real(0), perm=self.attribute("perm", list(range(rank))[::-1]))

    def op_Split(self):
        axis, outputs = self.attribute("axis", 0), self.node["outputs"]
        parts = self.mb.split(x=self.real(0), split_sizes=[self.shape(n)[axis] for n in outputs], axis=axis, name=f"{self.free(outputs[0])}_split")
        for index, part in enumerate(parts if isinstance(parts, list | tuple) else [parts]):
            self.put(self.mb.identity, index, x=part)

    def op_Slice(self):
        starts, ends = self.constant(1), self.constant(2)
        axes, steps = (self.constant(i) if self.name(i) else None for i in (3, 4))
        shape = self.shape(self.node["inputs"][0])
        if starts is None or ends is None or (steps is not None and (steps < 1).any()):
            self.refuse("computed limits and negative steps have no rule")
        begin, end, stride = [0] * len(shape), list(shape), [1] * len(shape)
        for number, axis in enumerate(range(len(starts)) if axes is None else axes.tolist()):
            size = shape[axis]
            begin[axis], end[axis] = (int(np.clip(v + size if v < 0 else v, 0, size)) for v in (int(starts[number]), int(ends[number])))
            stride[axis] = 1 if steps is None else int(steps[number])
        self.put(self.mb.slice_by_index, x=self.real(0), begin=begin, end=end, stride=stride)

    def op_Pad(self):
        pads, mode = self.constant(1), self.attribute("mode", "constant")
        if pads is None or (pads < 0).any() or self.name(3) or mode == "wrap":
            self.refuse("computed, negative, wrapped and partial padding have no rule")
        rank, value = len(pads) // 2, self.constant(2)
        pairs = [int(pads[i + side * rank]) for i in range(rank) for side in (0, 1)]
        first = next((i for i in range(rank) if pairs[2 * i] or pairs[2 * i + 1]), rank - 1)
        self.put(self.mb.pad, x=self.real(0), pad=pairs[2 * first:], mode={"edge": "replicate"}.get(mode, mode),
                 constant_val=self.number(0.0 if value is None else float(value.item())))

    def op_Gather(self):
        indices = self.constant(1)
        if indices is None:
            self.refuse("its indices are computed")
        self.put(self.mb.gather, x=self.real(0), indices=indices.astype(np.int32), axis=self.attribute("axis", 0), validate_indices=False)

    def op_Expand(self):
        shape, want = self.shape(self.node["inputs"][0]), self.shape(self.node["outputs"][0])
        if len(shape) != len(want):
            self.refuse("it adds axes")
        self.put(self.mb.tile, x=self.real(0), reps=[w // s for s, w in zip(shape, want, strict=True)])

    def op_DepthToSpace(self):
        block = self.attribute("blocksize")
        if self.attribute("mode", "DCR") == "CRD":
            self.put(self.mb.pixel_shuffle, x=self.real(0), upscale_factor=block)
        else:
            self.put(self.mb.depth_to_space, x=self.real(0), block_size=block)

    def op_Resize(self):
        shape, want = self.shape(self.node["inputs"][0]), self.shape(self.node["outputs"][0])
        mode, where = self.attribute("mode", "nearest"), self.attribute("coordinate_transformation_mode", "half_pixel")
        factors = [w / s for s, w in zip(shape, want, strict=True)]
        if len(shape) != 4 or factors[:2] != [1.0, 1.0]:
            self.refuse("it resizes other axes than height and width")
        floored = (where, self.attribute("nearest_mode", "round_prefer_floor")) == ("asymmetric", "floor") or where.endswith("half_pixel")
        if mode == "nearest" and floored and all(f == int(f) for f in factors):
            self.put(self.mb.upsample_nearest_neighbor, x=self.real(0), scale_factor_height=np.float32(factors[2]), scale_factor_width=np.float32(factors[3]))
        elif mode == "linear" and where in ("half_pixel", "pytorch_half_pixel", "align_corners", "asymmetric"):
            self.put(self.mb.upsample_bilinear, x=self.real(0), scale_factor_height=np.float32(factors[2]), scale_factor_width=np.float32(factors[3]),
                     align_corners=where == "align_corners", half_pixel_centers=where.endswith("half_pixel"))
        else:
            self.refuse(f"{mode} {where} by {factors[2]:g} x {factors[3]:g} has no rule")

    # -- normalisations

    def op_BatchNormalization(self):
        gamma, beta, mean, variance = (self.real(i) for i in (1, 2, 3, 4))
        self.put(self.mb.batch_norm, x=self.real(0), mean=mean, variance=variance, gamma=gamma, beta=beta, epsilon=self.number(self.attribute("epsilon", 1e-5)))

    def op_InstanceNormalization(self):
        self.put(self.mb.instance_norm, x=self.real(0), gamma=self.real(1), beta=self.real(2), epsilon=self.number(self.attribute("epsilon", 1e-5)))

    def op_LayerNormalization(self):
        rank, axis = len(self.shape(self.node["inputs"][0])), self.attribute("axis", -1)
        self.put(self.mb.layer_norm, x=self.real(0), axes=list(range(axis % rank, rank)), gamma=self.real(1), **({"beta": self.real(2)} if self.name(2) else {}),
                 epsilon=self.number(self.attribute("epsilon", 1e-5)))


def dtype(value):
    """"fp16", "fp32", "int8" ... of a MIL variable."""
    from coremltools.converters.mil.mil import types

    return types.builtin_to_string(value.dtype)
