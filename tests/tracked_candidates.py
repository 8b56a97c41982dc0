"""Candidates and results as a search hands them to its tracker; imports nothing heavy, since processes that are killed import it too."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from qbench.affine import Scheme
from qbench.network import Precision
from qbench.plan import Granularity, Plan
from qbench.protocols import Accuracy, Price
from qbench.result import Candidate, SearchResult
from qbench.target import QuantScheme

W8A16 = {"int16": QuantScheme(Scheme(16, False, False), Scheme(8, True, True), True, 32)}
"""As on Hexagon: weights of INT16 layers have 8 bits."""


def candidate(name: str, value: float, folder: Path, feasible: bool = True) -> Candidate:
    plan = Plan("ab", "rk3588", "2.3", "1000MHz", "kl", Granularity.PER_CHANNEL, {"a": Precision.INT16, "b": Precision.FP16}, W8A16, {}, {"name": name})
    plan.save(folder / "plans" / f"{name}.json")
    accuracy = Accuracy("dice", value, value - 0.01, value + 0.01, 48, 0.93 - value, -0.001, 0.02, 31.0, 0.999, float("nan"), 1.5)
    return Candidate(name, "milp", f"plans/{name}.json", f"key-{name}", "kl", "per-channel", {"int8": 9, "fp16": 3}, accuracy,
                     Price(12.5, 11.0, 14.0, 8.0, 0.64, 3_000_000, "1000MHz"), feasible, False)


def result(candidates: list[Candidate], partial: bool = False) -> SearchResult:
    reference = replace(candidates[0], name="float", origin="reference", plan="")
    return SearchResult(
        feasible=True, binding=None, budgets=("20ms",), sample=True, evaluated=len(candidates), float_pass_equivalents=12.5, wall_s=100.0,
        reference=reference, uniform={}, chosen=candidates[-1], front=tuple(candidates), candidates=tuple(candidates), sensitivity=(),
        target="rk3588", toolkit="2.3", model="brain", provenance={}, partial=partial)
