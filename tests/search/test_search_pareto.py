"""Front and hypervolume against brute force on small grids, where both are exact."""

from __future__ import annotations

import math
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from qbench.search.pareto import front, hypervolume, non_dominated

SIDE = 5


@st.composite
def grids(draw: st.DrawFn, fewest: int = 1, most: int = 4) -> NDArray[np.float64]:
    """[n, objectives], `fewest` to `most` objectives, whole numbers 0..SIDE: ties and duplicates abound."""
    k = draw(st.integers(fewest, most))
    rows = draw(st.lists(st.lists(st.integers(0, SIDE), min_size=k, max_size=k), max_size=8))
    return np.array(rows, np.float64).reshape(len(rows), k)


def dominates(a: NDArray[np.float64], b: NDArray[np.float64]) -> bool:
    return bool(np.all(a <= b) and np.any(a < b))


def cells(points: NDArray[np.float64], reference: tuple[int, ...]) -> int:
    """Unit cells below the whole-number `reference` whose lower corner some point does not exceed: the volume, counted."""
    return sum(any(all(p <= c) for p in points) for c in map(np.array, product(*(range(r) for r in reference))))


@given(points=grids())
def test_non_dominated_is_its_definition(points: NDArray[np.float64]) -> None:
    expected = [not any(dominates(other, p) for other in points) for p in points]
    assert non_dominated(points).tolist() == expected


@given(points=grids())
def test_front_holds_no_dominated_point_and_covers_the_rest(points: NDArray[np.float64]) -> None:
    rows = front(points)
    assert not any(dominates(points[i], points[j]) for i in rows for j in rows)
    assert all(any(np.all(points[i] <= p) for i in rows) for p in points)


@given(points=grids())
def test_front_is_sorted_without_duplicates_and_keeps_the_first_of_equals(points: NDArray[np.float64]) -> None:
    rows = front(points)
    found = [tuple(points[i]) for i in rows]
    assert found == sorted(set(found))
    assert all(i == min(j for j in range(len(points)) if tuple(points[j]) == p) for i, p in zip(rows, found, strict=True))


@given(points=grids(), seed=st.integers(0, 2**32))
def test_front_does_not_depend_on_the_order(points: NDArray[np.float64], seed: int) -> None:
    shuffled = np.random.default_rng(seed).permutation(points)
    assert points[front(points)].tolist() == shuffled[front(shuffled)].tolist()


def test_equal_rows_stay_and_nan_goes() -> None:
    points = [(1.0, 2.0), (1.0, 2.0), (math.nan, 0.0), (2.0, 2.0), (math.inf, 0.0)]
    assert non_dominated(points).tolist() == [True, True, False, False, True]
    assert front(points).tolist() == [0, 4]


def test_ties_in_one_objective() -> None:
    assert front([(1.0, 3.0), (1.0, 2.0), (0.0, 3.0)]).tolist() == [2, 1]


@pytest.mark.parametrize("empty", [[], np.zeros((0, 3))])
def test_nothing_has_no_front_and_no_volume(empty: object) -> None:
    assert non_dominated(np.asarray(empty)).tolist() == []
    assert front(np.asarray(empty)).tolist() == []
    assert hypervolume(np.asarray(empty), (1.0, 1.0, 1.0)) == 0.0


@given(points=grids(), data=st.data())
def test_hypervolume_counts_the_cells(points: NDArray[np.float64], data: st.DataObject) -> None:
    """Some points lie on or beyond the reference: they add nothing."""
    reference = tuple(data.draw(st.integers(1, SIDE + 1)) for _ in range(points.shape[1]))
    assert hypervolume(points, reference) == cells(points, reference)


@given(points=grids(2, 3), more=st.lists(st.integers(0, SIDE), min_size=3, max_size=3))
def test_hypervolume_never_falls_with_a_point_more(points: NDArray[np.float64], more: list[int]) -> None:
    k = points.shape[1]
    reference = (SIDE + 1.0,) * k
    longer = np.vstack([points, np.array(more[:k], np.float64)])
    assert hypervolume(longer, reference) >= hypervolume(points, reference)
    grown = not any(np.all(p <= longer[-1]) for p in points)
    assert (hypervolume(longer, reference) > hypervolume(points, reference)) == grown


@given(points=grids(3, 3), scale=st.tuples(*[st.floats(1e-3, 1e3)] * 3))
def test_hypervolume_scales_with_each_objective(points: NDArray[np.float64], scale: tuple[float, float, float]) -> None:
    reference = np.full(3, SIDE + 1.0)
    assert hypervolume(points * scale, reference * scale) == pytest.approx(math.prod(scale) * hypervolume(points, reference), rel=1e-12, abs=0.0)


def test_shapes_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match=r"points must be \[n, objectives\]"):
        front([1.0, 2.0])
    with pytest.raises(ValueError, match="reference has 3 objectives, the points have 2"):
        hypervolume([(1.0, 2.0)], (3.0, 3.0, 3.0))
