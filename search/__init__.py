"""Search for mixed-precision plans: budgets, sensitivity, exact assignment, samplers, and the run that joins them.

    run(problem, evaluator, pricer, events) -> SearchResult      the whole search
    make_strategy(name, space, seed) -> Strategy                 a sampler behind ask / tell
"""

from __future__ import annotations

from qbench.errors import unknown
from qbench.search.space import Config, Costs, Space, Strategy

STRATEGIES = ("nsga2", "nsga3", "tpe", "gp", "random")
"""The first is the default. Each is a sampler of Optuna; see optuna_driver."""

__all__ = ["STRATEGIES", "Config", "Costs", "Space", "Strategy", "make_strategy", "strategy_names"]


def strategy_names() -> tuple[str, ...]:
    return STRATEGIES


def make_strategy(name: str, space: Space, seed: int) -> Strategy:
    """A fresh strategy over `space`. Raises UnknownName."""
    if name not in STRATEGIES:
        raise unknown("search strategy", name, STRATEGIES)
    from qbench.search.optuna_driver import OptunaStrategy

    return OptunaStrategy(name, space, seed)
