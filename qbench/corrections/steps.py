"""The correction steps: their names, their options, their order. A plan lists them as text, "adaround:iterations=500"."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields

from qbench import spec
from qbench.errors import InputError, PlanError

NONE = "none"


@dataclass(frozen=True, slots=True)
class Equalization:
    """Cross-layer equalization: channels of neighbouring layers are rescaled so that one scale per weight tensor serves all.

    sweeps   over all pairs of layers, at most; it ends when nothing moves any more
    Source: Nagel et al. 2019 (arXiv 1906.04721), section 4.1.
    """

    sweeps: int = 500

    def __post_init__(self) -> None:
        _at_least("cle", "sweeps", self.sweeps, 1)


@dataclass(frozen=True, slots=True)
class Mask:
    """Attention masks: huge negative constants in front of a Softmax become just negative enough.

    margin   the largest weight that leaks through the mask is exp(-margin)
    rows     "exact": a mask that leaves nothing of some row stays, as float's result there would change; "any": it may change
    Source: BUG case B13.
    """

    margin: float = 20.0
    rows: str = "exact"

    def __post_init__(self) -> None:
        _at_least("mask", "margin", self.margin, 1.0)
        if self.rows not in ("exact", "any"):
            raise InputError(f"mask: rows={self.rows}; known: exact, any")


@dataclass(frozen=True, slots=True)
class FixedOutputs:
    """Outputs of Softmax and Sigmoid get the scale that the target prescribes (BUG case B12)."""


@dataclass(frozen=True, slots=True)
class BiasGuard:
    """Weight scales are raised where the bias would leave int32 (BUG case B08)."""


@dataclass(frozen=True, slots=True)
class AdaRound:
    """Each weight is rounded up or down so that the layer's output, activation included, stays close to float; needs torch.

    iterations   of Adam per layer, at most: a layer whose weights have all decided stops early
    samples      calibration samples it looks at; 0: 16 to 1024, the fewer the larger the network's activations are
    positions    output positions of a layer that it learns from, drawn from all samples
    batch        positions per iteration
    lr           learning rate
    seed         draws positions and batches
    device       "cpu", "cuda", or "auto" for cuda where there is one
    Source: Nagel et al. 2020 (arXiv 2004.10568).
    """

    iterations: int = 300
    samples: int = 0
    positions: int = 8192
    batch: int = 512
    lr: float = 0.03
    seed: int = 0
    device: str = "auto"

    def __post_init__(self) -> None:
        for name in ("iterations", "positions", "batch"):
            _at_least("adaround", name, getattr(self, name), 1)
        _at_least("adaround", "samples", self.samples, 0)
        if not 0.0 < self.lr <= 1.0:
            raise InputError(f"adaround: lr={self.lr:g}; expected a learning rate above 0, at most 1")
        if self.device not in ("auto", "cpu", "cuda"):
            raise InputError(f"adaround: device={self.device}; known: auto, cpu, cuda")


@dataclass(frozen=True, slots=True)
class BiasCorrection:
    """Biases take back the mean error of each output channel.

    how       "empirical": the measured error, layer after layer, each seeing the corrected ones before it;
              "analytic": the error of the rounded weights on the float network's mean activations
    samples   as of `AdaRound`
    Source: Nagel et al. 2019 (arXiv 1906.04721), section 4.2 and appendix D.
    """

    how: str = "empirical"
    samples: int = 0

    def __post_init__(self) -> None:
        _at_least("bias", "samples", self.samples, 0)
        if self.how not in ("empirical", "analytic"):
            raise InputError(f"bias: how={self.how}; known: analytic, empirical")


Correction = Equalization | Mask | FixedOutputs | BiasGuard | AdaRound | BiasCorrection

STEPS: Mapping[str, type[Correction]] = {
    "cle": Equalization, "mask": Mask, "fixed-outputs": FixedOutputs, "bias-guard": BiasGuard, "adaround": AdaRound, "bias": BiasCorrection}
"""In the order in which they are applied: what changes the network, then what the writer does, then what learns from both."""

DEFAULTS = ("mask", "fixed-outputs", "bias-guard")
"""Applied unless "none" is asked for."""


def make(text: str) -> Correction:
    """The step of a spec. Raises UnknownName or InputError, listing what there is."""
    return spec.build(text, STEPS, "correction")


def name_of(step: Correction) -> str:
    return next(name for name, kind in STEPS.items() if type(step) is kind)


def text_of(step: Correction) -> str:
    """The spec that `make` turns into an equal step; options at their defaults are left out."""
    changed = [f"{f.name}={getattr(step, f.name)}" for f in fields(step) if getattr(step, f.name) != f.default]
    return ":".join(filter(None, (name_of(step), ",".join(changed))))


def chosen(texts: Iterable[str]) -> tuple[Correction, ...]:
    """What a user asked for, in the order of application: the default steps and those named; "none" leaves the default ones out.

    Raises UnknownName, or InputError for a step that is named twice.
    """
    texts = list(texts)
    named = [make(t) for t in texts if t.strip() != NONE]
    names = [name_of(s) for s in named]
    if twice := next((n for n in names if names.count(n) > 1), None):
        raise InputError(f"correction {twice!r} is named twice; give its options together: {twice}:key=value,key=value")
    found = {name_of(s): s for s in ([] if len(named) < len(texts) else [make(d) for d in DEFAULTS])} | dict(zip(names, named, strict=True))
    return tuple(found[name] for name in STEPS if name in found)


def of_plan(corrections: Iterable[str]) -> dict[str, Correction]:
    """Step name -> step of a plan's list. Raises PlanError for one that this version does not know."""
    found = {}
    for text in corrections:
        try:
            step = make(text)
        except InputError as error:
            raise PlanError(f"the plan was made with correction {text!r}, which this version of qbench cannot repeat: {error}") from error
        found[name_of(step)] = step
    return found


def _at_least(step: str, option: str, value: float, least: float) -> None:
    if not value >= least:
        raise InputError(f"{step}: {option}={value:g}; expected at least {least:g}")
