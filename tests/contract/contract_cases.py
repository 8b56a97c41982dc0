"""A network of inputs alone, and contracts of many kinds."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from qbench import targets
from qbench.affine import Affine, Scheme
from qbench.contract import Contract, contract_of
from qbench.data.preprocessing import Preprocessing
from qbench.network import Network, TensorSpec

IMAGENET = Preprocessing(mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225))
CODES = Affine(0.02, 3, Scheme(8, True, False))


def network(shape: tuple[int, ...], kind: str = "float32", name: str = "x") -> Network:
    return Network("net", "key", (name,), (), {name: TensorSpec(name, shape, kind)}, (), (), ())


def contract(shape: tuple[int, ...] = (1, 3, 8, 10), kind: str = "float32", target: str = "rk3588", **options: Any) -> Contract:
    return contract_of(network(shape, kind), targets.load(target), **options)[0]


@st.composite
def contracts(draw: st.DrawFn) -> Contract:
    """Pictures and other tensors, all handovers, ordinary calls and zero copy with base alignment, row alignment, or both."""
    target = draw(st.sampled_from(["rk3588", "xdna", "mlu270", "article", "host"]))
    zero_copy = draw(st.booleans())
    options: dict[str, Any] = {"zero_copy": zero_copy, "width_align": draw(st.sampled_from([None, 4, 16])) if zero_copy else None}
    if draw(st.booleans()):
        height, width = draw(st.integers(5, 9)), draw(st.integers(10, 21))
        options["preprocessing"] = draw(st.sampled_from([None, IMAGENET]))
        handover = draw(st.sampled_from(["model", "pixels", "codes"]))
        codes = {"x": CODES} if handover == "codes" else None
        return contract((1, 3, height, width), target=target, handover=handover, codes=codes, **options)
    shape = tuple(draw(st.lists(st.integers(2, 6), min_size=2, max_size=3)))
    return contract((1, *shape), draw(st.sampled_from(["float32", "float16", "int64", "uint8"])), target, **options)
