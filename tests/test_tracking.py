"""Tracking against a real MLflow store in SQLite: what a search leaves there, also when it is stopped, killed or continued."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from qbench.errors import InputError
from qbench.plan import Granularity, Plan
from qbench.protocols import Accuracy, Price
from qbench.result import Candidate, SearchResult
from qbench.tracking import Tracker, default_store, ui_command

READ = """
import json, sys
from mlflow.tracking import MlflowClient
client = MlflowClient(sys.argv[1])
found = []
for e in client.search_experiments():
    for r in client.search_runs([e.experiment_id], max_results=1000):
        files = sorted(f.path for f in client.list_artifacts(r.info.run_id))
        found.append({"experiment": e.name, "run": r.info.run_id, "name": r.info.run_name, "status": r.info.status, "params": r.data.params,
                      "metrics": r.data.metrics, "tags": r.data.tags, "files": files, "artifacts": r.info.artifact_uri})
print(json.dumps(found))
"""


def runs(store: str, experiment: str) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The searches and the candidates of one experiment, read by a process of its own: importing MLflow warns."""
    out = subprocess.run([sys.executable, "-W", "ignore", "-c", READ, store], capture_output=True, text=True, check=True,
                         env={**os.environ, "MLFLOW_DISABLE_TELEMETRY": "true"}).stdout
    found = [r for r in json.loads(out.splitlines()[-1]) if r["experiment"] == f"qbench {experiment}"]
    return [r for r in found if r["tags"]["qbench.role"] == "search"], [r for r in found if r["tags"]["qbench.role"] == "candidate"]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """One database for the module: making it takes seconds."""
    yield f"sqlite:///{tmp_path_factory.mktemp('mlflow')}/mlflow.db"


def candidate(name: str, value: float, folder: Path, feasible: bool = True) -> Candidate:
    plan = Plan("ab", "rk3588", "2.3", "1000MHz", "kl", Granularity.PER_CHANNEL, {}, {}, {}, {"name": name})
    plan.save(folder / "plans" / f"{name}.json")
    accuracy = Accuracy("dice", value, value - 0.01, value + 0.01, 48, 0.93 - value, -0.001, 0.02, 31.0, 0.999, float("nan"), 1.5)
    return Candidate(name, "milp", f"plans/{name}.json", f"key-{name}", "kl", "per-channel", {"int8": 9, "fp16": 3}, accuracy,
                     Price(12.5, 11.0, 14.0, 8.0, 0.64, 3_000_000, "1000MHz"), feasible, False)


def result(candidates: list[Candidate], partial: bool = False) -> SearchResult:
    reference = replace(candidates[0], name="float", origin="reference", plan="")
    return SearchResult(
        feasible=True, binding=None, budgets=("20ms",), sample=True, evaluated=len(candidates), float_pass_equivalents=12.5, wall_s=100.0,
        reference=reference, uniform={}, chosen=candidates[-1], front=tuple(candidates), candidates=tuple(candidates), sensitivity=(),
        target="rk3588", toolkit="2.3", model="brain", provenance={}, partial=partial)


def test_a_search_is_one_run_with_one_run_below_it_per_candidate(store: str, tmp_path: Path) -> None:
    some = [candidate("int8", 0.91, tmp_path), candidate("c001", 0.95, tmp_path, feasible=False), candidate("c002", 0.929, tmp_path)]
    summary = tmp_path / "summary.json"
    summary.write_text("{}")
    with Tracker.start(tmp_path, "whole", "rk3588", store) as tracker:
        tracker.begin("study-1", {"budgets": "20ms", "seed": "0"})
        for c in some:
            tracker.candidate(c)
        tracker.note("plan x dropped: too lossy")
        where = tracker.where()
        assert tracker.finish(result(some), [summary]) == where
    assert "error" not in where
    [search], below = runs(store, "whole")
    assert (where["uri"], where["experiment"], where["run"]) == (store, "qbench whole", search["run"])
    assert (search["status"], search["tags"]["qbench.state"], search["tags"]["qbench.chosen"]) == ("FINISHED", "finished", "c002")
    assert search["params"] == {"budgets": "20ms", "seed": "0"}
    assert search["metrics"]["chosen.accuracy"] == pytest.approx(0.929)
    assert search["metrics"]["best_accuracy"] == pytest.approx(0.929)             # the best feasible one, not c001
    assert search["files"] == ["front.html", "notes.txt", "summary.json"]
    assert {c["name"] for c in below} == {"int8", "c001", "c002"}
    one = next(c for c in below if c["name"] == "c001")
    assert (one["status"], one["tags"]["mlflow.parentRunId"], one["files"]) == ("FINISHED", search["run"], ["plan.json"])
    assert {k: one["tags"][f"qbench.{k}"] for k in ("target", "op_point", "feasible", "origin")} == {
        "target": "rk3588", "op_point": "1000MHz", "feasible": "False", "origin": "milp"}
    assert one["metrics"]["latency_ms_low"] == 11.0 and one["metrics"]["accuracy_high"] == pytest.approx(0.96)
    assert one["metrics"]["peak_memory_bytes"] == 3e6 and "kl" not in one["metrics"]        # not a number: left out
    assert one["params"] | {} == {"calibrator": "kl", "granularity": "per-channel", "op_point": "1000MHz", "origin": "milp",
                                  "plan_key": "key-c001", "layers.int8": "9", "layers.fp16": "3"}
    path = Path(one["artifacts"].removeprefix("file://")) / "plan.json"
    assert Plan.load(path) == Plan.load(tmp_path / "plans" / "c001.json")
    assert path.is_relative_to(Path(store.removeprefix("sqlite:///")).parent)               # artifacts lie beside the database


KILLED = """
import sys
sys.path.insert(0, sys.argv[3])
from pathlib import Path
import signal
from test_tracking import Tracker, candidate
folder = Path(sys.argv[2])
tracker = Tracker.start(folder, "killed", "rk3588", sys.argv[1])
tracker.begin("study-2", {"seed": "0"})
tracker.candidate(candidate("int8", 0.91, folder))
tracker.candidate(candidate("c001", 0.92, folder))
tracker.where()
print("ready", flush=True)
signal.pause()
"""


def test_a_killed_search_is_marked_and_its_run_is_continued(store: str, tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", KILLED, store, str(tmp_path), str(Path(__file__).parent)], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGKILL)
        assert process.stdout.read() == ""                     # ends when the tracking process, which holds no copy, cannot keep it open
    again = [candidate("int8", 0.91, tmp_path), candidate("c001", 0.92, tmp_path), candidate("c002", 0.925, tmp_path)]
    with Tracker.start(tmp_path, "killed", "rk3588", store) as tracker:
        tracker.begin("study-2", {"seed": "0", "trials": "60"})
        for c in again:
            tracker.candidate(c)
        where = tracker.finish(result(again))
    assert "error" not in where
    [search], below = runs(store, "killed")
    assert (search["run"], search["status"], search["tags"]["qbench.resumed"]) == (where["run"], "FINISHED", "1")
    assert search["params"] == {"seed": "0", "trials": "60"}
    assert sorted((c["name"], c["status"]) for c in below) == [("c001", "FINISHED"), ("c002", "FINISHED"), ("int8", "FINISHED")]


def test_a_killed_search_that_never_continues_is_not_left_running(store: str, tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", KILLED, store, str(tmp_path), str(Path(__file__).parent)], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGKILL)
    with Tracker.start(tmp_path / "other", "killed", "rk3588", store) as tracker:
        tracker.begin("another study", {})
        other = tracker.where()["run"]
    searches, below = runs(store, "killed")
    mine = [s for s in searches if s["tags"]["qbench.folder"] == str(tmp_path.resolve())]
    assert [(s["status"], s["tags"]["qbench.state"]) for s in mine] == [("KILLED", "killed")]
    assert next(s for s in searches if s["run"] == other)["status"] == "KILLED"         # left without a result
    assert {c["status"] for c in below} == {"FINISHED"}


def test_a_finished_search_is_never_written_over(store: str, tmp_path: Path) -> None:
    one = [candidate("int8", 0.91, tmp_path)]
    found = []
    for _ in range(2):
        with Tracker.start(tmp_path, "twice", "rk3588", store) as tracker:
            tracker.begin("study-3", {})
            tracker.candidate(one[0])
            found.append(tracker.finish(result(one))["run"])
    searches, below = runs(store, "twice")
    assert {s["run"] for s in searches} == set(found) and len(found) == 2
    assert sorted(c["tags"]["mlflow.parentRunId"] for c in below) == sorted(found)


def test_interrupted_and_failed_searches_say_so(store: str, tmp_path: Path) -> None:
    for error in (KeyboardInterrupt(), InputError("no such model")):
        with pytest.raises(type(error)), Tracker.start(tmp_path / type(error).__name__, "stopped", "rk3588", store) as tracker:
            tracker.candidate(candidate("int8", 0.91, tmp_path))
            raise error
    searches, _ = runs(store, "stopped")
    assert {(s["status"], s["tags"]["qbench.reason"]) for s in searches} == {
        ("KILLED", "stopped by the user"), ("FAILED", "InputError: no such model")}


def test_a_store_that_cannot_be_opened_does_not_stop_the_search(tmp_path: Path) -> None:
    one = [candidate("int8", 0.91, tmp_path)]
    with Tracker.start(tmp_path, "broken", "rk3588", f"sqlite:///{tmp_path}/missing/folder/with\0nul.db".replace("\0", "/x/")) as tracker:
        tracker.candidate(one[0])
        found = tracker.finish(result(one))
    assert found["run"] == "" and found["error"]


def test_the_store_is_below_the_working_folder_unless_the_environment_names_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    assert default_store() == f"sqlite:///{tmp_path}/qbench-out/mlflow.db"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://tracking:5000")
    assert default_store() == "http://tracking:5000"


def test_the_user_interface_listens_on_loopback_only() -> None:
    command = ui_command("sqlite:////x/mlflow.db", 5050)
    assert command[-6:] == ["--backend-store-uri", "sqlite:////x/mlflow.db", "--host", "127.0.0.1", "--port", "5050"]
    with pytest.raises(InputError, match="already an MLflow server|is an MLflow server"):
        ui_command("http://tracking:5000")


def test_the_adapter_imports_neither_mlflow_nor_plotly() -> None:
    code = "import sys, qbench.tracking, qbench.mlflow_worker; print([m for m in ('mlflow', 'plotly', 'optuna') if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip() == "[]"
