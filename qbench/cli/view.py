"""qbench ui, qbench report: looking at what a search left behind."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from qbench.cli import options
from qbench.cli.options import JsonOption
from qbench.errors import InputError


def ui(
    folder: Annotated[Path | None, typer.Argument(metavar="[RUN]", help="Result folder of a search: opens its experiment.", show_default=False)] = None,
    store: Annotated[str | None, typer.Option("--store", help="MLflow store; default: that of RUN, MLFLOW_TRACKING_URI, else the one `qbench search` writes here. With --optuna: the study's database.")] = None,
    optuna: Annotated[bool, typer.Option("--optuna", help="Show the study in optuna-dashboard instead (pip install optuna-dashboard).")] = False,
    port: Annotated[int | None, typer.Option("--port", min=1, max=65535, help="Port on the loopback address; default 5000, with --optuna 8080.", show_default=False)] = None,
    browse: Annotated[bool, typer.Option("--open/--no-open", help="Open a browser, where there is one.")] = True,
    command_only: Annotated[bool, typer.Option("--print", help="Print the command and stop.")] = False,
) -> None:
    """Open MLflow on the experiments of `qbench search`, on the loopback address only; Ctrl-C stops it.

    [bold]qbench ui[/bold]
        the newest experiment of the store below the working folder

    [bold]qbench ui qbench-out/brain-rk3588 --port 5050[/bold]    [bold]qbench ui --optuna[/bold]

    [bold]qbench ui --store postgresql://user@host/mlflow[/bold]    [bold]qbench ui --store http://tracking:5000[/bold]
    """
    import shlex

    from qbench import serving

    chosen = port or (8080 if optuna else 5000)
    page = serving.optuna_page(folder, store, chosen) if optuna else serving.mlflow_page(folder, store, chosen)
    if command_only:
        if not page.command:
            raise InputError(f"{page.base} is an MLflow server: there is nothing to start; open that address in a browser")
        typer.echo(shlex.join(page.command))
        return
    screen = options.console()
    if page.command:
        screen.print(f"starting {page.title} ...", style="dim", soft_wrap=True, markup=False, highlight=False)
        if remark := serving.no_search_yet(page):
            screen.print(remark, soft_wrap=True, markup=False, highlight=False)

    def opened(address: str) -> None:
        typer.echo(f"{address}{'  (Ctrl-C stops it)' if page.command else ''}")
        if browse and screen.is_terminal and _has_browser():
            import webbrowser

            webbrowser.open(address)

    serving.serve(page, chosen, opened)


def _has_browser() -> bool:
    """Whether a window can be shown: a text browser would take the terminal over."""
    import os
    import sys

    return sys.platform in ("win32", "darwin") or bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))


def report(
    folder: Annotated[Path, typer.Argument(metavar="RUN", help="Result folder of a search.", show_default=False)],
    output: Annotated[Path | None, typer.Option("--output", "-o", help="File to write; default: report.html in the folder.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Write the HTML report of a finished search again from its folder.

    [bold]qbench report qbench-out/brain-rk3588[/bold]
    """
    from qbench.workbench.folder import rewrite_report

    if not (folder / "summary.json").is_file():
        raise InputError(f"{folder}: holds no summary.json; give the result folder of a `qbench search`, which writes it at its end")
    path = rewrite_report(folder, output)
    if as_json:
        options.print_json({"file": str(path)})
        return
    options.out().print(str(path), soft_wrap=True, markup=False)
