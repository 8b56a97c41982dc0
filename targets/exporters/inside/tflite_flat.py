# mypy: ignore-errors
"""A .tflite file while it is made, by LiteRT's own schema. Part of tflite_worker.py, beside which it is copied."""

import numpy as np
from ai_edge_litert import schema_py_generated as schema


class Flat:
    """The FlatBuffer while it is made."""

    def __init__(self):
        self.tensors, self.operators, self.codes = [], [], {}
        self.buffers = [schema.BufferT()]
        self.inputs, self.outputs = [], []

    def tensor(self, name, shape, dtype, data=None, quant=None):
        made = schema.TensorT()
        made.name, made.shape, made.type, made.buffer, made.hasRank = name, [int(n) for n in shape], getattr(schema.TensorType, np.dtype(dtype).name.upper()), 0, True
        if data is not None:
            buffer = schema.BufferT()
            buffer.data = np.frombuffer(np.ascontiguousarray(data, dtype).tobytes(), np.uint8)
            made.buffer = len(self.buffers)
            self.buffers.append(buffer)
        if quant is not None:
            made.quantization = schema.QuantizationParametersT()
            made.quantization.scale = np.asarray(quant[0], np.float32).reshape(-1)
            made.quantization.zeroPoint = np.asarray(quant[1], np.int64).reshape(-1)
            made.quantization.quantizedDimension = quant[2] if len(quant) > 2 else 0
        self.tensors.append(made)
        return len(self.tensors) - 1

    def op(self, builtin, inputs, outputs, options="", **values):
        code = getattr(schema.BuiltinOperator, builtin)
        made = schema.OperatorT()
        made.opcodeIndex = self.codes.setdefault(code, len(self.codes))
        made.inputs, made.outputs = list(inputs), list(outputs)
        if options:
            made.builtinOptionsType = getattr(schema.BuiltinOptions, f"{options}Options")
            made.builtinOptions = getattr(schema, f"{options}OptionsT")()
            for key, value in values.items():
                setattr(made.builtinOptions, key, value)
        self.operators.append(made)

    def bytes(self):
        import flatbuffers

        model, graph = schema.ModelT(), schema.SubGraphT()
        model.version, model.description, model.buffers, model.subgraphs = 3, "written by qbench", self.buffers, [graph]
        model.operatorCodes = []
        for code in self.codes:
            entry = schema.OperatorCodeT()
            entry.builtinCode, entry.deprecatedBuiltinCode, entry.version = code, min(code, 127), 1
            model.operatorCodes.append(entry)
        graph.name, graph.tensors, graph.operators, graph.inputs, graph.outputs = "main", self.tensors, self.operators, self.inputs, self.outputs
        builder = flatbuffers.Builder(1 << 20)
        builder.Finish(model.Pack(builder), file_identifier=b"TFL3")
        return bytes(builder.Output())
