"""Contracts against real arrays. A buffer of our helper keeps its contract; one broken clause is reported as that clause and no other."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from contract_cases import CODES, IMAGENET, contract, contracts, network
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from PIL import Image

from qbench import targets
from qbench.buffers import aligned_empty, pad_rows
from qbench.contract import CLAUSES, Breach, Contract, Said, contract_of, empty_for, fitted, value_range
from qbench.contract_check import check, check_file
from qbench.errors import InputError

Break = Callable[[Any, Contract], tuple[Any, Said]]


def clauses(found: list[Breach]) -> list[str]:
    return [b.clause for b in found]


def valued(c: Contract) -> Any:
    """A buffer that keeps `c`, filled with values over its range."""
    x = empty_for(c)
    low, high = (c.low, c.high) if c.low is not None and c.high is not None else (-1.0, 1.0) if np.dtype(c.dtype).kind == "f" else (0, 50)
    x[...] = np.linspace(low, high, x.size).reshape(x.shape).astype(c.dtype)
    return x


@given(contracts())
def test_a_buffer_of_our_helper_keeps_the_contract(c: Contract) -> None:
    x = valued(c)
    assert check(x, c) == []
    assert check(empty_for(c), c) == []
    assert check(fitted(np.array(x), c), c) == []
    if c.padded_shape != c.shape:
        assert check(pad_rows(np.array(x), c.width_align_elements, c.layout, c.base_align_bytes), c) == []


def _placed(x: Any, c: Contract, offset: int = 0) -> Any:
    """The same values, dense, at an address that is `offset` bytes past an alignment."""
    room = aligned_empty((x.nbytes + 8192,), np.uint8, 4096)
    y = room[offset:offset + x.nbytes].view(x.dtype).reshape(x.shape)
    y[...] = x
    return y


def _dtype(x: Any, c: Contract) -> tuple[Any, Said]:
    wider = {"float32": "float64", "float16": "float64", "uint8": "int16", "int8": "int16", "int64": "int32"}[c.dtype]
    made = empty_for(replace(c, dtype=wider))
    made[...] = x
    return made, Said()


def _batch(x: Any, c: Contract) -> tuple[Any, Said]:
    return x[0], Said()


def _size(x: Any, c: Contract) -> tuple[Any, Said]:
    return _placed(np.concatenate([x, x, x], axis=-1), c), Said()


def _layout(x: Any, c: Contract) -> tuple[Any, Said]:
    assume(c.layout != "" and len(set(c.shape[1:])) == 3)
    return _placed(np.ascontiguousarray(x.transpose((0, 2, 3, 1) if c.layout == "NCHW" else (0, 3, 1, 2))), c), Said()


def _sliced(x: Any, c: Contract) -> tuple[Any, Said]:
    wide = _placed(np.repeat(x, 2, axis=-1), c)
    return wide[..., ::2], Said()


def _backwards(x: Any, c: Contract) -> tuple[Any, Said]:
    assume(c.base_align_bytes == 1)
    return np.ascontiguousarray(x[..., ::-1])[..., ::-1], Said()


def _packed(x: Any, c: Contract) -> tuple[Any, Said]:
    assume(c.padded_shape != c.shape)
    return _placed(np.ascontiguousarray(x), c), Said()


def _alignment(x: Any, c: Contract) -> tuple[Any, Said]:
    assume(c.base_align_bytes > 1)
    room = aligned_empty((c.buffer_bytes + 8192,), np.uint8, 4096)[c.itemsize:c.itemsize + c.buffer_bytes]
    whole = room.view(c.dtype).reshape(c.padded_shape)
    part = whole[tuple(slice(n) for n in c.shape)]
    part[...] = x
    return part, Said()


def _name(x: Any, c: Contract) -> tuple[Any, Said]:
    return x, Said(name="images")


def _order(x: Any, c: Contract) -> tuple[Any, Said]:
    assume(c.channel_order == "rgb")
    return x, Said(channel_order="bgr")


def _scale(x: Any, c: Contract) -> tuple[Any, Said]:
    return x, Said(scale=0.5)


def _owner(x: Any, c: Contract) -> tuple[Any, Said]:
    assume(c.normalised_by != "")
    return x, Said(normalised=c.normalised_by != "host")


def _nan(x: Any, c: Contract) -> tuple[Any, Said]:
    assume(np.dtype(c.dtype).kind == "f")
    x.flat[0] = np.nan
    return x, Said()


def _range(x: Any, c: Contract) -> tuple[Any, Said]:
    assume(c.low is not None and c.high is not None and np.dtype(c.dtype).kind == "f")
    x[...] = 99.0
    return x, Said()


BREAKS: dict[str, tuple[str, Break]] = {
    "dtype": ("dtype", _dtype), "batch": ("shape", _batch), "size": ("shape", _size), "layout": ("layout", _layout), "slice": ("strides", _sliced),
    "backwards": ("strides", _backwards), "packed": ("strides", _packed), "alignment": ("alignment", _alignment), "name": ("name", _name),
    "order": ("channel order", _order), "scale": ("quantization", _scale), "owner": ("normalisation", _owner), "nan": ("finite", _nan), "range": ("range", _range),
}


@pytest.mark.parametrize("name", BREAKS)
@settings(max_examples=40, suppress_health_check=[HealthCheck.filter_too_much])
@given(c=contracts())
def test_a_single_broken_clause_is_reported_as_that_clause_and_no_other(name: str, c: Contract) -> None:
    clause, spoil = BREAKS[name]
    x, said = spoil(valued(c), c)
    found = check(x, c, said)
    assert clauses(found) == [clause] and found[0].level == "broken", (found, c)
    assert found[0].found and found[0].needed and found[0].cure and found[0].cost


@given(contracts(), st.data())
def test_torch_tensors_are_read_as_numpy_arrays_are(c: Contract, data: st.DataObject) -> None:
    import torch

    assume(c.width_align_elements == 1)
    x = valued(c)
    t = torch.from_numpy(x)
    assert check(t, c) == []
    assert clauses(check(t[0], c)) == ["shape"]
    if c.layout == "NCHW" and c.base_align_bytes == 1:
        assert clauses(check(t.to(memory_format=torch.channels_last), c)) == ["strides"]
        assert "channels_last" in check(t.to(memory_format=torch.channels_last), c)[0].found


def test_torch_types_devices_and_gradients() -> None:
    import torch

    c = contract()
    t = torch.zeros(1, 3, 8, 10)
    assert clauses(check(t.bfloat16(), c)) == ["dtype"] and "bfloat16" in check(t.bfloat16(), c)[0].found
    assert clauses(check(t.requires_grad_(), c)) == ["device"]
    narrow = torch.zeros(1, 3, 8, 20).narrow(3, 2, 10)
    assert clauses(check(narrow, c)) == ["strides"]
    meta = check(torch.zeros(1, 3, 8, 10).permute(0, 2, 3, 1), c)
    assert clauses(meta) == ["layout"] and "free" in meta[0].cure and meta[0].bytes_moved == 0


def test_bug_case_b26_names_both_numbers() -> None:
    c = contract((1, 48, 100, 3), "uint8", zero_copy=True, width_align=16)
    assert (c.layout, c.padded_shape[2], c.row_bytes, c.buffer_bytes) == ("NHWC", 112, 336, 16_128)
    packed = np.zeros((1, 48, 100, 3), np.uint8)
    for thing in (packed, packed.tobytes(), packed.reshape(-1).data):
        (found,) = check(thing, c)
        assert found.clause == "strides" and "300" in found.found and "14,400" in found.found and "336" in found.needed and "16,128" in found.needed
        assert found.bytes_moved == 14_400 + 16_128 and "not validated" in found.cost
    assert check(pad_rows(packed, 16), c) == check(pad_rows(packed, 16).tobytes(), c) == []
    assert check(packed, contract((1, 48, 100, 3), "uint8")) == []      # the ordinary call has no rule about rows


def test_a_foreign_batch_stride_is_advice_only() -> None:
    x = np.zeros((2, 3, 8, 10), np.float32)[::2]
    (found,) = check(x, contract())
    assert found.level == "advice" and found.clause == "strides" and "no public source" in found.cost


@pytest.mark.parametrize(("thing", "words"), [([1.0], "list"), ("x.npy", "str"), (np.array(["a"]), "array of <U1"), (None, "NoneType")])
def test_what_is_no_array_is_said(thing: object, words: str) -> None:
    (found,) = check(thing, contract())
    assert found.clause == "kind" and found.found == words


def test_a_buffer_with_gaps_is_said() -> None:
    (found,) = check(np.zeros((1, 3, 8, 20), np.float32)[..., ::2].data, contract())
    assert found.clause == "strides" and "gaps" in found.found


def test_swapped_bytes_are_another_type() -> None:
    (found,) = check(np.zeros((1, 3, 8, 10), ">f4"), contract())
    assert found.clause == "dtype" and "swapped" in found.found


def test_fortran_order_and_exchanged_axes() -> None:
    x = np.zeros((1, 3, 8, 10), np.float32)
    assert clauses(check(np.asfortranarray(x), contract())) == ["strides"]
    (found,) = check(np.zeros((1, 3, 10, 8), np.float32).swapaxes(2, 3), contract())
    assert found.clause == "strides" and "exchanged" in found.found
    (found,) = check(np.broadcast_to(np.zeros((1, 3, 8, 1), np.float32), (1, 3, 8, 10)), contract())
    assert "broadcast" in found.found


def test_unnormalised_pixels_are_a_breach_with_a_pipeline_and_advice_without() -> None:
    x = np.full((1, 3, 8, 10), 200.0, np.float32)
    assert [(b.clause, b.level) for b in check(x, contract())] == [("range", "advice")]
    (found,) = check(x, contract(preprocessing=IMAGENET))
    assert found.level == "broken" and "normalise" in found.cure and "0.485" in found.cure


def test_the_range_is_that_of_every_pixel_value() -> None:
    values = np.arange(256, dtype=np.uint8).reshape(16, 16, 1).repeat(3, 2)
    made = IMAGENET.pixels(values)
    assert value_range(IMAGENET) == pytest.approx((made.min(), made.max()), abs=1e-6)


def test_each_cost_is_bytes_over_the_targets_own_constant() -> None:
    c = contract()
    (found,) = check(np.zeros((1, 3, 8, 10)), c)
    assert found.bytes_moved == 240 * (8 + 4)
    assert found.ms == pytest.approx(found.bytes_moved / targets.load("rk3588").cost["cpu_bytes_per_s"] * 1e3)
    (found,) = check(np.zeros((1, 3, 8, 10)), replace(c, copy_bytes_per_s=None))
    assert found.ms is None and "no constant" in found.cost


@pytest.mark.parametrize(("options", "words"), [
    ({"handover": "dma"}, "known: model, pixels, codes"),
    ({"kind": "bfloat16"}, "numpy arrays cannot hold"),
    ({"handover": "codes"}, "not known; give the plan"),
    ({"shape": (1, 7), "handover": "pixels"}, "no input that is a picture"),
    ({"preprocessing": replace(IMAGENET, size=(4, 4))}, "8x10 pixels, the preprocessing says size=4x4"),
    ({"preprocessing": replace(IMAGENET, layout="nhwc")}, "is NCHW, the preprocessing says layout=nhwc"),
    ({"shape": (1, 1, 8, 10), "preprocessing": IMAGENET}, "has 1 channels"),
])
def test_contracts_that_cannot_be_say_why(options: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        contract(**options)


def test_codes_carry_their_scale_and_range() -> None:
    c = contract(handover="codes", codes={"x": CODES})
    assert (c.dtype, c.scale, c.zero_point, c.low, c.high) == ("int8", 0.02, 3, -128.0, 127.0)
    assert check(np.zeros(c.shape, np.int8), c, Said(scale=0.02, zero_point=3)) == []
    assert clauses(check(np.zeros(c.shape, np.int8), c, Said(zero_point=0))) == ["quantization"]


def test_alignments_come_from_the_target_file_and_only_for_zero_copy() -> None:
    xdna = targets.load("xdna")
    spec = network((1, 3, 8, 10))
    assert contract_of(spec, xdna)[0].base_align_bytes == 1
    made = contract_of(spec, xdna, zero_copy=True)[0]
    assert made.base_align_bytes == 4096 and "xdna-driver" in made.sources["alignment"]
    assert contract(zero_copy=True).width_align_elements == 16 and "rknn_query" in contract(zero_copy=True).sources["strides"]
    assert "unverified" in contract(target="article", zero_copy=True).sources["alignment"]


def test_files(tmp_path: Path) -> None:
    c, x = contract(), np.random.default_rng(0).normal(size=(1, 3, 8, 10)).astype(np.float32)
    np.save(tmp_path / "x.npy", x)
    np.savez(tmp_path / "x.npz", x=x, other=x[0])
    np.save(tmp_path / "f.npy", np.asfortranarray(x))
    x.tofile(tmp_path / "x.raw")
    x.astype(np.float16).tofile(tmp_path / "half.raw")
    x[..., :3].tofile(tmp_path / "short.raw")
    assert check(tmp_path / "x.npy", c) == check(tmp_path / "x.npz", c) == check(tmp_path / "x.raw", c) == []
    assert clauses(check_file(tmp_path / "x.npz", c, member="other")) == ["shape"]
    assert clauses(check(tmp_path / "f.npy", c)) == ["strides"]
    assert clauses(check(tmp_path / "half.raw", c)) == ["dtype"]
    assert clauses(check(tmp_path / "short.raw", c)) == ["shape"] and "288 bytes" in check(tmp_path / "short.raw", c)[0].found
    wide = contract((1, 8, 10, 3), "uint8", zero_copy=True, width_align=16)
    np.zeros((8, 24, 3), np.uint8).tofile(tmp_path / "wide.raw")
    (found,) = check(tmp_path / "wide.raw", wide)
    assert found.clause == "strides" and "rows of 72 bytes" in found.found and "rows of 48 bytes" in found.needed
    with pytest.raises(InputError, match=r"holds x, other, but not 'y'"):
        check_file(tmp_path / "x.npz", replace(c, name="y"))
    (tmp_path / "bad.npy").write_bytes(b"nothing")
    with pytest.raises(InputError, match="cannot be read"):
        check(tmp_path / "bad.npy", c)


def test_a_file_has_no_address(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.zeros((1, 3, 8, 10), np.float32))
    np.zeros((1, 3, 8, 10), np.float32).tofile(tmp_path / "x.raw")
    c = contract(target="xdna", zero_copy=True)
    assert check(tmp_path / "x.npy", c) == check(tmp_path / "x.raw", c) == []


def test_pictures_say_what_is_left_to_do(tmp_path: Path) -> None:
    c = contract(handover="pixels", preprocessing=IMAGENET)
    Image.new("RGB", (10, 8)).save(tmp_path / "good.png")
    Image.new("RGBA", (10, 8)).save(tmp_path / "alpha.png")
    Image.new("RGB", (12, 8)).save(tmp_path / "wide.png")
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.new("RGB", (10, 8)).save(tmp_path / "turned.jpg", exif=exif)
    (tmp_path / "broken.png").write_bytes(b"no picture")
    assert check(tmp_path / "good.png", c) == []
    assert clauses(check(tmp_path / "alpha.png", c)) == ["channel order"]
    assert clauses(check(tmp_path / "wide.png", c)) == ["shape"]
    assert clauses(check(tmp_path / "turned.jpg", c)) == ["layout"]
    assert clauses(check(tmp_path / "good.png", contract())) == ["dtype"]
    assert clauses(check(tmp_path / "good.png", contract((1, 7)))) == ["kind"]
    with pytest.raises(InputError, match="cannot be read"):
        check(tmp_path / "broken.png", c)


def test_every_breach_uses_a_known_clause_and_reads_as_a_sentence() -> None:
    found = check(np.zeros((8, 10, 3), np.uint8), contract(preprocessing=IMAGENET), Said("y", "bgr", 0.5, 1, False))
    assert [CLAUSES.index(b.clause) for b in found] == sorted(CLAUSES.index(b.clause) for b in found)
    assert {"name", "channel order", "quantization", "normalisation", "shape", "layout", "dtype"} <= set(clauses(found))
    assert str(found[0]) == "name: found 'y', needed 'x'. Cure: feed it as 'x'. Left as it is: the runtime refuses it, or reads beyond it"
