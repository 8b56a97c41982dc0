"""What a board is, and what it answers: measured times with everything needed to trust them.

A board runs a model file as it stands and times it. Measured and predicted figures are different things and never share a field.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from qbench.errors import InputError
from qbench.files import write_text

Array = NDArray[Any]

FEWEST = 20
"""Timed runs below which nothing is said about stability."""
SPREAD = 1.25
"""90th percentile over the median from which a measurement counts as unsteady."""
DRIFT = 1.05
"""Median of the last third over that of the first from which it counts as drifting."""
FEW_READINGS = 10
"""Power readings below which nothing is said about how sure their mean is."""
INTERVAL = 1.96
"""Standard errors of a 95 % interval."""
CLOCK = 0.02
"""Share by which a clock may move between start and end."""
HOTTER_C = 2.0
"""Degrees that a sensor must rise for a falling clock to count as throttling: sensors of boards have steps of up to 1 degree."""


@dataclass(frozen=True, slots=True)
class Request:
    """How to measure.

    runs        timed runs; more when they take less than `seconds` together
    warmup      runs before them that are not counted; the very first is kept apart as `first_run_ms`
    seconds     least time of the timed runs together
    threads     CPU threads of the runtime, where it has any; None: its default
    clock       fixed while measuring, see `parse_clock`; "": left to the board's governor
    """

    runs: int = 50
    warmup: int = 5
    seconds: float = 0.5
    threads: int | None = None
    clock: str = ""

    def __post_init__(self) -> None:
        if self.clock:
            parse_clock(self.clock)


def parse_clock(text: str) -> tuple[str, float]:
    """("npu", 1e9) of "npu:1000MHz": the devfreq device whose name holds the first, "" for the NPU, and hertz. Raises InputError."""
    found = re.fullmatch(r"(?:([\w.@-]+):)?(\d+(?:\.\d+)?)\s*(MHz|GHz)", text.strip(), re.IGNORECASE)
    if found is None or float(found[2]) <= 0.0:
        raise InputError(f"clock {text!r} cannot be read; expected 1000MHz, 1GHz, or a devfreq device with it as in npu:1000MHz")
    return found[1] or "", float(found[2]) * (1e9 if found[3].lower() == "ghz" else 1e6)


@dataclass(frozen=True)
class Measurement:
    """One model on one board, at one time.

    board            URL
    recorded         True: replayed from a file, nothing ran
    runtime          "onnxruntime 1.32.0"
    facts            versions, machine, clocks, governor, as the board's agent says them
    first_run_ms     the first inference after loading, with everything it sets up
    samples_ms       every timed run, in order
    steps_ms         median of each step of a tensor's life that the runtime lets us see: allocate, fill, bind, execute, ...
    temperature_c    highest of all sensors while measuring; None: no sensor
    clocks_hz        domain -> (at start, at end)
    series           "temperature_c" or a domain of clocks_hz -> (second, value) during the timed runs
    power_w          mean over the timed runs, and where it was read; None: no meter
    idle_w           mean of the same meter while the board did nothing
    power_readings   (second, watts) during the timed runs, thinned where they are many
    ended_ago_s      seconds from the end of the timed runs until the answer was written
    """

    board: str
    model: str
    runtime: str
    facts: Mapping[str, str]
    load_ms: float
    first_run_ms: float
    samples_ms: tuple[float, ...]
    steps_ms: Mapping[str, float] = field(default_factory=dict)
    temperature_c: float | None = None
    clocks_hz: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    series: Mapping[str, tuple[tuple[float, float], ...]] = field(default_factory=dict)
    power_w: float | None = None
    idle_w: float | None = None
    power_source: str = ""
    power_readings: tuple[tuple[float, float], ...] = ()
    ended_ago_s: float = 0.0
    recorded: bool = False
    when: str = ""

    def percentile(self, q: float) -> float:
        """Milliseconds that `q` percent of the runs stay within."""
        return float(np.percentile(self.samples_ms, q))

    @property
    def latency_ms(self) -> float:
        """The median run."""
        return self.percentile(50)

    @property
    def energy_mj(self) -> float | None:
        """Of one inference, idle power included. None without a meter."""
        return None if self.power_w is None else self.power_w * self.latency_ms

    @property
    def error_ms(self) -> float:
        """Standard error of the median, from the spread of batch medians: runs next to one another are alike."""
        return _standard_error(self.samples_ms, np.median)

    @property
    def error_w(self) -> float | None:
        """Standard error of the mean power, from batch means; None with fewer than FEW_READINGS. What the meter itself is wrong by is not in it."""
        return _standard_error([w for _, w in self.power_readings], np.mean) if len(self.power_readings) >= FEW_READINGS else None

    @property
    def energy_mj_interval(self) -> tuple[float, float] | None:
        """95 % interval of `energy_mj` from the spread of runs and readings; None where either is not known."""
        if self.power_w is None or self.energy_mj is None or self.error_w is None:
            return None
        spread = INTERVAL * float(np.hypot(self.error_w * self.latency_ms, self.power_w * self.error_ms))
        return self.energy_mj - spread, self.energy_mj + spread

    @property
    def unstable(self) -> tuple[str, ...]:
        """Why the median should not be believed; empty when nothing speaks against it."""
        found: list[str] = []
        if len(self.samples_ms) < FEWEST:
            return (f"only {len(self.samples_ms)} timed runs",)
        ratio = self.percentile(90) / self.latency_ms
        if ratio > SPREAD:
            found.append(f"unsteady: one run in ten takes {ratio:.2f} times the median or more (other load on the board?)")
        third = len(self.samples_ms) // 3
        drift = float(np.median(self.samples_ms[-third:]) / np.median(self.samples_ms[:third]))
        if max(drift, 1.0 / drift) > DRIFT:
            found.append(f"drifting: the last third takes {drift:.2f} times the first (throttling, or not warmed up)")
        for domain, (start, end) in self.clocks_hz.items():
            if start and abs(end / start - 1.0) > CLOCK:
                found.append(f"clock {domain} moved from {start / 1e6:.0f} to {end / 1e6:.0f} MHz: fix it (governor userspace or performance)")
        if "not held" in self.facts.get("clock_lock", ""):
            found.append(f"the clock was fixed and did not stay: {self.facts['clock_lock']}")
        return (*found, *self.throttling)

    @property
    def throttling(self) -> tuple[str, ...]:
        """Domains whose clock fell while the board grew hotter, in words. Without a sensor, or when it was no hotter, a fall is not called so."""
        heat = self.series.get("temperature_c", ())
        found: list[str] = []
        for domain, values in self.series.items():
            if domain == "temperature_c" or not heat:
                continue
            highest = 0.0
            for second, hz in values:
                highest = max(highest, hz)
                hot = max((c for s, c in heat if s <= second), default=heat[0][1])
                if hz < highest * (1.0 - CLOCK) and hot > heat[0][1] + HOTTER_C:
                    found.append(f"throttled: clock {domain} fell from {highest / 1e6:.0f} to {hz / 1e6:.0f} MHz after {second:.1f} s, "
                                 f"while the hottest sensor went from {heat[0][1]:.0f} to {hot:.0f} C: cool the board, or measure at a lower clock")
                    break
        return tuple(found)

    def to_dict(self) -> dict[str, Any]:
        """As JSON, with the figures that are derived from the runs."""
        derived = {"latency_ms": self.latency_ms, "p10_ms": self.percentile(10), "p90_ms": self.percentile(90), "p99_ms": self.percentile(99),
                   "mean_ms": float(np.mean(self.samples_ms)), "error_ms": self.error_ms, "runs": len(self.samples_ms), "energy_mj": self.energy_mj,
                   "energy_mj_interval": self.energy_mj_interval, "unstable": list(self.unstable)}
        return derived | asdict(self)

    def save(self, path: Path) -> None:
        write_text(path, json.dumps(self.to_dict(), indent=1) + "\n")

    @staticmethod
    def from_dict(body: Mapping[str, Any], where: str) -> Measurement:
        """The inverse of `to_dict`. Raises InputError naming `where` and what is missing."""
        known = {f.name: f for f in fields(Measurement)}
        try:
            values = {k: v for k, v in body.items() if k in known}
            values["samples_ms"] = tuple(float(x) for x in values["samples_ms"])
            values["clocks_hz"] = {k: (float(a), float(b)) for k, (a, b) in values.get("clocks_hz", {}).items()}
            values["series"] = {k: tuple((float(s), float(v)) for s, v in rows) for k, rows in values.get("series", {}).items()}
            values["power_readings"] = tuple((float(s), float(w)) for s, w in values.get("power_readings", ()))
            made = Measurement(**values)
        except (KeyError, TypeError, ValueError) as error:
            raise InputError(f"{where} is not a stored measurement ({error}); `qbench measure ... -o FILE` writes one") from error
        if not made.samples_ms or min(made.samples_ms) <= 0.0:
            raise InputError(f"{where} holds no timed run with a positive time")
        return made


def _standard_error(values: Sequence[float], middle: Callable[[Array], Any]) -> float:
    parts = np.array_split(np.asarray(values), min(8, max(2, len(values) // 5)))
    middles = np.array([middle(p) for p in parts if len(p)])
    return float(middles.std(ddof=1) / np.sqrt(len(middles))) if len(middles) > 1 else 0.0


class PowerMeter(Protocol):
    """An instrument in the board's supply, read by the machine that qbench runs on."""

    def start(self) -> None:
        """Begins to read; seconds count from here."""
        ...

    def stop(self) -> Sequence[tuple[float, float]]:
        """Ends it; (seconds since start, watts) of every reading in order."""
        ...


class Board(Protocol):
    """Whatever runs a model and times it: this machine, a device, a recording."""

    @property
    def url(self) -> str: ...

    def facts(self) -> Mapping[str, str]:
        """Versions and machine, without running anything. Raises ToolError when the board does not answer."""
        ...

    def measure(self, model: Path, feeds: Sequence[Mapping[str, Array]], request: Request) -> Measurement:
        """Times `model` on the inputs, in turn: input name -> array with its batch axis.

        Raises ToolError when the board or its runtime fails; its own message is in the text.
        """
        ...
