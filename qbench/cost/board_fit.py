"""What measurements teach a latency model: one scale for the board, and a factor per class of kernels where the data speak for it.

    measured ~ s0 + sum over classes c of factor[c] * predicted[c]

Factors are log-normal around a common scale, the scale log-normal around 1: with one measurement everything moves by one scale, with many
different plans the classes part. Errors are relative. Source: ridge regression in log space as a normal prior: Gelman et al., Bayesian
Data Analysis (3rd ed., 2013), sections 14.8 and 15.4.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

SCALE_SD = 1.5
"""Prior spread of the scale, natural log: the model may be off by a factor of 4.5 before the prior objects."""
CLASS_SD = 0.4
"""Prior spread of a class around the scale."""
ERROR_SD = 0.05
"""What a prediction misses beyond the noise of measuring, at least: plans differ in more than their classes."""
DOUBT = 0.25
"""Few errors say little about their spread: the prior's counts like this share of one of them."""
COVERED = 1.2816
"""Standard errors to each side of an 80 % interval."""


@dataclass(frozen=True)
class BoardFit:
    """factors     one per class, in the order of `classes`
    scale          their common part
    residual_sd    relative spread of measured over corrected prediction, leaving each measurement out in turn
    count          measurements it rests on
    """

    classes: tuple[str, ...]
    factors: Floats
    scale: float
    residual_sd: float
    count: int

    def seconds(self, by_class: Floats, fixed_s: float = 0.0) -> Floats:
        """Corrected prediction of plans, [n] for `by_class` [n, classes]."""
        found: Floats = np.atleast_2d(by_class) @ self.factors + fixed_s * self.scale
        return found

    @property
    def interval(self) -> tuple[float, float]:
        """80 % interval as factors on the corrected prediction."""
        half = COVERED * self.residual_sd
        return float(np.exp(-half)), float(np.exp(half))


def learn(classes: Sequence[str], by_class: Floats, measured_s: Floats, error_s: Floats | None = None, fixed_s: float = 0.0) -> BoardFit:
    """The fit that measurements support.

    by_class     predicted seconds, [plans, classes]
    measured_s   medians, [plans]; error_s   their standard errors
    fixed_s      predicted seconds of an inference that belong to no class
    """
    by_class, measured_s = np.asarray(by_class, float), np.asarray(measured_s, float)
    assert by_class.shape == (len(measured_s), len(classes)) and len(measured_s), "one row per measurement, one column per class"
    assert (measured_s > 0.0).all() and (by_class.sum(axis=1) + fixed_s > 0.0).all(), "times are positive"
    noise = np.hypot(ERROR_SD, 0.0 if error_s is None else np.asarray(error_s) / measured_s) * np.ones(len(measured_s))
    theta = _fit(by_class, measured_s, noise, fixed_s)
    return BoardFit(tuple(classes), np.exp(theta[0] + theta[1:]), float(np.exp(theta[0])), _left_out(by_class, measured_s, noise, fixed_s), len(measured_s))


def _fit(by_class: Floats, measured_s: Floats, noise: Floats, fixed_s: float) -> Floats:
    """(log scale, log factor over scale per class)."""
    from scipy.optimize import least_squares

    def residuals(theta: Floats) -> Floats:
        predicted = by_class @ np.exp(theta[0] + theta[1:]) + fixed_s * np.exp(theta[0])
        return np.concatenate([np.log(predicted / measured_s) / noise, [theta[0] / SCALE_SD], theta[1:] / CLASS_SD])

    start = np.zeros(by_class.shape[1] + 1)
    start[0] = float(np.median(np.log(measured_s / (by_class.sum(axis=1) + fixed_s))))
    found: Floats = least_squares(residuals, start, method="lm").x
    return found


def _left_out(by_class: Floats, measured_s: Floats, noise: Floats, fixed_s: float) -> float:
    """Relative spread of the measurements left out one by one, the prior's own where there is only one to learn from."""
    n = len(measured_s)
    if n < 2:
        return CLASS_SD
    errors = []
    for i in range(n):
        keep = np.arange(n) != i
        theta = _fit(by_class[keep], measured_s[keep], noise[keep], fixed_s)
        predicted = by_class[i] @ np.exp(theta[0] + theta[1:]) + fixed_s * np.exp(theta[0])
        errors.append(np.log(measured_s[i] / predicted))
    return float(np.sqrt((np.sum(np.square(errors)) + DOUBT * CLASS_SD**2) / (n + DOUBT)))
