"""Corrections: named steps between a float network and its integers, each switched on by itself and kept in the plan.

    steps       names and options; `chosen(texts)` reads what the user asked for
    rewritten   the network that a plan is about: equalized, with new mask constants
    equalize    cle: cross-layer equalization
    mask        attention masks with huge negative constants
    bias        bias correction, analytic and empirical
    adaround    learned rounding of weights

`qbench.workbench.correcting` puts them in order and measures what each gains.
"""

from qbench.corrections.rewriting import rewritten
from qbench.corrections.steps import DEFAULTS, STEPS, Correction, chosen, make, name_of, text_of

__all__ = ["DEFAULTS", "STEPS", "Correction", "chosen", "make", "name_of", "rewritten", "text_of"]
