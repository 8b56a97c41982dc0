"""`auto`: for every scale group, the calibrator whose range does least harm behind it, as far as the whole network agrees.

1. Every candidate on its own runs as a whole network. The best is the base.
2. Every kernel that reads a group is cut out with its integer weights and fed with the float activations, those of the group
   rounded to the codes of each candidate's range; what counts is noise over signal at its output (`qbench.workbench.readers`).
   The best candidate of each group makes the mix.
3. A layer knows nothing of what comes behind it, so the mix may lose to the base. Between them lies a careful mix, which leaves the base
   only where another candidate is better by a margin. Both run as whole networks too.
4. The best of the three on the samples is taken; a mix must lead the base by more than a standard error, in pairs on the same samples.

A further step, changing the worst groups one by one while the network's output improves, was tried and left out: 12 whole-network runs
found nothing on either built-in sample that held on other data.

Errors are taken per sample and averaged in decibels: one spoiled calibration sample in twenty shall not decide.
Source: the error at a layer's output as criterion: Nagel et al. 2020 (arXiv 2004.10568), section 3; steps 1, 3 and 4: own.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from qbench import calibrators, qdq
from qbench.affine import Range
from qbench.errors import InputError
from qbench.evaluation import extract, lifted, loaded
from qbench.graph import PreparedModel
from qbench.metrics import class_axis
from qbench.metrics.fidelity import divergence, energies
from qbench.network import Network, Precision
from qbench.plan import Granularity, Plan
from qbench.protocols import Array, Batch, Dataset, Metric, Progress, silent
from qbench.walk import Walk, samples_of
from qbench.workbench.readers import Errors, reading_errors

AUTO = "auto"
MIXED = "mixed"
CAREFUL = "mixed beyond 3 dB"
MARGIN_DB = 3.0
"""How much better than the base another candidate must be for a group to leave it, in the careful mix."""
STANDARD_ERRORS = 1.0
"""By which a mix must lead the base: a tie goes to the simpler."""
MOST_SAMPLES, FEWEST_SAMPLES = 64, 16
MOST_READ = 32
"""Of the samples, those on which single layers are judged."""
WORK = 8e10
"""Multiply-accumulates of one pass over the samples: large networks get fewer of them."""
MOST_DB = 200.0
LEAST_NATS, LEAST_OF_SCORES = 1e-6, 1e-12
"""A divergence below the first changes no decision; where probabilities are floored (`qbench.metrics.fidelity`) it may even come out negative.
Of scores the double precision is the limit: where all samples are sure, what tells the candidates apart lies far below."""
Decibels = NDArray[np.float64]
PlanMaker = Callable[[Mapping[str, Precision], str, Granularity, str], Plan]
"""(unit -> precision, calibrator, granularity, operating point) -> plan; `qbench.workbench.Plans` is one."""


@dataclass(frozen=True)
class Judge:
    """What of the network's outputs counts.

    outputs      names; empty: every float output
    class_axis   of the first of them, for classifiers: then the divergence from the float model's probabilities counts, not the SQNR of the
                 scores, of which those that no decision hangs on are the largest
    """

    outputs: tuple[str, ...] = ()
    class_axis: int | None = None

    @staticmethod
    def of(metric: Metric) -> Judge:
        """As the task metric looks at the network."""
        judged = getattr(metric, "output", "")
        return Judge((judged,) if isinstance(judged, str) and judged else (), class_axis(metric))

    def names(self, network: Network) -> tuple[str, ...]:
        return self.outputs or tuple(t for t in network.outputs if network.tensors[t].dtype == "float32") or network.outputs

    def score(self, names: Sequence[str], reference: Mapping[str, Array], made: Mapping[str, Array], least_nats: float = LEAST_NATS) -> Decibels:
        """dB [samples]: SQNR, mean over the outputs; for classifiers -10 log10(KL), which moves by as many dB as the noise does."""
        if self.class_axis is not None:
            lost = divergence(reference[names[0]], made[names[0]], self.class_axis)
            return _db(np.maximum(lost, least_nats), np.ones_like(lost))
        sums = [energies(reference[t], made[t]) for t in names]
        return np.asarray(np.mean([_db(s[:, 3], s[:, 0]) for s in sums], axis=0))


@dataclass(frozen=True)
class Choice:
    """by_group    scale group -> spec of the calibrator that gives its range: `Plans(..., choices=by_group)` uses it for "auto"
    winner         "mixed", "mixed beyond 3 dB", or the candidate that no mixture beats
    reasons        scale group -> why, in words
    errors         scale group -> candidate -> noise over signal at the outputs of its readers, summed; empty where no group
                   has a range of its own (one global scale)
    scores         each mixture and each candidate alone -> dB at the network's output, mean over the samples
    """

    by_group: Mapping[str, str]
    winner: str
    reasons: Mapping[str, str]
    errors: Mapping[str, Mapping[str, float]]
    scores: Mapping[str, float]
    samples: int

    @property
    def text(self) -> str:
        """What was chosen and on what ground, as one sentence."""
        counts = ", ".join(f"{n} {spec}" for spec, n in Counter(self.by_group.values()).most_common())
        best = max((s for s in self.scores if s != self.winner), key=lambda s: self.scores[s], default=self.winner)
        return (f"auto: {counts} ({len(self.by_group)} scale groups); {_say(self.winner)}: {self.scores[self.winner]:.2f} dB at the network's "
                f"output on {self.samples} calibration samples, next {best} {self.scores[best]:.2f} dB")


def choose(prepared: PreparedModel, plans: PlanMaker, samples: Sequence[dict[str, Array]], precision: Mapping[str, Precision],
           granularity: Granularity, candidates: Sequence[str] = (), *, judge: Judge | None = None, threads: int | None = None,
           simulate: bool | None = None, progress: Progress = silent) -> Choice:
    """The calibrator of every scale group that `precision` stores as integers. Deterministic.

    plans        makes the plan of one calibrator for the whole network
    samples      calibration samples, from `calibration_samples`
    precision    unit -> precision
    candidates   specs to choose from; default: those of `auto`
    Raises InputError when there is nothing to choose from.
    """
    specs = tuple(dict.fromkeys(candidates)) or candidates_of(AUTO)
    if any(map(calibrators.is_auto, specs)):
        raise InputError("auto cannot choose itself: name other calibrators")
    uniform = {s: plans(precision, s, granularity, "") for s in specs}
    first = uniform[specs[0]]
    if not first.ranges:
        raise InputError("no tensor is stored as integers under these precisions: there is no range to choose")
    judging = _Trials(prepared, samples, judge or Judge(), threads, simulate)
    scored = {}
    for number, spec in enumerate(specs):
        progress("auto: candidates alone", number, len(specs))
        scored[spec] = judging(uniform[spec])
    errors: Errors = {}
    if granularity is not Granularity.GLOBAL:
        walk = Walk(prepared, first, samples[::-(-len(samples) // MOST_READ)], threads=threads, simulate=simulate)
        errors = reading_errors(walk, {s: p.ranges for s, p in uniform.items()}, progress)
    base = max(specs, key=lambda s: (float(scored[s].mean()), -_total(errors, s)))
    ways: dict[str, dict[str, str]] = {}
    for name, margin in ((MIXED, 0.0), (CAREFUL, MARGIN_DB)) if errors else ():
        ways[name] = {g: _leaving(base, errors.get(g, {}), margin) for g in first.ranges}
        scored[name] = judging(mixed(uniform, ways[name]))
    ways[base] = dict.fromkeys(first.ranges, base)
    winner = _best(scored, tuple(ways), base)
    return Choice(ways[winner], winner, _reasons(ways[winner], ways.get(MIXED, ways[base]), errors, winner, base), errors,
                  {s: float(v.mean()) for s, v in scored.items()}, judging.count)


def _total(errors: Errors, spec: str) -> float:
    """Mean of the logarithms over the groups: between candidates that the network's output cannot tell apart."""
    return float(np.mean([math.log(max(e[spec], 1e-20)) for e in errors.values()])) if errors else 0.0


def _leaving(base: str, errors: Mapping[str, float], margin_db: float) -> str:
    """The candidate of least error where it beats `base` by the margin, else `base`."""
    best = min(errors, key=lambda s: errors[s], default=base)
    return best if errors and errors[best] * 10.0 ** (margin_db / 10.0) < errors[base] else base


def _best(scored: Mapping[str, Decibels], ways: Sequence[str], base: str) -> str:
    """Of greatest mean, but `base` where that does not lead it by more than chance would."""
    best = max(ways, key=lambda w: float(scored[w].mean()))
    lead = scored[best] - scored[base]
    return best if lead.mean() > STANDARD_ERRORS * lead.std() / math.sqrt(len(lead)) else base


def choose_on(dataset: Dataset, prepared: PreparedModel, plans: PlanMaker, precision: Mapping[str, Precision], granularity: Granularity, *,
              spec: str = AUTO, metric: Metric | None = None, simulate: bool | None = None, progress: Progress = silent) -> Choice:
    """`choose` as commands call it: on samples of the calibration data, from what `spec` names, judged by the output that `metric` looks at."""
    return choose(prepared, plans, calibration_samples(dataset, prepared.network), precision, granularity, candidates_of(spec),
                  judge=Judge.of(metric) if metric is not None else None, simulate=simulate, progress=progress)


def candidates_of(spec: str) -> tuple[str, ...]:
    """What an "auto..." spec chooses from."""
    chosen: Any = calibrators.make(spec)
    return tuple(chosen.candidates())


def calibration_samples(dataset: Dataset, network: Network) -> list[dict[str, Array]]:
    """Calibration samples spread over the set, fewer for large networks: 16 to 64."""
    return spread(dataset, int(np.clip(WORK / max(network.macs, 1), FEWEST_SAMPLES, MOST_SAMPLES)))


def spread(dataset: Dataset, count: int) -> list[dict[str, Array]]:
    """At most `count` samples at even distances, those of the shape of the first one: data sets are often sorted by class.

    Raises DataError for an empty set.
    """
    return samples_of(_Every(dataset, max(1, len(dataset) // count)), count)


@dataclass(frozen=True)
class _Every:
    """The Dataset of every `step`-th sample."""

    dataset: Dataset
    step: int

    @property
    def name(self) -> str:
        return self.dataset.name

    @property
    def key(self) -> str:
        return f"{self.dataset.key}/every {self.step}"

    def __len__(self) -> int:
        return (len(self.dataset) + self.step - 1) // self.step

    def batches(self, size: int = 1) -> Iterator[Batch]:
        return (batch for number, batch in enumerate(self.dataset.batches(1)) if number % self.step == 0)


def mixed(uniform: Mapping[str, Plan], by_group: Mapping[str, str], calibrator: str = AUTO) -> Plan:
    """The plan that takes each group's range from the plan of its calibrator."""
    first = next(iter(uniform.values()))
    ranges: dict[str, Range] = {g: uniform[by_group[g]].ranges[g] for g in first.ranges}
    return replace(first, calibrator=calibrator, ranges=ranges)


class _Trials:
    """Runs whole plans on the samples; remembers those of equal ranges."""

    def __init__(self, prepared: PreparedModel, samples: Sequence[dict[str, Array]], judge: Judge, threads: int | None,
                 simulate: bool | None) -> None:
        from qbench.runtime import integer_kernels_saturate

        self.prepared, self.judge, self.threads, self.count = prepared, judge, threads, len(samples)
        self.simulate = integer_kernels_saturate() if simulate is None else simulate
        self.names = judge.names(prepared.network)
        self.samples = samples
        self.softmax = _softmax_of(prepared.model, self.names[0]) if judge.class_axis is not None else None
        self.lifted = frozenset[str]()
        made = self._run(prepared.model, False)
        self.lifted = frozenset(t for t, v in made[0].items() if v.shape[:1] != (1,))
        self.reference = [lifted(m, self.lifted) for m in made]
        self.known: dict[tuple[Range, ...], Decibels] = {}

    def __call__(self, plan: Plan) -> Decibels:
        """dB [samples]."""
        key = tuple(plan.ranges.values())
        if key not in self.known:
            made = self._run(qdq.write(self.prepared, plan).model, self.simulate)
            least = LEAST_NATS if self.softmax is None else LEAST_OF_SCORES
            self.known[key] = np.concatenate([self.judge.score(self.names, r, m, least) for r, m in zip(self.reference, made, strict=True)])
        return self.known[key]

    def _run(self, model: ir.Model, simulate: bool) -> list[dict[str, Array]]:
        """Judged output -> values, for each sample; those that a Softmax makes as it reads them, before codes of 1/256 hide a sure answer."""
        wanted = {t: t for t in self.names}
        if self.softmax is not None:
            scores = next(n for n in model.graph if n.name == self.softmax).inputs[0]
            assert scores is not None
            scores.type = scores.type or ir.TensorType(ir.DataType.FLOAT)
            wanted[self.names[0]] = str(scores.name)
            part = extract(model, self.prepared.network.inputs, list(dict.fromkeys(wanted.values())))
            assert part is not None, "every tensor depends on the inputs alone"
            model = part
        with loaded(model, self.threads, simulate) as session:
            found = [session.run(s) for s in self.samples]
        shapes = {self.names[0]: self.prepared.network.tensors[self.names[0]].shape} if self.softmax else {}
        return [lifted({t: m[n].reshape(shapes.get(t, m[n].shape)) for t, n in wanted.items()}, self.lifted) for m in found]


def _softmax_of(model: ir.Model, output: str) -> str | None:
    """Name of the Softmax that makes `output`, but for a Reshape; None where none does."""
    value: ir.Value | None = next(v for v in model.graph.outputs if v.name == output)
    while value is not None and (maker := value.producer()) is not None:
        if maker.op_type == "Softmax":
            return str(maker.name)
        value = maker.inputs[0] if maker.op_type in ("Identity", "Reshape") else None
    return None


def _reasons(final: Mapping[str, str], mix: Mapping[str, str], errors: Errors, winner: str, base: str) -> dict[str, str]:
    found = {}
    for group, spec in final.items():
        own = errors.get(group, {})
        if not errors:
            found[group] = f"one scale for all tensors: with {winner} the network's output came closest to float"
        elif winner != MIXED and spec == base:
            found[group] = f"{base} for the whole network came closest to float" + (" where nothing is much better" if winner != base else "")
            if own and mix[group] != spec:
                found[group] += f"; at the layers behind this tensor alone {mix[group]} is better"
        else:
            others = sorted((s for s in own if own[s] > own[spec]), key=lambda s: own[s])
            found[group] = (f"least error at the output of the layers that read it: {_signal(own[spec])}; next {others[0]} {_signal(own[others[0]])}"
                            if others else "all candidates do equally well")
    return found


def _signal(error: float) -> str:
    return f"{-10.0 * math.log10(max(error, 1e-20)):.1f} dB"


def _say(winner: str) -> str:
    if winner == MIXED:
        return "the best for each layer"
    if winner == CAREFUL:
        return f"one for all, but for layers where another is better by {MARGIN_DB:g} dB"
    return f"{winner} throughout is best"


def _db(noise: Decibels, signal: Decibels) -> Decibels:
    """10 log10(signal / noise) within +-200; 200 where there is neither."""
    with np.errstate(divide="ignore", invalid="ignore"):
        found = 10.0 * np.log10(signal / noise)
    found = np.where(noise == 0.0, MOST_DB, found)
    return np.clip(np.where(np.isnan(found), -MOST_DB, found), -MOST_DB, MOST_DB)
