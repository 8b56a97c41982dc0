"""qbench measure."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from qbench.cli import options
from qbench.cli.options import DataOption, JsonOption, PreprocessOption, ShapesOption


def command(
    model: Annotated[Path, typer.Argument(help="The model file, run as it stands.", show_default=False)],
    board: Annotated[str, typer.Option("--board", help="Where: local://, local://openvino, ssh://user@host/rknnlite, adb://SERIAL/rknnlite, replay:FILE.")] = "local://",
    data: DataOption = None,
    runs: Annotated[int, typer.Option("--runs", min=1, help="Timed runs, at least.")] = 50,
    warmup: Annotated[int, typer.Option("--warmup", min=0, help="Runs before them that do not count.")] = 5,
    seconds: Annotated[float, typer.Option("--seconds", min=0.0, help="Least time of the timed runs together.")] = 0.5,
    threads: Annotated[int | None, typer.Option("--threads", min=1, help="CPU threads of the runtime.")] = None,
    clock: Annotated[str, typer.Option("--clock", help="Hold the NPU there while measuring, e.g. 1000MHz, or npu:1000MHz for a devfreq device by name. Needs root on the board.")] = "",
    power_meter: Annotated[str, typer.Option("--power-meter", help="External meter: module:function or file.py:function that makes an object with start() and stop() -> "
                                             "[(seconds, watts)], or an installed one. On a board's URL, for a search too: ?meter=.")] = "",
    manifest: Annotated[Path | None, typer.Option("--manifest", help="manifest.json of an export: refuse a board whose runtime or driver is not what it needs.")] = None,
    preprocess: PreprocessOption = None,
    input_shape: ShapesOption = None,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Write the measurement here; --board replay:FILE reads it again.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Run a model on a board: percentiles, first run, steps, clock, temperature and power where the board shows them.

    [bold]qbench measure model.qdq.onnx --board local://[/bold]

    [bold]qbench measure net.onnx --board "local://onnxruntime?threads=1" --data samples.npz -o net.json[/bold]

    [bold]qbench measure out/model.rknn --board "ssh://root@rock5b/rknnlite?clock=1000MHz" --data inputs.npz --manifest out/manifest.json[/bold]

    A board is reached by your SSH keys, and only if its host key is known; everything sent is removed afterwards but the model, which is
    kept by its hash. ?python=, ?folder=, ?timeout=, ?key= name what is not where it usually is.

    A measurement that is unsteady, drifts or whose clock moves is repeated up to three times and marked if it stays so.
    """
    from qbench import terminal
    from qbench.board import Request
    from qbench.report.measurement_terminal import measurement_table
    from qbench.workbench.measuring import measure

    with terminal.progress(options.console()) as progress:
        found, notes = measure(model, board, data, request=Request(runs, warmup, seconds, threads, clock), preprocess=preprocess,
                               input_shapes=options.shapes(input_shape), out=output, manifest=manifest, power_meter=power_meter, progress=progress)
    if as_json:
        options.print_json(found.to_dict() | {"notes": list(notes)})
        return
    page = options.out()
    said = "recorded" if found.recorded else "measured"
    page.print(f"{found.model} on {found.board} ({found.runtime}): {found.latency_ms:.3g} ms +- {found.error_ms:.2g}, {said}", soft_wrap=True, markup=False)
    page.print(measurement_table(found))
    if notes:
        page.print(terminal.warning_list(notes))
    if output is not None:
        page.print(f"written: {output}", soft_wrap=True, markup=False)
