"""qbench ui, qbench report: looking at what a search left behind."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from qbench.cli import options
from qbench.errors import InputError


def ui(
    store: Annotated[str | None, typer.Option("--store", help="MLflow store; default: MLFLOW_TRACKING_URI, else the one `qbench search` writes here.")] = None,
    port: Annotated[int, typer.Option("--port", min=1, max=65535, help="Port on the loopback address.")] = 5000,
    command_only: Annotated[bool, typer.Option("--print", help="Print the command and stop.")] = False,
) -> None:
    """Open MLflow on the experiments of `qbench search`, on the loopback address only.

    [bold]qbench ui[/bold]    [bold]qbench ui --port 5050[/bold]
    """
    import os
    import shlex
    import sys

    from qbench import tracking

    uri = store or tracking.default_store()
    command = tracking.ui_command(uri, port)
    if command_only:
        typer.echo(shlex.join(command))
        return
    options.console().print(f"MLflow on {uri}: http://127.0.0.1:{port}  (Ctrl-C stops it)", soft_wrap=True, markup=False)
    sys.stdout.flush()
    os.execv(command[0], command)                    # MLflow takes this process over, so Ctrl-C and kill reach it directly


def report(
    folder: Annotated[Path, typer.Argument(metavar="RUN", help="Result folder of a search.", show_default=False)],
    output: Annotated[Path | None, typer.Option("--output", "-o", help="File to write; default: report.html in the folder.")] = None,
) -> None:
    """Write the HTML report of a finished search again from its folder.

    [bold]qbench report qbench-out/brain-rk3588[/bold]
    """
    from qbench.workbench.folder import rewrite_report

    if not (folder / "summary.json").is_file():
        raise InputError(f"{folder}: holds no summary.json; give the result folder of a `qbench search`")
    path = rewrite_report(folder, output)
    options.out().print(str(path), soft_wrap=True, markup=False)
