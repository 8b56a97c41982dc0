"""The durable memory of a search: every evaluation, written the moment it is done.

A search is a deterministic function of its problem and of the accuracies it measures. So resuming after a kill is running it again with
the measured accuracies remembered: it goes the same way, faster, and continues where it was. And two processes that run the same
search share its evaluations: what one is at, the other leaves out and waits for.

Kept in the database of an Optuna study, so that any of its databases serves and its tools can read it: evaluations in a table of our
own (`qbench.search.shared`), and one finished trial per candidate (parameters, objectives, constraints; accuracy in `user_attrs`).
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from pathlib import Path
from time import sleep
from typing import TYPE_CHECKING, Any, Protocol

from qbench.addresses import with_driver, without_password
from qbench.errors import InputError
from qbench.files import make_folder
from qbench.search.optuna_driver import HOPELESS, distributions, params, quiet_optuna
from qbench.search.shared import Evaluations, Seen
from qbench.search.space import Config, Costs, Space

if TYPE_CHECKING:
    import optuna

WHOLE = 0
"""The number of samples under which evaluations on the whole set are kept."""
FINISHED = -1
"""And the one under which it is kept who writes a candidate's trial."""
TRIES, PAUSE_S = 3, 0.3
"""To open a database: of two processes that make its tables at the same moment one fails once."""


class Ledger(Protocol):
    """Remembers evaluations by plan key and number of samples (WHOLE for all)."""

    def recall(self, plan_key: str, samples: int) -> Seen | None: ...
    def claim(self, plan_key: str, samples: int) -> bool:
        """True when the caller is to evaluate it: then comes `remember`, or `release` when that fails."""
        ...
    def remember(self, plan_key: str, samples: int, seen: Seen) -> None: ...
    def release(self, plan_key: str, samples: int) -> None: ...
    def finish(self, config: Config, costs: Costs, facts: Mapping[str, Any]) -> None: ...
    def close(self) -> None: ...


class Memory:
    """The Ledger that forgets when the process ends."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, int], Seen] = {}

    def recall(self, plan_key: str, samples: int) -> Seen | None:
        return self._known.get((plan_key, samples))

    def claim(self, plan_key: str, samples: int) -> bool:
        return (plan_key, samples) not in self._known

    def remember(self, plan_key: str, samples: int, seen: Seen) -> None:
        self._known[plan_key, samples] = seen

    def release(self, plan_key: str, samples: int) -> None:
        """Nobody else could have waited for it."""

    def finish(self, config: Config, costs: Costs, facts: Mapping[str, Any]) -> None:
        """Nothing beyond what `remember` holds."""

    def close(self) -> None:
        """Nothing is open."""


class StudyLedger:
    """The Ledger in a database, shared with every process that runs the same search on it."""

    def __init__(self, url: str, study_name: str, space: Space) -> None:
        """Raises InputError when the database cannot be opened."""
        self._space = space
        self._distributions = distributions(space)
        self._study, self._storage, self._evaluations = _open(url, study_name)
        self._known = self._evaluations.all()
        self._finished: set[str] = set()

    def recall(self, plan_key: str, samples: int) -> Seen | None:
        seen = self._known.get((plan_key, samples)) or self._evaluations.recall(plan_key, samples)
        if seen is not None:
            self._known[plan_key, samples] = seen
        return seen

    def claim(self, plan_key: str, samples: int) -> bool:
        return self._evaluations.claim(plan_key, samples)

    def remember(self, plan_key: str, samples: int, seen: Seen) -> None:
        self._known[plan_key, samples] = seen
        self._evaluations.remember(plan_key, samples, seen)

    def release(self, plan_key: str, samples: int) -> None:
        self._evaluations.release(plan_key, samples)

    def finish(self, config: Config, costs: Costs, facts: Mapping[str, Any]) -> None:
        """Adds the finished trial, in one transaction, unless it is there; `facts` become its attributes."""
        import optuna

        if config.key in self._finished or not self._evaluations.claim(config.key, FINISHED):
            return
        have = {t.user_attrs.get("config_key") for t in self._study.get_trials(deepcopy=False)}     # one who was killed may have come this far
        if config.key not in have:
            self._study.add_trial(optuna.trial.create_trial(
                values=[v if math.isfinite(v) else HOPELESS for v in costs.objectives],
                params=params(self._space, config), distributions=self._distributions,
                user_attrs={**facts, "config_key": config.key}, constraints=dict(costs.constraints)))
        self._evaluations.store(config.key, FINISHED, "")
        self._finished.add(config.key)

    def close(self) -> None:
        """Ends the connections, that of this thread's session among them; what was remembered stays."""
        self._storage.remove_session()
        self._evaluations.close()


def _open(url: str, study_name: str) -> tuple[optuna.Study, optuna.storages.RDBStorage, Evaluations]:
    import optuna

    quiet_optuna()
    logging.getLogger("alembic").setLevel(logging.WARNING)
    if url.startswith("sqlite:///"):
        make_folder(Path(url.removeprefix("sqlite:///").split("?")[0]).parent, "--storage")
    for left in reversed(range(TRIES)):
        try:
            storage = optuna.storages.RDBStorage(with_driver(url), engine_kwargs={"connect_args": {"timeout": 60}} if url.startswith("sqlite") else {})
            study = optuna.create_study(storage=storage, study_name=study_name, directions=["minimize"] * 3, load_if_exists=True)
            return study, storage, Evaluations(storage.engine, study_name)
        except Exception as error:      # sqlalchemy's and optuna's trees share no base below Exception
            if not left:
                reason = str(error).splitlines()[0] if str(error) else type(error).__name__
                raise InputError(f"the search's database {without_password(url)} cannot be opened: {reason}. {_cure(error, url)}") from error
            sleep(PAUSE_S)              # another process may be making the same tables
    raise AssertionError("returned or raised")


def _cure(error: Exception, url: str) -> str:
    if isinstance(error, ImportError):
        return "Its driver is missing: pip install 'qbench[databases]'"
    if url.startswith("sqlite:///"):
        return "Give another --storage, or remove the file to start anew"
    return "Give another --storage, such as sqlite:///study.db or postgresql://user@host/db, of a server that runs"


def open_ledger(url: str | None, study_name: str, space: Space) -> Ledger:
    """The ledger at `url`; in memory for None."""
    return Memory() if url is None else StudyLedger(url, study_name, space)
