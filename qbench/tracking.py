"""Every candidate of a search as an MLflow run, written by a process of its own.

Importing MLflow takes seconds and making its database five more, so a second process does it (`qbench.mlflow_worker`) while the
statistics are collected; the search only writes lines into a pipe. When the search is killed the pipe closes and the process marks
the run as killed; a search that continues finds its parent run by the study's name and goes on with it.
Tracking never stops a search: what goes wrong is in `Tracker.where()["error"]`.
"""

from __future__ import annotations

import json
import os
import queue
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from time import perf_counter
from types import TracebackType
from typing import Any, Self

from qbench.errors import InputError
from qbench.result import Candidate, SearchResult

STORE = Path("qbench-out") / "mlflow.db"
"""Where runs go, below the working folder, when MLFLOW_TRACKING_URI says nothing else."""
WAIT_S = 120.0
"""Longest that the end of a search waits for the last runs to be written."""


def default_store() -> str:
    """MLFLOW_TRACKING_URI, or the SQLite file below the working folder."""
    return os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{STORE.resolve()}"


def ui_command(store: str, port: int = 5000) -> list[str]:
    """The command that shows `store` in MLflow's user interface, on the loopback address only.

    Raises InputError for a store that is a server: that has its user interface already.
    """
    if store.startswith(("http://", "https://")):
        raise InputError(f"{store} is an MLflow server: open that address in a browser")
    return [sys.executable, "-W", "ignore", "-m", "mlflow", "ui", "--backend-store-uri", store, "--host", "127.0.0.1", "--port", str(port)]


class NoTracker:
    """Stands where a Tracker would when the user wants no runs."""

    def begin(self, study: str, params: Mapping[str, str]) -> None: ...
    def candidate(self, candidate: Candidate) -> None: ...
    def measured(self, candidates: Sequence[Candidate]) -> None: ...
    def note(self, text: str) -> None: ...
    def where(self) -> Mapping[str, str]:
        return {}

    def finish(self, result: SearchResult, artifacts: Sequence[Path] = ()) -> Mapping[str, str]:
        return {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None: ...


class Tracker:
    """The search's end of the pipe. Use as a context manager: leaving it by an exception marks the run.

    waited_s   seconds that the search spent in here, waiting included
    """

    def __init__(self, process: subprocess.Popen[str], folder: Path) -> None:
        self._process, self._folder = process, folder
        self._replies: queue.Queue[dict[str, Any]] = queue.Queue()
        self._where: dict[str, str] = {}
        self._open, self._begun = True, False
        self.waited_s = 0.0
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()

    @classmethod
    def start(cls, folder: Path, name: str, target: str, store: str | None = None) -> Tracker:
        """Starts the process; returns at once.

        folder   result folder: candidates' plans are read from it
        name     of the network or sample: the experiment is "qbench NAME"
        """
        uri = store or default_store()
        quiet = {"MLFLOW_DISABLE_TELEMETRY": "true", "MLFLOW_LOGGING_LEVEL": "ERROR", "GIT_PYTHON_REFRESH": "quiet"}
        began = perf_counter()
        process = subprocess.Popen(
            [sys.executable, "-W", "ignore", "-m", "qbench.mlflow_worker"], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL, text=True, encoding="utf-8", env={**os.environ, **quiet}, start_new_session=True)
        tracker = cls(process, folder)
        tracker._send(do="open", uri=uri, experiment=f"qbench {name}", target=target, folder=str(folder.resolve()),
                      pid=os.getpid(), host=socket.gethostname())
        tracker.waited_s = perf_counter() - began
        return tracker

    def begin(self, study: str, params: Mapping[str, str]) -> None:
        """Opens the search's run: the unfinished one of this study where there is one, else a new one."""
        self._begun = True
        self._send(do="begin", study=study, params=dict(params))

    def candidate(self, candidate: Candidate) -> None:
        """One run below the search's. A name that the run holds already (after a resume) is not written twice."""
        self._begin_anyway()
        path = str((self._folder / candidate.plan).resolve()) if candidate.plan else ""
        self._send(do="candidate", file=path, **SearchResult.candidate_json(candidate))

    def measured(self, candidates: Sequence[Candidate]) -> None:
        """What boards said of candidates, beside their predictions, in the runs that `candidate` made."""
        for c in candidates:
            self._send(do="measured", **SearchResult.candidate_json(c))

    def note(self, text: str) -> None:
        """A line of notes.txt beside the search's run."""
        self._send(do="note", text=text)

    def where(self) -> Mapping[str, str]:
        """uri, experiment and run (the search's run id); with `error` where tracking failed. Waits until the run exists."""
        self._begin_anyway()
        return self._ask(do="where")

    def finish(self, result: SearchResult, artifacts: Sequence[Path] = ()) -> Mapping[str, str]:
        """Logs the chosen plan, the front as a plot and `artifacts` to the search's run and waits until all is written."""
        self._begin_anyway()
        found = self._ask(do="finish", result=result.to_dict(), artifacts=[str(a.resolve()) for a in artifacts if a.is_file()])
        self._close()
        return found

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._open:
            if kind is None or kind is KeyboardInterrupt:
                self._send(do="stop", status="KILLED", reason="stopped by the user" if kind else "closed without a result")
            else:
                self._send(do="stop", status="FAILED", reason=f"{kind.__name__}: {error}")
            self._close()

    # -- the pipe

    def _begin_anyway(self) -> None:
        if not self._begun:
            self.begin(str(self._folder.resolve()), {})

    def _send(self, **message: Any) -> None:
        if not self._open or self._process.stdin is None:
            return
        began = perf_counter()
        try:
            self._process.stdin.write(json.dumps(message) + "\n")
            self._process.stdin.flush()
        except OSError:
            self._open = False
            self._where.setdefault("error", "the tracking process ended early")
        self.waited_s += perf_counter() - began

    def _ask(self, **message: Any) -> dict[str, str]:
        began = perf_counter()
        self._send(**message)
        if self._open:
            try:
                self._where = {str(k): str(v) for k, v in self._replies.get(timeout=WAIT_S).items()}
            except queue.Empty:
                self._where.setdefault("error", f"the tracking process did not answer within {WAIT_S:g} s")
        self.waited_s += perf_counter() - began
        return dict(self._where)

    def _listen(self) -> None:
        assert self._process.stdout is not None, "opened as a pipe"
        for line in self._process.stdout:
            self._replies.put(json.loads(line))
        self._replies.put({**self._where, "error": "the tracking process ended early"})

    def _close(self) -> None:
        began = perf_counter()
        self._open = False
        try:
            if self._process.stdin is not None:
                self._process.stdin.close()
        except OSError:
            pass                                       # it ended before: where() says so
        try:
            self._process.wait(WAIT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._listener.join()
        if self._process.stdout is not None:
            self._process.stdout.close()
        self.waited_s += perf_counter() - began
