"""Faults that are really built into a board, its inputs, its artefact or its buffers; each must get its own name (BUG case B28), the healthy ones none."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import fake_board
import numpy as np
import onnxruntime as ort
import pytest
from lab import MEAN, SHIFTS, STD, Array, Lab, build, pictures
from typer.testing import CliRunner

from qbench.cli.app import app
from qbench.diagnosis import Cause, Diagnosis, Stage
from qbench.errors import DataError
from qbench.network import Precision
from qbench.plan import Granularity
from qbench.runtime import Session
from qbench.workbench.diagnosing import latency_stage


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Lab:
    return build(tmp_path_factory.mktemp("lab"))


def lines(lab: Lab, old: bool) -> Array:
    """64-byte lines of the float32 output that were not written back: zeros, or the sample before."""
    y = np.ascontiguousarray(lab.board())
    made, rng = y.copy(), np.random.default_rng(3)
    for i in range(len(y)):
        for line in rng.choice(y[i].size // 16, 9, replace=False):
            made[i].reshape(-1)[line * 16:line * 16 + 16] = y[i - 1].reshape(-1)[line * 16:line * 16 + 16] if old and i else 0.0
    return made


def tail(lab: Lab) -> Array:
    """The last third of each output is still the sample before."""
    y = np.ascontiguousarray(lab.board())
    made = y.copy()
    for i in range(1, len(y)):
        made[i].reshape(-1)[320:] = y[i - 1].reshape(-1)[320:]
    return made


def with_nan(lab: Lab) -> Array:
    y = lab.board().copy()
    y[2, 1, 3] = np.nan
    return y


def as_int8(lab: Lab) -> Array:
    scale, zero = lab.scale()
    codes = (np.rint(lab.board() / scale) + zero).astype(np.uint8)
    return ((codes.view(np.int8).astype(np.float32) - zero) * scale).astype(np.float32)


def without_zero_point(lab: Lab) -> Array:
    scale, zero = lab.scale()
    return lab.board() + np.float32(zero * scale)


def other_range(lab: Lab) -> Array:
    """Another artefact: the compiler took 0.35 times the range of one tensor."""
    narrow = lab.folder / "narrow"
    narrow.mkdir(exist_ok=True)
    return build(narrow, ranges={"r0": 0.35}).board()


def float_network(lab: Lab) -> Array:
    return np.asarray(ort.InferenceSession(str(lab.folder / "net.onnx")).run(None, {"x": lab.x})[0])


def padded(x: Array) -> Array:
    """Rows of 12 values padded to 16, read as packed."""
    wide = np.pad(x, ((0, 0), (0, 0), (0, 0), (0, 4)))
    return np.asarray(wide.reshape(len(x), -1)[:, :x[0].size].reshape(x.shape))


def pixels_of(lab: Lab) -> Array:
    return np.asarray((lab.x * STD + MEAN) * 255.0, np.float32)

FAULTS: dict[str, tuple[Cause, Callable[[Lab], Array]]] = {
    "rounds by truncation": (Cause.ROUNDING, lambda b: b.board(rounding=fake_board.truncate)),
    "host casts its inputs": (Cause.ROUNDING, lambda b: b.board(input_rounding=np.floor)),
    "BGR for RGB": (Cause.CHANNEL_ORDER, lambda b: b.board(b.x[:, ::-1])),
    "BGR before normalisation": (Cause.CHANNEL_ORDER, lambda b: b.board((np.flip(b.x * STD + MEAN, 1) - MEAN) / STD)),
    "output channels reversed": (Cause.CHANNEL_ORDER, lambda b: b.board()[:, ::-1]),
    "not normalised": (Cause.NORMALISATION, lambda b: b.board(pixels_of(b))),
    "normalised twice": (Cause.NORMALISATION, lambda b: b.board((b.x - MEAN) / STD)),
    "mean and std left out": (Cause.NORMALISATION, lambda b: b.board(b.x * STD + MEAN)),
    "HWC fed as CHW": (Cause.LAYOUT, lambda b: b.board(np.ascontiguousarray(b.x.transpose(0, 2, 3, 1)).reshape(b.x.shape))),
    "row stride ignored": (Cause.LAYOUT, lambda b: b.board(padded(b.x))),
    "output NHWC read as NCHW": (Cause.LAYOUT, lambda b: np.ascontiguousarray(b.board().transpose(0, 2, 3, 1)).reshape(b.board().shape)),
    "sums of one convolution saturate": (Cause.SATURATION, lambda b: b.board(accumulate={"conv1": fake_board.saturate16})),
    "sums saturate after each product": (Cause.SATURATION, lambda b: b.board(running="conv1")),
    "sums of one convolution wrap": (Cause.OVERFLOW, lambda b: b.board(accumulate={"conv1": fake_board.wrap16})),
    "another range": (Cause.RANGE, other_range),
    "ran in float": (Cause.PRECISION, float_network),
    "the sample before": (Cause.STALE, lambda b: np.concatenate([np.zeros_like(b.board()[:1]), b.board()[:-1]])),
    "the first sample for ever": (Cause.STALE, lambda b: np.repeat(b.board()[:1], len(b.x), 0)),
    "read too early": (Cause.STALE, tail),
    "lines of zeros": (Cause.CACHE, lambda b: lines(b, old=False)),
    "lines of the sample before": (Cause.CACHE, lambda b: lines(b, old=True)),
    "nothing written": (Cause.ZEROS, lambda b: np.zeros_like(b.board())),
    "NaN": (Cause.NON_FINITE, with_nan),
    "uint8 read as int8": (Cause.ZERO_POINT, as_int8),
    "zero point left out": (Cause.ZERO_POINT, without_zero_point),
    "scale wrong": (Cause.SCALE, lambda b: b.board() * np.float32(1.37)),
    "samples shuffled": (Cause.ORDER, lambda b: b.board()[[2, 0, 3, 1]]),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_each_fault_gets_its_name(lab: Lab, fault: str) -> None:
    want, make = FAULTS[fault]
    found = lab.diagnose(make(lab))
    assert found.first is not None and found.first.name == "simulated -> board"
    assert found.cause is want, found.first.to_dict()
    assert found.first.evidence and 0.0 < found.first.confidence <= 0.99


def test_there_are_more_than_twelve_different_verdicts() -> None:
    assert len({cause for cause, _ in FAULTS.values()}) >= 12


def test_half_away_from_zero_is_named_where_sums_fall_between_codes(tmp_path: Path) -> None:
    """B28 a: within what arithmetic allows, and yet one rounding mode explains all of it."""
    lab = build(tmp_path, schemes=SHIFTS)
    assert lab.diagnose(lab.board()).cause is Cause.HEALTHY
    wrong = lab.board(rounding=fake_board.half_away)
    assert np.any(wrong != lab.board())
    found = lab.diagnose(wrong)
    assert found.cause is Cause.ROUNDING and found.first is not None and "half" in found.first.what


def test_codes_that_run_over(tmp_path: Path) -> None:
    lab = build(tmp_path, ranges={"r0": 0.8, "y": 0.8})
    assert lab.diagnose(lab.board(wrap_codes=True)).cause is Cause.OVERFLOW


def test_a_slow_board_with_right_outputs_is_slow_and_nothing_else() -> None:
    """B28 d: 3 times slower than predicted, healthy within the interval, and an unsteady time is less sure."""
    slow = latency_stage("t", 30.0, 0.1, (9.0, 10.0, 12.0), "rk3588")
    assert slow.cause is Cause.LATENCY and slow.what.startswith("3.0 times") and "30 ms" in slow.evidence[0]
    assert latency_stage("t", 12.1, 0.1, (9.0, 10.0, 12.0), "rk3588").cause is Cause.HEALTHY
    assert latency_stage("t", 30.0, 0.1, (9.0, 10.0, 12.0), "rk3588", ("drifting",)).confidence < slow.confidence


@pytest.mark.parametrize("fault", ["saturate16", "wrap16"])
def test_with_the_layers_the_first_wrong_one_is_found(lab: Lab, fault: str) -> None:
    found = lab.diagnose(lab.layers(accumulate={"conv1": getattr(fake_board, fault)}))
    assert found.cause is (Cause.SATURATION if fault == "saturate16" else Cause.OVERFLOW)
    stage = found.first
    assert stage is not None
    assert stage.where.endswith("made by conv1")
    opened = [g.tensor for g in stage.layers if g.open]
    assert opened == [next(g.tensor for g in stage.layers if "r1" in g.tensor)]                  # alone only that one; what follows is right
    after = next(g for g in stage.layers if g.tensor == "y")
    assert after.isolated.sqnr_db > after.accumulated.sqnr_db


def test_stale_data_between_the_layers(lab: Lab) -> None:
    dump = lab.layers()
    name = next(k for k in dump if "r0" in k)
    dump[name] = np.concatenate([np.zeros_like(dump[name][:1]), dump[name][:-1]])
    found = lab.diagnose(dump)
    assert found.cause is Cause.STALE and found.first is not None and found.first.where.startswith(name)


def test_one_wrong_sample_of_many(lab: Lab) -> None:
    y = lab.board()
    y[2] = lab.board(np.ascontiguousarray(lab.x[:, ::-1]))[2]
    found = lab.diagnose(y)
    assert found.cause is Cause.CHANNEL_ORDER and found.first is not None and found.first.samples == (2,)


def test_two_faults_at_once(lab: Lab) -> None:
    y = lab.board(np.ascontiguousarray(lab.x[:, ::-1]))
    found = lab.diagnose(np.ascontiguousarray(y.transpose(0, 2, 3, 1)).reshape(y.shape))
    assert found.first is not None and set(found.first.causes) == {Cause.CHANNEL_ORDER, Cause.LAYOUT}


def test_another_network_is_not_explained(lab: Lab) -> None:
    (lab.folder / "other").mkdir()
    found = lab.diagnose(build(lab.folder / "other", seed=9).board(lab.x))
    assert found.cause is Cause.UNKNOWN and found.first is not None and "none of" in found.first.what


def test_inputs_of_the_dump_are_held_against_ours(lab: Lab) -> None:
    x = np.ascontiguousarray(lab.x[:, ::-1])
    found = lab.diagnose({"y": lab.board(x), "in:x": x})
    assert [s.name for s in found.stages] == ["float -> simulated", "host tensor", "simulated -> board"]
    assert found.first is not None and found.first.name == "host tensor" and found.cause is Cause.CHANNEL_ORDER


def test_a_range_that_ruins_the_plan_itself_is_found_before_the_board(tmp_path: Path) -> None:
    lab = build(tmp_path, ranges={"r0": 0.05})
    found = lab.diagnose(lab.board())
    assert found.cause is Cause.RANGE and found.first is not None and found.first.name == "float -> simulated" and "r0" in found.first.where


def test_one_range_that_is_three_times_too_wide_is_named(tmp_path: Path) -> None:
    """The plan is good enough to pass for healthy; only the calibration data tell. Without them it is a note, and no verdict."""
    lab = build(tmp_path, ranges={"r0": 3.0})
    alone = lab.diagnose(lab.board())
    assert alone.cause is Cause.HEALTHY and any("r0: its range is" in n and "other samples may fill it: --stats" in n for n in alone.stages[0].notes)
    np.savez(tmp_path / "calibration.npz", x=pictures(7, 16))
    collected = CliRunner().invoke(app, ["stats", str(tmp_path / "net.onnx"), "--data", str(tmp_path / "calibration.npz"), "-o", str(tmp_path / "s.npz")])
    assert collected.exit_code == 0, collected.output
    found = lab.diagnose(lab.board(), stats=tmp_path / "s.npz")
    stage = found.first
    assert found.cause is Cause.RANGE and stage is not None and stage.name == "float -> simulated" and stage.where == "r0"
    assert "its range is 3.0 times what the calibration data needs" in stage.what and any("r0 stored alone" in e for e in stage.evidence)
    assert found.stages[-1].cause is Cause.HEALTHY
    (tmp_path / "s.npz").rename(tmp_path / "statistics-1.npz")                             # where a search leaves them
    again = lab.diagnose(lab.board())
    assert again.cause is Cause.RANGE and any("beside the plan" in n for n in again.notes)


@pytest.mark.parametrize("factor", [4.0, 12.0, 60.0])
def test_a_range_that_only_these_samples_do_not_fill_is_no_verdict(tmp_path: Path, factor: float) -> None:
    """However much noise goes with the narrower range: min-max over pictures that are brighter than these is a choice, not a fault."""
    lab = build(tmp_path, ranges={"r0": factor})
    found = lab.diagnose(lab.board()).stages[0]
    assert found.cause is Cause.HEALTHY and any("r0: its range is" in n for n in found.notes)


@pytest.mark.parametrize("factor", [0.7, 1.0, 1.7, 2.3])
def test_ranges_near_what_the_calibration_data_had_are_healthy(tmp_path: Path, factor: float) -> None:
    lab = build(tmp_path, ranges={"r0": factor})
    np.savez(tmp_path / "calibration.npz", x=pictures(7, 16))
    assert CliRunner().invoke(app, ["stats", str(tmp_path / "net.onnx"), "--data", str(tmp_path / "calibration.npz"), "-o", str(tmp_path / "s.npz")]).exit_code == 0
    assert lab.diagnose(lab.board(), stats=tmp_path / "s.npz").cause is Cause.HEALTHY


def test_statistics_of_another_model_are_refused(lab: Lab, tmp_path: Path) -> None:
    other = build(tmp_path, seed=4)
    np.savez(tmp_path / "calibration.npz", x=other.x)
    assert CliRunner().invoke(app, ["stats", str(tmp_path / "net.onnx"), "--data", str(tmp_path / "calibration.npz"), "-o", str(tmp_path / "s.npz")]).exit_code == 0
    with pytest.raises(DataError, match="statistics of another model"):
        lab.diagnose(lab.board(), stats=tmp_path / "s.npz")


def test_sums_of_too_few_bits_are_named_within_what_arithmetic_allows(tmp_path: Path) -> None:
    """Darker pictures: 14 values differ by less than half a step root mean square, and one place explains them all (found on the brain sample)."""
    lab = build(tmp_path)
    x = lab.x * np.float32(0.5)
    np.savez(tmp_path / "data.npz", x=x)
    wrong = lab.board(x, accumulate={"conv1": fake_board.saturate16})
    assert 8 <= np.count_nonzero(wrong != lab.board(x)) <= 40
    found = lab.diagnose(wrong)
    assert found.cause is Cause.SATURATION and found.first is not None and "16 bits" in found.first.what
    assert lab.diagnose(lab.board(x)).cause is Cause.HEALTHY


def test_a_search_without_time_says_what_it_left_out_and_still_sees_the_gap(lab: Lab) -> None:
    found = lab.diagnose(lab.layers(accumulate={"conv1": fake_board.saturate16}), search_s=0.0)
    first, board = found.stages
    assert len(first.layers) == 1 and "layers were run alone in 0 s (--search-seconds)" in first.notes[0] and "left out:" in first.notes[0]
    assert board.cause is not Cause.HEALTHY and any("from r" in n and "it is one part" in n for n in board.notes)
    healthy = lab.diagnose(lab.layers(), search_s=0.0)
    assert healthy.cause is Cause.CUT and healthy.first is not None and healthy.first.name == "simulated -> board"
    assert "no gap wider than arithmetic allows in what was examined; 1 of" in healthy.first.what and "from r" in healthy.first.what
    assert lab.diagnose(lab.layers()).cause is Cause.HEALTHY


def test_a_search_within_what_arithmetic_allows_is_not_healthy_when_it_was_cut_short(tmp_path: Path) -> None:
    lab = build(tmp_path)
    x = lab.x * np.float32(0.5)
    np.savez(tmp_path / "data.npz", x=x)
    wrong = lab.board(x, accumulate={"conv1": fake_board.saturate16})
    found = lab.diagnose(wrong, search_s=0.0)
    assert found.cause is Cause.CUT and found.first is not None
    assert "whether sums of too few bits hide within it was not tried out: 0 of" in found.first.what and "--search-seconds" in found.first.what
    page = CliRunner().invoke(app, ["diagnose", str(tmp_path / "net.onnx"), str(tmp_path / "plan.json"), "--data", str(tmp_path / "data.npz"),
                                    "--outputs", str(tmp_path / "board.npz"), "--search-seconds", "0"], env={"COLUMNS": "200"})
    assert page.exit_code == 0 and "4 samples: nothing found, search cut short" in page.output


def test_a_fault_is_named_before_a_stage_that_was_cut_short(lab: Lab) -> None:
    cut, wrong = Stage("simulated -> compiled", Cause.CUT), Stage("compiled -> board", Cause.STALE)
    assert Diagnosis("net", 1, (cut, wrong)).first is wrong and Diagnosis("net", 1, (cut,)).first is cut


# ------------------------------------------------------------------------------------------------ healthy


LEVELS = {"off": ort.GraphOptimizationLevel.ORT_DISABLE_ALL, "basic": ort.GraphOptimizationLevel.ORT_ENABLE_BASIC,
          "extended": ort.GraphOptimizationLevel.ORT_ENABLE_EXTENDED}


def with_onnxruntime(lab: Lab, level: str) -> Array:
    options = ort.SessionOptions()
    options.graph_optimization_level = LEVELS[level]
    return np.asarray(ort.InferenceSession(str(lab.folder / "q.onnx"), options).run(None, {"x": lab.x})[0])


HEALTHY: dict[str, tuple[dict[str, object], Callable[[Lab], object]]] = {
    "whole numbers": ({}, lambda b: b.board()),
    "whole numbers, all layers": ({}, lambda b: b.layers()),
    "another seed": ({"seed": 3}, lambda b: b.board()),
    "a third seed": ({"seed": 5}, lambda b: b.board()),
    "onnxruntime without optimizations": ({}, lambda b: with_onnxruntime(b, "off")),
    "onnxruntime, basic": ({}, lambda b: with_onnxruntime(b, "basic")),
    "onnxruntime, extended": ({}, lambda b: with_onnxruntime(b, "extended")),
    "integer kernels": ({}, lambda b: Session(b.folder / "q.onnx").run({"x": b.x})["y"]),
    "clipped ranges": ({"ranges": {"r0": 0.8, "r1": 0.8}}, lambda b: b.board()),
    "wide ranges": ({"ranges": {"r0": 1.6, "y": 1.5}}, lambda b: b.board()),
    "one scale a weight": ({"granularity": Granularity.PER_LAYER}, lambda b: b.board()),
    "INT16": ({"base": Precision.INT16}, lambda b: with_onnxruntime(b, "off")),
    "FP16": ({"base": Precision.FP16}, lambda b: float_network(b).astype(np.float16)),
    "one layer in FP16": ({"floats": ["conv1"]}, lambda b: with_onnxruntime(b, "extended")),
    "a float16 dump": ({}, lambda b: b.board().astype(np.float16)),
    "an NHWC dump": ({}, lambda b: b.board().transpose(0, 2, 3, 1)),
    "a dump of codes": ({}, lambda b: (np.rint(b.board() / b.scale()[0]) + b.scale()[1]).astype(np.uint8)),
    "padded rows": ({}, lambda b: np.pad(b.board(), ((0, 0), (0, 0), (0, 0), (0, 4)))),
    "more samples than asked for": ({}, lambda b: np.concatenate([b.board(), b.board()])),
    "vendor's names": ({}, lambda b: {"output0": b.board()}),
}


@pytest.mark.parametrize("run", HEALTHY)
def test_no_false_alarm(tmp_path: Path, run: str) -> None:
    how, make = HEALTHY[run]
    lab = build(tmp_path, **how)  # type: ignore[arg-type]
    found = lab.diagnose(make(lab))  # type: ignore[arg-type]
    assert found.cause is Cause.HEALTHY, found.first.to_dict() if found.first else ""
    assert all(s.cause is Cause.HEALTHY for s in found.stages)


def test_without_a_plan_the_board_is_held_against_float(lab: Lab) -> None:
    half = float_network(lab).astype(np.float16)
    found = lab.diagnose(half, plan=None)
    assert found.cause is Cause.HEALTHY and "simulated" in found.left_out
    eight = lab.diagnose(lab.board(), plan=None)
    assert eight.cause is Cause.PRECISION


def test_a_foreign_quantized_file_takes_the_place_of_a_plan(lab: Lab) -> None:
    found = lab.diagnose(lab.board(), plan=lab.folder / "q.onnx")
    assert found.cause is Cause.HEALTHY
    assert lab.diagnose(lab.board(np.ascontiguousarray(lab.x[:, ::-1])), plan=lab.folder / "q.onnx").cause is Cause.CHANNEL_ORDER

