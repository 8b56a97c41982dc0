"""Records that describe a network the way the rest of qbench sees it: kernels, units, scale groups.

    Kernel       what a compiler launches once: an anchor operator with the ones fused into it
    ScaleGroup   tensors that must share one scale (Concat, Split, pooling, reshape: BUG case B15)
    Unit         kernels that can only change precision together: the producers of one scale group, and what is fused
                 with them. A plan gives each unit one precision.

`qbench.graph` builds these from a model; nothing here imports onnx.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from math import prod


class Precision(StrEnum):
    """Arithmetic of one unit. What INT8 and INT16 mean exactly (w8a8, w8a16, w16a16) is the target's word."""

    INT8 = "int8"
    INT16 = "int16"
    FP16 = "fp16"
    FP32 = "fp32"

    @property
    def is_float(self) -> bool:
        return self in (Precision.FP16, Precision.FP32)

    @property
    def activation_bytes(self) -> int:
        return {Precision.INT8: 1, Precision.INT16: 2, Precision.FP16: 2, Precision.FP32: 4}[self]


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """An activation tensor. `shape` is static; a dynamic batch dimension is taken as 1."""

    name: str
    shape: tuple[int, ...]
    dtype: str                      # numpy name: "float32", "int64", ...

    @property
    def elements(self) -> int:
        return prod(self.shape)


@dataclass(frozen=True, slots=True)
class Kernel:
    """One launch.

    name        name of the anchor node, unique in the network
    op          ONNX operators in order, joined by "+", e.g. "Conv+Add+Relu"
    kind        "conv", "depthwise", "deconv", "matmul", "pool", "global_pool", "resize", "concat", "split", "eltwise",
                "activation", "norm", "softmax", "reduce", "reshape" (moves no data or only moves it), "rnn", "other"
    nodes       names of the member nodes, execution order
    inputs      activation tensors read, in order (no initializers)
    outputs     activation tensors written that somebody outside the kernel reads
    inner       activation tensors between members (the Conv output before a fused Add)
    macs        multiply-accumulates, batch 1; 0 for kernels that only move or map data
    weights     elements of its weights, bias excluded
    biases      elements of its biases
    batch, in_channels, in_h, in_w, out_channels, out_h, out_w, kernel_h, kernel_w, stride_h, stride_w, dilation_h, groups
                the convolution as it runs; a MatMul of M x K x N is out_h = M, in_channels = K, out_channels = N.
                Other kinds: shape of the first input and of the first output, as far as they have four dimensions.
    activation  "", "Relu", "Clip", "Sigmoid", "Swish", ... : the function fused behind the anchor
    fp16_constant   why it cannot run in FP16 for its constants alone, "" when all fit (BUG case B22)
    interpolation   of a Resize: "" nearest, otherwise mode and coordinate transformation, e.g. "linear half_pixel"
    """

    name: str
    op: str
    kind: str
    nodes: tuple[str, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    inner: tuple[str, ...] = ()
    macs: int = 0
    weights: int = 0
    biases: int = 0
    batch: int = 1
    in_channels: int = 1
    in_h: int = 1
    in_w: int = 1
    out_channels: int = 1
    out_h: int = 1
    out_w: int = 1
    kernel_h: int = 1
    kernel_w: int = 1
    stride_h: int = 1
    stride_w: int = 1
    dilation_h: int = 1
    groups: int = 1
    activation: str = ""
    fp16_constant: str = ""
    interpolation: str = ""


@dataclass(frozen=True, slots=True)
class ScaleGroup:
    """Activation tensors that share one scale. The first tensor names the group.

    sources   those whose values come into being here: the others hold copies, so the range is the union over `sources`
    joined    constants that a Concat or a Where puts beside them: name, smallest and largest value
    """

    tensors: tuple[str, ...]
    sources: tuple[str, ...]
    joined: tuple[tuple[str, float, float], ...] = ()

    @property
    def name(self) -> str:
        return self.tensors[0]


@dataclass(frozen=True, slots=True)
class Unit:
    """Kernels whose precision is one decision.

    name         name of its first kernel
    kernels      names of its kernels, execution order
    quantizable  False when it must stay in float; `reason` then says why (BUG case B23)
    """

    name: str
    kernels: tuple[str, ...]
    quantizable: bool = True
    reason: str = ""


@dataclass(frozen=True)
class Network:
    """A prepared model: all names unique, shapes static, BatchNorm folded, kernels fused.

    model_key    SHA-256 of the model file and its external data, hex
    tensors      every float or integer activation tensor, by name, graph inputs included
    groups       every quantizable float activation tensor occurs in exactly one group
    renamed      new node name -> name in the user's file, where the two differ
    """

    name: str
    model_key: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    tensors: Mapping[str, TensorSpec]
    kernels: tuple[Kernel, ...]
    units: tuple[Unit, ...]
    groups: tuple[ScaleGroup, ...]
    renamed: Mapping[str, str] = field(default_factory=dict)

    @cached_property
    def kernel(self) -> Mapping[str, Kernel]:
        return {k.name: k for k in self.kernels}

    @cached_property
    def unit_of_kernel(self) -> Mapping[str, str]:
        return {k: u.name for u in self.units for k in u.kernels}

    @cached_property
    def producer(self) -> Mapping[str, str]:
        """Activation tensor -> kernel that writes it; graph inputs are absent."""
        return {t: k.name for k in self.kernels for t in (*k.outputs, *k.inner)}

    @cached_property
    def consumers(self) -> Mapping[str, tuple[str, ...]]:
        """Activation tensor -> kernels that read it from outside."""
        found: dict[str, list[str]] = {}
        for k in self.kernels:
            for t in dict.fromkeys(k.inputs):
                found.setdefault(t, []).append(k.name)
        return {t: tuple(v) for t, v in found.items()}

    @cached_property
    def group_of(self) -> Mapping[str, ScaleGroup]:
        return {t: g for g in self.groups for t in g.tensors}

    @property
    def macs(self) -> int:
        return sum(k.macs for k in self.kernels)
