"""Every operator that the workers of Core ML and LiteRT have a rule for, computed from what they wrote and held against onnxruntime."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import operator_networks
import pytest
from target_cases import job_for

from qbench.export import Job, export
from qbench.targets.exporters import coreml, make, mediatek
from qbench.toolchains import find, load

ALL = tuple(operator_networks.NETWORKS)
NEEDS = {"coreml": "ane-a17pro", "mediatek": "mediatek-apu"}


def case(name: str, exporter: str, precision: str) -> Any:
    missing = find(load(exporter)) is None
    return pytest.param(name, exporter, precision, marks=[pytest.mark.toolchain(exporter),
                                                          pytest.mark.skipif(missing, reason=f"needs {exporter}: qbench toolchain install {exporter}")])


def runs(wanted: Mapping[str, Sequence[str]]) -> Iterator[tuple[str, str]]:
    """(network, precision)"""
    yield from ((name, precision) for precision, chosen in wanted.items() for name in chosen)


def job(name: str, exporter: str, precision: str) -> Job:
    proto, target = operator_networks.NETWORKS[name], NEEDS[exporter]
    units = job_for(target, proto=proto).prepared.network.units
    return job_for(target, {u.name: precision for u in units if u.quantizable}, proto=proto)


@pytest.mark.parametrize(("name", "exporter", "precision"), [case(n, "coreml", p) for n, p in runs({"int8": ALL, "float": ("functions", "heads")})])
def test_a_package_computes_what_the_plan_with_float16_scales_computes(name: str, exporter: str, precision: str, tmp_path: Path) -> None:
    """Bit by bit in integers; in float up to the order of sums."""
    body = export(job(name, exporter, precision), make(exporter), tmp_path / "out")
    proof, _ = body["simulations"]
    assert proof["lsb"] == 0.0 if precision == "int8" else proof["sqnr_db"] is None or proof["sqnr_db"] > 80.0


@pytest.mark.parametrize(("name", "exporter", "precision"),
                         [case(n, "mediatek", p) for n, p in runs({"int8": ALL[:-1], "int16": ("windows", "elementwise", "heads", "shapes"), "float": ("windows", "shapes")})])
def test_litert_computes_what_the_plan_computes(name: str, exporter: str, precision: str, tmp_path: Path) -> None:
    """Within the rounding of its kernels: a step or three after ten layers. Its bilinear kernel counts positions in 1/1024, which int16 shows."""
    body = export(job(name, exporter, precision), make(exporter), tmp_path / "out")
    found, = body["simulations"]
    sqnr_db = found["sqnr_db"] or float("inf")
    if precision == "float":
        assert sqnr_db > 120.0
    elif precision == "int8":
        assert found["lsb"] <= 3.0
    else:
        assert sqnr_db > (40.0 if name == "shapes" else 75.0)


@pytest.mark.parametrize("exporter", [coreml, mediatek])
def test_the_networks_hold_every_operator_but_the_plain_ones(exporter: Any) -> None:
    """What they lack is one line of a table in the worker each."""
    held = {n.op_type for proto in operator_networks.NETWORKS.values() for n in proto.graph.node}
    plain = {"QuantizeLinear", "DequantizeLinear", "Pow", "Softsign", "Floor", "Ceil", "Sin", "Cos", "Identity", "Round", "Log", "Cast", "GlobalMaxPool", "ReduceSum", "ReduceMax",
             "ReduceMin", "ReduceProd", "ReduceL2", "Sum", "Flatten", "Squeeze", "Unsqueeze", "Gelu", "Expand", "DepthToSpace", "BatchNormalization"}
    assert exporter.OPERATORS - held <= plain
