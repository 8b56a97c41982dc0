"""MobileNetV2 at 224 with random weights, exported by torch: a network for speed measurements only, it recognises nothing."""

from __future__ import annotations

import io
import warnings

import onnx
import torch
from torch import nn

# expansion, channels, repeats, stride. Source: Sandler et al. 2018 (arXiv 1801.04381), table 2
BLOCKS = ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1))


def conv(i: int, o: int, size: int, stride: int = 1, groups: int = 1, act: bool = True) -> list[nn.Module]:
    layers: list[nn.Module] = [nn.Conv2d(i, o, size, stride, size // 2, groups=groups, bias=False), nn.BatchNorm2d(o)]
    return [*layers, nn.ReLU6()] if act else layers


class Block(nn.Module):
    def __init__(self, i: int, o: int, expansion: int, stride: int) -> None:
        super().__init__()
        wide = i * expansion
        grow = conv(i, wide, 1) if expansion != 1 else []
        self.body = nn.Sequential(*grow, *conv(wide, wide, 3, stride, wide), *conv(wide, o, 1, act=False))
        self.add = stride == 1 and i == o

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.body(x) if self.add else self.body(x)


def mobilenet_v2(seed: int = 0) -> onnx.ModelProto:
    """`image` [N, 3, 224, 224] -> `logits` [N, 1000], opset 17, BatchNorm folded by the exporter."""
    torch.manual_seed(seed)
    layers, width = conv(3, 32, 3, 2), 32
    for expansion, channels, repeats, stride in BLOCKS:
        for n in range(repeats):
            layers.append(Block(width, channels, expansion, stride if n == 0 else 1))
            width = channels
    net = nn.Sequential(*layers, *conv(width, 1280, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(1280, 1000)).eval()
    buffer = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(net, torch.zeros(1, 3, 224, 224), buffer, input_names=["image"], output_names=["logits"], opset_version=17, dynamo=False,
                          dynamic_axes={"image": {0: "N"}, "logits": {0: "N"}})
    return onnx.load_model_from_string(buffer.getvalue())
