"""Contract of every target file that ships, and the facts of rk3588 that rest on public tables."""

from __future__ import annotations

import re

import pytest

from qbench.cost import cost_model
from qbench.errors import PrecisionUnavailable, TargetError, UnknownName
from qbench.fixed import STYLES
from qbench.network import Precision
from qbench.targets import aliases, load, names

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
            assert p.scheme.activation.bits == 8 * p.precision.activation_bytes >= p.scheme.weight.bits    # w8a16 is an INT16
            assert p.scheme.weight.symmetric                       # a weight zero point costs the array a correction term
    assert all(t.sources.get(f"cost.{key}") for key in t.cost)
    assert all((t.provenance.fitted_on, t.provenance.validated_on, t.provenance.interval, t.sources["operating_points"]))
    assert t.fixed_outputs in STYLES and (not t.fixed_outputs or t.sources["fixed_outputs"])
    cost_model(t)


@pytest.mark.parametrize("name", names())
def test_operating_points_are_named_after_their_clock(name: str) -> None:
    t = load(name)
    for p in t.operating_points:
        assert p.name == f"{p.clock_hz / 1e6:g}MHz" or (p.clock_hz == 1e9 and "no public clock" in t.sources["operating_points"])


def test_aliases_lead_to_targets() -> None:
    assert load("rk3588s") is load("rk3588")
    assert set(aliases().values()) <= set(names()) and not set(aliases()) & set(names())
    with pytest.raises(UnknownName, match=r"no target 'rk3599'; known: ane-a16, .*host.* rk3588, .*cpu.*rk3588s"):
        load("rk3599")


def test_every_target_that_the_command_line_promises_is_there() -> None:
    """DESIGN, section 9."""
    assert set(names()) == {
        "rk3588", "rk3576", "rk3566", "rk3562", "ascend310", "ascend310p", "mlu370-s4", "mlu370-x4", "mlu220", "mlu270", "mediatek-apu",
        "hexagon-qcs6490", "hexagon-8gen1", "hexagon-8gen2", "hexagon-8gen3", "hexagon-8elite", "hexagon-8elite5", "hexagon-xelite",
        "hexagon-qcs9075", "xdna", "xdna2", "ane-a16", "ane-a17pro", "ane-m1", "ane-m2", "stm32h7", "host", "article"}
    assert [load(a).name for a in ("hexagon", "ane", "cambricon", "ascend")] == ["hexagon-8gen3", "ane-a17pro", "mlu370-s4", "ascend310p"]


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


# A source names its year, or says what else the number is.
GROUNDS = re.compile(r"\b(19|20)\d\d\b|assumed|fitted|chosen|frozen|same\b|taken over|derived|not identified|no voltage|see |the rates|written and read"
                     r"|published latencies|operating point|Mesa|Intel|QuantizeLinear|gives no|C0 of|C0 = |has one|HMX|BANG|hollance|fp16 at|kept|article")


@pytest.mark.parametrize("name", names())
def test_no_number_stands_without_a_source(name: str) -> None:
    t = load(name)
    sources = {**t.sources, **{f"layout.{k}": v for k, v in t.layout.sources.items()}, **{f"facts.{k}": f.source for k, f in t.facts.items()},
               **{f"precisions.{p.precision}": p.source for p in t.precisions}}
    if t.operators is not None:
        sources["operators"] = t.operators.source
    assert set(sources) >= {f"cost.{key}" for key in t.cost}
    assert not {key: text for key, text in sources.items() if len(text) <= 10 or not GROUNDS.search(text)}


@pytest.mark.parametrize("name", names())
def test_what_was_not_held_out_has_a_wide_interval_and_says_so(name: str) -> None:
    t = load(name)
    if "unvalidated" in t.provenance.validated_on:
        assert t.latency_factor_high >= 2 and t.latency_factor_low <= 0.5
    else:
        assert re.search(r"leave one (design|family) out.*\d+ ?%", t.provenance.validated_on)
        assert t.latency_factor_low * t.latency_factor_high == pytest.approx(1.0, rel=0.01)
    assert "not validated" in t.provenance.validated_on or "unvalidated" in t.provenance.validated_on or "no public measurement" in t.provenance.validated_on


def test_refused_precisions_give_reason_and_source() -> None:
    with pytest.raises(PrecisionUnavailable, match=r"ascend310p has no int16; it offers int8, fp16 \(AMCT.*source: AMCT documents"):
        load("ascend").support(INT16)
    with pytest.raises(PrecisionUnavailable, match=r"hexagon-qcs6490 has no fp16.*V68"):
        load("hexagon-qcs6490").support(FP16)
    with pytest.raises(PrecisionUnavailable, match=r"2\.3\.2.*w8a16"):
        load("rk3562").support(INT16, "2.3.2")


def test_operator_support_is_unknown_without_a_public_table() -> None:
    assert load("mlu370-s4").operators is None and load("mlu370-s4").placement("Conv") == "unknown"
    assert load("xdna").placement("Conv") == load("mediatek-apu").placement("Conv") == "unknown"
    assert load("hexagon").placement("Conv") == load("ascend").placement("Conv") == "NPU"
    assert load("rk3588").placement("Floor") == "CPU"


def test_layouts_and_facts() -> None:
    assert load("ascend").layout.channel_align_bytes == 32 and load("mlu370-s4").layout.channel_align_bytes == 128
    assert load("xdna").layout.base_align_bytes == 4096 and load("host").layout.native is None
    assert load("mlu370-s4").facts["sram_bytes_per_cluster"].value == 4194304
    assert "unknown" in str(load("mediatek-apu").facts["dimensity_tops"].value)


def test_the_articles_profile_is_labelled() -> None:
    t = load("article")
    assert "unverified" in t.title and t.provenance.validated_on.startswith("unvalidated")
    assert all("article" in f.source for f in t.facts.values())
    assert [p.name for p in t.operating_points] == ["1000MHz", "1200MHz", "1600MHz"]
