"""Make the data of the `fashion` sample: 512 calibration and 2,000 evaluation pictures of Fashion-MNIST.

usage: make_data.py FOLDER OUT.npz        needs: numpy, and qbench for safe writing

FOLDER holds the four idx files as the data set's authors publish them (train-images-idx3-ubyte.gz and so on; Debian
packages them as dataset-fashion-mnist, under usr/share/datasets/fashion-mnist). Calibration pictures come from the training
split, evaluation pictures from the test split, drawn with seed 0 and dealt in rounds of the ten classes, so that any first N
of them are balanced too. The same seed gives the same arrays.
"""

from __future__ import annotations

import gzip
import sys
from pathlib import Path

import numpy as np

from qbench.files import replacing

CLASSES = 10
CALIBRATION, EVALUATION = 512, 2000


def read_idx(path: Path) -> np.ndarray:
    """uint8 array of an idx file: two zero bytes, type 8, number of axes, one big-endian int32 per axis, the values."""
    raw = gzip.decompress(path.read_bytes())
    if raw[:3] != b"\0\0\x08":
        raise SystemExit(f"{path}: not an idx file of bytes")
    shape = np.frombuffer(raw, ">i4", count=raw[3], offset=4)
    return np.frombuffer(raw, np.uint8, offset=4 + 4 * raw[3]).reshape(shape)


def split(folder: Path, name: str) -> tuple[np.ndarray, np.ndarray]:
    """Images uint8 [n, 28, 28] and labels uint8 [n] of "train" or "t10k"."""
    return read_idx(folder / f"{name}-images-idx3-ubyte.gz"), read_idx(folder / f"{name}-labels-idx1-ubyte.gz")


def balanced(labels: np.ndarray, count: int, rng: np.random.Generator) -> np.ndarray:
    """Indices of `count` samples in rounds: each round holds every class once, in random order."""
    queues = [rng.permutation(np.flatnonzero(labels == c)) for c in range(CLASSES)]
    order = [queues[c][turn] for turn in range(-(-count // CLASSES)) for c in rng.permutation(CLASSES)]
    return np.array(order[:count])


def main(folder: Path, out: Path) -> None:
    rng = np.random.default_rng(0)
    train, train_labels = split(folder, "train")
    test, test_labels = split(folder, "t10k")
    calibration, evaluation = balanced(train_labels, CALIBRATION, rng), balanced(test_labels, EVALUATION, rng)
    with replacing(out) as temporary, open(temporary, "wb") as file:
        np.savez_compressed(file, calibration=train[calibration], images=test[evaluation], labels=test_labels[evaluation],
                            calibration_index=calibration.astype(np.int32), evaluation_index=evaluation.astype(np.int32))


if __name__ == "__main__":
    if len(sys.argv) != 3:
        raise SystemExit(__doc__)
    main(Path(sys.argv[1]), Path(sys.argv[2]))
