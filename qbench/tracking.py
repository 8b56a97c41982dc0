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
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from time import perf_counter, sleep
from types import TracebackType
from typing import Any, Self

from qbench.errors import InputError, QbenchError
from qbench.result import Candidate, SearchResult

STORE = Path("qbench-out") / "mlflow.db"
"""Where runs go, below the working folder, when MLFLOW_TRACKING_URI says nothing else."""
WAIT_S = 120.0
"""Longest that the end of a search waits while nothing more is written."""
HTTP = {"MLFLOW_HTTP_REQUEST_MAX_RETRIES": "4", "MLFLOW_HTTP_REQUEST_TIMEOUT": "30"}
"""To a server that went away, unless the user's environment says otherwise: MLflow's own 7 and 120 s are half an hour."""

AHEAD = 3
"""Models of the front that wait on disk for being logged."""


def default_store() -> str:
    """MLFLOW_TRACKING_URI, or the SQLite file below the working folder."""
    return os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{STORE.resolve()}"


Models = Mapping[str, Callable[[Path], None]]
"""Name of a candidate -> writes its Q/DQ model to a path."""


def check_name(register: str, track: bool = True) -> None:
    """Raises InputError for a name of a registered model that MLflow refuses, before any work is done."""
    if not track:
        raise InputError(f"--register {register} with --no-track: a model is registered where the search is logged; leave one of the two out")
    if not register.strip() or set(register) & set("/:") or register != register.strip():
        raise InputError(f"--register {register!r}: the name of a registered model is not empty, has no '/' or ':' and no blanks at its ends")


def tracking_text(where: Mapping[str, str]) -> str:
    """What the user has to know of the tracking: the registered model, or what went wrong; "" when there is nothing."""
    if "error" in where:
        return f"warning: MLflow on {where.get('uri', '')}: {where['error']}; the result folder is complete, the store is not"
    return f"registered: {where['registered']}" if where.get("registered", "not ")[:4] != "not " else f"warning: {where['registered']}" if "registered" in where else ""


class NoTracker:
    """Stands where a Tracker would when the user wants no runs."""

    def begin(self, study: str, params: Mapping[str, str], about: Mapping[str, Any] | None = None) -> None: ...
    def candidate(self, candidate: Candidate) -> None: ...
    def measured(self, candidates: Sequence[Candidate]) -> None: ...
    def note(self, text: str) -> None: ...
    def where(self) -> Mapping[str, str]:
        return {}

    def finish(self, result: SearchResult, artifacts: Sequence[Path] = (), models: Models | None = None, register: str | None = None) -> Mapping[str, str]:
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
        self._heard = 0.0
        self.waited_s = 0.0
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()

    @classmethod
    def start(cls, folder: Path, name: str, target: str, store: str | None = None, command: str = "") -> Tracker:
        """Starts the process; returns at once.

        folder   result folder: candidates' plans are read from it
        name     of the network or sample: the experiment is "qbench NAME"
        command  that began the search: what MLflow shows as its source
        """
        uri = store or default_store()
        quiet = {"MLFLOW_DISABLE_TELEMETRY": "true", "MLFLOW_LOGGING_LEVEL": "ERROR", "GIT_PYTHON_REFRESH": "quiet"}
        began = perf_counter()
        process = subprocess.Popen(
            [sys.executable, "-W", "ignore", "-m", "qbench.mlflow_worker"], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL, text=True, encoding="utf-8", env={**HTTP, **os.environ, **quiet}, start_new_session=True)
        tracker = cls(process, folder)
        tracker._send(do="open", uri=uri, experiment=f"qbench {name}", target=target, folder=str(folder.resolve()),
                      pid=os.getpid(), host=socket.gethostname(), command=command)
        tracker.waited_s = perf_counter() - began
        return tracker

    def begin(self, study: str, params: Mapping[str, str], about: Mapping[str, Any] | None = None) -> None:
        """Opens the search's run: the unfinished one of this study where there is one, else a new one.

        about   weights: unit -> elements; datasets: name, digest, context and samples of each
        """
        self._begun = True
        self._send(do="begin", study=study, params=dict(params), about=dict(about or {}))

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

    def finish(self, result: SearchResult, artifacts: Sequence[Path] = (), models: Models | None = None, register: str | None = None) -> Mapping[str, str]:
        """Logs the chosen plan, `artifacts` and the front's models to the search's run and waits until all is written.

        models     of the front, the chosen plan's first; each file is removed when it is logged
        register   name of the registered model that the chosen plan's becomes the newest version of; what came of it is `registered`
        """
        self._begin_anyway()
        with tempfile.TemporaryDirectory(prefix="qbench-") as folder:
            chosen = result.chosen.name if result.chosen else ""
            for i, name in enumerate(sorted(models or {}, key=lambda n: n != chosen)):
                path = Path(folder) / f"{i}.onnx"
                self._wait_for_room(Path(folder))
                if not self._open:
                    break
                try:
                    (models or {})[name](path)
                except (QbenchError, OSError) as error:      # a full disk, say: the search is done and stays so
                    self.note(f"model of {name} not logged: {error}")
                    continue
                self._send(do="model", name=name, file=str(path), chosen=name == chosen)
            found = self._ask(do="finish", result=result.to_dict(), artifacts=[str(a.resolve()) for a in artifacts if a.is_file()], register=register or "")
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

    def _wait_for_room(self, folder: Path) -> None:
        """Models may be large: few of them are on disk at a time."""
        end = perf_counter() + WAIT_S
        while self._process.poll() is None and perf_counter() < end and sum(1 for _ in folder.iterdir()) >= AHEAD:
            sleep(0.02)

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
            if (reply := self._reply()) is not None:
                self._where = {str(k): str(v) for k, v in reply.items()}
            else:
                self._open = False
                self._process.kill()
                self._where.setdefault("error", f"nothing was written for {WAIT_S:g} s")
        self.waited_s += perf_counter() - began
        return dict(self._where)

    def _reply(self) -> dict[str, Any] | None:
        """The next answer; None when the process did nothing for WAIT_S."""
        began = perf_counter()
        while (left := max(self._heard, began) + WAIT_S - perf_counter()) > 0.0:
            with suppress(queue.Empty):
                return self._replies.get(timeout=left)
        return None

    def _listen(self) -> None:
        assert self._process.stdout is not None, "opened as a pipe"
        for line in self._process.stdout:
            self._heard = perf_counter()
            if line.strip():
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
