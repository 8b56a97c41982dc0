# mypy: ignore-errors
"""Runs inside the environment of OpenVINO, started by `qbench.toolchains.call`: request.json in, answer.json out.

Needs nothing of qbench. Converts a Q/DQ model into OpenVINO's own files, compiles them for the CPU, writes what the compiler made of them
(one row a layer of the compiled graph), runs the samples and takes the time.
"""

import json
import time

from answering import serve


def work(request):
    import numpy as np
    import openvino as ov

    core = ov.Core()
    ov.save_model(core.read_model(request["model"]), request["ir"], compress_to_fp16=False)
    # f32: the default lets float layers run in bfloat16 where the CPU has it, which is not what the plan says
    config = {"INFERENCE_PRECISION_HINT": "f32", "PERFORMANCE_HINT": "LATENCY", "INFERENCE_NUM_THREADS": request["threads"]}
    compiled = core.compile_model(core.read_model(request["ir"]), "CPU", config)
    with open(request["graph"], "w") as file:
        json.dump(rows(compiled), file, indent=1)
        file.write("\n")
    stored, found, names = np.load(request["samples"]), {}, [o.get_any_name() for o in compiled.outputs]
    ours = request["outputs"]
    infer = compiled.create_infer_request()
    for number in range(request["count"]):
        feeds = {name: stored[f"{number}:{name}"] for name in request["inputs"]}
        got = infer.infer(feeds)
        for output, name in zip(compiled.outputs, names, strict=True):
            alias = next((a for a in ours if a in output.get_names()), name)
            found[f"{number}:{alias}"] = np.asarray(got[output])
    np.savez(request["answers"], **found)
    feeds = {name: stored[f"0:{name}"] for name in request["inputs"]}
    took, until = [], time.perf_counter() + request["seconds"]
    while len(took) < 20 or time.perf_counter() < until:
        start = time.perf_counter()
        infer.infer(feeds)
        took.append(1e3 * (time.perf_counter() - start))
    return {"version": ov.__version__, "ms": took[3:]}


def rows(compiled):
    """Layers of the compiled graph: name, type, precision and kernel, and which layers of the model they stand for."""
    found = []
    for node in compiled.get_runtime_model().get_ordered_ops():
        info = {key: str(getattr(value, "value", value)) for key, value in node.get_rt_info().items()}
        if info.get("layerType") != "Const":
            found.append({"name": node.get_friendly_name(), "type": info.get("layerType", ""), "precision": info.get("runtimePrecision", ""),
                          "kernel": info.get("primitiveType", ""), "stands_for": [n for n in info.get("originalLayersNames", "").split(",") if n]})
    return found


if __name__ == "__main__":
    serve(work)
