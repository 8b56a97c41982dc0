"""What calibration costs: statistics for all calibrators in one pass, against onnxruntime's calibrators and plain inference.

usage: calibration_speed.py [--images 64] [--repeats 3] [--memory 8 256]

Claims, for MobileNetV2 at 224, batch 1, the same images and number of threads for all:
  the one pass from which every calibrator is answered takes at most 1/10 of onnxruntime's Entropy calibrator, less than its MinMax
  calibrator alone, and at most 2.8 times plain inference; the peak of memory grows by at most a fifth from 8 to 256 images.
Read: the best of the repeats, which take turns, so that a busy machine hits all alike; compare ratios, not seconds. A
neighbour on the same cores slows plain inference most (its threads wait for one another) and so flatters the pass: the
first line says how busy the machine was, and "one thread an image" is plain inference spread over the threads as the pass
is, which a neighbour slows no more than the pass. "pass" includes making the session; for onnxruntime's calibrators it is left out.
Its calibrators watch every float tensor, "pass" those that a plan quantizes; "same tensors" holds them to those of the pass.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import io
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from qbench import calibrators, qdq
from qbench.graph import PreparedModel, load_network
from qbench.protocols import Batch
from qbench.runtime import Session, default_threads
from qbench.statistics import Statistics, TensorStatistics, collect

KINDS = ("minmax", "percentile", "kl", "mse")
LEVELS = 256
LIMITS = {"pass : plain": 2.8, "pass : onnxruntime MinMax": 1.0, "pass : onnxruntime Entropy": 0.1, "memory": 1.2}


class Noise:
    """Images of seeded noise, made when asked for."""

    def __init__(self, count: int) -> None:
        self.count, self.name, self.key = count, "noise", f"noise-{count}"

    def __len__(self) -> int:
        return self.count

    def batches(self, size: int = 1) -> Iterator[Batch]:
        for first in range(0, self.count, size):
            rng = np.random.default_rng(first)
            image = rng.normal(size=(min(size, self.count - first), 3, 224, 224)).astype(np.float32)
            yield Batch({"image": image}, None, first)


class Held(Noise):
    """The same, made beforehand: neither side is timed making images."""

    def __init__(self, count: int) -> None:
        super().__init__(count)
        self.made = list(super().batches(1))

    def batches(self, size: int = 1) -> Iterator[Batch]:
        return iter(self.made)


def statistics_of(prepared: PreparedModel, data: Noise) -> Statistics:
    network = prepared.network
    return collect(prepared.model, qdq.watched_tensors(network), data, model_key=network.model_key)


def ranges(statistics: Statistics, kinds: Sequence[str] = KINDS) -> None:
    for calibrator in map(calibrators.make, kinds):
        for name in statistics:
            calibrator.range(statistics[name], LEVELS)


def onnxruntime_calibrator(model: Path, method: str, data: Held, only: set[str] | None) -> float:
    """Seconds that onnxruntime's own calibrator takes to collect and compute; `only`: the tensors to watch, None: its choice."""
    import onnxruntime as ort
    from onnxruntime.quantization import calibrate

    class Reader(calibrate.CalibrationDataReader):      # type: ignore[misc]
        def __init__(self) -> None:
            self.left = iter(data.made)

        def get_next(self) -> Any:
            return dict(batch.feeds) if (batch := next(self.left, None)) else None

    with tempfile.TemporaryDirectory() as folder:
        kind = {"MinMax": calibrate.MinMaxCalibrater, "Entropy": calibrate.EntropyCalibrater}[method]
        select = kind.select_tensors_to_calibrate
        if only is not None:
            kind.select_tensors_to_calibrate = lambda self, m: (select(self, m)[0] & only, select(self, m)[1])
        try:
            made = calibrate.create_calibrator(model, None, str(Path(folder) / "augmented.onnx"), calibrate.CalibrationMethod[method])
        finally:
            kind.select_tensors_to_calibrate = select
        options = ort.SessionOptions()                  # its own but for the number of threads
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
        options.intra_op_num_threads = default_threads()
        made.infer_session = ort.InferenceSession(made.augmented_model_path, options, providers=["CPUExecutionProvider"])
        start = time.perf_counter()
        with contextlib.redirect_stdout(io.StringIO()):             # it prints what it does
            made.collect_data(Reader())
            found = made.compute_data()
        seconds = time.perf_counter() - start
    if only is not None and (missing := only - set(found.keys())):
        raise SystemExit(f"onnxruntime's {method} did not watch {sorted(missing)[:3]}")
    return seconds


def one_turn(prepared: PreparedModel, model: Path, data: Held) -> dict[str, float]:
    """Seconds of each contender, one after the other."""
    session, seconds = Session(model), {}
    feeds = [dict(batch.feeds) for batch in data.made]

    def timed(name: str, work: Callable[[], Any]) -> Any:
        start = time.perf_counter()
        found = work()
        seconds[name] = time.perf_counter() - start
        return found

    session.run(feeds[0])
    timed("plain inference", lambda: [session.run(f) for f in feeds])
    single = Session(model, 1)
    with ThreadPoolExecutor(default_threads()) as pool:
        timed("  one thread an image", lambda: list(pool.map(single.run, feeds)))
    seen = timed("pass", lambda: statistics_of(prepared, data))
    for kind in KINDS:
        timed(f"  ranges {kind}", partial(ranges, seen, [kind]))
    seconds["pass + ranges"] = sum(seconds[n] for n in ("pass", *(f"  ranges {k}" for k in KINDS)))
    for method in ("MinMax", "Entropy"):
        seconds[f"onnxruntime {method}"] = onnxruntime_calibrator(model, method, data, None)
        seconds[f"  {method}, same tensors"] = onnxruntime_calibrator(model, method, data, set(seen))
    return seconds


# A child process each, so that a peak or a compilation is that of one job alone; torch stays out of them.

def child(model: Path, job: str) -> None:
    """Prints MiB of peak memory of a pass over `job` images, or the seconds of everything compiled at its first use."""
    if job == "compile":
        start = time.perf_counter()
        seen = TensorStatistics.of(np.random.default_rng(0).normal(size=(4, 1000)).astype(np.float32), "x")
        ranges(Statistics("", (), {"x": seen}))
        print(time.perf_counter() - start)
    else:
        statistics_of(load_network(model), Noise(int(job)))
        print(peak_mib())


def peak_mib() -> float:
    """Peak resident memory of this process. Linux hands the parent's peak on to ru_maxrss of a child; VmHWM starts anew."""
    status = Path("/proc/self/status")
    if status.is_file():
        return next(int(line.split()[1]) for line in status.read_text().splitlines() if line.startswith("VmHWM")) / 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1 << (20 if sys.platform == "darwin" else 10))


def in_child(model: Path, job: str, **environment: str) -> float:
    command = [sys.executable, __file__, "--child", str(model), job]
    done = subprocess.run(command, env=os.environ | environment, check=True, capture_output=True, text=True)
    return float(done.stdout)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--memory", type=int, nargs=2, default=(8, 256), metavar=("FEW", "MANY"))
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        child(Path(options.child[0]), options.child[1])
        return
    with tempfile.TemporaryDirectory() as folder:
        report(Path(folder), options.images, options.repeats, *options.memory)


def report(folder: Path, images: int, repeats: int, few: int, many: int) -> None:
    import onnx_ir as ir
    from mobilenet import mobilenet_v2

    prepared = load_network(ir.serde.deserialize_model(mobilenet_v2()))
    model = folder / "mobilenet_v2.onnx"
    model.write_bytes(qdq.to_bytes(prepared.model))
    busy = os.getloadavg()[0] if hasattr(os, "getloadavg") else float("nan")
    first, later = in_child(model, "compile", NUMBA_CACHE_DIR=str(folder)), in_child(model, "compile")
    peaks = [in_child(model, str(n)) for n in (few, many)]
    ranges(statistics_of(prepared, Held(2)))                    # loads what is compiled
    gc.freeze()                                                 # the exporter's objects are not looked through while the clock runs
    turns = [one_turn(prepared, model, Held(images)) for _ in range(repeats)]
    best = {name: min(turn[name] for turn in turns) for name in turns[0]}

    print(f"MobileNetV2 at 224, {images} images, batch 1, best of {repeats}, {default_threads()} threads each, "
          f"{len(qdq.watched_tensors(prepared.network))} tensors; load average at the start {busy:.1f}")
    print(f"{'step':<28}{'seconds':>10}{'x plain inference':>20}{'pass + ranges is':>20}")
    for name, seconds in best.items():
        print(f"{name:<28}{seconds:>10.3f}{seconds / best['plain inference']:>20.2f}{best['pass + ranges'] / seconds:>18.3f} x")
    print(f"compiling: {first:.1f} s in the first run ever, {later:.1f} s in later processes, outside the seconds above")
    print(f"{'claim':<28}{'measured':>10}{'at most':>20}")
    for (name, limit), value in zip(LIMITS.items(), measured(best, peaks), strict=True):
        print(f"{name:<28}{value:>10.3f}{limit:>20.1f}{'holds' if value <= limit else 'FAILS':>20}")
    print(f"aim for pass : plain 2.0; peak memory {peaks[0]:.0f} MiB at {few} images, {peaks[1]:.0f} MiB at {many}; with the ranges of all "
          "four calibrators, and on the same tensors, see the last column")


def measured(best: dict[str, float], peaks: list[float]) -> tuple[float, ...]:
    """In the order of LIMITS; onnxruntime's calibrators as a user runs them."""
    ours = best["pass"]
    return (ours / best["plain inference"], ours / best["onnxruntime MinMax"], ours / best["onnxruntime Entropy"], peaks[1] / peaks[0])


if __name__ == "__main__":
    main()
