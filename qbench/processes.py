"""What is known of other processes of this machine."""

from __future__ import annotations

import os


def alive(pid: int) -> bool:
    """True while a process of that number runs here, whoever's it is; no process has a number below 1."""
    if pid < 1:
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
