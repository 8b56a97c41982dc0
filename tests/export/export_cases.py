"""Jobs for the tests of exporters: three convolutions and an Add, and a stand-in exporter whose artefact is a Q/DQ file."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import models
import numpy as np
import onnx
import onnx_ir as ir

from qbench import qdq
from qbench.export import QDQ, Contents, Job, Produced, planned, read_qdq
from qbench.network import Precision
from qbench.plan import Granularity, make_plan
from qbench.protocols import Progress
from qbench.target import QuantScheme
from qbench.targets import load

TARGET = load("rk3588")
SCHEMES: Mapping[str, QuantScheme] = {str(p.precision): p.scheme for p in TARGET.precisions if p.scheme is not None}


def three_convs() -> onnx.ModelProto:
    """Conv a + Relu, Conv b + Relu, Conv c, Add of a's and c's results; weights N(0, 0.3), seeded."""
    rng = np.random.default_rng(3)

    def w(*shape: int) -> models.Array:
        return rng.normal(0.0, 0.3, shape).astype(np.float32)

    weights = {"wa": w(8, 3, 3, 3), "ba": w(8), "wb": w(8, 8, 3, 3), "bb": w(8), "wc": w(8, 8, 1, 1), "bc": w(8)}
    nodes = [models.node("Conv", ["x", "wa", "ba"], ["a0"], "a", pads=[1, 1, 1, 1], strides=[2, 2]), models.node("Relu", ["a0"], ["a1"], "relu_a"),
             models.node("Conv", ["a1", "wb", "bb"], ["b0"], "b", pads=[1, 1, 1, 1]), models.node("Relu", ["b0"], ["b1"], "relu_b"),
             models.node("Conv", ["b1", "wc", "bc"], ["c0"], "c"), models.node("Add", ["a1", "c0"], ["y"], "add")]
    return models.model(nodes, {"x": ["N", 3, 16, 16]}, {"y": ["N", 8, 8, 8]}, weights)


def job(precision: Mapping[str, str] | None = None, proto: onnx.ModelProto | None = None, samples: int = 4, schemes: Mapping[str, QuantScheme] = SCHEMES) -> Job:
    """`precision`: unit -> precision, INT8 where it says nothing."""
    prepared = models.prepare(proto or three_convs())
    rng = np.random.default_rng(5)
    feeds = tuple({name: rng.normal(0.0, 1.0, prepared.network.tensors[name].shape).astype(np.float32) for name in prepared.network.inputs} for _ in range(samples))
    chosen = {u.name: Precision((precision or {}).get(u.name, "int8")) for u in prepared.network.units}
    plan = make_plan(prepared.network, chosen, models.observe(prepared, feeds), schemes, calibrator="minmax", granularity=Granularity.PER_CHANNEL,
                     target=TARGET.name, toolkit="2.5.0")
    written = qdq.write(prepared, plan)
    return Job(prepared, plan, written, planned(prepared, plan, written, TARGET), TARGET, "2.5.0", feeds)


@dataclass(frozen=True)
class StandIn:
    """A labelled stand-in, no vendor's: its artefact is the Q/DQ file; `spoil` changes what is read back."""

    spoil: Callable[[Contents], Contents] = lambda found: found
    board_code: str = ""
    name: str = "stand-in"
    title: str = "stand-in of the tests"
    toolchain: str = ""

    def check(self, job: Job) -> None:
        pass

    def write(self, job: Job, folder: Path, progress: Progress) -> Produced:
        actual = read_qdq(ir.load(folder / QDQ), job.prepared, job.written, job.demanded)
        return Produced(True, {}, self.spoil(actual), versions={"toolchain": "stand-in 1.0"}, board_code=self.board_code)


def with_scale(found: Contents, key: str, factor: float) -> Contents:
    old = found.tensors[key]
    return dataclasses.replace(found, tensors={**found.tensors, key: dataclasses.replace(old, scale=tuple(s * factor for s in old.scale))})


def with_layer(found: Contents, name: str, **changes: object) -> Contents:
    return dataclasses.replace(found, layers={**found.layers, name: dataclasses.replace(found.layers[name], **changes)})  # type: ignore[arg-type]
