"""A result folder that appears complete or not at all."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from qbench.errors import InputError
from qbench.files import make_folder

MANIFEST = "manifest.json"


@contextmanager
def replacing_folder(path: Path) -> Iterator[Path]:
    """An empty folder beside `path` that takes its name on a clean exit and is removed on an error.

    A folder of an earlier export, known by its manifest, is replaced. Raises InputError for anything else that has the name.
    """
    path = Path(path).absolute()          # tools run in other folders
    if path.exists() and not (path.is_dir() and ((path / MANIFEST).is_file() or not any(path.iterdir()))):
        raise InputError(f"{path} exists and holds no export ({MANIFEST} is missing): nothing is overwritten; give another name with -o")
    make_folder(path.parent)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir()
    try:
        yield temporary
        if path.exists():
            shutil.rmtree(path)
        os.replace(temporary, path)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
