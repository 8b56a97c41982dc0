"""What the shell completes after an option: names that qbench knows."""

from __future__ import annotations


def targets(incomplete: str) -> list[str]:
    from qbench.targets import names

    return [n for n in names() if n.startswith(incomplete)]


def samples(incomplete: str) -> list[str]:
    from qbench.samples import names

    return [n for n in names() if n.startswith(incomplete)]


def presets(incomplete: str) -> list[str]:
    from qbench.search.preset import names

    return [n for n in names() if n.startswith(incomplete)]


def calibrators(incomplete: str) -> list[str]:
    from qbench.calibrators import names

    return [n for n in names() if n.startswith(incomplete)]
