"""`qbench advise`: the tuning list for one model on one target, each step priced."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from qbench import targets
from qbench.advice import Advice, Advisory, Setup, advised
from qbench.cost import CostTable
from qbench.graph import PreparedModel, load_network
from qbench.graph.load import read
from qbench.plan import Plan, check_fits
from qbench.workbench.needless import without_needless
from qbench.workbench.placing import placed
from qbench.workbench.precisions import precision_of


@dataclass(frozen=True)
class AdviceOptions:
    """What is advised on: a plan's file, or one precision throughout; and the operating point, the fastest by default."""

    precision: str = "int8"
    plan: Path | None = None
    op_point: str | None = None
    toolkit: str | None = None
    input_shapes: Mapping[str, tuple[int, ...]] | None = None
    input_values: Mapping[str, str] | None = None


def advise(model: Path, target_name: str, options: AdviceOptions = AdviceOptions()) -> Advisory:
    """Raises InputError when the model, the plan or the target cannot be used."""
    prepared = load_network(model, options.input_shapes, options.input_values)
    target, network = placed(targets.load(target_name), prepared, options.toolkit), prepared.network
    table = CostTable.build(network, target, options.toolkit)
    if options.plan:
        plan = Plan.load(options.plan)
        check_fits(plan, network, constants=False)
        codes = table.codes(plan)
    else:
        codes = table.uniform(precision_of(options.precision))
    precision = {u: table.available[c] for u, c in zip(table.units, codes, strict=True)}
    setup = Setup(network, target, table.toolkit, precision, target.operating_point(options.op_point))
    return advised(setup, prepared, operators_of(model), slim=_slim(setup, target_name, prepared, options.toolkit))


def _slim(setup: Setup, target_name: str, prepared: PreparedModel, toolkit: str | None) -> Setup | None:
    """Without the nodes that do nothing; None where there are none. Units that come into being keep the precision of their kernels."""
    slim, gone = without_needless(prepared)
    if not gone:
        return None
    network, old = slim.network, setup.network.unit_of_kernel
    kept = {u.name: [setup.precision[old[k]] for k in u.kernels if k in old] for u in network.units}
    usual = Counter(setup.precision.values()).most_common(1)[0][0]
    return replace(setup, network=network, target=placed(targets.load(target_name), slim, toolkit), precision={u: found[0] if found else usual for u, found in kept.items()})


def operators_of(model: Path) -> dict[str, int]:
    """ONNX operator -> nodes in the file, constants left out."""
    return dict(Counter(n.op_type for n in read(model)[0].graph.all_nodes() if n.op_type != "Constant"))


def as_json(found: Advisory) -> dict[str, Any]:
    """The list as plain values."""
    setup, now = found.subject.setup, found.subject.now
    target = setup.target
    return {"target": target.name, "toolkit": setup.toolkit, "op_point": setup.point.name, "latency_ms": now.latency_s * 1e3,
            "latency_ms_low": now.latency_s * 1e3 * target.latency_factor_low, "latency_ms_high": now.latency_s * 1e3 * target.latency_factor_high,
            "energy_mj": None if now.energy_j is None else now.energy_j * 1e3, "power_is_relative": target.power_is_relative,
            "peak_memory_bytes": now.peak_bytes, "layers": dict(Counter(str(p) for p in setup.precision.values())),
            "steps": [_row(a) for a in found.advice], "exact_together": asdict(found.together),
            "interval": f"{target.provenance.interval}; a saving takes the factors of the latency, which a difference was not validated by",
            "provenance": asdict(target.provenance)}


def _row(advice: Advice) -> dict[str, Any]:
    return asdict(advice) | {"state": str(advice.state), "claims": [asdict(c) for c in advice.claims]}
