"""The written functions, executed. Oracle: `Preprocessing` on the same pixels, and our own check."""

from __future__ import annotations

import ast
import runpy
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from contract_cases import CODES, IMAGENET, contract, contracts
from hypothesis import given, settings
from PIL import Image

from qbench.affine import quantize
from qbench.contract import Contract
from qbench.contract_check import check
from qbench.contract_code import code_for, function_name
from qbench.errors import InputError

PIXELS = np.random.default_rng(0).integers(0, 256, (8, 10, 3), dtype=np.uint8)


def run(c: Contract, given: Any) -> Any:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "written.py"
        path.write_text(code_for([c]))
        return runpy.run_path(str(path))[function_name(c)](given)


@settings(max_examples=60)
@given(contracts())
def test_what_a_written_function_makes_keeps_the_contract(c: Contract) -> None:
    pictures = c.layout and (c.handover == "pixels" or c.preprocessing)
    axes = (2, 3) if c.layout == "NCHW" else (1, 2)
    made = run(c, np.resize(PIXELS, (c.shape[axes[0]], c.shape[axes[1]], 3)) if pictures else np.zeros(c.shape[1:], "float32" if c.scale else c.dtype))
    assert check(made, c) == []


@pytest.mark.parametrize("how", [IMAGENET, replace(IMAGENET, colour="bgr"), replace(IMAGENET, scale=1.0, mean=(127.5,), std=(127.5,)),
                                 replace(IMAGENET, fit="crop", size=(8, 10))])
@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
def test_values_are_those_of_the_pipeline_bit_for_bit(how: Any, layout: str, tmp_path: Path) -> None:
    way = replace(how, layout=layout, size=(8, 10))
    c = contract((1, 3, 8, 10) if layout == "nchw" else (1, 8, 10, 3), preprocessing=way)
    for size in ((10, 8), (33, 21)):
        Image.fromarray(np.random.default_rng(1).integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)).save(tmp_path / "p.png")
        assert np.array_equal(run(c, tmp_path / "p.png")[0], way.open(tmp_path / "p.png"))


def test_grey_pictures_and_turned_ones(tmp_path: Path) -> None:
    way = replace(IMAGENET, colour="gray", mean=(0.5,), std=(0.25,), size=(8, 10))
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.fromarray(PIXELS).save(tmp_path / "turned.jpg", exif=exif)
    made = run(contract((1, 1, 8, 10), preprocessing=way), tmp_path / "turned.jpg")
    assert np.array_equal(made[0], way.open(tmp_path / "turned.jpg"))


def test_pixels_are_handed_over_as_they_are() -> None:
    c = contract(handover="pixels", preprocessing=replace(IMAGENET, colour="bgr"), zero_copy=True, width_align=16)
    made = run(c, PIXELS)
    assert np.array_equal(made[0], PIXELS[..., ::-1]) and made.strides == (384, 48, 3, 1)


def test_codes_are_those_of_the_affine_map() -> None:
    c = contract(handover="codes", codes={"x": CODES}, preprocessing=IMAGENET)
    assert np.array_equal(run(c, PIXELS)[0], quantize(IMAGENET.pixels(PIXELS), CODES))


@pytest.mark.parametrize(("c", "thing", "words"), [
    (contract(preprocessing=IMAGENET), PIXELS.astype(np.float32), "needed uint8"),
    (contract((1, 7)), np.zeros((1, 8), np.float32), "shape"),
    (contract((1, 7)), np.full((1, 7), np.nan, np.float32), "NaN or infinity"),
    (contract((1, 7), "uint8"), np.full((1, 7), 0.5), "uint8 does not hold"),
])
def test_written_functions_refuse_what_does_not_fit(c: Contract, thing: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        run(c, thing)


def test_names_of_inputs_become_names_of_functions() -> None:
    odd = replace(contract(), name='images:0"\n')
    assert function_name(odd) == "prepare_images_0__"
    ast.parse(code_for([odd, replace(odd, name="two")]))
    with pytest.raises(InputError, match="would share a function name"):
        code_for([odd, replace(odd, name="images:0__")])
