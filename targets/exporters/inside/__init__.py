"""Modules that run inside the environments of the vendors' toolchains, never in qbench's own: nothing here imports qbench, and qbench imports nothing of here.

`NAME_worker.py` is started by `qbench.toolchains.call` from a folder of its own, with `answering.py` and its other parts copied beside it.
"""
