"""The container: merging shards, content key, file."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from test_sketch import same
from watched_models import InMemory, conv_relu

from qbench.errors import DataError, UnknownName
from qbench.statistics import Statistics, collect, content_key, merge

RNG = np.random.default_rng(5)
X = RNG.normal(size=(7, 3, 6, 8)).astype(np.float32)


def shard(first: int, last: int, key: str, tensors: tuple[str, ...] = ("x", "c", "y")) -> Statistics:
    return collect(conv_relu(), tensors, InMemory({"x": X[first:last]}, key=key), threads=1)


def equal(a: Statistics, b: Statistics) -> bool:
    return (a.sources, a.key, list(a), dict(a.absent)) == (b.sources, b.key, list(b), dict(b.absent)) and all(same(a[t], b[t]) for t in a)


def test_merging_shards_equals_one_pass_in_every_order() -> None:
    a, b, c = shard(0, 3, "a"), shard(3, 4, "b"), shard(4, 7, "c")
    left = merge(merge(a, b), c)
    assert equal(left, merge(c, merge(b, a))) and equal(left, merge(b, merge(c, a)))
    whole = shard(0, 7, "abc")
    for name in whole:
        assert same(left[name], whole[name])            # sources sort as a, b, c: sample indices agree too
    assert left.samples == 7 and [s.key for s in left.sources] == ["a", "b", "c"]


def test_merging_refuses_what_does_not_belong_together() -> None:
    a = shard(0, 3, "a")
    with pytest.raises(DataError, match="data set 'numbers': its values would count twice"):
        merge(a, a)
    with pytest.raises(DataError, match="tensor 'c' was asked for in one of the two only"):
        merge(a, shard(3, 5, "b", ("x", "y")))
    with pytest.raises(DataError, match="different models"):
        merge(a, collect(conv_relu(5), ("x", "c", "y"), InMemory({"x": X[3:]}, key="b"), threads=1))
    with pytest.raises(DataError, match="NaN policy 'stop', the other 'ignore'"):
        merge(a, collect(conv_relu(), ("x", "c", "y"), InMemory({"x": X[3:]}, key="b"), policy="ignore", threads=1))


def test_a_saved_file_gives_the_same_answers(tmp_path: Path) -> None:
    whole = merge(shard(0, 3, "a"), shard(3, 7, "b"))
    path = tmp_path / "deep" / "s.npz"
    whole.save(path)
    again = Statistics.load(path)
    assert equal(again, whole) and again.policy == whole.policy
    assert [p.name for p in path.parent.iterdir()] == ["s.npz"]
    with np.load(path, allow_pickle=False) as bodies:
        assert all(bodies[k].dtype != object for k in bodies)


def test_the_key_can_be_known_before_the_pass() -> None:
    found = shard(0, 3, "a")
    assert found.key == content_key(found.model_key, ["a"], ["y", "x", "c"], "stop")
    cut = collect(conv_relu(), ("x", "c", "y"), InMemory({"x": X[:3]}, key="a"), limit=2, threads=1)
    assert cut.key != found.key and cut.samples == 2
    assert len({content_key("m", ["a"], ["x"], p) for p in ("stop", "ignore")} | {content_key("m", ["b"], ["x"], "stop")}) == 3


@pytest.mark.parametrize("content", [b"", b"no zip", None])
def test_a_file_of_another_kind_is_refused_by_name(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "s.npz"
    if content is None:
        with open(path, "wb") as file:
            np.savez(file, x=np.zeros(3))
    else:
        path.write_bytes(content)
    with pytest.raises(DataError, match=r"s\.npz: .*(not a statistics file|cannot be read)"):
        Statistics.load(path)
    with pytest.raises(DataError, match=r"gone\.npz: cannot be read"):
        Statistics.load(tmp_path / "gone.npz")


def test_an_unknown_tensor_is_refused_by_name() -> None:
    with pytest.raises(UnknownName, match="no statistics of tensor 'z'"):
        shard(0, 3, "a")["z"]
