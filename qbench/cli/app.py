"""The typer application: what `qbench --help` lists."""

from __future__ import annotations

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
    presets,
    quantize,
    rewrite,
    search,
    stats,
    toolchain,
    view,
)

app = typer.Typer(name="qbench", no_args_is_help=True, pretty_exceptions_enable=False, rich_markup_mode="rich",
                  context_settings={"help_option_names": ["-h", "--help"]},
                  help="Give a network, data and a budget; get the mixed-precision plan for the chip, with proof.\n\n"
                       "Start: [bold]qbench search --target rk3588 --budget 20ms[/bold]")


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"qbench {__version__}")
        raise typer.Exit


@app.callback()
def _options(version: bool = typer.Option(False, "--version", callback=_version, is_eager=True, help="Print the version and stop.")) -> None:
    """Options of all commands."""


app.command("search")(search.command)
app.command("stats")(stats.command)
app.command("quantize")(quantize.command)
app.command("compare")(compare.command)
app.command("analyze")(analyze.command)
app.command("cost")(cost.command)
app.command("advise")(advise.command)
app.command("inspect")(inspect.command)
app.command("contract")(contract.command)
app.command("rewrite")(rewrite.command)
app.command("measure")(measure.command)
app.command("diagnose")(diagnose.command)
app.command("doctor")(doctor.command)
app.command("export")(export.command)
app.add_typer(toolchain.app, name="toolchain")
app.command("targets")(listing.targets)
app.command("presets")(presets.command)
app.command("calibrators")(listing.calibrators)
app.command("ui")(view.ui)
app.command("report")(view.report)
