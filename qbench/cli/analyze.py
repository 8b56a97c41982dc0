"""qbench analyze."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from qbench.cli import completing, options
from qbench.cli.options import JsonOption, PreprocessOption, ShapesOption, ValuesOption


def command(
    model: Annotated[Path | None, typer.Argument(metavar="MODEL", show_default=False, help="The float model; without it the sample.")] = None,
    plan: Annotated[Path | None, typer.Argument(metavar="PLAN", show_default=False, help="A plan.json, or the folder of a search; without it that of "
                                                "the model's last search here. It may stand alone, for a sample.")] = None,
    data: Annotated[str | None, typer.Option(
        "--data", "-d", help="Samples, labels not needed: a .npz, a folder, or module:function that yields one dict (input name -> array) "
                             "per sample.")] = None,
    samples: Annotated[int, typer.Option("--samples", min=1, help="Samples to walk over, the first of the data; ranges are held against all.")] = 32,
    checks: Annotated[int, typer.Option("--checks", min=0, help="Layers to try at a higher precision, worst first; 0 tries nothing.")] = 3,
    rows: Annotated[int, typer.Option("--rows", min=1, help="Rows of the table on the terminal.")] = 12,
    sample: Annotated[str | None, typer.Option("--sample", autocompletion=completing.samples, help="Built-in sample: brain (default), fashion, face, face-dark.")] = None,
    limit: Annotated[int | None, typer.Option("--limit", min=1, help="Use only the first N samples of the data, for the ranges too.")] = None,
    preprocess: PreprocessOption = None,
    input_shape: ShapesOption = None,
    input_value: ValuesOption = None,
    non_finite: Annotated[str, typer.Option("--non-finite", help="NaN or infinity in an activation: stop, or ignore them.")] = "stop",
    output: Annotated[Path | None, typer.Option("--output", "-o", help="HTML page to write, e.g. analysis.html.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Explain where a plan loses: error per kernel, alone and accumulated, and per channel; what to raise, cut or calibrate, tried out.

    [bold]qbench analyze net.onnx plan.json --data calib.npz -o analysis.html[/bold]
        one page with the error along the network, heat strips of channels, histograms with thresholds

    [bold]qbench analyze --sample brain qbench-out/brain-rk3588[/bold]
        the plan of a search on a built-in sample; the folder of the last search is found by itself

    Gains in the verdict are measured: each proposal is written as a model and run on the same samples.
    """
    from qbench import terminal
    from qbench.modelfiles import refuse_overwriting
    from qbench.report.analysis_page import write_analysis
    from qbench.report.analysis_terminal import error_table, headline, hidden_rows, verdict_list
    from qbench.workbench.analyzing import analyze_plan, open_subject

    given = tuple(a for a in (model, plan) if a is not None)
    if output is not None:
        refuse_overwriting(output, data=data, **{f"input {a}": a for a in given})
    subject = open_subject(given, data, sample=sample, preprocess=preprocess, input_shapes=options.shapes(input_shape),
                           input_values=options.values(input_value), limit=limit)
    if output is not None:
        refuse_overwriting(output, plan=subject.plan_file)
    with terminal.progress(options.console()) as progress:
        analysis, findings = analyze_plan(subject, samples=samples, checks=checks, policy=non_finite, progress=progress)
    if output is not None:
        write_analysis(analysis, findings, output)
    if as_json:
        options.print_json(analysis.to_dict() | {"plan": str(subject.plan_file), "findings": [asdict(f) for f in findings]})
        return
    page = options.out()
    page.print(headline(analysis, str(subject.plan_file)))
    if analysis.warnings:
        page.print(terminal.warning_list(analysis.warnings))
    page.print(error_table(analysis, page.width, rows))
    if left := hidden_rows(analysis, rows):
        page.print(left, style="dim", markup=False, soft_wrap=True)
    page.print(verdict_list(analysis, findings))
    if output is not None:
        page.print(f"written: {output}", soft_wrap=True, markup=False)
