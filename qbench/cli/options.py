"""Options that several commands share, and how their texts are read."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from qbench.errors import InputError
from qbench.warning_codes import code_of

if TYPE_CHECKING:
    from rich.console import Console

DataOption = Annotated[str | None, typer.Option("--data", "-d", help="Calibration data: a .npz, a folder, or module:function that yields one dict (input name -> array) per sample.")]
ShapesOption = Annotated[list[str] | None, typer.Option("--input-shape", help="Shape of an input with open axes, e.g. x=1,3,224,224.")]
ValuesOption = Annotated[list[str] | None, typer.Option(
    "--input-value", help="Fix an input to a constant, e.g. sr=16000; one value for each element, or one for all. May be repeated.")]
PreprocessOption = Annotated[str | None, typer.Option(
    "--preprocess", help="How pictures become inputs, e.g. size=224x224,colour=rgb,mean=0.485/0.456/0.406,std=0.229/0.224/0.225.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print the result as JSON on standard output, and nothing else there.")]
ToolkitOption = Annotated[str | None, typer.Option("--toolkit", help="Version of the vendor's toolkit; default: the newest known.")]


def shapes(texts: list[str] | None) -> dict[str, tuple[int, ...]]:
    """"x=1,3,224,224" -> {"x": (1, 3, 224, 224)}. Raises InputError."""
    found: dict[str, tuple[int, ...]] = {}
    for text in texts or []:
        name, separator, sizes = text.rpartition("=")
        try:
            shape = tuple(int(s) for s in sizes.split(","))
        except ValueError:
            shape = ()
        if not separator or not name or not shape or min(shape) < 1:
            raise InputError(f"--input-shape {text!r}: expected NAME=1,3,224,224 with sizes of at least 1")
        found[name] = shape
    return found


def values(texts: list[str] | None) -> dict[str, str]:
    """"sr=16000" -> {"sr": "16000"}. Raises InputError."""
    found: dict[str, str] = {}
    for text in texts or []:
        name, separator, value = text.partition("=")
        if not separator or not name or not value:
            raise InputError(f"--input-value {text!r}: expected NAME=VALUE, e.g. sr=16000")
        if name in found:
            raise InputError(f"--input-value {text!r}: {name} is fixed to {found[name]} already")
        found[name] = value
    return found


def pairs(texts: list[str] | None, what: str) -> dict[str, str]:
    """"key=value" -> {"key": "value"}. Raises InputError for anything else, or a key given twice; `what` is the option's name."""
    found: dict[str, str] = {}
    for text in texts or []:
        key, separator, value = text.partition("=")
        if not separator or not key or key in found:
            raise InputError(f"{what} {text!r}: {'it is given twice' if key in found else 'expected KEY=VALUE'}")
        found[key] = value
    return found


@dataclass
class Speech:
    """How much is said on standard error beside errors: set once, by the options of all commands."""

    quiet: bool = False
    verbose: bool = False


SPEECH = Speech()


@dataclass
class Line:
    """The command that runs, as one line that needs neither qbench.toml nor variables: set once, before it starts."""

    text: str = ""


LINE = Line()


def console() -> Console:
    """Standard error, where progress and remarks go; honours NO_COLOR, --quiet and a terminal's width."""
    from rich.console import Console

    return Console(stderr=True, highlight=False, quiet=SPEECH.quiet)


def remark(text: str) -> None:
    """A line on standard error under --verbose."""
    if SPEECH.verbose:
        console().print(f"qbench: {text}", style="dim", soft_wrap=True, markup=False)


def out() -> Console:
    """Standard output, where results go. A reader who leaves early (`| head`) changes nothing, the exit code included."""
    from rich.console import Console

    class Page(Console):
        def on_broken_pipe(self) -> None:
            forget_stdout()

    return Page(highlight=False)


def print_json(body: Any) -> None:
    """One JSON value on standard output. Beside each list `warnings` stands `warning_codes`, in the same order, "" where one has no code."""
    try:
        json.dump(_coded(body), sys.stdout, indent=1, ensure_ascii=False)
        sys.stdout.write("\n")
        sys.stdout.flush()
    except BrokenPipeError:
        forget_stdout()


def _coded(body: Any) -> Any:
    if isinstance(body, list | tuple):
        return [_coded(v) for v in body]
    if not isinstance(body, Mapping):
        return body
    codes = {"warning_codes": [code_of(w) for w in body["warnings"]]} if isinstance(body.get("warnings"), list | tuple) else {}
    return {k: _coded(v) for k, v in body.items()} | codes


def forget_stdout() -> None:
    """Nobody reads any more: what is still to be written goes nowhere."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
