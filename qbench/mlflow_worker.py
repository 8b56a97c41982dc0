"""The process that writes a search into MLflow: JSON lines in on stdin, answers out on stdout. See `qbench.tracking`.

    open        uri, experiment, target, folder, pid, host, command     begin    study, params, about
    candidate   the candidate's JSON and its plan's file        note     text
    measured    the candidate's JSON, with what a board said    model    name, file, chosen; the file is removed when it is written
    where       answered with uri, experiment, run              finish   result, artifacts, register; answered likewise, with registered
    stop        status, reason
Every message is followed by an empty line when it is done: a sign of life.
The end of stdin without finish or stop means that the search was killed.
"""

from __future__ import annotations

import json
import os
import queue
import socket
import sys
import threading
from contextlib import suppress
from pathlib import Path
from time import sleep
from typing import Any, TextIO
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

from qbench.addresses import without_password
from qbench.mlflow_writer import Writer


class Session:
    """Takes the messages in order; the first error ends the writing, and every answer carries it."""

    def __init__(self, out: TextIO) -> None:
        self.out = out
        self.writer: Writer | None = None
        self.opened: dict[str, Any] = {}
        self.error = ""
        self.registered = ""
        self.over = False

    def take(self, message: dict[str, Any]) -> None:
        do = message.pop("do")
        try:
            if not self.error:
                self._do(do, message)
        except Exception as error:      # noqa: BLE001  whatever MLflow or a database raises must not stop a search
            self.error = without_password(f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}")
        if do == "model":
            Path(message["file"]).unlink(missing_ok=True)
        if do in ("where", "finish"):
            where = {"uri": without_password(self.opened.get("uri", "")), "experiment": self.opened.get("experiment", ""), "run": self.writer.run if self.writer else ""}
            more = {"registered": self.registered, "error": self.error}
            print(json.dumps(where | {k: v for k, v in more.items() if v}), file=self.out, flush=True)

    def _do(self, do: str, told: dict[str, Any]) -> None:
        if do == "open":
            self.opened = told
            check_answers(told["uri"])
            self.writer = Writer(told)
        elif self.writer is not None:
            if do == "begin":
                self.writer.begin(told["study"], told["params"], told["about"])
            elif do == "candidate":
                self.writer.candidate(told)
            elif do == "measured":
                self.writer.measured(told)
            elif do == "note":
                self.writer.notes.append(told["text"])
            elif do == "model":
                self.writer.model(told["name"], Path(told["file"]), told["chosen"])
            elif do == "finish":
                self.over = True
                self.registered = self.writer.finish(told["result"], told["artifacts"], told["register"])
            elif do == "stop":
                self.over = True
                self.writer.stop(told["status"], "failed" if told["status"] == "FAILED" else "killed", told["reason"])

    def end(self) -> None:
        """stdin is closed: without a word before, the search was killed."""
        if not self.over and not self.error and self.writer is not None:
            self.take({"do": "stop", "status": "KILLED", "reason": "the search was killed"})


PORTS = {"http": 80, "https": 443, "postgresql": 5432, "postgres": 5432, "mysql": 3306, "mariadb": 3306}
"""Of an address that names none."""
TRIES, PAUSE_S, CONNECT_S = 3, 2.0, 10.0


def check_answers(uri: str) -> None:
    """Raises ConnectionError where no server listens at `uri`: MLflow itself would go on trying for minutes, and its database layer too."""
    parts = urlsplit(uri)
    scheme = parts.scheme.partition("+")[0]
    if scheme not in PORTS or not parts.hostname or (scheme in getproxies() and not proxy_bypass(parts.hostname)):
        return
    for left in reversed(range(TRIES)):
        try:
            socket.create_connection((parts.hostname, parts.port or PORTS[scheme]), CONNECT_S).close()
        except OSError as error:
            if not left:
                raise ConnectionError(f"no server answers there ({error.strerror or error}): does it run, and is the address right?") from error
            sleep(PAUSE_S)
        else:
            return


def main() -> None:
    """Reads ahead, so that the search never waits for MLflow to start; polite, so that it takes only time the search leaves over."""
    if hasattr(os, "nice"):
        os.nice(10)
    waiting: queue.Queue[str | None] = queue.Queue()

    def read() -> None:
        for line in sys.stdin:
            waiting.put(line)
        waiting.put(None)

    threading.Thread(target=read, daemon=True).start()
    out, sys.stdout = sys.stdout, sys.stderr              # what MLflow prints must not get among the answers
    session = Session(out)
    while (line := waiting.get()) is not None:
        session.take(json.loads(line))
        with suppress(OSError):                           # nobody reads: the search was killed, and its run still wants its mark
            print(file=out, flush=True)
    session.end()


if __name__ == "__main__":
    main()
