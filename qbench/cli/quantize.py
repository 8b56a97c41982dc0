"""qbench quantize."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from qbench.cli import completing, options
from qbench.cli.options import DataOption, JsonOption, PreprocessOption, ShapesOption, ToolkitOption, ValuesOption

if TYPE_CHECKING:
    from rich.table import Table

MANY = 3
"""Layers of which the same is said, from here on in one line."""
_NAME = re.compile(r"'[^']*'")
_NUMBER = re.compile(r"-?\d+(?:\.\d+)?(?:e[+-]?\d+)?")


def command(
    output: Annotated[Path, typer.Option("--output", "-o", help="Q/DQ model to write.")],
    model: Annotated[Path | None, typer.Argument(help="The float model; without one, the built-in sample.", show_default=False)] = None,
    plan: Annotated[Path | None, typer.Option("--plan", help="Write exactly this plan; nothing else is needed.")] = None,
    stats: Annotated[Path | None, typer.Option("--stats", help="Statistics of `qbench stats`, for the ranges.")] = None,
    data: DataOption = None,
    sample: Annotated[str | None, typer.Option("--sample", autocompletion=completing.samples, help="Built-in sample: brain (default), fashion, face, face-dark.")] = None,
    calibrator: Annotated[str, typer.Option("--calibrator", autocompletion=completing.calibrators, help="See `qbench calibrators`, e.g. percentile:p=99.9.")] = "minmax",
    precision: Annotated[str, typer.Option("--precision", help="int8, int16 or fp16, for every layer that can take it.")] = "int8",
    scale: Annotated[str, typer.Option("--scale", help="global, per-layer, per-channel or per-group.")] = "per-channel",
    correct: Annotated[list[str] | None, typer.Option(
        "--correct", "-c", help="A correction, may be repeated: cle, bias, bias:how=analytic, adaround, adaround:iterations=2000, mask; \"none\" leaves out those that are "
                                "on by default (mask, fixed-outputs, bias-guard).")] = None,
    save_plan: Annotated[Path | None, typer.Option("--save-plan", help="Write the plan, too: --plan makes the same model of it.")] = None,
    activation: Annotated[str, typer.Option("--activation", help="Codes of activations instead of the target's, e.g. uint8 or int16:symmetric.")] = "",
    weight: Annotated[str, typer.Option("--weight", help="Codes of weights instead of the target's, e.g. int4:symmetric,narrow.")] = "",
    weight_block: Annotated[int, typer.Option("--weight-block", min=0, help="Input channels that share a scale under --scale per-group.")] = 0,
    target: Annotated[str, typer.Option("--target", "-t", autocompletion=completing.targets, help="Chip whose quantization scheme is used.")] = "rk3588",
    toolkit: ToolkitOption = None,
    preprocess: PreprocessOption = None,
    limit: Annotated[int | None, typer.Option("--limit", min=1, help="Use only the first N samples of the data.")] = None,
    input_shape: ShapesOption = None,
    input_value: ValuesOption = None,
    non_finite: Annotated[str, typer.Option("--non-finite", help="NaN or infinity in an activation: stop, or ignore them.")] = "stop",
    as_json: JsonOption = False,
) -> None:
    """Write a model with QuantizeLinear / DequantizeLinear pairs.

    [bold]qbench quantize net.onnx --data calib.npz --calibrator kl --scale per-layer -c cle -c bias -o net.qdq.onnx[/bold]
        from calibration data, with corrections; each says what it gained

    [bold]qbench quantize net.onnx --stats stats.npz --precision int8 -o net.qdq.onnx[/bold]

    [bold]qbench quantize net.onnx --plan plan.json -o net.qdq.onnx[/bold]
        bit for bit the model that the search evaluated, or that --save-plan was written with

    [bold]qbench quantize --sample fashion --scale per-layer -c cle -o fashion.qdq.onnx[/bold]
    """
    from qbench import terminal
    from qbench.coverage import coverage_from_dict
    from qbench.report.coverage_text import coverage_line
    from qbench.workbench import quantize

    with terminal.progress(options.console()) as progress:
        done = quantize(model, output, sample=sample, plan_file=plan, stats_file=stats, data=data, calibrator=calibrator, precision=precision,
                        granularity=scale, target_name=target, toolkit=toolkit, corrections=tuple(correct or ()), activation=activation, weight=weight,
                        weight_block=weight_block, save_plan=save_plan, input_shapes=options.shapes(input_shape),
                        input_values=options.values(input_value), preprocess=preprocess, limit=limit, policy=non_finite, progress=progress)
    if as_json:
        options.print_json(done)
        return
    layers = ", ".join(f"{n} {p}" for p, n in done["layers"].items())
    page = options.out()
    page.print(f"{output}: {layers}", soft_wrap=True, markup=False)
    page.print(coverage_line(coverage_from_dict(done["coverage"])), soft_wrap=True, markup=False)
    asked = {text.partition(":")[0] for text in correct or ()}
    told = [g for g in done["corrections"] if g["step"].partition(":")[0] in asked or g["sqnr_before_db"] != g["sqnr_after_db"]]
    if told:
        page.print(gain_table(told))
    for line in summarised(done["remarks"]):
        options.console().print(f"note: {line}", soft_wrap=True, markup=False)
    for gain in told:
        for line in summarised(gain["remarks"]):
            options.console().print(f"{gain['step']}: {line}", soft_wrap=True, markup=False)


def summarised(lines: Sequence[str]) -> list[str]:
    """`lines`, but of those that say the same of many layers, "NAME: text", only the one with the largest number, and how many there are."""
    alike: dict[str, list[str]] = {}
    for line in lines:
        alike.setdefault(_NUMBER.sub("#", _NAME.sub("'...'", line.partition(": ")[2] or line)), []).append(line)
    told = []
    for same in alike.values():
        if len(same) < MANY:
            told += same
            continue
        worst = max(same, key=lambda line: max((abs(float(n)) for n in _NUMBER.findall(line.partition(": ")[2])), default=0.0))
        told.append(f"{worst} (and {len(same) - 1} more like it; all of them: --json)")
    return told


def gain_table(gains: list[dict[str, Any]]) -> Table:
    """One row a correction: the output's signal to noise before and after it."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, header_style="bold")
    table.add_column("correction")
    for name in ("before dB", "after dB", "gain dB", "seconds"):
        table.add_column(name, justify="right")
    for gain in gains:
        before, after = gain["sqnr_before_db"], gain["sqnr_after_db"]
        known = before is not None and after is not None
        figures = [f"{before:.2f}", f"{after:.2f}", f"{after - before:+.2f}"] if known else ["-", "-", "-"]
        table.add_row(Text(gain["step"]), *figures, f"{gain['seconds']:.1f}")
    return table
