"""The command line as a user meets it: in a process of its own, exit codes and messages included."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from models import conv_relu, model, node

from qbench.runtime import Session

RNG = np.random.default_rng(0)


def qbench(*arguments: object, cwd: Path | None = None, code: int = 0) -> subprocess.CompletedProcess[str]:
    done = subprocess.run([sys.executable, "-m", "qbench", *map(str, arguments)], check=False, cwd=cwd, capture_output=True, text=True, timeout=300)
    assert done.returncode == code, f"{arguments}: exit {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A classifier whose labels are its own float answers, and calibration data in two shards."""
    path = tmp_path_factory.mktemp("user")
    w = {"w0": RNG.normal(0, 0.4, (8, 3, 3, 3)), "w1": RNG.normal(0, 0.4, (8, 8, 3, 3)), "fc": RNG.normal(0, 0.4, (8, 5))}
    nodes = [node("Conv", ["x", "w0"], ["a"], "first", pads=[1] * 4), node("Relu", ["a"], ["b"]), node("Conv", ["b", "w1"], ["c"], "second"),
             node("Relu", ["c"], ["d"]), node("GlobalAveragePool", ["d"], ["e"]), node("Flatten", ["e"], ["f"]), node("Gemm", ["f", "fc"], ["y"], "head")]
    proto = model(nodes, {"x": ["N", 3, 16, 16]}, {"y": ["N", 5]}, {k: v.astype(np.float32) for k, v in w.items()})
    onnx.save(proto, str(path / "net.onnx"))
    images = RNG.normal(size=(60, 3, 16, 16)).astype(np.float32)
    labels = Session(proto.SerializeToString(), 1).run({"x": images})["y"].argmax(1)
    np.savez(path / "all.npz", x=images[:20])
    np.savez(path / "one.npz", x=images[:12])
    np.savez(path / "two.npz", x=images[12:20])
    np.savez(path / "eval.npz", x=images[20:], labels=labels[20:])
    return path


@pytest.fixture(scope="module")
def counted(folder: Path) -> str:
    """Name of the file that holds the statistics of all.npz."""
    qbench("stats", "net.onnx", "--data", "all.npz", "-o", "all-stats.npz", cwd=folder)
    return "all-stats.npz"


def test_shards_merge_to_the_same_statistics_as_one_pass(folder: Path, counted: str) -> None:
    for name in ("one", "two"):
        qbench("stats", "net.onnx", "--data", f"{name}.npz", "-o", f"{name}-stats.npz", cwd=folder)
    qbench("stats", "merge", "two-stats.npz", "one-stats.npz", "-o", "merged [/i].npz", cwd=folder)
    for options in ([], ["--calibrator", "kl"], ["--calibrator", "percentile:p=99"], ["--precision", "int16"]):
        for source in (counted.removesuffix(".npz"), "merged [/i]"):
            qbench("quantize", "net.onnx", "--stats", f"{source}.npz", *options, "-o", f"{source}.onnx", cwd=folder)
        assert (folder / "all-stats.onnx").read_bytes() == (folder / "merged [/i].onnx").read_bytes()


@pytest.mark.parametrize("scale", ["global", "per-layer", "per-channel"])
def test_quantize_writes_a_model_that_loads(folder: Path, counted: str, scale: str) -> None:
    done = qbench("quantize", "net.onnx", "--stats", counted, "--scale", scale, "-o", "q.onnx", "--json", cwd=folder)
    assert json.loads(done.stdout)["granularity"] == scale
    onnx.checker.check_model(str(folder / "q.onnx"), full_check=True)
    assert Session(folder / "q.onnx", 1).run({"x": np.zeros((2, 3, 16, 16), np.float32)})["y"].shape == (2, 5)


@pytest.fixture(scope="module")
def searched(folder: Path) -> dict[str, Any]:
    done = qbench("search", "--target", "rk3588", "--budget", "20ms", "--model", "net.onnx", "--data", "all.npz", "--eval-data", "eval.npz",
                  "--metric", "top1", "--trials", 12, "-o", "out", "--json", cwd=folder)
    body: dict[str, Any] = json.loads(done.stdout)
    return body


def test_search_prints_one_object_with_the_promised_fields(searched: dict[str, Any], folder: Path) -> None:
    promised = {"feasible", "binding", "budgets", "sample", "evaluated", "float_pass_equivalents", "wall_s", "reference", "uniform", "chosen",
                "front", "mlflow"}
    assert promised <= set(searched)
    assert {"uri", "experiment", "run"} <= set(searched["mlflow"])
    plan = {"accuracy", "accuracy_low", "accuracy_high", "metric", "latency_ms", "latency_ms_low", "latency_ms_high", "power_w", "energy_mj",
            "peak_memory_bytes", "op_point", "layers", "plan"}
    assert plan <= set(searched["chosen"]) and plan <= set(searched["reference"])
    assert searched["feasible"] and not searched["sample"] and {"int8", "int16", "fp16"} <= set(searched["uniform"])
    assert sorted(p.name for p in (folder / "out").iterdir() if p.suffix in (".json", ".onnx", ".html")) == [
        "kernels.json", "model.qdq.onnx", "plan.json", "report.html", "summary.json"]
    assert json.loads((folder / "out" / "summary.json").read_text()) == searched


def test_the_written_model_scores_what_was_reported(searched: dict[str, Any], folder: Path) -> None:
    with np.load(folder / "eval.npz") as data:
        session = Session(folder / "out" / "model.qdq.onnx")
        answers = session.run({"x": data["x"]})["y"].argmax(1)
        assert (answers == data["labels"]).mean() == pytest.approx(searched["chosen"]["accuracy"], abs=1e-9)


def test_the_chosen_plan_beats_every_uniform_one_within_budget(searched: dict[str, Any]) -> None:
    uniform = [u["accuracy"] for u in searched["uniform"].values() if u["latency_ms"] <= 20]
    assert uniform and searched["chosen"]["accuracy"] >= max(uniform)


def test_a_plan_rebuilds_the_model_bit_for_bit(searched: dict[str, Any], folder: Path) -> None:
    qbench("quantize", "net.onnx", "--plan", "out/plan.json", "-o", "again.onnx", cwd=folder)
    assert (folder / "again.onnx").read_bytes() == (folder / "out" / "model.qdq.onnx").read_bytes()


def test_the_same_search_again_remembers_and_agrees(searched: dict[str, Any], folder: Path) -> None:
    done = qbench("search", "--target", "rk3588", "--budget", "20ms", "--model", "net.onnx", "--data", "all.npz", "--eval-data", "eval.npz",
                  "--metric", "top1", "--trials", 12, "-o", "out", "--json", cwd=folder)
    again = json.loads(done.stdout)
    assert again["chosen"]["plan_key"] == searched["chosen"]["plan_key"]
    assert again["candidates"] == searched["candidates"]
    assert again["float_pass_equivalents"] == searched["float_pass_equivalents"]          # all remembered, nothing evaluated twice


def test_report_is_rewritten_from_the_folder(searched: dict[str, Any], folder: Path) -> None:
    qbench("report", "out", "-o", "report-again.html", cwd=folder)
    assert (folder / "report-again.html").read_text() == (folder / "out" / "report.html").read_text()


def test_an_impossible_budget_says_what_binds_and_what_is_possible(folder: Path) -> None:
    done = qbench("search", "--target", "rk3588", "--budget", "0.01ms", "--model", "net.onnx", "--data", "all.npz", "--eval-data", "eval.npz",
                  "--metric", "top1", "-o", "impossible", "--json", cwd=folder, code=1)
    body = json.loads(done.stdout)
    assert not body["feasible"]
    assert body["binding"]["budget"] == "10us" or "0.01" in body["binding"]["budget"]
    assert "ms" in body["binding"]["possible"] or "us" in body["binding"]["possible"]
    assert (folder / "impossible" / "plan.json").is_file() and (folder / "impossible" / "model.qdq.onnx").is_file()


def test_cost_lists_targets_and_precisions(folder: Path) -> None:
    done = qbench("cost", "net.onnx", "--target", "rk3588", "--target", "host", "--precision", "int8", "--json", cwd=folder)
    rows = json.loads(done.stdout)
    assert [(r["target"], r["precision"]) for r in rows] == [("rk3588", "int8"), ("host", "int8")]
    for row in rows:
        assert row["latency_ms_low"] <= row["latency_ms"] <= row["latency_ms_high"]
        assert {"name", "op", "ms", "bound", "dram_bytes", "placement"} <= set(row["kernels"][0])
        assert row["macs"] == 16 * 16 * 8 * 27 + 14 * 14 * 8 * 72 + 40
    slow = json.loads(qbench("cost", "net.onnx", "-t", "rk3588", "--op-point", "300MHz", "--json", cwd=folder).stdout)[0]
    assert slow["op_point"] == "300MHz" and slow["latency_ms"] > rows[0]["latency_ms"]
    text = qbench("cost", "net.onnx", "-t", "rk3588", cwd=folder).stdout
    assert "first" in text and "fitted on" in text


def test_a_missing_precision_is_refused_with_the_reason(folder: Path, counted: str) -> None:
    """B24: INT16 on rk3588 needs toolkit 2.5.0."""
    arguments = ["search", "-t", "rk3588", "-b", "20ms", "--model", "net.onnx", "--data", "all.npz", "--precision", "int16"]
    done = qbench(*arguments, "--toolkit", "2.3.2", cwd=folder, code=2)
    assert "int16" in done.stderr and "2.3.2" in done.stderr and "2.5.0" in done.stderr
    done = qbench("quantize", "net.onnx", "--stats", counted, "--precision", "int16", "--toolkit", "2.3.2", "-o", "n.onnx", cwd=folder, code=2)
    assert "2.5.0" in done.stderr and not (folder / "n.onnx").exists()


@pytest.mark.parametrize(("arguments", "words"), [
    (["search", "--budget", "20"], ["20", "20ms"]), (["search", "--target", "rk9999"], ["rk9999", "rk3588"]),
    (["search", "--sample", "nothing"], ["nothing", "brain"]), (["search", "--calibrator", "magic"], ["magic", "minmax"]),
    (["search", "--model", "none.onnx", "--data", "all.npz"], ["none.onnx", "no such file"]),
    (["search", "--model", "net.onnx"], ["--data"]), (["search", "--model", "net.onnx", "--data", "no.npz"], ["no.npz"]),
    (["search", "--op-point", "5GHz"], ["5GHz", "1000MHz"]), (["search", "--precision", "int3"], ["int3", "int8"]),
    (["quantize", "net.onnx", "-o", "x.onnx"], ["--plan", "--stats"]), (["stats", "merge", "one.npz", "-o", "s.npz"], ["two"]),
    (["stats", "net.onnx", "--data", "eval.npz", "--input-shape", "x", "-o", "s.npz"], ["--input-shape"]),
    (["quantize", "net.onnx", "--stats", "eval.npz", "-o", "x.onnx"], ["eval.npz", "statistics"]),
    (["cost", "net.onnx", "--target", "rk3588", "--precision", "fp32"], ["fp32", "int8"]), (["report", "nowhere"], ["nowhere"])])
def test_bad_input_ends_with_two_and_a_cure(folder: Path, arguments: list[str], words: list[str]) -> None:
    done = qbench(*arguments, cwd=folder, code=2)
    for word in words:
        assert word in done.stderr
    assert "Traceback" not in done.stderr


def test_data_that_do_not_fit_are_refused_before_any_work(folder: Path) -> None:
    """B06: wrong key, wrong shape, empty; the expected names, shapes and types are listed."""
    np.savez(folder / "key.npz", z=np.zeros((2, 3, 16, 16), np.float32))
    np.savez(folder / "shape.npz", x=np.zeros((2, 4, 16, 16), np.float32))
    np.savez(folder / "empty.npz", x=np.zeros((0, 3, 16, 16), np.float32))
    for name in ("key", "shape", "empty"):
        done = qbench("stats", "net.onnx", "--data", f"{name}.npz", "-o", f"{name}-stats.npz", cwd=folder, code=2)
        assert "x" in done.stderr and not (folder / f"{name}-stats.npz").exists()


def test_nan_in_the_data_names_the_tensor_and_the_sample(folder: Path) -> None:
    """B05 through the command line."""
    x = RNG.normal(size=(4, 3, 16, 16)).astype(np.float32)
    x[2, 0, 3, 3] = np.nan
    np.savez(folder / "nan.npz", x=x)
    done = qbench("stats", "net.onnx", "--data", "nan.npz", "-o", "n.npz", cwd=folder, code=2)
    assert "'x'" in done.stderr or " x" in done.stderr
    assert "sample 2" in done.stderr
    done = qbench("stats", "net.onnx", "--data", "nan.npz", "-o", "n.npz", "--non-finite", "ignore", "--json", cwd=folder)
    assert any("NaN" in w for w in json.loads(done.stdout)["warnings"])


def test_listings_and_help() -> None:
    assert "rk3588" in qbench("targets").stdout
    full = qbench("targets", "rk3588").stdout
    assert "1000MHz" in full and "sources" in full
    assert {c["name"] for c in json.loads(qbench("calibrators", "--json").stdout)} >= {"minmax", "percentile", "kl", "mse"}
    for command in ("search", "stats", "quantize", "cost", "targets", "calibrators", "ui", "report"):
        assert f"qbench {command}" in qbench(command, "--help").stdout
    assert qbench("--version").stdout.startswith("qbench ")


def test_ui_is_bound_to_the_loopback_address() -> None:
    assert "127.0.0.1" in qbench("ui", "--print").stdout


def test_opset_eleven_model_through_the_whole_command_line(folder: Path) -> None:
    """B17: per-channel weights of an opset 11 model."""
    onnx.save(conv_relu(11), str(folder / "old.onnx"))
    np.savez(folder / "old.npz", x=RNG.normal(size=(4, 3, 8, 8)).astype(np.float32))
    qbench("stats", "old.onnx", "--data", "old.npz", "-o", "old-stats.npz", cwd=folder)
    qbench("quantize", "old.onnx", "--stats", "old-stats.npz", "-o", "old-q.onnx", cwd=folder)
    onnx.checker.check_model(str(folder / "old-q.onnx"), full_check=True)
    Session(folder / "old-q.onnx", 1)


def test_no_command_destroys_what_it_reads(folder: Path, counted: str) -> None:
    (folder / "guard.npz").write_bytes((folder / counted).read_bytes())
    before = {name: (folder / name).read_bytes() for name in ("net.onnx", "all.npz", "guard.npz")}
    for arguments in (["quantize", "net.onnx", "--stats", "guard.npz", "-o", "net.onnx"], ["quantize", "net.onnx", "--stats", "guard.npz", "-o", "./guard.npz"],
                      ["stats", "net.onnx", "--data", "all.npz", "-o", "all.npz"], ["stats", "net.onnx", "--data", "all.npz", "-o", "net.onnx"]):
        assert "would destroy it" in qbench(*arguments, cwd=folder, code=2).stderr
    assert before == {name: (folder / name).read_bytes() for name in before}


def test_a_shape_that_the_data_do_not_have_is_refused(folder: Path) -> None:
    """Latency of one network beside accuracy of another would be a lie."""
    w = {"w": RNG.normal(size=(5, 3, 3, 3)).astype(np.float32)}
    nodes = [node("Conv", ["x", "w"], ["a"], "conv"), node("GlobalAveragePool", ["a"], ["p"]), node("Flatten", ["p"], ["y"])]
    onnx.save(model(nodes, {"x": ["N", 3, "H", 16]}, {"y": ["N", 5]}, w), str(folder / "open.onnx"))
    done = qbench("search", "-m", "open.onnx", "-d", "all.npz", "--input-shape", "x=1,3,32,16", "-o", "open", cwd=folder, code=2)
    assert "1,3,32,16" in done.stderr and "[3, 16, 16]" in done.stderr
    done = qbench("cost", "net.onnx", "--input-shape", "y=1,3,16,16", cwd=folder, code=2)
    assert "no such input" in done.stderr


def test_nan_in_the_evaluation_data_stops_a_search(folder: Path) -> None:
    with np.load(folder / "eval.npz") as data:
        x, labels = data["x"].copy(), data["labels"]
    x[3, 0, 0, 0] = np.nan
    np.savez(folder / "nan-eval.npz", x=x, labels=labels)
    arguments = ["search", "-m", "net.onnx", "-d", "all.npz", "--eval-data", "nan-eval.npz", "--metric", "top1", "--trials", "3", "-o", "nan-out", "--no-track"]
    assert "sample 3" in qbench(*arguments, cwd=folder, code=2).stderr
    body = json.loads(qbench(*arguments, "--non-finite", "ignore", "--json", cwd=folder).stdout)
    assert any("1 evaluation samples hold NaN" in w for w in body["warnings"])


def test_a_binary_plan_is_no_traceback(folder: Path) -> None:
    done = qbench("quantize", "net.onnx", "--plan", "net.onnx", "-o", "x.onnx", cwd=folder, code=2)
    assert "not a text file" in done.stderr and "Traceback" not in done.stderr


def test_a_reader_who_leaves_early_changes_no_exit_code(folder: Path) -> None:
    for options in ([], ["--json"]):
        command = " ".join([sys.executable, "-m", "qbench", "cost", "net.onnx", *options, "|", "head", "-c", "10", "; exit ${PIPESTATUS[0]}"])
        done = subprocess.run(["bash", "-c", command], cwd=folder, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        assert "Traceback" not in done.stderr and "BrokenPipe" not in done.stderr


def test_native_group_normalization_is_priced(folder: Path) -> None:
    w = {"w": RNG.normal(size=(8, 3, 3, 3)).astype(np.float32), "s": np.ones(8, np.float32), "b": np.zeros(8, np.float32)}
    nodes = [node("Conv", ["x", "w"], ["a"], "conv"), node("GroupNormalization", ["a", "s", "b"], ["n"], "gn", num_groups=4), node("Relu", ["n"], ["y"])]
    onnx.save(model(nodes, {"x": [1, 3, 16, 16]}, {"y": [1, 8, 14, 14]}, w, opset=21, ir_version=10), str(folder / "gn.onnx"))
    row = json.loads(qbench("cost", "gn.onnx", "--json", cwd=folder).stdout)[0]
    assert any(k["op"].startswith("GroupNormalization") for k in row["kernels"])


def test_a_second_search_in_a_folder_leaves_no_plans_of_the_first(searched: dict[str, Any], folder: Path) -> None:
    for seed in (1, 2):
        done = qbench("search", "-b", "20ms", "-m", "net.onnx", "-d", "all.npz", "--eval-data", "eval.npz", "--metric", "top1", "--trials", 14 - 4 * seed,
                      "--seed", seed, "-o", "shared", "--no-track", "--json", cwd=folder)
        body = json.loads(done.stdout)
        assert {f"plans/{p.name}" for p in (folder / "shared" / "plans").iterdir()} == {c["plan"] for c in body["candidates"]}


def test_far_more_trials_than_plans_ends(folder: Path) -> None:
    w = {"w": RNG.normal(size=(5, 3, 3, 3)).astype(np.float32)}
    nodes = [node("Conv", ["x", "w"], ["a"], "conv"), node("GlobalAveragePool", ["a"], ["p"]), node("Flatten", ["p"], ["y"])]
    onnx.save(model(nodes, {"x": ["N", 3, 16, 16]}, {"y": ["N", 5]}, w), str(folder / "one.onnx"))
    done = qbench("search", "-b", "20ms", "-m", "one.onnx", "-d", "all.npz", "--eval-data", "eval.npz", "--metric", "top1", "--trials", 100000, "-o", "one",
                  "--no-track", "--json", cwd=folder)
    assert json.loads(done.stdout)["evaluated"] < 100


def test_two_budgets_of_one_kind_are_refused(folder: Path) -> None:
    done = qbench("search", "-b", "20ms", "-b", "0.05s", "-m", "net.onnx", "-d", "all.npz", "-o", "twice", cwd=folder, code=2)
    assert "20ms" in done.stderr


def test_what_no_model_prices_is_said(folder: Path) -> None:
    then = onnx.helper.make_graph([node("Relu", ["x"], ["t"])], "then", [], [onnx.helper.make_tensor_value_info("t", 1, None)])
    other = onnx.helper.make_graph([node("Neg", ["x"], ["e"])], "else", [], [onnx.helper.make_tensor_value_info("e", 1, None)])
    nodes = [node("ReduceMax", ["x"], ["m"], keepdims=0), node("Greater", ["m", "limit"], ["yes"]),
             node("If", ["yes"], ["y"], "branch", then_branch=then, else_branch=other)]
    onnx.save(model(nodes, {"x": [1, 3, 8, 8]}, {"y": [1, 3, 8, 8]}, {"limit": np.array(0, np.float32)}), str(folder / "if.onnx"))
    [row] = json.loads(qbench("cost", "if.onnx", "--json", cwd=folder).stdout)
    assert sum("'branch'" in w for w in row["warnings"]) == 1
    assert "not in the latency" in " ".join(qbench("cost", "if.onnx", cwd=folder).stdout.split())


@pytest.mark.parametrize(("words", "found"), [("search --target rk", {"rk3562", "rk3566", "rk3576", "rk3588"}), ("quantize --calibrator m", {"minmax", "mae", "mse", "moving-average"}),
                                              ("search --preset door", {"door-lock"}), ("compare --sample fa", {"fashion", "face", "face-dark"})])
def test_the_shell_completes_names(words: str, found: set[str]) -> None:
    """By the protocol of click's completion script for bash."""
    asks = {"_QBENCH_COMPLETE": "complete_bash", "COMP_WORDS": f"qbench {words}", "COMP_CWORD": str(len(words.split()))}
    program = "import sys; sys.argv[0] = 'qbench'; from qbench.cli import main; sys.exit(main())"
    done = subprocess.run([sys.executable, "-c", program], check=False, capture_output=True, text=True, timeout=60, env={**os.environ, **asks})
    assert set(done.stdout.split()) == found
