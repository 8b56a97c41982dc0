"""Outputs of boards: how the agent sends them, and how a dump on disk is read."""

from __future__ import annotations

import base64
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np

from qbench.board import Array, Request
from qbench.errors import InputError, ToolError


@runtime_checkable
class GivesOutputs(Protocol):
    """A board that also hands over what the model computes."""

    def outputs(self, model: Path, feeds: Sequence[Mapping[str, Array]], request: Request) -> list[dict[str, Array]]:
        """Of each input in turn, output name -> array. Raises ToolError when the board or its runtime fails."""
        ...


def decoded(url: str, model: Path, answer: Mapping[str, Any]) -> list[dict[str, Array]]:
    """The agent's answer as arrays. Raises ToolError with the runtime's message when it failed."""
    if "error" in answer:
        raise ToolError(f"{url}: {model.name} does not run: {answer['error']}")
    try:
        return [{k: np.frombuffer(base64.b64decode(v["data"], validate=True), v["dtype"]).reshape(v["shape"]) for k, v in row.items()} for row in answer["outputs"]]
    except (KeyError, TypeError, ValueError) as error:
        raise ToolError(f"{url}: the board's answer holds no whole outputs ({type(error).__name__}: {error}): a bad link; try again") from error


def read_dump(path: Path) -> dict[str, Array]:
    """Tensor -> [samples, ...] from a .npz, or from a folder of one .npz a sample in the order of their names.

    Raises InputError for anything else, and where samples differ in their tensors or shapes.
    """
    if path.is_dir():
        files = sorted(path.glob("*.npz"))
        if not files:
            raise InputError(f"{path}: holds no .npz; expected one a sample, tensor name -> array")
        rows = [_arrays(f) for f in files]
        odd = next((f for f, r in zip(files, rows, strict=True) if {k: v.shape for k, v in r.items()} != {k: v.shape for k, v in rows[0].items()}), None)
        if odd is not None:
            raise InputError(f"{odd}: its tensors or their shapes are not those of {files[0].name}; every sample needs the same")
        return {k: (np.concatenate if v.shape[:1] == (1,) else np.stack)([r[k] for r in rows]) for k, v in rows[0].items()}
    if not path.is_file():
        raise InputError(f"{path} does not exist; expected a .npz of tensors, first axis samples, or a folder of one .npz a sample")
    return _arrays(path)


def _arrays(path: Path) -> dict[str, Array]:
    try:
        with open(path, "rb") as opened:                      # opened here: np.load leaves it open when the archive is broken
            stored = np.load(opened, allow_pickle=False)
            if not isinstance(stored, np.lib.npyio.NpzFile):
                raise InputError(f"{path} is a single array without a name; save it with np.savez(FILE, output_name=array)")
            found = {k: stored[k] for k in stored.files}
    except (OSError, ValueError, zipfile.BadZipFile, zlib.error, EOFError) as error:
        raise InputError(f"{path} cannot be read as .npz ({error}); np.savez(FILE, output_name=array) writes one") from error
    odd = [k for k, v in found.items() if v.dtype.kind not in "fiub"]
    if odd:
        raise InputError(f"{path}: {odd[0]} holds {found[odd[0]].dtype}, not numbers")
    if not found or any(not v.size for v in found.values()):
        raise InputError(f"{path}: {next((k for k, v in found.items() if not v.size), 'it')} is empty; nothing can be compared")
    return found
