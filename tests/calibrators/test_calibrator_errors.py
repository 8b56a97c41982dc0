"""The calibrators that minimise an error, against every value quantized on a dense grid of ranges by `qbench.affine`."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from test_calibrator_kinds import DATA, seen_of

from qbench.affine import Range, Scheme, affine, dequantize, quantize
from qbench.calibrators import make
from qbench.calibrators.hull import hull
from qbench.calibrators.noise import Noise, grids

Values = NDArray[np.float32]
PLAIN = {4: Scheme(4, False, False), 8: Scheme(8, False, False)}
CENTRED = [Scheme(8, True, True, narrow=True), Scheme(8, True, True), Scheme(4, True, True, narrow=True)]
CLOSE = 1.02
"""The histogram's cells and the pace of the search cost so much of the least error at most; the dense grid is coarser than either."""


def loss(x: Values, found: Range, scheme: Scheme, p: float = 2.0, clip: float = 1.0) -> float:
    """Mean |error|**p of the values; those beyond the outermost levels weigh `clip`."""
    coded = affine(found, scheme)
    error = np.abs(dequantize(quantize(x, coded), coded).astype(np.float64) - x) ** p
    beyond = (x < coded.range.low) | (x > coded.range.high)
    return float(np.mean(np.where(beyond, clip * error, error)))


def every_range(whole: Range, size: int) -> list[Range]:
    """Pairs of ends from all of the hull down to a 50th of it."""
    row = np.geomspace(0.02, 1.0, size)
    ends = [[float(side * t) for t in row] if side else [0.0] for side in (whole.low, whole.high)]
    return [Range(a, b) for a, b in itertools.product(*ends)]


def every_threshold(whole: Range, size: int) -> list[Range]:
    return [Range(max(-t, whole.low), min(t, whole.high)) for t in whole.magnitude * np.geomspace(0.01, 1.0, size)]


@pytest.mark.parametrize("name", DATA)
@pytest.mark.parametrize("scheme", CENTRED, ids=lambda s: f"{s.levels}")
def test_symmetric_mse_is_the_best_of_all_symmetric_grids(name: str, scheme: Scheme) -> None:
    x = DATA[name][:5_000]
    found = make("mse").range(seen_of(x), scheme.levels, symmetric=True)
    best = min(loss(x, r, scheme) for r in every_threshold(hull(seen_of(x)), 400))
    assert loss(x, found, scheme) <= CLOSE * best


@pytest.mark.parametrize("text", ["mse", "mae", "lp:p=3.0", "sqnr:clip=2.0", "kl", "aciq"])
@pytest.mark.parametrize("name", ["relu", "negative"])
def test_symmetric_codes_clip_more_of_one_sided_data(name: str, text: str) -> None:
    """Half of their codes lie on the empty side, so a step is twice as wide and rounding weighs more against clipping."""
    both, one = (make(text).range(seen_of(DATA[name]), 16, symmetric).magnitude for symmetric in (True, False))
    assert both < 0.99 * one


@pytest.mark.parametrize("text", ["mse", "lp:p=1.5", "sqnr:bits=4", "aciq", "kl", "auto"])
def test_symmetric_answers_keep_the_threshold_on_one_side_at_least(text: str) -> None:
    for name in ("silu", "normal"):
        seen = seen_of(DATA[name])
        found, whole = make(text).range(seen, 255, symmetric=True), hull(seen)
        t = found.magnitude
        assert (found.low, found.high) == (max(-t, whole.low), min(t, whole.high))


@pytest.mark.parametrize("name", DATA)
@pytest.mark.parametrize(("text", "p"), [("mae", 1.0), ("lp:p=1.5", 1.5), ("lp", 2.4), ("lp:p=4.0", 4.0)])
@pytest.mark.parametrize("bits", PLAIN)
def test_lp_is_as_good_as_the_best_of_a_dense_grid(name: str, text: str, p: float, bits: int) -> None:
    x = DATA[name][:3_000]
    found = make(text).range(seen_of(x), 2**bits)
    best = min(loss(x, r, PLAIN[bits], p) for r in every_range(hull(seen_of(x)), 24))
    assert loss(x, found, PLAIN[bits], p) <= CLOSE * best


@pytest.mark.parametrize("name", DATA)
@pytest.mark.parametrize("p", [1.0, 2.4])
def test_symmetric_lp_is_the_best_of_all_symmetric_grids(name: str, p: float) -> None:
    x, scheme = DATA[name][:3_000], CENTRED[0]
    found = make(f"lp:p={p}").range(seen_of(x), scheme.levels, symmetric=True)
    best = min(loss(x, r, scheme, p) for r in every_threshold(hull(seen_of(x)), 300))
    assert loss(x, found, scheme, p) <= CLOSE * best


@pytest.mark.parametrize("name", DATA)
def test_names_for_the_same_norm_agree(name: str) -> None:
    seen = seen_of(DATA[name])
    for levels, symmetric in itertools.product((16, 255, 65536), (False, True)):
        assert make("mae").range(seen, levels, symmetric) == make("lp:p=1").range(seen, levels, symmetric)
        assert make("lp:p=2").range(seen, levels, symmetric) == make("mse").range(seen, levels, symmetric)
        assert make("sqnr").range(seen, levels, symmetric) == make("mse").range(seen, levels, symmetric)
        assert make("sqnr:bits=4").range(seen, levels, symmetric) == make("mse").range(seen, 16, symmetric)


@pytest.mark.parametrize("name", DATA)
@pytest.mark.parametrize("clip", [0.3, 3.0])
def test_sqnr_weighs_clipping_as_told(name: str, clip: float) -> None:
    x = DATA[name][:3_000]
    found = make(f"sqnr:clip={clip}").range(seen_of(x), 16)
    best = min(loss(x, r, PLAIN[4], clip=clip) for r in every_range(hull(seen_of(x)), 24))
    assert loss(x, found, PLAIN[4], clip=clip) <= CLOSE * best


@pytest.mark.parametrize("name", ["normal", "heavy"])
def test_a_larger_power_or_weight_clips_less(name: str) -> None:
    seen = seen_of(DATA[name])
    for row in (["mae", "lp:p=1.5", "mse", "lp:p=2.4", "lp:p=3.0", "lp:p=4.0"], ["sqnr:clip=0.3", "sqnr", "sqnr:clip=3.0", "sqnr:clip=30.0"]):
        reach = [make(text).range(seen, 64).magnitude for text in row]
        assert reach == sorted(reach) and reach[0] < 0.8 * reach[-1]


@pytest.mark.parametrize("name", DATA)
@pytest.mark.parametrize("symmetric", [False, True])
@pytest.mark.parametrize(("p", "within"), [(1.0, 1e-9), (2.0, 1e-9), (1.2, 0.01), (2.4, 0.01), (4.0, 0.01)])
def test_the_error_of_a_grid_is_that_of_every_cell(name: str, symmetric: bool, p: float, within: float) -> None:
    """By rounding each cell's centre; one range at a time, so that none is skipped."""
    seen = seen_of(DATA[name])
    x, counts = seen.histogram()
    whole = hull(seen)
    for levels, share in itertools.product((8, 256), (0.05, 0.4, 0.9, 1.0)):
        noise = Noise(seen, levels, symmetric, power=p, clip=1.5)
        low, high = np.array([whole.low * share]), np.array([whole.high * share])
        step, zero = (float(a[0]) for a in grids(low, high, levels, symmetric))
        codes = np.clip(np.rint(x / step) + zero, 0, levels - 1)
        weight = np.where((x < -zero * step) | (x >= (levels - 1 - zero) * step), 1.5, 1.0)
        want = float((weight * counts * np.abs((codes - zero) * step - x) ** p).sum())
        unit = 2.0 ** np.frexp(max(abs(seen.minimum), abs(seen.maximum)))[1]
        assert float(noise(low, high)[0]) * unit**p == pytest.approx(want, rel=within, abs=1e-9 * float((counts * np.abs(x) ** p).sum()))


@pytest.mark.parametrize("text", ["mse", "lp:p=1.0", "lp:p=3.0", "sqnr:clip=3.0"])
@pytest.mark.parametrize("symmetric", [False, True])
def test_many_levels_clip_almost_nothing(text: str, symmetric: bool) -> None:
    for name in ("normal", "relu", "silu"):
        seen = seen_of(DATA[name])
        found, whole = make(text).range(seen, 65536, symmetric), hull(seen)
        assert found.magnitude >= 0.97 * whole.magnitude


def far(x: Values, at: float) -> Values:
    return np.append(x, np.float32(at)).astype(np.float32)


@pytest.mark.parametrize("text", ["mse", "mae", "lp", "sqnr:clip=3.0"])
@pytest.mark.parametrize("outlier", [1e3, 1e6, 1e20])
def test_an_outlier_is_clipped_as_far_as_it_pays(text: str, outlier: float) -> None:
    """With one value far away the least error is no worse than at the two ends of the trade: all of it, or none."""
    x = far(DATA["normal"][:4_000], outlier)
    p = {"mae": 1.0, "lp": 2.4}.get(text, 2.0)
    clip = 3.0 if "clip" in text else 1.0
    found = make(text).range(seen_of(x), 256)
    with np.errstate(over="ignore"):
        rivals = [hull(seen_of(x)), *(Range(-4.0, min(4.0 * 10.0**k, outlier)) for k in range(8))]
        best = min(loss(x, r, PLAIN[8], p, clip) for r in rivals)
        assert loss(x, found, PLAIN[8], p, clip) <= CLOSE * best


def test_the_docstring_of_mae_names_it() -> None:
    from qbench.calibrators import describe

    text: Any = describe("mae")[0]
    assert "MAE" in text and "lp:p=1" in text
