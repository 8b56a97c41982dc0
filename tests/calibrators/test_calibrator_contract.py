"""What every registered calibrator promises, third parties' included."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray

from qbench.affine import Range, Scheme, affine, dequantize, quantize
from qbench.calibrators import describe, make, names, spec
from qbench.errors import InputError, NotObserved, UnknownName
from qbench.statistics import TensorStatistics
from qbench.statistics.sketch import merge

Values = NDArray[np.float32]
LEVELS = [4, 16, 255, 256, 1024, 65535]
SPECS = [*names(), "percentile:p=99.9,sided=magnitude", "percentile:p=50.0", "percentile:p=100.0", "kl:bins=512", "mse:steps=8"]

finite = st.floats(width=32, allow_nan=False, allow_infinity=False, allow_subnormal=False)
batches = st.lists(hnp.arrays(np.float32, st.integers(1, 40), elements=finite), min_size=1, max_size=4)
relaxed = settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@pytest.mark.parametrize("text", SPECS)
@given(levels=st.sampled_from(LEVELS), batches=batches)
@relaxed
def test_range_stays_inside_the_data_and_holds_zero(text: str, levels: int, batches: list[Values]) -> None:
    seen = merge(TensorStatistics.of(x) for x in batches)
    found = make(text).range(seen, levels)
    low, high = min(float(x.min()) for x in batches), max(float(x.max()) for x in batches)
    assert min(low, 0.0) <= found.low <= 0.0 <= found.high <= max(high, 0.0)


@pytest.mark.parametrize("text", SPECS)
@given(batches=batches)
@relaxed
def test_merge_order_does_not_matter(text: str, batches: list[Values]) -> None:
    parts = [TensorStatistics.of(x, first=100 * i) for i, x in enumerate(batches)]
    assert make(text).range(merge(parts), 256) == make(text).range(merge(parts[::-1]), 256)


@pytest.mark.parametrize("text", SPECS)
@given(x=hnp.arrays(np.float32, st.integers(1, 60), elements=st.floats(-1e4, 1e4, width=32)), power=st.integers(-20, 20))
@relaxed
def test_a_power_of_two_moves_the_range_with_the_data(text: str, x: Values, power: int) -> None:
    factor = 2.0**power
    x = np.where(np.abs(x) < 1e-20, 0, x).astype(np.float32)
    one, two = (make(text).range(TensorStatistics.of(v.astype(np.float32)), 256) for v in (x, x * factor))
    assert (two.low, two.high) == pytest.approx((one.low * factor, one.high * factor), rel=1e-9, abs=0)


@pytest.mark.parametrize("text", SPECS)
@pytest.mark.parametrize("levels", LEVELS)
def test_a_tensor_that_never_occurred_is_refused_by_name(text: str, levels: int) -> None:
    with pytest.raises(NotObserved, match="'act' was never observed"):
        make(text).range(TensorStatistics.empty("act"), levels)


@pytest.mark.parametrize("text", SPECS)
@pytest.mark.parametrize(("value", "whole"), [(0.0, Range(0, 0)), (3.5, Range(0, 3.5)), (-2.0, Range(-2, 0))])
def test_b04_a_constant_keeps_its_value(text: str, value: float, whole: Range) -> None:
    found = make(text).range(TensorStatistics.of(np.full((4, 100), value, np.float32)), 256)
    assert (found.low, found.high) == pytest.approx((whole.low, whole.high), rel=2**-9)
    coded = affine(found, Scheme(8, False, False))
    assert coded.scale > 0
    x = np.array([value], np.float32)
    assert abs(float(dequantize(quantize(x, coded), coded)[0]) - value) <= coded.scale


@pytest.mark.parametrize("text", SPECS)
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_b05_ignored_values_leave_no_trace_in_the_range(text: str, bad: float) -> None:
    x = np.random.default_rng(0).normal(size=1000).astype(np.float32)
    spoiled = x.copy()
    spoiled[3] = bad
    clean = np.delete(x, 3)
    assert make(text).range(TensorStatistics.of(spoiled[None]), 256) == make(text).range(TensorStatistics.of(clean[None]), 256)


@pytest.mark.parametrize("text", SPECS)
def test_b02_unequal_pieces_give_the_range_of_the_flat_values(text: str) -> None:
    rng = np.random.default_rng(1)
    pieces = [rng.normal(size=s).astype(np.float32) for s in ((1, 3, 8, 8), (3, 3, 12, 8), (2, 3, 5, 8))]
    merged = merge(TensorStatistics.of(p, first=10 * i) for i, p in enumerate(pieces))
    flat = TensorStatistics.of(np.concatenate([p.ravel() for p in pieces])[None])
    assert make(text).range(merged, 256) == make(text).range(flat, 256)


@pytest.mark.parametrize("text", SPECS)
def test_a_calibrator_is_frozen_and_its_text_gives_it_back(text: str) -> None:
    made = make(text)
    assert make(spec(made)) == made and hash(make(spec(made))) == hash(made)
    with pytest.raises((dataclasses.FrozenInstanceError, TypeError)):
        made.anything = 1  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", names())
def test_the_documentation_says_what_it_does_and_where_it_is_from(name: str) -> None:
    text, defaults = describe(name)
    assert text.startswith("Range ") and "Source:" in text
    assert all(f"\n{option} " in text for option in defaults)


@pytest.mark.parametrize(("text", "kind", "message"), [
    ("median", UnknownName, "no calibrator 'median'; known: kl, minmax, mse, percentile"),
    ("percentile:q=3", InputError, "'q=3' is not an option=value of it; options of percentile and their defaults: p=99.99, sided=both"),
    ("percentile:p", InputError, "'p' is not an option=value"),
    ("percentile:p=9,p=8", InputError, "'p=8' is given twice"),
    ("percentile:p=high", InputError, "p is 'high'; expected a value of type float"),
    ("percentile:p=0", InputError, "p is 0.0; expected a percentage above 0 and up to 100"),
    ("percentile:p=nan", InputError, "p is nan"),
    ("percentile:sided=left", InputError, "sided is 'left'; known: both, magnitude"),
    ("minmax:p=1", InputError, "minmax has no options"),
    ("kl:bins=128", InputError, "bins is 128; with fewer than 512 there are too few thresholds"),
    ("mse:steps=2", InputError, "steps is 2; expected 8 or more"),
])
def test_a_spec_that_cannot_be_read_says_why(text: str, kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=message):
        make(text)


def test_third_parties_add_theirs_but_replace_none_of_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    from importlib.metadata import EntryPoint

    from qbench import calibrators

    def found(group: str) -> list[EntryPoint]:
        assert group == calibrators.GROUP
        return [EntryPoint("halved", f"{__name__}:Halved", group), EntryPoint("kl", f"{__name__}:Halved", group)]

    monkeypatch.setattr(calibrators, "entry_points", found)
    calibrators._known.cache_clear()
    try:
        assert "halved" in names() and type(make("kl")).__name__ == "Kl"
        made = make("halved:share=0.25")
        assert made.range(TensorStatistics.of(np.array([8.0])), 256) == Range(0.0, 2.0) and spec(made) == "halved:share=0.25"
    finally:
        calibrators._known.cache_clear()


@dataclasses.dataclass(frozen=True)
class Halved:
    """A calibrator as another package would bring it."""

    share: float = 0.5

    def range(self, seen: Any, levels: int, symmetric: bool = False) -> Range:
        return Range(0.0, seen.maximum * self.share)


def test_listing_the_names_imports_nothing_heavy() -> None:
    script = ("import sys, qbench.calibrators as c; c.names(); c.make('minmax')\n"
              "print([m for m in ('numba', 'onnxruntime', 'torch', 'scipy', 'optuna', 'mlflow', 'onnx') if m in sys.modules])")
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
