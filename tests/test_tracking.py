"""Tracking against real MLflow stores: what a search leaves there, also when it is stopped, killed or continued."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import onnx
import pytest
from browser import browser, needs_chromium
from models import conv_relu
from tracked_candidates import candidate, result

from qbench.errors import InputError
from qbench.mlflow_worker import check_answers
from qbench.plan import Plan
from qbench.result import Candidate
from qbench.tracking import Tracker, check_name, default_store, tracking_text

READ = """
import json, sys
from mlflow.tracking import MlflowClient
client = MlflowClient(sys.argv[1])
found = []
for e in client.search_experiments():
    for r in client.search_runs([e.experiment_id], max_results=1000):
        files = sorted(f.path for f in client.list_artifacts(r.info.run_id))
        inputs = [[d.dataset.name, d.dataset.digest, d.tags[0].value] for d in (r.inputs.dataset_inputs if r.inputs else [])]
        found.append({"experiment": e.name, "run": r.info.run_id, "name": r.info.run_name, "status": r.info.status, "params": r.data.params,
                      "metrics": r.data.metrics, "tags": r.data.tags, "files": files, "inputs": inputs, "models": [m.model_id for m in (r.outputs.model_outputs if r.outputs else [])], "artifacts": r.info.artifact_uri})
print(json.dumps(found))
"""


QUIET = {"MLFLOW_DISABLE_TELEMETRY": "true", "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false", "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false"}


def python(code: str, *arguments: str) -> str:
    """What a process of its own prints: importing MLflow warns."""
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", code, *arguments], capture_output=True, text=True, check=False, env={**os.environ, **QUIET})
    assert done.returncode == 0, done.stderr
    return done.stdout


def read(store: str) -> list[dict[str, Any]]:
    """Every run of the store."""
    found: list[dict[str, Any]] = json.loads(python(READ, store).splitlines()[-1])
    return found


def save(path: Path) -> None:
    onnx.save(conv_relu(), str(path))


def full(path: Path) -> None:
    raise OSError("No space left on device")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@contextmanager
def server(folder: Path) -> Iterator[str]:
    """Address of an MLflow server that keeps its database and artifacts in `folder`."""
    address = f"http://127.0.0.1:{(port := free_port())}"
    process = subprocess.Popen([sys.executable, "-W", "ignore", "-m", "mlflow", "server", "--backend-store-uri", f"sqlite:///{folder}/server.db", "--artifacts-destination",
                                str(folder / "artifacts"), "--host", "127.0.0.1", "--port", str(port), "--workers", "1"],
                               env={**os.environ, **QUIET}, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
    try:
        wait_for(f"{address}/health")
        yield address
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def wait_for(address: str) -> None:
    end = monotonic() + 120
    while True:
        try:
            with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(address, timeout=5):
                return
        except OSError:
            assert monotonic() < end, f"{address} does not answer"
            sleep(0.2)


KILLED = """
import sys
sys.path.insert(0, sys.argv[3])
from pathlib import Path
import signal
from tracked_candidates import candidate
from qbench.tracking import Tracker
folder = Path(sys.argv[2])
tracker = Tracker.start(folder, folder.name, "rk3588", sys.argv[1])
tracker.begin("one study", {"seed": "0"})
tracker.candidate(candidate("int8", 0.91, folder))
tracker.candidate(candidate("c001", 0.92, folder))
if folder.name != "hurried":                  # there the writer has not even loaded MLflow when the search dies
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

    def finished(name: str, study: str, params: dict[str, str], some: list[Candidate], *artifacts: Path, register: str | None = None) -> Mapping[str, str]:
        with Tracker.start(folder / name, name, "rk3588", store) as tracker:
            tracker.begin(study, params, {"weights": {"a": 10, "b": 5}, "datasets": [{"name": "mri", "digest": "d1", "context": "evaluation", "samples": 48}]})
            for c in some:
                tracker.candidate(c)
            tracker.note("plan x dropped: too lossy")
            answers[f"{name} where"] = tracker.where()
            return tracker.finish(result(some), artifacts, {"c002": save, "int8": save, "c001": full} if register else {}, register)

    def raised(name: str, error: BaseException) -> None:
        with pytest.raises(type(error)), Tracker.start(folder / name, name, "rk3588", store) as tracker:
            tracker.candidate(candidate("int8", 0.91, folder / name))
            raise error

    def some(name: str) -> list[Candidate]:
        return [candidate("int8", 0.91, folder / name), candidate("c001", 0.95, folder / name, feasible=False),
                candidate("c002", 0.929, folder / name)]

    summary = folder / "summary.json"
    summary.write_text("{}")
    answers["whole"] = finished("whole", "study", {"budgets": "20ms", "seed": "0"}, some("whole"), summary, register="net")
    victims = [subprocess.Popen([sys.executable, "-c", KILLED, store, str(folder / name), str(Path(__file__).parent)],
                                stdout=subprocess.PIPE, text=True) for name in ("continued", "forsaken")]
    hurried = subprocess.Popen([sys.executable, "-c", KILLED, store, str(folder / "hurried"), str(Path(__file__).parent)], stdout=subprocess.PIPE, text=True)
    assert hurried.stdout is not None and hurried.stdout.readline() == "ready\n"
    hurried.send_signal(signal.SIGKILL)
    hurried.communicate()
    answers["twice 1"] = finished("twice", "study", {}, some("twice")[:1])
    for victim in victims:
        assert victim.stdout is not None
        assert victim.stdout.readline() == "ready\n"
        victim.send_signal(signal.SIGKILL)
        victim.communicate()
    with ThreadPoolExecutor(3) as pool:
        again = pool.submit(finished, "hurried", "one study", {"seed": "0"}, [some("hurried")[0], candidate("c001", 0.92, folder / "hurried")])
        jobs = [pool.submit(raised, "interrupted", KeyboardInterrupt()), pool.submit(raised, "failed", InputError("no such model"))]
        answers["continued"] = finished("continued", "one study", {"seed": "0", "trials": "60"},
                                        [some("continued")[0], candidate("c001", 0.92, folder / "continued"), some("continued")[2]])
        answers["twice 2"] = finished("twice", "study", {}, some("twice")[:1])
        for job in jobs:
            job.result()
        answers["hurried"] = again.result()
    return Left(store, folder, read(store), answers)


def test_a_search_is_one_run_with_one_run_below_it_per_candidate(left: Left) -> None:
    where, folder, store = left.answers["whole"], left.folder / "whole", left.store
    assert left.answers["whole where"].items() <= where.items()
    assert "error" not in where
    [search], below = left.of("whole")
    assert (where["uri"], where["experiment"], where["run"]) == (store, "qbench whole", search["run"])
    assert (search["status"], search["tags"]["qbench.state"], search["tags"]["qbench.chosen"]) == ("FINISHED", "finished", "c002")
    assert search["params"] == {"budgets": "20ms", "seed": "0"}
    assert search["inputs"] == [["mri", "d1", "evaluation"]]
    assert search["tags"]["mlflow.source.name"] == "qbench search" and {"version.onnxruntime", "system.os", "system.cpus"} <= set(search["tags"])
    assert "brain on rk3588 (2.3), 20ms" in search["tags"]["mlflow.note.content"]
    assert {c["tags"]["qbench.name"]: (c["tags"]["qbench.on_front"], c["tags"].get("qbench.chosen")) for c in below} == {
        "int8": ("yes", None), "c001": ("yes", None), "c002": ("yes", "yes")}
    assert search["metrics"]["chosen.accuracy"] == pytest.approx(0.929)
    assert search["metrics"]["best_accuracy"] == pytest.approx(0.929)             # the best feasible one, not c001
    assert search["files"] == ["notes.txt", "summary.json"]
    assert {c["tags"]["qbench.name"] for c in below} == {"int8", "c001", "c002"}
    one = next(c for c in below if c["tags"]["qbench.name"] == "c001")
    assert (one["status"], one["tags"]["mlflow.parentRunId"], one["files"]) == ("FINISHED", search["run"], ["plan.json"])
    assert {k: one["tags"][f"qbench.{k}"] for k in ("target", "op_point", "feasible", "origin")} == {
        "target": "rk3588", "op_point": "1000MHz", "feasible": "False", "origin": "milp"}
    assert one["metrics"]["latency_ms_low"] == 11.0 and one["metrics"]["accuracy_high"] == pytest.approx(0.96)
    assert one["name"] == "c001: 9 INT8, 3 FP16" and one["metrics"]["weight_bytes"] == 10 * 1 + 5 * 2
    assert one["metrics"]["peak_memory_bytes"] == 3e6 and "kl" not in one["metrics"]        # not a number: left out
    assert one["params"] == {"calibrator": "kl", "granularity": "per-channel", "op_point": "1000MHz", "origin": "milp",
                                  "plan_key": "key-c001", "layers.int8": "9", "layers.fp16": "3", "layers": "9 INT8, 3 FP16"}
    path = Path(one["artifacts"].removeprefix("file://")) / "plan.json"
    assert Plan.load(path) == Plan.load(folder / "plans" / "c001.json")
    assert path.is_relative_to(Path(store.removeprefix("sqlite:///")).parent)               # artifacts lie beside the database


MODELS = """
import json, sys
import mlflow
from mlflow.tracking import MlflowClient
store, folder = sys.argv[1:]
mlflow.set_tracking_uri(store)
version = MlflowClient().get_model_version_by_alias("net", "rk3588")
loaded = mlflow.onnx.load_model("models:/net@rk3588")
info = mlflow.models.get_model_info("models:/net@rk3588")
open(folder + "/loaded.onnx", "wb").write(loaded.SerializeToString())
print(json.dumps({"version": version.version, "run": version.run_id, "model": version.source, "inputs": info.signature.inputs.to_dict(), "outputs": info.signature.outputs.to_dict()}))
"""


def test_models_of_the_front_are_logged_with_signature_and_the_chosen_one_registered(left: Left, tmp_path: Path) -> None:
    assert left.answers["whole"]["registered"] == "net version 1, models:/net@rk3588"
    below = {c["tags"]["qbench.name"]: c for c in left.of("whole")[1]}
    assert {name: len(c["models"]) for name, c in below.items()} == {"int8": 1, "c001": 0, "c002": 1}
    found = json.loads(python(MODELS, left.store, str(tmp_path)).splitlines()[-1])
    assert (int(found["version"]), found["run"]) == (1, below["c002"]["run"])
    assert onnx.load(tmp_path / "loaded.onnx") == conv_relu()
    assert [(v["name"], v["tensor-spec"]) for side in ("inputs", "outputs") for v in found[side]] == [
        ("x", {"dtype": "float32", "shape": [-1, 3, 8, 8]}), ("y", {"dtype": "float32", "shape": [-1, 4, 8, 8]})]
    notes = Path(left.of("whole")[0][0]["artifacts"].removeprefix("file://")) / "notes.txt"
    assert notes.read_text().splitlines() == ["plan x dropped: too lossy", "model of c001 not logged: No space left on device"]
    assert below["c002"]["metrics"]["model_bytes"] == len(conv_relu().SerializeToString())


def test_a_search_continued_before_its_writer_had_begun_is_still_one(left: Left) -> None:
    [search], below = left.of("hurried")
    assert (search["run"], search["status"]) == (left.answers["hurried"]["run"], "FINISHED")
    assert sorted((c["tags"]["qbench.name"], c["status"]) for c in below) == [("c001", "FINISHED"), ("int8", "FINISHED")]


def test_a_killed_search_is_marked_and_its_run_is_continued(left: Left) -> None:
    where = left.answers["continued"]
    assert "error" not in where
    [search], below = left.of("continued")
    assert (search["run"], search["status"], search["tags"]["qbench.resumed"]) == (where["run"], "FINISHED", "1")
    assert search["tags"]["qbench.reason"] == "the search was killed"
    assert search["params"] == {"seed": "0", "trials": "60"}
    assert sorted((c["tags"]["qbench.name"], c["status"]) for c in below) == [("c001", "FINISHED"), ("c002", "FINISHED"), ("int8", "FINISHED")]


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


@pytest.mark.parametrize("scheme", ["http", "postgresql"])
def test_a_server_that_is_down_is_given_up_at_once_and_named(scheme: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("qbench.mlflow_worker.PAUSE_S", 0.0)
    with pytest.raises(ConnectionError, match=r"no server answers there .*does it run"):
        check_answers(f"{scheme}://127.0.0.1:{free_port()}/x")
    with socket.create_server(("127.0.0.1", 0)) as listens:
        check_answers(f"{scheme}://127.0.0.1:{listens.getsockname()[1]}/x")
    check_answers(f"sqlite:///{tmp_path}/m.db")
    monkeypatch.setenv("http_proxy", "http://proxy.example:1")
    monkeypatch.setenv("no_proxy", "")
    check_answers("http://tracking.example:5000")                      # only the proxy can tell


WRITER = """
import sys
for line in sys.stdin:
    print()
    if '"where"' in line and sys.argv[1] == "speaks":
        print('{"run": "7"}')
    sys.stdout.flush()
"""


def writer(kind: str) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-c", WRITER, kind], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def test_signs_of_life_are_no_answers(tmp_path: Path) -> None:
    with Tracker(writer("speaks"), tmp_path) as tracker:
        tracker.note("x")
        assert tracker.where() == {"run": "7"}


def test_a_writer_that_hangs_is_waited_for_once_and_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("qbench.tracking.WAIT_S", 0.1)
    one, process = [candidate("int8", 0.91, tmp_path)], writer("hangs")
    with Tracker(process, tmp_path) as tracker:
        assert tracker.where()["error"] == "nothing was written for 0.1 s"
        assert process.wait(60) != 0
        assert tracker.finish(result(one))["error"] == "nothing was written for 0.1 s"


def test_the_worker_gives_a_sign_of_life_after_every_message() -> None:
    told = [{"do": "open", "uri": "nonsense://x", "experiment": "e"}, {"do": "note", "text": "x"}, {"do": "where"}]
    done = subprocess.run([sys.executable, "-W", "ignore", "-m", "qbench.mlflow_worker"], input="".join(json.dumps(t) + "\n" for t in told), capture_output=True, text=True, check=True)
    lines = done.stdout.split("\n")
    assert [bool(line) for line in lines] == [False, False, True, False, False] and "nonsense" in json.loads(lines[2])["error"]


def test_the_store_is_below_the_working_folder_unless_the_environment_names_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    assert default_store() == f"sqlite:///{tmp_path}/qbench-out/mlflow.db"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://tracking:5000")
    assert default_store() == "http://tracking:5000"


@pytest.mark.parametrize("kind", ["server", *(["postgresql"] if os.environ.get("QBENCH_TEST_POSTGRESQL") else [])])
def test_other_stores_take_the_same_runs(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in QUIET.items():
        monkeypatch.setenv(name, value)
    name = f"{kind}-{os.getpid()}"
    some = [candidate("int8", 0.91, tmp_path), candidate("c001", 0.929, tmp_path)]

    def check(store: str, seen: str) -> None:
        with Tracker.start(tmp_path, name, "rk3588", store) as tracker:
            tracker.begin("study", {"seed": "0"})
            for c in some:
                tracker.candidate(c)
            found = tracker.finish(result(some), [tmp_path / "plans" / "c001.json"], {"c001": save}, name)
        assert "error" not in found, found
        assert found["registered"].startswith(f"{name} version 1")
        runs = [r for r in read(seen) if r["experiment"] == f"qbench {name}"]
        assert sorted((r["tags"].get("qbench.name", "search"), r["status"], tuple(r["files"])) for r in runs) == [
            ("c001", "FINISHED", ("plan.json",)), ("int8", "FINISHED", ("plan.json",)), ("search", "FINISHED", ("c001.json",))]
        assert sum(len(r["models"]) for r in runs) == 1

    if kind == "server":
        with server(tmp_path) as address:
            check(address, address)
    else:
        monkeypatch.chdir(tmp_path)                                           # the artifacts of such a store lie below the working folder
        import psycopg

        whole, database = os.environ["QBENCH_TEST_POSTGRESQL"], f"tracking_{os.getpid()}"
        url = f"{whole.rpartition('/')[0]}/{database}"                       # one of its own: Optuna keeps its version in a table of the same name
        with psycopg.connect(whole, autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {database}")
            try:
                check(url, url.replace("postgresql:", "postgresql+psycopg:"))
            finally:
                connection.execute(f"DROP DATABASE {database} WITH (FORCE)")


@needs_chromium
def test_the_user_interface_opens_on_a_table_that_says_something(left: Left, tmp_path: Path) -> None:
    port = free_port()
    (tmp_path / "summary.json").write_text(json.dumps({"mlflow": dict(left.answers["whole"])}))
    shown = subprocess.Popen([sys.executable, "-m", "qbench", "ui", str(tmp_path), "--no-open", "--port", str(port)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert shown.stdout is not None
    address = shown.stdout.readline().split()[0]
    try:
        assert address.startswith(f"http://127.0.0.1:{port}/#/experiments/") and address.endswith("/runs?viewStateShareKey=qbench")
        with browser(tmp_path / "profile") as tab:
            tab.open(address, width=2400, offline=False)
            tab.until("document.body.innerText.includes('int8: 9 INT8, 3 FP16')")
            wanted = ["qbench.chosen", "qbench.on_front", "qbench.feasible", "accuracy", "drop", "latency_ms", "energy_mj"]
            places = f"{wanted}.map(w => [...document.querySelectorAll('.ag-header-cell')].find(e => e.innerText.trim() === w)?.getBoundingClientRect().x ?? -1)"
            tab.until(f"{places}.every(x => x >= 0)")
            found, written = tab.value(places), tuple(map(int, version("mlflow").split(".")[:2]))
            assert found == sorted(found) or written < (3, 15)                     # the page keeps the order that was asked for since 3.15
    finally:
        shown.send_signal(signal.SIGINT)
        shown.communicate(timeout=60)
    assert shown.returncode == 0
    with socket.socket() as probe:
        assert probe.connect_ex(("127.0.0.1", port)) != 0                      # nothing listens any more


def test_names_of_registered_models_are_checked_before_any_work() -> None:
    check_name("brain on rk3588")
    for name in ("", "a/b", "a:b", " a"):
        with pytest.raises(InputError, match="the name of a registered model is not empty, has no '/' or ':'"):
            check_name(name)
    with pytest.raises(InputError, match="--register brain with --no-track"):
        check_name("brain", track=False)


def test_the_terminal_says_what_became_of_the_tracking() -> None:
    assert tracking_text({"uri": "u", "run": "r"}) == ""
    assert tracking_text({"registered": "net version 3, models:/net@rk3588"}) == "registered: net version 3, models:/net@rk3588"
    assert tracking_text({"registered": "not registered as net: no plan keeps the limits"}) == "warning: not registered as net: no plan keeps the limits"
    assert tracking_text({"uri": "u", "error": "OperationalError: x"}) == "warning: MLflow on u: OperationalError: x; the result folder is complete, the store is not"


def test_the_adapter_imports_neither_mlflow_nor_plotly() -> None:
    code = "import sys, qbench.tracking, qbench.mlflow_worker; print([m for m in ('mlflow', 'plotly', 'optuna') if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip() == "[]"
