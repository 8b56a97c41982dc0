"""A search result as `qbench search` leaves it: 45 plans of a 24-layer network, some of its names hostile."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from qbench.protocols import Accuracy, Price
from qbench.result import Candidate, SearchResult

HOSTILE = "<script>alert(1)</script>"
NAN = math.nan
MEMORY: Mapping[str, Any] = {
    "arena_bytes": 6000, "weight_bytes": 900_000, "runtime_bytes": 0, "lower_bound_bytes": 5500, "gap": 0.09, "strategy": "greedy", "smallest_bytes": 6000,
    "ram_bytes": None, "flash_bytes": None, "device_ram_bytes": None, "device_flash_bytes": None,
    "buffers": [{"name": "input", "offset": 0, "size": 4000, "first": 0, "last": 1}, {"name": "a", "offset": 4000, "size": 2000, "first": 1, "last": 3},
                {"name": HOSTILE, "offset": 0, "size": 1500, "first": 2, "last": 23}]}
"""A memory plan as `qbench cost --json` has it."""
STORED: Sequence[Mapping[str, Any]] = tuple(
    {"tensor": HOSTILE if i == 3 else f"/relu{i}", "group": "g", "kernel": "" if i == 4 else f"/conv{i}", "bits": 8, "low": 0.0, "high": 2.0, "step": 2 / 255, "zero_point": 0,
     "seen_low": 0.0, "seen_high": 4.0, "clipped": 1e-3, "clip_noise": 0.97, "noise_db": 10.0 + i, "histogram": {"low": 0.0, "high": 4.0, "counts": [1000, 100, 0, 1]},
     "calibrators": [{"spec": "minmax", "low": 0.0, "high": 4.0, "noise_db": 21.0}, {"spec": "kl", "low": 0.0, "high": 2.0, "noise_db": 10.0}]} for i in range(5))
"""Five activations as `qbench.workbench.panels` has them: four bins, the last beyond the codes."""


@dataclass(frozen=True)
class Finished:
    """What the report is written from."""

    result: SearchResult
    kernels: Sequence[Mapping[str, Any]]
    strip: Sequence[Mapping[str, Any]]


def candidate(name: str, ms: float, value: float, *, layers: Mapping[str, int], origin: str = "nsga2", feasible: bool = True,
              sure: bool = True) -> Candidate:
    drop = 0.9305 - value
    accuracy = Accuracy("dice", value, value - 0.0051, value + 0.0048, 48, drop, drop - 0.0008, drop + 0.0011,
                        sqnr_db=31.2, cosine=0.9993, kl=NAN, seconds=1.9)
    price = Price(ms, ms * 0.86, ms * 1.17, ms * 0.31, 0.31, int(3.1e6 + 1e5 * ms) if math.isfinite(ms) else 0, "1000MHz")
    return Candidate(name, origin, "" if origin == "reference" else f"plans/{name}.json", f"{hash(ms) & 0xffffffff:016x}",
                     "percentile:p=99.99", "per-channel", layers, accuracy, price, feasible, sure)


def search_result() -> SearchResult:
    rng = np.random.default_rng(7)
    found = []
    for i in range(40):
        floats = int(rng.integers(0, 24))
        ms = 12.6 + 10.4 * (floats / 24) ** 1.2 + float(rng.normal(0, 0.15))
        value = 0.9301 - 0.012 * math.exp(-floats / 4) - abs(float(rng.normal(0, 0.0012)))
        value = 0.3729 + 0.01 * i if i % 13 == 12 else value
        found.append(candidate(f"c{i:03}", ms, value, layers={"int8": 24 - floats, "fp16": floats},
                               origin="milp" if i < 9 else "nsga2", feasible=ms <= 20, sure=ms * 1.17 <= 20))
    best = candidate("c040", 13.4, 0.9301, layers={"int8": 21, "fp16": 3}, origin="polish")
    reference = candidate("float", 46.2, 0.9305, layers={"fp32": 24}, origin="reference", feasible=False, sure=False)
    uniform = {
        "int8": candidate("int8", 12.6, 0.9174, layers={"int8": 24}, origin="uniform"),
        "int16": candidate("int16", 31.5, 0.9304, layers={"int16": 24}, origin="uniform", feasible=False, sure=False),
        "fp16": candidate("fp16", 23.1, 0.9305, layers={"fp16": 24}, origin="uniform", feasible=False, sure=False),
    }
    everything = (*uniform.values(), *found, best)
    front = tuple(c for c in everything if not any(
        o.price.latency_ms <= c.price.latency_ms and o.accuracy.value >= c.accuracy.value and o is not c for o in everything))
    units = [HOSTILE if i == 5 else f"/encoder/stage{i // 4}/conv{i % 4}/Conv" for i in range(24)]
    sensitivity = tuple(
        {"unit": u, "precision": p, "drop": d, "drop_low": d - 0.0011, "drop_high": d + 0.0014, "ms_saved": float(rng.uniform(0.05, 0.9))}
        for u in units for p in ("int8", "int16") for d in [float(rng.normal(0.0004, 0.0012)) + (0.19 if u == units[1] and p == "int8" else 0)])
    return SearchResult(
        feasible=True, binding=None, budgets=("20ms", "max-drop 0.005"), sample=True, evaluated=44, float_pass_equivalents=23.75, wall_s=141.3,
        reference=reference, uniform=uniform, chosen=best, front=front, candidates=everything, sensitivity=sensitivity,
        target="rk3588", toolkit="2.3.2", model="brain_unet.onnx",
        provenance={
            "command": "qbench search --target rk3588 --budget 20ms --seed 0",
            "fitted_on": "vendor toolkit cycle tables of 23 graphs", "validated_on": "6 graphs left out",
            "interval": "80 % interval (conformal, leave-one-model-out)", "power": "relative, unvalidated", "seed": "0", "qbench": "0.1.0",
            "onnxruntime": "1.27.0", "calibration": "64 slices, 4 of them spoiled", "sample_name": "brain",
            "sample_licence": "MNI152 2009a: permission notice travels with the data",
            "sample_caveats": "One head; says nothing about other people or a real scanner."},
        warnings=("4 calibration slices hold outliers 40 times above the rest; percentile drops them.",
                  f"Layer {HOSTILE} has two dead channels."),
        mlflow={"uri": "sqlite:///mlflow.db", "experiment": "qbench/brain", "run": "9f1c"}, verified={"written": 0.9301, "fp16_emulated": 0.9299})


def finished() -> Finished:
    result = search_result()
    units = list(dict.fromkeys(str(r["unit"]) for r in result.sensitivity))
    rng = np.random.default_rng(3)
    precision = ["fp16" if i < 3 else "fp32" if i == 23 else "int16" if i == 11 else "int8" for i in range(24)]
    ms = rng.gamma(1.4, 0.4, size=24).tolist()
    strip = [{"unit": u, "precision": p, "ms": t, "drop": max(0.0, float(rng.normal(0.0004, 0.001))) if i != 1 else 0.19, "quantizable": i != 23,
              "reason": "Softmax stays in float: its output needs the exponent" if i == 23 else ""}
             for i, (u, p, t) in enumerate(zip(units, precision, ms, strict=True))]
    kernels = [{"name": f"{u}", "op": "Conv+Relu", "unit": u, "precision": p, "ms": t, "bound": bound, "dram_bytes": int(t * 9e5),
                "placement": "cpu" if bound == "cpu" else "npu", "mj": t * 0.3}
               for u, p, t, bound in zip(units, precision, ms, ["compute", "dram", "overhead", "dram", "compute", "cpu"] * 4, strict=True)]
    return Finished(result, kernels, strip)
