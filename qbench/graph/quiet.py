"""Libraries that log what is an answer here."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def quiet(name: str, level: int = logging.CRITICAL) -> Iterator[None]:
    """While it lasts, the logger `name` drops what is below `level`."""
    logger = logging.getLogger(name)
    before = logger.level
    logger.setLevel(level)
    try:
        yield
    finally:
        logger.setLevel(before)
