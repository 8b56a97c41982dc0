"""How rknn-toolkit2 runs a convolution whose kernel, spread by its dilation, is too large for one pass.

Source: feature tables of rknn-toolkit2 2.5.0 (2025), platform rk3588, of 60 single convolutions: 32 to 960 channels, kernels of 3 and 5,
dilations of 1 to 36, images of 14 to 64 pixels. The number of pieces of the largest kernels is approximate; its pieces lie in the input,
so that their size changes no byte.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from qbench.network import Kernel

PIECE_BYTES = 3072              # weights of one output channel that one pass takes; more are cut along the input channels
GRAIN = 16                      # channels that a piece is a multiple of
SPREAD_BYTES = 2 ** 18          # the same limit where even GRAIN channels are more than PIECE_BYTES
LARGEST_PAD = 15                # pixels that the hardware adds; more are written by a Pad in front
FEW = 2                         # pieces up to which the toolkit cuts rather than gathers
HALF = 2                        # bytes


@dataclass(frozen=True, slots=True)
class Passes:
    """How one convolution is done.

    channels   of each piece that the input is cut into, in order; their results are added
    pad        pixels that a Pad writes around the image first
    rows, columns   whether the lines that each output reads are gathered first, so that the kernel needs no dilation along them
    views      the pieces lie in the input, whatever their number; otherwise a Split copies them
    in_half    an 8-bit convolution that runs in 16 bits
    """

    channels: tuple[int, ...]
    pad: int = 0
    rows: bool = False
    columns: bool = False
    views: bool = False
    in_half: bool = False


def pieces(channels: int, taps: int, width: int) -> tuple[int, ...]:
    """Input channels of each piece. taps   weights per input and output channel; width   bytes of one"""
    if channels * taps * width <= PIECE_BYTES:
        return (channels,)
    most = max(GRAIN, PIECE_BYTES // (taps * width) // GRAIN * GRAIN)
    n = ceil(channels / most)
    each = channels // n if channels % (n * GRAIN) == 0 else most
    return (*[each] * (n - 1), channels - each * (n - 1))


def passes(k: Kernel, width: int) -> Passes:
    """How convolution `k` without groups is done at `width` bytes a value."""
    if k.dilation_h == 1 or k.dilation_h >= max(k.in_h, k.in_w):             # only the middle weight meets the image
        taps = k.kernel_h * k.kernel_w if k.dilation_h == 1 else 1
        return Passes(pieces(k.in_channels, taps, width))
    high, wide = ((size - 1) * k.dilation_h + 1 for size in (k.kernel_h, k.kernel_w))
    if GRAIN * high * wide * width > PIECE_BYTES:
        return _spread(k, high, wide, width)
    rows = GRAIN * high * wide * HALF <= PIECE_BYTES and len(pieces(k.in_channels, high * wide, 1)) > FEW
    columns = rows and len(pieces(k.in_channels, k.kernel_h * wide, 1)) > FEW
    taps = (k.kernel_h if rows else high) * (k.kernel_w if columns else wide)
    return Passes(pieces(k.in_channels, taps, width), rows=rows, columns=columns)


def _spread(k: Kernel, high: int, wide: int, width: int) -> Passes:
    pad = max(0, ceil(((k.out_h - 1) * k.stride_h + high - k.in_h) / 2))
    pad = pad if pad > LARGEST_PAD else 0
    size = k.in_channels * high * wide
    if size * width <= SPREAD_BYTES:
        return Passes((k.in_channels,), pad)
    n = ceil(size * HALF / SPREAD_BYTES)
    each = ceil(k.in_channels / n)
    return Passes((*[each] * (n - 1), k.in_channels - each * (n - 1)), pad, views=True, in_half=width < HALF)
