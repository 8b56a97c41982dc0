"""The durable memory of a search: every evaluation, written the moment it is done.

A search is a deterministic function of its problem and of the accuracies it measures. So resuming after a kill is running it again with
the measured accuracies remembered: it goes the same way, faster, and continues where it was.

Kept in a study of Optuna's RDB storage, so that any of its databases serves and its tools can read it: one attribute of the study
per evaluation, and one finished trial per candidate (parameters, objectives, constraints; accuracy as JSON in `user_attrs`).
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from qbench.errors import InputError
from qbench.protocols import Accuracy
from qbench.search.optuna_driver import HOPELESS, distributions, params, quiet_optuna
from qbench.search.space import Config, Costs, Space

if TYPE_CHECKING:
    import optuna

WHOLE = 0
"""The number of samples under which evaluations on the whole set are kept."""


@dataclass(frozen=True, slots=True)
class Seen:
    """passes   what the evaluation cost, in passes of the float model over the whole set"""

    accuracy: Accuracy
    passes: float


class Ledger(Protocol):
    """Remembers evaluations by plan key and number of samples (WHOLE for all)."""

    def recall(self, plan_key: str, samples: int) -> Seen | None: ...
    def remember(self, plan_key: str, samples: int, seen: Seen) -> None: ...
    def finish(self, config: Config, costs: Costs, facts: Mapping[str, Any]) -> None: ...


class Memory:
    """The Ledger that forgets when the process ends."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, int], Seen] = {}

    def recall(self, plan_key: str, samples: int) -> Seen | None:
        return self._known.get((plan_key, samples))

    def remember(self, plan_key: str, samples: int, seen: Seen) -> None:
        self._known[plan_key, samples] = seen

    def finish(self, config: Config, costs: Costs, facts: Mapping[str, Any]) -> None:
        """Nothing beyond what `remember` holds."""


class StudyLedger:
    """The Ledger in a database. Two processes may share one study; each reads what was there when it opened it."""

    def __init__(self, url: str, study_name: str, space: Space) -> None:
        """Raises InputError when the database cannot be opened."""
        self._space = space
        self._distributions = distributions(space)
        self._study = _open(url, study_name)
        self._known: dict[tuple[str, int], Seen] = {}
        self._finished: set[str] = set()
        for name, value in self._study.user_attrs.items():
            if name.startswith("seen/"):
                _, samples, plan_key = name.split("/", 2)
                self._known[plan_key, int(samples)] = Seen(Accuracy(**value["accuracy"]), value["passes"])
        for trial in self._study.get_trials(deepcopy=False):
            self._finished.add(trial.user_attrs.get("config_key", ""))

    def recall(self, plan_key: str, samples: int) -> Seen | None:
        return self._known.get((plan_key, samples))

    def remember(self, plan_key: str, samples: int, seen: Seen) -> None:
        self._known[plan_key, samples] = seen
        self._study.set_user_attr(f"seen/{samples}/{plan_key}", asdict(seen))

    def finish(self, config: Config, costs: Costs, facts: Mapping[str, Any]) -> None:
        """Adds the finished trial, in one transaction, unless it is there; `facts` become its attributes."""
        import optuna

        if config.key in self._finished:
            return
        self._study.add_trial(optuna.trial.create_trial(
            values=[v if math.isfinite(v) else HOPELESS for v in costs.objectives],
            params=params(self._space, config), distributions=self._distributions,
            user_attrs={**facts, "config_key": config.key}, constraints=dict(costs.constraints)))
        self._finished.add(config.key)


def _open(url: str, study_name: str) -> optuna.Study:
    import optuna

    quiet_optuna()
    logging.getLogger("alembic").setLevel(logging.WARNING)
    if url.startswith("sqlite:///"):
        Path(url.removeprefix("sqlite:///").split("?")[0]).parent.mkdir(parents=True, exist_ok=True)
    try:
        return optuna.create_study(storage=optuna.storages.RDBStorage(url), study_name=study_name,
                                   directions=["minimize"] * 3, load_if_exists=True)
    except Exception as error:      # sqlalchemy's and optuna's trees share no base below Exception
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise InputError(f"the search's database {url} cannot be opened: {reason}. "
                         "Give another --storage, or remove the file to start anew") from error


def open_ledger(url: str | None, study_name: str, space: Space) -> Ledger:
    """The ledger at `url`; in memory for None."""
    return Memory() if url is None else StudyLedger(url, study_name, space)
