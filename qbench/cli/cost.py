"""qbench cost."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from qbench.cli import options
from qbench.cli.options import JsonOption, ShapesOption, ToolkitOption


def command(
    model: Annotated[Path, typer.Argument(help="The model; weights may be zeros.", show_default=False)],
    target: Annotated[list[str] | None, typer.Option("--target", "-t", help="Chip; may be repeated.")] = None,
    precision: Annotated[list[str] | None, typer.Option("--precision", help="int8, int16, fp16 for every layer that can take it; may be repeated.")] = None,
    op_point: Annotated[str | None, typer.Option("--op-point", help="Operating point, e.g. 800MHz; default: the fastest.")] = None,
    plan: Annotated[Path | None, typer.Option("--plan", help="Price this plan instead of uniform precisions.")] = None,
    toolkit: ToolkitOption = None,
    input_shape: ShapesOption = None,
    as_json: JsonOption = False,
) -> None:
    """Price a model: milliseconds, millijoules and bytes per kernel, what binds each, the memory plan.

    [bold]qbench cost net.onnx --target rk3588 --precision int8 --precision fp16[/bold]

    [bold]qbench cost net.onnx --target rk3588 --op-point 600MHz --plan plan.json[/bold]
    """
    from qbench import terminal
    from qbench.workbench import cost_of

    rows = cost_of(model, target or ["rk3588"], precision or ["int8"], op_point=op_point, plan_file=plan, toolkit=toolkit,
                   input_shapes=options.shapes(input_shape))
    if as_json:
        options.print_json(rows)
        return
    page = options.out()
    said = ""
    for row in rows:
        page.print(f"{row['target']} {row['precision']} at {row['op_point']}: {row['latency_ms']:.3g} ms "
                   f"({row['latency_ms_low']:.3g} to {row['latency_ms_high']:.3g}), {row['macs'] / 1e6:.4g} M MACs, "
                   f"peak memory {row['peak_memory_bytes'] / 1e6:.3g} MB (lower bound {row['memory_lower_bound_bytes'] / 1e6:.3g} MB)", soft_wrap=True)
        basis = (f"interval: {row['provenance']['interval']}; fitted on {row['provenance']['fitted_on']}; validated on "
                 f"{row['provenance']['validated_on']}")
        if basis != said:
            page.print(basis, style="dim", markup=False)
        said = basis
        if row["warnings"]:
            page.print(terminal.warning_list(row["warnings"]))
        page.print(terminal.kernel_table(row["kernels"], page.width, relative_power=row["power_is_relative"]))
