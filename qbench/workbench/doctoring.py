"""What `qbench doctor` does: is everything here that the work needs, does the board answer, and do the versions go together?"""

from __future__ import annotations

import os
import platform
import re
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from importlib import metadata
from pathlib import Path
from typing import Any

from qbench import targets, toolchains
from qbench.board import Board
from qbench.errors import QbenchError, UnknownName
from qbench.target import Target
from qbench.targets.boards import open_board
from qbench.targets.exporters import for_target, make
from qbench.toolchains.environment import home
from qbench.versions import satisfies
from qbench.workbench.measuring import versions

PYTHON = ">=3.11"
FREE_BYTES, TIGHT_BYTES = 500e6, 3e9
"""Below the first no model of size is written; below the second an install of the packages (2.3 GB) does not fit."""
NPU_RUNTIMES = ("rknnlite", "acl")
"""Runtimes of the agent that open an accelerator."""
STEADY = ("performance", "userspace")
RKNN_DRIVER = ">=0.8.0"
"""From which the driver offers on-chip memory (rknn-toolkit2 documents, 2023)."""
_NEED = re.compile(r"^([A-Za-z0-9._-]+)\s*(?:\[[^\]]*\])?\s*([^;]*?)\s*(?:;\s*extra\s*==\s*[\"']([^\"']+)[\"'])?$")


class State(StrEnum):
    """UNKNOWN   nobody shows it; WARNING   works, with a drawback; FAILED   must be mended first"""

    OK = "ok"
    UNKNOWN = "unknown"
    WARNING = "warning"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Finding:
    """One check. where   "machine" or the board's URL; cure   "" when there is nothing to mend"""

    where: str
    name: str
    state: State
    found: str
    needed: str = ""
    cure: str = ""


@dataclass(frozen=True, slots=True)
class Health:
    findings: tuple[Finding, ...]

    @property
    def usable(self) -> bool:
        return not any(f.state is State.FAILED for f in self.findings)

    def to_dict(self) -> dict[str, Any]:
        return {"usable": self.usable, "findings": [asdict(f) for f in self.findings]}


def examine(target: str | None = None, board: str | None = None) -> Health:
    """All checks: of this machine, with `target` of what that chip's toolchain needs, with `board` of the board's versions.

    Raises UnknownName for a target or a kind of board that does not exist, InputError for a board's URL that does not parse or a recording
    that cannot be read; a board that does not answer is a finding.
    """
    chip = targets.load(target) if target else None
    there = open_board(board) if board else None              # a URL that is wrong shall not cost the time of the other checks
    found = [*_python(), *_packages(), *_places(), *_toolchains(chip)]
    if there is not None:
        found += _board(there, chip, {f.name: f.found for f in found})
    return Health(tuple(found))


def _python() -> Iterator[Finding]:
    have = platform.python_version()
    fits = satisfies(have, PYTHON)
    yield Finding("machine", "python", State.OK if fits else State.FAILED, have, PYTHON, "" if fits else "install Python 3.11 or newer and make the environment again")


def _packages() -> Iterator[Finding]:
    """What qbench's own metadata ask for; packages of extras are optional, those of "dev" are left out."""
    try:
        lines = metadata.requires("qbench") or []
    except metadata.PackageNotFoundError:
        yield Finding("machine", "qbench", State.FAILED, "not installed", "", "pip install -e . in the repository")
        return
    for line in lines:
        read = _NEED.match(line)
        if read is None or read[3] == "dev":
            continue
        yield package(read[1], read[2].strip(), read[3] or "")


def package(name: str, wanted: str, extra: str = "") -> Finding:
    """Whether a package is here in a version that does. extra   of which it is part: then it may be missing"""
    install = f"pip install 'qbench[{extra}]'" if extra else f"pip install '{name}{wanted}'"
    try:
        have = metadata.version(name)
    except metadata.PackageNotFoundError:
        if extra:
            return Finding("machine", name, State.OK, f"not installed; optional, for {extra}", wanted, install)
        return Finding("machine", name, State.FAILED, "not installed", wanted, install)
    fits = not wanted or satisfies(have, wanted)
    return Finding("machine", name, State.OK if fits else State.FAILED, have, wanted, "" if fits else install)


def _places() -> Iterator[Finding]:
    yield _room("space in the working folder", Path.cwd())
    cache = home()
    first = next(p for p in (cache, *cache.parents) if p.exists())
    if os.access(first, os.W_OK):
        yield _room(f"cache {cache}", first)
    else:
        yield Finding("machine", f"cache {cache}", State.WARNING, f"{first} cannot be written", "write permission", "set QBENCH_TOOLCHAINS to a folder that you own")


def _room(name: str, place: Path) -> Finding:
    free = shutil.disk_usage(place).free
    state = State.FAILED if free < FREE_BYTES else State.WARNING if free < TIGHT_BYTES else State.OK
    return Finding("machine", name, state, f"{free / 1e9:.1f} GB free", f"{FREE_BYTES / 1e9:g} GB, {TIGHT_BYTES / 1e9:g} GB for installs",
                   "" if state is State.OK else f"free some space on the disk of {place}")


def _toolchains(chip: Target | None) -> Iterator[Finding]:
    """One that the target needs must be here; others only be whole."""
    needed = _needed(chip.name) if chip else ""
    for name in toolchains.names():
        status = toolchains.check(name)
        cure = toolchains.how_to_get(status.toolchain)
        label = f"toolchain {name}"
        if status.ready:
            fits = name != needed or chip is None or _listed(status.version, chip)
            yield Finding("machine", label, State.OK if fits else State.WARNING, f"{status.version} (Python {status.python})",
                          "one of " + ", ".join(chip.toolkits) if chip and name == needed else "",
                          "" if fits else f"{cure}, or expect other rules and figures than those of the target file")
        elif status.where is not None:
            yield Finding("machine", label, State.FAILED if name == needed else State.WARNING, f"broken: {status.broken}", status.toolchain.version, cure)
        else:
            state = State.FAILED if name == needed else State.OK
            yield Finding("machine", label, state, "not installed" if name == needed else "not installed; optional", status.toolchain.version, cure)


def _needed(target: str) -> str:
    """The toolchain of the target's exporter, "" when nobody exports for it."""
    try:
        return str(getattr(make(for_target(target)[0]), "toolchain", ""))
    except UnknownName:
        return ""


def _listed(version: str, chip: Target) -> bool:
    return any(satisfies(version, f"=={t}") for t in chip.toolkits if t[:1].isdigit()) if version[:1].isdigit() else False


def _board(there: Board, chip: Target | None, here: Mapping[str, str]) -> list[Finding]:
    url = there.url
    try:
        facts = there.facts()
    except QbenchError as error:
        return [Finding(url, "answers", State.FAILED, str(error), "an answer of the board's agent", "check cable, address, key and that Python is on the board")]
    found = [Finding(url, "answers", State.OK, ", ".join(facts[k] for k in ("board", "system", "recorded") if k in facts) or "yes")]
    found += board_findings(url, facts, chip, here.get("toolchain rknn", "").partition(" ")[0])
    return found


def board_findings(url: str, facts: Mapping[str, str], chip: Target | None, toolkit: str = "") -> list[Finding]:
    """What a board's facts say against a target's versions.

    toolkit   version of the vendor's toolkit on this machine, "" when it is not here
    """
    found: list[Finding] = []
    have = versions(facts)
    if not facts.get("runtime"):
        found.append(Finding(url, "runtime", State.FAILED, "the board names none", "a runtime that runs models", "name it in the board's URL, and install it there"))
    elif chip is not None and chip.rules == "rknn":
        found += _rknn(url, facts, have, chip, toolkit)
    else:
        found.append(Finding(url, "runtime", State.OK, facts["runtime"]))
    found.append(_governor(url, facts))
    found += _hardware(url, facts)
    return found


def _hardware(url: str, facts: Mapping[str, str]) -> Iterator[Finding]:
    """Device nodes and servers; a runtime that computes on the CPU needs neither."""
    runtime = facts.get("runtime", "").partition(" ")[0]
    nodes, servers = facts.get("device_nodes"), facts.get("servers")
    npu = runtime in NPU_RUNTIMES
    needed = f"a node that this user may open, for {runtime}" if npu else ""
    if nodes is None:
        yield Finding(url, "device node", State.UNKNOWN, "the board's agent does not show it", needed)
    elif not nodes:
        cure = ("load the NPU's kernel module (modprobe rknpu; npu-smi info on Ascend), or use the vendor's kernel; "
                "add the user to the groups of the node (render, video)") if npu else ""
        yield Finding(url, "device node", State.FAILED if npu else State.OK, "none" if npu else "none; the runtime computes on the CPU", needed, cure)
    else:
        shut = all("no permission" in n for n in nodes.split(", "))
        cure = "add the user to the groups of the node (render, video; HwHiAiUser on Ascend) and log in again" if shut else ""
        yield Finding(url, "device node", (State.FAILED if npu else State.WARNING) if shut else State.OK, nodes, needed, cure)
    if servers is None:
        yield Finding(url, "server", State.UNKNOWN, "the board's agent does not show it")
    elif "rknn_server" in servers or runtime != "rknnlite":
        yield Finding(url, "server", State.OK, servers or "none; none is needed")
    else:
        yield Finding(url, "server", State.OK, servers or "no rknn_server", "",
                      "only a connected PC (rknn-toolkit2 with target=) needs rknn_server; runs on the board itself do without")


def _rknn(url: str, facts: Mapping[str, str], have: Mapping[str, str], chip: Target, toolkit: str) -> Iterator[Finding]:
    """Toolkit and librknnrt shall be the same version: an older runtime refuses the model ("Invalid RKNN model version"), a newer one may differ."""
    name, number = facts["runtime"].partition(" ")[0], have.get("runtime", "")
    if name != "rknnlite":
        yield Finding(url, "runtime", State.WARNING, facts["runtime"], f"rknnlite, to run on {chip.name}'s NPU", "give a board URL with the runtime rknnlite")
        return
    known = ", ".join(chip.toolkits)
    if not number:
        yield Finding(url, "runtime", State.FAILED, facts["runtime"], f"one of {known}", "install librknnrt on the board; its agent cannot read the version")
    elif toolkit and not satisfies(number, f"=={toolkit}"):
        yield Finding(url, "runtime", State.FAILED if satisfies(number, f"<{toolkit}") else State.WARNING, f"librknnrt {number}, toolkit {toolkit} on this machine", "the same version on both sides",
                      f"install librknnrt {toolkit} on the board, or export with toolkit {number} here")
    elif not _listed(number, chip):
        yield Finding(url, "runtime", State.WARNING, number, f"one of {known}", f"install librknnrt {chip.toolkits[-1]}, or expect other rules and figures")
    else:
        yield Finding(url, "runtime", State.OK, number, f"one of {known}")
    driver = have.get("driver", "")
    if not driver:
        yield Finding(url, "kernel module rknpu", State.FAILED, "no version shown: not loaded, or not readable", RKNN_DRIVER,
                      "modprobe rknpu, or a kernel that has it built in; /sys/kernel/debug needs root")
    else:
        fits = satisfies(driver, RKNN_DRIVER)
        yield Finding(url, "kernel module rknpu", State.OK if fits else State.WARNING, driver, RKNN_DRIVER,
                      "" if fits else "a newer kernel of the board's vendor: this one cannot use on-chip memory")


def _governor(url: str, facts: Mapping[str, str]) -> Finding:
    shown = facts.get("governor", "")
    if not shown:
        return Finding(url, "governor", State.UNKNOWN, "the board shows none")
    moving = [g for g in shown.split(", ") if g.split()[-1:] and g.split()[-1] not in STEADY]
    return Finding(url, "governor", State.WARNING if moving else State.OK, shown, "performance or userspace while measuring",
                   "qbench measure --clock, or write performance to the governor as root" if moving else "")
