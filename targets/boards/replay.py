"""A recording as a board: what was measured once, with every figure labelled as recorded."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from qbench.board import Array, Measurement, Request
from qbench.errors import InputError, ToolError
from qbench.targets.boards.outputs import read_dump


@dataclass(frozen=True)
class Replay:
    """by_model   model file name -> its measurement"""

    url: str
    by_model: Mapping[str, Measurement]

    def facts(self) -> Mapping[str, str]:
        first = next(iter(self.by_model.values()))
        return {**first.facts, "recorded": f"{first.when or 'at an unknown time'} on {first.board}"}

    def measure(self, model: Path, feeds: Sequence[Mapping[str, Array]], request: Request) -> Measurement:
        found = self.by_model.get(model.name)
        if found is None:
            raise ToolError(f"{self.url} holds no measurement of {model.name}; it has {', '.join(sorted(self.by_model))}")
        return replace(found, recorded=True)

    def outputs(self, model: Path, feeds: Sequence[Mapping[str, Array]], request: Request) -> list[dict[str, Array]]:
        """What lies beside the recording as NAME.outputs.npz, for NAME.json: tensor -> [samples, ...]."""
        path = Path(self.url.partition(":")[2]).with_suffix(".outputs.npz")
        if not path.is_file():
            raise ToolError(f"{self.url} holds times but no outputs; they would lie in {path} (tensor -> [samples, ...])")
        dump = read_dump(path)
        return [{k: v[i:i + 1] for k, v in dump.items()} for i in range(min(len(v) for v in dump.values()))]


def open_replay(url: str) -> Replay:
    """`replay:FILE`: one stored measurement, or a list of them. Raises InputError."""
    path = Path(url.partition(":")[2])
    try:
        body = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"board {url!r}: {path} cannot be read as JSON ({error}); `qbench measure ... -o FILE` writes it") from error
    rows = body if isinstance(body, list) else [body]
    if not rows or not all(isinstance(r, dict) for r in rows):
        raise InputError(f"board {url!r}: {path} holds no measurement")
    found = [Measurement.from_dict(r, str(path)) for r in rows]
    return Replay(url, {m.model: m for m in found})
