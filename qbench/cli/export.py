"""qbench export."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from qbench.cli import completing, options
from qbench.cli.options import DataOption, JsonOption, PreprocessOption, ShapesOption, ToolkitOption, ValuesOption

if TYPE_CHECKING:
    from rich.table import Table


def command(
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder to write; one of an earlier export is replaced.")],
    plan: Annotated[Path, typer.Option("--plan", help="The plan: plan.json of a search, or of quantize --save-plan.")],
    target: Annotated[str, typer.Option("--target", "-t", autocompletion=completing.targets, help="Chip to export for.")],
    model: Annotated[Path | None, typer.Argument(help="The float model; without one, the built-in sample.", show_default=False)] = None,
    data: DataOption = None,
    sample: Annotated[str | None, typer.Option("--sample", autocompletion=completing.samples, help="Built-in sample: brain (default), fashion, face, face-dark.")] = None,
    exporter: Annotated[str, typer.Option("--exporter", help="Where a target has several; default: its first.")] = "",
    option: Annotated[list[str] | None, typer.Option("--option", help="KEY=VALUE for the exporter; may be repeated.")] = None,
    toolkit: ToolkitOption = None,
    preprocess: PreprocessOption = None,
    input_shape: ShapesOption = None,
    input_value: ValuesOption = None,
    as_json: JsonOption = False,
) -> None:
    """Write, compile and simulate a plan with the vendor's toolchain, read it back and compare it with the plan.

    [bold]qbench export net.onnx --plan plan.json --target rk3588 --data calibration.npz -o out[/bold]
        out/ holds the artefact, manifest.json, the golden input and output, and run.py for the board

    [bold]qbench export --sample fashion --plan plan.json --target rk3588 -o out[/bold]

    Any difference between plan and artefact (precision, scale, zero point, NPU or CPU) ends with exit code 3 and a table. Without the
    vendor's toolchain what it needs is written and marked "not compiled here"; [bold]qbench toolchain list[/bold] tells what is here.
    """
    from qbench import terminal
    from qbench.workbench.exporting import ExportOptions, export_plan

    wanted = ExportOptions(plan, target, output, model, sample, data, exporter, toolkit, preprocess, options.shapes(input_shape),
                           options.values(input_value), options.pairs(option, "--option"))
    with terminal.progress(options.console()) as progress:
        done = export_plan(wanted, progress)
    if as_json:
        options.print_json(done)
        return
    page = options.out()
    versions = ", ".join(dict.fromkeys(done["versions"].values()))
    page.print(f"{output}: {done['exporter']} for {done['target']}, {done['status']}{f' ({versions})' if versions else ''}", soft_wrap=True, markup=False)
    if done["why_not"]:
        options.console().print(f"note: {done['why_not']}", soft_wrap=True, markup=False)
    back = done["read_back"]
    if back["source"]:
        changed = f", {back['announced']} are what was announced instead" if back["announced"] else ""
        page.print(f"read back from {back['source']}: {back['compared'] - back['announced']} layers and tensors equal the plan{changed}, "
                   f"{back['silent']} are not told by it", soft_wrap=True, markup=False)
    if done["simulations"]:
        page.print(simulation_table(done["simulations"]))
    facts = ", ".join(f"{k} {v}" for k, v in done["facts"].items() if isinstance(v, int | float))
    if facts:
        page.print(facts, soft_wrap=True, markup=False)
    page.print(file_table(done["files"]))
    remarks = [*done["remarks"], *(["the golden input is random: give --data for a real one"] if done["golden"]["random"] else [])]
    for line in remarks:
        options.console().print(f"note: {line}", soft_wrap=True, markup=False)


def simulation_table(simulations: list[dict[str, Any]]) -> Table:
    """One row a simulation: how far from onnxruntime."""
    table = _table("simulated", "steps from onnxruntime", "allowed", "SQNR dB")
    for s in simulations:
        table.add_row(s["what"], *("-" if v is None else f"{v:.3g}" for v in (s["lsb"], s["limit_lsb"])), "equal" if s["sqnr_db"] in (None, float("inf")) else f"{s['sqnr_db']:.1f}")
    return table


def file_table(files: list[dict[str, Any]]) -> Table:
    table = _table("file", "bytes", "what")
    for f in files:
        table.add_row(f["file"], f"{f['bytes']:,}", f["what"])
    return table


def _table(*columns: str) -> Table:
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, header_style="bold")
    for name in columns:
        table.add_column(name, justify="right" if name in ("bytes", "allowed", "SQNR dB", "steps from onnxruntime") else "left")
    return table
