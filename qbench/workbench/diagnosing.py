"""`qbench diagnose`: float, simulated, compiled and board on the same samples, each held against the one before it."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from qbench import qdq, targets
from qbench.affine import Range
from qbench.board import Request
from qbench.corrections import rewritten
from qbench.diagnosis.examine import LOCAL_S
from qbench.diagnosis.gaps import odd_text
from qbench.diagnosis.graph import Graph, laid_open
from qbench.diagnosis.input_faults import Normalisation
from qbench.diagnosis.matching import match
from qbench.diagnosis.quantized import Calibrated, quantization
from qbench.diagnosis.records import Cause, Diagnosis, Stage, Tensors
from qbench.diagnosis.runs import Runner, stacked
from qbench.diagnosis.stages import compare, compare_inputs
from qbench.errors import DataError, InputError, QbenchError
from qbench.graph import PreparedModel, load_network
from qbench.network import Precision
from qbench.plan import Granularity, Plan, check_fits, make_plan
from qbench.protocols import Array, Dataset, Progress, silent
from qbench.samples import DEFAULT, load_sample
from qbench.samples.record import OneChannel
from qbench.statistics import Statistics
from qbench.targets.boards import open_board
from qbench.targets.boards.outputs import GivesOutputs, read_dump
from qbench.walk import samples_of
from qbench.workbench.analyzing import last_plan, plan_path
from qbench.workbench.case import Shapes, Values, input_specs, open_data
from qbench.workbench.costing import CostOptions, cost_of
from qbench.workbench.measuring import measured
from qbench.workbench.plans import schemes_of

if TYPE_CHECKING:
    import onnx

SIMULATED = "simulated*.npz"
"""What a vendor's simulator gave, in an export folder: "in:NAME" and "out:NAME", first axis samples."""
MOST_BYTES = 64 << 20
"""Tensors between the layers up to this size, all samples together, are fetched from a board."""
SCHEME_OF = "rk3588"
"""Whose INT8 stands for "it ran in 8 bits" where the plan names no target."""


@dataclass(frozen=True)
class Wanted:
    """What `qbench diagnose` was asked for; see its help for each.

    model      None: the built-in `sample`; plan   a plan.json, a folder that holds one, or a Q/DQ .onnx; None: float is held against the board
    outputs    what the board left: a .npz or a folder of them; compiled   what the vendor's simulator gave: the same, or an export folder
    artefact   the file that the board runs; None: the Q/DQ model itself
    search_s   seconds for each search: layer by layer, and for one wrong layer where only outputs are known
    stats      calibration statistics (`qbench stats -o`) that the plan's ranges are held against; None: the samples are
    """

    model: Path | None = None
    plan: Path | None = None
    data: str | None = None
    sample: str | None = None
    outputs: Path | None = None
    compiled: Path | None = None
    board: str = ""
    artefact: Path | None = None
    target: str = ""
    samples: int = 4
    inner: bool = True
    search_s: float = LOCAL_S
    stats: Path | None = None
    preprocess: str | None = None
    input_shapes: Shapes | None = None
    input_values: Values | None = None


@dataclass
class _Bench:
    """Both models, the samples, and what the float model makes of them.

    aliases   name in the float network -> value of the judged graph; reference   value of the judged graph -> float
    """

    prepared: PreparedModel
    plan: Plan | None
    graph: Graph
    aliases: dict[str, str]
    feeds: dict[str, Array]
    rows: list[dict[str, Array]]
    runner: Runner
    reference: dict[str, Array] = field(default_factory=dict)
    float_values: dict[str, Array] = field(default_factory=dict)
    quantized: bool = False
    equalized: bool = False


def diagnose(wanted: Wanted, progress: Progress = silent) -> Diagnosis:
    """The gaps between all layers that there is something of, and for the first that is open its cause.

    Raises InputError for what does not go together, ToolError when the board fails.
    """
    bench, known, notes = _opened(wanted)
    notes += _not_finite(bench)
    if wanted.stats is not None and not bench.quantized:
        raise InputError(f"--stats {wanted.stats}: a plan's ranges are held against it, and no plan was given: name one, or leave --stats out")
    stages: list[Stage] = []
    left_out: dict[str, str] = {}
    if bench.quantized:
        stages.append(quantization("float -> simulated", bench.graph, bench.feeds, bench.reference, bench.runner, _calibrated(bench, wanted, notes), wanted.search_s, progress))
    else:
        left_out["simulated"] = "no plan and no Q/DQ model was given: the board is held against float"
    others, instead = _other_ways(bench, notes)
    before = "simulated" if bench.quantized else "float"
    files = _compiled_files(wanted)
    if not files:
        left_out["compiled"] = "nothing of the vendor's simulator: give --compiled FILE.npz, or the folder of a `qbench export` that was compiled here"
    for path in files:
        stages += _against(f"{before} -> compiled", path, read_dump(path), bench, others, instead, known, wanted.search_s, progress)
    dump, source = _board_dump(wanted, bench, notes)
    if dump is None:
        left_out["board"] = "nothing of a board: give --outputs FILE.npz or --board URL"
    else:
        stages += _against(f"{'compiled' if files else before} -> board", source, dump, bench, others, instead, known, wanted.search_s, progress)
    if wanted.board and (stage := _latency(wanted, bench, notes)) is not None:
        stages.append(stage)
    if not stages:
        raise InputError("nothing to compare: give a plan, --outputs FILE.npz, --compiled FILE.npz or --board URL; `qbench diagnose --message TEXT` looks a message up")
    return Diagnosis(bench.prepared.network.name, len(bench.rows), tuple(stages), left_out, tuple(dict.fromkeys(notes)))


# ------------------------------------------------------------------------------------------------ opening


def _opened(wanted: Wanted) -> tuple[_Bench, Normalisation | None, list[str]]:
    notes: list[str] = []
    if wanted.model is None:
        if wanted.data is not None or wanted.preprocess or wanted.input_shapes or wanted.input_values:
            raise InputError("--data, --preprocess, --input-shape and --input-value are for a model of your own: give it, or leave them out for the sample")
        sample = load_sample(wanted.sample or DEFAULT)
        prepared = load_network(sample.model)
        data: Dataset | None = sample.evaluation
        plan_file = wanted.plan or _plan_or_none(sample.name, notes)
        known = _of_transform(sample.evaluation)
    else:
        if wanted.sample is not None:
            raise InputError(f"--sample {wanted.sample} and the model {wanted.model}: give one of the two")
        if not wanted.model.is_file():
            raise InputError(f"{wanted.model} does not exist")
        prepared = load_network(wanted.model, wanted.input_shapes, wanted.input_values)
        data = open_data(wanted.data, prepared, wanted.preprocess) if wanted.data else None
        plan_file, known = wanted.plan, _of_text(wanted.preprocess)
    rows = _rows(wanted, prepared, data, notes)
    bench = _bench(prepared, plan_file, rows)
    return bench, known, [*prepared.notes, *notes]


def _not_finite(bench: _Bench) -> list[str]:
    """Outputs of the float model that are NaN or infinite themselves, for which no machine can be blamed. Raises InputError where nothing else is left."""
    outputs = {o: bench.reference[o] for o in bench.graph.outputs if o in bench.reference}
    odd = {o: x for o, x in outputs.items() if not np.isfinite(x).all()}
    if odd and not any(np.isfinite(x).any() for x in outputs.values()):
        raise InputError(f"the float model itself gives no finite value on these samples: {'; '.join(f'{o} holds {odd_text(x)}' for o, x in odd.items())}: "
                         "nothing can be compared; look at the samples first")
    return [f"the float model itself gives {odd_text(x)} in {o}: there nothing is compared" for o, x in odd.items()]


def _plan_or_none(name: str, notes: list[str]) -> Path | None:
    try:
        return last_plan(name)
    except InputError as error:
        notes.append(str(error))
        return None


def _rows(wanted: Wanted, prepared: PreparedModel, data: Dataset | None, notes: list[str]) -> list[dict[str, Array]]:
    """The samples: of the data; else those that came with the dump or the export; else drawn at random."""
    if data is not None:
        return samples_of(data, wanted.samples)
    for path in (*_compiled_files(wanted), *([wanted.outputs] if wanted.outputs else [])):
        given = {k[3:]: v for k, v in read_dump(path).items() if k.startswith("in:")}
        if set(prepared.network.inputs) <= set(given):
            notes.append(f"the samples are those that came with {path.name}")
            count = min(min(len(v) for v in given.values()), wanted.samples)
            return [{k: given[k][i:i + 1] for k in prepared.network.inputs} for i in range(count)]
    if wanted.outputs is not None or wanted.compiled is not None:
        raise InputError("which inputs were these outputs made from? Give the same samples with --data, or put them into the .npz as in:NAME")
    rng = np.random.default_rng(0)
    notes.append("the inputs are random values: give --data for real ones")
    shapes = prepared.network.tensors
    return [{name: rng.standard_normal(shapes[name].shape).astype(kind) if np.dtype(kind).kind == "f" else np.zeros(shapes[name].shape, kind)
             for name, _, kind in input_specs(prepared)} for _ in range(wanted.samples)]


def _bench(prepared: PreparedModel, plan_file: Path | None, rows: list[dict[str, Array]]) -> _Bench:
    feeds, lifted = stacked(rows)
    runner = Runner(lifted)
    plan = stored = None
    equalized = False
    model: onnx.ModelProto | None = None
    if plan_file is not None and plan_file.suffix == ".onnx":
        model = _qdq(plan_file)
    elif plan_file is not None:
        plan = Plan.load(plan_path(plan_file))
        original, prepared = prepared, rewritten(prepared, plan)
        equalized = prepared is not original
        check_fits(plan, prepared.network)
        written = qdq.write(prepared, plan)
        stored, model = written.stored, _proto(written.model)
    base = Graph(_proto(prepared.model))
    network = prepared.network
    graph = base if model is None else Graph(model)
    inner = {t for k in network.kernels for t in k.inner}
    names = [t for k in network.kernels for t in (*k.inner, *k.outputs) if network.tensors[t].dtype == "float32" and t in base.maker]
    aliases = {t: stored.get(t, t) if stored else graph.seen(t) for t in names}
    # what a kernel keeps to itself is only there where it is stored
    aliases = {t: v for t, v in aliases.items() if v in graph.maker and (t not in inner or v in graph.by_stored)}
    made = runner.run(laid_open(base, list(aliases)), feeds)
    aliases |= {p.raw: p.stored for p in graph.points if p.stored in aliases.values()}
    reference = {v: made[t] for t, v in aliases.items() if t in made} | {p.stored: feeds[p.raw] for p in graph.points if p.raw in feeds}
    for o in graph.outputs:
        if o in made:
            reference[o], aliases[o] = made[o], o
    if not set(graph.outputs) & set(reference):
        raise InputError(f"{plan_file}: its outputs {graph.outputs} are none of the float model's ({', '.join(network.outputs)}): is it of another model?")
    return _Bench(prepared, plan, graph, aliases, feeds, rows, runner, reference, made, model is not None, equalized)


def _qdq(path: Path) -> onnx.ModelProto:
    """Raises InputError for a file that is no ONNX model."""
    import onnx

    try:
        model = onnx.load(path)
    except Exception as error:  # what protobuf raises differs between its versions
        raise InputError(f"{path}: not a readable ONNX file ({type(error).__name__}: {error}); expected a Q/DQ model, a plan.json, or a folder that holds one") from error
    if not model.graph.node:
        raise InputError(f"{path}: the file holds no graph; expected a Q/DQ model, a plan.json, or a folder that holds one")
    return model


def _calibrated(bench: _Bench, wanted: Wanted, notes: list[str]) -> Calibrated:
    """What the ranges are held against: of each tensor those that share its range, and what the calibration data had.

    Without --stats, the statistics that a search left beside its plan. Raises DataError for statistics of another model.
    """
    network = bench.prepared.network
    groups = {t: g.sources for t, g in network.group_of.items()}
    if wanted.stats is None:
        beside = wanted.plan if wanted.plan is not None and wanted.plan.is_dir() else wanted.plan.parent if wanted.plan is not None else None
        found = [known for path in sorted(beside.glob("statistics-*.npz")) if (known := Statistics.load(path)).model_key == network.model_key] if beside is not None else []
        if not found:
            return Calibrated(groups)
        known = found[0]
        notes.append(f"ranges are held against the statistics of {known.samples} samples that lie beside the plan")
    else:
        known = Statistics.load(wanted.stats)
        if known.model_key != network.model_key:
            raise DataError(f"--stats {wanted.stats}: these are statistics of another model than {network.name}: make them again with qbench stats")
    if bench.plan is not None and bench.equalized:
        notes.append("the plan's corrections change the tensors: its ranges are held against the samples, not the statistics")
        return Calibrated(groups)
    return Calibrated(groups, {t: Range(s.minimum, s.maximum) for t, s in known.tensors.items() if s.count})


def _proto(model: Any) -> onnx.ModelProto:
    """Raises InputError above what one protobuf holds."""
    import onnx

    try:
        return onnx.load_from_string(qdq.to_bytes(model))
    except ValueError as error:
        raise InputError(f"the model is too large to be edited in memory ({error}): diagnose a part of it, cut out with onnx.utils.extract_model") from error


def _of_text(preprocess: str | None) -> Normalisation | None:
    if not preprocess:
        return None
    from qbench.data import parse_preprocessing

    how = parse_preprocessing(preprocess)
    return Normalisation(how.scale, how.mean, how.std, how.layout)


def _of_transform(data: Dataset) -> Normalisation | None:
    """Of a built-in sample; None where it changes nothing."""
    way = getattr(data, "transform", None)
    return Normalisation(1.0 / way.divisor, (way.mean,), (way.std,)) if isinstance(way, OneChannel) and (way.divisor, way.mean, way.std) != (1.0, 0.0, 1.0) else None


# ------------------------------------------------------------------------------------------------ other ways to compute it


def _other_ways(bench: _Bench, notes: list[str]) -> tuple[dict[str, Tensors], list[tuple[str, Tensors]]]:
    """(correct ways beside the first, what a board gives that runs in another precision)."""
    half = _half(bench)
    if not bench.quantized:
        eight = _eight_bits(bench, notes)
        return {"in FP16": half}, [("the whole network ran in 8 bits", eight)] if eight else []
    instead: list[tuple[str, Tensors]] = [("the whole network ran in float", bench.reference), ("the whole network ran in FP16", half)]
    if bench.plan is None or Precision.FP16 not in bench.plan.precision.values():
        return {}, instead
    return {"with the rounding of FP16 layers": _run_written(bench, qdq.write(bench.prepared, bench.plan, emulate_fp16=True))}, instead


def _half(bench: _Bench) -> dict[str, Array]:
    network = bench.prepared.network
    plan = make_plan(network, {u.name: Precision.FP16 for u in network.units}, {}, {}, calibrator="minmax", granularity=Granularity.PER_CHANNEL)
    return _run_written(bench, qdq.write(bench.prepared, plan, emulate_fp16=True))


def _eight_bits(bench: _Bench, notes: list[str]) -> dict[str, Array]:
    """With ranges from these very samples; {} where the network cannot be quantized so, which is noted."""
    network, seen = bench.prepared.network, {**bench.feeds, **bench.float_values}
    if not all(np.isfinite(x).all() for x in seen.values()):
        notes.append("it could not be looked at whether the whole network ran in 8 bits: not all of its values are finite")
        return {}
    target = targets.load(SCHEME_OF)
    ranges = {g.name: Range(min(float(seen[t].min()) for t in g.sources if t in seen), max(float(seen[t].max()) for t in g.sources if t in seen)).including_zero()
              for g in network.groups if any(t in seen for t in g.sources)}
    try:
        plan = make_plan(network, {u.name: Precision.INT8 if u.quantizable else Precision.FP16 for u in network.units}, ranges, schemes_of(target, target.toolkit(None)),
                         calibrator="minmax", granularity=Granularity.PER_CHANNEL)
        return _run_written(bench, qdq.write(bench.prepared, plan))
    except QbenchError as error:
        notes.append(f"it could not be looked at whether the whole network ran in 8 bits: {error}")
        return {}


def _run_written(bench: _Bench, written: qdq.Written) -> dict[str, Array]:
    """By the values of the judged graph."""
    graph = Graph(_proto(written.model))
    names = {v: written.stored.get(t, t) for t, v in bench.aliases.items() if t in bench.prepared.network.tensors}
    names = {v: n for v, n in names.items() if n in graph.maker}
    made = bench.runner.run(laid_open(graph, list(names.values())), bench.feeds)
    return {v: made[n] for v, n in names.items()}


# ------------------------------------------------------------------------------------------------ what the other machines gave


def _compiled_files(wanted: Wanted) -> list[Path]:
    """Outputs of the vendor's simulator: the file given, those of an export folder."""
    if wanted.compiled is not None and not (wanted.compiled.is_dir() and (wanted.compiled / "manifest.json").is_file()):
        return [wanted.compiled]
    folder = wanted.compiled or (wanted.plan if wanted.plan is not None and wanted.plan.is_dir() else None)
    found = sorted(folder.glob(SIMULATED)) if folder is not None else []
    if wanted.compiled is not None and not found:
        raise InputError(f"{wanted.compiled} holds no {SIMULATED}: it was not compiled here, or by an older qbench; export again where the toolchain is installed")
    return found


def _against(name: str, source: object, dump: Tensors, bench: _Bench, others: Mapping[str, Tensors], instead: Sequence[tuple[str, Tensors]], known: Normalisation | None,
             search_s: float, progress: Progress) -> list[Stage]:
    """The stages of one dump: the inputs it names, if any, and its tensors."""
    given = {k[3:]: v for k, v in dump.items() if k.startswith("in:")}
    rest = {k: v for k, v in dump.items() if not k.startswith("in:")}
    points = {p.stored: p for p in bench.graph.points}
    observed, notes = match(rest, bench.reference, bench.aliases, bench.graph.outputs, points, str(source))
    found = [compare_inputs(bench.feeds, given, known)] if given else []
    found.append(compare(name, bench.graph, bench.feeds, observed, bench.runner, others=others, instead=instead, known=known, notes=notes, progress=progress, limit_s=search_s))
    return found


def _board_dump(wanted: Wanted, bench: _Bench, notes: list[str]) -> tuple[dict[str, Array] | None, str]:
    """(tensors of the board, where they came from): the file given, or what the board answers now."""
    if wanted.outputs is not None:
        return read_dump(wanted.outputs), str(wanted.outputs)
    if not wanted.board:
        return None, ""
    board = open_board(wanted.board)
    if not isinstance(board, GivesOutputs):
        raise InputError(f"board {wanted.board!r} gives times but no outputs: dump them there and give --outputs FILE.npz")
    if wanted.artefact is not None:
        return stacked(board.outputs(wanted.artefact, bench.rows, Request()))[0], wanted.board
    values = list(bench.reference)
    size = sum(bench.reference[v].nbytes for v in values)
    if wanted.inner and size > MOST_BYTES:
        notes.append(f"tensors between the layers are not fetched from the board: {size >> 20} MB, the limit is {MOST_BYTES >> 20} MB; --samples 1 may do")
    model = laid_open(bench.graph, values if wanted.inner and size <= MOST_BYTES else [])
    with tempfile.TemporaryDirectory(prefix="qbench-") as folder:
        path = Path(folder) / "diagnosed.onnx"
        path.write_bytes(model.SerializeToString())
        return stacked(board.outputs(path, bench.rows, Request()))[0], wanted.board


def _latency(wanted: Wanted, bench: _Bench, notes: list[str]) -> Stage | None:
    """Measured time against the predicted interval; None, with a note, where there is no prediction to hold it against."""
    name = "predicted -> measured time"
    target = wanted.target or (bench.plan.target if bench.plan else "")
    model = wanted.model or load_sample(wanted.sample or DEFAULT).model
    if wanted.board.startswith("local:") and not wanted.target:
        return None
    if not target or bench.plan is None or wanted.plan is None:
        notes.append("no time is compared: that needs a plan and a target (--target)")
        return None
    row = cost_of(model, [target], [], CostOptions(plan=plan_path(wanted.plan), input_shapes=wanted.input_shapes, input_values=wanted.input_values))[0]
    low, middle, high = (float(row[k]) for k in ("latency_ms_low", "latency_ms", "latency_ms_high"))
    with tempfile.TemporaryDirectory(prefix="qbench-") as folder:
        path = wanted.artefact or Path(folder) / "diagnosed.onnx"
        if wanted.artefact is None:
            path.write_bytes(bench.graph.model.SerializeToString())
        found = measured(open_board(wanted.board), path, bench.rows, Request())
    return latency_stage(name, found.latency_ms, found.error_ms, (low, middle, high), target, found.unstable)


def latency_stage(name: str, measured_ms: float, error_ms: float, predicted_ms: tuple[float, float, float], target: str, unstable: Sequence[str] = ()) -> Stage:
    """Slower than the predicted interval (BUG case B28 d), or healthy. predicted_ms   low, middle, high"""
    low, middle, high = predicted_ms
    facts = (f"measured {measured_ms:.3g} ms +- {error_ms:.2g}; predicted for {target} {middle:.3g} ms ({low:.3g} to {high:.3g})",)
    if measured_ms - 2.0 * error_ms <= high:
        return Stage(name, Cause.HEALTHY, (), "the time is not above what was predicted", "", 1.0, facts, notes=tuple(unstable))
    ratio = measured_ms / middle
    return Stage(name, Cause.LATENCY, (Cause.LATENCY,), f"{ratio:.1f} times the predicted time; the outputs are judged apart from it", "latency",
                 0.5 if unstable else 0.9, facts, notes=tuple(unstable))
