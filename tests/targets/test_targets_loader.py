"""What the loader refuses: file, key, value and expectation are in the message."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from qbench.errors import TargetError
from qbench.targets import load, load_file
from qbench.targets.loader import FOLDER

TEXT = (FOLDER / "rk3588.toml").read_text()


def changed(old: str, new: str) -> Callable[[Path], Path]:
    assert old in TEXT

    def write(folder: Path) -> Path:
        path = folder / "rk3588.toml"
        path.write_text(TEXT.replace(old, new, 1))
        return path
    return write


def test_an_unchanged_copy_loads_as_the_shipped_target(tmp_path: Path) -> None:
    assert load_file(changed("volts", "volts")(tmp_path)) == load("rk3588")


@pytest.mark.parametrize(("old", "new", "message"), [
    ("volts = 0.850", "volts = 850", r"operating_points\[7\]\.volts is 850; expected a number 0\.4 to 1\.5\. Millivolts by mistake\?"),
    ("volts = 0.850", 'volts = "0.85"', r"operating_points\[7\]\.volts is '0\.85'; expected a number"),
    ("volts = 0.850", "volts = nan", r"operating_points\[7\]\.volts is nan"),
    ("clock_hz = 1000e6", "clock_hz = 1000", r"operating_points\[7\]\.clock_hz is 1000; expected a number 1e\+06 to 1e\+10 hertz\. Megahertz by mistake\?"),
    ("clock_hz = 400e6", "clock_hz = 200e6", r"operating_points\[1\]\.clock_hz is 200000000\.0; expected more than 3e\+08"),
    ('name = "400MHz"', 'name = "300MHz"', r"operating_points\[1\]\.name is '300MHz'; expected a name that no point before it has"),
    ("macs_per_cycle = 1024", "macs_per_cycle = 0", r"precisions\[0\]\.macs_per_cycle is 0; expected a number 0\.001"),
    ("macs_per_cycle = 1024", "macs_per_second = 1024", r"precisions\[0\]\.macs_per_second is 1024; this key is unknown here"),
    ('precision = "int16"', 'precision = "int8"', r"precisions\[1\]\.precision is 'int8'; expected one of int8, int16, fp16, fp32, each at most once"),
    ('precision = "fp16"', 'precision = "bf16"', r"precisions\[2\]\.precision is 'bf16'"),
    ('toolkits = ["2.5.0"]', 'toolkits = ["2.6.0"]', r"precisions\[1\]\.toolkits is \['2\.6\.0'\]; expected versions out of 2\.3\.2, 2\.5\.0"),
    ('refused = "the API', 'note2 = "the API', r"precisions\[1\]\.note2 is .* unknown here"),
    ("bias_bits = 32", "bias_bits = true", r"precisions\[0\]\.scheme\.bias_bits is True"),
    ("bits = 8,", "bits = 8.5,", r"precisions\[0\]\.scheme\.activation\.bits is 8\.5; expected a whole number"),
    ("signed = false, ", "", r"precisions\[0\]\.scheme\.activation\.signed is missing; expected true or false"),
    ('toolkits = ["2.3.2", "2.5.0"]', "toolkits = []", r"toolkits is \[\]; expected at least one version"),
    ('name = "rk3588"', 'name = "rk3576"', r"name is 'rk3576'; expected 'rk3588', the name of the file"),
    ('cost_model = "npu"', 'cost_model = "gpu"', r"cost_model is 'gpu'; expected one of host, mcu, npu"),
    ("power_is_relative = true", "power_is_relative = 1", r"power_is_relative is 1; expected true or false"),
    ("atom_bytes = { value = 16,", "atom_bytes = { value = 0,", r"cost\.atom_bytes is 0\.0; expected a finite number, above 0"),
    ("atom_bytes = { value = 16,", "atom_bytes = { valu = 16,", r"cost\.atom_bytes\.valu is 16; this key is unknown here"),
    ("atom_bytes = {", "atom_size = {", r"cost\.atom_size is not a constant of the 'npu' model"),
    ("raw_input_channels = { value = 4, source = ", "raw_input_channels = { value = 4, sourced = ", r"cost\.raw_input_channels\.sourced"),
    ("charge_edges = { value = 0,", "charge_edges = { value = -1,", r"cost\.charge_edges\.value is -1; expected a number 0"),
    ('interval = "80', 'gap = "80', r"provenance\.gap is .* unknown here, expected one of fitted_on, validated_on, interval"),
    ("cpu_ops_source = ", "# cpu_ops_source = ", r"cpu_ops_source is missing; expected text"),
    ("title = ", "title = 3 # ", r"title is 3; expected text"),
    ('cost_model = "npu"', 'cost_model = "npu"\nfixed_outputs = "closed"', r"fixed_outputs is 'closed'; expected one of unit, half-open, or no such key"),
    ('cost_model = "npu"', 'cost_model = "npu"\nfixed_outputs = "unit"', r"fixed_outputs_source is missing; expected text"),
    ("bias_bits = 32", "bias_bits = 32.5", r"precisions\[0\]\.scheme\.bias_bits is 32\.5; expected a whole number"),
    ("bias_bits = 32", "bias_bits = 32\nweight_block = 1", r"precisions\[0\]\.scheme\.weight_block is 1; expected a number 2 to 4096"),
    ("bias_bits = 32", "bias_bits = 32\nweight_block = 16.5", r"weight_block is 16\.5; expected a whole number"),
    ("name = ", "name = = ", r"is not TOML"),
])
def test_refusals_name_key_value_and_expectation(tmp_path: Path, old: str, new: str, message: str) -> None:
    with pytest.raises(TargetError, match=message) as refused:
        load_file(changed(old, new)(tmp_path))
    assert "rk3588.toml" in str(refused.value)


def test_optional_keys_of_a_scheme_and_of_fixed_outputs(tmp_path: Path) -> None:
    t = load("rk3588")
    assert t.fixed_outputs == "" and all(p.scheme is None or p.scheme.weight_block == 0 for p in t.precisions)
    blocked = load_file(changed("bias_bits = 32", "bias_bits = 32\nweight_block = 32")(tmp_path)).precisions[0].scheme
    assert blocked is not None and blocked.weight_block == 32
    fixed = load_file(changed('cost_model = "npu"', 'cost_model = "npu"\nfixed_outputs = "half-open"\nfixed_outputs_source = "its manual"')(tmp_path))
    assert fixed.fixed_outputs == "half-open" and fixed.sources["fixed_outputs"] == "its manual"


@pytest.mark.parametrize("factor", ["latency_factor_low = 1.2", "latency_factor_low = 0.0", "latency_factor_high = 0.9"])
def test_the_interval_holds_the_prediction(tmp_path: Path, factor: str) -> None:
    key = factor.split(" = ")[0]
    line = next(x for x in TEXT.splitlines() if x.startswith(key))
    with pytest.raises(TargetError, match=rf"{key} is .*it multiplies the prediction"):
        load_file(changed(line, factor)(tmp_path))


def test_a_limited_precision_owes_a_reason(tmp_path: Path) -> None:
    line = next(x for x in TEXT.splitlines() if x.startswith("refused = "))
    with pytest.raises(TargetError, match=r"precisions\[1\]\.refused is missing; expected text"):
        load_file(changed(line, "")(tmp_path))


def test_a_chip_without_a_float_precision_and_a_broken_alignment_are_refused(tmp_path: Path) -> None:
    start = TEXT.index('[[precisions]]\nprecision = "fp16"')
    end = TEXT.index("\n\n", start)
    (tmp_path / "rk3588.toml").write_text(TEXT[:start] + TEXT[end:], encoding="utf-8")
    with pytest.raises(TargetError, match=r"rk3588\.toml: precisions holds int8, int16; expected a float one among them, fp16 or fp32"):
        load_file(tmp_path / "rk3588.toml")
    with pytest.raises(TargetError, match=r"layout\.channel_align_bytes\.value is 16\.5; expected a whole number"):
        load_file(changed("channel_align_bytes = { value = 16,", "channel_align_bytes = { value = 16.5,")(tmp_path))


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(TargetError, match=r"mine\.toml: cannot be read"):
        load_file(tmp_path / "mine.toml")


def test_unknown_top_level_key(tmp_path: Path) -> None:
    with pytest.raises(TargetError, match=r"colour is 'red'; this key is unknown here, expected one of name, title"):
        load_file(changed('name = "rk3588"', 'colour = "red"\nname = "rk3588"')(tmp_path))
