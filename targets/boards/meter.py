"""An external power meter beside any board: read while the board works, and cut to the timed runs.

Named by `module:function` (or file.py:function), or by an entry point of the group `qbench.power_meters`; the function makes an object
with start() and stop(), see `qbench.board.PowerMeter`. On a board's URL it is the option ?meter=, so that a search meters too.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import entry_points
from pathlib import Path
from typing import TypeVar

import numpy as np

from qbench.board import FEW_READINGS, Array, Board, Measurement, PowerMeter, Request
from qbench.errors import InputError, ToolError, UnknownName
from qbench.targets.boards.outputs import GivesOutputs
from qbench.userfunction import is_function_spec, load_function

T = TypeVar("T")
GROUP = "qbench.power_meters"
IDLE_S = 0.5
LEAST_S = 2.0
"""Of timed runs: the end of the board's process and the link's delay move the window by a tenth of it at most."""
MARGIN = 0.1
"""Share of the timed runs that is left out at either end, for the same reason."""
MOST = 400
"""Readings that are kept; more are averaged in groups."""


@dataclass(frozen=True, slots=True)
class Metered:
    """board   that works; meter   that is read meanwhile; spec   how it was named"""

    board: Board
    meter: PowerMeter
    spec: str

    @property
    def url(self) -> str:
        return self.board.url

    def facts(self) -> Mapping[str, str]:
        return self.board.facts()

    def measure(self, model: Path, feeds: Sequence[Mapping[str, Array]], request: Request) -> Measurement:
        """As the board measures, for LEAST_S at least, with the power of the meter. Raises ToolError when the meter gives no readings, or impossible ones."""
        longer = replace(request, seconds=max(request.seconds, LEAST_S))
        _, idle, _ = self._read(lambda: time.sleep(IDLE_S))
        measured, readings, whole = self._read(lambda: self.board.measure(model, feeds, longer))
        if measured.recorded:
            raise InputError(f"{self.url} is a recording: nothing runs that the power meter {self.spec} could read")
        timed = sum(measured.samples_ms) / 1e3
        end = whole - measured.ended_ago_s
        inside = [(s - (end - timed), w) for s, w in readings if end - (1.0 - MARGIN) * timed <= s <= end - MARGIN * timed]
        if len(inside) < FEW_READINGS:
            raise ToolError(f"power meter {self.spec}: {len(inside)} of its {len(readings)} readings lie within {timed:.2g} s of timed runs, at least {FEW_READINGS} are needed: "
                            "read more often, or measure longer (--seconds)")
        return replace(measured, power_w=float(np.mean([w for _, w in inside])), idle_w=float(np.mean([w for _, w in idle])) if idle else None,
                       power_source=f"power meter {getattr(self.meter, 'name', self.spec)}", power_readings=_thinned(inside))

    def outputs(self, model: Path, feeds: Sequence[Mapping[str, Array]], request: Request) -> list[dict[str, Array]]:
        if not isinstance(self.board, GivesOutputs):
            raise ToolError(f"{self.url} gives times but no outputs")
        return self.board.outputs(model, feeds, request)

    def _read(self, work: Callable[[], T]) -> tuple[T, list[tuple[float, float]], float]:
        """(what `work` gives, readings meanwhile, seconds); the meter is stopped whatever happens."""
        try:
            self.meter.start()
        except Exception as error:
            raise ToolError(f"power meter {self.spec} does not start: {type(error).__name__}: {error}") from error
        began = time.monotonic()
        try:
            made = work()
        except BaseException:
            self.meter.stop()
            raise
        took = time.monotonic() - began
        try:
            readings = [(float(s), float(w)) for s, w in self.meter.stop()]
        except Exception as error:
            raise ToolError(f"power meter {self.spec}: stop() gave no list of (seconds, watts): {type(error).__name__}: {error}") from error
        times = [s for s, _ in readings]
        if times != sorted(times) or not all(math.isfinite(s) and math.isfinite(w) and w >= 0.0 for s, w in readings) or (times and not -1.0 <= times[-1] <= took + 5.0):
            raise ToolError(f"power meter {self.spec}: readings must be (seconds since start() in ascending order, watts of 0 or more); it gave e.g. {readings[-1]}")
        return made, readings, took


def _thinned(readings: Sequence[tuple[float, float]]) -> tuple[tuple[float, float], ...]:
    groups = np.array_split(np.asarray(readings, float), min(len(readings), MOST))
    return tuple((float(g[0, 0]), float(g[:, 1].mean())) for g in groups)


def open_meter(spec: str) -> PowerMeter:
    """The meter that `spec` names. Raises UnknownName for a name that nobody offers, InputError for what is no meter."""
    if is_function_spec(spec):
        make = load_function(spec)
    else:
        theirs = {e.name: e for e in entry_points(group=GROUP)}
        if spec not in theirs:
            raise UnknownName(f"no power meter {spec!r}; give module:function or file.py:function, or one that is installed: {', '.join(sorted(theirs)) or 'none'}")
        make = theirs[spec].load()
    try:
        meter = make()
    except Exception as error:
        raise ToolError(f"power meter {spec} cannot be opened: {type(error).__name__}: {error}") from error
    missing = [n for n in ("start", "stop") if not callable(getattr(meter, n, None))]
    if missing:
        raise InputError(f"power meter {spec}: what it makes ({type(meter).__name__}) has no {' and no '.join(f'{m}()' for m in missing)}; see qbench.board.PowerMeter")
    found: PowerMeter = meter
    return found


def metered(board: Board, spec: str) -> Metered:
    return Metered(board, open_meter(spec), spec)
