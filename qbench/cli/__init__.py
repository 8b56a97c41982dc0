"""The command line: each command parses, calls one function of the library, prints.

Exit codes: 0 done; 1 the budget or floor cannot be met (the nearest plan is still written); 2 bad input; 3 an external tool or
board failed; 130 stopped by Ctrl-C.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from qbench.errors import QbenchError


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point of the `qbench` command. Returns nothing to the shell but the exit code."""
    from qbench.cli.app import app

    try:
        app(args=list(arguments) if arguments is not None else None, prog_name="qbench", standalone_mode=True)
    except QbenchError as error:
        print(f"qbench: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        print("qbench: stopped", file=sys.stderr)
        sys.exit(130)
    except BrokenPipeError:
        sys.stderr.close()
        sys.exit(0)
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        print(f"qbench: {where}{error.strerror or error}", file=sys.stderr)
        sys.exit(2)
    return 0
