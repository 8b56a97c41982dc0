"""ssh://[user@]host[:port][/RUNTIME]: keys only, and only hosts that are known."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from pathlib import Path
from shlex import quote
from threading import Thread
from typing import TYPE_CHECKING, Any, Self, TypeVar
from urllib.parse import urlsplit

from qbench.errors import InputError, ToolError
from qbench.targets.boards.agent import RUNTIMES
from qbench.targets.boards.local import last_line
from qbench.targets.boards.remote import Ran, Remote
from qbench.targets.boards.urls import OVER_A_LINK, Options, read_options

if TYPE_CHECKING:
    import asyncssh

T = TypeVar("T")
KINDS = "+ssh-ed25519,ecdsa-sha2-nistp256,rsa-sha2-512,rsa-sha2-256"
"""Of host keys, after those that are known: so that a key of another kind is shown instead of a failure to agree."""
CLEAN_S = 10.0
"""How long the board may take to stop the agent and remove its folder."""


def open_ssh(url: str) -> Remote:
    """Raises InputError for a URL that does not parse, or when the SSH library is missing."""
    parts = urlsplit(url)
    if parts.password is not None:
        raise InputError(f"board ssh://{parts.username}:...@{parts.hostname}: no passwords in a URL, they would be stored with every measurement: "
                         f"put your key on the board with `ssh-copy-id {parts.username}@{parts.hostname}`")
    runtime = parts.path.strip("/") or "onnxruntime"
    try:
        port = parts.port
    except ValueError as error:
        raise InputError(f"board {url!r}: {error}") from error
    if not parts.hostname or runtime not in RUNTIMES:
        raise InputError(f"board {url!r}: expected ssh://user@host:port/RUNTIME with one of {', '.join(RUNTIMES)}")
    options = read_options(url, (*OVER_A_LINK, "key", "known_hosts"))
    if options.key and not Path(options.key).expanduser().is_file():
        raise InputError(f"board {url!r}: the key {options.key} does not exist; leave ?key= out for the agent's keys and ~/.ssh/id_*")
    try:
        import asyncssh  # noqa: F401
    except ImportError as error:
        raise InputError(f"board {url!r} needs the SSH library: pip install 'qbench[ssh]'") from error
    host, user = parts.hostname, parts.username
    return Remote(url, runtime, options, lambda: SshLink(url, host, port, user, options))


class SshLink:
    """One connection; its event loop has a thread of its own, so that it can be used from anywhere and signs of life are answered."""

    def __init__(self, url: str, host: str, port: int | None, user: str | None, options: Options) -> None:
        self.url, self.host, self.port, self.user, self.options = url, host, port, user, options
        self.known_hosts = Path(options.known_hosts or "~/.ssh/known_hosts").expanduser()
        self.offered: tuple[str, asyncssh.SSHKey] | None = None
        self.keeper: asyncssh.SSHClientProcess[bytes] | None = None

    def __enter__(self) -> Self:
        self.loop = asyncio.new_event_loop()
        self.thread = Thread(target=self.loop.run_forever, daemon=True)
        self.thread.start()
        try:
            self.connection = self._wait(self._connect())
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self._wait(self._close())
        finally:
            self._end()

    def hold(self, command: str) -> str:
        return self._guarded(self._hold(command))

    def run(self, command: str, limit_s: float) -> Ran:
        return self._guarded(self._run(command, None, limit_s))

    def put(self, path: Path, there: str) -> None:
        ran = self._guarded(self._run(f"cat > {quote(there)}", path, None))
        if ran.code:
            raise ToolError(f"{self.url}: {path.name} ({path.stat().st_size} bytes) cannot be written on the board: {last_line(ran.err)}. "
                            "Free some space there, or name another folder with ?folder=/path")

    # ------------------------------------------------------------------------------------------------ in the loop

    async def _connect(self) -> asyncssh.SSHClientConnection:
        import asyncssh

        link = self

        class Client(asyncssh.SSHClient):
            def validate_host_public_key(self, host: str, addr: str, port: int, key: asyncssh.SSHKey) -> bool:
                link.offered = (host if port == 22 else f"[{host}]:{port}", key)
                return False

        limit = self.options.timeout_s
        try:
            known = self.known_hosts.read_bytes() if self.known_hosts.is_file() else b"\n"
            return await asyncssh.connect(
                self.host, port=self.port or (), username=self.user or (), known_hosts=known, client_factory=Client, server_host_key_algs=KINDS,
                client_keys=[str(Path(self.options.key).expanduser())] if self.options.key else (), public_key_auth=True, password_auth=False, kbdint_auth=False,
                host_based_auth=False, gss_auth=False, gss_kex=False, connect_timeout=limit, login_timeout=limit, keepalive_interval=limit / 3, keepalive_count_max=2)
        except asyncssh.HostKeyNotVerifiable as error:
            raise ToolError(self._unknown_host(str(error))) from error
        except asyncssh.PermissionDenied as error:
            raise ToolError(f"{self.url}: the board takes none of your keys ({error}): name the right one with ?key=FILE or load it with ssh-add, "
                            f"and have it in ~/.ssh/authorized_keys there (ssh-copy-id)") from error
        except asyncssh.KeyImportError as error:
            raise ToolError(f"{self.url}: the key {self.options.key or 'in ~/.ssh'} cannot be read ({error}): load it with ssh-add if it has a passphrase") from error
        except asyncssh.ConfigParseError as error:
            raise ToolError(f"{self.url}: ~/.ssh/config cannot be used: {error}") from error
        except (TimeoutError, asyncssh.Error, OSError) as error:
            raise ToolError(f"{self.url}: no SSH connection within {limit:g} s ({_words(error)}): is the board on, and does sshd listen there?") from error

    def _unknown_host(self, said: str) -> str:
        import asyncssh

        if self.offered is None:
            return f"{self.url}: the host key is refused by {self.known_hosts}: {said}"
        name, key = self.offered
        kind, body = key.export_public_key("openssh").decode().split()[:2]
        add = f"echo '{name} {kind} {body}' >> {quote(str(self.known_hosts))}"
        has_other = self.known_hosts.is_file() and asyncssh.match_known_hosts(self.known_hosts.read_bytes(), self.host, "", self.port)[0]
        if has_other:
            return (f"{self.url}: the host key is {key.get_fingerprint()}, not the one in {self.known_hosts}: the board was set up anew, or another machine answers. "
                    f"If you know why: ssh-keygen -f {quote(str(self.known_hosts))} -R '{name}' && {add}")
        return (f"{self.url}: the host key {key.get_fingerprint()} is not in {self.known_hosts}. Compare it with what "
                f"`ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub` says on the board itself, then: {add}")

    async def _hold(self, command: str) -> str:
        self.keeper = await self.connection.create_process(_shell(command), encoding=None)
        return (await asyncio.wait_for(self.keeper.stdout.readline(), self.options.timeout_s)).decode().strip()

    async def _run(self, command: str, send: Path | None, limit_s: float | None) -> Ran:
        import asyncssh

        ran = await self.connection.run(_shell(command), stdin=send or asyncssh.DEVNULL, encoding=None, timeout=limit_s)
        if ran.exit_status is None:
            raise asyncssh.ConnectionLost("the channel closed before the command ended")
        code = ran.exit_status if ran.exit_status >= 0 else 128
        return Ran(code, _text(ran.stdout), _text(ran.stderr))

    async def _close(self) -> None:
        import asyncssh

        try:
            if self.keeper is not None:
                self.keeper.stdin.write_eof()
                await asyncio.wait_for(self.keeper.wait(), CLEAN_S)
        except (OSError, TimeoutError, asyncssh.Error):
            pass            # the link is gone: the keeper notices and cleans up over there
        self.connection.close()
        try:
            await asyncio.wait_for(self.connection.wait_closed(), 1.0)
        except TimeoutError:                                    # what was still to be sent stands before a dead peer
            self.connection.abort()

    # ------------------------------------------------------------------------------------------------ outside

    def _guarded(self, work: Coroutine[Any, Any, T]) -> T:
        import asyncssh

        try:
            return self._wait(work)
        except asyncssh.TimeoutError as error:
            raise ToolError(f"{self.url}: the command did not end in time: {_words(error)}") from error
        except (OSError, TimeoutError, asyncssh.Error) as error:
            raise ToolError(f"{self.url}: the link broke ({_words(error)}): nothing was stored, and the board removes its folder when it notices; try again") from error

    def _wait(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self.loop).result()

    def _end(self) -> None:
        self._wait(self.loop.shutdown_default_executor())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join()
        self.loop.close()


def _shell(command: str) -> str:
    """For any login shell."""
    return f"sh -c {quote(command)}"


def _text(output: bytes | str | None) -> str:
    return output.decode(errors="replace") if isinstance(output, bytes) else output or ""


def _words(error: BaseException) -> str:
    return str(error) or type(error).__name__
