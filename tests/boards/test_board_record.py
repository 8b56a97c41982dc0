"""A measurement's figures, when it should not be believed, and its file."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from qbench.board import Measurement
from qbench.errors import InputError


def made(samples: Any, **kwargs: Any) -> Measurement:
    return Measurement("local://", "net.onnx", "onnxruntime 1", {"cores": "2"}, 10.0, 5.0, tuple(float(s) for s in samples), **kwargs)


STEADY = [1.0 + 0.01 * (i % 7) for i in range(60)]


@given(st.lists(st.floats(0.01, 1e3), min_size=1, max_size=80))
def test_percentiles_agree_with_numpy_and_survive_the_file(samples: list[float]) -> None:
    found = made(samples)
    assert found.latency_ms == pytest.approx(float(np.median(samples)))
    assert found.percentile(90) == pytest.approx(float(np.quantile(samples, 0.9)))
    assert found.error_ms >= 0.0
    assert Measurement.from_dict(json.loads(json.dumps(found.to_dict())), "test") == found


def test_a_steady_one_is_believed_and_others_say_why_not() -> None:
    assert made(STEADY).unstable == ()
    assert "only 10 timed runs" in made(STEADY[:10]).unstable[0]
    assert "unsteady" in made([1.0, 1.0, 1.0, 2.0, 2.0] * 12).unstable[0]
    assert "drifting: the last third takes 1.2" in made([1.0] * 20 + [1.1] * 20 + [1.2] * 20).unstable[0]
    moved = made(STEADY, clocks_hz={"fdab0000.npu": (1e9, 8e8)})
    assert moved.unstable == ("clock fdab0000.npu moved from 1000 to 800 MHz: fix it (governor userspace or performance)",)


def test_energy_needs_a_meter() -> None:
    assert made(STEADY).energy_mj is None
    assert made([2.0] * 30, power_w=3.0).energy_mj == pytest.approx(6.0)


def test_the_error_of_the_median_shrinks_with_more_runs_of_the_same_kind() -> None:
    rng = np.random.default_rng(0)
    few, many = (np.median([made(1.0 + 0.05 * rng.random(n)).error_ms for _ in range(30)]) for n in (40, 4000))
    assert many < 0.3 * few


@pytest.mark.parametrize("change", [{"samples_ms": []}, {"samples_ms": ["a"]}, {"samples_ms": [0.0]}, {"runtime": None, "facts": None, "samples_ms": None}])
def test_a_broken_file_is_refused_with_its_name(change: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=r"lost\.json"):
        Measurement.from_dict(made(STEADY).to_dict() | change, "lost.json")
    with pytest.raises(InputError, match=r"lost\.json is not a stored measurement"):
        Measurement.from_dict({"board": "x"}, "lost.json")


def test_saving_leaves_no_half_file(tmp_path: Path) -> None:
    made(STEADY).save(tmp_path / "m.json")
    assert [p.name for p in tmp_path.iterdir()] == ["m.json"]
    assert dataclasses.replace(made(STEADY), when="x") != made(STEADY)
