"""The workers that run in vendors' environments: what they share, and what is copied beside them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from qbench.errors import ToolError
from qbench.targets.exporters import workers
from qbench.targets.exporters.workers import INSIDE, SHARED, ask, log_of

PYTHON = Path(sys.executable)


def stand_in(folder: Path, monkeypatch: pytest.MonkeyPatch, body: str) -> None:
    """A vendor "stand_in" whose worker serves `body`."""
    (folder / "stand_in_worker.py").write_text(f"from answering import Refused, serve\nfrom stand_in_part import TWICE\n\n{body}\n\nserve(work)\n")
    (folder / "stand_in_part.py").write_text("TWICE = 2\n")
    (folder / "other_worker.py").write_text("")
    monkeypatch.setattr(workers, "INSIDE", folder)


def test_a_worker_finds_its_parts_and_no_others_beside_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = tmp_path / "place"
    place.mkdir()
    stand_in(tmp_path, monkeypatch, "def work(request):\n    return {'double': TWICE * request['number']}")
    answer = ask(PYTHON, "stand_in", {"number": 21}, folder=place, seconds=30.0, what="w")
    assert answer["double"] == 42 and answer["seconds"] >= 0.0
    assert {p.name for p in place.glob("*.py")} == {"answering.py", "stand_in_part.py", "stand_in_worker.py"}


@pytest.mark.parametrize(("body", "words"), [
    ("raise Refused('no rule for Foo')", r"^w: no rule for Foo$"), ("raise ValueError('long\\n  the reason')", r"^w: ValueError: *the reason$"),
    ("raise KeyError()", r"^w: KeyError: $"),
])
def test_refusals_and_exceptions_arrive_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: str, words: str) -> None:
    place = tmp_path / "place"
    place.mkdir()
    stand_in(tmp_path, monkeypatch, f"def work(request):\n    {body}")
    with pytest.raises(ToolError, match=words):
        ask(PYTHON, "stand_in", {}, folder=place, seconds=30.0, what="w")
    assert ("Traceback" in log_of(place, "stand_in")) == ("Refused" not in body)


def test_every_worker_serves_and_needs_nothing_of_qbench() -> None:
    scripts = sorted(INSIDE.glob("*_worker.py"))
    assert {p.name for p in scripts} >= {"coreml_worker.py", "openvino_worker.py", "qnn_worker.py", "rknn_worker.py", "tflite_worker.py"}
    assert all("serve(work" in p.read_text(encoding="utf-8") for p in scripts)
    lines = [line for p in INSIDE.glob("*.py") for line in p.read_text(encoding="utf-8").splitlines()]
    assert not [line for line in lines if line.startswith(("import qbench", "from qbench", "from ."))]


@pytest.mark.skipif(sys.platform != "linux", reason="prctl is Linux's")
def test_a_worker_does_not_outlive_who_asked(tmp_path: Path) -> None:
    """A qbench that is killed cannot stop a compiler that hangs."""
    (tmp_path / "answering.py").write_bytes(SHARED.read_bytes())
    (tmp_path / "worker.py").write_text("import os, time\nfrom answering import serve\n\ndef work(request):\n    open('pid', 'w').write(str(os.getpid()))\n"
                                        "    os.rename('pid', 'started')\n    time.sleep(60)\n\nserve(work)\n")
    (tmp_path / "request.json").write_text(json.dumps({}))
    asking = subprocess.Popen([sys.executable, "-c", "import subprocess, sys; subprocess.run([sys.executable, 'worker.py', 'request.json', 'answer.json'])"], cwd=tmp_path)
    until = time.monotonic() + 30.0
    while not (tmp_path / "started").exists() and time.monotonic() < until:
        time.sleep(0.02)
    asking.send_signal(signal.SIGKILL)
    asking.wait()
    process = int((tmp_path / "started").read_text())
    while _alive(process) and time.monotonic() < until:
        time.sleep(0.02)
    assert not _alive(process)


def _alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return "State:\tZ" not in Path(f"/proc/{process}/status").read_text()
