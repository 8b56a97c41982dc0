"""How well do the cost models of the other chips know them? Fits their constants on public latencies and tests them on what was left out.

    python experiments/fit_targets.py                    every chip: prints the tables
    python experiments/fit_targets.py hexagon --write    one group, and writes the fitted block of its target files

Reading: a row is one network at one precision. "model out" is fitted without that network, "family out" without every network of
its design (the honest one for a new network). An interval is conformal: 80 % of the errors of the networks left out lie inside.
No constant belongs to one network. Constants that the rows do not identify stay near a prior, which is part of the file that is
fitted: its weight is WEIGHT per factor of e, against errors of about 0.1.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cache
from math import ceil, exp, log
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from public_rows import Row, read_networks, read_rows
from scipy.optimize import least_squares
from scipy.stats import spearmanr
from validation import Prediction
from validation import replace as write_validation

from qbench.cost.npu import NpuModel, seconds
from qbench.cost.parameters import NpuParameters, read_parameters
from qbench.cost.work import Work
from qbench.files import write_text
from qbench.network import Precision
from qbench.target import OperatingPoint
from qbench.targets import load

Floats = NDArray[np.float64]
TARGETS = Path(__file__).parent.parent / "targets"
INT8, INT16, FP16, FP32 = Precision.INT8, Precision.INT16, Precision.FP16, Precision.FP32
ROBUST = 0.12                                   # scale of the loss: beyond it a row pulls less and less
POINT = OperatingPoint("1000MHz", 1e9, None)    # constants per cycle refer to this clock; a target's own clock divides them


@dataclass(frozen=True)
class Constant:
    """A constant to be fitted. weight   of its prior, in standard errors of 0.1 per factor of e; infinite: not fitted"""

    start: float
    weight: float = 1.0


@dataclass(frozen=True)
class Counted:
    """Rows of one precision with the counts of their kernels, end to end."""

    rows: tuple[Row, ...]
    work: Work
    starts: NDArray[np.intp]
    precision: Precision

    @property
    def log_ms(self) -> Floats:
        return np.log([r.ms for r in self.rows])


class Bench:
    """Counts every network once, and prices rows under trial constants. Rates per cycle named macs_* are those of the array."""

    def __init__(self, base: NpuParameters, weight_bits: Mapping[Precision, int], rates: Mapping[Precision, float] | None = None,
                 clock: float = 1.0) -> None:
        """rates   of the array where a document gives them; otherwise they are constants `macs_int8`, `macs_fp16`, ... to be fitted

        clock   at which the rows were measured, in units of POINT
        """
        self.clock_hz = clock * POINT.clock_hz
        self.base = replace(base, spill_factor_8bit=1e-9, spill_factor_16bit=1e-9)
        self.rates = rates
        self.model = NpuModel(self.base, rates or dict.fromkeys(Precision, 1.0), frozenset(), POINT, dict(weight_bits))

    @cache                                       # noqa: B019  one bench per run
    def work(self, graph: str, precision: Precision) -> Work:
        network = read_networks()[graph]
        rows = [self.model.work(k, network, precision)[1] for k in network.kernels]
        return Work(**{f.name: np.array([getattr(w, f.name) for w in rows], float) for f in fields(Work)})  # type: ignore[arg-type]

    def counted(self, rows: Sequence[Row]) -> list[Counted]:
        found = []
        for p in Precision:
            own = tuple(r for r in rows if r.precision is p)
            if own:
                works = [self.work(r.graph, p) for r in own]
                sizes = [len(w.launches) for w in works]  # type: ignore[arg-type]
                whole = Work(**{f.name: np.concatenate([getattr(w, f.name) for w in works]) for f in fields(Work)})  # type: ignore[arg-type]
                found.append(Counted(own, whole, np.concatenate([[0], np.cumsum(sizes)[:-1]]).astype(np.intp), p))
        return found

    def log_ms(self, c: Counted, constants: Mapping[str, float]) -> Floats:
        """Logarithm of the predicted milliseconds of each row."""
        known = {f.name for f in fields(NpuParameters)}
        p = replace(self.base, **{k: v for k, v in constants.items() if k in known})
        factor = p.spill_factor_8bit if c.precision.activation_bytes == 1 else p.spill_factor_16bit
        w = replace(c.work, cycles=c.work.cycles / (1.0 if self.rates else constants[f"macs_{c.precision}"]),
                    dram_bytes=c.work.dram_bytes + factor * c.work.spilled_bytes)
        each = np.asarray(seconds(w, self.clock_hz, p, c.precision))
        return np.log(1e3 * (np.add.reduceat(each, c.starts) + p.model_overhead_s))


def fit(bench: Bench, rows: Sequence[Row], constants: Mapping[str, Constant], fixed: Mapping[str, float]) -> dict[str, float]:
    """The constants: least squares of log(predicted / published), outliers damped, each tied to its prior."""
    names = [k for k, c in constants.items() if np.isfinite(c.weight)]
    held = {k: c.start for k, c in constants.items() if not np.isfinite(c.weight)} | dict(fixed)
    prior, weight = np.log([constants[k].start for k in names]), np.array([constants[k].weight for k in names])
    parts = bench.counted(rows)
    soft = ROBUST

    def at(x: Floats) -> dict[str, float]:
        return held | {k: exp(float(v)) for k, v in zip(names, x, strict=True)}

    def residuals(x: Floats) -> Floats:
        trial = at(x)
        r = np.concatenate([bench.log_ms(c, trial) - c.log_ms for c in parts]) / soft
        damped = np.sign(r) * np.sqrt(np.log1p(r * r) * RESCUE + (1 - RESCUE) * 2 * (np.sqrt(1 + r * r) - 1))
        return np.concatenate([damped, weight * (x - prior)])

    return at(least_squares(residuals, prior, method="trf", x_scale=0.3, max_nfev=60).x)


RESCUE = 0.5                                     # share of the redescending loss (Cauchy) against soft L1


def predicted(bench: Bench, rows: Sequence[Row], constants: Mapping[str, float]) -> dict[Row, float]:
    """Logarithm of predicted over published."""
    return {r: float(v) for c in bench.counted(rows) for r, v in zip(c.rows, bench.log_ms(c, constants) - c.log_ms, strict=True)}


def left_out(rows: Sequence[Row], train: Callable[[Sequence[Row]], Callable[[Sequence[Row]], dict[Row, float]]],
             group: Callable[[Row], str]) -> dict[Row, float]:
    """log(predicted / published) of every row by a fit that has seen none of its group."""
    found: dict[Row, float] = {}
    for name in sorted({group(r) for r in rows}):
        found |= train([r for r in rows if group(r) != name])([r for r in rows if group(r) == name])
    return found


def half_width(r: Floats, share: float = 0.8) -> float:
    """Half width, in logarithms, of the interval that holds `share` of the absolute residuals (finite-sample rank)."""
    a = np.sort(np.abs(r))
    return float(a[min(len(a), ceil((len(a) + 1) * share)) - 1])


def conformal(r: Floats, designs: Sequence[str]) -> tuple[float, float]:
    """Half width of the 80 % interval; and its coverage when each design is judged by an interval from the residuals of the other designs."""
    group = np.array(designs)
    inside = [np.abs(r[group == d]) <= half_width(r[group != d]) for d in sorted(set(designs)) if (group != d).any()]
    return half_width(r), float(np.mean(np.concatenate(inside))) if inside else float("nan")


@dataclass(frozen=True)
class Verdict:
    """How good the predictions of networks left out are."""

    n: int
    median: float
    mean: float
    worst: float
    rank: float
    half: float
    coverage: float

    @staticmethod
    def of(errors: Mapping[Row, float]) -> Verdict:
        r = np.array(list(errors.values()))
        ms = np.log([x.ms for x in errors])
        e = np.abs(np.expm1(r))
        half, coverage = conformal(r, [x.family for x in errors])
        return Verdict(len(r), float(np.median(e)), float(np.mean(e)), float(np.max(e)), float(spearmanr(ms, ms + r)[0]), half, coverage)

    def __str__(self) -> str:
        return f"{self.n:4}{self.median:8.1%}{self.mean:7.1%}{self.worst:7.0%}{self.rank:7.3f}  x/{exp(self.half):.2f} {self.coverage:5.0%}"


def ratio_error(errors: Mapping[Row, float], low: Precision, high: Precision) -> tuple[int, float]:
    """Number of networks with both precisions and the median error of the ratio of their latencies."""
    by = {(r.graph, r.precision): e for r, e in errors.items()}
    pairs = [e - by[g, high] for (g, p), e in by.items() if p is low and (g, high) in by]
    return len(pairs), float(np.median(np.abs(np.expm1(pairs)))) if pairs else float("nan")


# ------------------------------------------------------------------------------------------------------------- groups of chips

Constants = Mapping[str, Constant]
Trained = Mapping[str, Mapping[str, float]]      # constants per chip


def weighted(constants: Constants, factor: float) -> dict[str, Constant]:
    return {k: replace(c, weight=c.weight * factor) for k, c in constants.items()}


def slower(constants: Mapping[str, float], factor: float) -> dict[str, float]:
    """The constants of a chip that takes `factor` times as long: times grow, rates shrink, shares stay."""
    return {k: v * factor if k.endswith("overhead_s") else v if "share" in k or "factor" in k or "exponent" in k else v / factor
            for k, v in constants.items()}


def believable(rows: Sequence[Row]) -> list[Row]:
    """Rows to fit: an INT8 network that takes longer than the same in FP16 holds operators that no size explains. It stays in validation."""
    floats = {(r.chip, r.graph): r.ms for r in rows if r.precision is FP16}
    return [r for r in rows if not (r.precision is INT8 and r.ms > floats.get((r.chip, r.graph), np.inf))]


def typical(rows: Sequence[Row], reference: str) -> list[Row]:
    """One row per network and precision: the geometric mean over the chips that have it, each divided by its median factor to `reference`."""
    known = {(r.graph, r.precision): r.ms for r in rows if r.chip == reference}
    both = [r for r in rows if (r.graph, r.precision) in known]
    chips = {(r.chip, r.precision) for r in both}
    factor = {c: float(np.median([r.ms / known[r.graph, r.precision] for r in both if (r.chip, r.precision) == c])) for c in chips}
    found: dict[tuple[str, Precision], list[float]] = {}
    for r in both:
        found.setdefault((r.graph, r.precision), []).append(log(r.ms / factor[r.chip, r.precision]))
    return [Row("typical", g, p, exp(float(np.mean(v)))) for (g, p), v in found.items()]


@dataclass(frozen=True)
class Group:
    """Chips that share constants.

    chips       target name -> name of the chip in the table of publications
    precisions  that are fitted
    reference   several chips share a structure: constants of a typical chip are fitted first, then each chip's, tied to them; "" fits
                all rows together
    rates       of the array from a document, per cycle; None: fitted
    """

    chips: Mapping[str, str]
    constants: Constants
    precisions: tuple[Precision, ...]
    reference: str = ""
    rates: Mapping[Precision, float] | None = None
    source: str = ""
    older: frozenset[str] = frozenset()                                      # chips of an earlier architecture: tied to the typical chip by LOOSE
    follow: Mapping[str, tuple[str, float]] = field(default_factory=dict)    # constant without rows of its own -> another one and a factor

    @property
    def rows(self) -> list[Row]:
        return [r for r in read_rows() if r.chip in self.chips.values() and r.precision in self.precisions]

    @property
    def benches(self) -> dict[str, Bench]:
        return {chip: bench_of(name, self.rates is not None) for name, chip in self.chips.items()}

    def train(self, rows: Sequence[Row], benches: Mapping[str, Bench]) -> Trained:
        if not self.reference:
            bench = next(iter(benches.values()))
            shared = fit(bench, believable(rows), self.constants, {})
            return dict.fromkeys(self.chips.values(), shared)
        shared = fit(benches[self.reference], believable(typical(rows, self.reference)), self.constants, {})
        found = {}
        for chip, bench in benches.items():
            own = believable([r for r in rows if r.chip == chip])
            miss = predicted(bench, own, shared)
            gap = {p: exp(-float(np.median([e for r, e in miss.items() if p is None or r.precision is p])))
                   for p in (None, *{r.precision for r in own})}
            scaled = {k: slower({k: v}, next((g for p, g in gap.items() if p and k.endswith(f"_{p}")), gap[None]))[k] for k, v in shared.items()}
            tied = weighted({k: Constant(v, OWN_WEIGHT.get(k.split("_")[0], OWN)) for k, v in scaled.items()}, LOOSE if chip in self.older else 1.0)
            found[chip] = fit(bench, own, tied, {}) if own else shared
        return found


# Weights of a chip's constants against the typical chip's: the array and the vector units differ, the structure does not.
OWN = 10.0
OWN_WEIGHT = {"macs": 4.0, "dram": 6.0, "kernel": 6.0, "model": 6.0, "lut": 2.0, "map": 2.0, "depthwise": 2.0}
LOOSE = 0.25                                     # factor on them for an older architecture; chosen on the errors left out: near 1/6 V68 was better, V69 worse, at 1 both were worse


@cache
def bench_of(name: str, documented: bool) -> Bench:
    target = load(name)
    base = read_parameters(name, target.cost_model, target.cost)
    assert isinstance(base, NpuParameters)
    clock = target.operating_points[-1].clock_hz / POINT.clock_hz
    bits = {p.precision: p.scheme.weight.bits for p in target.precisions if p.scheme is not None}
    rates = {p.precision: p.macs_per_cycle for p in target.precisions}
    return Bench(base, bits, dict.fromkeys(Precision, 1.0) | rates if documented else None, clock)


def judged(group: Group, by: Callable[[Row], str]) -> dict[Row, float]:
    """log(predicted / published) of every row of the group by constants that have not seen what `by` puts together."""
    benches = group.benches

    def train(seen: Sequence[Row]) -> Callable[[Sequence[Row]], dict[Row, float]]:
        trained = group.train(seen, benches)
        return lambda rows: {r: e for chip in trained for r, e in predicted(benches[chip], [x for x in rows if x.chip == chip], trained[chip]).items()}
    return left_out(group.rows, train, by)


# ------------------------------------------------------------------------------------------------------------- priors
# Starts are orders of magnitude from the documents named in the target files, rounded; weights say how far the rows may move them.

HEXAGON = weighted({
    "macs_int8": Constant(26000, 2), "macs_int16": Constant(10000, 1.5), "macs_fp16": Constant(8000, 1), "dram_bytes_per_s": Constant(6.5e10, 2),
    "depthwise_macs_per_cycle_int8": Constant(2000, 2), "depthwise_macs_per_cycle_int16": Constant(900, 2),
    "depthwise_macs_per_cycle_fp16": Constant(400, 2), "map_elements_per_cycle_int8": Constant(600, 3),
    "map_elements_per_cycle_int16": Constant(320, 3), "map_elements_per_cycle_fp16": Constant(320, 3),
    "lut_elements_per_cycle_int8": Constant(300, 2), "lut_elements_per_cycle_int16": Constant(35, 2), "lut_elements_per_cycle_fp16": Constant(90, 2),
    "reduce_elements_per_cycle": Constant(30, 3), "layout_bytes_per_s": Constant(8e10, 6), "edge_bytes_per_s": Constant(2.4e10, 2),
    "kernel_overhead_s": Constant(3e-6, 1.5), "model_overhead_s": Constant(7e-5, 1.5), "spill_factor_8bit": Constant(5, 1),
    "spill_factor_16bit": Constant(3, 1), "kernel_overhead_8bit_share": Constant(0.6, 1.5)}, 1.5)
ASCEND = {
    "macs_fp16": Constant(16000, 1), "dram_bytes_per_s": Constant(1.2e11, 1), "depthwise_macs_per_cycle_fp16": Constant(400, 1),
    "map_elements_per_cycle_fp16": Constant(500, 2), "lut_elements_per_cycle_fp16": Constant(200, 1.5), "reduce_elements_per_cycle": Constant(100, 3),
    "layout_bytes_per_s": Constant(1e11, 2), "kernel_overhead_s": Constant(4e-6, 1), "model_overhead_s": Constant(3e-5, 2)}
MLU = {
    "macs_fp16": Constant(6000, 4), "macs_int8": Constant(16000, 4), "dram_bytes_per_s": Constant(8e10, 1),
    "depthwise_macs_per_cycle_fp16": Constant(100, 1), "depthwise_macs_per_cycle_int8": Constant(120, 1), "kernel_overhead_s": Constant(3e-6, 1.5),
    "vector_overhead_s": Constant(1e-5, 1), "model_overhead_s": Constant(3e-5, 3), "lut_elements_per_cycle_fp16": Constant(32, 3),
    "lut_elements_per_cycle_int8": Constant(32, 3), "reduce_elements_per_cycle": Constant(64, 3), "kernel_overhead_8bit_share": Constant(0.9, 6)}
ROCKCHIP = {"dram_bytes_per_s": Constant(8e9, 1), "lut_cycles_per_element": Constant(0.215, 1), "layout_bytes_per_s": Constant(3.4e9, 2),
            "kernel_overhead_s": Constant(1.15e-5, 2)}
XDNA = {"compute_efficiency": Constant(0.4, 2), "dram_bytes_per_s": Constant(2e10, 1), "kernel_overhead_s": Constant(3e-5, 1)}
ANE = {"macs_fp16": Constant(5000, 2), "macs_int8": Constant(10000, 2), "dram_bytes_per_s": Constant(4e10, 1.5), "kernel_overhead_s": Constant(2e-6, 1.5)}
VECTOR = ("depthwise_macs", "map_elements", "lut_elements")
HUB = "quic/ai-hub-models perf.yaml, v0.46.1 (Feb 2026), QNN context binaries, batch 1"
GROUPS = {
    "hexagon": Group({
        "hexagon-qcs6490": "QCS6490", "hexagon-8gen1": "QCS8450 (8 Gen 1 class)", "hexagon-8gen2": "QCS8550 (8 Gen 2 class)",
        "hexagon-8gen3": "Snapdragon 8 Gen 3", "hexagon-8elite": "Snapdragon 8 Elite", "hexagon-8elite5": "Snapdragon 8 Elite Gen 5",
        "hexagon-xelite": "Snapdragon X Elite", "hexagon-qcs9075": "QCS9075"}, HEXAGON, (INT8, INT16, FP16), "Snapdragon 8 Gen 3", source=HUB,
        older=frozenset({"QCS6490", "QCS8450 (8 Gen 1 class)"})),            # V68 and V69; the others are V73 to V81
    "mlu370": Group({"mlu370-s4": "MLU370-S4", "mlu370-x4": "MLU370-X4"}, MLU, (INT8, FP16),
                    source="MagicMind run logs (Cambricon/magicmind_cloud, 2023), batch 1",
                    follow={"macs_int16": ("macs_int8", 0.5), "depthwise_macs_per_cycle_int16": ("depthwise_macs_per_cycle_fp16", 1.0),
                            "lut_elements_per_cycle_int16": ("lut_elements_per_cycle_fp16", 1.0)}),
    "ascend310p": Group({"ascend310p": "Ascend 310P3"}, ASCEND, (FP16,), source="Ascend/ModelZoo-PyTorch READMEs (Dec 2023), ais_bench, batch 1",
                        follow={"macs_int8": ("macs_fp16", 2.0)} | {f"{k}_per_cycle_int8": (f"{k}_per_cycle_fp16", 1.0) for k in VECTOR}),
    "rk3576": Group({"rk3576": "RK3576"}, ROCKCHIP, (INT8,), rates={}, source="rknn_model_zoo table, toolkit 2.3.2 (2025), and independent boards"),
    "rk3566": Group({"rk3566": "RK3566/RK3568"}, ROCKCHIP, (INT8,), rates={}, source="rknn_model_zoo table, toolkit 2.3.2 (2025), and independent boards"),
    "rk3562": Group({"rk3562": "RK3562"}, ROCKCHIP, (INT8,), rates={}, source="rknn_model_zoo table, toolkit 2.3.2 (2025)"),
    "xdna": Group({"xdna": "Ryzen 7 8700G (XDNA1, Phoenix)"}, XDNA, (INT8,), rates={}, source="public report on a Ryzen 7 8700G, XINT8 (2026)"),
    "ane-a16": Group({"ane-a16": "A16 Bionic (iPhone 14 Pro)"}, ANE, (INT8, FP16), source="coremltools documentation, Xcode performance reports (2024)"),
    "ane-a17pro": Group({"ane-a17pro": "A17 Pro (iPhone 15 Pro)"}, ANE, (INT8, FP16), source="coremltools documentation and another page of the vendor, which differ by 18 to 39 % (2024)"),
}
FEW = 10                                         # rows below which no interval can be calibrated: it is widened to at least WIDE
WIDE = 2.0
AIM = 0.15                                       # median error above which the file says so


# ------------------------------------------------------------------------------------------------------------- the target files

def written(value: float) -> str:
    return f"{value:.3g}" if value < 1e6 else f"{value:.3e}"


def formulas_only(target: str) -> str:
    """What latencies say nothing about. Power stands apart where the target's file has published watts."""
    rest = "Clocks, conversions between precisions, CPU fallback"
    if load(target).power is None:
        return f"{rest}, memory and energy: formulas only, not validated"
    return f"{rest} and memory: formulas only, not validated; power and energy are fitted apart, on published board watts (experiments/fit_power.py)"


def provenance(group: Group, chip: str, model_out: Mapping[Row, float], family_out: Mapping[Row, float]) -> tuple[str, float]:
    """The fitted block of a target file, and the half width of its interval in logarithms."""
    own, other = ({r: e for r, e in x.items() if r.chip == chip} for x in (family_out, model_out))
    seen = Counter(r.precision for r in own)
    count = ", ".join(f"{n} {str(p).upper()}" for p, n in seen.items())
    networks = len({r.graph for r in own})
    family, model = Verdict.of(own), Verdict.of(other)
    few = len(own) < FEW or networks < FEW
    half = max(family.half, log(WIDE)) if few else family.half
    per = "; ".join(f"{str(p).upper()} median {Verdict.of({r: e for r, e in own.items() if r.precision is p}).median:.0%}" for p in seen)
    pairs, ratio = ratio_error(own, INT8, FP16)
    fitted = f"{len(own)} published latencies of {networks} networks ({count}; {group.source})"
    if group.reference:
        fitted += "; structure and most constants shared by the Hexagon generations"
    if chip in group.older:
        fitted += "; tied to them by a weight that was chosen among several on the errors below, which are optimistic for it"
    checked = (f"leave one design out: median error {family.median:.0%}, mean {family.mean:.0%}, largest {family.worst:.0%}, rank correlation {family.rank:.2f} ({per}); "
               f"leave one network out: median {model.median:.0%}" + (f"; INT8/FP16 ratio of {pairs} networks: median error {ratio:.0%}" if pairs else "")
               + f"; the interval, made without the design it is judged on, holds {family.coverage:.0%} of the rows" * (not few)
               + f". Above the {AIM:.0%} that is aimed at: the published rows do not carry more" * (family.median > AIM)
               + f". The ratio is worse than {AIM:.0%}: do not choose a precision on this chip by latency alone" * (ratio > AIM)
               + f". Only {networks} networks: unvalidated beyond them" * few
               + f". {formulas_only(next(name for name, c in group.chips.items() if c == chip))}")
    interval = (f"at least a factor of {WIDE:g}, since {networks} networks cannot calibrate one" if few
                else "80 % conformal, leave-one-design-out")
    return (f"latency_factor_low = {exp(-half):.3f}\nlatency_factor_high = {exp(half):.3f}\n\n[provenance]\nfitted_on = {json.dumps(fitted)}\n"
            f"validated_on = {json.dumps(checked)}\ninterval = {json.dumps(interval)}\n"), half


def write_target(name: str, block: str, constants: Mapping[str, float]) -> None:
    path = TARGETS / f"{name}.toml"
    body = path.read_text(encoding="utf-8")
    begin, end = "# --- fitted block: written by experiments/fit_targets.py ---\n", "# --- end of fitted block ---\n"
    body = body[:body.index(begin) + len(begin)] + block + body[body.index(end):]
    for key, value in constants.items():
        if key.startswith("macs_"):
            pattern, text = rf'(precision = "{key[5:]}"\nmacs_per_cycle = )[^\n]*', rf"\g<1>{written(value)}"
        else:
            pattern, text = rf"^{key} = \{{ value = [^,]*,", f"{key} = {{ value = {written(value)},"
        body = re.sub(pattern, text, body, flags=re.MULTILINE)
    write_text(path, body)


def report(name: str, group: Group, write: bool) -> None:
    family_out, model_out = judged(group, lambda r: r.family), judged(group, lambda r: r.graph)
    trained = group.train(group.rows, group.benches)
    print(f"\n{name}\n   {'target':17}{'':7}{'   n  median   mean  worst   rank  interval, coverage':54} | model out: median | INT8/FP16, INT16/FP16 ratio")
    for target, chip in group.chips.items():
        own, other = ({r: e for r, e in x.items() if r.chip == chip} for x in (family_out, model_out))
        for p in (None, *group.precisions):
            part, rest = ({r: e for r, e in x.items() if p is None or r.precision is p} for x in (own, other))
            if len(part) > 1:
                ratios = " ".join(f"{n} {v:.1%}" for n, v in (ratio_error(own, INT8, FP16), ratio_error(own, INT16, FP16)) if n) if p is None else ""
                print(f"   {target:17}{p or 'all':7}{Verdict.of(part)} | {Verdict.of(rest).median:17.1%} | {ratios}")
        block, half = provenance(group, chip, model_out, family_out)
        if write:
            write_validation(Prediction(target, r.graph, r.family, str(r.precision), r.ms, r.ms * exp(e), r.ms * exp(e - half), r.ms * exp(e + half))
                             for r, e in own.items())
            own_constants = trained[chip]
            write_target(target, block, {**own_constants, **{k: own_constants[of] * factor for k, (of, factor) in group.follow.items()}})
    if not write:
        first = next(iter(group.chips.values()))
        print("   constants:", ", ".join(f"{k} {written(v)}" for k, v in trained[first].items()))
    worst = sorted(family_out.items(), key=lambda x: -abs(x[1]))[:6]
    print("   largest:", "; ".join(f"{r.graph} {r.precision} on {r.chip.split()[0]} {np.expm1(e):+.0%}" for r, e in worst))


def main(argv: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("group", nargs="*", default=[*GROUPS], help=", ".join(GROUPS))
    parser.add_argument("--write", action="store_true", help="write the fitted block and the constants into targets/")
    options = parser.parse_args(argv)
    print("Error of the predicted latency of networks left out of the fit, with every network of their design (family) or alone (model)")
    for name in options.group:
        report(name, GROUPS[name], options.write)


if __name__ == "__main__":
    main(sys.argv[1:])
