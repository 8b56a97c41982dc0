"""What would make a network cheaper on a chip: every step is tried in the cost model and priced.

    advised(setup, model, operators)   the list for one network, chip and plan
    Setup, priced                      everything that a price depends on, and the price
    STEPS                              the list's lines
"""

from qbench.advice.advise import advised
from qbench.advice.claims import claims, claims_about
from qbench.advice.records import Advice, Advisory, Claim, Consent, State, Step, Subject, Together
from qbench.advice.setup import Cost, Setup, priced
from qbench.advice.steps import STEPS

__all__ = ["STEPS", "Advice", "Advisory", "Claim", "Consent", "Cost", "Setup", "State", "Step", "Subject", "Together", "advised", "claims", "claims_about",
           "priced"]
