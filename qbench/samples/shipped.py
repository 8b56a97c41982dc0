"""The samples whose network and data lie inside the package."""

from __future__ import annotations

import atexit
from contextlib import ExitStack
from functools import cache
from importlib import resources
from pathlib import Path

from qbench.data import ArrayDataset
from qbench.data.arrays import load_npz
from qbench.samples.record import OneChannel, Sample

_open_files = ExitStack()
atexit.register(_open_files.close)


@cache
def shipped(name: str) -> Path:
    """A file of this package as a path, also when the package is run from a zip archive."""
    return _open_files.enter_context(resources.as_file(resources.files("qbench.samples").joinpath(name)))


def brain() -> Sample:
    """Tissue of axial head slices; see brain/NOTES.md."""
    data = load_npz(shipped("brain/brain_data.npz"))
    return Sample(
        name="brain",
        title="Brain tissue in head MRI (U-Net, 0.93 M parameters)",
        story="A bedside device outlines fluid, grey and white matter in head slices and must answer within 20 ms. In FP16 the network "
              "is too slow for that, in INT8 fast enough; the question is what the fast one gets wrong.",
        model=shipped("brain/brain_unet.onnx"),
        calibration=ArrayDataset({"pictures": data["calibration"]}, None, "brain/calibration", OneChannel()),
        evaluation=ArrayDataset({"pictures": data["images"]}, data["labels"], "brain/evaluation", OneChannel()),
        metric="dice:classes=1/2/3",
        also=("miou:classes=1/2/3",),
        licence="Network, labels and slices made for qbench (Apache-2.0) from the MNI152 2009a template, "
                "(C) 1993-2009 Louis Collins, McConnell Brain Imaging Centre, Montreal Neurological Institute; see brain/NOTICE.",
        caveats=(
            "A stress case, chosen as such: its data were made harder until INT8 suffered. It is not what INT8 usually costs.",
            "One averaged head, bent and recoloured at random; Dice here says nothing about other people, lesions or a real scanner.",
            "4 of the 64 calibration slices carry a spike artefact, as an unreviewed folder would. None of the evaluation slices does.",
            "Not a medical device, and no claim about one.",
        ),
    )


def fashion() -> Sample:
    """Ten kinds of clothing; see fashion/NOTES.md."""
    data = load_npz(shipped("fashion/fashion_data.npz"))
    training = OneChannel(divisor=255.0, mean=0.2860, std=0.3530)          # as in experiments/fashion/train.py
    return Sample(
        name="fashion",
        title="Ten kinds of clothing (depthwise-separable network, 60 k parameters)",
        story="A small camera sorts clothing. Small enough that a whole search takes seconds: for trying things out, and for tests.",
        model=shipped("fashion/fashion_dsnet.onnx"),
        calibration=ArrayDataset({"pictures": data["calibration"]}, None, "fashion/calibration", training),
        evaluation=ArrayDataset({"pictures": data["images"]}, data["labels"], "fashion/evaluation", training),
        metric="top1",
        also=("topk:k=2",),
        licence="Network made for qbench (Apache-2.0). Pictures: Fashion-MNIST, (C) 2017 Zalando SE, MIT (Expat) licence; "
                "see fashion/NOTICE.",
        caveats=(
            "A stress case, chosen as such: of three trained networks the one that INT8 hurts most (per-tensor: 91.0 % to 38.6 %).",
            "A sister with ReLU6 lost 0.1 points.",
            "2,000 of the 10,000 test pictures; differences below about a point are within the noise.",
        ),
    )
