"""Settings of the whole suite."""

import os

from hypothesis import settings

# No deadline: a machine that does other things beside is not a bug. In CI the examples are the same every time.
settings.register_profile("qbench", deadline=None, derandomize=bool(os.environ.get("CI")))
settings.load_profile("qbench")
