"""Steps on single kernels: the bottlenecks, functions behind convolutions, channels, and what falls back to the CPU."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace

from qbench.advice.networks import functions, narrowed, waste, with_function
from qbench.advice.records import Answer, Consent, Inapplicable, Subject, Trial, Unpriced
from qbench.advice.setup import Setup, npu, quicker
from qbench.cost.changes import changes
from qbench.cost.model import cost_model
from qbench.network import Precision

TOP = 3
_CONSENT = {"precision": Consent.RESULT, "channels": Consent.RETRAIN, "activation": Consent.RETRAIN, "memory": Consent.RETRAIN,
            "placement": Consent.RESULT}


def bottlenecks(subject: Subject) -> Iterator[Answer]:
    """The slowest kernels, each with the change that saves most on it, clocks left out."""
    setup = subject.setup
    model, network = cost_model(setup.target, setup.toolkit), setup.network
    slowest = sorted(subject.now.kernels, key=lambda c: -c.seconds)[:TOP]
    for cost in slowest:
        kernel, unit = network.kernel[cost.name], network.unit_of_kernel[cost.name]
        quantizable = next(u.quantizable for u in network.units if u.name == unit)
        available = [p for p in setup.target.available(setup.toolkit) if quantizable or p.is_float]
        best = next(iter(changes(model, kernel, network, setup.precision[unit], setup.point, (), available)), None)
        share = f"{cost.name!r} ({cost.op}), {100 * cost.seconds / subject.now.latency_s:.0f} % of the time, bound by {cost.bound}"
        if best is None:
            yield Trial(f"{share}: no single change of precision, channels, function or memory makes it faster", Consent.EXACT, after=subject.now)
        elif best.kind == "precision":
            goal = next(p for p in available if best.what.endswith(f" to {p}"))
            yield Trial(f"{share}: {best.what}", Consent.RESULT, _with_precision(unit, goal), together=False, note="conversions at its borders included")
        else:
            yield Trial(f"{share}: {best.what.removesuffix(' (changes the result: retrain)')}", _CONSENT[best.kind], after=quicker(subject.now, best.saved_s),
                        together=False, note="on the kernel alone")


def _with_precision(unit: str, precision: Precision) -> Callable[[Setup], Setup]:
    return lambda s: replace(s, precision={**s.precision, unit: precision})


def activation(subject: Subject) -> Iterator[Answer]:
    """Functions that pass a table or the vector unit, replaced by cheaper ones."""
    setup = subject.setup
    names = functions(setup.network)
    if not names or npu(setup) is None:
        yield Inapplicable("no function beyond ReLU and Clip follows an operator" if not names else "the CPU model prices no function apart")
        return
    kinds = Counter(k.activation or k.op for k in setup.network.kernels if k.name in names)
    what = ", ".join(f"{n} {kind}" for kind, n in kinds.most_common())
    yield Trial(f"ReLU in place of {what}", Consent.RETRAIN, lambda s: s.with_network(with_function(s.network, "Relu")), together=False,
                at_most=True, note="gates and outputs that need a Sigmoid keep it")
    if "Swish" in kinds:
        yield Trial(f"HardSwish in place of {kinds['Swish']} Swish", Consent.RETRAIN, lambda s: s.with_network(with_function(s.network, "HardSwish")),
                    together=False, note="the chip may pass both through the same table")


def gelu(subject: Subject) -> Iterator[Answer]:
    gelus = subject.operators.get("Gelu", 0) + subject.operators.get("Erf", 0)
    if not gelus:
        yield Inapplicable("no Gelu in the network")
        return
    yield Unpriced(f"Tanh or Sigmoid in place of {gelus} Gelu", Consent.RETRAIN, "it would compute another function; the chip has a Gelu or its parts")


def channels(subject: Subject) -> Iterator[Answer]:
    setup, model = subject.setup, npu(subject.setup)
    if model is None:
        yield Inapplicable("no compute array: channels are not padded")
        return
    precision = next(iter(Counter(setup.precision.values()).most_common(1)))[0]
    group = int(max(model.channel_group(precision, True), model.channel_group(precision, False)))
    unfilled = waste(setup.network, group)
    changed, touched = narrowed(setup.network, group)
    if not touched:
        yield Inapplicable(f"hidden channels are multiples of {group} already" if not unfilled else
                           f"only inputs, outputs and layers narrower than {group} do not fill the array")
        return
    lost = 1.0 - changed.macs / setup.network.macs
    yield Trial(f"hidden channels rounded down to multiples of {group} in {touched} convolutions ({100 * lost:.0f} % fewer multiply-accumulates)", Consent.RETRAIN,
                lambda s: s.with_network(narrowed(s.network, group)[0]), together=False)


def fallback(subject: Subject) -> Iterator[Answer]:
    """Kernels on the CPU, moved to the NPU: what a rewrite could save at most."""
    setup = subject.setup
    if npu(setup) is None:
        yield Inapplicable("everything runs on the CPU by design")
        return
    on_cpu = [c for c in subject.now.kernels if c.placement == "CPU"]
    ops = sorted({op for c in setup.network.kernels for op in c.op.split("+")})
    unknown = [op for op in ops if setup.target.placement(op) == "unknown"]
    refused = [op for op in ops if setup.target.placement(op) == "refused"]
    said = f"; refused by the toolchain: {', '.join(refused)}" if refused else ""
    said += f"; in no public table: {', '.join(unknown[:6])}{', ...' if len(unknown) > 6 else ''}" if unknown and setup.target.operators else ""
    said += "; no public operator table for this chip" if not setup.target.operators and not setup.target.cpu_ops else ""
    if not on_cpu:
        yield Inapplicable(f"no operator is known to leave the NPU{said}")
        return
    kinds = ", ".join(sorted({c.op for c in on_cpu}))
    yield Trial(f"rewrite {len(on_cpu)} kernels that fall back to the CPU ({kinds}) into operators that the NPU takes: `qbench rewrite`", Consent.RESULT, _on_npu,
                together=False, at_most=True, note=f"hand-over assumed, unvalidated{said}")


def _on_npu(setup: Setup) -> Setup:
    return replace(setup, target=replace(setup.target, cpu_ops=(), on_cpu=None))
