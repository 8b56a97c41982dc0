# mypy: ignore-errors
"""What every worker does: request.json in, answer.json out, and no longer alive than who asked."""

import ctypes
import json
import signal
import sys
import time
import traceback

PR_SET_PDEATHSIG = 1


class Refused(Exception):
    """The vendor's tool, or a rule here, says no."""


def serve(work, said=lambda error: (str(error).strip().splitlines() or [""])[-1]):
    """Answers with what `work(request)` returns and the seconds it took, or with {"refused": reason}.

    said   the words of an exception of the vendor's, behind its type; the whole of it goes to the log
    """
    _end_with_parent()
    asked, answered = sys.argv[1:]
    with open(asked) as file:
        request = json.load(file)
    started = time.monotonic()
    try:
        answer = work(request)
        answer = {"seconds": time.monotonic() - started, **answer}
    except Refused as error:
        answer = {"refused": str(error)}
    except Exception as error:             # noqa: BLE001  a toolkit may raise anything, and the reason shall arrive
        traceback.print_exc()
        answer = {"refused": f"{type(error).__name__}: {said(error)}"}
    with open(answered, "w") as file:
        json.dump(answer, file)


def _end_with_parent():
    """Linux ends this process when the one that started it is gone: a compiler that hangs would go on for ever. Source: prctl(2), PR_SET_PDEATHSIG."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
