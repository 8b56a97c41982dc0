"""qbench diagnose."""

from __future__ import annotations

from math import isfinite
from pathlib import Path
from typing import Annotated

import typer

from qbench.cli import completing, options
from qbench.cli.options import DataOption, JsonOption, PreprocessOption, ShapesOption, ValuesOption
from qbench.errors import InputError


def command(
    model: Annotated[Path | None, typer.Argument(metavar="MODEL", show_default=False, help="The float model; without it the sample.")] = None,
    plan: Annotated[Path | None, typer.Argument(metavar="PLAN", show_default=False, help="plan.json, the folder of a search or an export, or a Q/DQ .onnx of any "
                                                "tool. May stand alone, for a sample. Without it the board is held against float.")] = None,
    data: DataOption = None,
    sample: Annotated[str | None, typer.Option("--sample", autocompletion=completing.samples, help="Built-in sample: brain (default), fashion, face, face-dark.")] = None,
    outputs: Annotated[Path | None, typer.Option("--outputs", help="Tensors that the board left: a .npz (tensor -> values, first axis samples; in:NAME for inputs), "
                                                 "or a folder of one .npz a sample. With the tensors between the layers the first wrong layer is found.")] = None,
    compiled: Annotated[Path | None, typer.Option("--compiled", help="Tensors of the vendor's simulator: the same kinds, or the folder of a `qbench export`.")] = None,
    board: Annotated[str, typer.Option("--board", help="Ask a board for its outputs now, and time it: local://, ssh://user@host/rknnlite, adb://SERIAL, replay:FILE.")] = "",
    artefact: Annotated[Path | None, typer.Option("--artefact", help="The file that the board runs, e.g. out/model.rknn; default: the Q/DQ model.")] = None,
    target: Annotated[str, typer.Option("--target", "-t", autocompletion=completing.targets, help="Chip whose predicted time the board's is held against; default: the plan's.")] = "",
    samples: Annotated[int, typer.Option("--samples", min=1, help="Samples to compare, the first of the data. At least 3 tell old outputs from wrong ones.")] = 4,
    inner: Annotated[bool, typer.Option("--layers/--no-layers", help="Ask the board for the tensors between the layers too.")] = True,
    search_seconds: Annotated[float, typer.Option("--search-seconds", min=0.0, help="At most so long for each search: the layers alone, and one wrong layer where only outputs are known. What is left out is said.")] = 120.0,
    stats: Annotated[Path | None, typer.Option("--stats", help="Calibration statistics (`qbench stats -o`): the plan's ranges are held against them; without, against the samples, and a range too wide is then only a note.")] = None,
    message: Annotated[str | None, typer.Option("--message", "-m", help="Look an error message or a symptom up, in your words or the tool's.")] = None,
    log: Annotated[Path | None, typer.Option("--log", help="Look up what a log file says.")] = None,
    preprocess: PreprocessOption = None,
    input_shape: ShapesOption = None,
    input_value: ValuesOption = None,
    as_json: JsonOption = False,
) -> None:
    """Find the layer and the cause when a board gives other results than the simulation; or look a message up.

    [bold]qbench diagnose net.onnx plan.json --data samples.npz --outputs board.npz[/bold]

    [bold]qbench diagnose net.onnx out/ --data samples.npz --board ssh://root@board/rknnlite --artefact out/model.rknn[/bold]

    [bold]qbench diagnose --message "Invalid RKNN model version 6"[/bold]

    Float, simulated, compiled and board run on the same samples. Every cause (rounding, channel order, normalisation, layout, saturation, overflow,
    range, precision, stale data, cache, zeros, NaN, sign, scale) is computed and held against what was seen.
    """
    from qbench import terminal

    if message is not None or log is not None:
        given = {"MODEL": model, "PLAN": plan, "--data": data, "--sample": sample, "--outputs": outputs, "--compiled": compiled, "--board": board}
        if odd := [k for k, v in given.items() if v]:
            raise InputError(f"--message and --log look a text up and take no {', '.join(odd)}: ask twice")
        look_up(message or "", log, as_json)
        return
    from qbench.report.diagnosis_terminal import diagnosis_page
    from qbench.workbench.diagnosing import Wanted, diagnose

    if model is not None and plan is None and (model.is_dir() or model.suffix == ".json"):
        model, plan = None, model
    wanted = Wanted(model, plan, data, sample, outputs, compiled, board, artefact, target, samples, inner, search_seconds, stats, preprocess, options.shapes(input_shape), options.values(input_value))
    with terminal.progress(options.console()) as progress:
        found = diagnose(wanted, progress)
    if as_json:
        options.print_json(finite(found.to_dict()))
    else:
        page = options.out()
        page.print(diagnosis_page(found))


def look_up(message: str, log: Path | None, as_json: bool) -> None:
    """Prints the symptoms that match, best first."""
    from qbench.diagnosis import look_up as find
    from qbench.report.diagnosis_terminal import symptom_list

    text = message
    if log is not None:
        try:
            text += "\n" + log.read_text(encoding="utf-8", errors="replace")
        except OSError as error:
            raise InputError(f"--log {log}: cannot be read ({error.strerror})") from error
    if not text.strip():
        raise InputError("--message is empty: give the error's text, or what you see, e.g. \"all outputs are zero\"")
    found = find(text)
    if as_json:
        options.print_json({"matches": [m.to_dict() for m in found]})
        return
    options.out().print(symptom_list(found))


def finite(x: object) -> object:
    """JSON knows no infinity: null."""
    if isinstance(x, dict):
        return {k: finite(v) for k, v in x.items()}
    if isinstance(x, list):
        return [finite(v) for v in x]
    return None if isinstance(x, float) and not isfinite(x) else x
