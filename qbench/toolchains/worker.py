"""Runs a script in a toolchain's environment: JSON in, JSON out, and a clear word when it dies."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from qbench.errors import ToolError

_COLOUR = re.compile(r"\x1b\[[\d;]*m")
LAST_LINES = 4


def call(python: Path, script: Path, request: Mapping[str, Any], *, folder: Path, seconds: float, what: str, beside: Sequence[Path] = ()) -> dict[str, Any]:
    """The worker's answer. It is started as `python script request.json answer.json` in `folder`, and what it prints goes to SCRIPT.log there.

    what   words for errors: "rknn-toolkit2 building net.onnx"; beside   modules that the script imports
    Raises ToolError when it crashes (naming the signal), ends with an error, answers nothing, takes longer than `seconds`, or
    answers {"refused": reason}; with the last lines of its log.
    """
    stem, folder = script.stem, folder.absolute()
    asked, answered, log = (folder / f"{stem}.{suffix}" for suffix in ("request.json", "answer.json", "log"))
    asked.write_text(json.dumps(dict(request), indent=1), encoding="utf-8")
    answered.unlink(missing_ok=True)
    for module in (script, *beside):                          # copied: Python looks for modules beside the script first, and must find no others
        shutil.copyfile(module, folder / module.name)
    plain = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "PYTHONHOME", "PYTHONWARNINGS")}
    with open(log, "wb") as words:
        process = subprocess.Popen([str(python), str(folder / script.name), str(asked), str(answered)], cwd=folder, stdin=subprocess.DEVNULL, stdout=words,
                                   stderr=subprocess.STDOUT, env=plain, start_new_session=os.name == "posix")
        try:
            status = process.wait(seconds)
        except subprocess.TimeoutExpired:
            _stop(process)
            raise ToolError(f"{what}: stopped after {seconds:.0f} s{_last(log)}") from None
        except BaseException:
            _stop(process)
            raise
    if status < 0:
        raise ToolError(f"{what}: it crashed ({_signal(-status)}){_last(log)}")
    answer = _answer(answered)
    if answer is not None and "refused" in answer:
        raise ToolError(f"{what}: {answer['refused']}")
    if status or answer is None:
        raise ToolError(f"{what}: it ended with exit status {status} and {'no answer' if answer is None else 'an answer that is not to be trusted'}{_last(log)}")
    return answer


def log_of(folder: Path, script: Path) -> str:
    """What the worker printed."""
    return (folder / f"{script.stem}.log").read_text(encoding="utf-8", errors="replace")


def _stop(process: subprocess.Popen[bytes]) -> None:
    """The worker and what it started."""
    if os.name == "posix":
        os.killpg(process.pid, signal.SIGKILL)
    else:
        process.kill()
    process.wait()


def _answer(path: Path) -> dict[str, Any] | None:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, json.JSONDecodeError):
        return None
    return found if isinstance(found, dict) else None


def _signal(number: int) -> str:
    try:
        return f"signal {number}, {signal.Signals(number).name}" + (": stopped from outside, mostly for want of memory" if number == 9 else "")
    except ValueError:
        return f"signal {number}"


def _last(log: Path) -> str:
    """The last lines that say something, without colours and progress bars."""
    text = _COLOUR.sub("", log.read_text(encoding="utf-8", errors="replace"))
    lines = [part for line in text.splitlines() if (part := line.rsplit("\r", 1)[-1].strip()) and "it/s]" not in part]
    return f"; its last words: {' | '.join(lines[-LAST_LINES:])[-600:]}" if lines else "; it printed nothing"
