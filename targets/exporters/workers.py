"""Starts the workers of `inside/` in the vendors' environments, each with the modules that bear its vendor's name and with what all of them share."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from qbench import toolchains

INSIDE = Path(__file__).with_name("inside")
SHARED = INSIDE / "answering.py"


def ask(python: Path, vendor: str, request: Mapping[str, Any], *, folder: Path, seconds: float, what: str) -> dict[str, Any]:
    """The answer of `inside/VENDOR_worker.py`; see `qbench.toolchains.call`, whose errors it raises."""
    parts = sorted(p for p in INSIDE.glob(f"{vendor}_*.py") if p != _script(vendor))
    return toolchains.call(python, _script(vendor), request, folder=folder, seconds=seconds, what=what, beside=(SHARED, *parts))


def log_of(folder: Path, vendor: str) -> str:
    """What that worker printed."""
    return toolchains.log_of(folder, _script(vendor))


def _script(vendor: str) -> Path:
    return INSIDE / f"{vendor}_worker.py"
