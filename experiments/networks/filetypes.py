"""Magika: what kind of file is this? The data are files of the machine that runs this, labelled by their extension."""

from __future__ import annotations

import json
import os
import sysconfig
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import onnx
from made import Array, Made
from packages import Package, unpacked

MAGIKA = Package("pypi", "magika==1.0.3", ("magika/models/standard_v3_3/*",))
KINDS = {
    ".py": "python",
    ".c": "c",
    ".cpp": "cpp",
    ".so": "elf",
    ".html": "html",
    ".css": "css",
    ".js": "javascript",
    ".json": "json",
    ".md": "markdown",
    ".xml": "xml",
    ".png": "png",
    ".jpg": "jpeg",
    ".gif": "gif",
    ".gz": "gzip",
    ".sh": "shell",
    ".pl": "perl",
    ".rst": "rst",
    ".svg": "svg",
    ".toml": "toml",
    ".yaml": "yaml",
    ".yml": "yaml",
    ".ttf": "ttf",
    ".csv": "csv",
    ".npy": "npy",
    ".npz": "npz",
    ".pyc": "pythonbytecode",
    ".ts": "typescript",
    ".java": "java",
    ".rb": "ruby",
    ".ps1": "powershell",
    ".bat": "batch",
    ".ipynb": "ipynb",
    ".tcl": "tcl",
    ".cs": "cs",
    ".wav": "wav",
    ".jar": "jar",
    ".proto": "proto",
    ".r": "r",
    ".vue": "vue",
    ".sql": "sql",
    ".onnx": "onnx",
}
EACH = 16  # files of one kind at most; every fourth calibrates
LEAST_BYTES = 200


def magika(cache: Path) -> Made:
    """Files below the Python installation and /usr, by kind; calibration and evaluation share no file."""
    folder = next(unpacked(MAGIKA, cache).rglob("model.onnx")).parent
    config = json.loads((folder / "config.min.json").read_text(encoding="utf-8"))
    numbers = {label: n for n, label in enumerate(config["target_labels_space"])}
    calibration, evaluation, labels = [], [], []
    for kind, files in _files().items():
        for n, path in enumerate(files):
            if n % 4 == 0:
                calibration.append(_bytes(path, config))
            else:
                evaluation.append(_bytes(path, config))
                labels.append(numbers[kind])
    order = np.random.default_rng(15).permutation(len(labels))
    return Made(
        onnx.load(folder / "model.onnx"),
        {"bytes": np.stack(calibration)[np.random.default_rng(16).permutation(len(calibration))[:64]]},
        {"bytes": np.stack(evaluation)[order][:400], "labels": np.array(labels)[order][:400]},
        "top1",
        "files of one machine, labels by extension; another machine gives other files",
    )


def _files() -> Mapping[str, list[Path]]:
    """kind -> files, at most EACH, in sorted order, no two of one name."""
    found: dict[str, list[Path]] = {}
    taken: set[str] = set()
    for path in _walk():
        kind = KINDS.get(path.suffix)
        if kind is None or len(found.get(kind, ())) >= EACH or path.name in taken:
            continue
        if path.is_file() and not path.is_symlink() and path.stat().st_size >= LEAST_BYTES:
            taken.add(path.name)
            found.setdefault(kind, []).append(path)
    return {k: v for k, v in found.items() if len(v) >= 4}


def _walk() -> Iterator[Path]:
    for root in (sysconfig.get_paths()["purelib"], "/usr/share", "/usr/lib"):
        for folder, below, files in os.walk(root):
            below.sort()
            yield from (Path(folder) / f for f in sorted(files))


def _bytes(path: Path, config: Mapping[str, int]) -> Array:
    """First and last bytes without white space around, padded: int32 [2048].

    Source: Magika's own feature extraction, `_extract_features_from_seekable` of the package.
    """
    content, block, pad = path.read_bytes(), config["block_size"], config["padding_token"]
    begin, end = (
        list(content[:block].lstrip()[: config["beg_size"]]),
        list(content[-block:].rstrip()[-config["end_size"] :]),
    )
    return np.array(
        [*begin, *[pad] * (config["beg_size"] - len(begin)), *[pad] * (config["end_size"] - len(end)), *end], np.int32
    )
