"""Contract of every target file that ships, and the facts of rk3588 that rest on public tables."""

from __future__ import annotations

import re
import tomllib

import pytest

from qbench.cost import cost_model
from qbench.errors import PrecisionUnavailable, TargetError, UnknownName
from qbench.fixed import STYLES
from qbench.network import Precision
from qbench.targets import aliases, load, names
from qbench.targets.loader import FOLDER

INT8, INT16, FP16, FP32 = Precision.INT8, Precision.INT16, Precision.FP16, Precision.FP32


@pytest.mark.parametrize("name", names())
def test_contract(name: str) -> None:
    t = load(name)
    assert t.name == name and t.title
    clocks = [p.clock_hz for p in t.operating_points]
    assert clocks == sorted(set(clocks))
    volts = [p.volts for p in t.operating_points if p.volts is not None]
    assert volts == sorted(volts)                                  # a faster point never needs a lower supply
    assert 0 < t.latency_factor_low <= 1 <= t.latency_factor_high
    assert any(p.is_float for v in t.toolkits for p in t.available(v)) and all(INT8 in t.available(v) for v in t.toolkits)
    for p in t.precisions:
        assert p.source and p.macs_per_cycle > 0
        assert (p.scheme is None) == p.precision.is_float
        if p.scheme is not None:
            assert p.scheme.activation.bits == p.scheme.weight.bits == 8 * p.precision.activation_bytes
            assert p.scheme.weight.symmetric                       # a weight zero point costs the array a correction term
    assert all(t.sources.get(f"cost.{key}") for key in t.cost)
    assert all((t.provenance.fitted_on, t.provenance.validated_on, t.provenance.interval, t.sources["operating_points"]))
    assert t.fixed_outputs in STYLES and (not t.fixed_outputs or t.sources["fixed_outputs"])
    cost_model(t)


@pytest.mark.parametrize("name", names())
def test_operating_points_are_named_after_their_clock(name: str) -> None:
    for p in load(name).operating_points:
        assert p.name == f"{p.clock_hz / 1e6:g}MHz"


def test_aliases_lead_to_targets() -> None:
    assert load("rk3588s") is load("rk3588")
    assert set(aliases().values()) <= set(names()) and not set(aliases()) & set(names())
    with pytest.raises(UnknownName, match=r"no target 'rk3599'; known: host, rk3588, cpu, rk3588s"):
        load("rk3599")


def test_rk3588_points_are_the_kernels_table() -> None:
    """rk3588s.dtsi, npu_opp_table, bin L0; f V^2 of 300 MHz is 0.20 of the top point."""
    points = {p.name: p.volts for p in load("rk3588").operating_points}
    assert points == {"300MHz": 0.7, "400MHz": 0.7, "500MHz": 0.7, "600MHz": 0.7, "700MHz": 0.7, "800MHz": 0.75, "900MHz": 0.8, "1000MHz": 0.85}
    assert load("rk3588").operating_point(None).name == "1000MHz"
    with pytest.raises(TargetError, match="no operating point '1200MHz'"):
        load("rk3588").operating_point("1200MHz")


def test_b24_rk3588_precisions_follow_the_toolkit() -> None:
    t = load("rk3588")
    assert t.available("2.3.2") == (INT8, FP16) and t.available("2.5.0") == t.available() == (INT8, INT16, FP16)
    with pytest.raises(PrecisionUnavailable, match=r"2\.3\.2.*lists no 16-bit integer.*offered by 2\.5\.0; source: rknn-toolkit2 2\.5\.0"):
        t.support(INT16, "2.3.2")
    assert "not verified on silicon" in t.support(INT16, "2.5.0").note
    assert t.support(INT16).macs_per_cycle == t.support(FP16).macs_per_cycle == t.support(INT8).macs_per_cycle / 2 == 512
    with pytest.raises(PrecisionUnavailable, match="rk3588 has no fp32; it offers int8, int16, fp16"):
        t.support(FP32)
    with pytest.raises(TargetError, match=r"no toolkit '1\.6\.0'; known: 2\.3\.2, 2\.5\.0"):
        t.support(INT8, "1.6.0")


def test_rk3588_schemes() -> None:
    int8, int16 = (load("rk3588").support(p).scheme for p in (INT8, INT16))
    assert int8 is not None and int16 is not None
    assert (int8.activation.qmin, int8.activation.qmax, int8.activation.symmetric) == (0, 255, False)
    assert (int8.weight.qmin, int8.weight.qmax, int8.weight_per_channel, int8.bias_bits) == (-127, 127, True, 32)
    assert (int16.activation.qmin, int16.activation.qmax) == (-32767, 32767)
    assert int16.activation.symmetric and int16.activation.power_of_two


def test_rk3588_says_what_is_not_validated() -> None:
    t = load("rk3588")
    assert t.power_is_relative
    assert re.search(r"FP16.*clocks below 1000 MHz.*energy: formulas only", t.provenance.validated_on)
    assert "family" in t.provenance.interval


def test_the_host_stores_softmax_as_onnxruntime_does() -> None:
    assert load("host").fixed_outputs == "unit" and "18589" in load("host").sources["fixed_outputs"]


def test_host_offers_no_fp16_and_owns_up_to_its_constants() -> None:
    t = load("host")
    assert t.available() == (INT8, FP32)
    assert t.provenance.validated_on == "unvalidated" and "generic" in t.title


@pytest.mark.parametrize("name", names())
def test_no_number_stands_without_a_source(name: str) -> None:
    body = tomllib.loads((FOLDER / f"{name}.toml").read_text())
    assert all(isinstance(v["source"], str) and len(v["source"]) > 10 for v in body["cost"].values())
