"""The article's claims about tuning, and what public sources say about each: read from claims.toml."""

from __future__ import annotations

import tomllib
from functools import cache
from importlib import resources

from qbench.advice.records import Claim


@cache
def claims() -> tuple[Claim, ...]:
    """All of them, in the file's order."""
    body = tomllib.loads((resources.files("qbench.advice") / "claims.toml").read_text(encoding="utf-8"))
    return tuple(Claim(**{**row, "holds": row.get("holds", True), "targets": tuple(row.get("targets", ()))}) for row in body["claim"])


def claims_about(step: str, target: str) -> tuple[Claim, ...]:
    """Those on one step that concern the target."""
    return tuple(c for c in claims() if c.step == step and c.concerns(target))
