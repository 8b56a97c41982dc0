"""Where two machines that should agree first part, and why: every cause is a hypothesis that is computed and held against what was observed."""

from qbench.diagnosis.records import Cause, Diagnosis, Gap, LayerGap, Stage, Trial
from qbench.diagnosis.symptoms import Match, Symptom, look_up, symptoms

__all__ = ["Cause", "Diagnosis", "Gap", "LayerGap", "Match", "Stage", "Symptom", "Trial", "look_up", "symptoms"]
