"""Every step of the list tried on one network and chip, priced, and put in order."""

from __future__ import annotations

from qbench.advice.claims import claims_about
from qbench.advice.records import (
    Advice,
    Advisory,
    Answer,
    Consent,
    Inapplicable,
    State,
    Step,
    Subject,
    Together,
    Trial,
    Unpriced,
)
from qbench.advice.setup import Cost, Setup, priced
from qbench.advice.steps import STEPS
from qbench.graph import PreparedModel

NOTHING = 5e-4                 # share of what there is below which a saving is none
_ORDER = ((State.DO, State.CONSENT), (State.TRADE,), (State.HOST,), (State.COSTS,), (State.ALREADY,), (State.CONTRADICTED,), (State.NONE, State.UNPRICED), (State.INAPPLICABLE,))


def advised(setup: Setup, model: PreparedModel, operators: dict[str, int], steps: tuple[Step, ...] = STEPS,
            slim: Setup | None = None) -> Advisory:
    """The whole list for one setup, the largest saving first.

    operators   ONNX operator -> nodes in the user's file
    slim        the same network without nodes that do nothing, where it has such
    """
    subject = Subject(setup, priced(setup), model, operators, slim)
    answers = [(step, answer) for step in steps for answer in step.tries(subject)]
    found = [(_advice(step, answer, subject), answer) for step, answer in answers]
    together = _together(subject, [(a, t) for a, t in found if isinstance(t, Trial)])
    place = {state: i for i, states in enumerate(_ORDER) for state in states}
    return Advisory(subject, tuple(sorted((a for a, _ in found), key=lambda a: (place[a.state], -(a.saved_ms or 0.0)))), together)


def _advice(step: Step, answer: Answer, subject: Subject) -> Advice:
    about = claims_about(step.key, subject.setup.target.name)
    contradicted = any(not c.holds for c in about)
    if isinstance(answer, Inapplicable):
        if any(not c.holds and c.targets for c in about):
            return Advice(step.key, step.title, State.CONTRADICTED, "", "", answer.why, about)
        return Advice(step.key, step.title, State.INAPPLICABLE, "", "", answer.why, about)
    if isinstance(answer, Unpriced):
        state = State.CONTRADICTED if contradicted else State.UNPRICED
        return Advice(step.key, step.title, state, answer.do, str(answer.consent), answer.why, about)
    after = _after(answer, subject)
    before, after = (after, subject.now) if answer.counted else (subject.now, after)
    ms = (before.latency_s - after.latency_s) * 1e3
    mj = None if before.energy_j is None or after.energy_j is None else (before.energy_j - after.energy_j) * 1e3
    memory = before.peak_bytes - after.peak_bytes
    state = State.CONTRADICTED if contradicted else State.ALREADY if answer.counted else _state(ms, mj, memory, answer, subject.now)
    target = subject.setup.target
    low, high = (None, None) if answer.where is State.HOST else sorted((ms * target.latency_factor_low, ms * target.latency_factor_high))
    return Advice(step.key, step.title, state, answer.do, str(answer.consent), answer.note, about, ms, low, high, mj, memory,
                  before.dram_bytes - after.dram_bytes, answer.at_most)


def _after(trial: Trial, subject: Subject) -> Cost:
    if trial.after is not None:
        return trial.after
    assert trial.change is not None, "a trial has a changed setup or a cost"
    return priced(trial.change(subject.setup))


def _state(ms: float, mj: float | None, memory: float, trial: Trial, now: Cost) -> State:
    """What to make of the savings, small ones taken as none."""
    parts = (ms / (now.latency_s * 1e3), 0.0 if mj is None or not now.energy_j else mj / (now.energy_j * 1e3), memory / max(now.peak_bytes, 1.0))
    time, *others = (0.0 if abs(p) < NOTHING else p for p in parts)
    if time < 0.0:
        return State.TRADE if max(others) > 0.0 else State.COSTS
    if max(time, *others) > 0.0:
        return trial.where or (State.DO if trial.consent is Consent.EXACT else State.CONSENT)
    return State.NONE


def _together(subject: Subject, found: list[tuple[Advice, Trial]]) -> Together:
    """Every exact step that saves time and goes with the others, applied one after the other and priced once."""
    setup, taken = subject.setup, []
    for advice, trial in found:
        if advice.state is State.DO and trial.together and trial.change is not None:
            setup = trial.change(setup)
            taken.append(advice.step)
    cost = priced(setup) if taken else subject.now
    return Together(tuple(taken), cost.latency_s * 1e3, None if cost.energy_j is None else cost.energy_j * 1e3, cost.peak_bytes)
