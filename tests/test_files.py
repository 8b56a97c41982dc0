"""Writing without loss: what has the name already is kept until the new file is whole, and devices are left alone."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import numpy as np
import onnx
import pytest
from models import conv_relu

from qbench.errors import InputError
from qbench.files import make_folder, replacing, write_text
from qbench.modelfiles import refuse_overwriting, weight_files


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    goal = tmp_path / "deep" / "a.txt"
    write_text(goal, "old")
    with pytest.raises(ZeroDivisionError), replacing(goal) as temporary:
        temporary.write_text("half")
        raise ZeroDivisionError
    assert goal.read_text() == "old" and list(goal.parent.iterdir()) == [goal]


def test_what_is_no_file_is_not_replaced(tmp_path: Path) -> None:
    """A rename onto /dev/null, by root, would leave a machine without it."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for goal, told in ((pipe, "no ordinary file"), (tmp_path, "is a folder")):
        with pytest.raises(InputError, match=told):
            write_text(goal, "x")
    assert pipe.is_fifo() and list(tmp_path.iterdir()) == [pipe]


def test_a_full_disk_is_told_with_the_file(tmp_path: Path) -> None:
    """The error of a write has no file name."""
    with pytest.raises(InputError, match=r"goal\.onnx cannot be written: No space left on device; make room .*-o"), replacing(tmp_path / "goal.onnx"):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    assert not list(tmp_path.iterdir())


def test_a_folder_that_cannot_be_made_is_told_with_the_file_in_the_way_and_the_option(tmp_path: Path) -> None:
    (tmp_path / "a.txt").touch()
    with pytest.raises(InputError, match=r"the folder .*/a\.txt/b/c cannot be made: .*/a\.txt is a file; name another place \(-o\)"):
        write_text(tmp_path / "a.txt" / "b" / "c" / "d.html", "x")
    with pytest.raises(InputError, match=r"File name too long; name another place \(--storage\)"):
        make_folder(tmp_path / ("x" * 300), "--storage")


def test_a_models_external_weights_are_not_overwritten_by_any_output(tmp_path: Path) -> None:
    proto = conv_relu()
    onnx.save(proto, tmp_path / "net.onnx", save_as_external_data=True, location="w.bin", size_threshold=0)
    assert weight_files(tmp_path / "net.onnx") == [(tmp_path / "w.bin").resolve()]
    with pytest.raises(InputError, match=r"holds weights of .*net\.onnx"):
        refuse_overwriting(tmp_path / "w.bin", model=tmp_path / "net.onnx")
    refuse_overwriting(tmp_path / "other.bin", model=tmp_path / "net.onnx")
    (tmp_path / "broken.onnx").write_bytes(b"\xff" * 40)
    assert weight_files(tmp_path / "broken.onnx") == [] == weight_files(tmp_path / "w.bin")


def test_weights_inside_a_body_or_an_attribute_are_the_models_too(tmp_path: Path) -> None:
    value = onnx.numpy_helper.from_array(np.arange(4, dtype=np.float32), "held")
    (tmp_path / "w.bin").write_bytes(value.raw_data)
    onnx.external_data_helper.set_external_data(value, "w.bin")
    value.ClearField("raw_data")
    made = onnx.helper.make_node("Constant", [], ["y"], "made", value=value)
    out = onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [4])
    branch = onnx.helper.make_graph([made], "branch", [], [out])
    choice = onnx.helper.make_node("If", ["c"], ["y"], "choice", then_branch=branch, else_branch=branch)
    graph = onnx.helper.make_graph([choice], "g", [onnx.helper.make_tensor_value_info("c", onnx.TensorProto.BOOL, [])], [out])
    (tmp_path / "net.model").write_bytes(onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)]).SerializeToString())
    assert weight_files(tmp_path / "net.model") == [(tmp_path / "w.bin").resolve()]
