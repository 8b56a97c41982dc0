"""One search in one MLflow store: its run, a run per candidate below it, and what is known when it ends."""

from __future__ import annotations

import getpass
import hashlib
import json
import math
import os
import platform
import tempfile
import time
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from qbench.addresses import with_driver
from qbench.mlflow_view import candidate_name, experiment_tags, search_name, search_note
from qbench.processes import alive

FACTS = ("calibrator", "granularity", "op_point", "origin", "plan_key")
NUMBERS = ("accuracy", "accuracy_low", "accuracy_high", "drop", "drop_low", "drop_high", "sqnr_db", "cosine", "kl", "samples",
           "latency_ms", "latency_ms_low", "latency_ms_high", "energy_mj", "power_w", "peak_memory_bytes")
MEASURED = ("latency_ms", "error_ms", "p90_ms", "p99_ms", "first_run_ms", "load_ms", "power_w", "energy_mj", "temperature_c")
FLOAT_BITS = {"fp16": 16, "fp32": 32}
PAGE = 5000
"""Runs read at a time; a search has tens to hundreds."""
PATIENCE_S = 100.0
"""Longest that a search that continues waits for the writer of the one before, which may still have lines to write."""
MODELS_BYTES = 1_000_000_000
"""Of Q/DQ models that one search logs; the chosen one always is."""


class Writer:
    """told   uri, experiment, target, folder, pid, host, command: see `qbench.mlflow_worker`"""

    def __init__(self, told: Mapping[str, Any]) -> None:
        import mlflow
        from mlflow.tracking import MlflowClient

        self.told = told
        uri = with_driver(told["uri"])
        mlflow.set_tracking_uri(uri)
        self.client = MlflowClient(tracking_uri=uri)
        self.experiment = self._experiment(told["experiment"])
        self.run = ""
        self.about: Mapping[str, Any] = {}
        self.children: dict[str, tuple[str, str]] = {}      # name -> run id, plan key of a finished one
        self.logged: dict[str, Any] = {}                    # name -> MLflow's record of its model
        self.bytes = 0
        self.best = -math.inf
        self.count = 0
        self.notes: list[str] = []
        self.lock = writing(told["folder"], told["experiment"])
        self._bury()

    def _experiment(self, name: str) -> str:
        found = self.client.get_experiment_by_name(name)
        if found is None:
            uri = self.told["uri"]
            beside = Path(uri.removeprefix("sqlite:///")).parent / "mlartifacts" if uri.startswith("sqlite:///") else None
            made = self._create(name, beside.resolve().as_uri() if beside else None)
        else:
            made = str(found.experiment_id)
        have = found.tags if found is not None else {}
        for key, value in experiment_tags().items():
            if key != "mlflow.note.content" or key not in have:              # a description of the user's own stays
                self.client.set_experiment_tag(made, key, value)
        return made

    def _create(self, name: str, location: str | None) -> str:
        """Two searches may create it at the same moment: the later one takes what the other made."""
        from mlflow.exceptions import MlflowException

        try:
            return str(self.client.create_experiment(name, artifact_location=location))
        except MlflowException:
            other = self.client.get_experiment_by_name(name)
            if other is None:
                raise
            return str(other.experiment_id)

    def _runs(self, condition: str) -> list[Any]:
        return list(self.client.search_runs([self.experiment], condition, max_results=PAGE))

    def _bury(self) -> None:
        """Marks searches that still count as running though their process on this machine is gone."""
        for run in self._runs("attributes.status = 'RUNNING' and tags.`qbench.role` = 'search'"):
            if run.data.tags.get("qbench.host") == self.told["host"] and not alive(int(run.data.tags.get("qbench.pid", "0"))):
                self._end(run.info.run_id, "KILLED", "killed")

    def _end(self, run_id: str, status: str, state: str) -> None:
        for child in self._runs(f"attributes.status = 'RUNNING' and tags.`mlflow.parentRunId` = '{run_id}'"):
            self.client.set_terminated(child.info.run_id, "KILLED")
        self.client.set_tag(run_id, "qbench.state", state)
        self.client.set_terminated(run_id, status)

    def begin(self, study: str, params: Mapping[str, str], about: Mapping[str, Any]) -> None:
        """about   weights: elements per unit; datasets: name, digest, context, samples; may hold neither"""
        self.about = about
        try:
            self.lock.acquire()
        except Timeout:
            raise TimeoutError(f"another search has been writing the runs of {self.told['folder']} for {PATIENCE_S:g} s: give one of them another -o") from None
        tags = {"qbench.role": "search", "qbench.study": study, "qbench.state": "searching", "qbench.target": self.told["target"],
                "qbench.folder": self.told["folder"], "qbench.host": self.told["host"], "qbench.pid": str(self.told["pid"]),
                **{f"qbench.{k}": params[k] for k in ("preset", "model_key") if k in params}, **system_tags(self.told.get("command", ""))}
        old = [r for r in self._runs(f"tags.`qbench.study` = '{study.replace(chr(39), '')}' and tags.`qbench.role` = 'search'")
               if r.data.tags.get("qbench.state") != "finished" and r.data.tags.get("qbench.folder") == self.told["folder"]]
        if old:
            self.run = old[0].info.run_id
            self.client.update_run(self.run, status="RUNNING")
            for child in self._runs(f"tags.`mlflow.parentRunId` = '{self.run}'"):
                done = child.data.tags.get("qbench.plan_key", "") if child.info.status == "FINISHED" else ""
                self.children[child.data.tags.get("qbench.name", child.info.run_name)] = (child.info.run_id, done)
            tags["qbench.resumed"] = str(int(old[0].data.tags.get("qbench.resumed", "0")) + 1)
        else:
            self.run = self.client.create_run(self.experiment, run_name=search_name(self.told["target"], params)).info.run_id
            self._log_inputs(about.get("datasets", ()))
        have = old[0].data.params if old else {}
        self._log(self.run, {}, {k: v for k, v in params.items() if k not in have}, tags)

    def _log_inputs(self, datasets: Any) -> None:
        from mlflow.entities import Dataset, DatasetInput, InputTag

        if datasets:
            self.client.log_inputs(self.run, [DatasetInput(
                Dataset(d["name"], d["digest"], "local", json.dumps({"uri": d["name"]}), profile=json.dumps({"num_rows": d["samples"]})),
                [InputTag("mlflow.data.context", d["context"])]) for d in datasets])

    def candidate(self, told: Mapping[str, Any]) -> None:
        name = told["name"]
        run_id, done = self.children.get(name, ("", ""))
        self.count += 1
        if not done or done != told["plan_key"]:
            if not run_id or done:
                first = {"mlflow.parentRunId": self.run, "qbench.role": "candidate", "qbench.name": name}
                run_id = self.client.create_run(self.experiment, run_name=candidate_name(told), tags=first).info.run_id
            layers = {f"layers.{p}": str(n) for p, n in told["layers"].items()}
            tags = {f"qbench.{k}": str(told[k]) for k in ("op_point", "origin", "feasible", "sure")}
            same = {k: v for k, v in self.client.get_run(self.run).data.tags.items() if k in ("qbench.preset", "qbench.model_key", "mlflow.user", "mlflow.source.name")}
            plan = Path(told["file"]).read_text(encoding="utf-8") if told["file"] and Path(told["file"]).is_file() else ""
            self._log(run_id, {**{k: told[k] for k in NUMBERS}, "weight_bytes": self._weight_bytes(plan)},
                      {**{k: str(told[k]) for k in FACTS}, **layers, "layers": candidate_name(told).partition(": ")[2]},
                      {**tags, **same, "qbench.target": self.told["target"]})
            if plan:
                self.client.log_text(run_id, plan, "plan.json")
            self.client.set_tag(run_id, "qbench.plan_key", told["plan_key"])
            self.client.set_terminated(run_id, "FINISHED")
            self.children[name] = (run_id, told["plan_key"])
        if told["feasible"] and told["accuracy"] > self.best:
            self.best = told["accuracy"]
            self._log(self.run, {"best_accuracy": self.best}, {}, {}, step=self.count)

    def _weight_bytes(self, plan: str) -> float:
        """Of the weights as the plan stores them; not a number where they are not known."""
        weights = self.about.get("weights")
        if not plan or not weights:
            return math.nan
        body = json.loads(plan)
        bits = FLOAT_BITS | {p: scheme["weight"]["bits"] for p, scheme in body["schemes"].items()}
        return float(sum(weights.get(unit, 0) * bits[p] for unit, p in body["precision"].items())) / 8.0

    def measured(self, told: Mapping[str, Any]) -> None:
        """Adds a board's figures to the run of a candidate; its prediction, which they corrected, moves with them."""
        run_id, _ = self.children.get(told["name"], ("", ""))
        if run_id:
            found = told["measured"]
            self._log(run_id, {**{f"measured.{k}": found[k] for k in MEASURED}, **{k: told[k] for k in NUMBERS if k.startswith("latency")}}, {},
                      {"qbench.board": found["board"], "qbench.recorded": str(found["recorded"]), "qbench.unstable": "; ".join(found["unstable"])}, step=1)

    def model(self, name: str, path: Path, chosen: bool) -> None:
        """Logs the Q/DQ model of a candidate with its run. The file may be removed afterwards."""
        from qbench.mlflow_models import log_model

        run_id, key = self.children.get(name, ("", ""))
        size = path.stat().st_size
        if not run_id:
            return
        if not chosen and self.bytes + size > MODELS_BYTES:
            self.notes.append(f"model of {name} ({size} bytes) not logged: the models of one search take {MODELS_BYTES} bytes at most; its plan.json rebuilds it")
            return
        self.bytes += size
        tags = {"qbench.plan_key": key, "qbench.target": self.told["target"], "qbench.chosen": "yes" if chosen else "no"}
        self.logged[name] = log_model(path, run_id, f"{self.told['experiment'].removeprefix('qbench ')}-{name}".translate(_NO_PATH), tags)
        self._log(run_id, {"model_bytes": size}, {}, {})

    def finish(self, result: Mapping[str, Any], artifacts: list[str], register: str) -> str:
        """Returns what became of `register`, "" without one."""
        chosen = result["chosen"] or {}
        numbers = {f"chosen.{k}": chosen[k] for k in NUMBERS if k in chosen}
        more = {k: result[k] for k in ("evaluated", "float_pass_equivalents", "wall_s")}
        command = result["provenance"].get("command", "")
        note = search_note(result, command)
        self._log(self.run, {**numbers, **more}, {}, {"qbench.feasible": str(result["feasible"]), "qbench.chosen": str(chosen.get("name", "")),
                                                     "mlflow.note.content": note[:NOTE]})
        for c in result["front"]:
            if run := self.children.get(c["name"]):
                self.client.set_tag(run[0], "qbench.on_front", "yes")
        if run := self.children.get(str(chosen.get("name", ""))):
            self._log(run[0], {}, {}, {"qbench.chosen": "yes", "mlflow.note.content": f"The {'chosen' if result['feasible'] else 'nearest'} plan.\n\n{note}"[:NOTE]})
        for path in artifacts:
            self.client.log_artifact(self.run, path)
        said = self._register(result, register) if register else ""
        if said:
            self.client.set_tag(self.run, "qbench.registered", said)
        self._write_notes()
        partial = bool(result["partial"])
        self._end(self.run, "KILLED" if partial else "FINISHED", "partial" if partial else "finished")
        return said

    def _register(self, result: Mapping[str, Any], name: str) -> str:
        from qbench.mlflow_models import promote

        chosen = result["chosen"]
        if chosen is None or not result["feasible"]:
            return f"not registered as {name}: no plan keeps the limits"
        if result["partial"]:
            return f"not registered as {name}: the search was stopped before it was done"
        logged = self.logged.get(chosen["name"])
        if logged is None:
            return f"not registered as {name}: the model of {chosen['name']} was not logged"
        return promote(self.client, name, self.told["target"], logged, self.children[chosen["name"]][0], search_note(result, result["provenance"].get("command", ""))[:NOTE])

    def stop(self, status: str, state: str, reason: str) -> None:
        if self.run:
            self.client.set_tag(self.run, "qbench.reason", reason[:500])
            self._write_notes()
            self._end(self.run, status, state)

    def _write_notes(self) -> None:
        if self.notes:
            self.client.log_text(self.run, "\n".join(self.notes) + "\n", "notes.txt")

    def _log(self, run_id: str, numbers: Mapping[str, Any], params: Mapping[str, str], tags: Mapping[str, str], step: int = 0) -> None:
        """One call for everything; what is not a finite number is left out."""
        from mlflow.entities import Metric, Param, RunTag

        now = int(time.time() * 1000)
        metrics = [Metric(k, _short(v), now, step) for k, v in numbers.items() if v is not None and math.isfinite(v)]
        self.client.log_batch(run_id, metrics, [Param(k, str(v)[:5000]) for k, v in params.items()], [RunTag(k, v) for k, v in tags.items()])


NOTE = 4900
"""Characters of a description: a store takes 5000, in bytes or characters."""
_NO_PATH = str.maketrans("/:.%\"'", "------")
"""Characters that the name of a logged model must not hold."""


def writing(folder: str, experiment: str) -> FileLock:
    """Held by the one process that writes the searches of a result folder; freed by the system when it dies."""
    key = hashlib.sha256(f"{folder}\n{experiment}".encode()).hexdigest()[:16]
    return FileLock(Path(tempfile.gettempdir()) / f"qbench-{getpass.getuser()}-{key}.lock", timeout=PATIENCE_S)


def system_tags(command: str) -> dict[str, str]:
    """The machine and the versions that a search ran with, and the fields that MLflow shows as source and user."""
    versions = {f"version.{p}": version(p) for p in ("qbench", "onnxruntime", "onnx", "numpy", "optuna")}
    machine = {"system.os": platform.platform(), "system.machine": platform.machine(), "system.cpus": str(os.cpu_count()), "system.python": platform.python_version()}
    if hasattr(os, "sysconf") and "SC_PHYS_PAGES" in os.sysconf_names:
        machine["system.memory_gb"] = f"{os.sysconf('SC_PHYS_PAGES') * os.sysconf('SC_PAGE_SIZE') / 1e9:.1f}"
    return {**versions, **machine, "mlflow.source.name": command or "qbench search", "mlflow.source.type": "LOCAL", "mlflow.user": getpass.getuser()}


def _short(v: float) -> float:
    """Five significant digits, so that columns of MLflow's table can be read; whole numbers as they are. summary.json holds every digit."""
    return float(v) if float(v).is_integer() else float(f"{v:.5g}")
