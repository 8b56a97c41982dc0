"""The memory of a search: what is kept, and that a killed search goes on where it was."""

from __future__ import annotations

import math
import os
import select
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import fake_search
import optuna
import pytest
from fake_search import FakeEvaluator, answer, chain, costs, like_brain, middle_budget, problem, resumable

from qbench.errors import InputError
from qbench.network import Precision
from qbench.plan import Plan
from qbench.protocols import Accuracy
from qbench.search.budget import Budget, MaxDrop
from qbench.search.ledger import WHOLE, Ledger, Memory, StudyLedger, open_ledger
from qbench.search.optuna_driver import HOPELESS, config_of
from qbench.search.run import run
from qbench.search.shared import Seen
from qbench.search.space import Config, Costs

NETWORK = chain(2)
SPACE = problem(Path(), NETWORK).space
ACCURACY = Accuracy("dice", 0.9, 0.89, 0.91, 48, 0.03, 0.02, 0.04, math.inf, 0.99, math.nan, 0.5, True)
CONFIG = Config((Precision.INT8, Precision.FP16), "minmax", "per-channel", "1000MHz")
COSTS = Costs(0.03, 12.0, 8.0, {"latency": -0.1, "drop": 0.02})
TIMEOUT_S = 60


def url(folder: Path) -> str:
    return f"sqlite:///{folder}/deep/study.db"


@pytest.mark.parametrize("opened", [lambda folder: Memory(), lambda folder: open_ledger(url(folder), "a", SPACE)], ids=["memory", "database"])
def test_what_is_remembered_is_recalled(tmp_path: Path, opened: Callable[[Path], Ledger]) -> None:
    ledger = opened(tmp_path)
    assert ledger.recall("p", WHOLE) is None
    ledger.remember("p", WHOLE, Seen(ACCURACY, 1.0))
    ledger.remember("p", 8, Seen(replace(ACCURACY, samples=8), 0.25))
    whole, quick = ledger.recall("p", WHOLE), ledger.recall("p", 8)
    assert whole == Seen(ACCURACY, 1.0)
    assert quick is not None and (quick.accuracy.samples, quick.passes) == (8, 0.25)
    assert ledger.recall("q", WHOLE) is None and ledger.recall("p", 9) is None
    ledger.finish(CONFIG, COSTS, {})


def test_without_a_database_it_is_kept_in_memory() -> None:
    assert isinstance(open_ledger(None, "a", SPACE), Memory)


@pytest.mark.parametrize(("address", "cure"), [
    ("sqlite:///{}/file/x/study.db", r"the folder .*/file/x cannot be made: .*/file is a file; name another place \(--storage\)"),
    ("sqlite:///{}/file", r"file is not a database. Give another --storage, or remove the file"),
    ("nonsense://x", r"Can't load plugin.*Give another --storage, such as sqlite:///study.db")])
def test_a_database_that_cannot_be_opened_is_told_with_the_cure(tmp_path: Path, address: str, cure: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("qbench.search.ledger.PAUSE_S", 0.0)
    (tmp_path / "file").write_text("no database, and long enough to be told from an empty one: " * 9)
    with pytest.raises(InputError, match=cure):
        open_ledger(address.format(tmp_path), "a", SPACE)


def test_another_process_reads_every_figure_back(tmp_path: Path) -> None:
    """Not-a-numbers and infinities included; and only from the study of the same name."""
    first = StudyLedger(url(tmp_path), "a", SPACE)
    first.remember("key/with/slashes", 8, Seen(ACCURACY, 0.125))
    again = StudyLedger(url(tmp_path), "a", SPACE).recall("key/with/slashes", 8)
    assert again is not None and again.passes == 0.125
    assert repr(asdict(again.accuracy)) == repr(asdict(ACCURACY))
    assert StudyLedger(url(tmp_path), "b", SPACE).recall("key/with/slashes", 8) is None


def test_a_candidate_is_one_finished_trial_that_optuna_can_read(tmp_path: Path) -> None:
    ledger = StudyLedger(url(tmp_path), "a", SPACE)
    ledger.finish(CONFIG, COSTS, {"plan_key": "p", "origin": "milp"})
    ledger.finish(CONFIG, COSTS, {})
    StudyLedger(url(tmp_path), "a", SPACE).finish(CONFIG, COSTS, {})
    lost = Config((Precision.INT8, Precision.INT8), "minmax", "per-channel", "1000MHz")
    ledger.finish(lost, Costs(math.nan, 1.0, math.inf), {})
    first, second = optuna.load_study(study_name="a", storage=url(tmp_path)).trials
    assert first.state is optuna.trial.TrialState.COMPLETE
    assert first.values == [0.03, 12.0, 8.0]
    assert config_of(SPACE, first.params) == CONFIG
    assert first.user_attrs == {"plan_key": "p", "origin": "milp", "config_key": CONFIG.key}
    assert first.constraints == COSTS.constraints
    assert second.values == [HOPELESS, 1.0, HOPELESS]


def test_a_database_that_cannot_be_opened_says_how_to_mend_it(tmp_path: Path) -> None:
    (tmp_path / "study.db").write_text("this is a letter, not a database")
    for wrong in (f"sqlite:///{tmp_path}/study.db", "nosuchdatabase://x"):
        with pytest.raises(InputError) as caught:
            open_ledger(wrong, "a", SPACE)
        assert wrong in str(caught.value)
        assert "Give another --storage" in str(caught.value)
        assert "\n" not in str(caught.value)


def test_the_study_is_named_after_what_decides_the_search(tmp_path: Path) -> None:
    """More trials, another folder or another model path continue the study; anything that changes a step begins a new one."""
    base = problem(tmp_path, NETWORK, ("5ms",))
    for same in (replace(base, trials=99), replace(base, out=tmp_path / "x"), replace(base, model="x.onnx"), replace(base, storage="sqlite:///x")):
        assert same.study_name == base.study_name
    others = [replace(base, seed=1), replace(base, strategy="tpe"), replace(base, budgets=(Budget.parse("6ms"),)), replace(base, subset=4),
              replace(base, max_drop=MaxDrop(0.01)), replace(base, data_key="x"), replace(base, target="x"), replace(base, toolkit="2"),
              replace(base, calibrators=("minmax",)), replace(base, op_points=("1MHz",)), replace(base, network=replace(NETWORK, model_key="x")),
              replace(base, allowed={u: (Precision.FP16,) for u in base.allowed})]
    assert len({base.study_name, *(o.study_name for o in others)}) == 1 + len(others)


# ------------------------------------------------------------------------------------------------ resumed


def small(folder: Path, trials: int) -> Any:
    network = chain(6)
    priced = costs(network)
    return problem(folder, network, (middle_budget(priced, 0.6),), trials=trials, storage=url(folder)), priced


def test_a_finished_search_run_again_evaluates_nothing_and_more_trials_go_on(tmp_path: Path) -> None:
    asked, priced = small(tmp_path, 8)
    first = FakeEvaluator(like_brain(6))
    found = run(asked, first, priced)
    again = FakeEvaluator(like_brain(6))
    assert answer(run(asked, again, priced)) == answer(found)
    assert again.log == [] != first.log
    more = FakeEvaluator(like_brain(6))
    longer = run(replace(asked, trials=12), more, priced)
    assert longer.evaluated >= 12
    assert more.log and not set(more.log) & set(first.log)
    trials = optuna.load_study(study_name=asked.study_name, storage=asked.storage).trials
    assert {t.user_attrs["plan_key"] for t in trials} == {c.plan_key for c in (*found.candidates, *longer.candidates)}
    for trial, c in zip(trials, found.candidates, strict=False):
        assert trial.values == [c.accuracy.drop, c.price.latency_ms, c.price.energy_mj]
        assert all(v <= 0.0 for v in trial.constraints.values()) == c.feasible
        assert (trial.user_attrs["name"], trial.user_attrs["accuracy"]["value"]) == (c.name, c.accuracy.value)


class Child:
    """The search of fake_search in a process of its own, which stands still at its evaluation number `pause_at`."""

    def __init__(self, folder: Path, pause_at: int) -> None:
        here = folder / f"here{pause_at}"
        os.mkfifo(here)
        self.reading = os.open(here, os.O_RDONLY | os.O_NONBLOCK)
        self.process = subprocess.Popen([sys.executable, fake_search.__file__, str(folder), str(pause_at), str(here)],
                                        stdout=subprocess.PIPE, stderr=subprocess.PIPE)

    def kill_when_paused(self) -> None:
        """SIGKILL the moment it says that it stands; fails with its error output should it end before."""
        assert self.process.stdout is not None
        ready, _, _ = select.select([self.reading, self.process.stdout.fileno()], [], [], TIMEOUT_S)
        self.process.kill()
        _, errors = self.process.communicate()
        os.close(self.reading)
        assert ready == [self.reading], errors.decode()


def test_killed_twice_and_resumed_it_finds_the_same(tmp_path: Path) -> None:
    """SIGKILL while sensitivities are measured, and again while plans are tried: the third run ends as one that nobody killed,
    and no evaluation is done twice."""
    network = chain(12)
    priced = costs(network)
    whole = FakeEvaluator(like_brain())
    expected = run(replace(resumable(tmp_path / "whole", network, priced), storage=None), whole, priced)
    folder = tmp_path / "killed"
    folder.mkdir()
    for pause_at in (10, 40):
        Child(folder, pause_at).kill_when_paused()
        assert not (folder / "answer.json").exists()
    last = FakeEvaluator(like_brain())
    found = run(resumable(folder, network, priced), last, priced)
    assert last.log == whole.log[50:]
    assert last.log
    assert answer(found) == answer(expected)
    assert all(Plan.load(folder / c.plan).key == c.plan_key for c in found.candidates)
    trials = optuna.load_study(study_name=resumable(folder, network, priced).study_name, storage=f"sqlite:///{folder}/study.db").trials
    assert sorted(t.user_attrs["name"] for t in trials) == sorted(c.name for c in expected.candidates)
