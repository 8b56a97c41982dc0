"""ATC's command line and its files of data types, written, read and checked.

Sources: Huawei CANN documents, "ATC parameters" (atlasatc_16_0038/0039, 8.0 to 9.0, 2025), --keep_dtype (atlasatcparam_16_0070),
--customize_dtypes (atlasatcparam_16_0075): `Opname::InputDtype:dtype1,...,OutputDtype:dtype1,...`, one operator a line. A model that AMCT
quantized takes no open shapes, and neither force_fp32 nor must_keep_origin_dtype.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile

from qbench.errors import InputError, ToolError
from qbench.network import Network

SOC_VERSIONS = {"ascend310": ("Ascend310",), "ascend310p": ("Ascend310P3", "Ascend310P1")}
"""Exact names; the first is the default."""
PRECISION_MODES = ("force_fp16", "allow_mix_precision", "allow_mix_precision_fp16", "allow_fp32_to_fp16")
FORBIDDEN_MODES = ("force_fp32", "must_keep_origin_dtype")
LOGS = ("error", "warning", "info", "debug", "null")
ONNX = "5"
DTYPES = {"float32": "float32", "float16": "float16", "int64": "int64", "int32": "int32", "int8": "int8", "uint8": "uint8", "bool": "bool"}
_LINE = re.compile(r"(?P<name>.+)::InputDtype:(?P<inputs>[a-z0-9,]+),OutputDtype:(?P<outputs>[a-z0-9,]+)")


@dataclass(frozen=True)
class Command:
    """The seven parameters that a conversion hangs on, and the files.

    input_shape   input -> dimensions
    """

    framework: str
    soc_version: str
    input_shape: Mapping[str, tuple[int, ...]]
    input_format: str
    output: str
    precision_mode: str
    log: str
    model: str
    keep_dtype: str = ""
    customize_dtypes: str = ""

    def line(self) -> str:
        """As a shell takes it."""
        shapes = ";".join(f"{name}:{','.join(map(str, dims))}" for name, dims in self.input_shape.items())
        parts = {"framework": self.framework, "model": self.model, "output": self.output, "soc_version": self.soc_version, "input_shape": shapes,
                 "input_format": self.input_format, "precision_mode": self.precision_mode, "log": self.log, "keep_dtype": self.keep_dtype,
                 "customize_dtypes": self.customize_dtypes}
        return " ".join(["atc", *(shlex.quote(f"--{k}={v}") for k, v in parts.items() if v)])


def read_command(text: str) -> Command:
    """The one atc line of a script. Raises ToolError when it has none, or a parameter that is not known here."""
    line = next((x for x in text.splitlines() if x.startswith("atc ")), "")
    given = {}
    for part in takewhile(lambda p: p.startswith("--"), shlex.split(line)[1:]):
        key, _, value = part.removeprefix("--").partition("=")
        given[key] = value
    shapes: dict[str, tuple[int, ...]] = {}
    try:
        for part in given.pop("input_shape").split(";"):
            name, _, dims = part.rpartition(":")
            shapes[name] = tuple(int(d) for d in dims.split(","))
        return Command(input_shape=shapes, **given)
    except (KeyError, TypeError, ValueError) as error:
        raise ToolError(f"the script's atc line cannot be read ({error}): {line[:200] or 'there is none'}") from None


def check_command(command: Command, network: Network, target: str) -> None:
    """Raises InputError that names parameter, value and cure, before atc is called."""
    def refuse(parameter: str, value: object, cure: str) -> None:
        raise InputError(f"atc --{parameter}={value}: {cure}")

    if command.framework != ONNX:
        refuse("framework", command.framework, f"an ONNX model is {ONNX}")
    if command.soc_version not in SOC_VERSIONS.get(target, ()):
        refuse("soc_version", command.soc_version, f"{target} is exactly {' or '.join(SOC_VERSIONS.get(target, ('none that is known',)))} "
                                                   "(npu-smi info shows the chip's name); give --option soc_version=NAME")
    wanted = {name: network.tensors[name].shape for name in network.inputs}
    if dict(command.input_shape) != wanted:
        refuse("input_shape", ";".join(f"{n}:{','.join(map(str, d))}" for n, d in command.input_shape.items()),
               "the model's inputs are " + ", ".join(f"{n} {list(d)}" for n, d in wanted.items()) + "; all of them, fixed, as AMCT's models take no open shapes")
    if any(d < 1 for dims in command.input_shape.values() for d in dims):
        refuse("input_shape", dict(command.input_shape), "dimensions are at least 1")
    form = input_format(network)
    if command.input_format != form:
        refuse("input_format", command.input_format, f"this model's inputs are {form}")
    if not re.fullmatch(r"[\w./-]+", command.output):
        refuse("output", command.output, "a name of letters, digits, _, -, . and / (atc adds .om)")
    if command.precision_mode in FORBIDDEN_MODES:
        refuse("precision_mode", command.precision_mode, f"not for a model that AMCT quantized; use one of {', '.join(PRECISION_MODES)}")
    if command.precision_mode not in PRECISION_MODES:
        refuse("precision_mode", command.precision_mode, f"known are {', '.join(PRECISION_MODES)}; give --option precision_mode=NAME")
    if command.log not in LOGS:
        refuse("log", command.log, f"known are {', '.join(LOGS)}; give --option log=NAME")


def input_format(network: Network) -> str:
    """NCHW where every input has four dimensions, else ND."""
    return "NCHW" if all(len(network.tensors[n].shape) == 4 for n in network.inputs) else "ND"


def keep_text(nodes: Sequence[str]) -> str:
    """keep_dtype.cfg: operators that keep the precision of the original model."""
    return "".join(f"{name}\n" for name in nodes)


def read_keep(text: str) -> tuple[str, ...]:
    return tuple(line.strip() for line in text.splitlines() if line.strip())


@dataclass(frozen=True)
class Dtypes:
    """Of one operator, in order."""

    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


def customize_text(rows: Sequence[Dtypes]) -> str:
    """customize_dtypes.cfg"""
    return "".join(f"{r.name}::InputDtype:{','.join(r.inputs)},OutputDtype:{','.join(r.outputs)}\n" for r in rows)


def read_customize(text: str) -> tuple[Dtypes, ...]:
    """Raises ToolError that names the line, for one that the grammar does not allow."""
    found = []
    for number, line in enumerate(text.splitlines(), 1):
        match = _LINE.fullmatch(line)
        if match is None:
            raise ToolError(f"customize_dtypes.cfg, line {number}: {line!r} is not Opname::InputDtype:TYPES,OutputDtype:TYPES")
        inputs, outputs = (tuple(match[k].split(",")) for k in ("inputs", "outputs"))
        if bad := [t for t in (*inputs, *outputs) if t not in DTYPES.values()]:
            raise ToolError(f"customize_dtypes.cfg, line {number}: {bad[0]!r} is no data type; known are {', '.join(DTYPES.values())}")
        found.append(Dtypes(match["name"], inputs, outputs))
    return tuple(found)
