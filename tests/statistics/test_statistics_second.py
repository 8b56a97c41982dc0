"""The second largest value of each sample: what tells a classifier's winner from the next class."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray
from test_sketch import same

from qbench.statistics import Statistics, TensorStatistics
from qbench.statistics import merge as merge_statistics
from qbench.statistics.counter import Counter
from qbench.statistics.sketch import PER_SAMPLE, merge
from qbench.statistics.store import Source

Values = NDArray[np.float32]
tables = hnp.arrays(np.float32, st.tuples(st.integers(1, 7), st.integers(2, 6)), elements=st.floats(width=32, allow_subnormal=False))


def slow_second(row: Values) -> float:
    """In plain words: the second of the finite values from the top; -inf when there are fewer than two."""
    finite = sorted((float(v) for v in row if np.isfinite(v)), reverse=True)
    return finite[1] if len(finite) > 1 else -np.inf


@given(tables)
def test_it_is_the_second_of_the_sorted_finite_values(x: Values) -> None:
    seen = TensorStatistics.of(x)
    assert seen.sample_second.dtype == np.float32
    assert seen.sample_second.tolist() == [slow_second(row) for row in x]
    assert seen.sample_second.size == seen.samples.size == seen.sample_high.size


def test_equal_maxima_are_both_first() -> None:
    seen = TensorStatistics.of(np.array([[3, 1, 3], [-1, -1, -5], [0, -0.0, -1]], np.float32))
    assert seen.sample_second.tolist() == seen.sample_high.tolist() == [3.0, -1.0, 0.0]


@given(tables, st.randoms())
@settings(max_examples=60)
def test_neither_batches_nor_the_order_of_merging_matter(x: Values, random: Any) -> None:
    cuts = sorted(random.sample(range(1, len(x)), random.randint(0, len(x) - 1)))
    parts = [TensorStatistics.of(part, first=first) for first, part in zip([0, *cuts], np.split(x, cuts), strict=True)]
    random.shuffle(parts)
    assert same(merge(parts), TensorStatistics.of(x))
    counter = Counter("")
    for first, row in sorted(enumerate(x), key=lambda _: random.random()):
        counter.update(row[None], first, 1)
    assert same(counter.statistics(), TensorStatistics.of(x))


@pytest.mark.parametrize("shape", [(4,), (4, 1), (4, 3, 2), (4, 3, 2, 2)])
def test_other_shapes_have_none(shape: tuple[int, ...]) -> None:
    assert TensorStatistics.of(np.ones(shape, np.float32)).sample_second.size == 0


def test_a_tensor_without_an_axis_of_samples_has_none() -> None:
    counter = Counter("t")
    counter.update(np.ones((5, 3), np.float32), 0, 2)
    assert counter.statistics().sample_second.size == 0
    whole = Counter("t")
    whole.update(np.ones(5, np.float32), 0, 1)
    assert whole.statistics().sample_second.size == 0


def test_one_sample_of_another_shape_is_enough_to_have_none() -> None:
    rng = np.random.default_rng(0)
    table, picture = rng.normal(size=(3, 4)).astype(np.float32), rng.normal(size=(2, 4, 5)).astype(np.float32)
    for order in ((table, picture), (picture, table)):
        counter = Counter("t")
        for first, part in zip((0, 3), order, strict=True):
            counter.update(part, first, len(part))
        assert counter.statistics().sample_second.size == 0
    one, two, three = TensorStatistics.of(table), TensorStatistics.of(picture, first=3), TensorStatistics.of(table, first=5)
    assert one.merged(two).sample_second.size == two.merged(one).sample_second.size == 0
    assert same(one.merged(two).merged(three), one.merged(three).merged(two))
    assert one.merged(TensorStatistics.empty("")).sample_second.size == 3


def test_they_are_bounded_to_the_first_samples() -> None:
    values = np.arange(2 * (PER_SAMPLE + 5), dtype=np.float32).reshape(-1, 2)
    late, early = TensorStatistics.of(values[7:], first=7), TensorStatistics.of(values[:7])
    both = merge([late, early])
    assert both.sample_second.tolist() == values[:PER_SAMPLE, 0].tolist() and both.sample_high.tolist() == values[:PER_SAMPLE, 1].tolist()


def of_model(x: Values, key: str) -> Statistics:
    tensors = {"logits": TensorStatistics.of(x, "logits"), "picture": TensorStatistics.of(x[:, :, None, None], "picture")}
    return Statistics("model", (Source(key, key, len(x)),), tensors)


def test_files_carry_them_and_shards_merge(tmp_path: Path) -> None:
    x = np.random.default_rng(1).normal(size=(9, 5)).astype(np.float32)
    one, two = of_model(x[:4], "a"), of_model(x[4:], "b")
    one.save(tmp_path / "one.npz")
    again = Statistics.load(tmp_path / "one.npz")
    assert all(same(again[name], one[name]) for name in one)
    both = merge_statistics(two, again)
    assert same(both["logits"], TensorStatistics.of(x, "logits")) and both["picture"].sample_second.size == 0


def test_a_file_of_before_they_were_kept_still_loads(tmp_path: Path) -> None:
    import json

    x = np.random.default_rng(2).normal(size=(4, 5)).astype(np.float32)
    new, old = tmp_path / "new.npz", tmp_path / "old.npz"
    of_model(x, "a").save(new)
    with np.load(new) as bodies:
        kept = {name: bodies[name] for name in bodies if name != "sample_second"}
    header = json.loads(kept["header"].tobytes())
    for tensor in header["tensors"]:
        del tensor["sizes"]["sample_second"]
    kept["header"] = np.frombuffer(json.dumps(header).encode(), np.uint8)
    with open(old, "wb") as file:
        np.savez_compressed(file, **kept)
    loaded = Statistics.load(old)
    assert loaded["logits"].sample_second.size == 0 and loaded["logits"].sample_high.tolist() == x.max(axis=1).tolist()
    with_new = merge_statistics(loaded, of_model(x, "b"))
    assert with_new["logits"].sample_second.size == 0 and with_new["logits"].sample_high.size == 8
