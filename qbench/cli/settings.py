"""Defaults of commands from qbench.toml and the environment, beneath the options that were given; and qbench init, which writes the file."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperArgument, TyperCommand

from qbench.cli import completing, options
from qbench.cli.options import JsonOption

GIVES_WAY = {"sample": ("model", "data", "eval_data", "metric", "preprocess", "input_shape", "input_value"), "model": ("sample",)}
"""An option on the command line -> settings that go with another source of the same thing, and so do not count."""
HOLDS_ALL = {"plan": ("model", "sample", "input_shape", "input_value"), "stats": ("model", "sample", "input_shape", "input_value", "target", "toolkit")}
"""Options of `qbench quantize` that bring everything else with them -> the settings that still count beside them."""


class Configured(TyperCommand):
    """A command whose options have their defaults in qbench.toml and QBENCH_ variables."""

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:
        first = super().make_context(info_name, list(args), parent, resilient_parsing=True)       # only to see what was given
        given = {str(p.name) for p in self.params if p.name and getattr(first.get_parameter_source(p.name), "name", None) == "COMMANDLINE"}
        used: dict[str, Any] = {}
        if "help" not in given and not {"-h", "--help"} & set(args):
            named = parent.params.get("config") if parent else None                              # text or a Path, as the version of typer has it
            used = self._defaults(str(info_name), given, Path(named) if named else None)
        takes = {str(p.name): p for p in self.params}
        options.LINE.text = spelled(str(info_name), [(takes[k], v) for k, v in used.items()], args)
        extra["default_map"] = {k: (v,) if getattr(takes[k], "multiple", False) and isinstance(v, str) else v for k, v in used.items()}
        return super().make_context(info_name, args, parent, **extra)

    def _defaults(self, command: str, given: Collection[str], named: Path | None) -> dict[str, Any]:
        path = named or (Path(v) if (v := os.environ.get("QBENCH_CONFIG")) else Path("qbench.toml") if Path("qbench.toml").is_file() else None)
        if path is None and not any(k.startswith("QBENCH_") for k in os.environ):
            return {}
        from qbench import config

        settings = config.load(path, os.environ).of(command)
        for variable, meant in config.misspelled(os.environ).items():
            options.console().print(f"qbench: nothing reads the environment variable {variable}; did you mean {meant}?", soft_wrap=True, markup=False)
        left_out = {k for g in given for k in GIVES_WAY.get(g, ())}
        if command == "quantize":
            left_out |= {k for g in given if g in HOLDS_ALL for k in settings if k not in HOLDS_ALL[g]}
        if sum(isinstance(p, TyperArgument) for p in self.params) > 1:          # MODEL PLAN: which one is given cannot be told
            left_out |= {"model"}
        takes = {str(p.name) for p in self.params}
        used = {k: v for k, v in settings.items() if k in takes and k not in left_out and k not in given}
        if used:
            options.remark(f"defaults from {path or 'the environment'}: {', '.join(f'{k}={v}' for k, v in used.items())}")
        return used


def spelled(command: str, used: Sequence[tuple[Any, Any]], given: Sequence[str]) -> str:
    """The line that does the same where neither file nor variables are: what they set is written out, in front of what was given.

    used   parameter and its value, from qbench.toml or the environment; passwords in addresses are left out
    """
    words = ["qbench", command]
    for parameter, value in used:
        values = [str(v) for v in (value if isinstance(value, tuple | list) else (value,))]
        if isinstance(parameter, TyperArgument):
            words += values
        elif isinstance(value, bool):
            words += (parameter.opts if value else parameter.secondary_opts)[:1]
        else:
            words += [w for v in values for w in (parameter.opts[0], v)]
    words += given
    if any("://" in w for w in words):
        from qbench.addresses import without_password

        words = [",".join(map(without_password, re.split(r",(?=\w+://)", w))) for w in words]                # boards come several in a word
    return shlex.join(words)


def init(
    target: Annotated[str | None, typer.Option("--target", "-t", autocompletion=completing.targets, help="Chip.")] = None,
    model: Annotated[Path | None, typer.Option("--model", "-m", help="Your network.")] = None,
    data: Annotated[str | None, typer.Option("--data", "-d", help="Calibration data.")] = None,
    eval_data: Annotated[str | None, typer.Option("--eval-data", help="Evaluation data.")] = None,
    metric: Annotated[str | None, typer.Option("--metric", help="Metric.")] = None,
    budget: Annotated[list[str] | None, typer.Option("--budget", "-b", help="Limit of searches; may be repeated.")] = None,
    output: Annotated[Path, typer.Option("--output", "-o", help="File to write.")] = Path("qbench.toml"),
    as_json: JsonOption = False,
) -> None:
    """Write a qbench.toml with the defaults of this folder: what is given here, and the other keys as comments.

    [bold]qbench init --target rk3588 --model net.onnx --data calib.npz --eval-data val.npz --metric top1 --budget 12ms[/bold]
        from then on: qbench search
    """
    from qbench import targets
    from qbench.config import written
    from qbench.errors import InputError
    from qbench.files import write_text
    from qbench.search.budget import Budget

    if os.path.lexists(output):
        raise InputError(f"{output} is there already: change it, or write another one with -o")
    if target is not None:
        targets.load(target)
    for text in budget or ():
        Budget.parse(text)
    keys = {"target": target, "model": str(model) if model else None, "data": data, "eval_data": eval_data, "metric": metric}
    write_text(output, written(keys, budget or ()))
    if as_json:
        options.print_json({"file": str(output)})
        return
    options.out().print(f"written: {output}", soft_wrap=True, markup=False)
