"""What a step of advice answers, and what becomes of it once it is priced."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum

from qbench.advice.setup import Cost, Setup
from qbench.graph import PreparedModel


class Consent(StrEnum):
    """What a change does to the network's answers."""

    EXACT = "exact"                    # the same, up to rounding that the chip may do anyway
    RESULT = "changes result"          # other numbers from the same weights: evaluate
    RETRAIN = "needs retraining"


class State(StrEnum):
    """What to make of a step on this network and chip."""

    DO = "do"                          # exact and cheaper
    CONSENT = "with consent"           # cheaper, but changes results or needs training
    TRADE = "trade-off"                # one figure falls, another grows
    HOST = "on the host"               # saves time that the prediction does not hold
    COSTS = "costs"                    # dearer: where anything, it buys accuracy
    NONE = "saves nothing"
    ALREADY = "already counted"        # part of the prediction; what is lost without it
    CONTRADICTED = "contradicted"      # public sources say it does not do what is claimed
    UNPRICED = "not priced"
    INAPPLICABLE = "does not apply"


@dataclass(frozen=True, slots=True)
class Claim:
    """A claim of the article about a step, and what public sources say.

    verdict   "right", "partly right", "doubtful", "wrong" or "unsourced"
    holds     False: the step does not do what is claimed, so it is not recommended
    targets   prefixes of target names that it is about; () every one
    """

    step: str
    number: int
    says: str
    verdict: str
    found: str
    source: str
    holds: bool
    targets: tuple[str, ...]

    def concerns(self, target: str) -> bool:
        return not self.targets or target.startswith(self.targets)


@dataclass(frozen=True)
class Trial:
    """A step that applies, ready to be priced.

    do        what to do, as a sentence
    change    the setup with the step taken
    after     its cost, where a changed setup cannot express it (per sample of a batch, on the host)
    note      what the figure leaves out or rests on
    counted   the prediction has it already: `change` takes it away
    together  it may be taken with every other exact step
    at_most   the saving is an upper bound
    where     what to make of it, where the figures alone do not say: on the host, or a trade-off
    """

    do: str
    consent: Consent
    change: Callable[[Setup], Setup] | None = None
    after: Cost | None = None
    note: str = ""
    counted: bool = False
    together: bool = True
    at_most: bool = False
    where: State | None = None


@dataclass(frozen=True, slots=True)
class Unpriced:
    """A step that applies but has no price. why   "not priced because ..." """

    do: str
    consent: Consent
    why: str


@dataclass(frozen=True, slots=True)
class Inapplicable:
    """why   one line"""

    why: str


Answer = Trial | Unpriced | Inapplicable


@dataclass(frozen=True)
class Subject:
    """What is advised on.

    now        cost of `setup`
    operators  ONNX operator -> nodes in the user's file, before anything was folded
    slim       `setup` without nodes that do nothing or undo one another; None where there are none
    """

    setup: Setup
    now: Cost
    model: PreparedModel
    operators: dict[str, int]
    slim: Setup | None = None


@dataclass(frozen=True)
class Step:
    """One line of the tuning list. tries   every answer that the step has for a subject, one or more"""

    key: str
    title: str
    tries: Callable[[Subject], Iterator[Answer]]


@dataclass(frozen=True)
class Advice:
    """A step on this network and chip. Savings are what it takes off now's cost; negative ones cost.

    saved_ms_low, saved_ms_high   the saving times the target's factors, taken as common to before and after; a difference was not validated by
                                  itself. None: on the host, where nothing is known
    at_most                       the savings are upper bounds
    """

    step: str
    title: str
    state: State
    do: str
    consent: str
    note: str
    claims: tuple[Claim, ...] = ()
    saved_ms: float | None = None
    saved_ms_low: float | None = None
    saved_ms_high: float | None = None
    saved_mj: float | None = None
    saved_memory_bytes: float | None = None
    saved_dram_bytes: float | None = None
    at_most: bool = False


@dataclass(frozen=True)
class Together:
    """All exact steps that save time, taken at once and priced as one setup."""

    steps: tuple[str, ...]
    latency_ms: float
    energy_mj: float | None
    peak_memory_bytes: float


@dataclass(frozen=True)
class Advisory:
    """The whole list, best first."""

    subject: Subject
    advice: tuple[Advice, ...]
    together: Together
