"""qbench stats, qbench stats merge."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from qbench.cli import options
from qbench.cli.options import DataOption, JsonOption, PreprocessOption, ShapesOption, ValuesOption
from qbench.errors import InputError
from qbench.modelfiles import refuse_overwriting


def command(
    arguments: Annotated[list[str], typer.Argument(metavar="MODEL | merge A B ...", help="A model, or `merge` and statistics files.", show_default=False)],
    output: Annotated[Path, typer.Option("--output", "-o", help="Statistics file to write (.npz).")],
    data: DataOption = None,
    limit: Annotated[int | None, typer.Option("--limit", min=1, help="Use only the first N samples.")] = None,
    preprocess: PreprocessOption = None,
    input_shape: ShapesOption = None,
    input_value: ValuesOption = None,
    non_finite: Annotated[str, typer.Option("--non-finite", help="NaN or infinity in an activation: stop, or ignore them.")] = "stop",
    executor: Annotated[str | None, typer.Option("--executor", help="Share the pass among workers: dask://HOST:PORT or dask://local?workers=2.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Collect activation statistics in one pass, or merge those of several shards.

    [bold]qbench stats net.onnx --data calib.npz -o stats.npz[/bold]

    [bold]qbench stats merge shard1.npz shard2.npz -o stats.npz[/bold]
        the same numbers as one pass over both shards, in whatever order
    """
    refuse_overwriting(output, data=data, **{f"input {a}": a for a in arguments})
    statistics = _merged(arguments[1:]) if arguments[0] == "merge" else _collected(arguments, data, limit, preprocess, input_shape, input_value, non_finite, executor)
    statistics.save(output)
    warnings = statistics.warnings()
    if as_json:
        options.print_json({"file": str(output), "key": statistics.key, "model_key": statistics.model_key, "samples": statistics.samples,
                            "warnings": warnings, "tensors": [_row(name, t) for name, t in statistics.items()]})
        return
    from qbench import terminal

    page = options.out()
    page.print(f"{len(statistics)} tensors over {statistics.samples} samples: {output}", soft_wrap=True, markup=False)
    if warnings:
        page.print(terminal.warning_list(warnings))


def _collected(arguments: list[str], data: str | None, limit: int | None, preprocess: str | None, input_shape: list[str] | None,
               input_value: list[str] | None, policy: str, executor: str | None) -> Any:
    from qbench import terminal
    from qbench.graph import load_network
    from qbench.workbench import statistics_of
    from qbench.workbench.case import open_data, opened

    if len(arguments) != 1:
        raise InputError(f"one model at a time; got {len(arguments)} ({', '.join(arguments)}). To merge files: qbench stats merge A B -o S")
    if data is None:
        raise InputError("no calibration data; add --data FILE.npz, a folder, or module:function")
    prepared = load_network(Path(arguments[0]), options.shapes(input_shape), options.values(input_value))
    dataset = open_data(data, prepared, preprocess, limit)
    with terminal.progress(options.console()) as progress:
        if executor is None:
            return statistics_of(prepared, dataset, policy=policy, progress=progress)
        from qbench.workbench.pools import Executor, collected, connected
        from qbench.workbench.stations import Station

        with connected(Executor.parse(executor)) as client:
            return collected(client, Station.at(prepared, opened(data, preprocess, limit), policy), dataset, progress)


def _merged(files: list[str]) -> Any:
    from qbench.statistics import Statistics, merge

    if len(files) < 2:
        raise InputError("merge needs at least two statistics files: qbench stats merge A B -o S")
    parts = [Statistics.load(Path(f)) for f in files]
    total = parts[0]
    for part in parts[1:]:
        total = merge(total, part)
    return total


def _row(name: str, t: Any) -> dict[str, Any]:
    seen = t.count > 0
    return {"name": name, "count": t.count, "min": t.minimum if seen else None, "max": t.maximum if seen else None, "zeros": t.zeros,
            "nan": t.nan, "positive_inf": t.positive_inf, "negative_inf": t.negative_inf, "constant": t.constant,
            "p0.1": t.quantile(0.001) if seen else None, "p99.9": t.quantile(0.999) if seen else None, "fp16_overflows": t.fp16_overflows}
