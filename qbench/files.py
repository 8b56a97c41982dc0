"""Writing without loss: everything goes to a temporary name beside the goal and is renamed when complete."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from qbench.errors import InputError


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A temporary path in the same folder; on a clean exit it takes the name `path`, on an error it is removed.

    Raises InputError for a place where nothing can be written.
    """
    path = Path(path)
    if os.path.isdir(path):
        raise InputError(f"{path} is a folder; give the name of a file to write")
    if os.path.exists(path) and not os.path.isfile(path):                    # /dev/null would become a file
        raise InputError(f"{path} is no ordinary file, and a rename would put one in its place; give the name of a file to write")
    make_folder(path.parent)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        yield temporary
        os.replace(temporary, path)
    except OSError as error:
        if error.errno is not None and (error.filename is None or os.fspath(error.filename) == os.fspath(temporary)):   # a full disk has no name
            raise InputError(f"{path} cannot be written: {error.strerror}; make room or get the right to write there, or name another place (-o)") from error
        raise
    finally:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)


def make_folder(folder: Path, option: str = "-o") -> None:
    """Makes a folder and those above it. Raises InputError, with the option that names it, where it cannot be made."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        file = next((p for p in (folder, *folder.parents) if os.path.exists(p) and not os.path.isdir(p)), None)      # a name too long makes Path.exists raise
        raise InputError(f"the folder {folder} cannot be made: {f'{file} is a file' if file else error.strerror}; name another place ({option})") from error


def write_text(path: Path, text: str) -> None:
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def sha256(path: Path) -> str:
    """Hex digest of a file, read in blocks."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
