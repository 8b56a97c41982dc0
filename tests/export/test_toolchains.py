"""Toolchains: what is here, one clear line for what is not, and workers that may die."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from qbench import toolchains
from qbench.errors import InputError, ToolchainMissing, ToolError, UnknownName
from qbench.toolchains import environment

PYTHON = Path(sys.executable)


def worker(folder: Path, body: str, seconds: float = 30.0) -> dict[str, object]:
    """Runs `body` as a worker; it sees `request` and calls `answer(...)`."""
    script = folder / "scripts" / "stand_in.py"
    script.parent.mkdir()
    script.write_text("import json, os, signal, sys, time\nrequest = json.load(open(sys.argv[1]))\n"
                      "def answer(**body):\n    json.dump(body, open(sys.argv[2], 'w'))\n" + body)
    place = folder / "place"
    place.mkdir()
    return toolchains.call(PYTHON, script, {"number": 20, "name": "Ünïcode"}, folder=place, seconds=seconds, what="stand-in building net")


def test_json_goes_in_and_comes_out_and_the_log_is_kept(tmp_path: Path) -> None:
    assert worker(tmp_path, "print('hello'); answer(double=request['number'] * 2, name=request['name'])") == {"double": 40, "name": "Ünïcode"}
    assert toolchains.log_of(tmp_path / "place", Path("stand_in.py")).strip() == "hello"


def test_a_crash_is_told_with_its_signal_and_the_last_words(tmp_path: Path) -> None:
    with pytest.raises(ToolError, match=r"stand-in building net: it crashed \(signal 11, SIGSEGV\); its last words: \x1b?.*Resize"):
        worker(tmp_path, "print('\\x1b[1;31mE\\x1b[0m Resize cubic', flush=True); os.kill(os.getpid(), signal.SIGSEGV)")


def test_a_worker_that_takes_too_long_is_stopped(tmp_path: Path) -> None:
    with pytest.raises(ToolError, match=r"stopped after 1 s; its last words: still building"):
        worker(tmp_path, "print('still building', flush=True); time.sleep(60)", seconds=1.0)


@pytest.mark.parametrize(("body", "words"), [
    ("raise ValueError('Unsupport onnx opset 21')", "exit status 1 and no answer.*Unsupport onnx opset 21"),
    ("answer(refused='no int16 here')", "stand-in building net: no int16 here"),
    ("pass", "exit status 0 and no answer; it printed nothing"),
    ("answer(fine=True); sys.exit(3)", "exit status 3 and an answer that is not to be trusted"),
    ("open(sys.argv[2], 'w').write('{half')", "no answer"),
])
def test_other_ends_are_told_apart(tmp_path: Path, body: str, words: str) -> None:
    with pytest.raises(ToolError, match=words):
        worker(tmp_path, body)


def test_modules_beside_the_worker_do_not_hide_the_toolkits(tmp_path: Path) -> None:
    """A worker lies beside rknn.py, and the toolkit's package is called rknn."""
    (tmp_path / "scripts").mkdir()
    (tmp_path / "scripts/tomllib.py").write_text("raise ImportError('the wrong one')")
    (tmp_path / "place").mkdir()
    script = tmp_path / "scripts/stand_in.py"
    script.write_text("import json, sys, tomllib\njson.dump({'found': hasattr(tomllib, 'loads')}, open(sys.argv[2], 'w'))")
    assert toolchains.call(PYTHON, script, {}, folder=tmp_path / "place", seconds=30.0, what="w") == {"found": True}


@pytest.mark.parametrize("name", toolchains.names())
def test_every_toolchain_file_reads_and_pins_its_package(name: str) -> None:
    found = toolchains.load(name)
    assert found.title and found.does and found.python and found.imports
    assert any(f"{found.package}=={found.version}" in step for step in found.steps)


def test_a_missing_toolchain_is_one_clear_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QBENCH_TOOLCHAINS", str(tmp_path))
    monkeypatch.delenv("QBENCH_TOOLCHAIN_RKNN", raising=False)
    with pytest.raises(ToolchainMissing, match=r"^rknn-toolkit2 2\.5\.0 is not here: qbench toolchain install rknn \(about 1500 MB, into .*rknn-2\.5\.0\)$"):
        toolchains.need("rknn")
    assert toolchains.check("rknn").where is None and not toolchains.check("rknn").ready
    monkeypatch.setenv("QBENCH_TOOLCHAIN_RKNN", str(tmp_path / "nothing"))
    with pytest.raises(ToolchainMissing, match=r"QBENCH_TOOLCHAIN_RKNN names .* which is no interpreter"):
        toolchains.need("rknn")
    with pytest.raises(UnknownName, match=r"no toolchain 'rkn'; .*known: .*rknn"):
        toolchains.load("rkn")


def test_a_broken_environment_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The running interpreter has no rknn.api."""
    monkeypatch.setenv("QBENCH_TOOLCHAIN_RKNN", sys.executable)
    found = toolchains.check("rknn")
    assert found.where == PYTHON and not found.ready and "rknn" in found.broken


def test_an_interpreter_that_does_not_fit_is_refused_before_anything_is_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QBENCH_TOOLCHAINS", str(tmp_path))
    monkeypatch.setattr(environment, "load", lambda name: replace(toolchains.load("rknn"), python=("<3.0",)))
    with pytest.raises(InputError, match=r"needs Python <3\.0, .* is 3\..*--python"):
        toolchains.install("rknn")
    assert list(tmp_path.iterdir()) == []


def test_an_environment_is_made_and_a_failure_leaves_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A labelled stand-in: the toolchain is pip itself, which every environment has; nothing is downloaded."""
    monkeypatch.setenv("QBENCH_TOOLCHAINS", str(tmp_path))
    monkeypatch.delenv("QBENCH_TOOLCHAIN_RKNN", raising=False)
    stand_in = replace(toolchains.load("rknn"), package="pip", version="0", imports=("pip",), steps=(("--no-index", "pip"),))
    monkeypatch.setattr(environment, "load", lambda name: stand_in)
    made = toolchains.install("rknn")
    assert made.ready and made.where is not None and made.where.is_relative_to(tmp_path / "rknn-0") and made.version
    monkeypatch.setattr(environment, "load", lambda name: replace(stand_in, version="1", steps=(("--no-index", "no-such-package-of-ours"),)))
    with pytest.raises(ToolError, match=r"pip cannot install --no-index no-such-package-of-ours: .*"):
        toolchains.install("rknn")
    assert [p.name for p in tmp_path.iterdir()] == ["rknn-0"]
