"""Marks for tests that need a vendor's toolchain: skipped, with one line, where it is not installed."""

from __future__ import annotations

import pytest

from qbench.toolchains import find, load


def toolchain(name: str) -> list[pytest.MarkDecorator]:
    """Use as `pytestmark = toolchain("rknn")`."""
    return [pytest.mark.toolchain(name), pytest.mark.skipif(find(load(name)) is None, reason=f"needs {name}: qbench toolchain install {name}")]
