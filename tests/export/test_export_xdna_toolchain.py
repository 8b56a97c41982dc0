"""AMD Quark itself quantizes the same network: its conventions are those of our table."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from export_cases import three_convs
from target_cases import job_for
from toolchain_marks import toolchain

from qbench import toolchains
from qbench.export import export
from qbench.targets.exporters import make, xdna
from qbench.targets.exporters.xdna_conventions import KNOWN, Convention, convention_of

pytestmark = toolchain("quark")
OPTIONS = {"XINT8": ("xdna", {}), "A8W8": ("mlu270", {}), "A16W8": ("xdna", {u: "int16" for u in "abc"})}
WORKER = '''
import json, sys
import numpy as np
from onnxruntime.quantization import CalibrationDataReader
import quark.onnx as quark

request = json.load(open(sys.argv[1]))
stored = np.load(request["samples"])


class Reader(CalibrationDataReader):
    def __init__(self):
        self.rest = iter([{"x": stored[k]} for k in stored.files])

    def get_next(self):
        return next(self.rest, None)


quark.ModelQuantizer(getattr(quark, request["convention"] + "_QCONFIG")).quantize_model(request["model"], request["output"], Reader())
json.dump({}, open(sys.argv[2], "w"))
'''


def by_quark(name: str, folder: Path) -> Convention:
    """What Quark makes of three_convs."""
    onnx.save(three_convs(), folder / "float.onnx")
    np.savez(folder / "samples.npz", **{str(i): s["x"] for i, s in enumerate(job_for("xdna").samples)})  # type: ignore[arg-type]
    script = folder / "scripts" / "quark_reference.py"
    script.parent.mkdir()
    script.write_text(WORKER)
    request = {"convention": name, "model": "float.onnx", "output": "quark.onnx", "samples": "samples.npz"}
    toolchains.call(toolchains.need("quark"), script, request, folder=folder, seconds=300.0, what=f"AMD Quark writing {name}")
    return convention_of(ir.load(folder / "quark.onnx"))


@pytest.mark.parametrize("name", list(KNOWN))
def test_our_file_has_the_convention_of_quarks(name: str, tmp_path: Path) -> None:
    theirs = by_quark(name, tmp_path)
    assert theirs == KNOWN[name]
    schemes, precision = OPTIONS[name]
    export(job_for("xdna", precision, schemes_of=schemes), make("xdna"), tmp_path / "out")
    ours = convention_of(ir.load(tmp_path / "out" / xdna.HANDED))
    assert (ours.activation, ours.weight, ours.bias, ours.domain, ours.zero_points_are_0) == (
        theirs.activation, theirs.weight, theirs.bias, theirs.domain, theirs.zero_points_are_0)
    assert ours.power_of_two or not theirs.power_of_two
