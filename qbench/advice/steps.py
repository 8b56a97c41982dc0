"""The tuning list: the article's twelve steps, and what else the cost model can try."""

from __future__ import annotations

from qbench.advice import clock, compiler, kernels, layout, precision, size
from qbench.advice.records import Step

STEPS = (
    Step("input-layout", "layout of the input", layout.input_layout),
    Step("needless", "nodes that do nothing", compiler.needless),
    Step("edge-transposes", "Transposes at the edges", layout.transposes),
    Step("input-size", "padding of the input size", size.input_size),
    Step("precision", "INT8", precision.int8),
    Step("w8a16", "INT8 weights, INT16 activations", precision.w8a16),
    Step("edge-precision", "first and last layers", precision.ends),
    Step("conversions", "conversions between precisions", precision.conversions),
    Step("scales", "scale per layer or channel", precision.scales),
    Step("operating-point", "fixed clock", clock.operating_point),
    Step("cores", "several cores", clock.cores),
    Step("bottleneck", "bottleneck", kernels.bottlenecks),
    Step("batch", "batch", size.batch),
    Step("resolution", "resolution", size.resolution),
    Step("output-layout", "layout of the output", layout.output_layout),
    Step("fusion", "fusion, BatchNorm folding", compiler.fusion),
    Step("zero-copy", "zero-copy input", layout.zero_copy),
    Step("activation", "operator replacement", kernels.activation),
    Step("gelu", "Gelu replaced", kernels.gelu),
    Step("channels", "channel multiples", kernels.channels),
    Step("fallback", "CPU fallback", kernels.fallback),
    Step("sram", "on-chip residency", compiler.sram),
    Step("tiling", "tile size", compiler.tiling),
    Step("overlap", "DMA beside compute", compiler.overlap),
    Step("memory-plan", "memory by lifetime", compiler.memory_plan),
    Step("strides", "strided slices", layout.strides),
    Step("alignment", "alignment of buffers", layout.alignment),
    Step("compiler-flags", "compiler flags", compiler.flags),
)
