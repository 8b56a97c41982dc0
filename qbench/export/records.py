"""What an exporter gets and what it hands back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from qbench.export.contents import Consent, Contents
from qbench.graph import PreparedModel
from qbench.plan import Plan
from qbench.protocols import Array, Progress
from qbench.qdq import Written
from qbench.target import Target

QDQ = "model.qdq.onnx"
PLAN = "plan.json"


@dataclass(frozen=True)
class Job:
    """One model, one plan, one target.

    prepared   with the plan's rewrites made
    written    the Q/DQ model of the plan, and which value is which tensor
    demanded   what the artefact must hold
    samples    a few real inputs of batch 1, model input -> array; the first is the golden one
    random     they were drawn at random, as no data were given
    options    "key" -> "value" of the command line; an exporter refuses those that it does not know
    """

    prepared: PreparedModel
    plan: Plan
    written: Written
    demanded: Contents
    target: Target
    toolkit: str
    samples: tuple[Mapping[str, Array], ...]
    random: bool = False
    options: Mapping[str, str] = field(default_factory=dict)

    @property
    def golden(self) -> Mapping[str, Array]:
        return self.samples[0]


@dataclass(frozen=True, slots=True)
class Simulated:
    """A vendor's simulator against onnxruntime on the same Q/DQ file.

    what            "rknn simulator, optimization level 0"
    lsb             largest difference of any output, in steps of that output's scale; None where outputs are float
    sqnr_db         of all outputs together, the worst sample; infinite when equal
    limit_lsb, least_sqnr_db   what is asked of both; None: reported only
    """

    what: str
    lsb: float | None
    sqnr_db: float
    limit_lsb: float | None = None
    least_sqnr_db: float | None = None
    note: str = ""

    @property
    def fails(self) -> str:
        """Why it is not good enough, "" when it is."""
        if self.limit_lsb is not None and self.lsb is not None and self.lsb > self.limit_lsb:
            return f"{self.what}: an output is {self.lsb:.3g} steps from onnxruntime's, allowed are {self.limit_lsb:g}"
        if self.least_sqnr_db is not None and not self.sqnr_db >= self.least_sqnr_db:
            return f"{self.what}: the outputs lie {self.sqnr_db:.1f} dB from onnxruntime's, expected at least {self.least_sqnr_db:g} dB"
        return ""


@dataclass(frozen=True)
class Produced:
    """What an exporter made.

    compiled     False: only files for the vendor's toolchain were written; `why_not` says why, and how to get it
    artefacts    file in the folder -> what it is
    reference    ONNX file in the folder whose output in onnxruntime is the golden output
    versions     "toolchain", "runtime", "driver" ... of what was used
    requires     what the board must have: "runtime" -> "==2.5.0"; see `qbench.versions`
    conventions  how numbers are to be read
    actual       what was read back from the artefact; None: nothing can be read, and `why_not` or a remark says so
    consent      changes that are announced
    layers       the vendor's table, one JSON row a layer
    facts        cycles, memory, seconds; JSON
    board_code   source of `def infer(folder, feeds)`, which returns the outputs in order, for the board's run.py; "" for none
    tolerance_lsb   what run.py allows, in steps of an output's scale
    """

    compiled: bool
    artefacts: Mapping[str, str]
    actual: Contents | None
    why_not: str = ""
    reference: str = QDQ
    versions: Mapping[str, str] = field(default_factory=dict)
    requires: Mapping[str, str] = field(default_factory=dict)
    conventions: Mapping[str, str] = field(default_factory=dict)
    consent: Mapping[str, Consent] = field(default_factory=dict)
    scale_tolerance: float = 0.0
    simulations: tuple[Simulated, ...] = ()
    layers: tuple[Mapping[str, Any], ...] = ()
    facts: Mapping[str, Any] = field(default_factory=dict)
    remarks: tuple[str, ...] = ()
    board_code: str = ""
    tolerance_lsb: float = 1.0


class Exporter(Protocol):
    """Turns a job into the artefacts of one vendor.

    name        "rknn"; title  for people; toolchain  its key in `qbench.toolchains`, "" for none
    """

    @property
    def name(self) -> str: ...
    @property
    def title(self) -> str: ...
    @property
    def toolchain(self) -> str: ...

    def check(self, job: Job) -> None:
        """Raises an InputError that names operator and rewrite, before anything is written."""
        ...

    def write(self, job: Job, folder: Path, progress: Progress) -> Produced:
        """Fill `folder`, which holds QDQ and PLAN already. Raises ToolError when the vendor's tool fails."""
        ...
