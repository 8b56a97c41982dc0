"""How well does the power model know a board? Fits its constants on published board watts and tests them on networks left out.

    python experiments/fit_power.py                     prints the table
    python experiments/fit_power.py --write             also writes the power block and the constants into targets/mlu370-*.toml
    python experiments/fit_power.py --latencies CSV     makes experiments/data/public_power.csv again

    P = P_base(card) + rate * (kappa (MACs e_mac + bytes on chip e_sram) + bytes of DRAM e_dram)

Two constants are shared by the cards, kappa and e_dram (energies of one MAC and one on-chip byte come from published tables); P_base is each
card's own. `rate` is the published inferences per second of the same run, so an error of the latency model does not enter the fit. The counts
are the target's: run this again when its structure or its array rates change.
Rows with a batch of 1 and 4 are used: there every image has a cluster of its own and does the work that the model counts; with 8, two images
share a cluster's weights, and those rows are printed as a check only. fp32 is left out: the targets do not offer it.
"""

from __future__ import annotations

import argparse
import csv
import json
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from math import exp, log
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from public_rows import DATA, FAMILIES, PRECISIONS, read_networks
from scipy.optimize import least_squares

from qbench.cost import CostTable
from qbench.files import write_text
from qbench.network import Precision
from qbench.target import Target
from qbench.targets import load

Floats = NDArray[np.float64]
ROWS = DATA / "public_power.csv"
COLUMNS = ("chip", "graph", "batch", "precision", "power_w", "fps", "source")
TARGETS = Path(__file__).parent.parent / "targets"
CARDS = {"MLU370-S4": "mlu370-s4", "MLU370-X4": "mlu370-x4"}
FITTED = (1, 4)
START = {"control_factor": 5.0, "dram_pj_per_byte": 60.0, "MLU370-S4": 27.0, "MLU370-X4": 50.0}
NOISE = 0.05                                     # scale of the loss in logarithms of watts
PRIOR = 0.2                                      # weight of the start per factor of e, against errors of NOISE
ASSUMED = 1.25                                   # interval of a card with a single network, which cannot calibrate one
SOURCE = "MagicMind run logs (Cambricon/magicmind_cloud, 2023)"


@dataclass(frozen=True)
class Run:
    """One published run: mean board watts and inferences per second."""

    chip: str
    graph: str
    batch: int
    precision: Precision
    watts: float
    rate: float

    @property
    def design(self) -> str:
        return next((FAMILIES[k] for k in sorted(FAMILIES, key=len, reverse=True) if self.graph.startswith(k)), self.graph)

    def __str__(self) -> str:
        return f"{self.chip} {self.graph} {self.precision} batch {self.batch}"


def read_runs() -> tuple[Run, ...]:
    with ROWS.open(newline="") as file:
        return tuple(Run(r["chip"], r["graph"], int(r["batch"]), Precision(r["precision"]), float(r["power_w"]), float(r["fps"])) for r in csv.DictReader(file))


def make_data(latencies: Path) -> None:
    """Copies board power and rate of one run, where the network is known and the precision is offered."""
    found: dict[tuple[str, ...], dict[str, str]] = {}
    with latencies.open(newline="") as file:
        for r in csv.DictReader(file):
            offered = r["chip"] in CARDS and r["graph"] and r["precision"] in PRECISIONS and r["metric"] in ("power_w", "fps") and "do not fit" not in r["notes"]
            if offered:
                key = (r["chip"], r["graph"], r["input_shape"].split("x")[0], str(PRECISIONS[r["precision"]]), r["source"])
                found.setdefault(key, {})[r["metric"]] = r["value"]
    with ROWS.open("w", newline="") as file:
        out = csv.writer(file, lineterminator="\n")
        out.writerow(COLUMNS)
        out.writerows((*key[:4], v["power_w"], v["fps"], key[4]) for key, v in sorted(found.items()) if len(v) == 2)


@cache
def bare(card: str) -> Target:
    """The card without static power, whose dynamic energies are linear in the two constants."""
    target = load(CARDS[card])
    return replace(target, cost={**target.cost, "base_watts": 0.0, "static_share": 0.0})


@cache
def joules(card: str, graph: str, precision: Precision, control_factor: float, dram_pj: float) -> tuple[float, float]:
    """Dynamic joules and predicted seconds of one inference."""
    target = bare(card)
    target = replace(target, cost={**target.cost, "control_factor": control_factor, "dram_pj_per_byte": dram_pj})
    table = CostTable.build(read_networks()[graph], target)
    price = table.price(table.uniform(precision)[None], table.op_points[-1])[0]
    return price.energy_mj * 1e-3, price.latency_ms * 1e-3


def parts(run: Run) -> tuple[float, float]:
    """Joules per unit of kappa, and per pJ of a DRAM byte."""
    both, dram = joules(run.chip, run.graph, run.precision, 1.0, 1.0)[0], joules(run.chip, run.graph, run.precision, 1e-12, 1.0)[0]
    return both - dram, dram


def watts(runs: Sequence[Run], constants: Mapping[str, float]) -> Floats:
    on_die, dram = np.array([parts(r) for r in runs]).T
    base = np.array([constants[r.chip] for r in runs])
    found: Floats = base + np.array([r.rate for r in runs]) * (constants["control_factor"] * on_die + constants["dram_pj_per_byte"] * dram)
    return found


def fit(runs: Sequence[Run], held: Mapping[str, float] | None = None) -> dict[str, float]:
    """Least squares of log(predicted / published watts), outliers damped. held   constants that the runs cannot give"""
    held = held or {}
    names = [k for k in START if k not in held]
    start, published = np.log([START[k] for k in names]), np.log([r.watts for r in runs])
    weak = np.array([k not in CARDS for k in names]) * PRIOR

    def at(x: Floats) -> dict[str, float]:
        return dict(held) | {k: exp(float(v)) for k, v in zip(names, x, strict=True)}

    def residuals(x: Floats) -> Floats:
        return np.concatenate([(np.log(watts(runs, at(x))) - published) / NOISE, weak * (x - start)])

    return at(least_squares(residuals, start, method="trf", loss="soft_l1").x)


def left_out(runs: Sequence[Run], fitted: Sequence[Run], group: Callable[[Run], str]) -> dict[Run, float]:
    """log(predicted / published watts) of every run by a fit that has seen none of its group.

    The base of a card whose only network is left out stays that of the whole fit: it belongs to the card, and nothing else gives it.
    """
    whole = fit(fitted)
    found: dict[Run, float] = {}
    for name in sorted({group(r) for r in runs}):
        rest = [r for r in fitted if group(r) != name]
        orphans = {c: whole[c] for c in CARDS if c not in {r.chip for r in rest}}
        test = [r for r in runs if group(r) == name]
        found |= zip(test, (np.log(watts(test, fit(rest, orphans))) - np.log([r.watts for r in test])).tolist(), strict=True)
    return found


def largest(errors: Mapping[Run, float], chip: str) -> float:
    """The conformal half width over networks: with four, 80 % takes the largest error of them all (rank ceil(5 x 0.8) = 4)."""
    return max(abs(e) for r, e in errors.items() if r.chip == chip)


def ratios(errors: Mapping[Run, float]) -> list[tuple[str, float, float]]:
    """Run, published fp16/int8 ratio of board watts, log of predicted over published ratio."""
    by = {(r.chip, r.graph, r.batch, r.precision): (r, e) for r, e in errors.items()}
    found = []
    for (chip, graph, batch, p), (run, e) in by.items():
        if p is Precision.FP16 and (chip, graph, batch, Precision.INT8) in by:
            other, f = by[chip, graph, batch, Precision.INT8]
            found.append((f"{chip} {graph} batch {batch}", run.watts / other.watts, e - f))
    return found


def median(values: Sequence[float]) -> float:
    return float(np.median(np.abs(np.expm1(values)))) if len(values) else float("nan")


def energy_errors(runs: Sequence[Run], errors: Mapping[Run, float]) -> dict[Run, float]:
    """log of predicted over published energy of one inference, the card's time included: power left out, latency as the target has it.

    The published time is that of one inference alone, so batch 1 only.
    """
    return {r: errors[r] + log(joules(r.chip, r.graph, r.precision, 1.0, 1.0)[1] * r.rate) for r in runs if r.batch == 1}


def report(write: bool) -> None:
    runs = read_runs()
    fitted = [r for r in runs if r.batch in FITTED]
    constants = fit(fitted)
    inside = dict(zip(runs, (np.log(watts(runs, constants)) - np.log([r.watts for r in runs])).tolist(), strict=True))
    network_out, design_out = left_out(runs, fitted, lambda r: r.graph), left_out(runs, fitted, lambda r: r.design)
    print(f"Board watts of {SOURCE}: {len(fitted)} runs fitted (batch 1 and 4), {len(runs) - len(fitted)} of batch 8 as a check\n"
          "constants: " + ", ".join(f"{k} {v:.3g}" for k, v in constants.items())
          + "\n\n   run                                          published  fit    network out  design out")
    for r in sorted(runs, key=lambda r: (r.chip, r.graph, r.precision, r.batch)):
        print(f"   {r!s:46}{r.watts:6.1f} W {np.expm1(inside[r]):+6.0%} {np.expm1(network_out[r]):+10.0%} {np.expm1(design_out[r]):+10.0%}"
              + ("" if r in fitted else "  not fitted"))
    for chip, name in CARDS.items():
        own = [r for r in fitted if r.chip == chip]
        lines = {title: [e[r] for r in own] for title, e in (("fit", inside), ("network out", network_out), ("design out", design_out))}
        energy = energy_errors(own, design_out)
        pairs = ratios({r: design_out[r] for r in own})
        print(f"\n{chip}: {len({r.graph for r in own})} networks, {len(own)} runs; median error of watts "
              + ", ".join(f"{k} {median(v):.0%}" for k, v in lines.items())
              + f"; energy of one inference with the predicted latency, design out: median {median(list(energy.values())):.0%}, largest "
              f"{max(abs(np.expm1(e)) for e in energy.values()):.0%}"
              + f"\n   fp16/int8 board power: published median {np.median([p for _, p, _ in pairs]):.2f}x, predicted "
              f"{np.median([p * exp(e) for _, p, e in pairs]):.2f}x, error of the ratio median {median([e for *_, e in pairs]):.0%}")
        if write:
            write_target(name, chip, constants, network_out, design_out)


def write_target(name: str, chip: str, constants: Mapping[str, float], network_out: Mapping[Run, float], design_out: Mapping[Run, float]) -> None:
    """The power block and the constants of one target file; everything else stays."""
    own = {r: e for r, e in design_out.items() if r.chip == chip and r.batch in FITTED}
    alone = {r: e for r, e in network_out.items() if r in own}
    networks = len({r.graph for r in own})
    several = networks > 1
    half = max(largest(own, chip), largest(alone, chip)) if several else log(ASSUMED)
    fitted = (f"{len(own)} published board watts of {networks} network{'s' * several} (int8 and fp16, batch 1 and 4; {SOURCE}); two constants shared by "
              "MLU370-S4 and X4, one of its own")
    checked = (f"leave one network out: median error {median(list(alone.values())):.0%}, largest {np.expm1(largest(alone, chip)):.0%}; leave one design out: "
               f"median {median(list(own.values())):.0%}, largest {np.expm1(largest(own, chip)):.0%}. Only {networks} networks: unvalidated beyond them, for "
               "int16 and for other clocks" if several else
               "unvalidated: its one network gives its base; what the network adds is fitted on MLU370-S4. Other runs of the card draw 50 to 82 W")
    interval = ("80 % conformal over 4 networks: the largest error of a network or design left out" if several
                else f"assumed, a factor of {ASSUMED:g}: one network cannot calibrate one")
    block = ("# --- power block: written by experiments/fit_power.py ---\n[power]\n"
             'what = "board power, idle included, while one inference runs after the other"\n'
             f"factor_low = {exp(-half):.3f}\nfactor_high = {exp(half):.3f}\nfitted_on = {json.dumps(fitted)}\nvalidated_on = {json.dumps(checked)}\n"
             f"interval = {json.dumps(interval)}\n# --- end of power block ---\n\n")
    path = TARGETS / f"{name}.toml"
    body = path.read_text(encoding="utf-8")
    body = re.sub(r"# --- power block.*?# --- end of power block ---\n\n", "", body, flags=re.DOTALL).replace("[cost]\n", block + "[cost]\n", 1)
    body = re.sub(r"^power_is_relative = .*$", "power_is_relative = false         # board watts: see [power]", body, flags=re.MULTILINE)
    fits = "fitted: experiments/fit_power.py"
    values = {"base_watts": (constants[chip], fits), "control_factor": (constants["control_factor"], fits),
              "dram_pj_per_byte": (constants["dram_pj_per_byte"], fits), "static_share": (0.0, "0: the fitted base_watts holds it (experiments/fit_power.py)")}
    for key, (value, source) in values.items():
        line = f"{key} = {{ value = {value:.4g}, source = {json.dumps(source)} }}\n"
        body, known = re.subn(rf"^{key} = .*\n", line, body, flags=re.MULTILINE)
        body = body if known else body.replace("[cost]\n", f"[cost]\n{line}", 1)
    write_text(path, body)


def main(argv: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--latencies", type=Path, help="the table of publications, to copy its watts again")
    parser.add_argument("--write", action="store_true", help="write the power block and the constants into targets/")
    options = parser.parse_args(argv)
    if options.latencies:
        make_data(options.latencies)
    report(options.write)


if __name__ == "__main__":
    main(sys.argv[1:])
