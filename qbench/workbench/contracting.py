"""What `qbench contract` does: the contract of each input, the user's arrays against it, and the slip that their statistics show."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from qbench import targets
from qbench.affine import Affine, affine
from qbench.contract import Breach, Contract, Said, contract_of
from qbench.contract_check import PICTURES, check, check_file
from qbench.contract_code import code_for
from qbench.contract_path import Way
from qbench.data import parse_preprocessing
from qbench.data.arrays import ArrayDataset, load_npz
from qbench.errors import DataError, InputError
from qbench.graph import PreparedModel, load_network
from qbench.graph.load import read
from qbench.plan import Plan, check_fits
from qbench.protocols import Array
from qbench.sanity import Verdict, judge, slips
from qbench.statistics import Statistics, TensorStatistics, collect
from qbench.target import Target
from qbench.workbench.case import Shapes, Values
from qbench.workbench.datapath import data_path

FIRST_TENSORS = 3
SAMPLES = 16
ORDERS = ("rgb", "bgr", "gray")


@dataclass(frozen=True, slots=True)
class Checked:
    """One input: its contract, the file that was held against it ("" none), what is broken, and what the statistics say."""

    contract: Contract
    file: str
    breaches: tuple[Breach, ...]
    verdicts: tuple[Verdict, ...] = ()

    @property
    def kept(self) -> bool:
        return not any(b.level == "broken" for b in self.breaches) and not any(v.slip for v in self.verdicts)

    def to_dict(self) -> dict[str, Any]:
        return {"contract": self.contract.to_dict(), "file": self.file, "kept": self.kept, "breaches": [asdict(b) for b in self.breaches],
                "verdicts": [v.to_dict() for v in self.verdicts]}


@dataclass(frozen=True, slots=True)
class Handing:
    """How inputs are handed over, as `qbench.contract.contract_of` takes it. plan   whose codes are handed over, for "codes" """

    handover: str = "model"
    zero_copy: bool = False
    preprocess: str | None = None
    width_align: int | None = None
    plan: Path | None = None


@dataclass(frozen=True, slots=True)
class Contracts:
    """inputs   in the order of the model; notes   what the user should know; code   of the function that prepares them; ways   of a frame to the
    first picture among the inputs, where they were asked for"""

    model: str
    inputs: tuple[Checked, ...]
    notes: tuple[str, ...]
    code: str
    ways: tuple[Way, ...] = ()

    @property
    def kept(self) -> bool:
        return all(c.kept for c in self.inputs)

    def to_dict(self) -> dict[str, Any]:
        return {"model": self.model, "kept": self.kept, "inputs": [c.to_dict() for c in self.inputs], "notes": list(self.notes),
                "ways": [w.to_dict() for w in self.ways]}


def check_inputs(model: Path, target: str, files: Sequence[str] = (), *, handing: Handing | None = None, said: Said | None = None, stats: Path | None = None, frame: str = "",
                 input_shapes: Shapes | None = None, input_values: Values | None = None) -> Contracts:
    """The contracts of a model on a target, and what `files` break of them.

    files    "x.npy" for a model of one input, "name=x.npy" otherwise: .npy, .npz, pictures, raw bytes
    stats    calibration statistics of the same model (`qbench stats -o`): the files are compared with them
    frame    "1920x1080": price the way of such a camera frame to the input
    Raises InputError for files that name no input, DataError for statistics of another model.
    """
    how = handing or Handing()
    if said is not None and said.channel_order and said.channel_order.lower() not in ORDERS:
        raise InputError(f"--channel-order {said.channel_order!r}; known: {', '.join(ORDERS)}")
    prepared, chip = load_network(model, input_shapes, input_values), targets.load(target)
    contracts = contract_of(prepared.network, chip, handover=how.handover, zero_copy=how.zero_copy, width_align=how.width_align,
                            preprocessing=parse_preprocessing(how.preprocess) if how.preprocess else None,
                            codes=_codes(how.plan, prepared) if how.plan else None, declared=_declared(model, prepared))
    if not contracts:
        raise InputError(f"{model} has no input that a caller feeds: nothing is handed over")
    given = _named(files, [c.name for c in contracts])
    found = {c.name: _breaches(given[c.name], c, said, stats is not None) for c in contracts if c.name in given}
    verdicts: dict[str, tuple[Verdict, ...]] = {}
    if stats is not None:
        verdicts = _sanity(prepared, contracts, given, Statistics.load(stats))
    inputs = tuple(Checked(c, str(given.get(c.name, "")), tuple(found.get(c.name, ())), verdicts.get(c.name, ())) for c in contracts)
    return Contracts(model.name, inputs, _notes(contracts, chip, given), code_for(contracts), _ways(prepared, chip, frame, how, given) if frame else ())


def _declared(model: Path, prepared: PreparedModel) -> dict[str, str]:
    """Input -> its type in the file, where qbench reads a float16, bfloat16 or float64 input as float32."""
    names = {"FLOAT16": "float16", "BFLOAT16": "bfloat16", "DOUBLE": "float64"}
    return {str(v.name): names[v.dtype.name] for v in read(model)[0].graph.inputs if v.name in prepared.network.inputs and v.dtype is not None and v.dtype.name in names}


def _ways(prepared: PreparedModel, chip: Target, frame: str, how: Handing, given: Mapping[str, Path]) -> tuple[Way, ...]:
    """Of the first input that is a picture; decoded from the user's own where one was given."""
    plain = contract_of(prepared.network, chip, preprocessing=parse_preprocessing(how.preprocess) if how.preprocess else None)
    first = next((c for c in plain if c.preprocessing is not None), plain[0])
    picture = given.get(first.name)
    return data_path(first, chip, frame, picture if picture is not None and picture.suffix.lower() in PICTURES else None)


def _breaches(path: Path, contract: Contract, said: Said | None, many: bool) -> list[Breach]:
    """many   the file may hold more samples than a run takes: the first ones are looked at"""
    if many and path.suffix.lower() in (".npy", ".npz"):
        array = _array(path, contract)
        if array.ndim == len(contract.shape) and len(array) > contract.shape[0]:
            return [b for b in check(array[:contract.shape[0]], contract, said) if b.clause != "alignment"]
    return check_file(path, contract, said)


def _named(files: Sequence[str], names: Sequence[str]) -> dict[str, Path]:
    found: dict[str, Path] = {}
    for text in files:
        name, equals, rest = text.partition("=")
        if not equals or name not in names:
            if len(names) > 1:
                raise InputError(f"--input {text}: the model has the inputs {', '.join(names)}; say which, e.g. --input {names[0]}=x.npy")
            name, rest = names[0], text
        if name in found:
            raise InputError(f"--input {text}: {name} is given twice")
        found[name] = Path(rest)
        if not found[name].is_file():
            raise InputError(f"--input {text}: {found[name]} does not exist")
    return found


def _codes(path: Path, prepared: PreparedModel) -> dict[str, Affine]:
    """Input -> scale and zero point of the first kernel that reads it."""
    plan, network = Plan.load(path), prepared.network
    check_fits(plan, network, constants=False)
    found = {}
    for name in network.inputs:
        readers = network.consumers.get(name, ())
        precision = plan.precision.get(network.unit_of_kernel.get(readers[0], "")) if readers else None
        group = network.group_of.get(name)
        scheme = plan.schemes.get(str(precision)) if precision is not None else None
        if scheme is not None and group is not None and group.name in plan.ranges:
            found[name] = affine(plan.ranges[group.name], scheme.activation)
    return found


def _notes(contracts: Sequence[Contract], target: Target, given: Mapping[str, Path]) -> tuple[str, ...]:
    found = []
    rules = target.layout
    if not contracts[0].zero_copy:
        found.append("ordinary call: the runtime copies, so there is no rule about addresses and row strides; --zero-copy checks those")
    else:
        if rules.base_align_bytes is None:
            found.append(f"no public source says how the start of a buffer is aligned on {target.name}: take what the runtime allocates")
        if any(c.layout for c in contracts) and rules.width_align_elements is None and all(c.width_align_elements == 1 for c in contracts):
            found.append(f"no public source says how far apart rows lie on {target.name}: ask the runtime (w_stride) and give --width-align")
        if given and any(c.base_align_bytes > 1 for c in contracts):
            found.append("a file has no address: alignment is checked on arrays in memory (qbench.contract_check.check), and by the code of --code")
    if rules.native:
        found.append(f"computes in {rules.native} ({rules.sources.get('native', '')}): the layouts above are those of the input")
    for c in contracts:
        if c.layout and not c.normalised_by and np.dtype(c.dtype).kind == "f":
            found.append(f"{c.name}: nobody said how pixels become values; with --preprocess range, colours and normalisation are checked and coded")
    return tuple(found)


def _sanity(prepared: PreparedModel, contracts: Sequence[Contract], given: Mapping[str, Path], known: Statistics) -> dict[str, tuple[Verdict, ...]]:
    network = prepared.network
    if known.model_key != network.model_key:
        raise DataError(f"the statistics are those of another model than {network.name}: make them again with qbench stats")
    missing = [c.name for c in contracts if c.name not in given]
    if missing:
        raise InputError(f"--stats needs every input of the model: give --input for {', '.join(missing)}")
    samples, found = {}, {}
    for c in contracts:
        array, verdicts = _batched(_array(given[c.name], c), network.tensors[c.name].shape, c)
        samples[c.name], found[c.name] = array, verdicts
    count = min(SAMPLES, *(len(a) for a in samples.values()))
    samples = {n: a[:count] for n, a in samples.items()}
    for c in contracts:
        hypotheses = slips(network.tensors[c.name].shape, c.layout, c.preprocessing)
        if not hypotheses or np.dtype(network.tensors[c.name].dtype).kind != "f":
            continue
        watched = _watched(prepared, c.name, known)
        seen = {name: observed(prepared, {**samples, c.name: _mended(undo, samples[c.name])}, watched)
                for name, undo in [("", None), *((h.name, h.undo) for h in hypotheses)]}
        found[c.name] += (judge(seen, {t: known[t] for t in watched}, hypotheses),)
    return found


def _mended(undo: Any, x: Array) -> Array:
    made = x if undo is None else undo(x)
    return np.ascontiguousarray(made, dtype=x.dtype)


def _array(path: Path, contract: Contract) -> Array:
    if path.suffix.lower() in PICTURES:
        raise InputError(f"{path}: --stats compares what the network is fed; give the prepared array (.npy), which the function of --code makes")
    if path.suffix.lower() not in (".npy", ".npz"):
        raw = np.fromfile(path, np.uint8)
        if raw.nbytes != contract.packed_bytes:
            raise DataError(f"{path}: {raw.nbytes:,} bytes, the input {contract.name!r} has {contract.packed_bytes:,}: nothing can be compared with --stats")
        return raw.view(contract.dtype).reshape(contract.shape)
    if path.suffix.lower() == ".npz":
        stored = load_npz(path)
        if not stored:
            raise DataError(f"{path} holds no array: nothing can be compared with --stats")
        return stored.get(contract.name, next(iter(stored.values())))
    array: Array = np.load(path, allow_pickle=False)
    return array


def _batched(array: Array, shape: tuple[int, ...], contract: Contract) -> tuple[Array, tuple[Verdict, ...]]:
    """Samples in the shape that the network reads, and the slips that their shape gives away. Raises DataError for any other shape."""
    verdicts = []
    if array.ndim == len(shape) - 1:
        array = array[None]
        verdicts.append(Verdict("batch dimension missing", 1.0, "x = x[None]", 0.0, 0.0, {}))
    if len(shape) == 4 and array.shape[1:] != shape[1:]:
        for axes, swapped in (((0, 3, 1, 2), "layout swapped (HWC where CHW is read)"), ((0, 2, 3, 1), "layout swapped (CHW where HWC is read)")):
            if array.ndim == 4 and tuple(array.shape[i] for i in axes)[1:] == shape[1:]:
                array = array.transpose(axes)
                verdicts.append(Verdict(swapped, 1.0, f"numpy.ascontiguousarray(x.transpose{axes})", 0.0, 0.0, {}))
                break
    if array.shape[1:] != shape[1:] or not array.size:
        raise DataError(f"input {contract.name!r} reads samples of {list(shape[1:])}, the array is {list(array.shape)}: nothing can be compared")
    return np.ascontiguousarray(array, dtype=np.float32 if array.dtype.kind in "iuf" else array.dtype), tuple(verdicts)


def _watched(prepared: PreparedModel, name: str, known: Statistics) -> list[str]:
    """The input, and the first tensors behind it that the statistics hold."""
    network = prepared.network
    behind = [t for k in network.kernels for t in (*k.inner, *k.outputs) if t in known and known[t].count and t != name]
    return [t for t in (name,) if t in known and known[t].count] + behind[:FIRST_TENSORS]


def observed(prepared: PreparedModel, samples: Mapping[str, Array], tensors: Sequence[str]) -> dict[str, TensorStatistics]:
    """Statistics of `tensors` on the samples; values that are not finite are counted, not refused."""
    found = collect(prepared.model, tensors, ArrayDataset(dict(samples)), policy="ignore", threads=1)
    return {t: found[t] for t in tensors if t in found}
