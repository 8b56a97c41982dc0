"""The options behind the question mark of a board's URL."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from urllib.parse import unquote, urlsplit

from qbench.board import parse_clock
from qbench.errors import InputError

ON_BOARD = ("threads", "clock")
"""What every board that runs something takes."""
OVER_A_LINK = (*ON_BOARD, "python", "folder", "timeout")


@dataclass(frozen=True, slots=True)
class Options:
    """threads      of the runtime, where the request does not say
    clock        fixed while measuring, where the request does not say: "1000MHz", "npu:1000MHz"
    python       the board's Python that has the runtime
    folder       on the board, for models that are kept and for what is removed after each run; "": the first that can be written
    timeout_s    silence after which the link counts as dead
    key          private key file; "": the agent's and ~/.ssh/id_*
    known_hosts  file of trusted host keys; "": ~/.ssh/known_hosts
    """

    threads: int | None = None
    clock: str = ""
    python: str = "python3"
    folder: str = ""
    timeout_s: float = 15.0
    key: str = ""
    known_hosts: str = ""


def read_options(url: str, allowed: Collection[str]) -> Options:
    """Raises InputError for an option that the scheme does not take, and for a value that does not parse."""
    query = urlsplit(url).query
    values = {name: unquote(text) for name, _, text in (part.partition("=") for part in query.split("&"))} if query else {}
    for name, text in values.items():
        if name not in allowed:
            raise InputError(f"board {url!r}: no option {name!r}; it takes {', '.join(allowed)}")
        if not text:
            raise InputError(f"board {url!r}: {name} is empty; expected {name}=VALUE")
    if "threads" in values and (not values["threads"].isdecimal() or int(values["threads"]) < 1):
        raise InputError(f"board {url!r}: threads is {values['threads']!r}; expected a whole number of at least 1")
    if "clock" in values:
        try:
            parse_clock(values["clock"])
        except InputError as error:
            raise InputError(f"board {url!r}: {error}") from error
    return Options(int(values["threads"]) if "threads" in values else None, values.get("clock", ""), values.get("python", "python3"), values.get("folder", ""),
                   _seconds(url, values.get("timeout", "15")), values.get("key", ""), values.get("known_hosts", ""))


def _seconds(url: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0.1 <= value <= 3600.0:
        raise InputError(f"board {url!r}: timeout is {text!r}; expected seconds between 0.1 and 3600")
    return value
