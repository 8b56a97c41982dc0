"""adb://SERIAL[/RUNTIME]: a board behind the Android debug bridge, through the program `adb`."""

from __future__ import annotations

import shutil
import subprocess
from contextlib import suppress
from pathlib import Path
from shlex import quote
from typing import Self
from urllib.parse import urlsplit

from qbench.errors import InputError, ToolError
from qbench.targets.boards.agent import RUNTIMES
from qbench.targets.boards.local import last_line
from qbench.targets.boards.remote import Ran, Remote
from qbench.targets.boards.urls import OVER_A_LINK, Options, read_options

MARK = "qbench-exit:"
"""Before the exit code in the output: adbd before Android 7 answers 0 to everything."""
CLEAN_S = 10.0
"""How long the board may take to stop the agent and remove its folder."""


def open_adb(url: str) -> Remote:
    """Raises InputError for a URL that does not parse."""
    parts = urlsplit(url)
    runtime = parts.path.strip("/") or "onnxruntime"
    serial = parts.netloc
    if not serial or serial.startswith("-") or runtime not in RUNTIMES:
        raise InputError(f"board {url!r}: expected adb://SERIAL/RUNTIME with one of {', '.join(RUNTIMES)}; `adb devices` lists serials")
    options = read_options(url, OVER_A_LINK)
    return Remote(url, runtime, options, lambda: AdbLink(url, serial, options))


class AdbLink:
    """Each command is a process of its own; the keeper of the folder lives as long as the link."""

    def __init__(self, url: str, serial: str, options: Options) -> None:
        self.url, self.serial, self.options = url, serial, options
        self.keeper: subprocess.Popen[str] | None = None

    def __enter__(self) -> Self:
        if shutil.which("adb") is None:
            raise ToolError(f"{self.url}: the program adb is not here: install Android's platform tools (Debian: apt-get install adb)")
        state = self._adb("get-state", limit_s=self.options.timeout_s)
        if state.returncode or state.stdout.strip() != "device":
            said = last_line(state.stderr or state.stdout)
            raise ToolError(f"{self.url}: the board is not there ({said}): plug it in, allow this machine on its screen, or `adb connect` it; `adb devices` lists what there is")
        return self

    def __exit__(self, *_: object) -> None:
        if self.keeper is not None:
            with suppress(subprocess.TimeoutExpired, OSError, ValueError):
                self.keeper.communicate(timeout=CLEAN_S)
            self.keeper.kill()
            self.keeper.wait()
            for stream in (self.keeper.stdin, self.keeper.stdout):
                if stream is not None:
                    with suppress(OSError):
                        stream.close()

    def hold(self, command: str) -> str:
        self.keeper = subprocess.Popen(["adb", "-s", self.serial, "shell", command], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        assert self.keeper.stdout is not None
        return self.keeper.stdout.readline().strip()

    def run(self, command: str, limit_s: float) -> Ran:
        done = self._adb("shell", f"sh -c {quote(command)}; r=$?; echo; echo {MARK}$r", limit_s=limit_s)
        out, mark, code = done.stdout.rpartition(MARK)
        if not mark or not code.strip().isdecimal():
            raise ToolError(f"{self.url}: the link broke ({last_line(done.stderr or done.stdout)}): nothing was stored, "
                            "and the board removes its folder when it notices; try again")
        return Ran(int(code), out.rstrip("\r\n"), done.stderr)

    def put(self, path: Path, there: str) -> None:
        done = self._adb("push", str(path), there, limit_s=None)
        if done.returncode:
            raise ToolError(f"{self.url}: {path.name} ({path.stat().st_size} bytes) cannot be written on the board: {last_line(done.stderr or done.stdout)}. "
                            "Free some space there, or name another folder with ?folder=/path")

    def _adb(self, *arguments: str, limit_s: float | None) -> subprocess.CompletedProcess[str]:
        try:
            return subprocess.run(["adb", "-s", self.serial, *arguments], stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", check=False,
                                  timeout=limit_s)
        except subprocess.TimeoutExpired as error:
            raise ToolError(f"{self.url}: no answer to `adb {arguments[0]}` within {limit_s:g} s: is the board awake? `adb kill-server` starts a hung bridge anew") from error
