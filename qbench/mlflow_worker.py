"""The process that writes a search into MLflow: JSON lines in on stdin, answers out on stdout. See `qbench.tracking`.

    open        uri, experiment, target, folder, pid, host      begin    study, params
    candidate   the candidate's JSON and its plan's file        note     text
    measured    the candidate's JSON, with what a board said
    where       answered with uri, experiment, run              finish   result, artifacts; answered likewise
    stop        status, reason
The end of stdin without finish or stop means that the search was killed.
"""

from __future__ import annotations

import json
import math
import os
import queue
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TextIO

FACTS = ("calibrator", "granularity", "op_point", "origin", "plan_key")
NUMBERS = ("accuracy", "accuracy_low", "accuracy_high", "drop", "drop_low", "drop_high", "sqnr_db", "cosine", "kl", "samples",
           "latency_ms", "latency_ms_low", "latency_ms_high", "energy_mj", "power_w", "peak_memory_bytes")
MEASURED = ("latency_ms", "error_ms", "p90_ms", "p99_ms", "first_run_ms", "load_ms", "power_w", "energy_mj", "temperature_c")
PAGE = 5000
"""Runs read at a time; a search has tens to hundreds."""


class Writer:
    """One search in one store."""

    def __init__(self, told: Mapping[str, Any]) -> None:
        from mlflow.tracking import MlflowClient

        self.told = told
        self.client = MlflowClient(tracking_uri=told["uri"])
        self.experiment = self._experiment(told["experiment"])
        self.run = ""
        self.children: dict[str, tuple[str, str]] = {}      # name -> run id, plan key of a finished one
        self.best = -math.inf
        self.count = 0
        self.notes: list[str] = []
        self._bury()

    def _experiment(self, name: str) -> str:
        found = self.client.get_experiment_by_name(name)
        if found is not None:
            return str(found.experiment_id)
        uri = self.told["uri"]
        beside = Path(uri.removeprefix("sqlite:///")).parent / "mlartifacts" if uri.startswith("sqlite:///") else None
        return str(self.client.create_experiment(name, artifact_location=beside.resolve().as_uri() if beside else None))

    def _runs(self, condition: str) -> list[Any]:
        return list(self.client.search_runs([self.experiment], condition, max_results=PAGE))

    def _bury(self) -> None:
        """Marks searches that still count as running though their process on this machine is gone."""
        for run in self._runs("attributes.status = 'RUNNING' and tags.`qbench.role` = 'search'"):
            if run.data.tags.get("qbench.host") == self.told["host"] and not _alive(int(run.data.tags.get("qbench.pid", "0"))):
                self._end(run.info.run_id, "KILLED", "killed")

    def _end(self, run_id: str, status: str, state: str) -> None:
        for child in self._runs(f"attributes.status = 'RUNNING' and tags.`mlflow.parentRunId` = '{run_id}'"):
            self.client.set_terminated(child.info.run_id, "KILLED")
        self.client.set_tag(run_id, "qbench.state", state)
        self.client.set_terminated(run_id, status)

    def begin(self, study: str, params: Mapping[str, str]) -> None:
        tags = {"qbench.role": "search", "qbench.study": study, "qbench.state": "searching", "qbench.target": self.told["target"],
                "qbench.folder": self.told["folder"], "qbench.host": self.told["host"], "qbench.pid": str(self.told["pid"])}
        old = [r for r in self._runs(f"tags.`qbench.study` = '{study.replace(chr(39), '')}' and tags.`qbench.role` = 'search'")
               if r.data.tags.get("qbench.state") != "finished" and r.data.tags.get("qbench.folder") == self.told["folder"]]
        if old:
            self.run = old[0].info.run_id
            self.client.update_run(self.run, status="RUNNING")
            for child in self._runs(f"tags.`mlflow.parentRunId` = '{self.run}'"):
                done = child.data.tags.get("qbench.plan_key", "") if child.info.status == "FINISHED" else ""
                self.children[child.info.run_name] = (child.info.run_id, done)
            tags["qbench.resumed"] = str(int(old[0].data.tags.get("qbench.resumed", "0")) + 1)
        else:
            self.run = self.client.create_run(self.experiment, run_name=f"{self.told['target']} {Path(self.told['folder']).name}").info.run_id
        have = old[0].data.params if old else {}
        self._log(self.run, {}, {k: v for k, v in params.items() if k not in have}, tags)

    def candidate(self, told: Mapping[str, Any]) -> None:
        name = told["name"]
        run_id, done = self.children.get(name, ("", ""))
        self.count += 1
        if not done or done != told["plan_key"]:
            if not run_id or done:
                run_id = self.client.create_run(self.experiment, run_name=name, tags={"mlflow.parentRunId": self.run}).info.run_id
            layers = {f"layers.{p}": str(n) for p, n in told["layers"].items()}
            tags = {f"qbench.{k}": str(told[k]) for k in ("op_point", "origin", "plan_key", "feasible", "sure")}
            self._log(run_id, {k: told[k] for k in NUMBERS}, {**{k: str(told[k]) for k in FACTS}, **layers},
                      {**tags, "qbench.role": "candidate", "qbench.target": self.told["target"]})
            if told["file"] and Path(told["file"]).is_file():
                self._attach(run_id, Path(told["file"]), "plan.json")
            self.client.set_terminated(run_id, "FINISHED")
            self.children[name] = (run_id, told["plan_key"])
        if told["feasible"] and told["accuracy"] > self.best:
            self.best = told["accuracy"]
            self._log(self.run, {"best_accuracy": self.best}, {}, {}, step=self.count)

    def measured(self, told: Mapping[str, Any]) -> None:
        """Adds a board's figures to the run of a candidate; its prediction, which they corrected, moves with them."""
        run_id, _ = self.children.get(told["name"], ("", ""))
        if run_id:
            found = told["measured"]
            self._log(run_id, {**{f"measured.{k}": found[k] for k in MEASURED}, **{k: told[k] for k in NUMBERS if k.startswith("latency")}}, {},
                      {"qbench.board": found["board"], "qbench.recorded": str(found["recorded"]), "qbench.unstable": "; ".join(found["unstable"])}, step=1)

    def finish(self, result: Mapping[str, Any], artifacts: list[str]) -> None:
        chosen = result["chosen"] or {}
        numbers = {f"chosen.{k}": chosen[k] for k in NUMBERS if k in chosen}
        more = {k: result[k] for k in ("evaluated", "float_pass_equivalents", "wall_s")}
        self._log(self.run, {**numbers, **more}, {}, {"qbench.feasible": str(result["feasible"]), "qbench.chosen": str(chosen.get("name", ""))})
        for path in artifacts:
            self.client.log_artifact(self.run, path)
        self._front(result)
        self._write_notes()
        partial = bool(result["partial"])
        self._end(self.run, "KILLED" if partial else "FINISHED", "partial" if partial else "finished")

    def stop(self, status: str, state: str, reason: str) -> None:
        if self.run:
            self.client.set_tag(self.run, "qbench.reason", reason[:500])
            self._write_notes()
            self._end(self.run, status, state)

    def _front(self, result: Mapping[str, Any]) -> None:
        from qbench.report.front import PLOT_CONFIG, front_figure
        from qbench.result import result_from_dict

        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "front.html"
            front_figure(result_from_dict(result)).write_html(path, include_plotlyjs=True, config=PLOT_CONFIG)
            self.client.log_artifact(self.run, str(path))

    def _write_notes(self) -> None:
        if self.notes:
            self.client.log_text(self.run, "\n".join(self.notes) + "\n", "notes.txt")

    def _attach(self, run_id: str, path: Path, name: str) -> None:
        self.client.log_text(run_id, path.read_text(encoding="utf-8"), name)

    def _log(self, run_id: str, numbers: Mapping[str, Any], params: Mapping[str, str], tags: Mapping[str, str], step: int = 0) -> None:
        """One call for everything; what is not a finite number is left out."""
        from mlflow.entities import Metric, Param, RunTag

        now = int(time.time() * 1000)
        metrics = [Metric(k, float(v), now, step) for k, v in numbers.items() if v is not None and math.isfinite(v)]
        self.client.log_batch(run_id, metrics, [Param(k, str(v)[:5000]) for k, v in params.items()], [RunTag(k, v) for k, v in tags.items()])


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return pid > 0


class Session:
    """Takes the messages in order; the first error ends the writing, and every answer carries it."""

    def __init__(self, out: TextIO) -> None:
        self.out = out
        self.writer: Writer | None = None
        self.opened: dict[str, Any] = {}
        self.error = ""
        self.over = False

    def take(self, message: dict[str, Any]) -> None:
        do = message.pop("do")
        try:
            if not self.error:
                self._do(do, message)
        except Exception as error:      # noqa: BLE001  whatever MLflow or a database raises must not stop a search
            self.error = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
        if do in ("where", "finish"):
            where = {"uri": self.opened.get("uri", ""), "experiment": self.opened.get("experiment", ""), "run": self.writer.run if self.writer else ""}
            print(json.dumps({**where, **({"error": self.error} if self.error else {})}), file=self.out, flush=True)

    def _do(self, do: str, told: dict[str, Any]) -> None:
        if do == "open":
            self.opened = told
            self.writer = Writer(told)
        elif self.writer is not None:
            if do == "begin":
                self.writer.begin(told["study"], told["params"])
            elif do == "candidate":
                self.writer.candidate(told)
            elif do == "measured":
                self.writer.measured(told)
            elif do == "note":
                self.writer.notes.append(told["text"])
            elif do == "finish":
                self.over = True
                self.writer.finish(told["result"], told["artifacts"])
            elif do == "stop":
                self.over = True
                self.writer.stop(told["status"], "failed" if told["status"] == "FAILED" else "killed", told["reason"])

    def end(self) -> None:
        """stdin is closed: without a word before, the search was killed."""
        if not self.over and not self.error and self.writer is not None:
            self.take({"do": "stop", "status": "KILLED", "reason": "the search was killed"})


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
    session.end()


if __name__ == "__main__":
    main()
