"""qbench cost."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from qbench.cli import completing, options
from qbench.cli.options import JsonOption, ShapesOption, ToolkitOption, ValuesOption


@contextmanager
def _collector_at_rest() -> Iterator[None]:
    """For imports: what they make stays, and walking it again and again would take a tenth of the time of a price."""
    gc.disable()
    try:
        yield
        if not gc.get_freeze_count():
            gc.freeze()
    finally:
        gc.enable()


def command(
    model: Annotated[Path, typer.Argument(help="The model; weights may be zeros.", show_default=False)],
    target: Annotated[list[str] | None, typer.Option("--target", "-t", autocompletion=completing.targets, help="Chip; may be repeated.")] = None,
    precision: Annotated[list[str] | None, typer.Option("--precision", help="int8, int16, fp16 for every layer that can take it; may be repeated.")] = None,
    op_point: Annotated[list[str] | None, typer.Option("--op-point", help="Operating point, e.g. 800MHz; may be repeated; all: the chip's table. Default: the fastest.")] = None,
    plan: Annotated[Path | None, typer.Option("--plan", help="Price this plan instead of uniform precisions.")] = None,
    toolkit: ToolkitOption = None,
    input_shape: ShapesOption = None,
    input_value: ValuesOption = None,
    cores: Annotated[int, typer.Option("--cores", help="NPU cores for one inference (unvalidated above 1).")] = 1,
    batch: Annotated[int, typer.Option("--batch", help="Samples at once (unvalidated above 1).")] = 1,
    power: Annotated[Path | None, typer.Option("--power", help="TOML file of watt readings of your board: energies in watts instead of relative ones.")] = None,
    ambient: Annotated[float | None, typer.Option("--ambient", help="Temperature around the board, C: with the next two, the sustained latency.")] = None,
    thermal_resistance: Annotated[float | None, typer.Option("--thermal-resistance", help="Die to ambient, K/W.")] = None,
    heat_capacity: Annotated[float | None, typer.Option("--heat-capacity", help="Of the board, J/K.")] = None,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Write an HTML page: time by kernel, memory over time.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Price a model: milliseconds, millijoules and bytes per kernel, what binds each, the one change that would save most on it, memory.

    [bold]qbench cost net.onnx --target rk3588 --precision int8 --precision fp16[/bold]

    [bold]qbench cost net.onnx --target rk3588 --op-point 600MHz --plan plan.json -o cost.html[/bold]

    [bold]qbench cost net.onnx --target rk3588 --op-point all[/bold]   latency, power and energy at every clock

    [bold]qbench cost net.onnx --target rk3588 --power power.toml --ambient 45 --thermal-resistance 12 --heat-capacity 8[/bold]
    """
    with _collector_at_rest():
        from qbench.workbench import CostOptions, cost_of

    asked = CostOptions(tuple(op_point or ()), plan, toolkit, options.shapes(input_shape), options.values(input_value), cores, batch, power, ambient,
                        thermal_resistance, heat_capacity)
    rows = cost_of(model, target or ["rk3588"], precision or ["int8"], asked)
    if out:
        from qbench.modelfiles import refuse_overwriting
        from qbench.report.cost_page import write_cost

        refuse_overwriting(out, model=model, plan=plan, power=power)
        write_cost(rows, model.stem, out)
    if as_json:
        options.print_json(rows)
        return
    from qbench.report import cost_terminal

    page = options.out()
    for part in cost_terminal.cost_report(rows, page.width):
        page.print(part, soft_wrap=isinstance(part, str))
    if out:
        page.print(f"written: {out}", markup=False, soft_wrap=True)
