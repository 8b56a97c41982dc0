"""Servers for as long as the user looks: what is started, on which address, and that nothing of it is left."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from time import monotonic, sleep

import pytest

from qbench.errors import InputError, ToolError
from qbench.serving import Page, mlflow_page, no_search_yet, optuna_page, serve

SERVER = """
import http.server, os, subprocess, sys
child = subprocess.Popen([sys.executable, "-c", "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"] if sys.argv[2] == "deaf" else ["sleep", "600"])
open("pids", "w").write(f"{os.getpid()} {child.pid}")
http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), http.server.SimpleHTTPRequestHandler).serve_forever()
"""
SERVE = """
import sys
from qbench import serving
serving.STOP_S = 2.0
port = int(sys.argv[1])
page = serving.Page((sys.executable, "-c", sys.argv[2], sys.argv[1], sys.argv[3]), "stand-in", f"http://127.0.0.1:{port}")
serving.serve(page, port, lambda address: print(address, flush=True))
"""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def gone(pid: int) -> bool:
    """Whether a process has ended; one that nobody has waited for counts as ended."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    state = Path(f"/proc/{pid}/stat")
    return state.exists() and state.read_text().rpartition(")")[2].split()[0] == "Z"


@pytest.mark.parametrize(("number", "kind"), [(signal.SIGINT, "polite"), (signal.SIGTERM, "polite"), (signal.SIGTERM, "deaf")])
def test_a_signal_ends_the_server_and_its_children(number: signal.Signals, kind: str, tmp_path: Path) -> None:
    port = free_port()
    ours = subprocess.Popen([sys.executable, "-c", SERVE, str(port), SERVER, kind], cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert ours.stdout is not None and ours.stdout.readline() == f"http://127.0.0.1:{port}\n"
    pids = [int(p) for p in (tmp_path / "pids").read_text().split()]
    assert not any(map(gone, pids))
    ours.send_signal(number)
    _, said = ours.communicate(timeout=60)
    assert ours.returncode == 0, said
    end = monotonic() + 10
    while not all(map(gone, pids)):
        assert monotonic() < end, pids
        sleep(0.05)


def test_a_server_that_ends_says_why() -> None:
    port = free_port()
    with pytest.raises(ToolError, match="the server ended at once \\(exit code 7\\): no such table"):
        serve(Page((sys.executable, "-c", "import sys; print('no such table', file=sys.stderr); sys.exit(7)"), "MLflow", f"http://127.0.0.1:{port}"), port, print)


def test_a_server_that_dies_with_a_traceback_says_the_error_alone() -> None:
    port = free_port()
    code = "class StoreException(Exception): pass\nStoreException.__module__ = 'a.b'\nraise StoreException('no such store')"
    with pytest.raises(ToolError, match=r"^the server ended at once \(exit code 1\): no such store$"):
        serve(Page((sys.executable, "-c", code), "MLflow", f"http://127.0.0.1:{port}"), port, print)


def test_a_store_that_is_not_there_yet_is_told(tmp_path: Path) -> None:
    page = mlflow_page(store=f"sqlite:///{tmp_path}/mlflow.db")
    assert "mlflow.db does not exist yet" in no_search_yet(page) and "give its result folder" in no_search_yet(page)
    (tmp_path / "mlflow.db").touch()
    assert no_search_yet(page) == "" == no_search_yet(mlflow_page(store="postgresql://h/db")) == no_search_yet(mlflow_page(store="http://tracking:5000"))
    with pytest.raises(InputError, match=rf"--store sqlite:///{tmp_path}/mlflow\.db"):
        mlflow_page(store=f"{tmp_path}/mlflow.db")


def test_a_port_that_is_taken_is_named() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(InputError, match=f"port {port} on 127.0.0.1 is taken .*--port {port + 1}"):
            serve(Page(("true",), "MLflow", "http://127.0.0.1"), port, print)


def test_mlflow_listens_on_loopback_only_and_finds_the_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = mlflow_page(store="sqlite:////x/mlflow.db", port=5050)
    assert page.command[5:] == ("ui", "--backend-store-uri", "sqlite:////x/mlflow.db", "--default-artifact-root", "file:///x/mlartifacts", "--host", "127.0.0.1",
                                "--port", "5050", "--workers", "1")
    assert mlflow_page(store="http://tracking:5000/") == Page((), "MLflow on http://tracking:5000/", "http://tracking:5000", "")
    assert "postgresql+psycopg://u:secret@h/db" in (secret := mlflow_page(store="postgresql://u:secret@h/db")).command and "secret" not in secret.title
    (tmp_path / "summary.json").write_text(json.dumps({"mlflow": {"uri": "postgresql://u:***@h/db", "experiment": "qbench brain"}}))
    with pytest.raises(InputError, match="passwords are not kept in result folders"):
        mlflow_page(tmp_path)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "postgresql://u:secret@h/db")
    assert mlflow_page(tmp_path).experiment == "qbench brain" and "postgresql+psycopg://u:secret@h/db" in mlflow_page(tmp_path).command


def test_folders_that_cannot_be_shown_say_why(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no result of `qbench search`"):
        mlflow_page(tmp_path)
    (tmp_path / "summary.json").write_text('{"mlflow": {}}')
    with pytest.raises(InputError, match="--no-track, so MLflow knows nothing of it"):
        mlflow_page(tmp_path)


def test_optuna_dashboard_is_started_on_the_study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ToolError, match=r"^optuna-dashboard is not installed: pip install optuna-dashboard$"):
        optuna_page()
    monkeypatch.setattr("importlib.util.find_spec", lambda name: object())
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match=r"no study\.db of a search here"):
        optuna_page()
    study = tmp_path / "qbench-out" / "brain" / "study.db"
    study.parent.mkdir(parents=True)
    study.touch()
    expected = (f"sqlite:///{study}", "--host", "127.0.0.1", "--port", "8081")
    assert optuna_page(port=8081).command[-5:] == expected and optuna_page(study.parent, port=8081).command[-5:] == expected
    assert optuna_page(store="postgresql://h/db").command[-5] == "postgresql://h/db"
