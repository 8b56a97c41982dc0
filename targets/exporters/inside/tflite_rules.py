# mypy: ignore-errors
"""LiteRT operators for ONNX's, one rule each. Part of tflite_worker.py, beside which it is copied."""

import numpy as np
from ai_edge_litert import schema_py_generated as schema
from tflite_operands import ACTIVATION, BINARY, FIXED, MOVING, PLACE, REDUCE, TO_NHWC, UNARY, Operands


class Emitter(Operands):

    # -- layers with weights

    def weight(self, index, arrange, axis):
        """The weight as LiteRT wants it. arrange   from ONNX's array; axis   of the output channels afterwards"""
        name = self.name(index)
        if name in self.body["stored"] and self.whole:
            codes, scale, zero, own = self.parts(name)
            return self.flat.tensor(self.body["names"][name], np.shape(arrange(codes)), codes.dtype, arrange(codes), (scale, zero, axis if own is not None else 0))
        if self.whole or (name not in self.body["stored"] and name not in self.body["constants"]):
            self.refuse(f"its weight {name!r} is computed")
        data = arrange(self.array(name))
        return self.flat.tensor(self.body["names"][name], np.shape(data), "float32", data)

    def bias(self, name, channels, x, weight):
        """int32, or int64 for int16 codes, in steps of the accumulator; float for a float layer."""
        label = f"{self.body['names'][self.output()]}_bias"
        if not self.whole:
            return self.flat.tensor(label, (channels,), "float32", np.broadcast_to(self.array(name).reshape(-1) if name else np.zeros(1, np.float32), (channels,)))
        step = np.asarray(self.flat.tensors[weight].quantization.scale, np.float32) * np.float32(self.quant(x)[0])
        kind = "int64" if self.flat.tensors[x].type == schema.TensorType.INT16 else "int32"
        if name in self.body["stored"] and self.parts(name)[0].dtype == np.int32:
            codes = self.parts(name)[0].astype(np.int64).reshape(-1)
        elif name:
            codes = np.rint(self.array(name).astype(np.float64).reshape(-1) / step)
        else:
            codes = np.zeros(1, np.int64)
        return self.flat.tensor(label, (channels,), kind, np.broadcast_to(codes, (channels,)), (step, np.zeros(step.shape, np.int64), 0))

    def activation(self):
        return getattr(schema.ActivationFunctionType, self.chain[2] if self.whole else "NONE")

    def window(self, x, kernel, fill=None, same=True):
        """(tensor, padding) of a convolution or pooling: SAME (where it may be) and VALID where they are ONNX's pads, else a Pad in front."""
        strides, dilations = self.attribute("strides", [1, 1]), self.attribute("dilations", [1, 1])
        shape, auto = self.shape(self.name(0)), self.attribute("auto_pad", "NOTSET")
        pads = list(self.attribute("pads", [0, 0, 0, 0]))
        need = [max((-(-shape[2 + i] // strides[i]) - 1) * strides[i] + (kernel[i] - 1) * dilations[i] + 1 - shape[2 + i], 0) for i in (0, 1)]
        if auto in ("SAME_UPPER", "SAME_LOWER"):
            low = [n // 2 if auto == "SAME_UPPER" else n - n // 2 for n in need]
            pads = [*low, *(n - b for n, b in zip(need, low, strict=True))]
        if self.attribute("ceil_mode", 0):
            out = self.shape(self.output())
            for i in (0, 1):                                 # what ONNX reads beyond its pads
                pads[2 + i] = max(pads[2 + i], (out[2 + i] - 1) * strides[i] + (kernel[i] - 1) * dilations[i] + 1 - shape[2 + i] - pads[i])
        if not any(pads):
            return x, schema.Padding.VALID
        if same and pads == [n // 2 for n in need] + [n - n // 2 for n in need]:
            return x, schema.Padding.SAME
        return self.padded(x, [(0, 0), (pads[0], pads[2]), (pads[1], pads[3]), (0, 0)], fill), schema.Padding.VALID

    def padded(self, x, pairs, fill=None, y=None):
        """fill   a real; None: 0"""
        shape = [n + a + b for n, (a, b) in zip(self.flat.tensors[x].shape, pairs, strict=True)]
        made = self.spare(x, shape, suffix="padded") if y is None else y
        if fill is None:
            self.flat.op("PAD", [x, self.ints(pairs)], [made], "Pad")
            return made
        if not self.whole:
            held = self.flat.tensor(f"fill_{len(self.flat.tensors)}", (), "float32", np.float32(fill))
        else:
            scale, zero = self.quant(x)
            kind = "int8" if self.flat.tensors[x].type == schema.TensorType.INT8 else "int16"
            ends = np.iinfo(kind)
            code = np.clip(np.rint(max(fill, -1e30) / scale) + zero, ends.min, ends.max)
            held = self.flat.tensor(f"fill_{len(self.flat.tensors)}", (), kind, code.astype(kind), (scale, zero))
        self.flat.op("PADV2", [x, self.ints(pairs), held], [made], "PadV2")
        return made

    def op_Conv(self):
        shape, out = self.shape(self.name(0)), self.shape(self.output())
        if len(shape) != 4:
            self.refuse("it has other than two spatial axes: `qbench rewrite` makes a two-dimensional one of a one-dimensional")
        groups, kernel = self.attribute("group", 1), self.shape_of_weight()[2:]
        strides, dilations = self.attribute("strides", [1, 1]), self.attribute("dilations", [1, 1])
        depthwise = groups == shape[1] and groups > 1
        weight = self.weight(1, (lambda w: w.transpose(1, 2, 3, 0)) if depthwise else (lambda w: w.transpose(TO_NHWC)), 3 if depthwise else 0)
        x, padding = self.window(self.x(), kernel)
        bias = self.bias(self.name(2), out[1], x, weight)
        common = {"padding": padding, "strideH": strides[0], "strideW": strides[1], "dilationHFactor": dilations[0], "dilationWFactor": dilations[1],
                  "fusedActivationFunction": self.activation()}
        if depthwise:
            self.flat.op("DEPTHWISE_CONV_2D", [x, weight, bias], [self.y()], "DepthwiseConv2D", depthMultiplier=out[1] // groups, **common)
        else:
            self.flat.op("CONV_2D", [x, weight, bias], [self.y()], "Conv2D", **common)

    def shape_of_weight(self):
        name = self.name(1)
        return np.shape(self.arrays[self.body["stored"][name]["codes"] if name in self.body["stored"] else self.body["constants"][name]]) if (
            name in self.body["stored"] or name in self.body["constants"]) else self.refuse(f"its weight {name!r} is computed")

    def op_ConvTranspose(self):
        shape, out, (_, _, *kernel) = self.shape(self.name(0)), self.shape(self.output()), self.shape_of_weight()
        strides, pads = self.attribute("strides", [1, 1]), self.attribute("pads", [0, 0, 0, 0])
        if len(shape) != 4 or self.attribute("group", 1) != 1 or any(d != 1 for d in self.attribute("dilations", [1])):
            self.refuse("groups, dilations and other than two spatial axes have no rule")
        weight = self.weight(1, lambda w: w.transpose(1, 2, 3, 0), 0)
        x = self.x()
        bias, y = self.bias(self.name(2), out[1], x, weight), self.y()
        full = [(shape[2 + i] - 1) * strides[i] + kernel[i] for i in (0, 1)]
        if any(pads[i] + out[2 + i] > full[i] for i in (0, 1)):
            self.refuse("output_padding beyond the kernel has no rule")
        whole = y if list(out[2:]) == full else self.spare(y, [out[0], *full, out[1]], suffix="whole")
        self.flat.op("TRANSPOSE_CONV", [self.ints([out[0], *full, out[1]]), weight, x, bias], [whole], "TransposeConv", padding=schema.Padding.VALID,
                     strideH=strides[0], strideW=strides[1], fusedActivationFunction=self.activation())
        if whole != y:
            self.flat.op("SLICE", [whole, self.ints([0, pads[0], pads[1], 0]), self.ints([out[0], out[2], out[3], out[1]])], [y], "Slice")

    def op_Gemm(self):
        if self.attribute("alpha", 1.0) != 1.0 or self.attribute("beta", 1.0) != 1.0 or self.attribute("transA", 0):
            self.refuse("alpha, beta and transA have no rule")
        self.connected(bool(self.attribute("transB", 0)), self.name(2))

    def connected(self, rows, bias_name):
        weight = self.weight(1, (lambda w: w) if rows else (lambda w: w.T), 0)
        x = self.x()
        bias = self.bias(bias_name, self.flat.tensors[weight].shape[0], x, weight)
        self.flat.op("FULLY_CONNECTED", [x, weight, bias], [self.y()], "FullyConnected", fusedActivationFunction=self.activation(), keepNumDims=True)

    def op_MatMul(self):
        held = self.name(1) in self.body["stored"] or self.name(1) in self.body["constants"]
        if held and len(self.shape_of_weight()) == 2 and len(self.shape(self.name(0))) != 4:
            self.connected(False, self.chain[3] if self.whole and self.chain[3] else "")
            return
        self.logical(lambda xs, y: self.flat.op("BATCH_MATMUL", xs, [y], "BatchMatMul"), 2)

    # -- element by element

    def unary(self):
        x, y, op = self.x(), self.y(), self.node["op"]
        options = {"Exp": "Exp", "Neg": "Neg", "Abs": "Abs", "Cos": "Cos", "HardSwish": "HardSwish"}.get(op, "")
        self.fixed(lambda out: self.flat.op(UNARY[op], [x], [out], options), y)

    def fixed(self, build, y):
        """Through the scale that the kernel insists on, where the plan has another."""
        bits = 8 if not self.whole or self.flat.tensors[y].type == schema.TensorType.INT8 else 16
        want = FIXED.get((self.node["op"], bits))
        if not self.whole or want is None or (np.isclose(self.quant(y)[0], want[0], rtol=1e-6) and self.quant(y)[1] == want[1]):
            build(y)
            return
        made = self.spare(y, quant=want, suffix="fixed")
        build(made)
        self.flat.op("QUANTIZE", [made], [y], "Quantize")

    def op_Softmax(self):
        axis, rank = self.attribute("axis", -1), len(self.shape(self.name(0)))
        where = self.axis(axis, self.name(0))
        x, y = self.x(), self.y()
        if where == rank - 1:
            self.fixed(lambda out: self.flat.op("SOFTMAX", [x], [out], "Softmax", beta=1.0), y)
            return
        perm = [*(a for a in range(rank) if a != where), where]
        back = [perm.index(a) for a in range(rank)]
        turned = self.moved(x, perm, "last")
        last = self.spare(y, self.flat.tensors[turned].shape, suffix="last")
        self.fixed(lambda out: self.flat.op("SOFTMAX", [turned], [out], "Softmax", beta=1.0), last)
        self.flat.op("TRANSPOSE", [last, self.ints(back)], [y], "Transpose")

    def binary(self):
        ranks = {len(self.shape(n)) for n in self.node["inputs"] if n not in self.body["constants"] and n not in self.body["stored"]}
        if len(self.node["inputs"]) != 2 or (4 in ranks and len(ranks) > 1):
            self.refuse("it takes two operands here, of as many axes as each other")
        builtin, options = BINARY[self.node["op"]]
        xs, y = [self.x(0), self.x(1)], self.y()
        if self.node["op"] in MOVING:
            xs = [self.matched(x, y) for x in xs]
        more = {"fusedActivationFunction": self.activation()} if options in ("Add", "Sub", "Mul", "Div") else {}
        self.flat.op(builtin, xs, [y], options, **more, **({"potScaleInt16": False} if options in ("Add", "Sub") else {}))

    def op_Clip(self):
        limits = self.limits(self.node)
        if self.whole:
            x, y = self.x(), self.y()
            if limits in ACTIVATION:
                self.flat.op(ACTIVATION[limits], [x], [y])
            elif limits is not None and self.inside(self.node, limits):
                self.flat.op("QUANTIZE", [x], [y], "Quantize")
            elif limits is not None:
                self.clamped(self.matched(x, y), limits, y)
            else:
                self.refuse("it has one limit, which lies inside the range of its codes")
            return
        low, high = (None if self.constant(i) is None else float(self.constant(i).item()) for i in (1, 2))
        x = self.x()
        for bound, builtin in ((low, "MAXIMUM"), (high, "MINIMUM")):
            if bound is not None:
                made = self.spare(x, suffix="clipped") if builtin == "MAXIMUM" and high is not None else self.y()
                self.flat.op(builtin, [x, self.flat.tensor(f"bound_{len(self.flat.tensors)}", (), "float32", np.float32(bound))], [made], "MaximumMinimum")
                x = made

    def op_Reciprocal(self):
        self.flat.op("DIV", [self.flat.tensor(f"one_{len(self.flat.tensors)}", (), "float32", np.float32(1)), self.x()], [self.y()], "Div")

    def op_LeakyRelu(self):
        self.flat.op("LEAKY_RELU", [self.x()], [self.y()], "LeakyRelu", alpha=self.attribute("alpha", 0.01))

    def op_PRelu(self):
        if self.whole and self.name(1) not in self.body["stored"]:
            self.refuse("its slope has no codes")
        slope = self.x(1)
        shape = self.flat.tensors[slope].shape
        if len(shape) == 4:
            self.flat.tensors[slope].shape = list(shape[1:])
        self.flat.op("PRELU", [self.x(), slope], [self.y()])

    def op_Gelu(self):
        self.flat.op("GELU", [self.x()], [self.y()], "Gelu", approximate=self.attribute("approximate", "none") == "tanh")

    def op_HardSigmoid(self):
        def number(value):
            return self.flat.tensor(f"number_{len(self.flat.tensors)}", (), "float32", np.float32(value))

        steps = [("MUL", "Mul", self.attribute("alpha", 0.2)), ("ADD", "Add", self.attribute("beta", 0.5)), ("MAXIMUM", "MaximumMinimum", 0.0), ("MINIMUM", "MaximumMinimum", 1.0)]
        x = self.x()
        for number_of, (builtin, options, value) in enumerate(steps):
            made = self.y() if number_of == 3 else self.spare(x, suffix="gate")
            self.flat.op(builtin, [x, number(value)], [made], options)
            x = made

    # -- windows and reductions

    def op_MaxPool(self):
        self.pool("MAX_POOL_2D", -3.0e38)

    def op_AveragePool(self):
        self.pool("AVERAGE_POOL_2D", None)

    def pool(self, builtin, fill):
        kernel, strides = self.attribute("kernel_shape"), self.attribute("strides", [1, 1])
        if len(kernel) != 2 or any(d != 1 for d in self.attribute("dilations", [1])) or len(self.node["outputs"]) > 1:
            self.refuse("dilations, indices and other than two spatial axes have no rule")
        average, counted = fill is None, bool(self.attribute("count_include_pad", 0))
        y = self.y()
        source = self.x() if average else self.matched(self.x(), y)
        x, padding = self.window(source, kernel, None if average else fill, same=not (average and counted))
        if average and not counted and x != source:
            self.refuse("LiteRT counts its padding in the average, ONNX leaves it out: write it as a Pad, with count_include_pad")
        self.flat.op(builtin, [x], [self.computed(source, y) if average else y], "Pool2D", padding=padding, strideH=strides[0], strideW=strides[1], filterHeight=kernel[0], filterWidth=kernel[1])

    def op_GlobalAveragePool(self):
        self.flat.op("MEAN", [self.x(), self.ints([1, 2])], [self.y()], "Reducer", keepDims=True)

    def op_GlobalMaxPool(self):
        y = self.y()
        self.flat.op("REDUCE_MAX", [self.matched(self.x(), y), self.ints([1, 2])], [y], "Reducer", keepDims=True)

    def reduce(self):
        name, rank = self.name(0), len(self.shape(self.name(0)))
        given = self.constant(1) if self.name(1) else self.attribute("axes")
        axes = sorted(int(a) % rank for a in (range(rank) if given is None else given))
        keep, builtin = bool(self.attribute("keepdims", 1)), REDUCE[self.node["op"]]
        if rank == 4 and not keep and axes not in ([2, 3], [1]):
            self.logical(lambda xs, y: self.flat.op(builtin, [xs[0], self.ints(axes)], [y], "Reducer", keepDims=False), 1)
            return
        x, y = self.x(), self.y()
        self.flat.op(builtin, [self.matched(x, y) if self.node["op"] in MOVING else x, self.ints([self.axis(a, name) for a in axes])], [y], "Reducer", keepDims=keep)

    def op_BatchNormalization(self):
        """One product and one sum, in float."""
        gamma, beta, mean, variance = (self.array(self.name(i)).astype(np.float64) for i in (1, 2, 3, 4))
        factor = gamma / np.sqrt(variance + self.attribute("epsilon", 1e-5))
        shape = [-1, *[1] * (len(self.shape(self.name(0))) - 2)]
        x, held = self.x(), []
        for what, data in (("factor", factor), ("shift", beta - mean * factor)):
            laid = self.laid(data.astype(np.float32).reshape(shape))
            held.append(self.flat.tensor(f"{self.body['names'][self.output()]}_{what}", np.shape(laid), "float32", laid))
        product = self.spare(x, suffix="scaled")
        self.flat.op("MUL", [x, held[0]], [product], "Mul")
        self.flat.op("ADD", [product, held[1]], [self.y()], "Add")

    def op_LayerNormalization(self):
        """Piece by piece, in float."""
        rank, axis = len(self.shape(self.name(0))), self.attribute("axis", -1)
        if axis % rank != rank - 1 or rank == 4:
            self.refuse("it normalises other axes than the last, or has four")
        x, last, number = self.x(), self.ints([rank - 1]), self.flat.tensor(f"epsilon_{len(self.flat.tensors)}", (), "float32", np.float32(self.attribute("epsilon", 1e-5)))
        narrow = [*self.flat.tensors[x].shape[:-1], 1]

        def step(builtin, inputs, options, shape=None, **values):
            made = self.spare(x, shape, suffix="norm")
            self.flat.op(builtin, inputs, [made], options, **values)
            return made

        centred = step("SUB", [x, step("MEAN", [x, last], "Reducer", narrow, keepDims=True)], "Sub")
        spread = step("MEAN", [step("MUL", [centred, centred], "Mul"), last], "Reducer", narrow, keepDims=True)
        scaled = step("MUL", [centred, step("RSQRT", [step("ADD", [spread, number], "Add", narrow)], "", narrow)], "Mul")
        if self.name(2):
            self.flat.op("ADD", [step("MUL", [scaled, self.x(1)], "Mul"), self.x(2)], [self.y()], "Add")
        else:
            self.flat.op("MUL", [scaled, self.x(1)], [self.y()], "Mul")

    # -- what moves values

    def op_Concat(self):
        y = self.y()
        xs = [self.matched(self.x(i), y) for i in range(len(self.node["inputs"]))]
        self.flat.op("CONCATENATION", xs, [y], "Concatenation", axis=self.axis(self.attribute("axis"), self.output()))

    def op_Transpose(self):
        rank = len(self.shape(self.name(0)))
        perm = list(self.attribute("perm", list(range(rank))[::-1]))
        y = self.y()
        if rank == 4:
            perm = [PLACE[perm[a]] for a in TO_NHWC]
        self.flat.op("TRANSPOSE", [self.matched(self.x(), y), self.ints(perm)], [y], "Transpose")

    def op_Split(self):
        axis = self.axis(self.attribute("axis", 0), self.name(0))
        ys = [self.y(i) for i in range(len(self.node["outputs"]))]
        x = self.matched(self.x(), ys[0])
        if len({self.quant(y) for y in ys} if self.whole else ()) > 1:
            self.refuse("its outputs have different scales")
        self.flat.op("SPLIT_V", [x, self.ints([self.flat.tensors[y].shape[axis] for y in ys]), self.ints(axis)], ys, "SplitV", numSplits=len(ys))

    def op_Slice(self):
        starts, ends = self.constant(1), self.constant(2)
        axes, steps = (self.constant(i) if self.name(i) else None for i in (3, 4))
        shape = self.shape(self.name(0))
        if starts is None or ends is None or (steps is not None and (steps < 1).any()):
            self.refuse("computed limits and negative steps have no rule")
        begin, end, stride = [0] * len(shape), list(self.lies(self.name(0))), [1] * len(shape)
        for number, axis in enumerate(range(len(starts)) if axes is None else axes.tolist()):
            size, place = shape[axis], self.axis(axis, self.name(0))
            begin[place], end[place] = (int(np.clip(v + size if v < 0 else v, 0, size)) for v in (int(starts[number]), int(ends[number])))
            stride[place] = 1 if steps is None else int(steps[number])
        y = self.y()
        self.flat.op("STRIDED_SLICE", [self.matched(self.x(), y), self.ints(begin), self.ints(end), self.ints(stride)], [y], "StridedSlice")

    def op_Pad(self):
        pads, mode, value = self.constant(1), self.attribute("mode", "constant"), self.constant(2)
        if pads is None or (pads < 0).any() or self.name(3) or mode not in ("constant", "reflect"):
            self.refuse("computed, negative, partial, wrapped and edge padding have no rule")
        rank, y = len(pads) // 2, self.y()
        pairs = [(int(pads[i]), int(pads[i + rank])) for i in range(rank)]
        pairs = [pairs[a] for a in TO_NHWC] if rank == 4 else pairs
        x = self.matched(self.x(), y)
        if mode == "reflect":
            self.flat.op("MIRROR_PAD", [x, self.ints(pairs)], [y], "MirrorPad", mode=schema.MirrorPadMode.REFLECT)
        else:
            self.padded(x, pairs, None if value is None or not float(value.item()) else float(value.item()), y)

    def op_Gather(self):
        indices = self.constant(1)
        if indices is None or (indices.ndim != 1 and len(self.shape(self.name(0))) == 4):
            self.refuse("computed indices, and others than a list on four axes, have no rule")
        y, size = self.y(), self.shape(self.name(0))[self.attribute("axis", 0)]
        self.flat.op("GATHER", [self.matched(self.x(), y), self.ints(np.where(indices < 0, indices + size, indices))], [y], "Gather",
                     axis=self.axis(self.attribute("axis", 0), self.name(0)))

    def op_DepthToSpace(self):
        if self.attribute("mode", "DCR") != "DCR":
            self.refuse("mode CRD has no rule: `qbench rewrite` can reorder the channels in front")
        y = self.y()
        self.flat.op("DEPTH_TO_SPACE", [self.matched(self.x(), y)], [y], "DepthToSpace", blockSize=self.attribute("blocksize"))

    def op_Resize(self):
        shape, want, y = self.shape(self.name(0)), self.shape(self.output()), self.y()
        mode, where = self.attribute("mode", "nearest"), self.attribute("coordinate_transformation_mode", "half_pixel")
        if len(shape) != 4 or shape[:2] != want[:2]:
            self.refuse("it resizes other axes than height and width")
        whole = all(want[a] % shape[a] == 0 for a in (2, 3))
        x = self.x()
        inputs = [self.matched(x, y) if mode == "nearest" else x, self.ints(want[2:])]
        if mode == "nearest" and whole and ((where, self.attribute("nearest_mode", "round_prefer_floor")) == ("asymmetric", "floor") or where.endswith("half_pixel")):
            self.flat.op("RESIZE_NEAREST_NEIGHBOR", inputs, [y], "ResizeNearestNeighbor")
        elif mode == "linear" and where in ("half_pixel", "pytorch_half_pixel", "align_corners", "asymmetric"):
            self.flat.op("RESIZE_BILINEAR", inputs, [self.computed(x, y)], "ResizeBilinear", alignCorners=where == "align_corners", halfPixelCenters=where.endswith("half_pixel"))
        else:
            self.refuse(f"{mode} {where} from {shape[2:]} to {want[2:]} has no rule")
