"""Environments of toolchains: where they are, what is in them, making one. Nothing is downloaded unless `install` is called."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from qbench.errors import InputError, ToolchainMissing, ToolError
from qbench.protocols import Progress, silent
from qbench.toolchains.record import Toolchain, load
from qbench.versions import satisfies

_ASK = """
import importlib, importlib.metadata, json, platform, sys
package, modules = sys.argv[1], sys.argv[2:]
found = {"python": platform.python_version(), "version": "", "broken": ""}
try:
    found["version"] = importlib.metadata.version(package)
    for name in modules:
        importlib.import_module(name)
except Exception as error:
    found["broken"] = f"{type(error).__name__}: {error}".splitlines()[0]
print(json.dumps(found))
"""
ASK_S = 120.0
INSTALL_S = 3600.0


@dataclass(frozen=True, slots=True)
class Status:
    """where    interpreter, None: not here; broken   why it cannot be used although it is there"""

    toolchain: Toolchain
    where: Path | None
    version: str = ""
    python: str = ""
    broken: str = ""

    @property
    def ready(self) -> bool:
        return self.where is not None and not self.broken


def home() -> Path:
    """Folder of the environments: $QBENCH_TOOLCHAINS, or the user's cache."""
    from platformdirs import user_cache_path

    return Path(os.environ["QBENCH_TOOLCHAINS"]) if os.environ.get("QBENCH_TOOLCHAINS") else user_cache_path("qbench") / "toolchains"


def own_environment(toolchain: Toolchain) -> Path:
    return home() / f"{toolchain.name}-{toolchain.version}"


def find(toolchain: Toolchain) -> Path | None:
    """The interpreter to use: $QBENCH_TOOLCHAIN_NAME, else that of the environment in the cache, else (shared ones) the running one."""
    named = os.environ.get(variable(toolchain))
    if named:
        return Path(named)
    own = _python(own_environment(toolchain))
    if own.is_file():
        return own
    if toolchain.shared:
        from importlib.metadata import PackageNotFoundError, version

        try:
            version(toolchain.package)
        except PackageNotFoundError:
            return None
        return Path(sys.executable)
    return None


def variable(toolchain: Toolchain) -> str:
    return f"QBENCH_TOOLCHAIN_{toolchain.name.upper().replace('-', '_')}"


def need(name: str) -> Path:
    """The interpreter of a toolchain. Raises ToolchainMissing with the line that gets it."""
    toolchain = load(name)
    where = find(toolchain)
    if where is None:
        raise ToolchainMissing(f"{toolchain.package} {toolchain.version} is not here: {how_to_get(toolchain)}")
    if not where.is_file():
        raise ToolchainMissing(f"{variable(toolchain)} names {where}, which is no interpreter: correct it, or unset it and {how_to_get(toolchain)}")
    return where


def how_to_get(toolchain: Toolchain) -> str:
    return f"qbench toolchain install {toolchain.name} (about {toolchain.size_mb} MB, into {own_environment(toolchain)})"


def check(name: str) -> Status:
    """What is here: asks the interpreter, which imports the toolchain."""
    toolchain = load(name)
    where = find(toolchain)
    if where is None:
        return Status(toolchain, None)
    try:
        done = subprocess.run([str(where), "-c", _ASK, toolchain.package, *toolchain.imports], capture_output=True, text=True, errors="replace",
                              timeout=ASK_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return Status(toolchain, where, broken=f"{where} does not answer: {error}")
    try:
        found = json.loads(done.stdout.strip().splitlines()[-1])
    except (IndexError, json.JSONDecodeError):
        return Status(toolchain, where, broken=f"{where} ended with exit status {done.returncode}: {done.stderr.strip()[-200:]}")
    return Status(toolchain, where, found["version"], found["python"], found["broken"])


def install(name: str, python: Path | None = None, progress: Progress = silent) -> Status:
    """Make the toolchain's environment in the user's cache, from the package registry that pip is set up for.

    python   interpreter that it is made with; default: the running one
    Raises InputError when the interpreter does not fit, ToolError with pip's last words. The environment appears only when complete.
    """
    toolchain = load(name)
    maker = python or Path(sys.executable)
    _fits(toolchain, maker)
    goal = own_environment(toolchain)
    goal.parent.mkdir(parents=True, exist_ok=True)
    unfinished = goal.with_name(goal.name + ".unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    done = len(toolchain.steps) + 2
    progress(f"installing {name}: environment", 0, done)
    try:
        _run([str(maker), "-m", "venv", str(unfinished)], f"{maker} cannot make an environment")
        for number, step in enumerate(toolchain.steps):
            progress(f"installing {name}: {step[-1]}", number + 1, done)
            _run([str(_python(unfinished)), "-m", "pip", "install", "--disable-pip-version-check", "--quiet", *step], f"pip cannot install {' '.join(step)}")
        shutil.rmtree(goal, ignore_errors=True)
        os.replace(unfinished, goal)      # its scripts name the old place, but only its interpreter is ever called
    except BaseException:
        shutil.rmtree(unfinished, ignore_errors=True)
        raise
    progress(f"installing {name}: asking it", done - 1, done)
    status = check(name)
    if not status.ready:
        raise ToolError(f"{name} was installed in {goal}, but does not import: {status.broken}")
    return status


def _fits(toolchain: Toolchain, python: Path) -> None:
    asked = subprocess.run([str(python), "-c", "import platform; print(platform.python_version())"], capture_output=True, text=True, check=False)
    version = asked.stdout.strip()
    if asked.returncode or not version:
        raise InputError(f"{python} is no Python interpreter; give another with --python")
    if not satisfies(version, ", ".join(toolchain.python)):
        raise InputError(f"{toolchain.package} {toolchain.version} needs Python {', '.join(toolchain.python)}, {python} is {version}: "
                         "give another with --python, e.g. --python /usr/bin/python3.11")


def _run(command: Sequence[str], trouble: str) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=INSTALL_S, check=False)
    except subprocess.TimeoutExpired as error:
        raise ToolError(f"{trouble}: it took longer than {INSTALL_S:.0f} s") from error
    if done.returncode:
        raise ToolError(f"{trouble}: {' | '.join((done.stderr or done.stdout).strip().splitlines()[-4:])}")


def _python(environment: Path) -> Path:
    return environment / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
