"""Apple Neural Engine through Core ML. Core ML never says where an operator ran: these limits are what others saw leave the engine."""

from __future__ import annotations

from qbench.placement.record import Operator, Placement
from qbench.targets.rules.lists import listed
from qbench.targets.rules.registry import Book, Case

TABLE = "ONNX Runtime CoreML MLProgram table (2026)"
SEEN = "hollance/neural-engine, unsupported layers (community, 2026)"
BOOK = Book(listed)
LARGEST_POOL, LARGEST_POOL_STRIDE, LARGEST_SCALE = 13, 2, 2


@BOOK.rule("Conv", "ConvTranspose", puts=Placement.CPU, source=TABLE)
def one_or_two_dimensions(op: Operator, case: Case) -> str | None:
    """Convolutions have one or two spatial axes: 3-D convolution does not lower to the engine."""
    spatial = len(op.shape(1)) - 2
    return f"it has {spatial} spatial axes" if spatial > 2 else None


@BOOK.rule("Conv", puts=Placement.CPU, source=SEEN)
def not_dilated(op: Operator, case: Case) -> str | None:
    """Dilated convolutions were seen to leave the engine."""
    wide = [d for d in op.ints("dilations") if d > 1]
    return f"dilations {wide}" if wide else None


@BOOK.rule("Conv", "ConvTranspose", puts=Placement.CPU, source=TABLE)
def bias_is_constant(op: Operator, case: Case) -> str | None:
    """The bias of a convolution is a constant."""
    bias = op.operand(2)
    return f"bias {bias.name!r} is computed" if bias is not None and not bias.constant else None


@BOOK.rule("Gemm", puts=Placement.CPU, source=TABLE)
def right_side_is_constant(op: Operator, case: Case) -> str | None:
    """The second input of a Gemm is a constant."""
    right = op.operand(1)
    return f"{right.name!r} is computed" if right is not None and not right.constant else None


@BOOK.rule("MaxPool", "AveragePool", puts=Placement.CPU, source=SEEN)
def small_windows(op: Operator, case: Case) -> str | None:
    """Pools with two spatial axes, a window of at most 13 and a stride of at most 2 stay on the engine."""
    kernel, strides = op.ints("kernel_shape"), op.ints("strides")
    if len(kernel) == 2 and max(kernel) <= LARGEST_POOL and max(strides, default=1) <= LARGEST_POOL_STRIDE:
        return None
    return f"window {list(kernel)}, stride {list(strides) or 1}"


@BOOK.rule("Resize", "Upsample", puts=Placement.CPU, source=SEEN)
def scale_of_two(op: Operator, case: Case) -> str | None:
    """A Resize by more than 2 was seen to leave the engine."""
    before, after = op.shape(0), op.outputs[0].shape or ()
    factors = [b / a for a, b in zip(before[2:], after[2:], strict=False) if a and b]
    return f"it scales by {max(factors):g}" if factors and max(factors) > LARGEST_SCALE else None


@BOOK.rule("Gather", puts=Placement.CPU, source=SEEN)
def no_gather(op: Operator, case: Case) -> str | None:
    """Gather was seen to leave the engine."""
    return "a Gather"
