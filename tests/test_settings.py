"""qbench.toml, QBENCH_ variables, and the options that hold for every command."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer
from hypothesis import given
from hypothesis import strategies as st

from qbench import config
from qbench.cli import anywhere, main, options
from qbench.cli.app import app
from qbench.errors import ConfigError, nearest, unknown


def qbench(*arguments: object) -> int:
    try:
        main([str(a) for a in arguments])
    except SystemExit as end:
        return int(end.code or 0)
    return 0


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name in [n for n in os.environ if n.startswith("QBENCH_")]:
        monkeypatch.delenv(name)
    return tmp_path


def target_of(capfd: pytest.CaptureFixture[str], *options: str) -> str:
    assert qbench("presets", "medical", "--json", *options) == 0
    found: list[dict[str, Any]] = json.loads(capfd.readouterr().out)
    return str(found[0]["target"])


def test_option_beats_variable_beats_file_beats_default(here: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    assert target_of(capfd) == "rk3588"
    (here / "qbench.toml").write_text('target = "rk3576"\n')
    assert target_of(capfd) == "rk3576"
    monkeypatch.setenv("QBENCH_TARGET", "rk3562")
    assert target_of(capfd) == "rk3562"
    assert target_of(capfd, "--target", "rk3566") == "rk3566"


@pytest.mark.parametrize(("text", "words"), [
    ('taget = "rk3588"', ["'taget'", "did you mean 'target'?"]), ("[search]\ntrails = 3", ["[search]", "'trails'", "'trials'"]),
    ('[search]\ntrials = "many"', ["search.trials", "'many'", "integer"]), ("target = \nseed = 1", ["not TOML", "line 1"]), ("[serch]\nseed = 1", ["'serch'", "'search'"]),
    ("trials = 3", ["'trials'", "it belongs into [search]"]), ('scale = "global"', ["it belongs into [search] or [compare]"]),
    ('[search]\nmodel = "net.onnx"', ["[search]: no key 'model'; it belongs at the top, above the tables"]),
    ('sample = "fashion"\nmodel = "net.onnx"', ["fashion", "net.onnx", "one of the two"])])
def test_what_is_wrong_in_the_file_is_named(here: Path, capfd: pytest.CaptureFixture[str], text: str, words: list[str]) -> None:
    (here / "qbench.toml").write_text(text)
    assert qbench("presets") == 2
    said = capfd.readouterr().err
    assert all(w in said for w in [*words, "qbench.toml", "QB111"]), said
    assert qbench("presets", "--help") == 0


def test_tables_hold_for_their_command_and_variables_for_tables(tmp_path: Path) -> None:
    file = tmp_path / "qbench.toml"
    file.write_text('target = "rk3576"\n[search]\nbudget = "20ms"\nmax_drop = 0.005\n[compare]\nscale = ["per-layer"]\n')
    found = config.load(file, {"QBENCH_SEARCH_TRIALS": "5", "QBENCH_COMPARE_CALIBRATOR": "mse;kl"})
    assert found.of("search") == {"target": "rk3576", "budget": ("20ms",), "max_drop": "0.005", "trials": 5}
    assert found.of("compare") == {"target": "rk3576", "scale": ("per-layer",), "calibrator": ("mse", "kl")}
    assert found.of("cost") == {"target": "rk3576"}
    with pytest.raises(ConfigError, match=r"search\.trials is 'x'"):
        config.load(None, {"QBENCH_SEARCH_TRIALS": "x"})
    with pytest.raises(ConfigError, match="qbench init"):
        config.load(tmp_path / "none.toml", {})


def test_every_key_is_an_option_of_a_command() -> None:
    """A key that no command takes would be read and do nothing."""
    root: Any = typer.main.get_command(app)
    takes = {name: {p.name for p in command.params} for name, command in root.commands.items()}
    for place in config.variables().values():
        assert place[-1] in (takes[place[0]] if len(place) > 1 else set().union(*takes.values())), place


def test_paths_are_taken_from_the_files_folder(tmp_path: Path) -> None:
    (tmp_path / "net.onnx").touch()
    file = tmp_path / "qbench.toml"
    file.write_text('model = "net.onnx"\ndata = "my_module:samples"\n[search]\noutput = "out"\n')
    found = config.load(file, {}).of("search")
    assert found == {"model": str(tmp_path / "net.onnx"), "data": "my_module:samples", "output": str(tmp_path / "out")}


@given(st.fixed_dictionaries({}, optional={k: st.text(min_size=1, max_size=12) for k in ("target", "model", "data", "eval_data", "metric")}),
       st.lists(st.text(min_size=1, max_size=8), max_size=3))
def test_a_written_file_reads_back_as_what_was_given(keys: dict[str, str], budget: list[str]) -> None:
    import tomllib

    body = tomllib.loads(config.written(keys, budget))
    assert body == keys | {"search": {"budget": budget} if budget else {}}


def said_by(*line: str) -> str:
    """The command that would be recorded for this line: parsed with its defaults, not run."""
    root: Any = typer.main.get_command(app)
    context = root.make_context("qbench", anywhere(list(line)))
    rest = [*context._protected_args, *context.args]
    root.commands[rest[0]].make_context(rest[0], rest[1:], parent=context)
    return options.LINE.text


def test_the_recorded_command_needs_neither_file_nor_variables(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (here / "own.toml").write_text('target = "rk3576"\nlimit = 4\nmodel = "net.onnx"\n[search]\nbudget = ["20ms worst-case", "8mJ"]\ntrack = false\nmax_drop = 0.005\ntrials = 7\n')
    monkeypatch.setenv("QBENCH_SEARCH_TRIALS", "9")
    monkeypatch.setenv("QBENCH_SEARCH_STORAGE", "postgresql://me:secret@db/studies")
    line = said_by("--config", "own.toml", "search", "--quiet", "--max-drop", "1%", "--board", "local://a?threads=1,ssh://me@host:22")
    assert line == ("qbench search --target rk3576 --model net.onnx --limit 4 --budget '20ms worst-case' --budget 8mJ --trials 9 --no-track "
                    "--storage 'postgresql://me:***@db/studies' --max-drop 1% --board 'local://a?threads=1,ssh://me@host:22'")
    for name in ("QBENCH_SEARCH_TRIALS", "QBENCH_SEARCH_STORAGE"):
        monkeypatch.delenv(name)
    assert said_by("compare") == "qbench compare"
    assert said_by("--config", "own.toml", "compare", "--scale", "global") == "qbench compare --target rk3576 net.onnx --limit 4 --scale global"


def test_the_recorded_command_gives_the_same_settings_again(here: Path) -> None:
    (here / "qbench.toml").write_text('sample = "fashion"\nlimit = 5\n[search]\nbudget = "1ms"\ntrack = true\ncalibrator = ["kl", "mse"]\n')
    root: Any = typer.main.get_command(app)
    first = root.commands["search"].make_context("search", ["--trials", "3"]).params
    line = options.LINE.text
    (here / "qbench.toml").unlink()
    assert root.commands["search"].make_context("search", shlex.split(line)[2:]).params == first


def test_a_misspelled_variable_is_told(here: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("QBENCH_TAGET", "QBENCH_TOOLCHAINS", "QBENCH_TOOLCHAIN_RKNN", "QBENCH_OF_OTHERS"):
        monkeypatch.setenv(name, "rk3576")
    assert target_of(capfd) == "rk3588"
    assert qbench("presets", "medical") == 0
    assert capfd.readouterr().err == "qbench: nothing reads the environment variable QBENCH_TAGET; did you mean QBENCH_TARGET?\n"


@pytest.mark.parametrize("command", ["search", "compare"])
@pytest.mark.parametrize("seed", [-1, 2**32])
def test_a_seed_that_no_generator_takes_is_refused_at_once(here: Path, capfd: pytest.CaptureFixture[str], command: str, seed: int) -> None:
    assert qbench(command, "--sample", "fashion", "--seed", seed) == 2
    assert "--seed" in capfd.readouterr().err


@pytest.mark.parametrize(("option", "value", "said"), [("--target", "rk3558", "did you mean 'rk3588'?"), ("--budget", "20parsec", "unknown unit 'parsec'")])
def test_init_checks_what_it_writes(here: Path, capfd: pytest.CaptureFixture[str], option: str, value: str, said: str) -> None:
    assert qbench("init", option, value) == 2 and said in capfd.readouterr().err
    assert not (here / "qbench.toml").exists()


def test_init_writes_once(here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert qbench("init", "--target", "rk3576", "--budget", "12ms", "--json") == 0
    assert json.loads(capfd.readouterr().out) == {"file": "qbench.toml"}
    assert config.load(here / "qbench.toml", {}).of("search") == {"target": "rk3576", "budget": ("12ms",)}
    assert qbench("init") == 2 and "there already" in capfd.readouterr().err


def test_a_sample_on_the_line_sets_the_files_model_aside(here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (here / "qbench.toml").write_text('model = "none.onnx"\ndata = "none.npz"\nmetric = "dice"\n')
    assert qbench("quantize", "--sample", "fashion", "--limit", "8", "-o", "q.onnx", "--save-plan", "p.json") == 0
    (here / "qbench.toml").write_text('sample = "fashion"\ntarget = "rk3576"\ndata = "none.npz"\nlimit = 4\n')
    assert qbench("quantize", "--plan", "p.json", "-o", "again.onnx") == 0, capfd.readouterr().err
    assert (here / "again.onnx").read_bytes() == (here / "q.onnx").read_bytes()


def test_quiet_and_verbose_stand_anywhere(here: Path) -> None:
    assert anywhere(["search", "--quiet", "-b", "1ms", "--", "--verbose"]) == ["--quiet", "search", "-b", "1ms", "--", "--verbose"]

    def told(*arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([sys.executable, "-m", "qbench", *arguments], capture_output=True, text=True, check=False, env={**os.environ, **more})

    (here / "qbench.toml").write_text('target = "rk3576"\n')
    loud, still = told("search", "--sample", "fashon", "--verbose"), told("search", "--sample", "fashon", "--quiet")
    assert loud.returncode == still.returncode == 2 and "defaults from qbench.toml: target=rk3576" in loud.stderr and "Traceback" in loud.stderr
    assert still.stderr.startswith("qbench: no sample 'fashon'") and "; did you mean 'fashion'?\n" in still.stderr
    colours = {"FORCE_COLOR": "1", "TERM": "xterm-256color"}
    assert "\x1b[" in told("calibrators", "kl", **colours).stdout and "\x1b[3" not in told("calibrators", "kl", NO_COLOR="1", **colours).stdout


def test_version_names_what_results_depend_on(capfd: pytest.CaptureFixture[str]) -> None:
    from importlib import metadata

    assert qbench("--version") == 0
    lines = dict(line.split() for line in capfd.readouterr().out.splitlines())
    assert set(lines) == {"qbench", "python", "onnxruntime", "onnx", "onnx-ir", "numpy", "torch", "optuna", "mlflow"}
    assert lines["onnxruntime"] == metadata.version("onnxruntime")


@pytest.mark.parametrize(("arguments", "meant"), [
    (["targets", "rk358"], "rk3588"), (["calibrators", "percntile"], "percentile"), (["presets", "dorlock"], "door-lock"), (["serch"], "search"),
    (["search", "--sample", "fashon"], "fashion"), (["search", "--sample", "fashion", "--metric", "topp1"], "top1"),
    (["search", "--sample", "fashion", "--target", "RK3588x"], "rk3588"), (["toolchain", "check", "rknnn"], "rknn")])
def test_the_name_that_was_meant_is_proposed(here: Path, capfd: pytest.CaptureFixture[str], arguments: list[str], meant: str) -> None:
    assert qbench(*arguments) == 2
    assert f"id you mean '{meant}'?" in capfd.readouterr().err


def test_nothing_is_proposed_for_what_resembles_nothing() -> None:
    assert nearest("zzzz", ["rk3588", "ane"]) == ""
    assert str(unknown("target", "zzzz", ["rk3588"], ", or a file")) == "no target 'zzzz'; known: rk3588, or a file"
    assert nearest("KL", ["kl", "mse"]) == "kl"
