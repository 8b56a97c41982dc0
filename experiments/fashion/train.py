"""Train the small depthwise-separable network of the `fashion` sample and export it to ONNX with BatchNorm unfolded.

usage: train.py FOLDER OUT.onnx [--act relu|relu6] [--epochs 8] [--seed 1]

FOLDER as for make_data.py. The shipped file is --act relu --epochs 8 --seed 1, torch 2.13: 90.97 % of the 10,000 test pictures.
It is one of three that were trained, and the one that per-tensor INT8 hurts most; --act relu6 --epochs 8 --seed 0 is the benign one.
One thread and channels-last on purpose: about 26 s an epoch on one core, where two threads needed several times that.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import numpy as np
import torch
from make_data import split
from torch import Tensor, nn
from torch.nn import functional as F

BATCH, MEAN, STD = 128, 0.2860, 0.3530
BLACK = -0.81                          # a black pixel after normalisation: (0 - MEAN) / STD


def conv(i: int, o: int, size: int, stride: int = 1, groups: int = 1, act: type[nn.Module] | None = nn.ReLU) -> list[nn.Module]:
    layers = [nn.Conv2d(i, o, size, stride, size // 2, groups=groups, bias=False), nn.BatchNorm2d(o)]
    return layers if act is None else [*layers, act()]


class InvertedResidual(nn.Module):
    """Widen four-fold, depthwise 3x3, narrow; with a skip where shapes allow. Source: Sandler et al. 2018 (arXiv 1801.04381)."""

    def __init__(self, i: int, o: int, stride: int, act: type[nn.Module]) -> None:
        super().__init__()
        self.skip = stride == 1 and i == o
        self.body = nn.Sequential(*conv(i, 4 * i, 1, act=act), *conv(4 * i, 4 * i, 3, stride, 4 * i, act=act), *conv(4 * i, o, 1, act=None))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.body(x) if self.skip else self.body(x)


class Net(nn.Module):
    """28x28 grey pictures [n, 1, 28, 28] -> logits [n, 10]; about 60 k parameters."""

    def __init__(self, act: type[nn.Module]) -> None:
        super().__init__()
        widths = [(16, 24, 2), (24, 24, 1), (24, 24, 1), (24, 40, 2), (40, 40, 1), (40, 40, 1)]
        self.features = nn.Sequential(
            *conv(1, 16, 3, 2, act=act), *conv(16, 16, 3, 1, 16, act=act), *conv(16, 16, 1, act=None),
            *[InvertedResidual(i, o, stride, act) for i, o, stride in widths], *conv(40, 128, 1, act=act))
        self.classifier = nn.Linear(128, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(self.features(x).mean((2, 3)))


def load(folder: Path, name: str) -> tuple[Tensor, Tensor]:
    images, labels = split(folder, name)
    x = (torch.from_numpy(images[:, None].astype(np.float32)) / 255 - MEAN) / STD
    return x, torch.from_numpy(labels.astype(np.int64))


def augment(x: Tensor) -> Tensor:
    """Half of the pictures mirrored, all of the batch shifted by up to two pixels."""
    mirror = torch.rand(len(x)) < 0.5
    x = F.pad(torch.where(mirror[:, None, None, None], x.flip(3), x), (2,) * 4, value=BLACK)
    dx, dy = np.random.randint(0, 5, 2)
    return x[:, :, dy:dy + 28, dx:dx + 28].contiguous(memory_format=torch.channels_last)


def accuracy(net: nn.Module, x: Tensor, y: Tensor) -> float:
    with torch.no_grad():
        found = torch.cat([net.eval()(part) for part in x.split(1000)]).argmax(1)
    return found.eq(y).float().mean().item()


def train(net: nn.Module, x: Tensor, y: Tensor, epochs: int, test: tuple[Tensor, Tensor]) -> None:
    steps = len(x) // BATCH
    optimiser = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9, nesterov=True, weight_decay=1e-4)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, 0.1, total_steps=epochs * steps)
    for epoch in range(epochs):
        began, order = time.time(), torch.randperm(len(x))
        net.train()
        for step in range(steps):
            chosen = order[step * BATCH:(step + 1) * BATCH]
            loss = F.cross_entropy(net(augment(x[chosen])), y[chosen])
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            schedule.step()
        print(f"epoch {epoch + 1}: {time.time() - began:.0f} s, test accuracy {accuracy(net, *test):.4f}", flush=True)


def main() -> None:
    ask = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ask.add_argument("folder", type=Path)
    ask.add_argument("out")
    ask.add_argument("--act", default="relu", choices=["relu", "relu6"])
    ask.add_argument("--epochs", type=int, default=8)
    ask.add_argument("--seed", type=int, default=1)
    told = ask.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(told.seed)
    np.random.seed(1)
    net = Net({"relu": nn.ReLU, "relu6": nn.ReLU6}[told.act]).to(memory_format=torch.channels_last)
    train(net, *load(told.folder, "train"), told.epochs, load(told.folder, "t10k"))
    torch.onnx.export(net.to(memory_format=torch.contiguous_format).eval(), torch.zeros(1, 1, 28, 28), told.out, opset_version=17,
                      input_names=["image"], output_names=["logits"], dynamic_axes={"image": {0: "N"}, "logits": {0: "N"}},
                      dynamo=False, do_constant_folding=False, training=torch.onnx.TrainingMode.EVAL)


if __name__ == "__main__":
    main()
