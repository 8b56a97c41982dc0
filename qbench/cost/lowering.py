"""The convolutions that the RKNN toolkit builds where the hardware cannot run the one of the network.

Source: rknn-toolkit2 2.5.0 (2025), builds of single convolutions for rk3588 and its table over whole networks (experiments/rknn_cycles.py
repeats the comparison). Left out, since no rule was found: dilated convolutions of many channels, which the toolkit cuts in several ways.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil

from qbench.cost.parameters import NpuParameters
from qbench.network import Kernel, Precision

LARGEST_STRIDE = 7                              # an even stride above it becomes a smaller one and a selection behind it
LARGEST_KERNEL = 16                             # a larger one is cut into pieces whose results are added


@dataclass(frozen=True, slots=True)
class Lowered:
    """How a convolution runs.

    kernel     the one that the array computes; its output may be finer than the network's
    pieces     that a large kernel is cut into
    apart      groups run one after the other, between a Split and a Concat
    """

    kernel: Kernel
    pieces: int = 1
    apart: bool = False

    def selects(self, original: Kernel) -> bool:
        """Whether every n-th pixel is picked from a finer output."""
        return (self.kernel.out_h, self.kernel.out_w) != (original.out_h, original.out_w)


def inner_stride(stride: int) -> int:
    """The stride that the array runs at: an even one above the largest becomes its largest divisor that fits."""
    if stride <= LARGEST_STRIDE or stride % 2:
        return stride
    return max(d for d in range(1, LARGEST_STRIDE + 1) if stride % d == 0)


def lowered(k: Kernel, precision: Precision, p: NpuParameters) -> Lowered:
    """How kernel `k` runs at `precision`.

    Groups whose input channels do not fill whole atoms are computed as one dense convolution whose weights are mostly zero; others
    run one after the other.
    """
    if k.kind not in ("conv", "depthwise"):
        return Lowered(k)
    grouped = k.groups > 1 and (k.kind == "conv" or k.out_channels != k.in_channels)
    narrow = grouped and k.in_channels // k.groups * precision.activation_bytes % p.atom_bytes != 0
    run = replace(k, kind="conv", groups=1, weights=k.weights * k.groups) if narrow else k
    step_h, step_w = inner_stride(k.stride_h), inner_stride(k.stride_w)
    if (step_h, step_w) != (k.stride_h, k.stride_w):
        run = replace(run, stride_h=step_h, stride_w=step_w, out_h=(k.out_h - 1) * k.stride_h // step_h + 1,
                      out_w=(k.out_w - 1) * k.stride_w // step_w + 1)
    return Lowered(run, ceil(k.kernel_h / LARGEST_KERNEL) * ceil(k.kernel_w / LARGEST_KERNEL), grouped and not narrow)
