"""Train the brain-slice net of the sample and export it to ONNX with BatchNorm unfolded.

usage: train.py DATA.npz OUT.onnx [--net separable|plain] [--act relu|silu] [--steps 1300] [--seed 0]

Needs torch 2.13, onnx, scipy, nilearn. One thread on purpose: two were slower for a similar net.
Resumes from OUT.pt when that file exists. Input `image` float32 [N,1,256,256], raw 12-bit brightness 0..4095
without any normalisation; output `logits` [N,4,256,256]. DATA.npz is only used to print the Dice of the finished net.
"""
import argparse
import os
import time
from itertools import pairwise

import make_data
import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

CROP, BATCH, COPIES = 128, 8, 14       # training crops, and deformed copies of every training position
ACT = {"relu": nn.ReLU, "silu": nn.SiLU}


def conv(i, o, size, act, groups=1):
    return nn.Sequential(nn.Conv2d(i, o, size, padding=size // 2, groups=groups, bias=False), nn.BatchNorm2d(o), act())


def block(i, o, act, separable):
    """A 3x3 convolution that mixes channels, then either a depthwise-separable one or a second full one."""
    second = [conv(o, o, 3, act, groups=o), conv(o, o, 1, act)] if separable else [conv(o, o, 3, act)]
    return nn.Sequential(conv(i, o, 3, act), *second)


class UNet(nn.Module):
    """U-Net with three poolings. `separable` makes the second convolution of a block depthwise-separable."""

    def __init__(self, widths, act, separable):
        super().__init__()
        levels = range(len(widths) - 1)
        self.encode = nn.ModuleList([block(i, o, act, separable) for i, o in pairwise((1, *widths))])
        self.up = nn.ModuleList([nn.ConvTranspose2d(widths[k + 1], widths[k], 2, stride=2) for k in levels])
        self.decode = nn.ModuleList(
            [block(2 * widths[k], widths[k], act, separable) if k or not separable      # the finest one stays a single
             else conv(2 * widths[k], widths[k], 3, act) for k in levels])              # convolution: full size is dear
        self.head = nn.Conv2d(widths[0], 4, 1)

    def forward(self, x):
        skips = []
        for level, encode in enumerate(self.encode):
            x = encode(F.max_pool2d(x, 2) if level else x)
            skips.append(x)
        for level in reversed(range(len(self.decode))):
            x = self.decode[level](torch.cat([skips[level], self.up[level](x)], 1))
        return self.head(x)


def build(net, act):
    widths = {"separable": (32, 64, 128, 192), "plain": (24, 48, 96, 192)}[net]
    return UNet(widths, ACT[act], net == "separable")


def pool(maps, seed):
    """Deformed training slices (T1, grey, white) as float16, made once; colours are drawn anew for every crop."""
    todo = [z for _ in range(COPIES) for z in make_data.positions("train")]
    return [np.stack(make_data.bend(maps, z, np.random.default_rng(make_data.SEEDS["train"] + 10_000 * seed + n)))
            .astype(np.float16) for n, z in enumerate(todo)]


def batch(slices, rng):
    """BATCH recoloured crops around the brain: image float32 0..4095 [B,1,C,C] and labels int64 [B,C,C]."""
    images, labels = [], []
    for _ in range(BATCH):
        t1, grey, white = slices[rng.integers(len(slices))].astype(np.float32)
        image = make_data.recolour(t1, grey, white, rng)
        label = make_data.label(t1, grey, white)
        rows, cols = np.nonzero(label)
        pick = rng.integers(len(rows))                     # centre the crop on a random voxel of the brain
        top, left = (int(np.clip(c[pick] - CROP // 2 + rng.integers(-24, 25), 0, make_data.SIDE - CROP)) for c in (rows, cols))
        cut = np.s_[top:top + CROP, left:left + CROP]
        images.append(image[cut])
        labels.append(label[cut])
    x = torch.from_numpy(np.stack(images)[:, None].astype(np.float32)).contiguous(memory_format=torch.channels_last)
    return x, torch.from_numpy(np.stack(labels).astype(np.int64))


def loss(logits, labels):
    """Cross-entropy plus one minus the soft Dice of the three tissues."""
    p = logits.softmax(1)[:, 1:]
    t = F.one_hot(labels, 4).permute(0, 3, 1, 2)[:, 1:].float()
    dice = (2 * (p * t).sum((0, 2, 3)) + 1) / (p.sum((0, 2, 3)) + t.sum((0, 2, 3)) + 1)
    return F.cross_entropy(logits, labels) + 1 - dice.mean()


def dice(net, images, labels):
    """Dice of classes 1..3 over all voxels of the set."""
    with torch.no_grad():
        found = torch.cat([net(torch.from_numpy(i[None, None].astype(np.float32))).argmax(1) for i in images]).numpy()
    return [2 * ((found == c) & (labels == c)).sum() / ((found == c).sum() + (labels == c).sum()) for c in (1, 2, 3)]


def export(net, out):
    torch.onnx.export(net.eval(), torch.zeros(1, 1, make_data.SIDE, make_data.SIDE), out, opset_version=17, dynamo=False,
                      input_names=["image"], output_names=["logits"], dynamic_axes={"image": {0: "N"}, "logits": {0: "N"}},
                      do_constant_folding=False, training=torch.onnx.TrainingMode.EVAL)   # EVAL: BatchNorm stays a node


def main():
    ask = argparse.ArgumentParser()
    ask.add_argument("data")
    ask.add_argument("out")
    ask.add_argument("--net", default="separable", choices=["separable", "plain"])
    ask.add_argument("--act", default="relu", choices=list(ACT))
    ask.add_argument("--steps", type=int, default=1300)
    ask.add_argument("--seed", type=int, default=0)
    told = ask.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(told.seed)
    slices = pool(make_data.load_maps(), told.seed)
    net = build(told.net, told.act).to(memory_format=torch.channels_last)
    optimiser = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9, nesterov=True, weight_decay=1e-4)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, 0.1, total_steps=told.steps)
    saved, start, began = told.out + ".pt", 0, time.time()
    if os.path.exists(saved):
        state = torch.load(saved)
        start = state["step"]
        for part, name in ((net, "net"), (optimiser, "optimiser"), (schedule, "schedule")):
            part.load_state_dict(state[name])
    running = 0.0
    for step in range(start, told.steps):
        x, y = batch(slices, np.random.default_rng([told.seed, step]))     # own generator per step: a resumed run draws the same
        with torch.autocast("cpu", torch.bfloat16):
            value = loss(net.train()(x).float(), y)
        optimiser.zero_grad()
        value.backward()
        optimiser.step()
        schedule.step()
        running = 0.98 * running + 0.02 * value.item() if step > start else value.item()
        if (step + 1) % 50 == 0:
            print(f"step {step + 1} loss {running:.3f} {time.time() - began:.0f} s", flush=True)
        if (step + 1) % 200 == 0:
            torch.save({"step": step + 1, "net": net.state_dict(), "optimiser": optimiser.state_dict(),
                        "schedule": schedule.state_dict()}, saved)
    net = net.to(memory_format=torch.contiguous_format).eval()
    export(net, told.out)
    data = np.load(told.data)
    print("Dice of fluid, grey, white:", [round(float(d), 4) for d in dice(net, data["images"], data["labels"])])


if __name__ == "__main__":
    main()
