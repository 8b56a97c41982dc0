"""Killed with SIGKILL in the middle of an evaluation, a search continues and ends as if nothing had happened."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import optuna
import pytest
from fake_search import FakeEvaluator, answer, chain, costs, like_brain, problem, resumable

from qbench.errors import InputError
from qbench.search.ledger import WHOLE, Memory, Seen, StudyLedger, open_ledger
from qbench.search.run import run
from qbench.search.space import Config, Costs

NETWORK = chain(12)
COSTS = costs(NETWORK)
STEP_S = 0.02
"""Between two looks for the file that the other process writes."""


def killed(folder: Path, at: int) -> None:
    """Runs the search of `fake_search.main` in a process of its own and kills it at evaluation `at`."""
    mark = folder / f"reached-{at}"
    script = Path(__file__).with_name("fake_search.py")
    with subprocess.Popen([sys.executable, str(script), str(folder), str(at), str(mark)]) as process:
        while not mark.exists():
            assert process.poll() is None, "the search ended before it reached the evaluation"
            time.sleep(STEP_S)
        process.send_signal(signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL


def test_killed_again_and_again_it_ends_as_if_never_killed(tmp_path: Path) -> None:
    for at in (6, 15, 20):                                 # among calibrators, sensitivities, exact or sampled plans
        killed(tmp_path, at)
    evaluator = FakeEvaluator(like_brain())
    resumed = run(resumable(tmp_path, NETWORK, COSTS), evaluator, COSTS)
    all_at_once = FakeEvaluator(like_brain())
    straight = run(resumable(tmp_path / "straight", NETWORK, COSTS), all_at_once, COSTS)
    assert json.dumps(answer(resumed)) == json.dumps(answer(straight))
    assert len(evaluator.log) == len(all_at_once.log) - 6 - 15 - 20         # nothing finished is evaluated again
    assert evaluator.log == all_at_once.log[-len(evaluator.log):]


def test_a_finished_search_is_remembered_whole_and_more_trials_go_on_from_it(tmp_path: Path) -> None:
    first = run(resumable(tmp_path, NETWORK, COSTS), FakeEvaluator(like_brain()), COSTS)
    again = FakeEvaluator(like_brain())
    assert answer(run(resumable(tmp_path, NETWORK, COSTS), again, COSTS)) == answer(first)
    assert again.log == []


def test_the_database_holds_one_finished_trial_per_candidate(tmp_path: Path) -> None:
    goal = resumable(tmp_path, NETWORK, COSTS)
    found = run(goal, FakeEvaluator(like_brain()), COSTS)
    assert goal.storage is not None
    trials = optuna.load_study(study_name=goal.study_name, storage=goal.storage).get_trials()
    assert [t.user_attrs["name"] for t in trials] == [c.name for c in found.candidates]
    assert {t.state for t in trials} == {optuna.trial.TrialState.COMPLETE}
    for trial, c in zip(trials, found.candidates, strict=True):
        assert trial.values == [c.accuracy.drop, c.price.latency_ms, c.price.energy_mj]
        assert all(v <= 0.0 for v in trial.constraints.values()) == c.feasible
        assert trial.user_attrs["accuracy"]["value"] == c.accuracy.value


@pytest.mark.parametrize("change", [{"seed": 1}, {"strategy": "tpe"}, {"data_key": "other"}, {"target": "rk3562"}, {"subset": 9}])
def test_another_problem_is_another_study(tmp_path: Path, change: dict[str, Any]) -> None:
    from dataclasses import replace

    goal = problem(tmp_path, NETWORK, ("20ms",))
    assert replace(goal, **change).study_name != goal.study_name
    assert replace(goal, trials=99).study_name == goal.study_name
    assert problem(tmp_path, NETWORK, ("21ms",)).study_name != goal.study_name


def seen(value: float) -> Seen:
    from qbench.protocols import Accuracy

    return Seen(Accuracy("dice", value, value, value, 48, 1.0 - value, float("-inf"), 0.1, float("inf"), 1.0, float("nan"), 0.5), 1.5)


@pytest.mark.parametrize("url", [None, "sqlite:///{}/deep/er/study.db"])
def test_a_ledger_gives_back_what_it_was_given(tmp_path: Path, url: str | None) -> None:
    space = problem(tmp_path, NETWORK).space
    ledger = open_ledger(url and url.format(tmp_path), "study", space)
    ledger.remember("plan", WHOLE, seen(0.9))
    ledger.remember("plan", 8, seen(0.8))
    again = ledger if isinstance(ledger, Memory) else open_ledger(url and url.format(tmp_path), "study", space)
    for one in (ledger, again):
        assert repr(one.recall("plan", WHOLE)) == repr(seen(0.9))              # by text: nan is not equal to itself
        assert repr(one.recall("plan", 8)) == repr(seen(0.8))
        assert one.recall("plan", 9) is None


def test_a_candidate_is_written_once(tmp_path: Path) -> None:
    goal = problem(tmp_path, NETWORK)
    config = Config(tuple(a[0] for a in goal.space.allowed), "minmax", "per-channel", "1000MHz")
    url = f"sqlite:///{tmp_path}/study.db"
    for _ in range(2):
        ledger = StudyLedger(url, "study", goal.space)
        for _ in range(2):
            ledger.finish(config, Costs(float("nan"), 1.0, 2.0, {"latency": 0.5}), {"plan_key": "x", "accuracy": asdict(seen(0.5).accuracy)})
    assert len(optuna.load_study(study_name="study", storage=url).get_trials()) == 1


def test_a_database_that_cannot_be_opened_is_named(tmp_path: Path) -> None:
    broken = tmp_path / "study.db"
    broken.write_bytes(b"this is no database" * 100)
    with pytest.raises(InputError, match=r"study\.db cannot be opened: .*Give another --storage"):
        StudyLedger(f"sqlite:///{broken}", "study", problem(tmp_path, NETWORK).space)
