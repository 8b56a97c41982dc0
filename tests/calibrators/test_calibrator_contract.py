"""What every registered calibrator promises, third parties' included."""

from __future__ import annotations

import dataclasses
import itertools
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
SPECS = [*names(), "percentile:p=99.9,sided=magnitude", "percentile:p=99.0,sided=one", "percentile:p=50.0", "percentile:p=100.0",
         "kl:bins=512", "kl:sides=apart", "mse:steps=8", "lp:p=1.0", "lp:p=4.0", "sqnr:bits=4,clip=3.0", "moving-average:momentum=0.0",
         "extremes:of=median,batch=2", "aciq:shape=laplace", "aciq:shape=gauss", "power-of-two:by=overflow",
         "auto:among=percentile:p=99.0,sided=one/kl:bins=512,sides=apart"]
BEYOND = "mse:tail=exponential"
"""May end beyond the data, at twice as much."""
SPECS.append(BEYOND)
BY_SAMPLE = ("moving-average", "extremes", "order-preserving")
"""Their answers depend on which values belong to one sample."""

finite = st.floats(width=32, allow_nan=False, allow_infinity=False, allow_subnormal=False)
batches = st.lists(hnp.arrays(np.float32, st.integers(1, 40), elements=finite), min_size=1, max_size=4)
relaxed = settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@pytest.mark.parametrize("text", SPECS)
@given(levels=st.sampled_from(LEVELS), symmetric=st.booleans(), batches=batches)
@relaxed
def test_range_stays_inside_the_data_and_holds_zero(text: str, levels: int, symmetric: bool, batches: list[Values]) -> None:
    seen = merge(TensorStatistics.of(x) for x in batches)
    found = make(text).range(seen, levels, symmetric)
    low, high = min(float(x.min()) for x in batches), max(float(x.max()) for x in batches)
    reach = 2.0 if text == BEYOND else 1.0
    assert reach * min(low, 0.0) <= found.low <= 0.0 <= found.high <= reach * max(high, 0.0)


@pytest.mark.parametrize("text", SPECS)
@given(batches=batches)
@relaxed
def test_merge_order_does_not_matter(text: str, batches: list[Values]) -> None:
    parts = [TensorStatistics.of(x, first=100 * i) for i, x in enumerate(batches)]
    assert make(text).range(merge(parts), 256) == make(text).range(merge(parts[::-1]), 256)


@pytest.mark.parametrize("text", SPECS)
@given(x=hnp.arrays(np.float32, st.tuples(st.integers(1, 20), st.integers(1, 4)), elements=st.floats(-1e4, 1e4, width=32)),
       power=st.integers(-20, 20), symmetric=st.booleans())
@relaxed
def test_a_power_of_two_moves_the_range_with_the_data(text: str, x: Values, power: int, symmetric: bool) -> None:
    factor = 2.0**power
    x = np.where(np.abs(x) < 1e-20, 0, x).astype(np.float32)
    one, two = (make(text).range(TensorStatistics.of(v.astype(np.float32)), 256, symmetric) for v in (x, x * factor))
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


WHOLES: dict[str, Any] = {
    "one value": [2.5], "two values": [-1.0, 3.0], "two of a side": [1.0, 100.0], "two below": [-100.0, -1.0], "far apart": [1e-30, 1e30],
    "tiny": np.linspace(-1e-30, 3e-30, 40), "huge": np.linspace(-3e38, 1e38, 40), "least normal": np.linspace(0, 1.2e-38, 5),
    "below any scale": [1e-42, 1e-42], "negative": -np.arange(1.0, 50.0), "bytes": np.tile(np.arange(256.0), 3),
    "counts": [0.0] * 500 + [1.0] * 20 + [7.0], "zeros and one": [0.0] * 1000 + [1e-3], "outlier": [*np.linspace(-1, 1, 99), 1e20],
    "half step": np.arange(-8, 9) / 2,
}


@pytest.mark.parametrize("text", SPECS)
@pytest.mark.parametrize("kind", WHOLES)
def test_b04_degenerate_data_give_a_usable_scale(text: str, kind: str) -> None:
    """As one sample, as samples of one value, and as the classes of a sample."""
    schemes = Scheme(8, False, False), Scheme(8, True, True, narrow=True), Scheme(16, True, False)
    for shape, scheme in itertools.product(((1, 1, -1), (-1, 1), (1, -1)), schemes):
        x = np.array(WHOLES[kind], np.float32).reshape(shape)
        found = make(text).range(TensorStatistics.of(x), scheme.levels, scheme.symmetric)
        reach = 2.0 if text == BEYOND else 1.0
        assert reach * min(float(x.min()), 0.0) <= found.low <= 0.0 <= found.high <= reach * max(float(x.max()), 0.0)
        coded = affine(found, scheme)
        assert np.isfinite(coded.scale) and coded.scale > 0
        with np.errstate(over="ignore"):            # a clipped value may lie more than 3e38 steps away
            assert np.isfinite(dequantize(quantize(x, coded), coded)).all()
        if x.size == 1:
            assert found.magnitude == pytest.approx(2.5, rel=2**-9)


@pytest.mark.parametrize("text", [t for t in SPECS if t not in ("percentile:p=50.0", "moving-average:momentum=0.0", "sqnr:bits=4,clip=3.0")
                                  and "p=99.0" not in t])
@pytest.mark.parametrize("scheme", [Scheme(8, False, False), Scheme(8, True, False), Scheme(8, True, True, narrow=True)], ids=str)
def test_integers_that_fill_the_codes_keep_their_step(text: str, scheme: Scheme) -> None:
    """Pictures as bytes: each value has a code of its own, and any other scale than 1 would blur them."""
    x = np.random.default_rng(2).integers(scheme.qmin, scheme.qmax + 1, (4, 3, 32, 32)).astype(np.float32)
    coded = affine(make(text).range(TensorStatistics.of(x), scheme.levels, scheme.symmetric), scheme)
    assert np.abs(dequantize(quantize(x, coded), coded) - x).max() < 1e-3


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
    if text.split(":")[0] in BY_SAMPLE or text == BEYOND:             # the samples one by one
        apart = merge(TensorStatistics.of(p[j : j + 1], first=10 * i + j) for i, p in enumerate(pieces) for j in range(len(p)))
        assert make(text).range(merged, 256) == make(text).range(apart, 256)
    else:
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
    ("median", UnknownName, "no calibrator 'median'; known: aciq, auto, .*, moving-average, mse, order-preserving, percentile, power-of-two, sqnr"),
    ("percentile:q=3", InputError, "'q=3' is not an option=value of it; options of percentile and their defaults: p=99.99, sided=both"),
    ("percentile:p", InputError, "'p' is not an option=value"),
    ("percentile:p=9,p=8", InputError, "'p=8' is given twice"),
    ("percentile:p=high", InputError, "p is 'high'; expected a value of type float"),
    ("percentile:p=0", InputError, "p is 0.0; expected a percentage above 0 and up to 100"),
    ("percentile:p=nan", InputError, "p is nan"),
    ("percentile:sided=left", InputError, "sided is 'left'; known: both, one, magnitude"),
    ("minmax:p=1", InputError, "minmax has no options"),
    ("kl:bins=128", InputError, "bins is 128; with fewer than 512 there are too few thresholds"),
    ("mse:steps=2", InputError, "steps is 2; expected 8 or more"),
    ("mse:tail=long", InputError, "tail is long; expected seen or exponential"),
    ("kl:sides=both", InputError, "sides is 'both'; known: together, apart"),
    ("lp:p=0.5", InputError, "p is 0.5; expected 1 to 4"),
    ("lp:p=nan", InputError, "p is nan"),
    ("sqnr:bits=1", InputError, "bits is 1; expected 2 to 16, or 0 for the width in use"),
    ("sqnr:clip=0", InputError, "clip is 0.0; expected a weight above 0"),
    ("sqnr:clip=inf", InputError, "clip is inf"),
    ("moving-average:momentum=1", InputError, "momentum is 1.0; expected 0 to below 1"),
    ("moving-average:momentum=nan", InputError, "momentum is nan"),
    ("extremes:of=mode", InputError, "of is 'mode'; known: mean, median"),
    ("extremes:batch=0", InputError, "batch is 0; expected 1 or more"),
    ("aciq:shape=cauchy", InputError, "shape is 'cauchy'; known: auto, laplace, gauss"),
    ("power-of-two:by=luck", InputError, "by is 'luck'; known: mse, overflow"),
    ("auto:among=mse/auto", InputError, "among names auto itself"),
    ("auto:among=mse/percentile/percentile:p=99.99", InputError, "among names 'percentile' twice"),
    ("auto:among=mse/medium", UnknownName, "no calibrator 'medium'"),
    ("auto:among=percentile:p=99.9,sided=left/mse", InputError, "sided is 'left'"),
    ("auto:among=", UnknownName, "no calibrator ''"),
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
