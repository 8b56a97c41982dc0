"""Guards of the layout: what is on disk is what gets installed, and installing it stays light."""

from __future__ import annotations

import fnmatch
import resource
import subprocess
import sys
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import qbench

ROOT = Path(__file__).parent.parent
FOLDERS = ("calibrators", "search", "targets")
HEAVY = ("torch", "onnxruntime", "mlflow", "optuna", "numba")


def pyproject() -> Mapping[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())


def repository_files() -> list[Path]:
    """Everything that is, or could be, committed: ignored files are left out, links are not followed."""
    listed = subprocess.run(["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"], cwd=ROOT, capture_output=True, check=True)
    found = [ROOT / name for name in listed.stdout.decode().split("\0") if name]
    return [p for p in found if p.is_file() and not p.is_symlink()]


def folder_of(package: str) -> Path:
    """Where a package lies in the repository, by the mapping that setuptools uses."""
    mapped = pyproject()["tool"]["setuptools"]["package-dir"]
    parts = package.split(".")
    for n in range(len(parts), 0, -1):
        if (head := ".".join(parts[:n])) in mapped:
            return ROOT.joinpath(mapped[head], *parts[n:])
    return ROOT.joinpath(*parts)


def test_every_package_folder_is_in_the_list_of_packages() -> None:
    """A forgotten one would be missing from the wheel without any warning."""
    listed = pyproject()["tool"]["setuptools"]["packages"]
    on_disk = {p.parent for top in ("qbench", *FOLDERS) for p in (ROOT / top).rglob("__init__.py")
               if not any(parent.is_symlink() for parent in p.parents)}
    assert {folder_of(p) for p in listed} == on_disk
    assert len(set(listed)) == len(listed)


def test_every_module_lies_in_a_package() -> None:
    lost = [p for top in ("qbench", *FOLDERS) for p in (ROOT / top).rglob("*.py") if not (p.parent / "__init__.py").is_file()]
    assert not lost


def test_every_data_file_is_named_in_package_data() -> None:
    """A TOML or template that no pattern covers would be missing from the wheel, again without a warning."""
    setuptools = pyproject()["tool"]["setuptools"]
    folders = sorted(((folder_of(p), p) for p in setuptools["packages"]), key=lambda fp: -len(fp[0].parts))
    for path in repository_files():
        owner = next(((f, p) for f, p in folders if path.is_relative_to(f)), None)
        if owner is None or path.suffix == ".py":
            continue
        folder, package = owner
        inside = path.relative_to(folder).as_posix()
        patterns = setuptools["package-data"].get(package, [])
        assert any(fnmatch.fnmatch(inside, p) and inside.count("/") == p.count("/") for p in patterns), f"{path}: add it to package-data"


@pytest.mark.parametrize("name", FOLDERS)
def test_links_lead_to_their_folders(name: str) -> None:
    link = ROOT / "qbench" / name
    assert link.is_symlink() and link.readlink() == Path("..") / name
    assert link.resolve() == ROOT / name


def test_top_level_is_the_agreed_one() -> None:
    folders = {p.relative_to(ROOT).parts[0] for p in repository_files() if len(p.relative_to(ROOT).parts) > 1}
    assert {f for f in folders if not f.startswith(".")} == {"qbench", "calibrators", "search", "targets", "tests", "experiments", "docs"}
    for name in ("pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md", "CONTRIBUTING.md", "Makefile", ".ci/run"):
        assert (ROOT / name).is_file(), name


def test_no_folder_of_this_machine_is_named_anywhere() -> None:
    """Neither in text nor inside a binary (exporters like to write source paths into models)."""
    secret = {f"/{name}/".encode() for name in ("work", "root")}
    secret |= {f"{p}/".encode() for p in (ROOT, Path.home()) if len(p.parts) > 2}
    named = [(p, s) for p in repository_files() for s in secret if s in p.read_bytes()]
    assert not named


def test_version_is_said_once() -> None:
    assert qbench.__version__ == pyproject()["project"]["version"]


def test_test_modules_have_names_of_their_own() -> None:
    """Without __init__.py in the test folders, two modules of one name cannot both be imported."""
    names = [p.name for p in (ROOT / "tests").rglob("test_*.py")]
    assert len(names) == len(set(names))


# `qbench --help` stays light

def in_python(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], check=False, cwd=ROOT / "tests", capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_import_qbench_loads_nothing_heavy() -> None:
    assert in_python(f"import sys, qbench; print([m for m in {HEAVY} if m in sys.modules])").strip() == "[]"


def test_help_loads_nothing_heavy() -> None:
    code = (f"import sys; from qbench.cli import main; sys.argv = ['qbench', '--help']\n"
            f"try:\n    main()\nexcept SystemExit as end:\n    assert not end.code, end.code\n"
            f"print('loaded', [m for m in {HEAVY} if m in sys.modules])")
    said = in_python(code)
    assert "search" in said and said.splitlines()[-1] == "loaded []"


def test_help_takes_less_than_half_a_second_of_one_core() -> None:
    """Of its own work, not by the clock: what else the machine does is not ours to judge."""
    def once() -> float:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        in_python("import sys; from qbench.cli import main; sys.argv = ['qbench', '--help']\ntry:\n    main()\nexcept SystemExit:\n    pass")
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    assert min(once() for _ in range(5)) < 0.5
