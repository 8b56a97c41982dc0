"""What the stages of a search hand on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from qbench.errors import QbenchError
from qbench.network import Precision
from qbench.protocols import Accuracy, Price
from qbench.search.acquisition import draws
from qbench.search.book import Book, Evaluated
from qbench.search.loss import LossModel, Observations, Pair, refit
from qbench.search.planner import Planner
from qbench.search.problem import Goal
from qbench.search.sensitivity import Coupling, Sensitivity, least_lossy
from qbench.search.space import Codes, Config, Variant

PATIENCE = 24
"""Plans in a row that a stage may see dropped after a quick look: then it has nothing more to give."""


@dataclass
class State:
    """What the stages hand on. `main` is the variant under which sensitivity and the model hold."""

    book: Book
    planner: Planner
    op_points: tuple[str, ...]                                   # those at which the budgets can be met
    main: Variant
    uniform: dict[str, Evaluated] = field(default_factory=dict)
    sensitivity: list[Sensitivity] = field(default_factory=list)
    couplings: list[Coupling] = field(default_factory=list)
    pairs: list[Pair] = field(default_factory=list)
    prior: LossModel | None = None
    asked: int = 0
    dropped: int = 0                                             # plans in a row that a quick look has dropped

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self.planner.costs.precisions)

    def config(self, codes: Codes, op_point: str) -> Config:
        return Config.of(tuple(Precision(self.names[c]) for c in codes), self.main, op_point)

    def consider(self, configs: Sequence[Config], origin: str) -> None:
        """The book's verdict on each; counts what is dropped in a row."""
        new = [not self.book.known(c) for c in configs]
        for fresh, found in zip(new, self.book.consider_all(configs, origin), strict=True):
            if fresh:
                self.dropped = self.dropped + 1 if found is None else 0

    def cost(self, price: Price) -> float:
        """What is to be small beside the loss: energy under that goal, latency otherwise."""
        return price.energy_mj if self.book.problem.goal is Goal.ENERGY else price.latency_ms

    @property
    def patient(self) -> bool:
        return self.dropped < PATIENCE

    def look_all(self, precisions: Sequence[tuple[Precision, ...]]) -> list[Accuracy]:
        """Quick looks. Raises QbenchError for the first that cannot be evaluated."""
        return sound(self.book.look_all([Config.of(p, self.main, self.book.problem.op_points[0]) for p in precisions]))

    def model(self) -> LossModel:
        """The loss model as it stands: the sensitivities, moved by everything evaluated so far."""
        return refit(*self._learnt())

    def drawn(self, count: int) -> list[LossModel]:
        """Models that agree with everything seen, each as likely as the others."""
        return draws(*self._learnt(), count, np.random.default_rng([self.book.problem.seed, self.book.count]))

    def _learnt(self) -> tuple[LossModel, Observations, Sequence[Sequence[int]], Codes, float]:
        assert self.prior is not None, "sensitivity comes before the model"
        codes, loss, error = self.book.observations(self.main)
        base = least_lossy(self.book.bench.space, self.names)
        seen = Observations(np.array(codes, np.int64).reshape(-1, len(base)), np.array(loss), np.array(error))
        return self.prior, seen, self.planner.allowed, base, float(self.prior.error.min())


def sound(found: Sequence[Accuracy | QbenchError]) -> list[Accuracy]:
    """All of them. Raises the first QbenchError among them."""
    for seen in found:
        if isinstance(seen, QbenchError):
            raise seen
    return [seen for seen in found if isinstance(seen, Accuracy)]
