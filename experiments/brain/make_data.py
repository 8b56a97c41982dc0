"""Make the brain-slice sample: axial T1 slices with tissue labels, from the MNI152 2009a maps in the nilearn wheel.

usage: make_data.py OUT.npz        needs: numpy, scipy, nilearn 0.14 (no download: the maps are inside the wheel)

Classes: 0 background, 1 cerebrospinal fluid and rim (inside the brain mask, neither grey nor white), 2 grey, 3 white.
Every slice is a fresh random copy of the one averaged head: bent, scaled, turned, tilted, recoloured, blurred, noised.
"""
import sys
from pathlib import Path

import numpy as np
from scipy import ndimage as nd

from qbench.files import replacing

SIDE = 256
TOP = 4095                    # 12 bits, as scanners store
BLOCK = 6                     # axial positions are dealt to train / calibration / evaluation in blocks of 6 mm
GAP = 1                       # positions at a block's edge that nobody uses
FIRST, LAST = 18, 150         # lowest and highest axial index used: below and above there is hardly any brain
SEEDS = {"train": 1_000_000, "calibration": 2_000_000, "evaluation": 3_000_000}


def load_maps():
    """T1 intensity and the probabilities of grey and white matter, each float32 [x, y, z] at 1 mm."""
    from nilearn import datasets
    loaders = (datasets.load_mni152_template, datasets.load_mni152_gm_template, datasets.load_mni152_wm_template)
    return [np.asarray(load(resolution=1).get_fdata(), np.float32) for load in loaders]


def positions(split):
    """Axial positions of a split: of every five blocks three train, one calibrates, one evaluates."""
    owner = ("train", "calibration", "train", "evaluation", "train")
    blocks = range(FIRST, LAST, BLOCK)
    return [z for n, start in enumerate(blocks) if owner[n % 5] == split
            for z in range(start + GAP, min(start + BLOCK, LAST) - GAP + (split == "train"))]


def smooth_noise(rng, shape, sigma, amplitude):
    """Smooth random field, about `amplitude` at its peak."""
    coarse = rng.normal(size=[max(3, int(s / sigma) + 3) for s in shape])
    field = nd.zoom(coarse, [s / c for s, c in zip(shape, coarse.shape, strict=True)], order=3)
    return (amplitude * field / np.abs(field).max()).astype(np.float32)


def bend(maps, z, rng):
    """One axial slice through a randomly bent, scaled, turned copy of the head: T1, grey, white, each [256, 256]."""
    yy, xx = np.meshgrid(np.arange(SIDE) - SIDE / 2, np.arange(SIDE) - SIDE / 2, indexing="ij")
    turn, (sy, sx) = np.deg2rad(rng.uniform(-15, 15)), rng.uniform(0.85, 1.15, 2)
    x = (np.cos(turn) * xx - np.sin(turn) * yy) / sx + rng.uniform(-8, 8)
    y = (np.sin(turn) * xx + np.cos(turn) * yy) / sy + rng.uniform(-8, 8)
    tilt = rng.uniform(-0.01, 0.01, 2)                      # at most about 1 mm out of the slice's own position
    depth = z + np.clip(tilt[0] * x + tilt[1] * y, -1, 1)
    for sigma, most in ((60, 6.0), (18, 2.5)):              # one broad and one fine bend, in millimetres
        x = x + smooth_noise(rng, x.shape, sigma, most)
        y = y + smooth_noise(rng, y.shape, sigma, most)
    if rng.random() < 0.5:
        x = -x
    cx, cy = maps[0].shape[0] / 2, maps[0].shape[1] / 2
    where = np.stack([cx + x, cy - y, depth])
    return [nd.map_coordinates(m, where, order=1, mode="constant") for m in maps]


def label(t1, grey, white):
    """Class of each voxel: the most probable tissue inside the brain mask."""
    other = 1 - grey - white
    tissue = np.where(np.maximum(grey, white) < other, 1, np.where(grey >= white, 2, 3))
    return np.where(t1 > 0.05, tissue, 0).astype(np.uint8)


def recolour(t1, grey, white, rng):
    """Another scanner's picture of the same slice: uint16, 12 bits, zero outside the brain, brightness not normalised."""
    inside = label(t1, grey, white) > 0
    shift = rng.normal(0, 0.03, 3)                          # contrast between tissues differs between scanners
    image = t1 + shift[0] * np.clip(1 - grey - white, 0, 1) + shift[1] * grey + shift[2] * white
    image = np.clip(image, 0, None) ** rng.uniform(0.5, 1.4)
    image = image / image.max() * np.exp(smooth_noise(rng, image.shape, 90, rng.uniform(0, 0.25)))
    rows, cols = np.nonzero(inside)
    for _ in range(rng.poisson(6)):                         # vessels: inflowing blood is a few times brighter than tissue
        n, size = rng.integers(len(rows)), rng.uniform(0.6, 1.2)
        near = np.s_[max(rows[n] - 5, 0):rows[n] + 6, max(cols[n] - 5, 0):cols[n] + 6]
        y, x = np.mgrid[near]
        image[near] += rng.uniform(1, 4) * np.exp(-((y - rows[n]) ** 2 + (x - cols[n]) ** 2) / (2 * size**2))
    image = nd.gaussian_filter(image, rng.uniform(0.0, 0.7))
    sigma = rng.uniform(0.005, 0.025)
    image = np.hypot(image + rng.normal(0, sigma, image.shape), rng.normal(0, sigma, image.shape))   # Rician noise
    gain = np.exp(rng.uniform(np.log(100), np.log(1600)))   # MR brightness has no unit: 16-fold spread between scans
    return (np.clip(image * gain + 0.5, 0, TOP) * inside).astype(np.uint16)


def make_slice(maps, z, seed):
    """(image uint16, labels uint8) of one random copy of axial position z."""
    rng = np.random.default_rng(seed)
    t1, grey, white = bend(maps, z, rng)
    return recolour(t1, grey, white, rng), label(t1, grey, white)


def spoil(image, rng):
    """The slice with one bad k-space sample (a radio-frequency spike): stripes all over the picture."""
    y, x = np.mgrid[:SIDE, :SIDE] / SIDE
    wave = np.cos(2 * np.pi * (rng.uniform(20, 110) * y + rng.uniform(20, 110) * x) + rng.uniform(0, 6.28))
    return (np.clip(np.abs(image + wave * rng.uniform(0.5, 1.0) * TOP), 0, TOP) * (image > 0)).astype(np.uint16)


def make_split(maps, split, count):
    """`count` slices spread over the split's positions, each with a seed of its own."""
    zs = positions(split)
    chosen = [zs[int(n * len(zs) / count)] if count <= len(zs) else zs[n % len(zs)] for n in range(count)]
    made = [make_slice(maps, z, SEEDS[split] + n) for n, z in enumerate(chosen)]
    return np.stack([m[0] for m in made]), np.stack([m[1] for m in made]), np.array(chosen, np.int16)


def main(out):
    maps = load_maps()
    calibration, _, calibration_z = make_split(maps, "calibration", 64)
    spoiled = np.arange(len(calibration)) % 16 == 9         # 4 of 64: nobody looked through the calibration folder
    for n in np.flatnonzero(spoiled):
        calibration[n] = spoil(calibration[n], np.random.default_rng(n))
    images, labels, evaluation_z = make_split(maps, "evaluation", 48)
    with replacing(Path(out)) as temporary, open(temporary, "wb") as file:
        np.savez_compressed(file, calibration=calibration, images=images, labels=labels,
                            calibration_spoiled=spoiled, calibration_z=calibration_z, evaluation_z=evaluation_z)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        raise SystemExit(__doc__)
    main(sys.argv[1])
