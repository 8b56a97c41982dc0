"""From a plan to a vendor's artefact, and proof that the plan arrived (BUG case B29).

    Job, Exporter, Produced        what an exporter gets, is, and hands back
    Contents, differences          what the plan demands and what the artefact holds, compared
    planned, read_qdq              both read from a Q/DQ model
    simulated                      a simulator's outputs against onnxruntime's
    export                         the whole of it, into one folder
    check_versions                 may this board run that artefact?
"""

from qbench.export.comparing import simulated
from qbench.export.contents import Consent, Contents, Difference, Layer, StoredTensor, differences
from qbench.export.exporting import export
from qbench.export.planned import planned, read_qdq
from qbench.export.records import PLAN, QDQ, Exporter, Job, Produced, Simulated
from qbench.versions import check_versions, satisfies

__all__ = [
    "PLAN", "QDQ", "Consent", "Contents", "Difference", "Exporter", "Job", "Layer", "Produced", "Simulated", "StoredTensor", "check_versions",
    "differences", "export", "planned", "read_qdq", "satisfies", "simulated",
]
