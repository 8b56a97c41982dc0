"""A function that the user names on the command line as `module:function` or `path/to/file.py:function`.

Code is run only because its name was typed: no folder and no data set is searched for any.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

from qbench.errors import InputError


def is_function_spec(spec: str) -> bool:
    """Whether `spec` has the form module:function (or file.py:function)."""
    module, _, function = spec.rpartition(":")
    return function.isidentifier() and (module.endswith(".py") or all(p.isidentifier() for p in module.split(".")))


def load_function(spec: str) -> Callable[..., Any]:
    """The function that `spec` names; its module is imported, with the current folder first on the path, as Python does.

    Raises InputError when the module cannot be imported or holds no such function.
    """
    if not is_function_spec(spec):
        raise InputError(f"{spec!r} is not of the form module:function or path/to/file.py:function")
    name, _, function = spec.rpartition(":")
    module = _from_file(Path(name)) if name.endswith(".py") else _from_path(name)
    found = getattr(module, function, None)
    if not callable(found):
        has = ", ".join(sorted(k for k, v in vars(module).items() if callable(v) and not k.startswith("_"))) or "none"
        raise InputError(f"module {name!r} ({module.__file__}) has no function {function!r}; its functions: {has}")
    return found  # type: ignore[no-any-return]


def _from_path(name: str) -> ModuleType:
    try:
        with _folder_first(os.getcwd()):
            return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name and (name == error.name or name.startswith(error.name + ".")):
            raise InputError(f"there is no module {name!r} in {os.getcwd()} or among the installed packages; "
                             "name a file instead: path/to/file.py:function") from error
        raise InputError(f"module {name!r} needs a module that is not installed: {error.name}") from error


def _from_file(path: Path) -> ModuleType:
    path = path.resolve()
    if not path.is_file():
        raise InputError(f"there is no file {path}")
    name = f"qbench_user_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module                     # dataclasses and pickling look a module up by its name
    with _folder_first(str(path.parent)):
        spec.loader.exec_module(module)
    return module


@contextmanager
def _folder_first(folder: str) -> Iterator[None]:
    sys.path.insert(0, folder)
    try:
        yield
    finally:
        sys.path.remove(folder)
