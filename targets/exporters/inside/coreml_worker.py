# mypy: ignore-errors
"""Runs inside the environment of coremltools, started by `qbench.toolchains.call`: request.json in, answer.json out.

Needs nothing of qbench. Writes program.json (the Q/DQ model as plain JSON) as a Core ML package: every node by MIL's builder, in the precision of
its layer, without any of coremltools' passes, so that what is written is what the plan says.
"""

import json
from pathlib import Path

import numpy as np
from answering import serve
from coreml_rules import Emitter

DATES = ("com.github.apple.coremltools.conversion_date",)


def work(request):
    import coremltools as ct
    from coremltools.converters.mil import Builder as mb
    from coremltools.converters.mil.mil import Function, Program

    with open(request["program"]) as file:
        body = json.load(file)
    names = body["names"]
    with np.load(request["arrays"]) as stored:
        arrays = {k: stored[k] for k in stored.files}
    with Function({names[n]: mb.TensorSpec(shape=tuple(body["shapes"][n])) for n in body["inputs"]}, opset_version=ct.target.iOS17) as main_function:
        main_function.set_outputs(Emitter(mb, body, arrays).run([main_function.inputs[names[n]] for n in body["inputs"]]))
    program = Program()
    program.add_function("main", main_function)
    model = ct.convert(program, convert_to="mlprogram", compute_precision=ct.precision.FLOAT32, pass_pipeline=ct.PassPipeline.EMPTY,
                       minimum_deployment_target=ct.target.iOS17, skip_model_load=True)
    model.save(request["package"])
    same_every_time(Path(request["package"]))
    return {"version": ct.__version__}


def same_every_time(package):
    """Without the date, and with fixed identifiers for the two files of the package."""
    from coremltools.proto import Model_pb2

    path = package / "Data/com.apple.CoreML/model.mlmodel"
    spec = Model_pb2.Model()
    spec.ParseFromString(path.read_bytes())
    for key in DATES:
        spec.description.metadata.userDefined.pop(key, None)
    path.write_bytes(spec.SerializeToString(deterministic=True))
    manifest = json.loads((package / "Manifest.json").read_text())
    items = manifest["itemInfoEntries"]
    fixed = {key: f"00000000-0000-4000-8000-{number:012d}" for number, key in enumerate(sorted(items, key=lambda k: items[k]["name"]))}
    manifest["itemInfoEntries"] = {fixed[k]: v for k, v in items.items()}
    manifest["rootModelIdentifier"] = fixed[manifest["rootModelIdentifier"]]
    (package / "Manifest.json").write_text(json.dumps(manifest, indent=4, sort_keys=True) + "\n")


if __name__ == "__main__":
    serve(work)
