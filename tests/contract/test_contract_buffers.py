"""Aligned and padded memory, and addresses. Oracle: numpy's own flags, strides and `shares_memory`."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from qbench.buffers import address_of, aligned_empty, pad_rows, shares_memory, strip_rows
from qbench.errors import InputError

ALIGNMENTS = st.sampled_from([1, 2, 16, 64, 128, 4096])
KINDS = st.sampled_from(["uint8", "int8", "float16", "float32", "int64"])


@given(st.lists(st.integers(1, 7), min_size=0, max_size=5), KINDS, ALIGNMENTS)
def test_aligned_arrays_are_aligned_contiguous_and_writable(shape: list[int], kind: str, align: int) -> None:
    made = aligned_empty(tuple(shape), kind, align)
    assert made.ctypes.data % align == 0 and made.flags.c_contiguous and made.flags.writeable
    assert made.shape == tuple(shape) and made.dtype == np.dtype(kind)


@given(st.tuples(*[st.integers(1, 9)] * 4), st.integers(1, 20), st.sampled_from(["NHWC", "NCHW"]), KINDS, ALIGNMENTS)
def test_padding_and_stripping_give_the_same_picture_back(shape: tuple[int, ...], align: int, layout: str, kind: str, base: int) -> None:
    x = np.random.default_rng(0).integers(0, 100, shape).astype(kind)
    padded = pad_rows(x, align, layout, base)
    axis = layout.index("W")
    assert padded.shape[axis] % align == 0 and 0 <= padded.shape[axis] - shape[axis] < align and padded.ctypes.data % base == 0
    back = strip_rows(padded, shape[axis], layout)
    assert np.array_equal(back, x) and np.shares_memory(back, padded)
    assert np.count_nonzero(padded) == np.count_nonzero(x)


def test_the_buffer_of_bug_case_b26() -> None:
    padded = pad_rows(np.ones((1, 48, 100, 3), np.uint8), 16)
    assert padded.shape == (1, 48, 112, 3) and padded.strides[1] == 336 and padded.nbytes == 16_128


def test_an_address_is_that_of_the_values_and_not_of_the_object() -> None:
    x = np.zeros(8, np.float32)
    assert address_of(x) == x.__array_interface__["data"][0] != id(x)
    assert address_of(x[3:]) == address_of(x) + 12


@pytest.mark.parametrize("cut", [np.s_[:], np.s_[2:5], np.s_[::-1], np.s_[::3]])
def test_zero_copy_is_seen_by_address(cut: slice) -> None:
    x = np.arange(24, dtype=np.float32).reshape(8, 3)
    assert shares_memory(x[cut], x) and not shares_memory(x[cut].copy(), x)
    assert shares_memory(x.data, x)


def test_zero_copy_of_torch_tensors() -> None:
    import torch

    x = np.zeros((4, 3), np.float32)
    t = torch.from_numpy(x)
    assert shares_memory(t, x) and shares_memory(x, t[1:].reshape(-1).new_tensor(0.0).expand(1)) is False
    assert shares_memory(t[2:], t) and not shares_memory(t.clone(), t)


@pytest.mark.parametrize(("call", "words"), [
    (lambda: aligned_empty((3,), "uint8", 24), "power of two"),
    (lambda: pad_rows(np.zeros((2, 3)), 16), "expected four axes"),
    (lambda: pad_rows(np.zeros((1, 2, 3, 4)), 0), "expected 1 or more"),
    (lambda: strip_rows(np.zeros((1, 2, 3, 4)), 4), "expected 1 to 3"),
    (lambda: strip_rows(np.zeros((1, 2, 3, 4)), 4, "HWC"), "layout 'HWC'"),
])
def test_what_cannot_be_done_says_why(call: object, words: str) -> None:
    assert callable(call)
    with pytest.raises(InputError, match=words):
        call()
