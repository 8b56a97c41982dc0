"""Whether a kernel's operands stay in on-chip memory: read off the counts that the latency model tiles by, decided nowhere else."""

from __future__ import annotations

from qbench.cost.kernel import CostModel
from qbench.cost.lowering import lowered
from qbench.cost.npu import NpuModel
from qbench.cost.work import input_banks, stored_weight_bytes, weight_banks
from qbench.network import Kernel, Network, Precision

RESIDENT, BANDED, STREAMED, NONE = "resident", "banded", "streamed", ""


def residency(kernel: Kernel, network: Network, precision: Precision, model: CostModel) -> str:
    """How kernel `kernel` uses the on-chip memory at `precision`.

    "resident"   all its operands fit
    "streamed"   input or weights stay, the rest passes through once
    "banded"     the input comes in bands of rows, and something is read twice
    ""           the model knows no on-chip memory, or the kernel is none of the array's
    """
    if not isinstance(model, NpuModel):
        return NONE
    p = model.parameters
    if p.onchip_bytes:
        return STREAMED if model.work(kernel, network, precision)[1].spilled_bytes > 0 else RESIDENT
    if kernel.kind not in ("conv", "depthwise", "deconv"):
        return NONE
    run = lowered(kernel, precision, p).kernel
    width, weights = precision.activation_bytes, stored_weight_bytes(run, precision, p)
    need_i, need_w = input_banks(run, width, p), weight_banks(weights, p)
    if need_i + need_w <= p.buffer_banks:
        return RESIDENT
    return STREAMED if need_i <= p.buffer_banks - 1 else BANDED


def onchip_bytes(model: CostModel) -> int | None:
    """Bytes of the memory that `residency` is about; None where the model knows none."""
    if not isinstance(model, NpuModel):
        return None
    p = model.parameters
    return int(p.onchip_bytes or p.buffer_banks * p.bank_bytes)
