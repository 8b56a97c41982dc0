"""Optuna's samplers behind the Strategy seam: NSGA-II, NSGA-III, TPE, Gaussian process, random.

The study lives in memory and is rebuilt by telling; what is durable is the ledger (`qbench.search.ledger`). Before each
question the sampler is made anew from (seed, number of finished trials, number of open ones), so that the answer depends only on
what was told: a search that is killed and replayed asks the same questions.
Constraints are handed over as constraints, not as penalties.
"""

from __future__ import annotations

import hashlib
import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from qbench.network import Precision
from qbench.search.space import Config, Costs, Space

if TYPE_CHECKING:
    import optuna

POPULATION = 16
"""Of the genetic samplers. Searches evaluate tens of plans: Optuna's 50 would never leave the first, random generation."""
STARTUP = 10
HOPELESS = 1e3
"""Loss told for a plan whose metric is not a number: worse than any real one, and finite as samplers need it."""


def quiet_optuna() -> None:
    """No log lines below errors: what the user should know, qbench says itself."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)


def distributions(space: Space) -> dict[str, optuna.distributions.BaseDistribution]:
    """One categorical variable per unit (named by index and unit), then calibrator, granularity, operating point and corrections."""
    from optuna.distributions import CategoricalDistribution

    found: dict[str, Any] = {
        f"{i:04d} {name}"[:200]: CategoricalDistribution([str(p) for p in allowed])
        for i, (name, allowed) in enumerate(zip(space.units, space.allowed, strict=True))}
    for name, choices in (("calibrator", space.calibrators), ("granularity", space.granularities), ("op_point", space.op_points), ("corrections", space.corrections)):
        found[name] = CategoricalDistribution(list(choices))
    return found


def params(space: Space, config: Config) -> dict[str, str]:
    """`config` as values of `distributions`."""
    names = [f"{i:04d} {name}"[:200] for i, name in enumerate(space.units)]
    return {**dict(zip(names, map(str, config.precision), strict=True)),
            "calibrator": config.calibrator, "granularity": config.granularity, "op_point": config.op_point,
            "corrections": config.corrections}


def config_of(space: Space, values: Mapping[str, Any]) -> Config:
    """The inverse of `params`."""
    names = [f"{i:04d} {name}"[:200] for i, name in enumerate(space.units)]
    return Config(tuple(Precision(values[n]) for n in names), values["calibrator"], values["granularity"], values["op_point"],
                  values["corrections"])


def _nsga2(seed: int) -> optuna.samplers.BaseSampler:
    from optuna.samplers import NSGAIISampler

    return NSGAIISampler(population_size=POPULATION, seed=seed)


def _nsga3(seed: int) -> optuna.samplers.BaseSampler:
    from optuna.samplers import NSGAIIISampler

    return NSGAIIISampler(population_size=POPULATION, seed=seed)


def _tpe(seed: int) -> optuna.samplers.BaseSampler:
    from optuna.samplers import TPESampler

    return TPESampler(n_startup_trials=STARTUP, seed=seed)


def _gp(seed: int) -> optuna.samplers.BaseSampler:
    from optuna.samplers import GPSampler

    return GPSampler(n_startup_trials=STARTUP, deterministic_objective=True, seed=seed)


def _random(seed: int) -> optuna.samplers.BaseSampler:
    from optuna.samplers import RandomSampler

    return RandomSampler(seed=seed)


SAMPLERS: Mapping[str, Callable[[int], Any]] = {"nsga2": _nsga2, "nsga3": _nsga3, "tpe": _tpe, "gp": _gp, "random": _random}


class OptunaStrategy:
    """One of Optuna's samplers over `space`; see Strategy."""

    def __init__(self, sampler: str, space: Space, seed: int) -> None:
        import optuna

        quiet_optuna()
        self._space, self._seed = space, seed
        self._make = SAMPLERS[sampler]
        self._distributions = distributions(space)
        self._open: dict[str, list[optuna.trial.Trial]] = {}
        self._finished = 0
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            self._study = optuna.create_study(directions=["minimize"] * 3, sampler=self._make(seed))

    def ask(self, n: int) -> list[Config]:
        return [self._ask() for _ in range(n)]

    def tell(self, results: Sequence[tuple[Config, Costs]]) -> None:
        for config, costs in results:
            waiting = self._open.get(config.key)
            trial = waiting.pop(0) if waiting else self._adopt(config)
            for name, excess in costs.constraints.items():
                trial.set_constraint(name, excess if math.isfinite(excess) else HOPELESS)
            self._study.tell(trial, [v if math.isfinite(v) else HOPELESS for v in costs.objectives])
            self._finished += 1

    def _ask(self) -> Config:
        trial = self._next()
        config = config_of(self._space, trial.params)
        self._open.setdefault(config.key, []).append(trial)
        return config

    def _adopt(self, config: Config) -> optuna.trial.Trial:
        """A trial for a config that the strategy did not ask for.

        A genetic sampler counts a trial into a generation when it draws relative parameters for it. Optuna draws them only when
        they are needed, never for given ones; without the question the children would have no parents and be random.
        """
        from optuna.samplers import NSGAIIISampler, NSGAIISampler

        self._study.enqueue_trial(params(self._space, config))
        trial = self._next()
        if isinstance(self._study.sampler, NSGAIISampler | NSGAIIISampler):
            _ = trial.relative_params
        return trial

    def _next(self) -> optuna.trial.Trial:
        import optuna

        pending = sum(len(trials) for trials in self._open.values())
        digest = hashlib.sha256(f"{self._seed}/{self._finished}/{pending}".encode()).digest()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            self._study.sampler = self._make(int.from_bytes(digest[:4], "big"))
            return self._study.ask(self._distributions)
