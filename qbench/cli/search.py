"""qbench search."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from qbench.cli import completing, options
from qbench.cli.options import DataOption, JsonOption, PreprocessOption, ShapesOption, ToolkitOption, ValuesOption
from qbench.errors import InputError

if TYPE_CHECKING:
    from qbench.result import SearchResult
    from qbench.workbench import SearchJob
    from qbench.workbench.case import Case
    from qbench.workbench.checking import Check


def command(
    target: Annotated[str, typer.Option("--target", "-t", autocompletion=completing.targets, help="Chip: see `qbench targets`.")] = "rk3588",
    budget: Annotated[list[str] | None, typer.Option("--budget", "-b", help="Limit with its unit: 20ms, 1.5W, 8mJ, 64MB, 30fps; '20ms worst-case' for the whole interval. May be repeated.")] = None,
    max_drop: Annotated[str | None, typer.Option("--max-drop", help="Most accuracy that may be lost against float: 0.5% (points), 0.005 (the metric's own unit) or 0.5%rel (of the float value).")] = None,
    max_class_drop: Annotated[str | None, typer.Option("--max-class-drop", help="Most that any single class may lose, e.g. 2%; none: switch a preset's off.")] = None,
    preset: Annotated[str | None, typer.Option("--preset", autocompletion=completing.presets, help="Product that sets the limits: see `qbench presets`; or a .toml file. Options given beside it win.")] = None,
    power: Annotated[Path | None, typer.Option("--power", help="TOML file of watt readings of your board: energies in watts instead of relative ones.")] = None,
    model: Annotated[Path | None, typer.Option("--model", "-m", help="ONNX or .pt2 model; without it the built-in sample runs.")] = None,
    data: DataOption = None,
    eval_data: Annotated[str | None, typer.Option("--eval-data", help="Evaluation data with labels; without it the calibration data serve both.")] = None,
    metric: Annotated[str | None, typer.Option("--metric", help="top1, topk:k=5, dice:classes=1/2/3, miou, auc, cosine, sqnr, kl, or module:function.")] = None,
    sample: Annotated[str | None, typer.Option("--sample", autocompletion=completing.samples, help="Built-in sample: brain (default), fashion, face, face-dark.")] = None,
    precision: Annotated[list[str] | None, typer.Option("--precision", help="Search only these: int8, int16, fp16. May be repeated.")] = None,
    calibrator: Annotated[list[str] | None, typer.Option("--calibrator", autocompletion=completing.calibrators, help="Calibrators to choose from, e.g. percentile:p=99.9. May be repeated.")] = None,
    scale: Annotated[list[str] | None, typer.Option("--scale", help="Granularities to choose from: global, per-layer, per-channel; default: what suits the target. May be repeated.")] = None,
    correct: Annotated[list[str] | None, typer.Option("--correct", "-c", help="Corrections that plans may have beside the default ones: cle, bias, adaround:iterations=300. May be repeated.")] = None,
    resolution: Annotated[list[str] | None, typer.Option("--resolution", help="Sizes of the picture to choose from, HEIGHTxWIDTH, the reference first: a search for each, for a model with open height and width. May be repeated.")] = None,
    op_point: Annotated[list[str] | None, typer.Option("--op-point", help="Operating points to choose from, e.g. 800MHz; default: the fastest.")] = None,
    toolkit: ToolkitOption = None,
    trials: Annotated[int, typer.Option("--trials", min=1, help="Distinct plans to evaluate on the whole evaluation set.")] = 24,
    seed: Annotated[int, typer.Option("--seed", min=0, max=2**32 - 1, help="Same seed, same result.")] = 0,
    strategy: Annotated[str, typer.Option("--strategy", help="Sampler: nsga2, nsga3, tpe, gp, random.")] = "nsga2",
    sensitivity: Annotated[str, typer.Option("--sensitivity", help="How the loss of single units is known before plans are tried: measured, or fisher (from gradients, in torch: a few passes in all).")] = "measured",
    limit: Annotated[int | None, typer.Option("--limit", min=1, help="Use only the first N samples of each data set.")] = None,
    preprocess: PreprocessOption = None,
    input_shape: ShapesOption = None,
    input_value: ValuesOption = None,
    non_finite: Annotated[str, typer.Option("--non-finite", help="NaN or infinity in the data: stop, or ignore them.")] = "stop",
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Result folder; default qbench-out/MODEL-TARGET.")] = None,
    storage: Annotated[str | None, typer.Option("--storage", help="Database of the search, e.g. postgresql://user@host/db; default: study.db in the result folder. Processes that share it share the work.")] = None,
    executor: Annotated[str | None, typer.Option("--executor", help="Where plans are evaluated: dask://HOST:PORT, or dask://local?workers=2 for processes here.")] = None,
    board: Annotated[list[str] | None, typer.Option("--board", help="Measure on these and decide by it: local://, ssh://user@host, adb://SERIAL, replay:FILE; several by comma or repeated.")] = None,
    track: Annotated[bool, typer.Option("--track/--no-track", help="Log every candidate to MLflow.")] = True,
    register: Annotated[str | None, typer.Option("--register", metavar="NAME", help="Make the chosen model the newest version of this registered model in MLflow; its alias is the target's name.")] = None,
    check: Annotated[Path | None, typer.Option("--check", metavar="PLAN", help="Search nothing: does this plan.json, or result folder, still keep the limits? Exit code 1 when not. Limits by default those of its search.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Find the best mixed-precision plan within a budget, prove it, write it.

    [bold]qbench search --target rk3588 --budget 20ms[/bold]
        the built-in brain sample on an RK3588

    [bold]qbench search -t rk3588 -b 12ms -b 64MB --model net.onnx --data calib.npz --eval-data val.npz --metric top1[/bold]
        a network of your own

    [bold]qbench search --preset door-lock --target rk3588[/bold]
        limits from what a product must do; the derivation is printed first

    [bold]qbench search --check qbench-out/brain-rk3588[/bold]
        a gate for continuous integration: the plan of that search, evaluated and priced anew

    The result folder holds plan.json, model.qdq.onnx, report.html and summary.json. Ctrl-C leaves a valid partial result;
    the same command again continues where it stopped. Exit code 1: no plan meets the budget, the nearest one is written.
    """
    from qbench import terminal
    from qbench.report.resolution_terminal import resolution_table
    from qbench.workbench import SearchJob, open_case, run_search
    from qbench.workbench.checking import check_plan
    from qbench.workbench.resolutions import case_at, parse_size, search_resolutions

    screen = options.console()
    opening: dict[str, Any] = {"metric": metric, "preprocess": preprocess, "input_shapes": options.shapes(input_shape),
                               "input_values": options.values(input_value), "limit": limit}

    def job_of(case: Case) -> SearchJob:
        return SearchJob(case, target, tuple(budget or ()), max_drop=max_drop, max_class_drop=max_class_drop, preset=preset, power=power, toolkit=toolkit, precisions=tuple(precision or ()),
                         calibrators=tuple(calibrator or ()), scales=tuple(scale or ()), corrections=tuple(correct or ()), op_points=tuple(op_point or ()), trials=trials, seed=seed, strategy=strategy, sensitivity=sensitivity,
                         policy=non_finite, out=output, command=options.LINE.text, track=track, register=register, storage=storage, executor=executor,
                         boards=tuple(u for text in board or () for u in text.split(",")))

    if resolution:
        if check is not None or register is not None:
            raise InputError(f"--resolution searches each size: {'--check' if check else '--register'} is about one plan, so leave one of the two out")
        if sample is not None:
            raise InputError(f"--resolution is for a model of your own: leave --sample {sample} out")
        with terminal.progress(screen) as progress:
            jobs = {size: job_of(case_at(size, model, data, eval_data, **opening)) for size in map(parse_size, resolution)}
            found = search_resolutions(jobs, progress)
        options.print_json(found.to_dict()) if as_json else options.out().print(resolution_table(found.to_dict(), next(iter(jobs.values())).case.metric.name))
        raise typer.Exit(130 if found.partial else 0 if found.chosen is not None else 1)
    job = job_of(open_case(model, data, eval_data, sample=sample, **opening))
    with terminal.progress(screen) as progress:
        if check is not None:
            told = check_plan(job, check, progress)
        else:
            result = run_search(job, progress)
    if check is not None:
        options.print_json(told.to_dict()) if as_json else show_check(told)
        raise typer.Exit(0 if told.passed else 1)
    options.print_json(result.to_dict()) if as_json else show_result(result, job.folder, track)
    if result.partial:
        raise typer.Exit(130)
    if not result.feasible:
        raise typer.Exit(1)


def show_result(result: SearchResult, folder: Path, track: bool) -> None:
    """The derivation of a preset, the chosen plan beside the uniform ones, warnings, and where the files are."""
    from qbench import terminal
    from qbench.tracking import tracking_text

    page = options.out()
    for line in result.preset.get("derivation", ()):
        page.print(f"{result.preset['name']} {line}", style="dim", soft_wrap=True, markup=False, highlight=False)
    page.print(terminal.headline(result))
    page.print(terminal.summary_table(result, page.width))
    if result.warnings:
        page.print(terminal.warning_list(result.warnings))
    files = [name for name in ("plan.json", "model.qdq.onnx", "report.html", "summary.json") if (folder / name).is_file()]
    look = "; look at the experiment: qbench ui" if track else ""
    page.print(f"written: {folder}/ ({', '.join(files)}){look}", soft_wrap=True, markup=False)
    if said := tracking_text(result.mlflow):
        page.print(said, soft_wrap=True, markup=False, highlight=False)


def show_check(check: Check) -> None:
    """The plan's figures today, beside those of its search, and each limit."""
    from qbench import terminal

    page, a, p = options.out(), check.accuracy, check.price
    was = f"; its search said {check.before['accuracy']:.4g} and {check.before['latency_ms']:.3g} ms" if check.before else ""
    page.print(f"{check.plan} on {check.target}: {a.metric} {a.value:.4g} [{a.low:.4g}, {a.high:.4g}], {p.latency_ms:.3g} ms [{p.latency_ms_low:.3g}, "
               f"{p.latency_ms_high:.3g}] predicted{was}", soft_wrap=True, markup=False)
    for k in check.limits:
        page.print(f"{'kept' if k.kept else 'BROKEN'}  {k.limit}: {k.found}", soft_wrap=True, markup=False)
    if check.warnings:
        page.print(terminal.warning_list(check.warnings))
