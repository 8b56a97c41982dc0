"""Does the RK3588 model count what the vendor's compiler counts? Compares both layer by layer, from the graph on.

    python experiments/rknn_cycles.py                       prints the tables
    python experiments/rknn_cycles.py --cycles C.csv --graphs FOLDER     against your own harvest (harvest_rknn_cycles.py) of your own graphs
    python experiments/rknn_cycles.py --make --cycles C.csv --graphs FOLDER     keeps that harvest as the one of the unseen graphs

Nothing is fitted. The rules (padding, tiles, groups, strides) were read off the table of 74 graphs and off builds of single layers; the
graphs called unseen were built and compared after the rules were written. A layer takes max(array, DDR) cycles, DDR at the toolkit's own
23.65 bytes a cycle. Left out on both sides: what the toolkit prices at 0 (elementwise, pooling, norms, conversions, data movement,
LSTM) and products of two activations, which it fuses into an attention operator that it does not price. Known to differ: it runs the
channel shuffle of ShuffleNet as two 1x1 convolutions, cuts dilated convolutions in ways we found no rule for, and adds up in DRAM the
parts of some that it cuts along the input channels.
"""

from __future__ import annotations

import argparse
import csv
import io
import json
import lzma
import sys
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from fit_rk3588 import TOOLKIT_BYTES_PER_CYCLE, layer, pack, read_cycles, unpack
from fit_rk3588 import read_networks as rk3588_networks
from public_rows import read_networks as public_networks

from qbench.cost.lowering import lowered
from qbench.cost.parameters import NpuParameters, read_parameters
from qbench.cost.work import ARRAY, array_cycles, image_packing, stored_bytes, stored_weight_bytes
from qbench.network import Kernel, Network, Precision, TensorSpec
from qbench.target import Target
from qbench.targets import load

DATA = Path(__file__).parent / "data"
UNSEEN, UNSEEN_NETWORKS = DATA / "rknn_unseen.csv.xz", DATA / "rknn_unseen_networks.json.xz"
OTHER_NETWORKS = DATA / "rknn_networks.json.xz"  # those of the table without a published latency; memory_plans.py makes it
COLUMNS = ("graph", "mode", "op", "target", "in_shape", "out_shape", "ddr_cycles", "npu_cycles", "total_cycles", "internal_kb", "weight_kb")
Key = tuple[int, int, int, int]                 # reduction length, output channels, output pixels, 1 for a depthwise layer


@dataclass(frozen=True, slots=True)
class Layer:
    """One row of a table, ours or the toolkit's."""

    key: Key
    kind: str
    npu: float
    ddr: float

    @property
    def total(self) -> float:
        return max(self.npu, self.ddr)


def kind_of(k: Kernel) -> str:
    if k.kind == "conv":
        return "first layer" if k.in_channels <= 4 else "dense 1x1" if k.kernel_h * k.kernel_w == 1 else "dense k x k"
    return {"deconv": "transposed", "matmul": "dense 1x1", "global_pool": "depthwise"}.get(k.kind, k.kind)


def ours(network: Network, precision: Precision, target: Target, p: NpuParameters) -> list[Layer]:
    """What our rules make of the network: one layer per launch that the toolkit prices."""
    found, rate = [], target.support(precision).macs_per_cycle

    def read(tensor: str, image: bool = False) -> float:
        return stored_bytes(network.tensors[tensor], precision, p, image)

    for k in network.kernels:
        if k.kind == "rnn" or (k.kind == "matmul" and not k.weights):
            continue
        if k.kind not in ARRAY:
            cycles, moved = image_packing(k, network, precision, rate, p)
            if cycles:
                channels, height, width = network.tensors[k.inputs[0]].shape[1:]
                found.append(Layer((channels, channels, height * width, 0), "first layer", cycles, moved / TOOLKIT_BYTES_PER_CYCLE))
            continue
        low = lowered(k, precision, p)
        run = low.kernel
        parts = run.groups if low.apart else 1
        depthwise = run.kind in ("depthwise", "global_pool")
        fine = TensorSpec("fine", (k.batch, run.out_channels, run.out_h, run.out_w), "float32")
        selects = low.selects(k)
        written = stored_bytes(fine, precision, p) if selects else sum(read(t) for t in k.outputs)
        beside = sum(read(t) for t in list(dict.fromkeys(k.inputs))[1:])
        moved = read(k.inputs[0], k.kind == "conv" and k.inputs[0] in network.inputs) + written + beside + stored_weight_bytes(run, precision, p)
        length = run.kernel_h * run.kernel_w * (1 if depthwise else run.in_channels // run.groups)
        key = (length, run.out_channels // parts, k.batch * run.out_h * run.out_w, int(depthwise))
        cycles = array_cycles(run, rate, p)
        found += [Layer(key, kind_of(run), cycles / parts, moved / parts / TOOLKIT_BYTES_PER_CYCLE)] * parts
        if selects:
            pick = Kernel("", "Conv", "depthwise", (), (), (), batch=k.batch, in_channels=k.out_channels, out_channels=k.out_channels, out_h=k.out_h,
                          out_w=k.out_w, groups=k.out_channels)
            moved = stored_bytes(fine, precision, p) + sum(read(t) for t in k.outputs)
            found.append(Layer((1, k.out_channels, k.out_h * k.out_w, 1), "depthwise", array_cycles(pick, rate, p), moved / TOOLKIT_BYTES_PER_CYCLE))
    return found


def theirs(rows: Iterable[Mapping[str, str]]) -> list[Layer]:
    """The priced layers of the toolkit's table."""
    found = []
    for row in rows:
        known = layer(row)
        if known is None or row["op"] == "exMatMul":
            continue
        k = known[1]
        depthwise = k.kind == "depthwise"
        key = (k.kernel_h * k.kernel_w * (1 if depthwise else k.in_channels), k.out_channels, k.batch * k.out_h * k.out_w, int(depthwise))
        found.append(Layer(key, kind_of(k), float(row["npu_cycles"]), float(row["ddr_cycles"])))
    return found


def paired(a: Sequence[Layer], b: Sequence[Layer]) -> list[tuple[Layer, Layer]]:
    """Layers of equal shape, in order. The toolkit cuts some along the input channels and adds the parts: those that write the same number
    of channels and pixels are compared as one sum when their reductions add up to ours. What is left has no partner."""
    waiting: dict[Key, list[Layer]] = defaultdict(list)
    for y in reversed(b):
        waiting[y.key].append(y)
    found, alone = [], defaultdict(list)
    for x in a:
        if waiting[x.key]:
            found.append((x, waiting[x.key].pop()))
        else:
            alone[x.key[1:]].append(x)
    for key, whole in alone.items():
        parts = [y for k, v in waiting.items() if k[1:] == key for y in v]
        if parts and sum(y.key[0] for y in parts) == sum(x.key[0] for x in whole):
            found.append((summed(whole), summed(parts)))
    return found


def summed(layers: Sequence[Layer]) -> Layer:
    return Layer(layers[0].key, layers[0].kind, sum(x.npu for x in layers), sum(x.ddr for x in layers))


def compare(title: str, rows: Sequence[Mapping[str, str]], networks: Mapping[str, Network], target: Target, p: NpuParameters) -> None:
    tables: dict[tuple[str, str], list[Mapping[str, str]]] = defaultdict(list)
    for row in rows:
        if row["graph"] in networks:
            tables[row["graph"], row["mode"]].append(row)
    layers: dict[tuple[str, str], list[tuple[Layer, Layer]]] = defaultdict(list)
    totals: dict[tuple[str, str], tuple[float, float, float]] = {}
    share = [0.0, 0.0]
    for (graph, mode), table in tables.items():
        precision = Precision.INT8 if mode == "int8" else Precision.FP16
        a, b = ours(networks[graph], precision, target, p), theirs(table)
        for x, y in paired(a, b):
            layers[y.kind, mode].append((x, y))
            share[0] += y.total
        share[1] += sum(y.total for y in b)
        totals[graph, mode] = tuple(sum(getattr(x, f) for x in a) / sum(getattr(y, f) for y in b) - 1 for f in ("npu", "ddr", "total"))
    print(f"\n{title}: {len(totals)} builds of {len({g for g, _ in totals})} graphs\n"
          f"   {'layers':14}{'mode':6}{'count':>6} | array: {'median':>7}{'<20 %':>7} | DDR: {'median':>7}{'<20 %':>7} | total: {'median':>7}{'<20 %':>7}")
    every = [pair for v in layers.values() for pair in v]
    for (kind, mode), pairs in [*sorted(layers.items()), (("all", ""), every)]:
        e = np.abs([[x.npu / y.npu - 1, x.ddr / max(y.ddr, 1.0) - 1, x.total / y.total - 1] for x, y in pairs])
        print(f"   {kind:14}{mode:6}{len(pairs):6} |        " + " |      ".join(f"{np.median(e[:, i]):7.2%}{np.mean(e[:, i] < 0.2):7.1%}" for i in range(3)))
    print(f"   they hold {share[0] / share[1]:.1%} of the toolkit's cycles; the rest is shaped in another way than ours")
    t = np.array(list(totals.values()))
    names = ("array", "DDR", "total")
    print("   totals of a build: " + "; ".join(f"{n} median {np.median(np.abs(t[:, i])):.2%}, within 10 %: {np.mean(np.abs(t[:, i]) <= 0.1):.0%}, largest "
                                               f"{np.max(np.abs(t[:, i])):.0%}" for i, n in enumerate(names)))
    ratio = [(1 + totals[g, "fp16"][2]) / (1 + totals[g, "int8"][2]) - 1 for g, m in totals if m == "int8" and (g, "fp16") in totals]
    print(f"   fp16 / int8 of {len(ratio)} graphs: median error {np.median(np.abs(ratio)):.2%}, largest {np.max(np.abs(ratio)):.0%}")
    far = sorted(((v[2], g, m) for (g, m), v in totals.items() if abs(v[2]) > 0.02), key=lambda x: -abs(x[0]))[:12]
    print("   further than 2 %: " + (", ".join(f"{g} {m} {v:+.0%}" for v, g, m in far) or "none"))


def read_table(path: Path) -> list[dict[str, str]]:
    with (lzma.open(path, "rt", newline="") if path.suffix == ".xz" else open(path, newline="", encoding="utf-8")) as file:
        return list(csv.DictReader(file))


def read_networks() -> dict[str, Network]:
    found = {**public_networks(), **rk3588_networks()}
    for path in (OTHER_NETWORKS, UNSEEN_NETWORKS):
        with lzma.open(path, "rt") as file:
            found |= {name: unpack(name, body) for name, body in json.load(file).items()}
    return found


def network_of(path: Path) -> Network:
    """Network of an `.onnx` or `.onnx.xz` file; an open axis is taken as 1."""
    from qbench.graph import load_network

    if path.suffix != ".xz":
        return load_network(path).network
    plain = DATA / ".graph.onnx"
    plain.write_bytes(lzma.decompress(path.read_bytes()))
    try:
        return load_network(plain).network
    finally:
        plain.unlink()


def graph_files(folder: Path) -> dict[str, Path]:
    return {f.name.removesuffix(".xz").removesuffix(".onnx"): f for f in sorted(folder.iterdir()) if f.name.endswith((".onnx", ".onnx.xz"))}


def make_data(unseen: Path, cycles: Path) -> None:
    """Keeps the rows of the unseen graphs and the kernels of their networks."""
    rows = read_table(cycles)
    text = io.StringIO()
    out = csv.DictWriter(text, COLUMNS, extrasaction="ignore", lineterminator="\n")
    out.writeheader()
    out.writerows(rows)
    UNSEEN.write_bytes(lzma.compress(text.getvalue().encode(), preset=9))
    packed = {name: pack(network_of(file)) for name, file in graph_files(unseen).items() if name in {r["graph"] for r in rows}}
    UNSEEN_NETWORKS.write_bytes(lzma.compress(json.dumps(packed, separators=(",", ":")).encode(), preset=9))


def main(argv: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--make", action="store_true", help="make experiments/data/rknn_unseen* again")
    for name in ("--cycles", "--graphs"):
        parser.add_argument(name, type=Path)
    options = parser.parse_args(argv)
    target = load("rk3588")
    p = read_parameters("rk3588", "npu", target.cost)
    assert isinstance(p, NpuParameters)
    if options.make:
        make_data(options.graphs, options.cycles)
    elif options.cycles:
        rows = read_table(options.cycles)
        names = {r["graph"] for r in rows}
        networks = {n: network_of(f) for n, f in graph_files(options.graphs).items() if n in names}
        compare(str(options.cycles), rows, networks, target, p)
        return
    networks = read_networks()
    compare("Graphs that the rules were read off", read_cycles(), networks, target, p)
    compare("Unseen graphs", read_table(UNSEEN), networks, target, p)


if __name__ == "__main__":
    main(sys.argv[1:])
