"""Write a plan into a model as QuantizeLinear / DequantizeLinear pairs: the file that is evaluated and shipped.

Rules, for an activation tensor t with producer precision p and a consumer of precision c:
  p integer             t is followed by Q/DQ with p's scheme, once; every consumer reads the DQ
  c integer, c != p     a second pair with c's scheme, once per (t, c): the conversion that the chip makes, too
  both float            nothing is added
A tensor between an anchor and its Relu or Clip gets no pair: the range of the kernel's output says the clamp. Nor does the one
between a MatMul and the Add of its bias: the accumulator holds it. A constant that a Concat or a Where joins to computed tensors shares
their scale: it widens the range of their group (BUG case B15).
Weights of integer units are stored as integers behind a DQ; biases as int32 with scale s_x * s_w (two of them where the target has
more bits and the bias needs them), or like a weight where the target has 8 bits for them. Codes of 9 to 16 bits are stored in 16, others in 8. Below opset 21, where ONNX has no 16-bit
pairs, these live in the com.microsoft domain (BUG case B18).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import reduce

import onnx_ir as ir

from qbench.affine import SMALLEST_SCALE, Affine, Range, affine
from qbench.errors import PlanError
from qbench.graph import PreparedModel
from qbench.graph.operators import ANCHORS, JOINS
from qbench.graph.values import moves_values
from qbench.network import Precision
from qbench.plan import Granularity, Plan, check_fits
from qbench.qdq.builder import Builder
from qbench.qdq.constants import BiasAt, Constants
from qbench.qdq.edits import bias_at, edit
from qbench.qdq.opset import model_for
from qbench.qdq.tensors import clamped
from qbench.target import QuantScheme

WITH_CONSTANTS = {"Add", "Sub", "Mul", "Div", "Max", "Min"} | JOINS
"""Operators beside the anchors whose constant operands are stored as integers."""


@dataclass
class Written:
    """model    the Q/DQ model
    raw, stored activation tensor of the network -> value of the model as its kernel computes it, and as readers of the
                same precision see it (behind the Q/DQ pair); the same value where there is no pair
    widened     weights whose scale was raised so that the bias fits int32 (BUG case B08): name -> largest factor
    per_tensor  weights that could not be per channel: name -> why
    shared      weights whose output channels share scales in part: name -> why
    per_channel weights of a per-group plan that have no blocks: name -> why
    float_bias  biases of integer layers that stay in float: name -> why
    vanished    tensors, weights among them, whose values are too small for any float32 scale: name -> largest magnitude
    """

    model: ir.Model
    raw: dict[str, str] = field(default_factory=dict)
    stored: dict[str, str] = field(default_factory=dict)
    widened: dict[str, float] = field(default_factory=dict)
    per_tensor: dict[str, str] = field(default_factory=dict)
    shared: dict[str, str] = field(default_factory=dict)
    per_channel: dict[str, str] = field(default_factory=dict)
    float_bias: dict[str, str] = field(default_factory=dict)
    vanished: dict[str, float] = field(default_factory=dict)

    def remarks(self) -> Iterator[str]:
        """A line for everything that is not as the plan wants it."""
        yield from (f"weight {name}: scale widened {factor:.4g} times so that its bias fits int32" for name, factor in self.widened.items())
        yield from (f"weight {name}: one scale per tensor; {why}" for name, why in self.per_tensor.items())
        yield from (f"weight {name}: {why}" for name, why in self.shared.items())
        yield from (f"weight {name}: no scale per group; {why}" for name, why in self.per_channel.items())
        yield from (f"bias {name}: stays in float; {why}" for name, why in self.float_bias.items())
        yield from (f"tensor {name}: its values reach {most:.3g} at most, and the smallest scale of float32 is {SMALLEST_SCALE:.3g}: most or all of them become 0"
                    for name, most in self.vanished.items())


def write(prepared: PreparedModel, plan: Plan, emulate_fp16: bool = False) -> Written:
    """The Q/DQ model of `plan`.

    emulate_fp16   round weights and outputs of FP16 units to float16 (sums stay float32), to check what the chip's FP16 does;
                   the file to ship has none of it
    Raises PlanError when the plan does not fit the model, lacks a range, or would store NaN or infinity as integers.
    """
    if any(c.partition(":")[0] in ("cle", "mask") for c in plan.corrections):
        from qbench.corrections import rewritten

        prepared = rewritten(prepared, plan)
    check_fits(plan, prepared.network)
    return _Writer(prepared, plan, emulate_fp16).run()


class _Writer:
    def __init__(self, prepared: PreparedModel, plan: Plan, emulate_fp16: bool) -> None:
        self.network, self.plan = prepared.network, plan
        self.emulate = emulate_fp16
        self.builder = Builder(model_for(prepared.model, plan))
        self.graph = self.builder.graph
        edits = edit(self.builder, self.network, plan.tensors)
        self.constants = Constants(self.builder, plan, edits.deltas)
        self.nodes = {str(n.name): n for n in self.graph}
        self.values: dict[str, ir.Value] = {str(v.name): v for v in self.graph.inputs}
        self.values |= {str(v.name): v for n in self.graph for v in n.outputs}
        self.kernel_of = {n: k for k in self.network.kernels for n in k.nodes}
        self.kernel_of |= {add: self.kernel_of[product] for add, product in edits.added.items()}
        self.output_of = {name: str(n.outputs[0].name) for name, n in self.nodes.items() if n.outputs}
        self.biases = self._biases({product: add for add, product in edits.added.items()})
        self.ends: dict[str, tuple[ir.Value, ir.Value]] = {}
        self.no_pair = {t for k in self.network.kernels for t in clamped(k)}
        self.no_pair |= {self.output_of[name] for name, at in self.biases.items() if at.node is not self.nodes[name]}
        self.ranges = self._ranges()
        self.whole = reduce(Range.union, self.ranges.values()) if self.ranges else None

    def _biases(self, added: dict[str, str]) -> dict[str, BiasAt]:
        """Anchor -> where its bias sits."""
        found = {name: BiasAt(self.nodes[add], 1) for name, add in added.items()}
        for name, node in self.nodes.items():
            if node.op_type in ANCHORS and name not in found and (at := bias_at(node, self.network, self.nodes)) is not None:
                found[name] = at
        return found

    def _ranges(self) -> dict[str, Range]:
        """The plan's ranges, widened to the constants that share a scale with a group; masks that a correction made may saturate."""
        found = dict(self.plan.ranges)
        for group in self.network.groups:
            for name, low, high in group.joined if group.name in found else ():
                if f"constant:{name}" not in self.plan.tensors:
                    found[group.name] = found[group.name].union(Range(low, high))
        return found

    # -- precision of things

    def of_kernel(self, kernel: str) -> Precision:
        return self.plan.precision[self.network.unit_of_kernel[kernel]]

    def stored(self, tensor: str) -> Precision:
        """Precision in which the producer leaves `tensor`; graph inputs arrive in float."""
        maker = self.network.producer.get(tensor)
        return Precision.FP32 if maker is None else self.of_kernel(maker)

    def scheme(self, precision: Precision) -> QuantScheme:
        try:
            return self.plan.schemes[str(precision)]
        except KeyError:
            raise PlanError(f"the plan uses {precision} but holds no scheme for it") from None

    def affine_of(self, tensor: str, precision: Precision) -> Affine:
        scheme = self.scheme(precision).activation
        if self.plan.granularity is Granularity.GLOBAL and self.whole is not None:
            return affine(self.whole, scheme)
        group = self.network.group_of[tensor].name
        if group not in self.ranges:
            raise PlanError(f"the plan has no range for {group!r} (tensor {tensor!r}), which an {precision} unit needs")
        found, span = affine(self.ranges[group], scheme), self.ranges[group]
        if found.scale <= SMALLEST_SCALE and span.magnitude > 0.0:
            self.constants.remarks.vanished[group] = span.magnitude
        return found

    # -- the walk

    def run(self) -> Written:
        for tensor, spec in self.network.tensors.items():
            if spec.dtype == "float32" and tensor in self.values:
                self._tensor(tensor)
        adds = {str(at.node.name) for at in self.biases.values()}
        for name, node in self.nodes.items():
            kernel = self.kernel_of.get(name)
            if kernel is None:
                continue
            precision = self.of_kernel(kernel.name)
            if precision.is_float:
                if self.emulate and precision is Precision.FP16:
                    self.constants.halves(node)
            elif node.op_type in ANCHORS:
                self.constants.weights(node, self.scheme(precision), self.biases.get(name))
            elif node.op_type in WITH_CONSTANTS and name not in adds:
                moved = self.affine_of(self.output_of[name], precision) if node.op_type in JOINS and moves_values(node) else None
                self.constants.operands(node, self.scheme(precision).activation, moved)
        ir.passes.common.RemoveUnusedNodesPass()(self.builder.model)
        ir.passes.common.TopologicalSortPass()(self.builder.model)
        remarks = self.constants.remarks
        return Written(self.builder.model, {t: str(v.name) for t, (v, _) in self.ends.items()}, {t: str(v.name) for t, (_, v) in self.ends.items()},
                       remarks.widened, remarks.per_tensor, remarks.shared, remarks.per_channel, remarks.float_bias, remarks.vanished)

    def _tensor(self, tensor: str) -> None:
        """Insert the pairs that `tensor` needs and rewire its readers."""
        value, stored = self.values[tensor], self.stored(tensor)
        readers = list(value.uses())
        self.ends[tensor] = value, value
        if tensor in self.no_pair and not stored.is_float:
            return
        source = value
        if not stored.is_float and tensor in self.network.group_of:
            maker = value.producer()
            source = self._pair(value, tensor, stored, inside=maker is not None and moves_values(maker))
        elif self.emulate and stored is Precision.FP16:
            source = self.builder.half(value, tensor)
        self.ends[tensor] = value, source
        converted: dict[Precision, ir.Value] = {stored: source}
        for node, index in readers:
            wanted = self._wanted(node, stored)
            if wanted.is_float or tensor not in self.network.group_of:
                wanted = stored
            if wanted not in converted:
                converted[wanted] = self._pair(source, tensor, wanted)
            if converted[wanted] is not value:
                node.replace_input_with(index, converted[wanted])
        if value.is_graph_output() and source is not value:
            self._replace_output(value, source)

    def _pair(self, value: ir.Value, tensor: str, precision: Precision, inside: bool = False) -> ir.Value:
        return self.builder.pair(value, self.affine_of(tensor, precision), f"{tensor}_{precision}", inside)

    def _wanted(self, node: ir.Node, stored: Precision) -> Precision:
        kernel = self.kernel_of.get(str(node.name))
        return stored if kernel is None else self.of_kernel(kernel.name)

    def _replace_output(self, value: ir.Value, source: ir.Value) -> None:
        """The DQ takes the name of the graph output."""
        name = str(value.name)
        value.name = self.builder.free(f"{name}_float")
        source.name = name
        source.type, source.shape = value.type, value.shape
        for position, output in enumerate(self.graph.outputs):
            if output is value:
                self.graph.outputs[position] = source
