# mypy: ignore-errors
"""Runs inside the environment of LiteRT, started by `qbench.toolchains.call`: request.json in, answer.json out.

Needs nothing of qbench. Writes program.json (the Q/DQ model as plain JSON) as a .tflite file with LiteRT's own schema: a layer between pairs becomes one
integer operator with the plan's scales and codes, a float layer a float one. Values of four axes lie as N, H, W, C. Then LiteRT's interpreter runs the samples.
"""

import json

import numpy as np
from answering import serve
from tflite_operands import TO_NCHW, TO_NHWC
from tflite_rules import Emitter


def work(request):
    from importlib.metadata import version

    with open(request["program"]) as file:
        body = json.load(file)
    with np.load(request["arrays"]) as stored:
        arrays = {k: stored[k] for k in stored.files}
    emitter = Emitter(body, arrays)
    emitter.run()
    with open(request["model"], "wb") as file:
        file.write(emitter.flat.bytes())
    run(request, body)
    return {"version": version("ai-edge-litert"), "float_layers": emitter.in_float}


def run(request, body):
    """The samples in LiteRT's interpreter, with its own kernels."""
    from ai_edge_litert.interpreter import Interpreter, OpResolverType

    interpreter = Interpreter(model_path=request["model"], experimental_op_resolver_type=OpResolverType.BUILTIN_WITHOUT_DEFAULT_DELEGATES, num_threads=1)
    interpreter.allocate_tensors()
    inputs, outputs = interpreter.get_input_details(), interpreter.get_output_details()
    found = {}
    with np.load(request["samples"]) as stored:
        for number in range(request["count"]):
            for detail, name in zip(inputs, body["inputs"], strict=True):
                value = stored[f"{number}:{name}"].reshape(body["shapes"][name])
                interpreter.set_tensor(detail["index"], np.ascontiguousarray(value.transpose(TO_NHWC) if value.ndim == 4 else value))
            interpreter.invoke()
            for detail, name in zip(outputs, body["outputs"], strict=True):
                value = interpreter.get_tensor(detail["index"])
                found[f"{number}:{name}"] = value.transpose(TO_NCHW) if value.ndim == 4 else value
    np.savez(request["answers"], **found)


if __name__ == "__main__":
    serve(work)
