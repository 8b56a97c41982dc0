"""What a torch.export archive (.pt2) would run when torch reads it: looked for before torch does.

`torch.export.load` unpickles without restriction what an archive says is pickled, loads compiled libraries that lie in it, and hands the texts of
sizes to sympy, which evaluates them as Python. Only members that a saved program has are let through; each that torch unpickles must load under
`weights_only=True`, which runs no code; sizes must be arithmetic; and nodes may call operators only. What torch does with the rest is not proven
harmless: it is for archives of one's own, and this is the second line.
Source: torch 2.13 (2026), torch/export/pt2_archive/_package.py and torch/_export/serde/serialize.py; layout of 2.7 in torch/export/__init__.py.
"""

from __future__ import annotations

import ast
import io
import json
import re
import zipfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from qbench.errors import ModelError

TENSORS = re.compile(r"data/(weights/weight|constants/tensor)_\d+")
CONFIGS = re.compile(r"data/(?P<folder>weights|constants)/[^/]+_config\.json")
PICKLED = re.compile(r"data/(weights|constants|sample_inputs)/[^/]+\.pt|serialized_(state_dict|constants|example_inputs)\.(pt|json)")
PROGRAM = re.compile(r"models/[^/]+\.json|serialized_exported_program\.json")
PLAIN = re.compile(r"archive_format|archive_version|byteorder|\.data/[^/]+|extra/.*|extra_files/.*|version")
"""Names below the archive's one folder; without a folder in torch 2.7."""
CALLED = re.compile(r"torch\.ops\.[a-z]\w*\.\w+(\.\w+)?|_operator\.\w+|math\.\w+|torch\.sym_\w+|torch\.amp\.autocast_mode\._(enter|exit)_autocast|torch\._C\._set_grad_enabled")
"""What a node of a program calls."""
MEASURES = ("size", "stride", "storage_offset")
"""What a guard may ask of an input."""
ARITHMETIC = (ast.Expression, ast.Attribute, ast.Subscript, ast.Call, ast.keyword, ast.Constant, ast.Name, ast.Load, ast.BinOp, ast.operator, ast.UnaryOp, ast.unaryop, ast.Compare, ast.cmpop,
              ast.BoolOp, ast.boolop)
WORD = re.compile(r"[A-Za-z_]\w*|[-+.\deE]+")


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
    except ModelError:
        raise
    except Exception as error:                       # whoever made the file may have written anything
        raise ModelError(f"{path}: not a readable torch.export archive ({type(error).__name__}: {error}); was it written by torch.export.save?") from error


def _check(path: Path, archive: zipfile.ZipFile, root: str, name: str) -> None:
    inner = name.removeprefix(root)
    if PICKLED.fullmatch(inner):
        _check_pickle(path, archive, name)
    elif config := CONFIGS.fullmatch(inner):
        for entry in json.loads(archive.read(name))["config"].values():
            if entry.get("use_pickle"):
                _check_pickle(path, archive, f"{root}data/{config['folder']}/{entry['path_name']}")
    elif PROGRAM.fullmatch(inner):
        _check_program(path, name, json.loads(archive.read(name)))
    elif not (TENSORS.fullmatch(inner) or PLAIN.fullmatch(inner)):
        raise _refused(path, f"member {name!r} is none that a program of tensors needs")


def _check_program(path: Path, name: str, body: Any) -> None:
    """Every size and every call below `body`."""
    if isinstance(body, list):
        for part in body:
            _check_program(path, name, part)
    elif isinstance(body, dict):
        if "inputs" in body and isinstance(called := body.get("target"), str) and not CALLED.fullmatch(called):
            raise _refused(path, f"member {name!r} calls {called!r}, which is no operator")
        if isinstance(ranges := body.get("range_constraints"), dict):
            _check_sizes(path, name, ranges)
        _check_sizes(path, name, body.get("guards_code") or ())
        for key, part in body.items():
            if key == "expr_str":
                _check_sizes(path, name, [part])
            _check_program(path, name, part)


def _check_sizes(path: Path, name: str, texts: Iterable[str]) -> None:
    """Sums, products and the like of numbers and symbols, as sympy writes them, and of an input's sizes, as guards do."""
    for text in texts:
        for part in ast.walk(ast.parse(text, mode="eval")):
            call = part.func if isinstance(part, ast.Call) else None
            word = part.value if isinstance(part, ast.Constant) and isinstance(part.value, str) else "0"
            odd = (isinstance(part, ast.Attribute) and part.attr not in MEASURES) or (call is not None and not isinstance(call, ast.Attribute) and not _is_term(call))
            if not isinstance(part, ARITHMETIC) or odd or not WORD.fullmatch(word):
                raise _refused(path, f"member {name!r} has {text[:80]!r} for a size, which is no arithmetic")


def _is_term(called: ast.expr) -> bool:
    """Whether what is called makes a term: a class of sympy's, or of torch's own for sizes."""
    import sympy
    from torch.utils._sympy import functions

    found = next((f for m in (functions, sympy) if isinstance(called, ast.Name) and (f := getattr(m, called.id, None)) is not None), None)
    return isinstance(found, type) and issubclass(found, sympy.Basic)


def _check_pickle(path: Path, archive: zipfile.ZipFile, name: str) -> None:
    import torch

    try:
        torch.load(io.BytesIO(archive.read(name)), weights_only=True, map_location="cpu")
    except Exception as error:                       # unpickling of what anyone may have written raises anything
        raise _refused(path, f"member {name!r} holds more than tensors") from error


def _refused(path: Path, why: str) -> ModelError:
    return ModelError(f"{path}: {why}; torch would run code that it brings, and it is not read: export the model anew with torch.export.save, from the module itself, "
                      "or give the ONNX file")
