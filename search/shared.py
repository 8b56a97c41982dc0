"""Evaluations in a database that several processes share: who is at which, and what came out.

One row per plan and number of samples, inserted by whoever begins with it: the primary key decides between two. While it works, the owner
counts its `beat` up; a row whose beat stands still for STALE_S of an observer's own clock (clocks of two machines never meet), or
whose owner was a process of this machine that is gone, may be taken over. Kept beside Optuna's tables, in the same database.
"""

from __future__ import annotations

import json
import os
import socket
import threading
import uuid
from dataclasses import asdict, dataclass
from time import monotonic
from typing import TYPE_CHECKING, Any

from qbench.processes import alive
from qbench.protocols import Accuracy

if TYPE_CHECKING:
    from sqlalchemy import Engine, Table

BEAT_S = 5.0
STALE_S = 30.0


@dataclass(frozen=True, slots=True)
class Seen:
    """passes   what the evaluation cost, in passes of the float model over the whole set"""

    accuracy: Accuracy
    passes: float


class Evaluations:
    """The table of one study. Safe to use from several processes on several machines."""

    def __init__(self, engine: Engine, study: str) -> None:
        self._engine, self._study = engine, study
        self._table = _table()
        self._table.create(engine, checkfirst=True)
        self._owner = f"{socket.gethostname()[:80]}:{os.getpid()}:{uuid.uuid4().hex[:8]}"
        self._watched: dict[tuple[str, int], tuple[tuple[str, int], float]] = {}
        self._beating, self._over = False, threading.Event()

    def close(self) -> None:
        """Ends the beat and the connections. Claims without a result count as dead from now on."""
        self._over.set()
        self._engine.dispose()

    def all(self) -> dict[tuple[str, int], Seen]:
        """Everything finished so far, by plan key and number of samples."""
        from sqlalchemy import select

        t = self._table
        with self._engine.connect() as db:
            rows = db.execute(select(t.c.plan, t.c.samples, t.c.body).where(t.c.study == self._study, t.c.body.is_not(None))).all()
        return {(plan, samples): _read(body) for plan, samples, body in rows if body}

    def recall(self, plan: str, samples: int) -> Seen | None:
        row = self._row(plan, samples)
        return _read(row[2]) if row and row[2] else None

    def claim(self, plan: str, samples: int) -> bool:
        """True: this process is to do it now. False: it is done, or another process is at it."""
        from sqlalchemy import insert
        from sqlalchemy.exc import IntegrityError

        try:
            with self._engine.begin() as db:
                db.execute(insert(self._table).values(study=self._study, plan=plan, samples=samples, owner=self._owner, beat=0))
        except IntegrityError:
            return self._take_over(plan, samples)
        self._beat()
        return True

    def store(self, plan: str, samples: int, body: str) -> None:
        """The result; the row is made where nobody claimed it."""
        from sqlalchemy import insert, update

        with self._engine.begin() as db:
            done = db.execute(update(self._table).where(*self._is(plan, samples)).values(body=body))
            if done.rowcount == 0:
                db.execute(insert(self._table).values(study=self._study, plan=plan, samples=samples, owner=self._owner, beat=0, body=body))

    def remember(self, plan: str, samples: int, seen: Seen) -> None:
        self.store(plan, samples, json.dumps(asdict(seen)))

    def release(self, plan: str, samples: int) -> None:
        """Gives a claim back without a result."""
        from sqlalchemy import delete

        t = self._table
        with self._engine.begin() as db:
            db.execute(delete(t).where(*self._is(plan, samples), t.c.owner == self._owner, t.c.body.is_(None)))

    # -- inside

    def _is(self, plan: str, samples: int) -> tuple[Any, ...]:
        t = self._table
        return t.c.study == self._study, t.c.plan == plan, t.c.samples == samples

    def _row(self, plan: str, samples: int) -> tuple[str, int, str | None] | None:
        from sqlalchemy import select

        t = self._table
        with self._engine.connect() as db:
            row = db.execute(select(t.c.owner, t.c.beat, t.c.body).where(*self._is(plan, samples))).first()
        return None if row is None else (row[0], row[1], row[2])

    def _take_over(self, plan: str, samples: int) -> bool:
        """Claims a row whose owner is gone; only one of several observers succeeds."""
        from sqlalchemy import update

        row = self._row(plan, samples)
        if row is None or row[2] is not None or not self._gone(plan, samples, row[0], row[1]):
            return False
        t = self._table
        with self._engine.begin() as db:
            taken = db.execute(update(t).where(*self._is(plan, samples), t.c.owner == row[0], t.c.beat == row[1], t.c.body.is_(None))
                               .values(owner=self._owner, beat=0))
        if taken.rowcount == 1:
            self._beat()
        return bool(taken.rowcount == 1)

    def _gone(self, plan: str, samples: int, owner: str, beat: int) -> bool:
        host, pid, _ = owner.rsplit(":", 2)
        if host == socket.gethostname()[:80] and not alive(int(pid)):
            return True
        now, (seen, since) = monotonic(), self._watched.get((plan, samples), (("", -1), 0.0))
        if seen != (owner, beat):
            self._watched[plan, samples] = (owner, beat), now
            return False
        return now - since > STALE_S

    def _beat(self) -> None:
        if not self._beating:
            self._beating = True
            threading.Thread(target=self._keep_beating, daemon=True).start()

    def _keep_beating(self) -> None:
        from sqlalchemy import update
        from sqlalchemy.exc import SQLAlchemyError

        t = self._table
        while not self._over.wait(BEAT_S):
            try:
                with self._engine.begin() as db:
                    db.execute(update(t).where(t.c.study == self._study, t.c.owner == self._owner, t.c.body.is_(None)).values(beat=t.c.beat + 1))
            except SQLAlchemyError:
                continue                                # a missed beat is no harm; a database that stays away shows at the next result


def _table() -> Table:
    from sqlalchemy import Column, Integer, MetaData, String, Table, Text

    return Table("qbench_evaluations", MetaData(), Column("study", String(64), primary_key=True), Column("plan", String(128), primary_key=True),
                 Column("samples", Integer, primary_key=True, autoincrement=False), Column("owner", String(128), nullable=False),
                 Column("beat", Integer, nullable=False), Column("body", Text))


def _read(body: str) -> Seen:
    value = json.loads(body)
    return Seen(Accuracy(**value["accuracy"]), value["passes"])
