"""Web pages on the loopback address for as long as the user looks: MLflow on a store, optuna-dashboard on a study."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from qbench.addresses import with_driver, without_password
from qbench.errors import InputError, ToolError
from qbench.mlflow_view import VIEW
from qbench.tracking import STORE, default_store

HOST = "127.0.0.1"
START_S = 300.0
"""Longest that a server may take to answer: MLflow makes the tables of a new database first, and the machine may be busy with a search."""
_QUIET = {"MLFLOW_DISABLE_TELEMETRY": "true", "MLFLOW_LOGGING_LEVEL": "ERROR", "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}
"""No seven more processes for jobs that nobody starts here."""
STOP_S = 10.0
"""Longest that it may take to end before it is killed."""


@dataclass(frozen=True, slots=True)
class Page:
    """command     that serves it; () where a server runs elsewhere already
    title       what is shown
    base        its address without the part behind the slash
    experiment  name of the MLflow experiment to open; "" for the newest of qbench, None where the page is not MLflow
    """

    command: tuple[str, ...]
    title: str
    base: str
    experiment: str | None = None


def mlflow_page(folder: Path | None = None, store: str | None = None, port: int = 5000) -> Page:
    """MLflow on `store`, or on that of the search in `folder`, or on the default one.

    Raises InputError for a folder without a tracked search.
    """
    where = _where(folder) if folder is not None else {}
    uri = store or _whole(where.get("uri", "")) or default_store()
    if uri.startswith(("http://", "https://")):
        return Page((), f"MLflow on {uri}", uri.rstrip("/"), where.get("experiment", ""))
    if "://" not in uri and Path(uri).is_file():
        raise InputError(f"--store {uri}: a database is given as an address: --store sqlite:///{uri}")
    if ":***@" in uri:
        raise InputError(f"{uri}: passwords are not kept in result folders; give the store whole by --store or MLFLOW_TRACKING_URI")
    command = (sys.executable, "-W", "ignore", "-m", "mlflow", "ui", "--backend-store-uri", with_driver(uri), *_artifacts(uri), "--host", HOST, "--port", str(port), "--workers", "1")
    return Page(command, f"MLflow on {without_password(uri)}", f"http://{HOST}:{port}", where.get("experiment", ""))


def _whole(uri: str) -> str:
    """The store of a result folder, with its password where the environment has it."""
    return default_store() if uri == without_password(default_store()) else uri


def _artifacts(uri: str) -> tuple[str, ...]:
    """MLflow would else make a folder for artifacts wherever it is started."""
    return ("--default-artifact-root", (Path(uri.removeprefix("sqlite:///")).resolve().parent / "mlartifacts").as_uri()) if uri.startswith("sqlite:///") else ()


def _where(folder: Path) -> Mapping[str, str]:
    try:
        found: dict[str, str] = json.loads((folder / "summary.json").read_text(encoding="utf-8"))["mlflow"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"{folder}: no result of `qbench search` ({type(error).__name__}); give its folder, which holds summary.json") from error
    if not found.get("uri"):
        raise InputError(f"{folder}: this search was run with --no-track, so MLflow knows nothing of it; `qbench report {folder}` shows it")
    return found


def optuna_page(folder: Path | None = None, store: str | None = None, port: int = 8080) -> Page:
    """optuna-dashboard on the study of the search in `folder`, or on that of the newest one below the working folder.

    Raises ToolError where it is not installed, InputError where there is no study.
    """
    if importlib.util.find_spec("optuna_dashboard") is None:
        raise ToolError("optuna-dashboard is not installed: pip install optuna-dashboard")
    command = (sys.executable, "-W", "ignore", "-c", "from optuna_dashboard._cli import main; main()", store or _study(folder), "--host", HOST, "--port", str(port))
    return Page(command, "optuna-dashboard", f"http://{HOST}:{port}")


def _study(folder: Path | None) -> str:
    if folder is not None:
        found = [folder / "study.db"] if (folder / "study.db").is_file() else []
    else:
        found = sorted(STORE.parent.glob("*/study.db"), key=lambda p: p.stat().st_mtime)
    if not found:
        raise InputError(f"{folder or STORE.parent}: no study.db of a search here; give the result folder, or the database by --store")
    return f"sqlite:///{found[-1].resolve()}"


def serve(page: Page, port: int, opened: Callable[[str], None]) -> int:
    """Starts the page's server, tells `opened` the address once it answers, and waits until it ends or this process is told to.

    Returns 0 after Ctrl-C, SIGTERM or SIGHUP, with every process of the server gone. Raises InputError for a port that is taken and
    ToolError for a server that ends or does not answer.
    """
    if not page.command:
        opened(_address(page))
        return 0
    _check_free(port)
    asked: list[int] = []

    def stop(number: int, frame: FrameType | None) -> None:
        asked.append(number)

    signals = [s for name in ("SIGINT", "SIGTERM", "SIGHUP") if (s := getattr(signal, name, None)) is not None]
    before = {s: signal.signal(s, stop) for s in signals}
    process = subprocess.Popen(page.command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, errors="replace",
                               env={**os.environ, **_QUIET}, start_new_session=True)
    try:
        if _answers(process, page.base, asked):
            opened(_address(page))
        while not asked and process.poll() is None:
            time.sleep(0.1)
        if not asked:
            raise ToolError(f"{page.title}: the server ended by itself (exit code {process.returncode})")
    finally:
        end(process)
        for number, old in before.items():
            signal.signal(number, old)
    return 0


def _check_free(port: int) -> None:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError as error:
            raise InputError(f"port {port} on {HOST} is taken ({error.strerror}); another one: --port {port + 1}") from error


def _answers(process: subprocess.Popen[str], base: str, asked: Sequence[int]) -> bool:
    """True once the server answers, False when the user stopped it before. Raises ToolError when it ended or never answers."""
    patience = time.monotonic() + START_S
    said: list[str] = []
    _drain(process, said)
    while not asked:
        if process.poll() is not None:
            raise ToolError(f"the server ended at once (exit code {process.returncode}): {_reason(said)}")
        if time.monotonic() > patience:
            raise ToolError(f"the server did not answer on {base} within {START_S:g} s: {_reason(said)}")
        try:
            with _plain_http().open(base, timeout=2.0):
                return True
        except OSError:
            time.sleep(0.2)
    return False


def _drain(process: subprocess.Popen[str], said: list[str]) -> None:
    """Reads what the server says, so that it never waits for us; the last lines are kept for the error message."""
    def read() -> None:
        assert process.stderr is not None, "opened as a pipe"
        for line in process.stderr:
            said.append(line)
            del said[:-20]
        process.stderr.close()

    threading.Thread(target=read, daemon=True).start()


def _reason(said: Sequence[str]) -> str:
    """What a server died of: the line of its error, where it printed a traceback, else its last words."""
    errors = [found[1] for line in said if (found := re.match(r"(?:\w+\.)*\w+(?:Error|Exception): *(.+)", line))]
    return (errors[-1] if errors else "".join(said[-3:])).strip() or "it said nothing"


def no_search_yet(page: Page) -> str:
    """A remark where the page's database does not exist: MLflow makes an empty one, and a user in another folder wonders; else ""."""
    uri = next((a for a in page.command if a.startswith("sqlite:///")), "")
    store = Path(uri.removeprefix("sqlite:///"))
    if not uri or page.experiment is None or store.exists():
        return ""
    return f"{store} does not exist yet: the page stays empty until `qbench search` has run here; for a search elsewhere, give its result folder"


def _plain_http() -> urllib.request.OpenerDirector:
    """Loopback is never asked for through a proxy."""
    return urllib.request.build_opener(urllib.request.ProxyHandler({}))


def end(process: subprocess.Popen[Any]) -> None:
    """Ends a process that has a session of its own, and everything it started."""
    for number in (signal.SIGTERM, signal.SIGKILL) if hasattr(signal, "SIGKILL") else (signal.SIGTERM,):
        with suppress(ProcessLookupError):              # all of them ended before
            os.killpg(process.pid, number) if hasattr(os, "killpg") else process.kill()
        try:
            process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            continue
        if not hasattr(os, "killpg"):
            return


def _address(page: Page) -> str:
    """Of the experiment where MLflow has it; else of the start page."""
    if page.experiment is None:
        return page.base
    body = json.dumps({"max_results": 1000, "order_by": ["last_update_time DESC"]}).encode()
    request = urllib.request.Request(f"{page.base}/api/2.0/mlflow/experiments/search", body, {"Content-Type": "application/json"})
    opener = _plain_http() if page.base.startswith(f"http://{HOST}:") else urllib.request.build_opener()
    try:
        with opener.open(request, timeout=10.0) as answer:
            found = json.load(answer).get("experiments", [])
    except (OSError, ValueError) as error:
        raise ToolError(f"{page.base}: MLflow does not answer there ({error})") from error
    ours = [e for e in found if e["name"] == page.experiment] or [e for e in found if not page.experiment and e["name"].startswith("qbench ")]
    return f"{page.base}/#/experiments/{ours[0]['experiment_id']}/runs?viewStateShareKey={VIEW}" if ours else page.base
