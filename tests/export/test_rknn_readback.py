"""Reading a compiled .rknn back. The file and its log are recorded: rknn-toolkit2 2.5.0 (2025) built `three_convs` with b in FP16."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path

import models
import numpy as np
import pytest
from export_cases import job

from qbench.errors import ToolError
from qbench.export import Contents, Difference, differences
from qbench.network import Precision
from qbench.targets.exporters import rknn_file
from qbench.targets.exporters.rknn_file import HEADER_BYTES, RknnFile, RknnOperator, RknnTensor, read_rknn
from qbench.targets.exporters.rknn_log import parse, rewrites
from qbench.targets.exporters.rknn_model import quantized_form
from qbench.targets.exporters.rknn_readback import Reader

RECORDED = Path(__file__).parent / "recorded"
RKNN = RECORDED / "three_convs_mixed.rknn"
LOG = (RECORDED / "three_convs_mixed.log").read_text(encoding="utf-8")
MADE = job({"b": "fp16"})


def contents(path: Path) -> Contents:
    return Reader(read_rknn(path), MADE, rewrites(LOG), dict(MADE.written.raw)).contents()


def found_in(path: Path) -> tuple[Difference, ...]:
    return differences(MADE.demanded, contents(path), consent=quantized_form(MADE).consent)


def spoiled(folder: Path, change: Callable[[bytearray, rknn_file._Reader], None]) -> Path:
    """A copy of the recorded file with some bytes changed."""
    data = bytearray(RKNN.read_bytes())
    change(data, rknn_file._Reader(bytes(data)))
    path = folder / "model.rknn"
    path.write_bytes(data)
    return path


def tables(reader: rknn_file._Reader, field: int) -> list[dict[int, int]]:
    root = reader._fields(HEADER_BYTES + reader._u32(HEADER_BYTES))
    graph = reader._fields(reader._tables(root[rknn_file.GRAPHS])[0])
    return [reader._fields(t) for t in reader._tables(graph[field])]


def tensor(reader: rknn_file._Reader, name: str) -> dict[int, int]:
    return next(t for t in tables(reader, rknn_file.TENSORS) if rknn_file.NAME in t and reader._text(t[rknn_file.NAME]) == name)


def operator(reader: rknn_file._Reader, name: str) -> dict[int, int]:
    return next(o for o in tables(reader, rknn_file.OPERATORS) if reader._text(o[rknn_file.FULL_NAME]) == name)


def test_what_was_compiled_is_the_plan() -> None:
    assert found_in(RKNN) == ()
    read = contents(RKNN)
    assert {k: (v.precision, v.placement) for k, v in read.layers.items()} == {
        "a": (Precision.INT8, "NPU"), "b": (Precision.FP16, "NPU"), "c": (Precision.INT8, "NPU")}
    assert read.tensors["x:int8"].scale == MADE.demanded.tensors["x:int8"].scale                 # float32, bit for bit
    assert read.silent["c0:int8"].startswith("inside ConvAdd") and read.silent["weight:wa"]


def test_the_file_and_the_log_agree() -> None:
    """The table that the toolkit prints is an independent oracle for the fields of the file."""
    rows, read = parse(LOG).layers, read_rknn(RKNN)
    assert [(r["op"], r["target"], r["name"].partition(":")[2].partition("#")[0]) for r in rows] == [(o.kind, o.processor, o.node) for o in read.operators]
    shown = {"INT8": "int8", "FLOAT16": "float16", "INT16": "int16"}
    for row, op in zip(rows, read.operators, strict=True):
        if op.kind not in ("InputOperator", "OutputOperator", "exDataConvert"):                   # those are listed by what they read
            assert {shown[row["dtype"]]} == {read.tensors[i].dtype for i in op.outputs}
    assert read.compiler.startswith("2.5.0")


def test_one_changed_scale_is_found_and_named(tmp_path: Path) -> None:
    def change(data: bytearray, reader: rknn_file._Reader) -> None:
        at = reader._target(tensor(reader, "a1")[rknn_file.SCALE]) + 4
        struct.pack_into("<f", data, at, struct.unpack_from("<f", data, at)[0] * 1.0001)

    (only,) = found_in(spoiled(tmp_path, change))
    assert (only.name, only.what) == ("a1:int8", "scale")


def test_one_moved_zero_point_is_found_and_named(tmp_path: Path) -> None:
    def change(data: bytearray, reader: rknn_file._Reader) -> None:
        at = reader._target(tensor(reader, "x")[rknn_file.ZERO_POINT]) + 4
        struct.pack_into("<i", data, at, struct.unpack_from("<i", data, at)[0] + 1)

    (only,) = found_in(spoiled(tmp_path, change))
    assert (only.name, only.what) == ("x:int8", "zero point")


def test_one_flipped_layer_is_found_and_named(tmp_path: Path) -> None:
    def change(data: bytearray, reader: rknn_file._Reader) -> None:
        outputs = operator(reader, "Conv:b")[rknn_file.OUTPUTS]
        index = reader._u32(reader._target(outputs) + 4)
        data[tables(reader, rknn_file.TENSORS)[index][rknn_file.DTYPE]] = 3

    assert [str(d) for d in found_in(spoiled(tmp_path, change))] == ["b: precision fp16 -> int8"]


def test_one_layer_on_the_cpu_is_found_and_named(tmp_path: Path) -> None:
    def change(data: bytearray, reader: rknn_file._Reader) -> None:
        data[operator(reader, "Conv:a")[rknn_file.PROCESSOR]] = 0

    assert [str(d) for d in found_in(spoiled(tmp_path, change))] == ["a: placement NPU -> CPU"]


def test_another_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "old.rknn"
    path.write_bytes(b"RKNN" + bytes(4) + struct.pack("<Q", 5) + bytes(100))
    with pytest.raises(ToolError, match=r"old\.rknn is no \.rknn of file version 6 .*version 5"):
        read_rknn(path)
    path.write_bytes(RKNN.read_bytes()[:3000])
    with pytest.raises(ToolError, match=r"old\.rknn: its tables cannot be followed"):
        read_rknn(path)
    path.write_bytes(b"")
    with pytest.raises(ToolError, match=r"is no .rknn"):
        read_rknn(path)


def test_rewrites_are_followed_through_all_passes() -> None:
    log = ("D     convert_gemm_by_exmatmul: remove node = ['/o/Gemm'], add node = ['/tp', '/o/Gemm#1', '/rs']\n"
           "D     bypass: remove node = ['/tp'], add node = []\n"
           "D     convert_exmatmul_to_conv: remove node = ['/o/Gemm#1'], add node = ['/o/Gemm#2']\n")
    assert rewrites(log)["/o/Gemm"] == ("/rs", "/o/Gemm#2")


def normalised(dtype: str) -> tuple[Difference, ...]:
    """A mean in FP16 and the Sub that reads it, which the toolkit runs as one operator with a result of `dtype` (made up, as no file is recorded)."""
    weights = {"w": np.random.default_rng(0).normal(0, 0.3, (8, 3, 1, 1)).astype(np.float32)}
    nodes = [models.node("Conv", ["x", "w"], ["c"], "conv"), models.node("ReduceMean", ["c"], ["m"], "mean", axes=[1], keepdims=1), models.node("Sub", ["c", "m"], ["y"], "sub")]
    made = job({"mean": "fp16"}, models.model(nodes, {"x": [1, 3, 4, 4]}, {"y": [1, 8, 4, 4]}, weights, opset=17))
    scales = {k.rpartition(":")[0]: t for k, t in made.demanded.tensors.items() if not k.startswith("weight:")}
    stored = [RknnTensor(n, dtype if n == "y" else "int8", scales[n].scale, (scales[n].zero_point[0] - 128,)) for n in ("x", "c", "y")]
    file = RknnFile("stand-in", tuple(stored), (RknnOperator("Conv", "conv", "NPU", (0,), (1,)), RknnOperator("exNorm", "norm", "NPU", (1,), (2,))))
    read = Reader(file, made, {"mean": ("norm",), "sub": ("norm",)}, dict(made.written.raw)).contents()
    assert read.silent["mean"] == "inside exNorm norm, which the toolkit runs as one"
    return differences(made.demanded, read)


def test_a_layer_inside_one_operator_is_silent_and_the_last_of_them_tells() -> None:
    assert normalised("int8") == ()
    assert "sub: precision int8 -> int16" in map(str, normalised("int16"))
