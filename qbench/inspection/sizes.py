"""Other input sizes near the given one, each priced: which the target prefers. Only where the network takes any size."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from math import prod

import onnx_ir as ir

from qbench.cost import CostTable
from qbench.errors import ModelError
from qbench.graph import PreparedModel, specialised
from qbench.graph.attributes import whole
from qbench.graph.kernels import build_network
from qbench.graph.values import constant, held, sizes
from qbench.network import Network, Precision
from qbench.target import OperatingPoint, Target

STEPS = (32, -32, 64, -64, 16, -16)
FINE = 16
"""Tried only where a coarser step goes together: most networks halve their maps five times."""
LEAST = 32
IMAGE_CHANNELS = 4


@dataclass(frozen=True, slots=True)
class Trial:
    """One input size. ns_per_pixel   of the input image; utilisation   of the compute array, None where the model knows none"""

    height: int
    width: int
    ms: float
    ns_per_pixel: float
    utilisation: float | None
    given: bool


@dataclass(frozen=True, slots=True)
class Sizes:
    """input    the image that was varied
    why_not  why no size but the given one was tried, "" where some were
    """

    input: str
    trials: tuple[Trial, ...]
    why_not: str = ""

    @property
    def best(self) -> Trial | None:
        return min(self.trials, key=lambda t: t.ns_per_pixel, default=None)


def image_of(network: Network) -> tuple[str, bool]:
    """The only image among the inputs, "" when there is none, and whether its channels come last."""
    images = [t for t in network.inputs if len(network.tensors[t].shape) == 4]
    if len(images) != 1:
        return "", False
    shape = network.tensors[images[0]].shape
    return images[0], shape[3] <= IMAGE_CHANNELS < shape[1]


def resized(prepared: PreparedModel, image: str, last: bool, height: int, width: int) -> tuple[Network | None, str]:
    """The network at another input size, or None and why the graph does not go together there."""
    model = prepared.model.clone()
    shapes = {t: prepared.network.tensors[t].shape for t in prepared.network.inputs}
    n, *_ = shapes[image]
    shapes[image] = (n, height, width, shapes[image][3]) if last else (n, shapes[image][1], height, width)
    for value in model.graph.inputs:
        value.shape = ir.Shape(shapes[str(value.name)])
    for node in model.graph.all_nodes():
        for value in node.outputs:
            value.shape = None
    told = logging.getLogger("onnx_ir")                      # shape inference logs where a size does not fit: that is what is asked here
    level = told.level
    told.setLevel(logging.CRITICAL)
    try:
        twin = specialised(replace(prepared, model=model), shapes)
        fault = misfit(twin.graph)
        return (None, fault) if fault else (build_network(twin, prepared.network.name, prepared.network.model_key, {}), "")
    except ModelError as error:
        return None, str(error)
    finally:
        told.setLevel(level)


def misfit(graph: ir.Graph) -> str:
    """The first node whose operands do not go together, "" when all do: what was baked in for one input size."""
    for node in graph:
        a, out = (node.inputs[0] if node.inputs else None), sizes(node.outputs[0]) if node.outputs else ()
        if a is None:
            continue
        op, left = node.op_type, sizes(a)
        right = sizes(node.inputs[1]) if len(node.inputs) > 1 else ()
        where = f"{op} {node.name!r}"
        if op in ("Reshape", "Flatten") and prod(left) != prod(out):
            return f"{where} is written for {list(out)}, which {list(left)} does not fill"
        if op == "Gemm" and left and right and left[0 if whole(node, "transA", 0) else -1] != right[1 if whole(node, "transB", 0) else 0]:
            return f"{where} takes vectors of {right[1 if whole(node, 'transB', 0) else 0]}, and gets {left[-1]}"
        if op == "MatMul" and len(left) > 1 and len(right) > 1 and left[-1] != right[-2]:
            return f"{where} multiplies {list(left)} by {list(right)}"
        if op in ("Add", "Sub", "Mul", "Div") and left and right and any(
                x != y and 1 not in (x, y) for x, y in zip(reversed(left), reversed(right), strict=False)):
            return f"{where} joins {list(left)} and {list(right)}"
        if op == "Concat" and len({_without(sizes(v), _axis(node)) for v in node.inputs}) > 1:
            return f"{where} joins maps of different size"
    return ""


def _axis(node: ir.Node) -> int:
    return node.attributes["axis"].as_int()


def _without(shape: tuple[int, ...], axis: int) -> tuple[int, ...]:
    axis %= max(1, len(shape))
    return (*shape[:axis], *shape[axis + 1:])


def fixed_sizes(graph: ir.Graph) -> str:
    """The first Resize to a size in numbers: it undoes whatever the input brings. "" when there is none."""
    for node in graph:
        if node.op_type == "Resize" and len(node.inputs) > 3 and node.inputs[3] is not None and constant(node.inputs[3]) and held(node.inputs[2]) is None:
            return f"Resize {node.name!r} goes to a fixed size: export it with a scale instead"
    return ""


@dataclass(frozen=True)
class Neighbours:
    """The network at input sizes around the given one. networks   (height, width) -> network, the given one included"""

    image: str
    given: tuple[int, int]
    networks: Mapping[tuple[int, int], Network]
    why_not: str = ""


def neighbours(prepared: PreparedModel) -> Neighbours:
    """The given size and those 16 to 64 pixels away in both directions, as far as the graph goes together there."""
    image, last = image_of(prepared.network)
    if not image:
        return Neighbours("", (0, 0), {}, "no input is the one image [N, C, H, W] that could be varied")
    shape = prepared.network.tensors[image].shape
    height, width = shape[1:3] if last else shape[2:]
    found = {(height, width): prepared.network}
    if why := fixed_sizes(prepared.model.graph):
        return Neighbours(image, (height, width), found, f"not fully convolutional: {why}")
    faults = {}
    for h, w in _near(height, width):
        if abs(h - height) <= FINE and len(found) == 1:
            break
        network, fault = resized(prepared, image, last, h, w)
        if network is None:
            faults[h, w] = fault
        else:
            found[h, w] = network
    if not faults:
        return Neighbours(image, (height, width), found)
    (h, w), fault = next(iter(faults.items()))
    what = "not fully convolutional" if len(found) == 1 else f"{len(faults)} of {len(faults) + len(found) - 1} other sizes do not go together"
    return Neighbours(image, (height, width), found, f"{what}: at {h} x {w}, {fault}")


def input_sizes(around: Neighbours, target: Target, toolkit: str, precision: Precision, point: OperatingPoint) -> Sizes:
    """Each size priced at one precision throughout."""
    trials = [_priced(n, target, toolkit, precision, point, h, w, (h, w) == around.given) for (h, w), n in sorted(around.networks.items())]
    return Sizes(around.image, tuple(trials), around.why_not)


def _near(height: int, width: int) -> Iterator[tuple[int, int]]:
    for step in STEPS:
        if min(height, width) + step >= LEAST:
            yield height + step, width + step


def _priced(network: Network, target: Target, toolkit: str, precision: Precision, point: OperatingPoint, height: int, width: int, given: bool) -> Trial:
    table = CostTable.build(network, replace(target, operating_points=(point,)), toolkit)
    codes = table.uniform(precision)
    ms = table.price(codes[None], point.name)[0].latency_ms
    busy = [r for r in table.kernel_table(codes, point.name) if r.macs and r.utilisation > 0]
    used = sum(r.macs for r in busy) / sum(r.macs / r.utilisation for r in busy) if busy and target.cost_model == "npu" else None
    return Trial(height, width, ms, ms * 1e6 / (height * width), used, given)
