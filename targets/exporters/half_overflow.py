"""Float units whose values would leave FP16, on chips that have no wider float."""

from __future__ import annotations

from collections.abc import Iterator

from qbench.export import Job

OVERFLOWS = "FP16 could overflow"
"""How a plan's note begins its reason where values beyond 65504 were seen."""


def overflows(job: Job) -> Iterator[str]:
    """One line for each float unit of the plan that a note says this of."""
    network = job.prepared.network
    for unit, note in job.plan.notes.items():
        if OVERFLOWS in note and job.plan.precision[unit].is_float:
            operators = ", ".join(dict.fromkeys(o for k in network.kernels if network.unit_of_kernel[k.name] == unit for o in k.op.split("+")))
            yield (f"unit {unit!r} ({operators}): {note[note.index(OVERFLOWS):]}, and the NPU has no wider float; scale its input down in the model (a normalisation "
                   "does not mind), or end the model before it and run it on the CPU")
