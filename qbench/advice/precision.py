"""Steps in number formats: INT8, INT16 activations, the ends of the network, conversions between precisions, scales."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from qbench.advice.records import Answer, Consent, Inapplicable, Subject, Trial, Unpriced
from qbench.advice.setup import Setup, priced
from qbench.network import Precision


def int8(subject: Subject) -> Iterator[Answer]:
    """Every unit that takes it in the chip's narrowest format; where all are, what the widest float costs."""
    setup = subject.setup
    available = setup.target.available(setup.toolkit)
    if Precision.INT8 not in available:
        yield Inapplicable(f"{setup.target.name} offers no int8")
        return
    left = sum(u.quantizable and setup.precision[u.name] is not Precision.INT8 for u in setup.network.units)
    if left:
        yield Trial(f"INT8 for the {left} units that take it and are not in it", Consent.RESULT, lambda s: s.uniform(Precision.INT8), together=False,
                    note="accuracy: `qbench search` finds the units that cannot")
        return
    floats = [p for p in available if p.is_float]
    if floats:
        yield Trial(f"INT8 throughout, against {floats[0].upper()}", Consent.RESULT, lambda s: s.uniform(floats[0]), counted=True)
    else:
        yield Inapplicable("every unit is in INT8")


def w8a16(subject: Subject) -> Iterator[Answer]:
    setup = subject.setup
    if Precision.INT16 not in setup.target.available(setup.toolkit):
        why = setup.target.refused.get(Precision.INT16, "")
        yield Inapplicable(f"{setup.target.name} offers no 16-bit integers" + (f": {why}" if why else ""))
        return
    scheme = setup.target.support(Precision.INT16, setup.toolkit).scheme
    bits = scheme.weight.bits if scheme else 16
    if bits != 8:
        yield Inapplicable(f"16-bit integers of {setup.target.name} are w{bits}a16: its weights grow, too")
        return
    yield Trial("INT16 activations with INT8 weights where INT8 loses too much", Consent.RESULT, lambda s: s.uniform(Precision.INT16), together=False,
                note="bought for accuracy; mixed with INT8 by `qbench search`")


def ends(subject: Subject) -> Iterator[Answer]:
    """First and last unit in more bits: an accuracy guard with a price."""
    setup = subject.setup
    wider = [p for p in setup.target.available(setup.toolkit) if p is not Precision.INT8]
    first, last = _end_units(setup)
    names = {unit: word for word, unit in (("last", last), ("first", first)) if setup.precision[unit] is Precision.INT8}
    if not wider or not names:
        yield Inapplicable("first and last unit are not in INT8" if wider else f"{setup.target.name} offers INT8 only")
        return
    for unit, word in sorted(names.items(), key=lambda item: item[1]):
        tried = {p: priced(_raised(setup, [unit], p)) for p in wider}
        best = min(tried, key=lambda p: (tried[p].latency_s, not p.is_float))
        yield Trial(f"{word} unit {unit!r} in {best.upper()}", Consent.RESULT, after=tried[best], together=False,
                    note="bought for accuracy; `qbench analyze` says whether this unit loses any")


def _raised(setup: Setup, units: list[str], precision: Precision) -> Setup:
    return replace(setup, precision={**setup.precision, **dict.fromkeys(units, precision)})


def _end_units(setup: Setup) -> tuple[str, str]:
    """Units of the first and the last kernel that hold weights."""
    weighted = [k.name for k in setup.network.kernels if k.weights] or [k.name for k in setup.network.kernels]
    return setup.network.unit_of_kernel[weighted[0]], setup.network.unit_of_kernel[weighted[-1]]


def conversions(subject: Subject) -> Iterator[Answer]:
    """The unit whose own precision costs most in conversions at its borders, given its neighbours' instead."""
    setup = subject.setup
    if len(set(setup.precision.values())) < 2:
        yield Inapplicable("one precision throughout: nothing is converted")
        return
    tried = {}
    for unit in setup.network.units:
        if unit.quantizable:
            for p in sorted({*setup.precision.values()} - {setup.precision[unit.name]}):
                tried[unit.name, p] = priced(_raised(setup, [unit.name], p)).latency_s
    if not tried:
        yield Inapplicable("no unit may change its precision")
        return
    name, p = min(tried, key=lambda k: tried[k])
    if tried[name, p] >= subject.now.latency_s:
        yield Trial("no single unit in another precision is faster, conversions included", Consent.EXACT, after=subject.now)
        return
    yield Trial(f"unit {name!r} from {setup.precision[name].upper()} to {p.upper()}, conversions included", Consent.RESULT,
                lambda s: _raised(s, [name], p), together=False)


def scales(subject: Subject) -> Iterator[Answer]:
    if not any(p in (Precision.INT8, Precision.INT16) for p in subject.setup.precision.values()):
        yield Inapplicable("nothing is quantized")
        return
    yield Unpriced("one scale per channel of the weights and per activation tensor, in place of one for the network", Consent.RESULT,
                   "scales change accuracy, not time: `qbench compare` measures it on your data")
