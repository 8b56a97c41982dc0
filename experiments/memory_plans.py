"""How near is the planned memory to what real toolchains take?

    python experiments/memory_plans.py                   prints every table, under a minute, no network, no graphs needed
    python experiments/memory_plans.py --graphs FOLDER   makes experiments/data/rknn_networks.json.xz again

A. rknn-toolkit2 2.5.0 for rk3588 prints KiB of "internal" (feature) and weight memory of a build; data/rknn_cycles.csv.xz holds them for 74
   networks, INT8 and FP16. Its rules (qbench/cost/rknn_*.py) were read off the address tables of the networks in LEARNED and of small
   graphs made for one question each; no address table of the others was looked at, and nothing is fitted. data/rknn_unseen.csv.xz holds
   14 more that were harvested later.
B. ethos-u-vela 5.2.0 prints the SRAM of a compiled model: two INT8 models, ethos-u55-256, which keeps all activations in SRAM.
C. STM32 AI model zoo: activation RAM of MobileNetV1 at three widths, STM32Cube.AI 10.0.0, INT8, 224 pixels.
D. An article says of 1.5 MB of on-chip memory that MobileNetV2 runs batch 1 at 224 pixels in it, and batch 2 at 160.
"""

from __future__ import annotations

import argparse
import csv
import json
import lzma
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import public_rows
from fit_rk3588 import pack, read_cycles, unpack
from fit_rk3588 import read_networks as rk3588_networks
from fit_stm32h7 import mobilenet_v1

from qbench.cost import CostTable, MemoryPlan
from qbench.cost.fits import batched, needed_bytes, resized
from qbench.network import Kernel, Network, Precision, TensorSpec, Unit
from qbench.target import Target
from qbench.targets import load

DATA = Path(__file__).parent / "data"
NETWORKS = DATA / "rknn_networks.json.xz"
LEARNED = ("alexnet", "ddrnet", "deit", "efficientnet", "efficientvit", "ghostnet", "hrnet", "mnasnet", "mobilenet", "pidnet", "posenet", "regnet",
           "retinaface", "sequencer", "spnasnet", "squeezenet", "swin", "xception", "yolov6")
VELA = {"net": 48.5, "MobileNetV1 like": 1180.0}                                 # KiB of SRAM
STM32 = {1.0: 1331.0, 0.5: 431.0, 0.25: 273.0}                                   # width -> KiB of RAM
KIB = 1024.0


def networks() -> Mapping[str, Network]:
    with lzma.open(NETWORKS, "rt") as file:
        return {**rk3588_networks(), **public_rows.read_networks(), **{name: unpack(name, body) for name, body in json.load(file).items()}}


def unseen_networks() -> Mapping[str, Network]:
    with lzma.open(DATA / "rknn_unseen_networks.json.xz", "rt") as file:
        return {name: unpack(name, body) for name, body in json.load(file).items()}


def unseen_kib() -> Mapping[tuple[str, str], float]:
    with lzma.open(DATA / "rknn_unseen.csv.xz", "rt") as file:
        return {(r["graph"], r["mode"]): float(r["internal_kb"]) for r in csv.DictReader(file)}


def uniform(network: Network, target: Target, precision: Precision) -> MemoryPlan:
    table = CostTable.build(network, target)
    return table.memory(table.uniform(precision))


def part_a(target: Target) -> None:
    print("A. RK3588: planned KiB of features and weights against the toolkit's; error = ours / theirs - 1\n")
    theirs = {(r["graph"], r["mode"]): (float(r["internal_kb"]), float(r["weight_kb"])) for r in read_cycles()}
    known, rows = networks(), list[tuple[str, str, float, float, float]]()
    for (graph, mode), (features, weights) in sorted(theirs.items()):
        plan = uniform(known[graph], target, Precision(mode))
        rows.append((graph, mode, plan.arena_bytes / KIB / features - 1, plan.weight_bytes / KIB / weights - 1, plan.smallest_bytes / plan.arena_bytes - 1))
    print(f"   {'':34}{'builds':>8}{'median |error|':>16}{'within 5 %':>12}{'exact':>8}{'weights median':>16}")
    for text, seen, modes in (("rules read off these", True, ("int8", "fp16")), ("not looked at", False, ("int8", "fp16")),
                              ("not looked at, INT8", False, ("int8",)), ("not looked at, FP16", False, ("fp16",))):
        part = [r for r in rows if r[0].startswith(LEARNED) is seen and r[1] in modes]
        e, w = (np.abs(np.array([r[i] for r in part])) for i in (2, 3))
        print(f"   {text:34}{len(part):8}{np.median(e):16.1%}{np.mean(e <= 0.05):12.0%}{np.mean(e < 0.001):8.0%}{np.median(w):16.1%}")
    print("\n   Further than 5 % off (* rules read off it):")
    for graph, mode, error, _, _ in rows:
        if abs(error) > 0.05:
            print(f"     {graph + ('*' if graph.startswith(LEARNED) else ''):34}{mode:6}{error:+8.0%}")
    print("   The reasons, as far as known: attention in windows or of several images (swin, mobilevit), normalisations spelled as nodes\n"
          "   (convnext_small), and another order of parallel branches (ghostnet, pidnet, yolo*-seg).")
    later, more = unseen_networks(), list[tuple[str, str, float]]()
    for (graph, mode), features in sorted(unseen_kib().items()):
        more.append((graph, mode, uniform(later[graph], target, Precision(mode)).arena_bytes / KIB / features - 1))
    e = np.abs(np.array([r[2] for r in more]))
    print(f"   14 networks harvested later: {len(more)} builds, median {np.median(e):.1%}, within 5 % {np.mean(e <= 0.05):.0%}, exact {np.mean(e < 0.001):.0%}; "
          f"further off: {', '.join(f'{g} {m} {x:+.0%}' for g, m, x in more if abs(x) > 0.05) or 'none'}.")
    print(f"   A better placement of the same buffers would take {-np.mean([r[4] for r in rows]):.0%} less on average.\n")


def net() -> Network:
    """The small model that was compiled with Vela: stem, depthwise, pointwise with residual, stride-2 convolution, pool, classifier."""
    def conv(name: str, x: str, y: str, cin: int, cout: int, size: int, out: int, kernel: int, groups: int = 1, residual: str = "") -> Kernel:
        weights = cout * kernel * kernel * cin // groups
        return Kernel(name, "Conv+Add" if residual else "Conv+Relu", "depthwise" if groups > 1 else "conv", (name,), (x, residual) if residual else (x,),
                      (y,), weights=weights, biases=cout, in_channels=cin, in_h=size, in_w=size, out_channels=cout, out_h=out, out_w=out,
                      kernel_h=kernel, kernel_w=kernel, groups=groups)
    kernels = (conv("c1", "x", "a", 3, 16, 64, 32, 3), conv("dw", "a", "b", 16, 16, 32, 32, 3, 16), conv("pw", "b", "c", 16, 16, 32, 32, 1, residual="a"),
               conv("c3", "c", "d", 16, 32, 32, 16, 3),
               Kernel("pool", "GlobalAveragePool", "global_pool", ("pool",), ("d",), ("e",), in_channels=32, in_h=16, in_w=16, out_channels=32),
               Kernel("fc", "Gemm", "matmul", ("fc",), ("e",), ("y",), weights=320, biases=10, in_channels=32, out_channels=10))
    shapes = {"x": (1, 3, 64, 64), "a": (1, 16, 32, 32), "b": (1, 16, 32, 32), "c": (1, 16, 32, 32), "d": (1, 32, 16, 16), "e": (1, 32, 1, 1), "y": (1, 10)}
    return Network("net", "", ("x",), ("y",), {t: TensorSpec(t, s, "float32") for t, s in shapes.items()}, kernels,
                   tuple(Unit(k.name, (k.name,)) for k in kernels), ())


def compare(title: str, rows: Sequence[tuple[str, float, float]]) -> None:
    print(title + f"\n\n   {'':20}{'theirs KiB':>12}{'planned KiB':>13}{'error':>8}")
    for name, theirs, planned in rows:
        print(f"   {name:20}{theirs:12.1f}{planned:13.1f}{planned / theirs - 1:+8.1%}")
    print()


def part_d(target: Target) -> None:
    print("D. MobileNetV2, INT8, tensors packed without padding: bytes of activations\n")
    v2 = networks()["mobilenet_v2"]
    plain = replace(target, memory=replace(target.memory, runtime_ram_bytes=0))
    for pixels, batch in ((224, 1), (160, 1), (160, 2), (160, 3)):
        need = needed_bytes(batched(resized(v2, pixels, 224), batch), plain, Precision.INT8)
        print(f"   {pixels} pixels, batch {batch}: {need:>9,} bytes; fits 1.5 MiB: {'yes' if need <= 1.5 * KIB ** 2 else 'no'}; "
              f"fits 1,500,000 bytes: {'yes' if need <= 1_500_000 else 'no'}")
    padded = needed_bytes(v2, load("rk3588"), Precision.INT8)
    print(f"   With the RK3588's padding batch 1 at 224 pixels takes {padded:,} bytes: more than either, and its buffer holds 393,216.\n")


def make_data(graphs: Path) -> None:
    """Kernels of the networks in the toolkit's table that no other data file holds."""
    from qbench.graph import load_network

    known, packed = {**rk3588_networks(), **public_rows.read_networks()}, {}
    for graph in sorted({r["graph"] for r in read_cycles()} - set(known)):
        file = NETWORKS.parent / ".graph.onnx"
        file.write_bytes(lzma.decompress((graphs / f"{graph}.onnx.xz").read_bytes()))
        packed[graph] = pack(load_network(file).network)
        file.unlink()
    NETWORKS.write_bytes(lzma.compress(json.dumps(packed, separators=(",", ":")).encode(), preset=9))


def main(argv: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--graphs", type=Path)
    options = parser.parse_args(argv)
    if options.graphs:
        make_data(options.graphs)
    mcu = load("stm32h7")
    bare = replace(mcu, memory=replace(mcu.memory, runtime_ram_bytes=0))
    part_a(load("rk3588"))
    compare("B. Vela, ethos-u55-256: SRAM", [(name, VELA[name], uniform(network, bare, Precision.INT8).arena_bytes / KIB)
                                             for name, network in (("net", net()), ("MobileNetV1 like", mobilenet_v1(1.0, 224)))])
    compare("C. STM32 model zoo: RAM, 16 KiB runtime included", [(f"MobileNetV1 {width:g}", kib, uniform(mobilenet_v1(width, 224), mcu, Precision.INT8).ram_bytes / KIB)
                                                     for width, kib in STM32.items()])
    print("   At half and quarter width STM32Cube.AI takes less than input and output of one layer together: it overlaps the two, which is not modelled.\n")
    part_d(bare)


if __name__ == "__main__":
    main(sys.argv[1:])
