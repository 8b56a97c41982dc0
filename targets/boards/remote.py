"""A board behind a link: what is measured goes into a private folder over there, runs, and is gone afterwards.

Models are kept on the board by their SHA-256, so that a search or a repetition sends each of them once.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from shlex import quote
from typing import Any, NamedTuple, Protocol

from qbench.board import Array, Request
from qbench.errors import InputError, ToolError
from qbench.files import sha256
from qbench.modelfiles import weight_files
from qbench.targets.boards.local import AGENT, ByAgent, agent_request, answer_of, last_line, store
from qbench.targets.boards.urls import Options

KEPT = 8
"""Model files that stay on a board."""
LONGEST_S = 1800.0
"""After which a measurement counts as hanging."""

FOLDERS = ('"${XDG_CACHE_HOME:-$HOME/.cache}/qbench"', "/data/local/tmp/qbench", '"${TMPDIR:-/tmp}/qbench-$(id -u)"')
"""Tried in turn: home, Android, a read-only home. In a folder that others may write to, a stranger could have made ours: it must be the user's own."""

# Waits for the end of its input, which comes with the end of the link, however that ends; then stops the agent and cleans up.
KEEPER = ('umask 077; f=; for d in {folders}; do mkdir -p "$d" 2> /dev/null && {own} f=$(mktemp -d "$d/run-XXXXXX" 2> /dev/null) && break; f=; done; echo "$f"; '
          '[ -n "$f" ] || exit 1; trap "" HUP INT TERM PIPE; cat > /dev/null; p=$(cat "$f/pid" 2> /dev/null) && kill "$p" 2> /dev/null && '
          'for i in 1 2 3 4 5; do kill -0 "$p" 2> /dev/null || break; sleep 1; done; rm -rf "$f"')

# In the background, so that its number is known to the keeper. What runtimes print stays on the board.
MEASURE = ("cd {folder} && {{ {python} agent.py {what} {runtime} request.json answer.json > out.txt 2> err.txt & p=$!; echo $p > pid; wait $p; r=$?; "
           "rm -f pid; tail -c 2000 err.txt >&2; [ $r != 0 ] || cat answer.json; exit $r; }}")


class Ran(NamedTuple):
    """What a command on the board gave."""

    code: int
    out: str
    err: str


class Link(Protocol):
    """A way to a board. Every method raises ToolError, with the board's URL, when the link breaks."""

    def hold(self, command: str) -> str:
        """First line that a shell command prints; its standard input ends with the link."""
        ...

    def run(self, command: str, limit_s: float) -> Ran:
        """Of a shell command, without input."""
        ...

    def put(self, path: Path, there: str) -> None:
        """Copies a file; raises ToolError with the board's words when it cannot be written."""
        ...


@dataclass(frozen=True, slots=True)
class Remote(ByAgent):
    """connect   opens the link; leaving it waits until the board has cleaned up"""

    url: str
    runtime: str
    options: Options
    connect: Callable[[], AbstractContextManager[Link]]

    def facts(self) -> Mapping[str, str]:
        with self._folder() as (link, folder):
            ran = link.run(f"{quote(self.options.python)} {quote(folder)}/agent.py facts {self.runtime}", LONGEST_S)
            if ran.code:
                raise ToolError(f"{self.url}: {self.runtime} does not answer: {self._failure(ran)}")
            return answer_of(self.url, ran.out)

    def _ask(self, what: str, model: Path, feeds: Sequence[Mapping[str, Array]], request: Request) -> dict[str, Any]:
        with self._folder() as (link, folder), tempfile.TemporaryDirectory(prefix="qbench-") as here:
            self._send_model(link, model, folder)
            inputs = [Path(p) for p in store(feeds, Path(here))]
            asked = Path(here) / "request.json"
            asked.write_text(json.dumps(agent_request(f"{folder}/model/{model.resolve().name}", [f"{folder}/{p.name}" for p in inputs], request, self.options)))
            for path in (*inputs, asked):
                link.put(path, f"{folder}/{path.name}")
            ran = link.run(MEASURE.format(folder=quote(folder), python=quote(self.options.python), what=what, runtime=self.runtime), LONGEST_S)
            if ran.code:
                raise ToolError(f"{self.url}: the measuring process ended with {ran.code}: {self._failure(ran)}")
            return answer_of(self.url, ran.out)

    @contextmanager
    def _folder(self) -> Iterator[tuple[Link, str]]:
        """A link, and a private folder on the board with the agent in it."""
        chosen = self.options.folder
        with self.connect() as link:
            folder = link.hold(KEEPER.format(folders=quote(chosen) if chosen else " ".join(FOLDERS), own="" if chosen else '[ -O "$d" ] &&'))
            if not folder:
                tried = chosen or ", ".join(f.strip('"') for f in FOLDERS)
                raise ToolError(f"{self.url}: no folder can be written on the board (tried {tried}): free some space, or name one with ?folder=/path")
            link.put(AGENT, f"{folder}/agent.py")
            yield link, folder

    def _send_model(self, link: Link, model: Path, folder: str) -> None:
        """Puts the model and its weights under FOLDER/model; sends what the board does not have."""
        models, part = f"{PurePosixPath(folder).parent}/models", f"{folder}/part"
        files = model_files(model)
        for path in files:
            digest, place = sha256(path), f"{folder}/model/{path.relative_to(model.resolve().parent)}"
            kept = f"{models}/{digest}"
            have = self._must(link, f"mkdir -p {quote(models)} {quote(str(PurePosixPath(place).parent))} && if [ -f {quote(kept)} ]; then sha256sum < {quote(kept)}; fi")
            move = ""
            if have.out[:64] != digest:
                link.put(path, part)
                arrived = self._must(link, f"sha256sum < {quote(part)}").out[:64]
                if arrived != digest:
                    raise ToolError(f"{self.url}: {path.name} arrived on the board with SHA-256 {arrived} instead of {digest}: a bad link or disk; try again")
                move = f"mv {quote(part)} {quote(kept)} && "
            self._must(link, f"{move}touch -c {quote(kept)} && {{ ln {quote(kept)} {quote(place)} 2> /dev/null || cp {quote(kept)} {quote(place)}; }} && cd {quote(models)} && "
                             f'ls -t | tail -n +{max(KEPT, len(files)) + 1} | while read -r old; do rm -f "$old"; done')

    def _must(self, link: Link, command: str) -> Ran:
        ran = link.run(command, LONGEST_S)
        if ran.code:
            raise ToolError(f"{self.url}: the board answers {last_line(ran.err or ran.out)!r} to `{command}`")
        return ran

    def _failure(self, ran: Ran) -> str:
        """The board's words, and a cure where the fault is a usual one."""
        said = last_line(ran.err or ran.out)
        if ran.code == 127:
            return f"{said}: there is no {self.options.python} on the board; install Python 3.8 or later, or name one with ?python=/path/to/python3"
        if "ModuleNotFoundError" in said or "PackageNotFoundError" in said:
            return f"{said}: install it for {self.options.python} of the board, or name the Python that has it with ?python=/path/to/python3"
        if ran.code in (137, 9):
            return f"{said}: killed, as the kernel does when memory runs out"
        return said


def model_files(model: Path) -> list[Path]:
    """The model and the files beside it that hold its weights. Raises InputError for weights outside its folder."""
    model = model.resolve()
    found = [model, *weight_files(model)]
    if model.suffix.lower() == ".xml" and model.with_suffix(".bin").is_file():          # OpenVINO IR
        found.append(model.with_suffix(".bin"))
    outside = [str(p) for p in found if not p.is_relative_to(model.parent)]
    if outside:
        raise InputError(f"{model} keeps weights outside its folder ({', '.join(outside)}): a board gets the folder's files alone; save the model again with them beside it")
    return found
