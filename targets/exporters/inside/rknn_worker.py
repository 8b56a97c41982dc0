# mypy: ignore-errors
"""Runs inside the environment of rknn-toolkit2, started by `qbench.toolchains.call`: request.json in, answer.json out.

Needs nothing of qbench. The verbose log goes to standard output. Steps, by request["do"]:
  build     a Q/DQ or float model -> .rknn, and the simulator's outputs of the samples
  step1     a float model -> hybrid configuration, data and optimized model
  step2     these, with ranges and precisions of ours -> .rknn and outputs
"""

import ctypes
import os
import sys
import time

import numpy as np
from answering import Refused, serve


def toolkit():
    from rknn.api import RKNN  # takes seconds, and is wanted only after the restart

    return RKNN(verbose=True)


def done(status, what):
    if status not in (0, None):
        raise Refused(f"rknn-toolkit2 refuses in {what} (returned {status}); its log says why")


def opened(request):
    kit = toolkit()
    done(kit.config(target_platform=request["platform"], quantized_dtype="w8a8", quantized_algorithm=request.get("algorithm", "normal"),
                    quantized_method="channel", optimization_level=request["level"]), "config")
    return kit


def outputs(kit, request):
    """Simulator's outputs of every sample, as out:NUMBER:INDEX."""
    done(kit.init_runtime(), "init_runtime")
    stored = np.load(request["samples"])
    found = {}
    for number in range(request["count"]):
        feeds = [stored[f"{number}:{name}"] for name in request["inputs"]]
        got = kit.inference(inputs=feeds, data_format=["nchw"] * len(feeds))
        if got is None:
            raise Refused("rknn-toolkit2's simulator gave no outputs")
        found.update({f"{number}:{index}": np.asarray(value, np.float32) for index, value in enumerate(got)})
    np.savez(request["outputs"], **found)


def finish(kit, request, started):
    """Writes the .rknn, runs the samples, and what the build alone took."""
    done(kit.export_rknn(request["rknn"]), "export_rknn")
    answer = {"seconds": time.monotonic() - started}
    outputs(kit, request)
    try:
        if request["analyse"]:
            analyse(kit, request)
    except Exception as error:             # noqa: BLE001  the model is built; what the toolkit thinks of it is not worth losing it
        answer["not_analysed"] = last_lines(error)
    return answer


def analyse(kit, request):
    """Writes snapshot/error_analysis.txt: every layer against the float model, on the first sample."""
    stored = np.load(request["samples"])
    paths = [f"analysed{i}.npy" for i in range(len(request["inputs"]))]
    for path, name in zip(paths, request["inputs"], strict=True):
        np.save(path, stored[f"0:{name}"])
    done(kit.accuracy_analysis(inputs=paths, output_dir="snapshot"), "accuracy_analysis")


def build(request):
    started, kit = time.monotonic(), opened(request)
    done(kit.load_onnx(model=request["model"]), "load_onnx")
    done(kit.build(do_quantization=request.get("quantize", False), dataset=request.get("dataset"), auto_hybrid=request.get("auto_hybrid", False)), "build")
    return finish(kit, request, started)


def step1(request):
    kit = opened(request)
    done(kit.load_onnx(model=request["model"]), "load_onnx")
    done(kit.hybrid_quantization_step1(dataset=request["dataset"]), "hybrid_quantization_step1")
    return {"seen": observed(request["stem"])}


def configuration(stem):
    from ruamel.yaml import YAML

    with open(stem + ".quantization.cfg") as file:
        return YAML(), YAML().load(file)


def observed(stem):
    """Key -> lowest and highest value that the toolkit saw there; empty for what has a range per channel."""
    found = configuration(stem)[1]["quantize_parameters"]
    return {k: [float(e[n][0]) for n in ("ori_min", "ori_max")] if len(e.get("ori_min") or ()) == 1 else [] for k, e in found.items()}


def step2(request):
    stem = request["stem"]
    yaml, found = configuration(stem)
    # Only ranges: other numbers may not read back the same once written, and the toolkit refuses a change of them.
    theirs = {name: {"min": list(entry["min"]), "max": list(entry["max"])} for name, entry in found["quantize_parameters"].items()}
    found["quantize_parameters"] = theirs | {name: {"min": low, "max": high} for name, (low, high) in request["ranges"].items()}
    found["custom_quantize_layers"] = request["layers"]
    with open(stem + ".quantization.cfg", "w") as file:
        yaml.dump(found, file)
    started, kit = time.monotonic(), opened(request)
    done(kit.hybrid_quantization_step2(model_input=stem + ".model", data_input=stem + ".data",
                                       model_quantization_cfg=stem + ".quantization.cfg"), "hybrid_quantization_step2")
    return finish(kit, request, started)


def fixed_addresses():
    """Starts this program anew without address randomization, where Linux lets it: the toolkit writes unused memory, with addresses in it, into
    the .rknn, and equal inputs shall give equal bytes. Source: personality(2), ADDR_NO_RANDOMIZE."""
    no_randomize, ask = 0x0040000, 0xFFFFFFFF
    if sys.platform != "linux" or os.environ.get("PYTHONHASHSEED") == "0":
        return
    libc = ctypes.CDLL(None)
    libc.personality(libc.personality(ask) | no_randomize)
    os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, "PYTHONHASHSEED": "0"})


def work(request):
    return {"build": build, "step1": step1, "step2": step2}[request["do"]](request)


def last_lines(error):
    """The toolkit raises ValueError with a whole traceback in its text."""
    return " | ".join([line.strip() for line in str(error).splitlines() if line.strip()][-2:])


if __name__ == "__main__":
    fixed_addresses()
    serve(work, last_lines)
