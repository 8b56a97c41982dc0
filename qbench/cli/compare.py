"""qbench compare."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from qbench.cli import completing, options
from qbench.cli.options import DataOption, JsonOption, PreprocessOption, ShapesOption, ToolkitOption, ValuesOption
from qbench.errors import InputError


def command(
    model: Annotated[Path | None, typer.Argument(help="ONNX or .pt2 model; without it the built-in sample runs.", show_default=False)] = None,
    data: DataOption = None,
    eval_data: Annotated[str | None, typer.Option(
        "--eval-data", help="Evaluation data with labels; without it the calibration data serve both.")] = None,
    metric: Annotated[str | None, typer.Option(
        "--metric", help="top1, topk:k=5, dice:classes=1/2/3, miou, auc, cosine, sqnr, kl, or module:function.")] = None,
    calibrator: Annotated[list[str] | None, typer.Option(
        "--calibrator", help="A calibrator, e.g. percentile:p=99.9, or all; may be repeated. Default: minmax, two percentiles, mse, kl, "
                             "auto.")] = None,
    scale: Annotated[list[str] | None, typer.Option(
        "--scale", help="global, per-layer, per-channel, per-group; may be repeated. Default: the first three.")] = None,
    precision: Annotated[list[str] | None, typer.Option("--precision", help="int8 or int16; may be repeated.")] = None,
    target: Annotated[str, typer.Option("--target", "-t", autocompletion=completing.targets, help="Chip whose quantization scheme and latency model are used.")] = "rk3588",
    op_point: Annotated[str | None, typer.Option("--op-point", help="Operating point of the latency, e.g. 800MHz; default: the fastest.")] = None,
    toolkit: ToolkitOption = None,
    sample: Annotated[str | None, typer.Option("--sample", autocompletion=completing.samples, help="Built-in sample: brain (default), fashion, face, face-dark.")] = None,
    limit: Annotated[int | None, typer.Option("--limit", min=1, help="Use only the first N samples of each data set.")] = None,
    preprocess: PreprocessOption = None,
    input_shape: ShapesOption = None,
    input_value: ValuesOption = None,
    non_finite: Annotated[str, typer.Option("--non-finite", help="NaN or infinity in an activation: stop, or ignore them.")] = "stop",
    vendor: Annotated[str, typer.Option("--with", help="rknn: also what rknn-toolkit2 itself makes of the network (normal, kl, mmse, auto_hybrid), in its "
                                                       "own simulator.")] = "",
    plan: Annotated[list[Path] | None, typer.Option("--plan", help="A plan to run beside them under --with, e.g. plan.json of a search; may be repeated.")] = None,
    seed: Annotated[int, typer.Option("--seed", min=0, max=2**32 - 1, help="Of the resampling behind the intervals.")] = 0,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Result folder; default: qbench-out/MODEL-compare.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Compare calibrators and scales: accuracy, SQNR, worst layer, size, latency; and why one scale for all loses.

    [bold]qbench compare[/bold]
        the built-in brain sample: six calibrators with one scale for all, one per layer, one per channel

    [bold]qbench compare net.onnx --data calib.npz --eval-data val.npz --metric top1[/bold]
        a network of your own

    [bold]qbench compare net.onnx -d calib.npz --calibrator all --scale per-channel --precision int8 --precision int16[/bold]

    [bold]qbench compare net.onnx -d calib.npz --with rknn --plan qbench-out/net-rk3588/plan.json[/bold]
        beside the vendor's own results on the same data: accuracy, SQNR, the toolkit's cycles, build time

    The result folder holds compare.html, compare.json and the plan of every row: qbench quantize MODEL --plan PLAN -o Q.onnx writes
    its model. Ctrl-C leaves a valid partial result.
    """
    from qbench import terminal
    from qbench.report import compare_terminal as tables
    from qbench.report.compare_text import json_body
    from qbench.workbench import open_case
    from qbench.workbench.comparing import FILES, CompareJob, run_compare

    if model is None and (data is not None or eval_data is not None):
        raise InputError("--data without a model: give MODEL --data D, or leave both out to compare on the built-in sample")
    if model is not None and sample is not None:
        raise InputError(f"--sample {sample} and the model {model}: give one of the two")
    case = open_case(model, data, eval_data, sample=sample, metric=metric, preprocess=preprocess,
                     input_shapes=options.shapes(input_shape), input_values=options.values(input_value), limit=limit)
    job = CompareJob(case, target, tuple(calibrator or ()), tuple(scale or ()), tuple(precision or ()), toolkit, op_point, seed, non_finite, output,
                     command=options.LINE.text, vendor=vendor, plans=tuple(plan or ()))
    with terminal.progress(options.console()) as progress:
        result = run_compare(job, progress)
    if as_json:
        options.print_json(json_body(result))
    else:
        page = options.out()
        page.print(tables.headline(result))
        page.print()
        page.print(tables.ladder_table(result))
        page.print(tables.explanations(result))
        page.print()
        page.print(tables.row_table(result, page.width))
        if result.vendor:
            page.print(tables.vendor_table(result))
        page.print(tables.notes(result))
        if result.warnings:
            page.print(terminal.warning_list(result.warnings))
        page.print(f"written: {job.folder}/ ({', '.join(FILES)}, plans/)", soft_wrap=True, markup=False)
    if result.partial:
        raise typer.Exit(130)
