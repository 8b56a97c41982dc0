"""Tracking against a real MLflow store in SQLite: what a search leaves there, also when it is stopped, killed or continued."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
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


def read(store: str) -> list[dict[str, Any]]:
    """Every run of the store, read by a process of its own: importing MLflow warns."""
    out = subprocess.run([sys.executable, "-W", "ignore", "-c", READ, store], capture_output=True, text=True, check=True,
                         env={**os.environ, "MLFLOW_DISABLE_TELEMETRY": "true"}).stdout
    found: list[dict[str, Any]] = json.loads(out.splitlines()[-1])
    return found


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


KILLED = """
import sys
sys.path.insert(0, sys.argv[3])
from pathlib import Path
import signal
from test_tracking import Tracker, candidate
folder = Path(sys.argv[2])
tracker = Tracker.start(folder, folder.name, "rk3588", sys.argv[1])
tracker.begin("one study", {"seed": "0"})
tracker.candidate(candidate("int8", 0.91, folder))
tracker.candidate(candidate("c001", 0.92, folder))
tracker.where()
print("ready", flush=True)
signal.pause()
"""


@dataclass(frozen=True)
class Left:
    """What is in the store in the end, and what the trackers answered."""

    store: str
    folder: Path
    runs: list[dict[str, Any]]
    answers: dict[str, Mapping[str, str]]

    def of(self, experiment: str) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        """Searches and candidates."""
        found = [r for r in self.runs if r["experiment"] == f"qbench {experiment}"]
        return [r for r in found if r["tags"]["qbench.role"] == "search"], [r for r in found if r["tags"]["qbench.role"] == "candidate"]


@pytest.fixture(scope="module")
def left(tmp_path_factory: pytest.TempPathFactory) -> Left:
    """All searches of this module, most of them at the same time: each tracking process takes seconds to start."""
    folder = tmp_path_factory.mktemp("tracking")
    store = f"sqlite:///{folder}/mlflow.db"
    answers: dict[str, Mapping[str, str]] = {}

    def finished(name: str, study: str, params: dict[str, str], some: list[Candidate], *artifacts: Path) -> Mapping[str, str]:
        with Tracker.start(folder / name, name, "rk3588", store) as tracker:
            tracker.begin(study, params)
            for c in some:
                tracker.candidate(c)
            tracker.note("plan x dropped: too lossy")
            answers[f"{name} where"] = tracker.where()
            return tracker.finish(result(some), artifacts)

    def raised(name: str, error: BaseException) -> None:
        with pytest.raises(type(error)), Tracker.start(folder / name, name, "rk3588", store) as tracker:
            tracker.candidate(candidate("int8", 0.91, folder / name))
            raise error

    def some(name: str) -> list[Candidate]:
        return [candidate("int8", 0.91, folder / name), candidate("c001", 0.95, folder / name, feasible=False),
                candidate("c002", 0.929, folder / name)]

    summary = folder / "summary.json"
    summary.write_text("{}")
    answers["whole"] = finished("whole", "study", {"budgets": "20ms", "seed": "0"}, some("whole"), summary)
    victims = [subprocess.Popen([sys.executable, "-c", KILLED, store, str(folder / name), str(Path(__file__).parent)],
                                stdout=subprocess.PIPE, text=True) for name in ("continued", "forsaken")]
    answers["twice 1"] = finished("twice", "study", {}, some("twice")[:1])
    for victim in victims:
        assert victim.stdout is not None
        assert victim.stdout.readline() == "ready\n"
        victim.send_signal(signal.SIGKILL)
        victim.communicate()
    with ThreadPoolExecutor(2) as pool:
        jobs = [pool.submit(raised, "interrupted", KeyboardInterrupt()), pool.submit(raised, "failed", InputError("no such model"))]
        answers["continued"] = finished("continued", "one study", {"seed": "0", "trials": "60"},
                                        [some("continued")[0], candidate("c001", 0.92, folder / "continued"), some("continued")[2]])
        answers["twice 2"] = finished("twice", "study", {}, some("twice")[:1])
        for job in jobs:
            job.result()
    return Left(store, folder, read(store), answers)


def test_a_search_is_one_run_with_one_run_below_it_per_candidate(left: Left) -> None:
    where, folder, store = left.answers["whole"], left.folder / "whole", left.store
    assert left.answers["whole where"] == where
    assert "error" not in where
    [search], below = left.of("whole")
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
    assert one["params"] == {"calibrator": "kl", "granularity": "per-channel", "op_point": "1000MHz", "origin": "milp",
                                  "plan_key": "key-c001", "layers.int8": "9", "layers.fp16": "3"}
    path = Path(one["artifacts"].removeprefix("file://")) / "plan.json"
    assert Plan.load(path) == Plan.load(folder / "plans" / "c001.json")
    assert path.is_relative_to(Path(store.removeprefix("sqlite:///")).parent)               # artifacts lie beside the database


def test_a_killed_search_is_marked_and_its_run_is_continued(left: Left) -> None:
    where = left.answers["continued"]
    assert "error" not in where
    [search], below = left.of("continued")
    assert (search["run"], search["status"], search["tags"]["qbench.resumed"]) == (where["run"], "FINISHED", "1")
    assert search["tags"]["qbench.reason"] == "the search was killed"
    assert search["params"] == {"seed": "0", "trials": "60"}
    assert sorted((c["name"], c["status"]) for c in below) == [("c001", "FINISHED"), ("c002", "FINISHED"), ("int8", "FINISHED")]


def test_a_killed_search_that_never_continues_is_not_left_running(left: Left) -> None:
    [search], below = left.of("forsaken")
    assert (search["status"], search["tags"]["qbench.state"]) == ("KILLED", "killed")
    assert [c["status"] for c in below] == ["FINISHED", "FINISHED"]


def test_a_finished_search_is_never_written_over(left: Left) -> None:
    searches, below = left.of("twice")
    both = sorted([left.answers["twice 1"]["run"], left.answers["twice 2"]["run"]])
    assert sorted(s["run"] for s in searches) == both
    assert both[0] != both[1]
    assert sorted(c["tags"]["mlflow.parentRunId"] for c in below) == both


def test_interrupted_and_failed_searches_say_so(left: Left) -> None:
    said = {name: (s["status"], s["tags"]["qbench.reason"]) for name in ("interrupted", "failed") for s in left.of(name)[0]}
    assert said == {"interrupted": ("KILLED", "stopped by the user"), "failed": ("FAILED", "InputError: no such model")}


def test_a_store_that_cannot_be_opened_does_not_stop_the_search(tmp_path: Path) -> None:
    one = [candidate("int8", 0.91, tmp_path)]
    (tmp_path / "file").write_text("no folder")
    with Tracker.start(tmp_path, "broken", "rk3588", f"sqlite:///{tmp_path}/file/mlflow.db") as tracker:
        tracker.candidate(one[0])
        found = tracker.finish(result(one))
    assert found["run"] == ""
    assert found["error"]


def test_the_store_is_below_the_working_folder_unless_the_environment_names_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    assert default_store() == f"sqlite:///{tmp_path}/qbench-out/mlflow.db"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://tracking:5000")
    assert default_store() == "http://tracking:5000"


def test_the_user_interface_listens_on_loopback_only() -> None:
    command = ui_command("sqlite:////x/mlflow.db", 5050)
    assert command[-6:] == ["--backend-store-uri", "sqlite:////x/mlflow.db", "--host", "127.0.0.1", "--port", "5050"]
    with pytest.raises(InputError, match="is an MLflow server"):
        ui_command("http://tracking:5000")


def test_the_adapter_imports_neither_mlflow_nor_plotly() -> None:
    code = "import sys, qbench.tracking, qbench.mlflow_worker; print([m for m in ('mlflow', 'plotly', 'optuna') if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip() == "[]"
