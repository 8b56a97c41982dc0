"""What the log of a verbose rknn-toolkit2 build says: layers with cycles, placed tensors, memory, and which nodes became which."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

SHAPES = r"(?:\\|\([\d,]*\)(?:,\([\d,]*\))*(?:,\.\.\.)?)"
LAYER = re.compile(rf"^(\d+)\s+(\S+)\s+(\S+)\s+(NPU|CPU|GPU)\s+({SHAPES})\s+({SHAPES})\s+(\d+)/(\d+)/(\d+)\s+(\d+)\s*(.*?)\s*$")
TENSOR = re.compile(r"^(\d+)\s+(\S+)\s+(.+?)\s+(\S+)\s+(\S+)\s+(\([\d,]*\))\s+(\([\d,]*\))\s+\|\s*(0x[0-9a-f]+)[ *](0x[0-9a-f]+)\s+(0x[0-9a-f]+)")
NOISE = re.compile(r"\x1b\[[\d;]*m|^[A-Z] RKNN: \[[\d:.]+\] ?", re.MULTILINE)
MEMORY = {"internal_kb": re.compile(r"Total Internal Memory Size: ([\d.]+)KB"), "weight_kb": re.compile(r"Total Weight Memory Size: ([\d.]+)KB")}
DROPPED = re.compile(r"^D\s+(\w+): remove node = (\[[^]]*\])$")
ANALYSED = re.compile(r"^\[(\w+)\] (\S+)\s+([\d.]+) \| ([\d.]+)\s+([\d.]+) \| ([\d.]+)")
REWRITTEN = re.compile(r"^D\s+\w+: remove node = (\[.*?\]), add node = (\[.*\])$")


@dataclass(frozen=True, slots=True)
class PlacedTensor:
    """One line of the toolkit's feature table: a tensor and where it lies. reader   index of the layer that reads it"""

    reader: int
    name: str
    dtype: str
    shape: str
    native_shape: str
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Build:
    """What the log of one build says: layers as rows of COLUMNS (without platform, graph and mode), memory, tensors."""

    layers: tuple[dict[str, str], ...]
    tensors: tuple[PlacedTensor, ...]

    @property
    def total_cycles(self) -> int:
        return sum(int(row["total_cycles"]) for row in self.layers)


def lines(text: str) -> list[str]:
    """Lines of a log without colours, time stamps and progress bars."""
    return [line.rstrip() for line in NOISE.sub("", text.replace("\r", "\n")).split("\n")]


def parse(text: str) -> Build:
    """The tables of one verbose build. Raises ValueError when the log holds no layer table or no memory sizes."""
    body = lines(text)
    names = ("id", "op", "dtype", "target", "in_shape", "out_shape", "ddr_cycles", "npu_cycles", "total_cycles", "rw_kb", "name")
    layers = [dict(zip(names, m.groups(), strict=True)) for line in body if (m := LAYER.match(line))]
    found = {key: m.group(1) for key, pattern in MEMORY.items() for line in body if (m := pattern.search(line))}
    if not layers or len(found) < len(MEMORY):
        raise ValueError("the log holds no 'Network Layer Information Table' with memory sizes; build with RKNN(verbose=True)")
    tensors = []
    for line in body:
        if m := TENSOR.match(line):
            tensors.append(PlacedTensor(int(m[1]), m[3], m[4], m[6], m[7], int(m[8], 16), int(m[9], 16)))
    return Build(tuple(row | found for row in layers), tuple(tensors))


def rewrites(text: str) -> Mapping[str, tuple[str, ...]]:
    """Node of the model -> nodes that the toolkit's optimizer put in its place, through all its passes."""
    found: dict[str, tuple[str, ...]] = {}
    for line in lines(text):
        if m := REWRITTEN.match(line):
            gone, came = (tuple(str(n) for n in ast.literal_eval(t)) for t in m.groups())
            for name, now in found.items():
                if set(now) & set(gone):
                    found[name] = tuple(dict.fromkeys((*(n for n in now if n not in gone), *came)))
            for name in gone:
                found.setdefault(name, came)
    return found


def folded(text: str) -> Mapping[str, str]:
    """Node of the model that the toolkit's optimizer worked into its neighbours -> name of the pass that did it."""
    return {str(node): m[1] for line in lines(text) if (m := DROPPED.match(line)) for node in ast.literal_eval(m[2])}


def analysed(text: str) -> tuple[dict[str, str | float], ...]:
    """The table of `accuracy_analysis`, a row a layer: cosine and Euclidean distance from float, accumulated ("entire") and of the layer alone ("single").

    Layers that the toolkit gives no numbers, a convolution before its own Relu, are left out.
    """
    names = ("entire_cos", "entire_euclidean", "single_cos", "single_euclidean")
    return tuple({"op": m[1], "name": m[2], **dict(zip(names, map(float, m.groups()[2:]), strict=True))} for line in lines(text) if (m := ANALYSED.match(line)))


def analysis_in(place: Path) -> tuple[dict[str, str | float], ...]:
    """The table in the folder where the worker ran; empty where there is none."""
    path = place / "snapshot" / "error_analysis.txt"
    return analysed(path.read_text(encoding="utf-8", errors="replace")) if path.is_file() else ()
