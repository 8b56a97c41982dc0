"""Steps at the edges of the network: layouts of input and output, the way of a picture to the chip, alignment, strides."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod

from qbench.advice.networks import without_edge_transposes
from qbench.advice.records import Answer, Consent, Inapplicable, State, Subject, Trial, Unpriced
from qbench.advice.resize import picture
from qbench.advice.setup import Cost, Setup, npu, priced, quicker
from qbench.cost.work import up

NV12_BYTES, RGB_BYTES, FLOAT_BYTES = 1.5, 3.0, 12.0
"""Of one pixel."""
IMAGE_COPIES = (NV12_BYTES + RGB_BYTES) + (RGB_BYTES + FLOAT_BYTES) + (FLOAT_BYTES + RGB_BYTES)
"""Bytes a pixel through the host: NV12 to RGB, RGB to normalised float, float to the network's 8 bits; each is read once and written once."""

ON_HOST = "on top of the predicted latency; copying speed assumed, unvalidated"


def input_layout(subject: Subject) -> Iterator[Answer]:
    """The conversion of the input into the chip's layout."""
    yield from _edge(subject, subject.setup.network.inputs, "input")


def output_layout(subject: Subject) -> Iterator[Answer]:
    yield from _edge(subject, subject.setup.network.outputs, "output")


def transposes(subject: Subject) -> Iterator[Answer]:
    """Transposes that only turn an input or an output around, e.g. of a network exported from NHWC."""
    _, names = without_edge_transposes(subject.setup.network)
    if not names:
        yield Inapplicable("no Transpose at an input or output")
        return
    yield Trial(f"export the model without {', '.join(map(repr, names))}: the host hands over, or takes, the other order of axes", Consent.EXACT,
                lambda s: s.with_network(without_edge_transposes(s.network)[0]))


def _edge(subject: Subject, tensors: Sequence[str], end: str) -> Iterator[Answer]:
    setup, model = subject.setup, npu(subject.setup)
    native = f" ({setup.target.layout.native})" if setup.target.layout.native else ""
    if model is None:
        yield Inapplicable("a CPU reads the layout that the network has")
        return
    p, word = model.parameters, "into" if end == "input" else "out of"
    if p.edge_bytes_per_s:
        after = _without_edges(setup, subject.now, tensors)
        yield Trial(f"keep the {end} in the chip's native layout{native} where the runtime lets you", Consent.EXACT, after=after, together=False, at_most=True,
                    note=f"the chip brings it {word} blocks of channels whatever layout the host uses")
        return
    shapes = [setup.network.tensors[t].shape for t in tensors]
    raw = end == "input" and all(len(s) == 4 and s[1] <= p.raw_input_channels for s in shapes)
    atom = p.atom_bytes if "NC1" in native or not p.onchip_bytes else 1.0
    moved = 0.0 if raw else sum(_converted_bytes(setup.network.tensors[t].shape, atom, _bytes_of(t, setup)) for t in tensors)
    if raw:
        yield Trial(f"nothing to gain from another {end} layout: pictures of at most {p.raw_input_channels:.0f} channels are read unpacked", Consent.EXACT,
                    after=subject.now)
    else:
        after = quicker(subject.now, moved / p.cpu_bytes_per_s)
        yield Trial(f"take the {end} in the chip's native layout{native} and convert only what is used", Consent.EXACT, after=after, together=False,
                    where=State.HOST, note=ON_HOST)


def _bytes_of(tensor: str, setup: Setup) -> int:
    """Bytes of one value, in the precision of the unit that reads the input or writes the output."""
    network = setup.network
    kernel = network.producer.get(tensor) or next(iter(network.consumers.get(tensor, ())), None)
    return setup.precision[network.unit_of_kernel[kernel]].activation_bytes if kernel else 1


def _converted_bytes(shape: Sequence[int], atom: float, value_bytes: int) -> float:
    """Bytes read and written when a tensor changes between packed channels and plain order. atom   bytes to which channels are padded"""
    plain = prod(shape) * value_bytes
    packed = plain * up(shape[1] * value_bytes, atom) / (shape[1] * value_bytes) if len(shape) == 4 else up(plain, atom)
    return packed + plain


def _without_edges(setup: Setup, now: Cost, tensors: Sequence[str]) -> Cost:
    """The cost when the kernels that touch `tensors` need no rearrangement."""
    free = priced(setup.with_constants(edge_bytes_per_s=0.0))
    ends = set(tensors)
    saved = sum(a.seconds - b.seconds for k, a, b in zip(setup.network.kernels, now.kernels, free.kernels, strict=True) if ends & {*k.inputs, *k.outputs})
    return quicker(now, saved)


def zero_copy(subject: Subject) -> Iterator[Answer]:
    """The picture's way: decoder to chip without copies on the host."""
    setup, model = subject.setup, npu(subject.setup)
    name = picture(setup.network)
    if name is None or setup.network.tensors[name].shape[1] != 3:
        yield Inapplicable("no input is a colour picture")
        return
    if model is None:
        yield Inapplicable("the CPU computes on the picture where it lies; normalise inside the network")
        return
    _, _, h, w = setup.network.tensors[name].shape
    moved = h * w * IMAGE_COPIES
    yield Trial(f"hand the picture over as 8-bit RGB, mean and scale inside the first convolution, from a buffer that decoder and chip share "
                f"(NV12 to RGB in the video block): no {moved / 1e6:.2g} MB of host copies", Consent.EXACT,
                after=quicker(subject.now, moved / model.parameters.cpu_bytes_per_s), together=False,
                where=State.HOST, note=ON_HOST)


def alignment(subject: Subject) -> Iterator[Answer]:
    layout = subject.setup.target.layout
    wants = [f"{v} {what}" for v, what in ((layout.base_align_bytes, "bytes for a buffer's start"), (layout.width_align_elements, "elements for the width"))
             if v]
    yield Unpriced(f"give the chip buffers as it wants them: {', '.join(wants) or 'no public rule'}; ask `array.ctypes.data`, never `id()`", Consent.EXACT,
                   "a copy happens in the vendor's runtime, whose rule is not public: compare `qbench measure` with and without")


def strides(subject: Subject) -> Iterator[Answer]:
    slices = [k.name for k in subject.setup.network.kernels if k.op == "Slice"]
    if not slices:
        yield Inapplicable("no Slice in the network; strides of arrays on the host do not survive the export")
        return
    cost = sum(c.seconds for c in subject.now.kernels if c.name in slices)
    yield Trial(f"build what {len(slices)} Slice operators cut ({slices[0]!r}{', ...' if len(slices) > 1 else ''}) by other means, e.g. a convolution with "
                "stride, or SpaceToDepth", Consent.RETRAIN, after=quicker(subject.now, cost), together=False,
                at_most=True, note="what takes their place costs something")
