"""Tensors that share bytes: only where the compiler may, the operand dies, the layout keeps the part in one piece, and precisions agree."""

from __future__ import annotations

import pytest
from cost_networks import conv, network
from memory_networks import plain

from qbench.cost.sharing import DEFAULT, contiguous, lifetimes, shared
from qbench.network import Kernel, Network


def share(net: Network, ways: tuple[str, ...] = DEFAULT, codes: dict[str, int] | None = None, readers: dict[str, int] | None = None) -> dict[str, str]:
    sizes = {t: s.elements for t, s in net.tensors.items()}
    found, aliases = shared(net, sizes, dict.fromkeys(net.tensors, 0) | (codes or {}), dict.fromkeys(net.kernel, 0) | (readers or {}), ways)
    assert {b.name for b in found} | set(aliases) == set(net.tensors)
    return aliases


def chain(*kernels: Kernel, shapes: dict[str, tuple[int, ...]] | None = None, outputs: tuple[str, ...] = ()) -> Network:
    made = [t for k in kernels for t in (*k.inputs, *k.outputs)]
    return network(kernels, dict.fromkeys(made, (1, 16, 4, 4)) | (shapes or {}), ("x",), outputs or (made[-1],))


def test_lifetimes_reach_from_the_writer_to_the_last_reader_and_outputs_stay() -> None:
    net = chain(conv("k0", "x", "a", 16, 16, 4), plain("k1", "Flatten", "reshape", ("a",), ("b",)), plain("k2", "Sigmoid", "activation", ("b",), ("c",)),
                shapes={"b": (1, 256), "c": (1, 256)}, outputs=("a", "c"))
    assert lifetimes(net) == {"x": (0, 0), "a": (0, 2), "b": (1, 2), "c": (2, 2)}


def test_a_chain_of_maps_and_views_is_one_buffer_but_for_the_graph_input() -> None:
    net = chain(plain("r", "Relu", "activation", ("x",), ("a",)), plain("f", "Flatten", "reshape", ("a",), ("b",)),
                plain("s", "Sigmoid", "activation", ("b",), ("c",)), shapes={"b": (1, 256), "c": (1, 256)})
    assert share(net) == {"b": "a", "c": "a"}
    assert share(net, (*DEFAULT, "input")) == {"a": "x", "b": "x", "c": "x"}
    assert share(net, ("view",)) == {"b": "a"}
    assert share(net, ()) == {}


def test_what_is_read_later_is_not_overwritten_not_even_through_a_view() -> None:
    later = chain(conv("k", "x", "a", 16, 16, 4), plain("r", "Relu", "activation", ("a",), ("b",)), plain("s", "Add", "eltwise", ("a", "b"), ("c",)))
    assert share(later) == {"c": "a"}
    viewed = chain(conv("k", "x", "a", 16, 16, 4), plain("v", "Flatten", "reshape", ("a",), ("v",)), plain("r", "Relu", "activation", ("a",), ("b",)),
                   shapes={"v": (1, 256)}, outputs=("v", "b"))
    assert share(viewed) == {"v": "a"}


@pytest.mark.parametrize(("part", "whole", "same"), [
    ((1, 8, 4, 4), (1, 16, 4, 4), True), ((2, 8, 4, 4), (2, 16, 4, 4), False), ((1, 16, 2, 4), (1, 16, 4, 4), False),
    ((1, 1, 2, 4), (1, 1, 4, 4), True), ((1, 4), (1, 16), True), ((4,), (1, 16), False), ((1, 16), (1, 16), False)])
def test_a_part_lies_in_one_piece_when_only_ones_come_before_its_axis(part: tuple[int, ...], whole: tuple[int, ...], same: bool) -> None:
    assert contiguous(part, whole) is same


def test_parts_of_a_concat_are_written_into_it_and_parts_of_a_split_stay_where_they_are() -> None:
    net = chain(conv("k", "x", "a", 16, 16, 4), conv("l", "x", "b", 16, 16, 4), plain("c", "Concat", "concat", ("a", "b"), ("ab",)),
                plain("s", "Split", "split", ("ab",), ("p", "q")), conv("m", "p", "y", 16, 16, 4), shapes={"ab": (1, 32, 4, 4)}, outputs=("q", "y"))
    assert share(net) == {"a": "ab", "b": "ab", "p": "ab", "q": "ab"}
    batch = {t: (2, *s.shape[1:]) for t, s in net.tensors.items()}
    assert share(chain(*net.kernels, shapes=batch, outputs=("q", "y"))) == {}


def test_a_part_of_two_concats_is_written_into_one() -> None:
    net = chain(conv("k", "x", "a", 16, 16, 4), conv("l", "x", "b", 16, 16, 4), plain("c", "Concat", "concat", ("a", "b"), ("ab",)),
                plain("d", "Concat", "concat", ("b", "a"), ("ba",)), shapes={"ab": (1, 32, 4, 4), "ba": (1, 32, 4, 4)}, outputs=("ab", "ba"))
    assert share(net) == {"a": "ab", "b": "ab"}


def test_other_precisions_and_padding_between_parts_keep_tensors_apart() -> None:
    net = chain(conv("k", "x", "a", 16, 16, 4), plain("r", "Relu", "activation", ("a",), ("b",)))
    assert share(net, codes={"b": 1}, readers={"r": 1}) == {}
    joined = chain(conv("k", "x", "a", 16, 16, 4), conv("l", "x", "b", 16, 16, 4), plain("c", "Concat", "concat", ("a", "b"), ("ab",)))
    assert share(joined) == {}                                    # the sizes do not add up: one of them is padded
