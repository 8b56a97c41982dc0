"""What a torch.export archive (.pt2) would run when torch reads it: looked for before torch does.

`torch.export.load` unpickles without restriction what an archive says is pickled, and loads compiled libraries that lie in it. Only members that a
saved program has are let through, and each that torch unpickles must load under `weights_only=True`, which runs no code.
Source: torch 2.13 (2026), torch/export/pt2_archive/_package.py and torch/_export/serde/serialize.py; layout of 2.7 in torch/export/__init__.py.
"""

from __future__ import annotations

import io
import json
import re
import zipfile
from pathlib import Path

from qbench.errors import ModelError

TENSORS = re.compile(r"data/(weights/weight|constants/tensor)_\d+")
CONFIGS = re.compile(r"data/(?P<folder>weights|constants)/[^/]+_config\.json")
PICKLED = re.compile(r"data/(weights|constants|sample_inputs)/[^/]+\.pt|serialized_(state_dict|constants|example_inputs)\.(pt|json)")
PLAIN = re.compile(r"archive_format|archive_version|byteorder|\.data/[^/]+|models/[^/]+\.json|extra/.*|extra_files/.*|version|serialized_exported_program\.json")
"""Names below the archive's one folder; without a folder in torch 2.7."""


def refuse_code(path: Path) -> None:
    """Raises ModelError for an archive that holds more than tensors, and for one that is none."""
    try:
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()
            if len(set(names)) < len(names):
                raise _refused(path, "two members have one name")
            root = "" if "version" in names else f"{names[0].partition('/')[0]}/" if names else ""
            for name in names:
                _check(path, archive, root, name)
    except (zipfile.BadZipFile, OSError, ValueError, AttributeError) as error:
        raise ModelError(f"{path}: not a readable torch.export archive ({type(error).__name__}: {error}); was it written by torch.export.save?") from error


def _check(path: Path, archive: zipfile.ZipFile, root: str, name: str) -> None:
    inner = name.removeprefix(root)
    if PICKLED.fullmatch(inner):
        _check_pickle(path, archive, name)
    elif config := CONFIGS.fullmatch(inner):
        for entry in json.loads(archive.read(name))["config"].values():
            if entry.get("use_pickle"):
                _check_pickle(path, archive, f"{root}data/{config['folder']}/{entry['path_name']}")
    elif not (TENSORS.fullmatch(inner) or PLAIN.fullmatch(inner)):
        raise _refused(path, f"member {name!r} is none that a program of tensors needs")


def _check_pickle(path: Path, archive: zipfile.ZipFile, name: str) -> None:
    import torch

    try:
        torch.load(io.BytesIO(archive.read(name)), weights_only=True, map_location="cpu")
    except Exception as error:                       # unpickling of what anyone may have written raises anything
        raise _refused(path, f"member {name!r} holds more than tensors") from error


def _refused(path: Path, why: str) -> ModelError:
    return ModelError(f"{path}: {why}; torch would run code that it brings, and it is not read: export the model anew with torch.export.save, from the module itself, "
                      "or give the ONNX file")
