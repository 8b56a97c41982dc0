"""How rknn-toolkit2 stores and runs transformers: tokens as pixels of one row, LayerNormalization and attention as operators of its own.

Source: feature tables of rknn-toolkit2 2.5.0 (2025), platform rk3588: deit_tiny, swin_t, and small graphs of one LayerNormalization, one
attention or one block: 16 to 400 tokens, 1 to 16 heads of 16 to 128 channels, batches of 1 to 64. The scratch of attention is approximate
(most within 10 %, heads of 24 or 36 channels up to 20 % too small, 16 tokens half); attention in windows (swin) or of several images
(mobilevit) is laid out in ways we found no rule for, and is not recognised here.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import ceil, prod

from qbench.cost.work import up
from qbench.network import Kernel, Network

NORM = "LayerNormalization"
GRAIN = 16                      # channels
LINE = 64                       # bytes
STATISTICS = 32                 # bytes a pixel and byte of a value
FLOAT_BYTES = 4
ATTENTION_BYTES = {1: 8.8, 2: 11.8}         # scratch per padded score, at one and two bytes a value
PIXELS = 4
KEYS = 32                       # keys are padded to a multiple
CORES = 3                       # that share a batch
ROW_BYTES = 153_600             # of tokens that a 16-bit projection reads at once; 159,744 are too many


@dataclass(frozen=True, slots=True)
class Attention:
    """One product of queries, keys and values.

    kernels   that the toolkit does at once: from behind the projections to the last Reshape
    roots     tensors of queries, keys, values as the projections leave them; one tensor where one projection makes all three
    parted    that projection is done as three: where a Split, not Gathers, takes it apart
    output    tensor that the next layer reads
    heads, tokens, channels   of a head
    """

    kernels: frozenset[str]
    roots: tuple[str, ...]
    parted: bool
    output: str
    heads: int
    tokens: int
    channels: int

    def scratch_bytes(self, width: int) -> int:
        """Bytes beside the operands; the same for any number of heads."""
        return int(up(ATTENTION_BYTES[min(width, 2)] * up(self.tokens, PIXELS) * up(self.tokens, KEYS), LINE))


def norm_scratch(batch: int, tokens: int, channels: int, width: int) -> int:
    """Bytes that a LayerNormalization takes beside its operands: 32-bit values and statistics of the images it does at a time."""
    statistics = STATISTICS * width
    at_once = max(n for n in range(1, CORES + 1) if batch % n == 0)
    pixels = tokens if tokens == 1 else up(tokens, PIXELS)
    return int(at_once * up(pixels * (up(channels, GRAIN) * FLOAT_BYTES + statistics) + statistics, LINE))


def projects(k: Kernel, network: Network) -> bool:
    """Whether `k` multiplies every token by the same weights."""
    return k.kind == "matmul" and k.weights > 0 and bool(k.outputs) and prod(network.tensors[k.outputs[0]].shape[:-1]) > 1


def channels_last(network: Network) -> frozenset[str]:
    """Tensors whose last axis is the channels: around LayerNormalization and projections, and what is added or joined to these."""
    found: set[str] = set()
    for k in network.kernels:
        if k.op == NORM or projects(k, network):
            found.update((k.inputs[0], *k.outputs))
    size = -1
    while size != len(found):
        size = len(found)
        for k in network.kernels:
            ends = [t for t in (*k.inputs, *k.outputs) if t in network.tensors]
            alike = k.kind in ("eltwise", "activation") or (k.kind in ("concat", "matmul") and k.outputs and k.outputs[0] in found)
            if alike and found.intersection(ends):
                rank = max(len(network.tensors[t].shape) for t in found.intersection(ends))
                found.update(t for t in ends if len(network.tensors[t].shape) == rank)
    return frozenset(t for t in found if t not in network.inputs and len(network.tensors[t].shape) in (2, 3, 4))


def attentions(network: Network) -> Iterator[Attention]:
    """Every attention of one image: Softmax between two products, queries, keys and values from projections."""
    for k in network.kernels:
        if k.kind == "softmax" and (found := _attention(k, network)) is not None:
            yield found


def _attention(softmax: Kernel, network: Network) -> Attention | None:
    inside = {softmax.name}

    def back(tensor: str) -> Kernel | None:
        """The kernel that makes `tensor`, past those that only move or scale it."""
        maker = network.kernel.get(network.producer.get(tensor, ""))
        while maker is not None and (maker.kind in ("reshape", "split") or (maker.kind == "eltwise" and len(maker.inputs) == 1)):
            inside.add(maker.name)
            maker = network.kernel.get(network.producer.get(maker.inputs[0], ""))
        return maker

    def ahead(tensor: str) -> tuple[str, Kernel | None]:
        """The tensor that holds the same values where the first kernel that computes reads it, and that kernel."""
        while True:
            readers = network.consumers.get(tensor, ())
            reader = network.kernel[readers[0]] if len(readers) == 1 else None
            if reader is None or reader.kind != "reshape" or tensor in network.outputs:
                return tensor, reader
            inside.add(reader.name)
            tensor = reader.outputs[0]

    scores = back(softmax.inputs[0])
    product = ahead(softmax.outputs[0])[1]
    if scores is None or product is None or any(p.kind != "matmul" or p.weights or len(p.inputs) != 2 for p in (scores, product)):
        return None
    inside |= {scores.name, product.name}
    made = [back(scores.inputs[0]), back(scores.inputs[1]), back(product.inputs[1])]
    roots = tuple(dict.fromkeys(m.outputs[0] for m in made if m is not None and projects(m, network)))
    output = ahead(product.outputs[0])[0]
    shape = network.tensors[product.outputs[0]].shape
    whole = all(set(network.consumers.get(t, ())) <= inside for n in inside for t in network.kernel[n].outputs if t != output)
    if len(roots) not in (1, 3) or None in made or not whole or len(shape) != 4 or shape[0] != 1:
        return None
    parted = any(network.kernel[n].kind == "split" for n in inside)
    return Attention(frozenset(inside), roots, parted, output, shape[1], shape[2], shape[3])


def same_order(before: tuple[int, ...], after: tuple[int, ...]) -> bool:
    """Whether a Transpose between these shapes moves nothing."""
    return [n for n in before if n > 1] == [n for n in after if n > 1]



def row_pieces(tokens: int, channels: int, width: int) -> int:
    """Views of its channels that a projection is cut into where all tokens of 16 bits are too many for the chip's buffer."""
    return ceil(up(tokens, PIXELS) * channels * width / ROW_BYTES) if width > 1 else 1
