"""This machine as a board: the agent in a process of its own, so that nothing of qbench is timed with it."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np

from qbench.board import Array, Measurement, Request, parse_clock
from qbench.errors import InputError, ToolError
from qbench.targets.boards.outputs import decoded
from qbench.targets.boards.urls import ON_BOARD, Options, read_options

AGENT = Path(__file__).with_name("agent.py")
HERE = ("onnxruntime", "openvino")
"""Runtimes that run on any machine."""


class ByAgent(ABC):
    """A board whose agent answers: what it is asked for, here or behind a link."""

    __slots__ = ()
    url: str

    def measure(self, model: Path, feeds: Sequence[Mapping[str, Array]], request: Request) -> Measurement:
        return measurement(self.url, model, self._ask("measure", model, feeds, request))

    def outputs(self, model: Path, feeds: Sequence[Mapping[str, Array]], request: Request) -> list[dict[str, Array]]:
        return decoded(self.url, model, self._ask("outputs", model, feeds, request))

    @abstractmethod
    def _ask(self, what: str, model: Path, feeds: Sequence[Mapping[str, Array]], request: Request) -> dict[str, Any]:
        """The agent's answer to "measure" or "outputs"."""


@dataclass(frozen=True, slots=True)
class Local(ByAgent):
    """sysfs   root of the file system that shows clocks, sensors and meters"""

    url: str
    runtime: str = "onnxruntime"
    options: Options = field(default_factory=Options)
    sysfs: str = "/"

    def facts(self) -> Mapping[str, str]:
        run = subprocess.run([sys.executable, str(AGENT), "facts", self.runtime], capture_output=True, text=True, check=False)
        if run.returncode:
            raise ToolError(f"{self.url}: {self.runtime} does not answer: {last_line(run.stderr)}")
        return answer_of(self.url, run.stdout)

    def _ask(self, what: str, model: Path, feeds: Sequence[Mapping[str, Array]], request: Request) -> dict[str, Any]:
        with tempfile.TemporaryDirectory(prefix="qbench-") as folder:
            place = Path(folder)
            asked, answer = place / "request.json", place / "answer.json"
            asked.write_text(json.dumps(agent_request(str(model.resolve()), store(feeds, place), request, self.options) | {"sysfs": self.sysfs}))
            run = subprocess.run([sys.executable, str(AGENT), what, self.runtime, str(asked), str(answer)], capture_output=True, text=True, check=False)
            if run.returncode or not answer.is_file():
                raise ToolError(f"{self.url}: the measuring process ended with {run.returncode}: {last_line(run.stderr)}")
            return answer_of(self.url, answer.read_text(errors="replace"))


def open_local(url: str) -> Local:
    """`local://[RUNTIME][?threads=N&clock=1000MHz]`. Raises InputError."""
    parts = urlsplit(url)
    runtime = parts.netloc or HERE[0]
    if runtime not in HERE or parts.path.strip("/"):
        raise InputError(f"board {url!r}: expected local://, local://openvino or local://onnxruntime?threads=1 (runtimes here: {', '.join(HERE)})")
    return Local(url, runtime, read_options(url, ON_BOARD))


def store(feeds: Sequence[Mapping[str, Array]], folder: Path) -> list[str]:
    """Writes each sample as one .npz; their paths."""
    paths = []
    for number, sample in enumerate(feeds):
        path = folder / f"input-{number:04d}.npz"
        np.savez(path, **sample)  # type: ignore[arg-type]  # numpy's stub takes `allow_pickle` for any keyword
        paths.append(str(path))
    return paths


def agent_request(model: str, inputs: list[str], request: Request, options: Options) -> dict[str, Any]:
    """What the agent reads; the request goes before the URL. Raises InputError for a clock that cannot be read."""
    clock = request.clock or options.clock
    return asdict(request) | {"model": model, "inputs": inputs, "threads": request.threads or options.threads, "clock": parse_clock(clock) if clock else None,
                              "outputs": "", "sysfs": "/"}


def measurement(url: str, model: Path, answer: Mapping[str, Any]) -> Measurement:
    """The agent's answer as a record. Raises ToolError with the runtime's message when it failed."""
    if "error" in answer:
        raise ToolError(f"{url}: {model.name} does not run: {answer['error']}")
    return Measurement.from_dict({**answer, "board": url, "model": model.name}, f"the answer of {url}")


def answer_of(url: str, text: str) -> dict[str, Any]:
    """What an agent wrote. Raises ToolError for anything else: a full disk, a shell that prints a greeting, another program under Python's name."""
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise ToolError(f"{url}: the board's answer is not that of qbench's agent: {text.strip()[:120] or 'nothing'!r}. Is the disk full, does ?python= name a Python, "
                        "and do the shell's start-up files print nothing?")
    return found


def last_line(text: str) -> str:
    """The last line that says something."""
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "it said nothing")
