"""A plan: which precision and which range every part of one network gets. JSON, stable, diffable.

A plan holds everything that the Q/DQ writer needs beside the model, so `qbench quantize MODEL --plan plan.json`
rebuilds the same file, bit for bit.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

from qbench.affine import Range, Scheme
from qbench.errors import PlanError
from qbench.files import write_text
from qbench.network import Network, Precision
from qbench.packed import Packed
from qbench.target import QuantScheme

FORMAT = "qbench-plan/2"
FIRST_FORMAT = "qbench-plan/1"
"""Without corrections, but with the guard of the bias, which could not be switched off."""
BIAS_GUARD = "bias-guard"


class Granularity(StrEnum):
    """How far one scale reaches.

    global       one scale for every activation of the network; weights per tensor
    per-layer    one scale per activation tensor and one per weight tensor
    per-channel  one scale per activation tensor and one per output channel of a weight
    per-group    as per-channel, and each channel cut into blocks of input channels with a scale of their own,
                 for the layers whose target takes it
    """

    GLOBAL = "global"
    PER_LAYER = "per-layer"
    PER_CHANNEL = "per-channel"
    PER_GROUP = "per-group"


@dataclass(frozen=True)
class Plan:
    """model_key    SHA-256 of the model it was made for; a correction that rewrites the model adds its name, "...+cle"
    target, toolkit, op_point   what it was made for; "" when for no target
    calibrator   spec of the calibrator of the ranges, e.g. "percentile:p=99.99"
    precision    unit name -> precision, every unit of the network
    schemes      "int8" / "int16" -> how tensors are stored
    ranges       scale group name -> range in reals, for the groups that any unit stores as integers
    notes        facts for the reader: unit or tensor -> why it is as it is
    corrections  specs of the steps that were applied, in their order: see `qbench.corrections`
    tensors      what the steps found and the writer needs, by kind and name:
                 "constant:INITIALIZER" float32, its new values; "bias:NODE" float32 [channels], added to the node's bias;
                 "round:INITIALIZER" int8, same shape as the weight, added to the codes of rounding to nearest
    """

    model_key: str
    target: str
    toolkit: str
    op_point: str
    calibrator: str
    granularity: Granularity
    precision: Mapping[str, Precision]
    schemes: Mapping[str, QuantScheme]
    ranges: Mapping[str, Range]
    notes: Mapping[str, str] = field(default_factory=dict)
    corrections: tuple[str, ...] = (BIAS_GUARD,)
    tensors: Mapping[str, Packed] = field(default_factory=dict)

    @property
    def layers(self) -> dict[str, int]:
        """Units per precision."""
        return dict(sorted(Counter(str(p) for p in self.precision.values()).items()))

    @property
    def key(self) -> str:
        """Content key: equal plans have equal keys (notes and operating point do not count)."""
        text = self.to_json(replace(self, notes={}, op_point=""))
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    @staticmethod
    def to_json(plan: Plan) -> str:
        body: dict[str, Any] = {
            "format": FORMAT,
            "model_key": plan.model_key, "target": plan.target, "toolkit": plan.toolkit, "op_point": plan.op_point,
            "calibrator": plan.calibrator, "granularity": str(plan.granularity),
            "precision": {k: str(v) for k, v in plan.precision.items()},
            "schemes": {k: asdict(v) for k, v in sorted(plan.schemes.items())},
            "ranges": {k: [r.low, r.high] for k, r in plan.ranges.items()},
            "notes": dict(plan.notes),
            "corrections": list(plan.corrections),
            "tensors": {k: v.to_json() for k, v in plan.tensors.items()},
        }
        return json.dumps(body, indent=1, ensure_ascii=False) + "\n"

    def save(self, path: Path) -> None:
        """Written under a temporary name, then renamed."""
        write_text(path, Plan.to_json(self))

    @staticmethod
    def load(path: Path) -> Plan:
        """Raises PlanError naming the file and the broken entry."""
        try:
            body = json.loads(Path(path).read_text(encoding="utf-8"))
        except OSError as error:
            raise PlanError(f"{path}: cannot be read ({error.strerror}); give a plan.json that qbench search wrote") from error
        except UnicodeDecodeError as error:
            raise PlanError(f"{path}: is not a text file; give a plan.json that qbench search wrote") from error
        except json.JSONDecodeError as error:
            raise PlanError(f"{path}: line {error.lineno} is not JSON ({error.msg})") from error
        if not isinstance(body, dict) or body.get("format") not in (FORMAT, FIRST_FORMAT):
            raise PlanError(f"{path}: format is {body.get('format') if isinstance(body, dict) else None!r}, expected {FORMAT!r}")
        entry = "?"
        try:
            entry = "precision"
            precision = {str(k): Precision(v) for k, v in body["precision"].items()}
            entry = "schemes"
            schemes = {
                k: QuantScheme(Scheme(**v["activation"]), Scheme(**v["weight"]), bool(v["weight_per_channel"]), int(v["bias_bits"]),
                               int(v.get("weight_block", 0)), tuple((str(op), str(axis)) for op, axis in v.get("weight_axis", ())))
                for k, v in body["schemes"].items()}
            entry = "ranges"
            ranges = {str(k): Range(float(v[0]), float(v[1])) for k, v in body["ranges"].items()}
            entry = "granularity"
            granularity = Granularity(body["granularity"])
            entry = "corrections"
            corrections = tuple(str(c) for c in body.get("corrections", [BIAS_GUARD]))
            entry = "tensors"
            tensors = {str(k): Packed.from_json(v) for k, v in body.get("tensors", {}).items()}
            entry = "model_key, target, toolkit, op_point, calibrator or notes"
            return Plan(body["model_key"], body["target"], body["toolkit"], body["op_point"], body["calibrator"],
                        granularity, precision, schemes, ranges, dict(body.get("notes", {})), corrections, tensors)
        except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
            raise PlanError(f"{path}: {entry} is missing or broken: {error}") from error


def check_fits(plan: Plan, network: Network, *, constants: bool = True) -> None:
    """Raises PlanError, naming the first difference, when `plan` was made for another model.

    constants   False: a correction may stand between, which changes constants only (prices do not depend on them)
    """
    if plan.model_key != network.model_key and (constants or plan.model_key.partition("+")[0] != network.model_key.partition("+")[0]):
        raise PlanError(f"the plan was made for model {plan.model_key[:12]}, this one is {network.model_key[:12]}: "
                        "use the model of the search, with the --input-value that it had, or make a new plan")
    have, want = set(plan.precision), {u.name for u in network.units}
    if have != want:
        odd = min(have ^ want)
        raise PlanError(f"unit {odd!r} is in {'the plan' if odd in have else 'the model'} only; "
                        "the plan was made by another version of qbench: search again")
    for unit in network.units:
        if not unit.quantizable and not plan.precision[unit.name].is_float:
            raise PlanError(f"unit {unit.name!r} cannot be {plan.precision[unit.name]}: {unit.reason}")


def make_plan(network: Network, precision: Mapping[str, Precision], ranges: Mapping[str, Range], schemes: Mapping[str, QuantScheme], *,
              calibrator: str, granularity: Granularity, target: str = "", toolkit: str = "", op_point: str = "",
              notes: Mapping[str, str] | None = None, corrections: tuple[str, ...] = (BIAS_GUARD,),
              tensors: Mapping[str, Packed] | None = None) -> Plan:
    """A plan of `network`; keeps only the ranges and schemes that its integer units need."""
    used = {str(p) for p in precision.values() if not p.is_float}
    needed = {network.group_of[t].name for k in network.kernels if not precision[network.unit_of_kernel[k.name]].is_float
              for t in (*k.inputs, *k.inner, *k.outputs) if t in network.group_of}
    return Plan(network.model_key, target, toolkit, op_point, calibrator, granularity, dict(precision),
                {k: v for k, v in schemes.items() if k in used}, {k: v for k, v in ranges.items() if k in needed}, dict(notes or {}), corrections, dict(tensors or {}))
