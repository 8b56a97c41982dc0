"""How much faster is a search with two workers than with one?

    python experiments/dask_workers.py [--sample brain] [--limit 16] [--repeats 1]

Each worker has one thread. The runs alternate, each in a folder of its own; seconds are those of the search itself, without imports and without starting the
cluster. Prints the ratio, whether both found the same plans, and the load average beside it.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any


def search(asked: argparse.Namespace, workers: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([sys.executable, "-m", "qbench", "--quiet", "search", "--sample", asked.sample, "--target", "rk3588", "--limit", str(asked.limit), "--trials",
                        str(asked.trials), "--no-track", "--executor", f"dask://local?workers={workers}&threads=1", "-o", folder], check=True, stdout=subprocess.DEVNULL)
        found: dict[str, Any] = json.loads((Path(folder) / "summary.json").read_text())
        return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sample", default="brain")
    parser.add_argument("--limit", type=int, default=16)
    parser.add_argument("--trials", type=int, default=24)
    parser.add_argument("--repeats", type=int, default=1)
    asked = parser.parse_args()
    seconds: dict[int, list[float]] = {1: [], 2: []}
    plans = set()
    for _ in range(asked.repeats):
        for workers, taken in seconds.items():
            found = search(asked, workers)
            taken.append(found["wall_s"])
            plans.add(tuple(sorted(c["plan_key"] for c in found["candidates"])))
            print(f"{workers} worker{'s' if workers > 1 else ''}: {found['wall_s']:.1f} s, {found['evaluated']} plans; load {os.getloadavg()[0]:.1f}", flush=True)
    print(f"two workers are {min(seconds[1]) / min(seconds[2]):.2f} times as fast; {'the same plans' if len(plans) == 1 else 'DIFFERENT plans'}")


if __name__ == "__main__":
    main()
