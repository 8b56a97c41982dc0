"""Kill -9 the real `qbench search` at random moments, continue it, and compare what MLflow holds with an uninterrupted search.

    python experiments/tracking_kills.py [--kills 20] [--each 4] [--seed 0]

A small sample is searched; each search is killed up to `each` times, at a moment drawn evenly over the time that the last whole one took, and
then run to its end. A search that ends before its moment is no kill; it ends its round.
Prints one line per search and the outcome. Expected: no run left "running", one search run per folder, and below it the same finished
candidates (name and plan) as without kills, each once. A kill between a search's last word to MLflow and its end starts a second run, since a
finished search is never written over: such rounds are marked. With `--ratio` it instead times the search with and without tracking.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

SEARCH = ["--sample", "fashion", "--target", "rk3588", "--budget", "20ms", "--trials", "8", "--limit", "24", "--json"]


def search(folder: Path, out: str, kill_after: float | None = None, more: tuple[str, ...] = ()) -> float | None:
    """Seconds that the command took; None when it was killed. kill_after   seconds until kill -9; None: never"""
    began = time.monotonic()
    process = subprocess.Popen([sys.executable, "-m", "qbench", "search", *SEARCH, "-o", out, *more], cwd=folder, stdout=subprocess.PIPE,
                               stderr=subprocess.PIPE, text=True)
    try:
        found, said = process.communicate(timeout=kill_after)
        assert process.returncode in (0, 1) and "error" not in json.loads(found)["mlflow"], said
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGKILL)
        process.communicate()
        return None
    return time.monotonic() - began


def held(store: str) -> dict[str, tuple[list[Any], list[Any]]]:
    """Result folder -> its search runs and the candidates below them."""
    from mlflow.tracking import MlflowClient

    client = MlflowClient(store)
    runs = [r for e in client.search_experiments() for r in client.search_runs([e.experiment_id], max_results=5000)]
    found: dict[str, tuple[list[Any], list[Any]]] = {}
    for r in runs:
        if r.data.tags.get("qbench.role") == "search":
            below = [c for c in runs if c.data.tags.get("mlflow.parentRunId") == r.info.run_id]
            searches, candidates = found.setdefault(Path(r.data.tags["qbench.folder"]).name, ([], []))
            searches.append(r)
            candidates += below
    return found


def plans(candidates: list[Any]) -> list[tuple[str, str]]:
    return sorted((c.data.tags["qbench.name"], c.data.tags.get("qbench.plan_key", "")) for c in candidates if c.info.status == "FINISHED")


def ratio(folder: Path, repeats: int) -> None:
    """Wall time with and without tracking, one after the other so that a busy machine hits both alike."""
    pairs = [(search(folder, f"with-{i}"), search(folder, f"without-{i}", more=("--no-track",))) for i in range(repeats)]
    for tracked, plain in pairs:
        assert tracked and plain
        print(f"with tracking {tracked:6.1f} s   without {plain:6.1f} s   ratio {tracked / plain:.2f}")
    print(f"median ratio {statistics.median(a / b for a, b in pairs if a and b):.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--each", type=int, default=4)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--ratio", type=int, default=0, metavar="N", help="time N pairs of searches instead")
    options = parser.parse_args()
    rng = random.Random(options.seed)
    os.environ.pop("MLFLOW_TRACKING_URI", None)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if options.ratio:
            ratio(folder, options.ratio)
            return
        whole = search(folder, "reference")
        assert whole is not None
        print(f"an uninterrupted search takes {whole:.1f} s")
        rounds = kills = 0
        while kills < options.kills:
            moments: list[float] = []
            took = None
            while took is None:
                more = len(moments) < options.each and kills < options.kills
                took = search(folder, f"round-{rounds}", delay := rng.uniform(0.2, whole) if more else None)
                if took is None and delay is not None:
                    moments.append(delay)
                    kills += 1
            whole = took if not moments else whole
            print(f"round {rounds}: killed after {', '.join(f'{d:.1f}' for d in moments) or 'nothing'} s, then run to its end", flush=True)
            rounds += 1
        found = held(f"sqlite:///{folder}/qbench-out/mlflow.db")
        expected, faults = plans(found["reference"][1]), 0
        for i in range(rounds):
            searches, below = found[f"round-{i}"]
            states = sorted(s.info.status for s in searches)
            running = [r for r in (*searches, *below) if r.info.status == "RUNNING"]
            same = all(plans([c for c in below if c.data.tags["mlflow.parentRunId"] == s.info.run_id]) == expected for s in searches if s.info.status == "FINISHED")
            good = not running and same and "FINISHED" in states and len(plans(below)) == len(expected) * len(searches)
            faults += not good
            print(f"round {i}: {'ok' if good else 'FAULT'}; search runs {states}, candidates {len(below)} of {len(expected)}, left running {len(running)}"
                  + ("; once more after its last word" if states.count("FINISHED") > 1 else ""))
        print(f"{kills} kills, {faults} faults")
        sys.exit(1 if faults else 0)


if __name__ == "__main__":
    main()
