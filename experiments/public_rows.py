"""Published latencies and the networks they were measured on: what fit_targets.py reads.

    python experiments/public_rows.py --graphs FOLDER --latencies CSV     makes experiments/data/public_* again
"""

from __future__ import annotations

import argparse
import csv
import io
import json
import lzma
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
from fit_rk3588 import pack, unpack

from qbench.network import Network, Precision

DATA = Path(__file__).parent / "data"
ROWS, NETWORKS = DATA / "public_latency.csv.xz", DATA / "public_networks.json.xz"
COLUMNS = ("chip", "model", "input_shape", "precision", "runtime", "metric", "value", "notes", "source", "graph")
PRECISIONS = {"fp16": Precision.FP16, "w8a8": Precision.INT8, "w8a16": Precision.INT16, "w8a8 (fp16 mixed)": Precision.INT8,
              "w8a8 (XINT8 power-of-two)": Precision.INT8}
SPOILED = ("do not fit", "exclude", "host work included", "pool of", "4 chips", "fallback dominated")
RUNTIMES = {"qnn_dlc", "RKNN", "ATC/ACL om (CANN)", "MagicMind mm_run", "VitisAI EP", "Core ML"}
# Networks that share a design are left out together; the longest prefix counts.
FAMILIES = {
    "yolo": "yolo", "ffnet": "ffnet", "quicksrnet": "superresolution", "sesr": "superresolution", "realesrgan": "superresolution",
    "mobilenet": "mobilenet", "posenet": "mobilenet", "mnasnet": "mnasnet", "spnasnet": "mnasnet", "efficientnet": "efficientnet", "resnet": "resnet",
    "resnext": "resnet", "fcn_resnet": "resnet", "dla": "resnet", "cspresnext": "resnet", "hrnet": "hrnet", "regnet": "regnet", "vit_": "vit",
    "mobilevit": "vit", "levit": "vit", "convnext": "convnext", "convmixer": "convnext", "efficientformer": "vit", "efficientvit": "efficientvit",
    "squeezenet": "squeezenet", "googlenet": "googlenet", "ddrnet": "ddrnet", "pidnet": "ddrnet", "r3d": "video", "mc3": "video",
    "retinaface": "mobilenet",
}


@dataclass(frozen=True)
class Row:
    """One published latency of batch 1."""

    chip: str
    graph: str
    precision: Precision
    ms: float

    @property
    def family(self) -> str:
        return next((FAMILIES[k] for k in sorted(FAMILIES, key=len, reverse=True) if self.graph.startswith(k)), self.graph)


def milliseconds(row: Mapping[str, str]) -> float:
    return 1000.0 / float(row["value"]) if row["metric"] == "fps" else float(row["value"])


def usable(row: Mapping[str, str]) -> bool:
    """Run time of one inference, batch 1, at a known graph, precision and runtime."""
    return (bool(row["graph"]) and row["precision"] in PRECISIONS and row["runtime"] in RUNTIMES and row["metric"] in ("fps", "latency_ms")
            and row["input_shape"].split("x")[0] == "1" and not any(s in row["notes"] for s in SPOILED))


@cache
def read_rows() -> tuple[Row, ...]:
    """One row per chip, graph and precision: several publications of one are averaged, latencies go before rates of the same run."""
    found: dict[tuple[str, str, Precision], list[float]] = defaultdict(list)
    with lzma.open(ROWS, "rt", newline="") as file:
        rows = sorted(csv.DictReader(file), key=lambda r: r["metric"], reverse=True)
    seen = set()
    for r in rows:
        run = (r["chip"], r["model"], r["precision"], r["source"])
        if r["metric"] == "fps" and run in seen:
            continue
        seen.add(run)
        found[r["chip"], r["graph"], PRECISIONS[r["precision"]]].append(milliseconds(r))
    return tuple(Row(c, g, p, float(np.exp(np.mean(np.log(v))))) for (c, g, p), v in found.items())


@cache
def read_networks() -> Mapping[str, Network]:
    with lzma.open(NETWORKS, "rt") as file:
        return {name: unpack(name, body) for name, body in json.load(file).items()}


def make_data(graphs: Path, latencies: Path) -> None:
    """Copies the rows that are used, and extracts the kernels of their networks."""
    from qbench.graph import load_network

    with open(latencies, newline="") as source:
        rows = [r for r in csv.DictReader(source) if usable(r)]
    text = io.StringIO()
    out = csv.DictWriter(text, COLUMNS, extrasaction="ignore", lineterminator="\n")
    out.writeheader()
    out.writerows(rows)
    ROWS.write_bytes(lzma.compress(text.getvalue().encode(), preset=9))
    packed = {}
    for graph in sorted({r["graph"] for r in rows}):
        file = DATA / ".graph.onnx"
        file.write_bytes(lzma.decompress((graphs / f"{graph}.onnx.xz").read_bytes()))
        packed[graph] = pack(load_network(file).network)
        file.unlink()
    NETWORKS.write_bytes(lzma.compress(json.dumps(packed, separators=(",", ":")).encode(), preset=9))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--graphs", type=Path, required=True)
    parser.add_argument("--latencies", type=Path, required=True)
    options = parser.parse_args()
    make_data(options.graphs, options.latencies)
