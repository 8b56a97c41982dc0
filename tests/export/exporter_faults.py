"""Faults put into the files of an export, and what the exporter's own reader makes of them afterwards."""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Callable, Mapping
from pathlib import Path
from xml.etree import ElementTree

import onnx
import onnx_ir as ir
from onnx import numpy_helper

from qbench.export import Difference, Job, differences
from qbench.targets.exporters import (
    ascend,
    ascend_model,
    cambricon,
    coreml,
    coreml_file,
    host_onnxruntime,
    host_openvino,
    mediatek,
    tflite_file,
    xdna,
    xdna_model,
)
from qbench.targets.exporters.plain_graph import plain

Spoiler = Callable[[Path], tuple[str, str]]
"""Changes the files of a folder; the name and the kind of difference that must be found."""
FACTOR = 1.01


def _scaled(path: Path, name: str) -> None:
    model = onnx.load(path)
    one = next(i for i in model.graph.initializer if i.name == name)
    one.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(one) * numpy_helper.to_array(one).dtype.type(FACTOR), name))
    onnx.save(model, path)


def onnxruntime_scale(folder: Path) -> tuple[str, str]:
    _scaled(folder / host_onnxruntime.OPTIMIZED, "a1_int8_scale")
    return "a1:int8", "scale"


def onnxruntime_precision(folder: Path) -> tuple[str, str]:
    """The integer convolution "a" becomes a float one."""
    model = onnx.load(folder / host_onnxruntime.OPTIMIZED)
    node = next(n for n in model.graph.node if n.op_type == "QLinearConv" and n.name.split("_token")[0] == "a")
    node.op_type, node.domain = "Conv", ""
    onnx.save(model, folder / host_onnxruntime.OPTIMIZED)
    return "a", "precision"


def openvino_scale(folder: Path) -> tuple[str, str]:
    root = ElementTree.parse(folder / host_openvino.MODEL).getroot()
    layer = next(x for x in root.iterfind("layers/layer") if x.attrib["name"] == "a1_int8_scale")
    data = layer.find("data")
    assert data is not None
    at, content = int(data.attrib["offset"]), bytearray((folder / host_openvino.WEIGHTS).read_bytes())
    content[at:at + 4] = struct.pack("<f", FACTOR * struct.unpack("<f", content[at:at + 4])[0])
    (folder / host_openvino.WEIGHTS).write_bytes(content)
    return "a1:int8", "scale"


def openvino_precision(folder: Path) -> tuple[str, str]:
    path = folder / host_openvino.GRAPH
    rows = json.loads(path.read_text(encoding="utf-8"))
    row = next(r for r in rows if "a/WithoutBiases" in r["stands_for"])
    row["precision"] = "f32"
    path.write_text(json.dumps(rows), encoding="utf-8")
    return "a", "precision"


def ascend_scale(folder: Path) -> tuple[str, str]:
    """scale_d of layer "c", which reads b1."""
    text = (folder / ascend.RECORD).read_text(encoding="utf-8")
    head, tail = text.split('key: "c"')
    line = next(x for x in tail.splitlines() if "scale_d" in x)
    changed = f"    scale_d: {FACTOR * float(line.split(':')[1])!r}"
    (folder / ascend.RECORD).write_text(head + 'key: "c"' + tail.replace(line, changed, 1), encoding="utf-8")
    return "b1:int8", "scale"


def ascend_precision(folder: Path) -> tuple[str, str]:
    path = folder / ascend.CUSTOMIZE
    path.write_text(path.read_text(encoding="utf-8").replace("b::InputDtype:float16", "b::InputDtype:int8", 1), encoding="utf-8")
    return "b", "precision"


def xdna_scale(folder: Path) -> tuple[str, str]:
    _scaled(folder / xdna.HANDED, "a1_int8_scale")
    return "a1:int8", "scale"


def xdna_precision(folder: Path) -> tuple[str, str]:
    """The pair behind "a" is gone."""
    model = onnx.load(folder / xdna.HANDED)
    pair = [n for n in model.graph.node if n.name in ("a1_int8_QuantizeLinear", "a1_int8_DequantizeLinear")]
    for node in model.graph.node:
        for i, name in enumerate(node.input):
            if name == pair[1].output[0]:
                node.input[i] = pair[0].input[0]
    for node in pair:
        model.graph.node.remove(node)
    onnx.save(model, folder / xdna.HANDED)
    return "a", "precision"


def _layers(folder: Path, change: Callable[[dict[str, object]], None], node: str) -> None:
    path = folder / cambricon.LAYERS
    body = json.loads(path.read_text(encoding="utf-8"))
    change(next(n for n in body["nodes"] if n["name"] == node)["inputs"][0])
    path.write_text(json.dumps(body), encoding="utf-8")


def cambricon_scale(folder: Path) -> tuple[str, str]:
    def change(entry: dict[str, object]) -> None:
        low, high = entry["ranges"][0]  # type: ignore[index]
        entry["ranges"] = [[low * FACTOR, high * FACTOR]]

    _layers(folder, change, "c")
    return "b1:int8", "scale"


def cambricon_precision(folder: Path) -> tuple[str, str]:
    _layers(folder, lambda entry: entry.update(type="FLOAT16"), "a")
    return "a", "precision"


def coreml_scale(folder: Path) -> tuple[str, str]:
    """The float16 scale of the quantize that makes a1's codes."""
    program = coreml_file.read(folder / coreml.PACKAGE)
    op = next(o for o in program.operations if o.kind == "quantize" and "a1_int8_q" in o.outputs)
    path, at = folder / coreml.PACKAGE / coreml_file.MODEL, op.at["scale"]
    content = bytearray(path.read_bytes())
    content[at:at + 2] = struct.pack("<e", FACTOR * struct.unpack("<e", content[at:at + 2])[0])
    path.write_bytes(content)
    return "a1:int8", "scale"


def coreml_precision(folder: Path) -> tuple[str, str]:
    """The result of layer "b" is said to be float32."""
    path = folder / coreml.PACKAGE / coreml_file.MODEL
    content = bytearray(path.read_bytes())
    named = re.search(rb"\x1a.\x0a\x02b1\x12", content, re.DOTALL)     # an operation's field 3, its output: field 1 the name, field 2 the type
    assert named is not None
    at = content.index(b"\x08\x0a", named.end())                     # TensorType: field 1, FLOAT16
    content[at + 1] = 11
    path.write_bytes(content)
    return "b", "precision"


def mediatek_scale(folder: Path) -> tuple[str, str]:
    path = folder / mediatek.MODEL
    at, content = tflite_file.read(path).tensors["a1_int8_q"].scale_at, bytearray(path.read_bytes())
    content[at:at + 4] = struct.pack("<f", FACTOR * struct.unpack("<f", content[at:at + 4])[0])
    path.write_bytes(content)
    return "a1:int8", "scale"


def mediatek_precision(folder: Path) -> tuple[str, str]:
    """The result of layer "a" is said to be float32."""
    path = folder / mediatek.MODEL
    at, content = tflite_file.read(path).tensors["a1_int8_q"].type_at, bytearray(path.read_bytes())
    content[at] = 0
    path.write_bytes(content)
    return "a", "precision"


SPOILERS: Mapping[str, Mapping[str, Spoiler]] = {
    "onnxruntime": {"scale": onnxruntime_scale, "precision": onnxruntime_precision},
    "openvino": {"scale": openvino_scale, "precision": openvino_precision},
    "ascend": {"scale": ascend_scale, "precision": ascend_precision},
    "xdna": {"scale": xdna_scale, "precision": xdna_precision},
    "cambricon": {"scale": cambricon_scale, "precision": cambricon_precision},
    "coreml": {"scale": coreml_scale, "precision": coreml_precision},
    "mediatek": {"scale": mediatek_scale, "precision": mediatek_precision},
}
"""A new exporter whose artefact is read back here needs a line."""


def differences_now(name: str, job: Job, folder: Path) -> tuple[Difference, ...]:
    """Plan against the files as they are now."""
    if name == "onnxruntime":
        read = host_onnxruntime.read_optimized(job, onnx.load(folder / host_onnxruntime.OPTIMIZED))
        return differences(job.demanded, read.contents, consent=read.consent)
    if name == "openvino":
        rows = json.loads((folder / host_openvino.GRAPH).read_text(encoding="utf-8"))
        read = host_openvino.read_compiled(job, folder / host_openvino.MODEL, folder / host_openvino.WEIGHTS, rows)
        return differences(job.demanded, read.contents, consent=read.consent)
    if name == "ascend":
        return differences(job.demanded, ascend.read_folder(job, folder), consent=ascend_model.adapted(job).consent)
    if name == "xdna":
        return differences(job.demanded, xdna.read_model(job, ir.load(folder / xdna.HANDED)), consent=xdna_model.adapted(job, xdna.wanted(job)).consent)
    if name == "cambricon":
        return differences(job.demanded, cambricon.read_folder(job, folder), scale_tolerance=cambricon.RECOMPUTED)
    if name == "coreml":
        read_back = coreml.read_package(job, folder / coreml.PACKAGE, coreml.without_int16(plain(job), job))
        return differences(job.demanded, read_back, consent=coreml.half_scales(job))
    if name == "mediatek":
        held = mediatek.read_model(job, tflite_file.read(folder / mediatek.MODEL), plain(job))
        return differences(job.demanded, held, consent=mediatek.in_float(job, held))
    raise KeyError(f"exporter {name!r} reads back without a line in exporter_faults.py")
