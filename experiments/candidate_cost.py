"""What a candidate costs: build, load and evaluate an INT8 model against one float pass, and plans priced a second.

usage: candidate_cost.py [--images 256] [--repeats 3]

Claim: an INT8 candidate costs at most 0.8 float passes over the same images, and pricing runs at 10,000 plans a second or more.
Read: "share of a float pass" is total / float, both taken in this run, the best of the repeats; machines differ, the ratio little.
"""

from __future__ import annotations

import argparse
import time

import numpy as np
import onnx_ir as ir
from mobilenet import mobilenet_v2

from qbench import qdq, targets
from qbench.cost import CostTable
from qbench.graph import load_network
from qbench.network import Precision
from qbench.plan import Granularity
from qbench.protocols import Array, Batch
from qbench.runtime import Session
from qbench.statistics import collect
from qbench.workbench.plans import Plans, schemes_of


class Noise:
    """Images of seeded noise, made when asked for."""

    def __init__(self, count: int) -> None:
        self.count, self.name, self.key = count, "noise", f"noise-{count}"

    def __len__(self) -> int:
        return self.count

    def batches(self, size: int = 1):
        for first in range(0, self.count, size):
            rng = np.random.default_rng(first)
            yield Batch({"image": rng.normal(size=(min(size, self.count - first), 3, 224, 224)).astype(np.float32)}, None, first)


def run_all(session: Session, images: list[dict[str, Array]]) -> float:
    start = time.perf_counter()
    for feeds in images:
        session.run(feeds)
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=256)
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    prepared = load_network(ir.serde.deserialize_model(mobilenet_v2()))
    network, target = prepared.network, targets.load("rk3588")
    statistics = collect(prepared.model, qdq.watched_tensors(network), Noise(8), model_key=network.model_key)
    plans = Plans(network, statistics, schemes_of(target, None))
    precision = {u.name: Precision.INT8 if u.quantizable else Precision.FP16 for u in network.units}
    images = [dict(b.feeds) for b in Noise(options.images).batches(1)]
    best: dict[str, float] = {}
    for _ in range(options.repeats):
        floats = run_all(Session(qdq.to_bytes(prepared.model)), images)
        start = time.perf_counter()
        data = qdq.to_bytes(qdq.write(prepared, plans(precision, "minmax", Granularity.PER_CHANNEL, "")).model)
        built = time.perf_counter() - start
        start = time.perf_counter()
        session = Session(data)
        loaded = time.perf_counter() - start
        ran = run_all(session, images)
        for name, seconds in (("float pass", floats), ("build", built), ("load", loaded), ("run", ran), ("candidate", built + loaded + ran)):
            best[name] = min(best.get(name, np.inf), seconds)
    print(f"MobileNetV2 at 224, {options.images} images, batch 1, best of {options.repeats}")
    print(f"{'step':<12}{'seconds':>10}{'share of a float pass':>24}")
    for name, seconds in best.items():
        print(f"{name:<12}{seconds:>10.3f}{seconds / best['float pass']:>24.2f}")
    table = CostTable.build(network, target)
    codes = np.random.default_rng(0).integers(0, len(table.precisions), (20_000, len(table.units)))
    start = time.perf_counter()
    table.price(codes, table.op_points[-1])
    seconds = time.perf_counter() - start
    print(f"pricing      {len(codes) / seconds:,.0f} plans a second ({len(table.units)} units, {len(table.precisions)} precisions)")


if __name__ == "__main__":
    main()
