"""The command line: each command parses, calls one function of the library, prints.

Exit codes: 0 done; 1 the budget or floor cannot be met (the nearest plan is still written); 2 bad input; 3 an external tool or
board failed; 130 stopped by Ctrl-C.
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Sequence

from qbench.errors import QbenchError

PAGE = "docs/troubleshooting.md"
"""Where each code of an error has a section."""
ANYWHERE = ("--verbose", "--quiet")


def anywhere(arguments: list[str]) -> list[str]:
    """The arguments with the options that may stand anywhere in front, where the parser takes them; what follows "--" stays."""
    end = arguments.index("--") if "--" in arguments else len(arguments)
    moved = [a for a in arguments[:end] if a in ANYWHERE]
    return [*moved, *(a for a in arguments[:end] if a not in ANYWHERE), *arguments[end:]]


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point of the `qbench` command. Returns nothing to the shell but the exit code."""
    given = anywhere(list(sys.argv[1:] if arguments is None else arguments))
    try:
        from qbench.cli.app import app

        app(args=given, prog_name="qbench", standalone_mode=True)
    except QbenchError as error:
        if "--verbose" in given:
            traceback.print_exc()
        print(f"qbench: {error}\n  {error.code}: {PAGE}#{error.code.lower()}", file=sys.stderr)
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
