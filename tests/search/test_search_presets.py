"""Presets: every shipped file, what the loader refuses, and the derivation recomputed by hand."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from qbench import targets
from qbench.cost import CostTable
from qbench.errors import BudgetError, PrecisionUnavailable, PresetError, UnknownName
from qbench.graph import load_network
from qbench.network import Precision
from qbench.protocols import Accuracy
from qbench.samples import load_sample
from qbench.search import preset as presets
from qbench.search.budget import Budget, Kind, MaxDrop
from qbench.search.derivation import Derivation, Given, derive
from qbench.search.problem import Goal
from qbench.target import PowerBasis, Target

RK3588 = targets.load("rk3588")
NETWORK = load_network(load_sample("fashion").model).network
TABLE = CostTable.build(NETWORK, RK3588)
DOOR, MEDICAL, DRIVER = (presets.load(n) for n in ("door-lock", "medical", "driver-monitor"))
IN_WATTS = replace(RK3588, power_is_relative=False, power=PowerBasis("board power", "two readings", "unvalidated", "none"))


def derived(preset: presets.Preset, target: Target = RK3588, given: Given | None = None) -> Derivation:
    return derive(preset, target, CostTable.build(NETWORK, target), given)


def line(found: Derivation, topic: str, holds: str = "") -> str:
    return next(text for t, text in found.lines if t == topic and holds in text)


# ------------------------------------------------------------------------------------------------ files


@pytest.mark.parametrize("name", presets.names())
def test_every_shipped_preset_is_derived_on_every_target_or_says_why_not(name: str) -> None:
    found = presets.load(name)
    assert found.name == name and len(found.key) == 16
    for target in map(targets.load, targets.names()):
        table = CostTable.build(NETWORK, target)
        try:
            d = derive(found, target, table)
        except PresetError as error:
            assert "offers" in str(error)
            continue
        assert d.precisions and set(d.precisions) <= set(target.available()) & set(found.precisions)
        assert d.operating_points and set(d.operating_points) <= {p.name for p in target.operating_points}
        said = "\n".join(d.texts)
        for p in target.operating_points:
            if p.name not in d.operating_points:
                assert re.search(rf"operating points: .*{re.escape(p.name)} is ruled out by", said), (name, target.name, p.name)
        for q in Precision:
            if q in (*found.precisions, *target.available()) and q not in d.precisions:
                assert f"{q} is ruled out" in said, (name, target.name, q)


def test_what_a_microcontroller_cannot_hold_is_said_and_watts_carry_their_interval() -> None:
    mcu = targets.load("stm32h7")
    small = replace(mcu, memory=replace(mcu.memory, ram_bytes=10_000, flash_bytes=None))
    assert "stm32h7 does not hold it" in line(derived(MEDICAL, small), "precisions", "int8 throughout") and "KB for its 10 KB of RAM" in derived(MEDICAL, small).texts[-2]
    roomy = replace(mcu, memory=replace(mcu.memory, ram_bytes=10 ** 9, flash_bytes=10 ** 9))
    assert "does not hold" not in "".join(derived(MEDICAL, roomy).texts)
    watts = targets.load("mlu370-s4")
    price = CostTable.build(NETWORK, watts).price(CostTable.build(NETWORK, watts).uniform(Precision.INT8)[None], watts.operating_points[-1].name)[0]
    assert watts.energy_factors is not None
    assert f"{price.energy_mj:.3g} mJ [{price.energy_mj * watts.energy_factors[0]:.3g}, " in line(derived(DOOR, watts), "precisions", "int8 throughout")


def test_the_four_products_are_there() -> None:
    assert presets.names() == ("door-lock", "driver-monitor", "medical", "wildlife-camera")
    with pytest.raises(UnknownName, match="no preset 'door'; known: door-lock, driver-monitor, medical, wildlife-camera, or the path"):
        presets.load("door")


WRONG: list[tuple[Callable[[dict[str, Any]], Any], str]] = [
    (lambda b: b.update(colour="red"), "colour is 'red'; this key is unknown here, expected one of name"),
    (lambda b: b["latency"].update(limit_s=1), "latency.limit_s is 1; this key is unknown here, expected one of limit_ms"),
    (lambda b: b["latency"].pop("why"), "latency.why is missing; expected text"),
    (lambda b: b["latency"].update(limit_ms=-3), "latency.limit_ms is -3; expected a number 0.001"),
    (lambda b: b["latency"].update(limit_ms=float("nan")), "latency.limit_ms is nan"),
    (lambda b: b["latency"].update(worst_case=1), "latency.worst_case is 1; expected true or false"),
    (lambda b: b["accuracy"].update(max_drop_percent=101), "accuracy.max_drop_percent is 101; expected a number 0 to 100 points"),
    (lambda b: b["battery"].update(usable_share=75), "battery.usable_share is 75; expected a number 0.01 to 1. Percent by mistake?"),
    (lambda b: b["battery"].update(volts=6000), "battery.volts is 6000; expected a number 0.5 to 1000. Millivolts by mistake?"),
    (lambda b: b["battery"].update(capacity_mah=2.5e-3), "battery.capacity_mah is 0.0025; expected a number 1 to 1e+06 mAh. Ah by mistake?"),
    (lambda b: b["battery"].update(capacity_mah=True), "battery.capacity_mah is True; expected a number"),
    (lambda b: b.pop("battery"), "battery is missing; expected [battery] and [event] together"),
    (lambda b: b.pop("event"), "event is missing; expected [battery] and [event] together"),
    (lambda b: b["event"].update(parts=[{"what": "x", "energy_j": 1}]), "event.parts[0].energy_j is 1; this key is unknown here"),
    (lambda b: b["event"].update(parts=3), "event.parts is 3; expected tables"),
    (lambda b: b["chip"].update(precisions=["int7"]), "chip.precisions is ['int7']; expected at least one of int8, int16, fp16, fp32"),
    (lambda b: b["chip"].update(precisions=[]), "chip.precisions is []; expected at least one"),
    (lambda b: b["chip"].update(operating_points=["a", "a"]), "expected a list of texts, none twice"),
    (lambda b: b.update(goal="speed"), "goal is 'speed'; expected one of accuracy, energy"),
    (lambda b: b.update(chip=3), "chip is 3; expected a table"),
]


@pytest.mark.parametrize(("spoil", "says"), WRONG, ids=[says[:40] for _, says in WRONG])
def test_what_is_wrong_in_a_file_is_named(spoil: Callable[[dict[str, Any]], Any], says: str, tmp_path: Path) -> None:
    body = tomllib.loads((presets.FOLDER / "door-lock.toml").read_text())
    spoil(body)
    path = tmp_path / "mine.toml"
    path.write_text(_toml(body))
    with pytest.raises(PresetError) as caught:
        presets.load(str(path))
    assert str(caught.value).startswith(f"{path}: ") and says in str(caught.value)


def _toml(body: dict[str, Any], at: str = "") -> str:
    """Enough TOML for a preset."""
    def value(v: Any) -> str:
        return str(v).lower() if isinstance(v, bool) else str(v) if isinstance(v, int | float) else repr(v)

    plain = "".join(f"{k} = {value(v)}\n" for k, v in body.items() if not isinstance(v, dict) and not (isinstance(v, list) and v and isinstance(v[0], dict)))
    rows = "".join(f"[[{at}{k}]]\n{_toml(r)}" for k, v in body.items() if isinstance(v, list) for r in v if isinstance(r, dict))
    return plain + rows + "".join(f"[{at}{k}]\n{_toml(v, f'{at}{k}.')}" for k, v in body.items() if isinstance(v, dict))


def test_a_file_of_ones_own_is_the_preset_it_copies(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text((presets.FOLDER / "door-lock.toml").read_text() + "# a remark\n")
    assert presets.load(str(path)) == DOOR
    path.write_text(path.read_text().replace("per_day = 30.0", "per_day = 31.0"))
    assert presets.load(str(path)).key != DOOR.key
    for broken, says in (("name = ", "is not TOML"), (None, "cannot be read")):
        if broken is None:
            path.unlink()
        else:
            path.write_text(broken)
        with pytest.raises(PresetError, match=says):
            presets.load(str(path))


# ------------------------------------------------------------------------------------------------ derivation


def test_the_battery_is_followed_to_the_inference() -> None:
    """By hand: 11,250 mWh over 182.625 days, a leak of 0.3 % a month, 120 uA at 6 V, 30 events, 4,000 mJ beside the network, 10 inferences."""
    leak = -np.log(0.997) * 6
    a_day = 2500 * 6 * 0.75 / 182.625 * leak / (np.exp(leak) - 1)
    left = a_day - 0.12 * 6 * 24
    one = (left * 3600 / 30 - 4000) / 10
    found = derived(DOOR, IN_WATTS)
    assert [t for t, _ in found.lines][:7] == ["battery", "standby", "standby", "event", "event", "inference", "energy"]
    energy = next(b for b in found.budgets if b.kind is Kind.ENERGY)
    assert energy.limit == pytest.approx(one, rel=1e-3) and not energy.worst
    for topic, number in (("standby", f"{a_day:.4g} mWh a day"), ("event", f"{left:.4g} mWh a day / 30 events"), ("inference", f"= {one:.4g} mJ")):
        assert line(found, topic, number)


def test_relative_joules_are_no_budget_and_the_line_says_so() -> None:
    found = derived(DOOR)
    assert {b.kind for b in found.budgets} == {Kind.LATENCY, Kind.MEMORY}
    assert "its joules only rank plans and cannot be held against this limit" in line(found, "energy")
    assert "the battery lasts" not in "".join(found.texts) and "the battery lasts" in "".join(derived(DOOR, IN_WATTS).texts)


def test_a_door_lock_prefers_the_low_voltage_and_int8_a_medical_device_does_not() -> None:
    door, medical = derived(DOOR), derived(MEDICAL)
    assert door.preset.goal is Goal.ENERGY and medical.preset.goal is Goal.ACCURACY
    assert door.operating_points[0] == "700MHz" and medical.operating_points[0] == "1000MHz"
    assert Precision.INT16 not in door.precisions and Precision.INT16 in medical.precisions
    assert door.max_drop is not None and medical.max_drop is not None and door.max_drop.limit > medical.max_drop.limit and medical.max_drop.worst
    assert next(b for b in medical.budgets if b.kind is Kind.LATENCY) == Budget(Kind.LATENCY, 20.0, worst=True)


def test_a_ruled_out_clock_costs_more_time_and_energy_for_every_plan() -> None:
    """300 to 600 MHz share the 0.70 V of 700 MHz: against all uniform and 200 random plans."""
    found = derived(DOOR)
    assert found.operating_points == ("700MHz", "800MHz", "900MHz", "1000MHz")
    rng = np.random.default_rng(0)
    codes = np.array([rng.choice(np.flatnonzero(row), 200) for row in TABLE.allowed]).T
    for slow in ("300MHz", "400MHz", "500MHz", "600MHz"):
        for a, b in zip(TABLE.price(codes, slow), TABLE.price(codes, "700MHz"), strict=True):
            assert a.latency_ms >= b.latency_ms and a.energy_mj >= b.energy_mj


def test_heat_leaves_the_slower_clocks() -> None:
    found = derived(DRIVER)
    assert set(found.operating_points) <= {"700MHz", "800MHz"} and "caps the clock at 800 MHz" in line(found, "heat")
    number = [t for t, _ in found.lines].index("heat") + 1
    assert f"1000MHz is ruled out by line {number}" in "".join(found.texts)
    unknown = replace(RK3588, thermal=None)
    assert "no public thermal rule" in line(derived(DRIVER, unknown), "heat") and "1000MHz" in derived(DRIVER, unknown).operating_points
    with pytest.raises(PresetError, match=r"every operating point of rk3588 that preset driver-monitor allows \(1000MHz\) is above the 800 MHz"):
        derived(replace(DRIVER, operating_points=("1000MHz",)))


def test_a_limit_that_nothing_keeps_leaves_all_to_the_search() -> None:
    found = derived(DOOR, given=Given(budgets=(Budget.parse("1us"),)))
    assert "none can keep the limits" in line(found, "operating points") and "(1us)" in line(found, "operating points")
    assert found.operating_points


def test_a_clock_that_is_too_slow_names_the_line() -> None:
    """At a limit between what 300 MHz and what 1000 MHz can do."""
    fast, slow = (min(p.latency_ms for p in TABLE.price(np.array([TABLE.uniform(Precision.INT8)]), o)) for o in ("1000MHz", "300MHz"))
    found = derived(MEDICAL, given=Given(budgets=(Budget(Kind.LATENCY, (fast + slow) / 2),)))
    number = [t for t, _ in found.lines].index("latency") + 1
    assert f"300MHz is ruled out by line {number}" in "".join(found.texts) and "1000MHz" in found.operating_points


# ------------------------------------------------------------------------------------------------ options win


def test_options_take_the_place_of_the_preset_and_the_lines_say_so() -> None:
    own = Given((Budget.parse("50ms"), Budget.parse("2W")), MaxDrop(0.03), None, ("max-class-drop",), (Precision.INT16,), ("300MHz",))
    found = derived(DOOR, given=own)
    assert {b.text for b in found.budgets} == {"50ms", "64MB", "2W"}
    assert (found.max_drop, found.max_class_drop, found.precisions, found.operating_points) == (MaxDrop(0.03), None, (Precision.INT16,), ("300MHz",))
    said = "\n".join(found.texts)
    for words in ("Replaced by --budget 50ms", "--budget 2W; the preset has no limit of this kind", "Replaced by --max-drop 0.03",
                  "Switched off by --max-class-drop none", "given by --precision instead of the preset's int8, fp16", "300MHz, given by --op-point"):
        assert words in said
    with pytest.raises(PrecisionUnavailable):
        derived(DOOR, given=Given(precisions=(Precision.FP32,)))


def test_without_a_class_floor_a_preset_takes_one_from_the_option() -> None:
    plain = replace(DOOR, floor=replace(DOOR.floor, max_class_drop=None))
    assert derived(plain).max_class_drop is None
    found = derived(plain, given=Given(max_class_drop=MaxDrop(0.01)))
    assert found.max_class_drop == MaxDrop(0.01) and "the preset has no max-class-drop. Replaced by --max-class-drop 0.01" in line(found, "worst class")


# ------------------------------------------------------------------------------------------------ contradictions


def test_a_product_that_cannot_be_is_refused_with_how_far_it_gets() -> None:
    assert DOOR.standby is not None and DOOR.event is not None
    awake = replace(DOOR, standby=replace(DOOR.standby, current_ua=5000.0))
    with pytest.raises(PresetError, match=r"standby alone \(5000 uA x 6 V x 24 h = 720 mWh a day\) empties the battery in 0.513 months, not 6"):
        derived(awake)
    busy = replace(DOOR, event=replace(DOOR.event, per_day=60.0))
    with pytest.raises(PresetError, match=r"an event may take 2626 mJ, and .* = 4000 mJ leave nothing for the network: the battery would last 4.37 months"):
        derived(busy)
    with pytest.raises(PresetError, match=r"preset door-lock allows fp32, and rk3588 with toolkit 2\.5\.0 offers int8, int16, fp16"):
        derived(replace(DOOR, precisions=(Precision.FP32,)))


@pytest.mark.parametrize(("text", "metric", "value", "told"), [("5", "top1", 0.9, True), ("1", "top1", 0.9, False), ("0.5%", "top1", 0.9, False), ("5", "sqnr", 31.0, False)])
def test_a_drop_that_limits_nothing_is_told(text: str, metric: str, value: float, told: bool) -> None:
    from qbench.workbench.presetting import loose

    reference = Accuracy(metric, value, value, value, 48, 0.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0)
    assert loose(MaxDrop.parse(text), reference) == ([f"max-drop 5 is in the metric's own unit, and {metric} is 0.9: that limits nothing. 5% are 5 points"] if told else [])


def test_two_budgets_of_a_kind_are_refused_before() -> None:
    from qbench.workbench.presetting import given

    with pytest.raises(BudgetError, match="two budgets for latency"):
        given(["20ms", "30fps", "40ms"])
    read = given(["20ms worst-case"], "none", "2%", ["int8"], ["700MHz"])
    assert read == Given((Budget(Kind.LATENCY, 20.0, True),), None, MaxDrop(0.02), ("max-drop",), (Precision.INT8,), ("700MHz",))
