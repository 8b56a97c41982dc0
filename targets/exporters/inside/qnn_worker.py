# mypy: ignore-errors
"""Runs inside the environment of onnxruntime-qnn, started by `qbench.toolchains.call`: request.json in, answer.json out.

Needs nothing of qbench. Compiles a Q/DQ model into a context binary for one chip, writes what the compiler made of it (graph.json, trace.json), and,
if request["outputs"] is a name, loads the binary again and runs the samples through the x86 simulator.
"""

import glob
import json
import time

from answering import Refused, serve

NAME = "QNNExecutionProvider"
TRACE = "qnn_op_trace.json"            # the provider's own name for it
SHOWN = 4
REQUANTIZES = "WeightBiasQuantization"
"""onnxruntime's optimizer of this name turns a float layer between integer layers into an 8-bit one, with scales of its own."""


def registered():
    """The HTP as onnxruntime's device, once its library is loaded."""
    import onnxruntime as ort
    import onnxruntime_qnn as qnn

    ort.register_execution_provider_library(NAME, qnn.get_library_path())
    return next(d for d in ort.get_ep_devices() if d.ep_name == NAME)


def session(model, device, provider, config):
    import onnxruntime as ort  # here, not above: this file is also part of a package that has no onnxruntime_qnn
    import onnxruntime_qnn as qnn

    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    for key, value in {"session.disable_cpu_ep_fallback": "1", "session.disable_double_qdq_remover": "1", **config}.items():      # without it, layers go to the CPU and nobody is told
        options.add_session_config_entry(key, value)
    options.add_provider_for_devices([device], {"backend_path": qnn.get_qnn_htp_path(), **provider})
    return ort.InferenceSession(model, options, disabled_optimizers=[REQUANTIZES])


def traced():
    try:
        with open(TRACE) as file:
            return json.load(file)
    except FileNotFoundError:
        return {}


def compiled(request, device):
    told = {"dump_json_qnn_graph": "1", "json_qnn_graph_dir": ".", "enable_framework_op_trace": "1"}
    config = {"ep.context_enable": "1", "ep.context_embed_mode": "0", "ep.context_file_path": request["context"]}
    try:
        session(request["model"], device, request["provider"] | told, config)
    except Exception as error:             # onnxruntime has one class of error per status
        left = [f"node {n['node_name']!r} ({n['op_type']}): {n['reason']}" for n in traced().get("unsupported_nodes", ())]
        more = [f"and {len(left) - SHOWN} more"] if len(left) > SHOWN else []
        raise Refused("the HTP does not take " + "; ".join([*left[:SHOWN], *more]) if left else str(error).splitlines()[0]) from error


def graph():
    """Nodes and tensors of all compiled graphs."""
    nodes, tensors = {}, {}
    for path in sorted(glob.glob(f"{NAME}*.json")):
        with open(path) as file:
            body = json.load(file).get("graph")
        if body:
            nodes |= body["nodes"]
            tensors |= body["tensors"]
    if not nodes:
        raise Refused("the compiler wrote no graph")
    return {"nodes": nodes, "tensors": tensors}


def simulate(request, device):
    import numpy as np

    run = session(request["context"], device, request["provider"], {})
    stored, found = np.load(request["samples"]), {}
    for number in range(request["count"]):
        got = run.run(None, {name: stored[f"{number}:{name}"] for name in request["inputs"]})
        found.update({f"{number}:{value.name}": np.asarray(y) for value, y in zip(run.get_outputs(), got, strict=True)})
    np.savez(request["outputs"], **found)


def work(request):
    started, device = time.monotonic(), registered()
    compiled(request, device)
    for name, body in (("graph.json", graph()), ("trace.json", traced())):
        with open(name, "w") as file:
            json.dump(body, file, indent=1, sort_keys=True)
            file.write("\n")
    answer = {"seconds": time.monotonic() - started}
    if request["outputs"]:
        simulate(request, device)
    return answer


if __name__ == "__main__":
    serve(work, lambda error: str(error).splitlines()[0])
