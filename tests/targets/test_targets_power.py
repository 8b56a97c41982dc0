"""Keys of a target file about watts, voltage bins and throttling: what the loader takes and what it refuses."""

from __future__ import annotations

from pathlib import Path

import pytest

from qbench.errors import TargetError
from qbench.targets import load, load_file, names
from qbench.targets.loader import FOLDER

WITH_BINS, WITH_WATTS = "rk3588", "mlu370-s4"


def changed(name: str, old: str, new: str, folder: Path) -> Path:
    text = (FOLDER / f"{name}.toml").read_text()
    assert old in text
    path = folder / f"{name}.toml"
    path.write_text(text.replace(old, new, 1))
    return path


@pytest.mark.parametrize(("name", "old", "new", "message"), [
    (WITH_BINS, "L5 = [0.675,", "L5 = [675,", r"voltage_bins\.L5 is .*; expected 8 voltages of 0\.4 to 1\.5 that never fall, one per operating point"),
    (WITH_BINS, "L5 = [0.675,", "L5 = [", r"voltage_bins\.L5 is"),
    (WITH_BINS, "L5 = [0.675,", "L5 = [0.7,", r"voltage_bins\.L5 is .* never fall"),
    (WITH_BINS, "L0 = [0.7,", "L0 = [0.69,", r"voltage_bins\.L0 is .*; expected the voltages of operating_points, whose bin comes first"),
    (WITH_BINS, "voltage_bins_source = ", "# voltage_bins_source = ", r"voltage_bins_source is missing; expected text"),
    (WITH_BINS, "release_below_c = 80.0", "release_below_c = 85.0", r"thermal\.release_below_c is 85\.0; expected less than throttle_above_c, 85"),
    (WITH_BINS, "throttled_clock_hz = 800e6", "throttled_clock_hz = 800", r"thermal\.throttled_clock_hz is 800; .*Megahertz by mistake\?"),
    (WITH_BINS, "cold_min_volts = 0.75", "cold_min_volts = 750", r"thermal\.cold_min_volts is 750; .*Millivolts by mistake\?"),
    (WITH_BINS, "cold_below_c = 10.0", "frost_c = 10.0", r"thermal\.frost_c is 10\.0; this key is unknown here"),
    (WITH_BINS, "power_is_relative = true", "power_is_relative = false", r"power_is_relative is False; expected false beside a \[power\] table and cost\.base_watts"),
    (WITH_WATTS, "power_is_relative = false", "power_is_relative = true", r"power_is_relative is True; expected false beside"),
    (WITH_WATTS, "base_watts = { value", "leakage_amperes = { value", r"power_is_relative is False; expected false beside a \[power\] table and cost\.base_watts"),
    (WITH_WATTS, 'what = "board power', 'whose = "board power', r"power\.whose is .* unknown here, expected one of what, factor_low"),
])
def test_refusals_name_key_value_and_expectation(tmp_path: Path, name: str, old: str, new: str, message: str) -> None:
    with pytest.raises(TargetError, match=message):
        load_file(changed(name, old, new, tmp_path))


@pytest.mark.parametrize("factor", ["factor_low = 1.2", "factor_high = 0.9"])
def test_the_interval_of_power_holds_the_prediction(tmp_path: Path, factor: str) -> None:
    line = next(x for x in (FOLDER / f"{WITH_WATTS}.toml").read_text().splitlines() if x.startswith(factor.split(" = ")[0]))
    with pytest.raises(TargetError, match=rf"power\.{factor.split(' = ')[0]} is .*it multiplies the prediction"):
        load_file(changed(WITH_WATTS, line, factor, tmp_path))


@pytest.mark.parametrize("name", names())
def test_watts_are_relative_or_rest_on_something(name: str) -> None:
    t = load(name)
    if t.power_is_relative:
        assert t.power is None and t.energy_factors is None
    else:
        assert t.power is not None and "idle included" in t.power.what and t.cost["base_watts"] > 0.0
        assert t.cost["static_share"] == 0.0                       # or it would be counted twice
        assert len(t.power.validated_on) > 20 and t.energy_factors is not None


def test_rk3588_thermal_rule_and_sibling_points() -> None:
    """Golden: RK3588 npu_opp_table of the BSP kernel (2023)."""
    t = load("rk3588")
    assert t.thermal is not None
    assert (t.thermal.throttle_above_c, t.thermal.release_below_c, t.thermal.throttled_clock_hz) == (85.0, 80.0, 800e6)
    assert (t.thermal.cold_below_c, t.thermal.cold_min_volts) == (10.0, 0.75)
    assert any(p.clock_hz == t.thermal.throttled_clock_hz for p in t.operating_points)
    assert "950 MHz at 0.8375 V (L0)" in str(t.facts["rk3588j_m_points"].value)
    assert t.voltage_bins["L2"] == (0.675, 0.675, 0.675, 0.675, 0.7, 0.7375, 0.775, 0.825)


@pytest.mark.parametrize("name", [n for n in names() if load(n).power is not None])
def test_published_watts_are_not_called_unvalidated_by_what_was_fitted_on_latencies(name: str) -> None:
    assert "energy: formulas only" not in load(name).provenance.validated_on and "published board watts" in load(name).provenance.validated_on
