"""AIMET encodings. Golden: files that aimet-onnx 2.42.0 (2026) wrote for one small network, some of their tensors; "mixed" was loaded by it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from export_cases import job
from hypothesis import given
from hypothesis import strategies as st

from qbench.errors import InputError
from qbench.export import StoredTensor
from qbench.targets import load
from qbench.targets.exporters.aimet import VERSIONS, Entry, encodings, entries, read_encodings

GOLDEN = json.loads((Path(__file__).parent / "recorded" / "aimet_encodings.json").read_text(encoding="utf-8"))
SCHEMES = {str(p.precision): p.scheme for p in load("hexagon-8gen3").precisions if p.scheme is not None}
BITS = {"uint8": 8, "uint16": 16, "int8": 8}


def sections(body: dict[str, Any]) -> dict[str, Any]:
    return {k: {e["name"]: e for e in v} if isinstance(v, list) else v for k, v in body.items() if k.endswith("encodings")}


def test_what_aimet_wrote_as_2_0_0_becomes_what_it_wrote_as_1_0_0() -> None:
    made = sections(encodings(read_encodings(GOLDEN["2.0.0"]), "1.0.0"))
    assert made == sections(GOLDEN["1.0.0"])
    assert made["param_encodings"]["pw.weight"]["offset"] == [-128.0] * 16 and made["activation_encodings"]["input"]["offset"] == [-136.0]


def test_what_aimet_wrote_as_2_0_0_becomes_what_it_wrote_as_0_6_1() -> None:
    made, golden = sections(encodings(read_encodings(GOLDEN["2.0.0"]), "0.6.1")), sections(GOLDEN["0.6.1"])
    for section, tensors in golden.items():
        assert set(made[section]) == set(tensors)
        for name, channels in tensors.items():
            for mine, theirs in zip(made[section][name], channels, strict=True):
                assert {k: mine[k] for k in ("bitwidth", "dtype", "is_symmetric", "scale", "offset")} == {k: theirs[k] for k in
                                                                                                         ("bitwidth", "dtype", "is_symmetric", "scale", "offset")}
                assert np.allclose([mine["min"], mine["max"]], [theirs["min"], theirs["max"]], rtol=1e-6, atol=0.0)


@pytest.mark.parametrize("name", ["1.0.0", "2.0.0", "mixed"])
def test_reading_and_writing_changes_nothing(name: str) -> None:
    body = GOLDEN[name]
    assert sections(encodings(read_encodings(body), body["version"])) == sections(body)


@given(kind=st.sampled_from(["uint8", "uint16", "int8"]), scale=st.floats(2.0**-100, 2.0**100, width=32), step=st.integers(0, 65535), version=st.sampled_from(VERSIONS))
def test_every_version_gives_scale_and_zero_point_back_to_the_bit(kind: str, scale: float, step: int, version: str) -> None:
    low = int(np.iinfo(kind).min)
    stored = StoredTensor(kind, (scale,), (low + step % 2 ** BITS[kind],))
    (entry,) = read_encodings(json.loads(json.dumps(encodings([Entry("t", stored)], version))))
    assert entry.stored is not None
    assert (entry.stored.scale, entry.stored.steps, entry.stored.bits) == (stored.scale, stored.steps, stored.bits)


def test_a_symmetric_weight_has_offset_minus_128_and_no_zero_point() -> None:
    """BUG case B11: narrow codes, [-1.27, 0, 1.27] exact."""
    entry = Entry("w", StoredTensor("int8", (0.01,), (0,)), True)
    assert encodings([entry], "1.0.0")["param_encodings"][0]["offset"] == [-128.0]
    assert encodings([entry], "0.6.1")["param_encodings"]["w"][0]["is_symmetric"] == "True"
    assert "y_zero_point" not in encodings([entry], "2.0.0")["encodings"][0]


def test_a_plan_gives_every_tensor_an_entry() -> None:
    found = {e.name: e for e in entries(job({"b": "int16", "c": "fp16"}, schemes=SCHEMES))}
    kinds = {n: None if e.stored is None else e.stored.dtype for n, e in found.items()}
    assert kinds == {"wa": "int8", "ba": "int32", "wb": "int8", "bb": "int32", "wc": None,
                     "x": "uint8", "a1": "uint8", "b1": "uint16", "c0": None, "y": None}
    assert (found["wa"].axis, found["x"].axis) == (0, None)
    listed = encodings(found.values(), "1.0.0")
    assert next(e for e in listed["activation_encodings"] if e["name"] == "c0") == {"name": "c0", "bw": 16, "dtype": "FLOAT", "enc_type": "PER_TENSOR"}
    assert "ba" not in {e["name"] for e in listed["param_encodings"]} and "c0" not in {e["name"] for e in encodings(found.values(), "2.0.0")["encodings"]}


def test_another_version_is_refused() -> None:
    with pytest.raises(InputError, match=r"'0\.9' are not known; there are 0\.6\.1, 1\.0\.0, 2\.0\.0"):
        read_encodings({"version": "0.9"})
    with pytest.raises(InputError, match=r"no AIMET encodings of version '3'"):
        encodings([], "3")
