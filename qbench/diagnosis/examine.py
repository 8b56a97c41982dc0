"""Tries every hypothesis on one part of a network: what would have been observed under it, and how much of the gap that explains."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from math import sqrt
from time import monotonic

import numpy as np

from qbench.diagnosis.edits import BITS, PITCHES, accumulator_edits, everywhere, rounding_edits, wobbled
from qbench.diagnosis.gaps import affected, gap, left
from qbench.diagnosis.graph import Graph
from qbench.diagnosis.input_faults import Normalisation, fitted_input, input_faults
from qbench.diagnosis.output_faults import output_faults
from qbench.diagnosis.places import in_one_place
from qbench.diagnosis.records import Cause, Edit, InputFault, OutputFault, Tensors, Trial
from qbench.diagnosis.runs import Runner
from qbench.errors import ModelError
from qbench.protocols import Array, Progress, silent

REFINED = 10
"""Places whose range or scale is searched for: a coarse factor alone may favour a neighbour."""
LOCAL_S = 120.0
"""Seconds after which no further place is tried: a network of a hundred layers has thousands of them, and outputs alone cannot say which."""
STEPS = 0.5
"""Root mean square error, in steps, that two correct machines may have: a quarter of the values one step apart."""
SPREADS = 2.0
"""Times the distance of two correct ways to compute it here in the worst sample, where that is wider."""
FLOAT = 1e-3
"""Of the root mean square of a float tensor: two units of float16."""
CERTAIN = 0.05
"""Share of the gap left, and less than arithmetic allows, from which no further family of hypotheses is tried."""
TIE = 0.02
"""Hypotheses that leave so little more than the best count as equal: the one with fewer fitted numbers is taken."""
SURE = 0.9
"""Share of the gap that a hypothesis must explain to be named where the gap alone is no proof."""
PAIRED = 3
"""Samples on which two hypotheses together are tried."""
LOCAL = 2
"""Samples on which edits of one place are tried."""


@dataclass
class Part:
    """A part of the network, and what another machine made of it.

    feeds     inputs of the part; outside   they are the network's own inputs
    observed  what the other machine has, tensor -> [samples, ...]; clean   what it should have
    other     the same computed in other correct ways
    allowed   tensor -> root mean square error that arithmetic alone may make
    usual     the same for networks that do not magnify single codes
    """

    graph: Graph
    feeds: Tensors
    observed: Tensors
    runner: Runner
    outside: bool = True
    clean: dict[str, Array] = field(default_factory=dict)
    other: dict[str, dict[str, Array]] = field(default_factory=dict)
    allowed: dict[str, float] = field(default_factory=dict)
    usual: dict[str, float] = field(default_factory=dict)

    def prepare(self, more: dict[str, dict[str, Array]] | None = None) -> Part:
        """Runs it in the correct ways that there are. more   further ones, by name"""
        from qbench.runtime import integer_kernels_saturate

        made = self.runner.run(self.graph.model, self.feeds)
        self.clean = {t: made[t] for t in self.observed}
        self.other = {k: {t: v[t] for t in self.observed} for k, v in (more or {}).items() if set(self.observed) <= set(v)}
        if self.graph.points and not integer_kernels_saturate():
            made = self.runner.run(self.graph.model, self.feeds, simulate=False)
            self.other["with onnxruntime's integer kernels"] = {t: made[t] for t in self.observed}
        self.usual = {t: max(self._least(t), SPREADS * self._spread(t, self.other), 1e-12) for t in self.observed}
        off: dict[str, dict[str, Array]] = {}
        if len(self.graph.points) > 1:
            for pitch in PITCHES:
                made = self.runner.run(wobbled(self.graph, pitch).apply(self.graph.model), self.feeds)
                off[f"a little off before rounding, {pitch:g}"] = {t: made[t] for t in self.observed}
        self.allowed = {t: max(self.usual[t], self._spread(t, off)) for t in self.observed}
        self.other |= off
        return self

    def _least(self, t: str) -> float:
        step = self.graph.scale_of(t)
        return STEPS * step if step is not None else FLOAT * sqrt(float(np.mean(np.square(np.nan_to_num(self.clean[t]), dtype=np.float64))))

    def _spread(self, t: str, ways: Mapping[str, Mapping[str, Array]]) -> float:
        """Root mean square distance of the furthest of these ways, in the sample where it is furthest."""
        return max((gap(a, b).rms_error for way in ways.values() for a, b in zip(self.clean[t], way[t], strict=True)), default=0.0)

    @property
    def open(self) -> list[int]:
        """Samples in which no correct way comes as close as arithmetic allows."""
        return self._wider(self.allowed)

    @property
    def doubtful(self) -> list[int]:
        """Samples in which none comes as close as arithmetic allows where a network does not magnify single codes."""
        return self._wider(self.usual)

    def _wider(self, allowed: dict[str, float]) -> list[int]:
        found = set(affected(self.observed, self.clean, allowed))
        for way in self.other.values():
            found &= set(affected(self.observed, way, allowed))
        return sorted(found)


class Examination:
    """All trials on one part. samples   those in which the gap is open"""

    def __init__(self, part: Part, known: Normalisation | None = None, progress: Progress = silent, instead: Sequence[tuple[str, Tensors]] = (),
                 limit_s: float = LOCAL_S) -> None:
        self.part, self.known, self.progress, self.instead, self.limit_s = part, known, progress, instead, limit_s
        self.samples = part.open or part.doubtful or list(range(len(next(iter(part.observed.values())))))
        self.trials: list[Trial] = []
        self.made: list[tuple[InputFault | Edit, dict[str, Array]]] = []
        self.failed: dict[str, str] = {}
        self.cut = ""
        self.points = {t: part.graph.by_stored[t] for t in part.observed if t in part.graph.by_stored}
        self.tried = 0
        self.certain: list[Trial] = []

    def run(self) -> tuple[Trial, ...]:
        """Family after family, until one hypothesis without fitted numbers explains all; best first."""
        output = output_faults(self.points)
        self._outputs(output)
        self._instead()
        for family in (self._inputs, self._everywhere, self._fitted_input, self._local):
            if self._certain(freedom=0 if family in (self._inputs, self._everywhere) else 2):
                break
            family()
        if not self._certain() and self.best is not None and self.best.left > TIE:
            self._pairs(output)
        return ranked(self.trials)

    def exact(self) -> Trial | None:
        """A hypothesis without fitted numbers that explains SURE of the gap, of those that are quickly tried; None without one."""
        self._outputs(output_faults(self.points))
        self._instead()
        self._inputs()
        self._everywhere()
        best = min((t for t in self.trials if t.freedom == 0), key=lambda t: t.left, default=None)
        return best if best is not None and best.explained >= SURE else None

    def hidden(self) -> tuple[Trial, ...]:
        """Hypotheses without fitted numbers that can hide within what arithmetic allows: roundings, and sums of too few bits, everywhere or in one place."""
        self._edits(rounding_edits(self.part.graph))
        until = monotonic() + self.limit_s
        products = self.part.graph.products
        edits = list(chain(accumulator_edits(products), *(accumulator_edits([p], p.name, BITS[:1]) for p in products)))
        for number, e in enumerate(edits):
            if self.best is not None and self.best.explained >= SURE:
                break
            if monotonic() > until:
                self.cut = (f"whether sums of too few bits hide within it was not tried out: {number} of {len(edits)} hypotheses in {self.limit_s:g} s "
                            "(--search-seconds); give the tensors between the layers too, or more time")
                break
            self._edits([e])
        return ranked(self.trials)

    @property
    def best(self) -> Trial | None:
        return chosen(self.trials)

    def _certain(self, freedom: int = 0) -> bool:
        """Whether some hypothesis leaves no more than arithmetic allows, with at most so many fitted numbers."""
        return any(t.freedom <= freedom for t in self.certain)

    def _add(self, faults: Sequence[InputFault | Edit | OutputFault], predicted: Tensors, where: str = "", samples: Sequence[int] | None = None) -> None:
        part, at = self.part, self.samples if samples is None else samples
        seen = {t: v[at] for t, v in part.observed.items()} if samples is not None else part.observed
        clean = {t: v[at] for t, v in part.clean.items()} if samples is not None else part.clean
        some = list(range(len(at))) if samples is not None else at
        share = left(seen, predicted, clean, some)
        trial = Trial(tuple(f.name for f in faults), tuple(dict.fromkeys(f.cause for f in faults)), share, sum(f.freedom for f in faults), where)
        self.trials.append(trial)
        if share <= CERTAIN and all(gap(predicted[t][some], seen[t][some]).rms_error <= part.allowed[t] for t in seen):
            self.certain.append(trial)

    def _outputs(self, faults: Sequence[OutputFault]) -> None:
        for f in faults:
            made = f.apply(self.part.clean, self.part.observed)
            if made is not None:
                self._add([f], made, "output")
        same = _the_same(self.part)
        if same is not None:
            self._add([OutputFault("the same output for every sample", Cause.STALE, lambda p, o: None, 3)], same, "output")

    def _instead(self) -> None:
        """Another precision of the whole network, which was computed already."""
        for name, made in self.instead:
            if set(self.part.observed) <= set(made):
                count = len(next(iter(self.part.observed.values())))
                self._add([OutputFault(name, Cause.PRECISION, lambda p, o: None)], {t: made[t][:count] for t in self.part.observed})

    def _inputs(self) -> None:
        if not self.part.outside:
            return
        points = {p.raw: p for p in self.part.graph.points}
        for f in input_faults(self.part.feeds, points, self.known):
            self._run(f, self.part.graph.model, f.apply(self.part.feeds), f.name.partition(":")[0])

    def _everywhere(self) -> None:
        self._edits(everywhere(self.part.graph))

    def _edits(self, edits: Iterable[Edit]) -> None:
        for e in edits:
            self._run(e, e.apply(self.part.graph.model), self.part.feeds, e.where)

    def _run(self, fault: InputFault | Edit, model: object, feeds: Tensors, where: str) -> None:
        self.tried += 1
        self.progress("hypotheses", self.tried, max(self.tried + 1, 100))
        try:
            made = self.part.runner.run(model, feeds)  # type: ignore[arg-type]
        except ModelError as error:
            self.failed[fault.name] = str(error)
            return
        predicted = {t: made[t] for t in self.part.observed}
        if any(predicted[t].shape != self.part.observed[t].shape for t in predicted):
            self.failed[fault.name] = "it gives another shape"
            return
        self._add([fault], predicted, where)
        self.made.append((fault, {t: v[:PAIRED] for t, v in predicted.items()}))

    def _fitted_input(self) -> None:
        """Every value of the input times a plus b: the two numbers by least squares, where the usual normalisations do not explain it."""
        from scipy.optimize import minimize

        names = [k for k, v in self.part.feeds.items() if v.dtype.kind == "f"]
        if not self.part.outside or len(names) != 1 or (self.best is not None and self.best.left <= TIE):
            return
        name, some = names[0], self.samples[:LOCAL]
        seen, clean = ({t: v[some] for t, v in x.items()} for x in (self.part.observed, self.part.clean))
        spread = float(self.part.feeds[name].std()) or 1.0

        def distance(numbers: Array) -> float:
            fault = fitted_input(name, float(np.exp(numbers[0])), float(numbers[1]) * spread)
            made = self.part.runner.run(self.part.graph.model, fault.apply(self.part.feeds), samples=some)
            return left(seen, {t: made[t] for t in seen}, clean, range(len(some)))

        starts = [(distance(np.array([a, b])), a, b) for a in (-5.5, -1.4, -0.4, 0.4, 1.4, 5.5) for b in (-1.0, 0.0, 1.0)]
        _, a, b = min(starts)
        found = minimize(distance, np.array([a, b]), method="Nelder-Mead", options={"maxfev": 60, "initial_simplex": [[a, b], [a + 0.4, b], [a, b + 0.4]]})
        fault = fitted_input(name, float(np.exp(found.x[0])), float(found.x[1]) * spread)
        self._run(fault, self.part.graph.model, fault.apply(self.part.feeds), f"input {name}")

    def _local(self) -> None:
        """Edits of one place, on few samples; those with a number are refined in the best places."""
        edits = list(in_one_place(self.part.graph))
        some = self.samples[:LOCAL]
        until = monotonic() + self.limit_s
        closest: dict[tuple[Cause, str], tuple[float, Edit]] = {}
        for number, e in enumerate(edits):
            self.progress("hypotheses in one place", number, len(edits))
            if monotonic() > until:
                self.cut = (f"the search for one wrong layer was stopped after {self.limit_s:g} s with {number} of {len(edits)} hypotheses tried (--search-seconds): "
                            "give the tensors between the layers too, and the first wrong one shows by itself")
                break
            share = self._local_run(e, some)
            if e.tune is not None and share < closest.get((e.cause, e.where), (float("inf"), e))[0]:
                closest[e.cause, e.where] = (share, e)
            if self._certain(1):
                return
        for _, e in sorted(closest.values(), key=lambda pair: pair[0])[:REFINED]:
            if self._certain(2):
                break
            if monotonic() > until + self.limit_s:
                self.cut = self.cut or f"the numbers of the likeliest wrong places were not all fitted within {2 * self.limit_s:g} s (--search-seconds)"
                break
            self._refine(e, some)

    def _local_run(self, e: Edit, some: Sequence[int]) -> float:
        try:
            made = self.part.runner.run(e.apply(self.part.graph.model), self.part.feeds, samples=some)
        except ModelError as error:
            self.failed[e.name] = str(error)
            return float("inf")
        self._add([e], {t: made[t] for t in self.part.observed}, e.where, some)
        return self.trials[-1].left

    def _refine(self, start: Edit, some: Sequence[int]) -> None:
        from scipy.optimize import minimize_scalar

        tune = start.tune
        assert tune is not None

        def distance(x: float) -> float:
            return self._local_run(tune(float(np.exp(x))), some)

        # rounding makes the distance ragged: a grid finds the valley, the search only its floor
        centre = min((float(np.log(start.factor)) + d for d in np.linspace(-0.7, 0.7, 15)), key=distance)
        minimize_scalar(distance, bounds=(centre - 0.1, centre + 0.1), method="bounded", options={"maxiter": 20, "xatol": 1e-4})

    def _pairs(self, output: Sequence[OutputFault]) -> None:
        """Something on the way in or in the arithmetic, and something on the way out."""
        some = [i for i in self.samples if i < PAIRED]
        if not some:
            return
        observed, clean = ({t: v[:PAIRED] for t, v in x.items()} for x in (self.part.observed, self.part.clean))
        flat = [f for f in output if f.freedom == 0]
        for number, (fault, made) in enumerate(self.made):
            self.progress("two faults together", number, len(self.made))
            for f in flat:
                both = f.apply(made, observed)
                if both is not None and f.cause is not fault.cause:
                    share = left(observed, both, clean, some)
                    self.trials.append(Trial((fault.name, f.name), (fault.cause, f.cause), share, 1 + fault.freedom, ""))


def _the_same(part: Part) -> dict[str, Array] | None:
    """The first observed output for every sample, where all are equal and should not be."""
    count = len(next(iter(part.observed.values())))
    if count < 2 or any((v != v[:1]).any() for v in part.observed.values()) or not any((v != v[:1]).any() for v in part.clean.values()):
        return None
    return {t: np.repeat(v[:1], count, 0) for t, v in part.observed.items()}


def ranked(trials: Sequence[Trial]) -> tuple[Trial, ...]:
    """The chosen one first, then by what they leave."""
    best = chosen(trials)
    return tuple(sorted(trials, key=lambda t: (t is not best, t.left, t.freedom)))


def chosen(trials: Sequence[Trial]) -> Trial | None:
    """Of those that leave hardly more than the best one, the one with the fewest fitted numbers; None without any."""
    if not trials:
        return None
    least = min(t.left for t in trials)
    return min((t for t in trials if t.left <= least + TIE), key=lambda t: (t.freedom, len(t.names), t.left))
