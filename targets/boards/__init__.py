"""Boards by URL.

    local://                     this machine, onnxruntime; local://openvino, local://onnxruntime?threads=1
    ssh://user@host:22/rknnlite  a board on the network; ?python=/opt/venv/bin/python, ?key=FILE, ?folder=/mnt/sd, ?clock=1000MHz
    adb://SERIAL/rknnlite        a board behind the Android debug bridge
    replay:measurement.json      a recording: nothing runs, and every figure says so

?meter=module:function on any of them reads an external power meter meanwhile, see `qbench.targets.boards.meter`.

Third parties add theirs as entry points of the group `qbench.boards`: the scheme, and a function of the URL.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from urllib.parse import unquote

from qbench.board import Board
from qbench.errors import UnknownName

__all__ = ["GROUP", "open_board", "schemes"]

GROUP = "qbench.boards"

_OURS = {
    "local": "qbench.targets.boards.local:open_local",
    "replay": "qbench.targets.boards.replay:open_replay",
    "ssh": "qbench.targets.boards.ssh:open_ssh",
    "adb": "qbench.targets.boards.adb:open_adb",
}


@cache
def _known() -> dict[str, EntryPoint]:
    theirs = {e.name: e for e in entry_points(group=GROUP)}
    return theirs | {name: EntryPoint(name, place, GROUP) for name, place in _OURS.items()}


def schemes() -> tuple[str, ...]:
    """What a URL may begin with."""
    return tuple(sorted(_known()))


def open_board(url: str) -> Board:
    """The board behind `url`; nothing runs yet. Raises UnknownName for a scheme that nobody offers, InputError for a URL that does not parse."""
    url, spec = _without_meter(url)
    if spec:
        from qbench.targets.boards.meter import metered

        return metered(open_board(url), spec)
    scheme, colon, _ = url.partition(":")
    if not colon or scheme not in _known():
        raise UnknownName(f"no board {url!r}; a board is a URL that begins with {', '.join(s + ':' for s in schemes())}, for instance local://")
    if scheme in _OURS:
        module, _, name = _OURS[scheme].partition(":")
        make: Callable[[str], Board] = getattr(import_module(module), name)
        return make(url)
    make = _known()[scheme].load()
    return make(url)


def _without_meter(url: str) -> tuple[str, str]:
    """The URL without its option meter, and what that says."""
    before, mark, query = url.partition("?")
    parts = query.split("&") if mark else []
    kept = [p for p in parts if not p.startswith("meter=")]
    found = [unquote(p.removeprefix("meter=")) for p in parts if p.startswith("meter=")]
    return (before + ("?" + "&".join(kept) if kept else "")) if found else url, found[-1] if found else ""
