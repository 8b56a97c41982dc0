"""The networks that fetch.py made: what lies in each folder, and how qbench opens it."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from qbench.workbench import Case, open_case

MODEL, CALIBRATION, EVALUATION, RECORD = "model.onnx", "calibration.npz", "evaluation.npz", "network.json"


@dataclass(frozen=True)
class Entry:
    """One network.

    metric   as `qbench search --metric`; `scores:...` is a function of scores.py
    note     what the figures do not show
    shapes   static shapes of inputs with open axes, as `--input-shape`
    """

    folder: Path
    metric: str
    note: str
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return self.folder.name

    @property
    def model(self) -> Path:
        return self.folder / MODEL

    @property
    def calibration(self) -> Path:
        return self.folder / CALIBRATION

    @property
    def evaluation(self) -> Path:
        return self.folder / EVALUATION

    @property
    def shape_options(self) -> list[str]:
        """The shapes as options of the command line."""
        return [o for k, v in self.shapes.items() for o in ("--input-shape", f"{k}={','.join(map(str, v))}")]

    def case(self) -> Case:
        """The network with its data and metric, opened as `qbench search` does."""
        return open_case(
            self.model,
            str(self.calibration),
            str(self.evaluation),
            metric=self.metric,
            input_shapes=self.shapes or None,
        )

    def samples(self, count: int | None = None) -> Iterator[dict[str, NDArray[np.generic]]]:
        """Calibration samples one by one, as feeds with a batch axis of 1."""
        with np.load(self.calibration, allow_pickle=False) as stored:
            arrays = {k: stored[k] for k in stored.files if k != "labels"}
        for n in range(min(len(next(iter(arrays.values()))), count or 1 << 30)):
            yield {k: v[n : n + 1] for k, v in arrays.items()}

    def save(self) -> None:
        """Write the record; it comes last, so a folder with one is complete."""
        body = {k: v for k, v in asdict(self).items() if k != "folder"}
        (self.folder / RECORD).write_text(json.dumps(body, indent=1) + "\n", encoding="utf-8")


def entries(folder: Path, only: Sequence[str] = ()) -> list[Entry]:
    """The complete networks in `folder`, or those named in `only`. Raises SystemExit for an unknown name."""
    found = {p.parent.name: p for p in sorted(folder.glob(f"*/{RECORD}"))}
    if missing := set(only) - set(found):
        raise SystemExit(
            f"{folder} has no network {', '.join(sorted(missing))}; it has {', '.join(found) or 'none: run fetch.py'}"
        )
    return [_read(found[name]) for name in (only or found)]


def _read(path: Path) -> Entry:
    body = json.loads(path.read_text(encoding="utf-8"))
    return Entry(path.parent, body["metric"], body["note"], {k: tuple(v) for k, v in body["shapes"].items()})


def markdown(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(
        "| " + " | ".join(str(c).replace("|", "\\|").replace("\n", " ") for c in line) + " |" for line in lines
    )


def apart(order: Sequence[str], goal: Path, limit_s: float) -> str:
    """Runs a command in a process of its own: "" when it wrote `goal`, else why not."""
    goal.unlink(missing_ok=True)
    try:
        done = subprocess.run(order, capture_output=True, text=True, timeout=limit_s, check=False)
    except subprocess.TimeoutExpired:
        return f"not done after {limit_s:g} s"
    if done.returncode < 0:
        return f"killed by signal {-done.returncode}"
    last = (done.stderr.strip().splitlines() or ["nothing said"])[-1]
    return "" if done.returncode == 0 and goal.is_file() else last[:200]
