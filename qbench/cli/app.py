"""The typer application: what `qbench --help` lists."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from qbench import __version__
from qbench.cli import (
    advise,
    analyze,
    compare,
    contract,
    cost,
    diagnose,
    doctor,
    export,
    inspect,
    listing,
    measure,
    options,
    presets,
    quantize,
    rewrite,
    search,
    settings,
    stats,
    toolchain,
    view,
)

app = typer.Typer(name="qbench", no_args_is_help=True, pretty_exceptions_enable=False, rich_markup_mode="rich",
                  context_settings={"help_option_names": ["-h", "--help"]},
                  help="Give a network, data and a budget; get the mixed-precision plan for the chip, with proof.\n\n"
                       "Start: [bold]qbench search --target rk3588 --budget 20ms[/bold]")


MATTER = ("onnxruntime", "onnx", "onnx-ir", "numpy", "torch", "optuna", "mlflow")
"""Packages whose version a result depends on, or a report of a fault should name."""


def _version(wanted: bool) -> None:
    if wanted:
        from importlib import metadata

        have = {d.metadata["Name"].lower(): d.version for d in map(metadata.distribution, MATTER)}
        typer.echo(f"qbench {__version__}\npython {sys.version.split()[0]}\n" + "\n".join(f"{name} {have.get(name, '?')}" for name in MATTER))
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the versions that matter and stop.")] = False,
    verbose: Annotated[bool, typer.Option("--verbose", help="Say more: which defaults hold, what libraries log, and where an error came from.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Neither progress nor remarks; results and errors stay.")] = False,
    config: Annotated[Path | None, typer.Option("--config", metavar="FILE", help="Settings to use instead of ./qbench.toml.")] = None,
) -> None:
    """Options of all commands; --verbose and --quiet may stand anywhere."""
    options.SPEECH.verbose, options.SPEECH.quiet = verbose, quiet
    if verbose:
        import logging

        logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(name)s: %(message)s")


command = partial(app.command, cls=settings.Configured)

app.command("init")(settings.init)
command("search")(search.command)
command("stats")(stats.command)
command("quantize")(quantize.command)
command("compare")(compare.command)
command("analyze")(analyze.command)
command("cost")(cost.command)
command("advise")(advise.command)
command("inspect")(inspect.command)
command("contract")(contract.command)
command("rewrite")(rewrite.command)
command("measure")(measure.command)
command("diagnose")(diagnose.command)
command("doctor")(doctor.command)
command("export")(export.command)
app.add_typer(toolchain.app, name="toolchain")
app.command("targets")(listing.targets)
command("presets")(presets.command)
app.command("calibrators")(listing.calibrators)
app.command("ui")(view.ui)
app.command("report")(view.report)
