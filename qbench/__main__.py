"""python -m qbench."""

import sys

from qbench.cli import main

if __name__ == "__main__":
    sys.exit(main())
