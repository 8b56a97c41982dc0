"""One study, several processes: who does what, who waits, and what happens when one of them dies. And a pool that changes nothing."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import optuna
import pytest
from fake_search import FakeEvaluator, answer, chain, costs, like_brain, resumable
from sqlalchemy import Engine, create_engine

from qbench.addresses import with_driver, without_password
from qbench.errors import ModelError, QbenchError
from qbench.plan import Plan
from qbench.protocols import Accuracy
from qbench.search import shared
from qbench.search.ledger import StudyLedger
from qbench.search.run import run
from qbench.search.shared import Evaluations, Seen

ACCURACY = Accuracy("dice", 0.9, 0.89, 0.91, 48, 0.03, 0.02, 0.04, 30.0, 0.99, 0.1, 0.5)
DATABASES = [url for url in (os.environ.get("QBENCH_TEST_POSTGRESQL"), os.environ.get("QBENCH_TEST_MYSQL")) if url]


@pytest.fixture(params=["sqlite", *DATABASES])
def url(request: Any, tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/study.db" if request.param == "sqlite" else request.param


@pytest.fixture
def engine(url: str) -> Iterator[Engine]:
    made = create_engine(with_driver(url))
    yield made
    made.dispose()


def two(engine: Engine, study: str) -> tuple[Evaluations, Evaluations]:
    return Evaluations(engine, study), Evaluations(engine, study)


def test_only_one_of_two_may_do_it_and_the_other_reads_what_came_out(engine: Engine) -> None:
    a, b = two(engine, f"claims {os.getpid()}")
    assert a.claim("p", 0) and not b.claim("p", 0) and not a.claim("p", 0)
    assert b.claim("p", 8) and b.claim("q", 0)
    assert b.recall("p", 0) is None
    a.remember("p", 0, Seen(ACCURACY, 1.5))
    assert b.recall("p", 0) == Seen(ACCURACY, 1.5) and b.all() == {("p", 0): Seen(ACCURACY, 1.5)}
    assert not b.claim("p", 0)
    b.release("p", 8)
    assert a.claim("p", 8)
    b.release("p", 8)                                       # not b's any more
    assert not b.claim("p", 8)


def test_of_many_at_once_exactly_one_gets_it(engine: Engine) -> None:
    crowd = [Evaluations(engine, f"crowd {os.getpid()}") for _ in range(8)]
    start, won = threading.Barrier(8), []

    def rush(one: Evaluations) -> None:
        start.wait()
        for n in range(5):
            if one.claim("p", n):
                won.append(n)

    threads = [threading.Thread(target=rush, args=(one,)) for one in crowd]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert sorted(won) == [0, 1, 2, 3, 4]


def owned_by(evaluations: Evaluations, owner: str) -> Evaluations:
    evaluations._owner = owner
    return evaluations


def test_the_work_of_a_process_that_died_here_is_taken_over_at_once(engine: Engine) -> None:
    a, b = two(engine, f"dead {os.getpid()}")
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    assert owned_by(a, f"{socket.gethostname()[:80]}:{gone.pid}:x").claim("p", 0)
    assert b.claim("p", 0)
    a.release("p", 0)
    assert not a.claim("p", 0)                              # it is b's now, and b lives


def test_on_another_machine_it_counts_as_dead_when_its_beat_stands_still(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(shared, "monotonic", lambda: now[0])
    monkeypatch.setattr(Evaluations, "_beat", lambda self: None)
    a, b = two(engine, f"beat {os.getpid()}")
    assert owned_by(a, "elsewhere:1:x").claim("p", 0)
    assert not b.claim("p", 0)                              # seen for the first time
    now[0] += shared.STALE_S - 1.0
    assert not b.claim("p", 0)
    now[0] += 2.0
    assert b.claim("p", 0)
    a.remember("p", 0, Seen(ACCURACY, 1.0))                 # a was only slow: its result is as good
    assert b.recall("p", 0) is not None


def test_a_search_in_two_processes_does_every_evaluation_once_and_ends_alike(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("qbench.search.bench.POLL_S", 0.01)
    network = chain(8)
    priced = costs(network)
    base = replace(resumable(tmp_path, network, priced), storage=url, data_key=f"{url} {os.getpid()}")
    if not url.startswith("sqlite"):
        StudyLedger(url, "tables", base.space).close()      # of two that make a server's tables at once, Optuna leaves the loser's connection open
    workers = [FakeEvaluator(like_brain(8)), FakeEvaluator(like_brain(8))]
    found: dict[int, Any] = {}

    def work(i: int) -> None:
        found[i] = answer(run(replace(base, out=tmp_path / str(i)), workers[i], priced))

    threads = [threading.Thread(target=work, args=(i,)) for i in (0, 1)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    alone = FakeEvaluator(like_brain(8))
    expected = answer(run(replace(base, storage=None), alone, priced))
    assert found[0] == found[1] == expected
    done = workers[0].log + workers[1].log
    assert len(set(done)) == len(done) and sorted(done) == sorted(alone.log)
    storage = optuna.storages.RDBStorage(with_driver(url))
    trials = optuna.load_study(study_name=base.study_name, storage=storage).trials
    storage.remove_session()
    storage.engine.dispose()
    assert sorted(t.user_attrs["name"] for t in trials) == sorted(c["name"] for c in expected["candidates"])


class Backwards:
    """A pool that finishes in reverse order; plans in `broken` cannot be evaluated."""

    def __init__(self, evaluator: FakeEvaluator, broken: frozenset[str] = frozenset()) -> None:
        self.evaluator, self.broken, self.sizes = evaluator, broken, list[int]()

    def evaluate(self, tasks: Sequence[tuple[Plan, int | None]]) -> Iterator[tuple[int, Accuracy | QbenchError, float]]:
        self.sizes.append(len(tasks))
        for index, (plan, samples) in reversed(list(enumerate(tasks))):
            if plan.key in self.broken:
                yield index, ModelError("planted"), 0.0
                continue
            found = self.evaluator.evaluate(plan, samples)
            yield index, found, found.samples / self.evaluator.samples


def test_with_a_pool_the_search_ends_as_without(tmp_path: Path) -> None:
    network = chain(12)
    priced = costs(network)
    asked = replace(resumable(tmp_path, network, priced), storage=None)
    one, many = FakeEvaluator(like_brain()), FakeEvaluator(like_brain())
    pool = Backwards(many)
    expected = run(asked, one, priced)
    assert answer(run(asked, FakeEvaluator(like_brain()), priced, reference=None, pool=pool)) == answer(expected)
    assert sorted(many.log) == sorted(one.log)
    assert max(pool.sizes) >= 12                            # sensitivities are asked for in one go


def test_a_plan_that_no_worker_can_evaluate_is_dropped_with_the_reason(tmp_path: Path) -> None:
    network = chain(12)
    priced = costs(network)
    asked = replace(resumable(tmp_path, network, priced), storage=f"sqlite:///{tmp_path}/s.db")
    whole = run(replace(asked, storage=None), FakeEvaluator(like_brain()), priced)
    lost = next(c for c in whole.candidates if c.origin == "milp")
    found = run(asked, FakeEvaluator(like_brain()), priced, pool=Backwards(FakeEvaluator(like_brain()), frozenset({lost.plan_key})))
    assert lost.plan_key not in {c.plan_key for c in found.candidates}
    assert any("could not be evaluated" in w and "planted" in w for w in found.warnings)
    ledger = StudyLedger(asked.storage or "", asked.study_name, asked.space)
    assert ledger.claim(lost.plan_key, 8)                   # nothing is left claimed
    ledger.close()


@pytest.mark.parametrize(("given", "driver", "shown"), [
    ("sqlite:///a.db", "sqlite:///a.db", "sqlite:///a.db"),
    ("postgresql://me:secret@host/db", "postgresql+psycopg://me:secret@host/db", "postgresql://me:***@host/db"),
    ("postgresql://host/db?user=me&password=secret&sslmode=require", "postgresql+psycopg://host/db?user=me&password=secret&sslmode=require",
     "postgresql://host/db?user=me&password=***&sslmode=require"),
    ("postgresql+psycopg2://host/db", "postgresql+psycopg2://host/db", "postgresql+psycopg2://host/db"),
    ("mysql://me@host:3306/db", "mysql+pymysql://me@host:3306/db", "mysql://me@host:3306/db")])
def test_urls_get_a_driver_and_lose_their_password(given: str, driver: str, shown: str) -> None:
    assert with_driver(given) == driver
    assert without_password(given) == shown
