"""For tests: an OpenSSH server of our own on loopback, a stand-in for `adb`, and a proxy that breaks links."""

from __future__ import annotations

import getpass
import os
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

import pytest

SSHD = Path("/usr/sbin/sshd")         # started by its full path, or it refuses


@dataclass(frozen=True)
class Server:
    """place   folder with keys and, under "board", what the board's side writes"""

    port: int
    place: Path

    def url(self, runtime: str = "onnxruntime", port: int | None = None, **options: str | Path) -> str:
        board = self.place / "board"
        asked = {"python": sys.executable, "folder": board, "key": self.place / "key", "known_hosts": self.place / "known_hosts", "timeout": "5"} | options
        return f"ssh://{getpass.getuser()}@127.0.0.1:{port or self.port}/{runtime}?" + "&".join(f"{k}={v}" for k, v in asked.items() if v)

    def trust(self, port: int, file: str = "known_hosts") -> Path:
        """A file of known hosts with this server's key under `port`."""
        key = (self.place / "host.pub").read_text().split()
        path = self.place / file
        path.write_text((path.read_text() if path.exists() else "") + f"[127.0.0.1]:{port} {key[0]} {key[1]}\n")
        return path


@contextmanager
def openssh(place: Path, *lines: str) -> Iterator[Server]:
    """A running sshd with `lines` in its configuration; skips the test where there is none."""
    if not SSHD.is_file() or shutil.which("ssh-keygen") is None:
        pytest.skip("no OpenSSH server here (Debian: apt-get install openssh-server)")
    if os.geteuid() == 0:
        Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)        # sshd of root wants it, and only its service makes it
    for name in ("host", "key"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(place / name)], check=True)
    (place / "authorized").write_text((place / "key.pub").read_text())
    port = free_port()
    (place / "sshd.conf").write_text("\n".join([
        f"Port {port}", "ListenAddress 127.0.0.1", f"HostKey {place / 'host'}", f"AuthorizedKeysFile {place / 'authorized'}", "StrictModes no", "UsePAM no",
        "PasswordAuthentication no", "KbdInteractiveAuthentication no", "PermitRootLogin prohibit-password", f"PidFile {place / 'sshd.pid'}", *lines]) + "\n")
    with open(place / "sshd.log", "w") as log:
        process = subprocess.Popen([str(SSHD), "-D", "-e", "-f", str(place / "sshd.conf")], stderr=log)
    try:
        wait_until(lambda: answers(port) or process.poll() is not None)
        assert process.poll() is None, (place / "sshd.log").read_text()
        server = Server(port, place)
        server.trust(port)
        yield server
    finally:
        process.terminate()
        process.wait()


ADB = """#!{python}
# Stand-in for tests: the four commands of adb that qbench gives, on this machine instead of a board.
import shutil, subprocess, sys
assert sys.argv[1] == "-s", sys.argv
serial, command, rest = sys.argv[2], sys.argv[3], sys.argv[4:]
if serial != "emulator-1":
    sys.exit(f"error: device '{{serial}}' not found")
if command == "get-state":
    print("device")
elif command == "shell":
    subprocess.run(["sh", "-c", " ".join(rest)])            # ends with 0, as adbd before Android 7 does whatever the command did
elif command == "push":
    try:
        shutil.copyfile(*rest)
    except OSError as error:
        sys.exit(f"adb: error: failed to copy '{{rest[0]}}' to '{{rest[1]}}': remote write failed: {{error.strerror}}")
else:
    sys.exit("unknown command " + command)
"""


def fake_adb(folder: Path) -> Path:
    """A folder for PATH with the stand-in in it."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "adb"
    path.write_text(ADB.format(python=sys.executable))
    path.chmod(0o755)
    return folder


@dataclass
class Proxy:
    """Passes bytes on to `goal` until `after` bytes came from the client, then cuts the link, or falls silent."""

    goal: int
    after: int
    silent: bool = False
    passed: int = 0
    sockets: list[socket.socket] = field(default_factory=list)

    def __enter__(self) -> Self:
        self.door = socket.create_server(("127.0.0.1", 0))
        self.port: int = self.door.getsockname()[1]
        self.threads = [threading.Thread(target=self._serve)]
        self.threads[0].start()
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(OSError):
            self.door.shutdown(socket.SHUT_RDWR)
        self.door.close()
        self.cut()
        for thread in self.threads:
            thread.join()
        for end in self.sockets:
            end.close()

    def cut(self) -> None:
        for end in self.sockets:
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def _serve(self) -> None:
        with suppress(OSError):
            while True:
                client = self.door.accept()[0]
                server = socket.create_connection(("127.0.0.1", self.goal))
                self.sockets += [client, server]
                for pair in ((client, server, True), (server, client, False)):
                    self.threads.append(threading.Thread(target=self._pass, args=pair))
                    self.threads[-1].start()

    def _pass(self, source: socket.socket, goal: socket.socket, counted: bool) -> None:
        with suppress(OSError):
            while block := source.recv(4096):
                if counted:
                    self.passed += len(block)
                if self.passed > self.after:
                    if not self.silent:
                        return self.cut()
                    continue
                goal.sendall(block)


def free_port() -> int:
    with closing(socket.create_server(("127.0.0.1", 0))) as door:
        port: int = door.getsockname()[1]
        return port


def answers(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), 0.2).close()
    except OSError:
        return False
    return True


def wait_until(true: object, seconds: float = 20.0) -> bool:
    """Whether `true()` became so."""
    assert callable(true)
    until = time.monotonic() + seconds
    while not true():
        if time.monotonic() > until:
            return False
        time.sleep(0.05)
    return True
