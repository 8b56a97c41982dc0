"""Whether new mask constants leave the float network as it was, looked at on samples: some masks are computed from the input."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import onnx_ir as ir

from qbench.corrections.anchors import Array
from qbench.corrections.mask import UNUSABLE_SPAN
from qbench.corrections.parts import node_named
from qbench.evaluation import extract, loaded
from qbench.graph import PreparedModel
from qbench.graph.attributes import whole

SAME = 1e-7
"""A Softmax output may change by that much: the rounding of float32."""


def changed(before: PreparedModel, after: PreparedModel, names: Iterable[str], samples: Sequence[dict[str, Array]], *, rows: str = "exact",
            threads: int | None = None) -> dict[str, str]:
    """Softmax -> how its output changes from one model to the other, for those where it does.

    names   Softmax nodes to look at
    rows    "any": rows that are masked entirely do not count
    """
    nodes = {n: node_named(before.model, n) for n in names}
    if not nodes:
        return {}
    worst = dict.fromkeys(nodes, 0.0)
    outputs = [str(n.outputs[0].name) for n in nodes.values()]
    inputs = [_input(n) for n in nodes.values()]
    one = extract(before.model, before.network.inputs, list(dict.fromkeys([*outputs, *inputs])))
    two = extract(after.model, after.network.inputs, list(dict.fromkeys(outputs)))
    assert one is not None and two is not None, "every tensor depends on the inputs alone"
    with loaded(one, threads, False) as old, loaded(two, threads, False) as new:
        for feeds in samples:
            was, now = old.run(feeds), new.run(feeds)
            for name, node in nodes.items():
                made = str(node.outputs[0].name)
                pair = (was[made], now[made]) if node.op_type == "Softmax" else (np.exp(was[made]), np.exp(now[made]))
                worst[name] = max(worst[name], _difference(*pair, was[_input(node)], whole(node, "axis", -1), rows))
    return {n: f"float's output changes by {w:.2g} on the calibration data: some row is masked entirely" for n, w in worst.items() if w > SAME}


def _input(node: ir.Node) -> str:
    value = node.inputs[0]
    assert value is not None
    return str(value.name)


def _difference(was: Array, now: Array, logits: Array, axis: int, rows: str) -> float:
    """Largest change of a probability; infinity where one of the two is not finite and the other is."""
    if rows == "any":
        seen = np.broadcast_to(logits.max(axis=axis, keepdims=True) > -UNUSABLE_SPAN, was.shape)
        was, now = was[seen], now[seen]
    if not was.size:
        return 0.0
    if (np.isfinite(was) != np.isfinite(now)).any():
        return np.inf
    return float(np.nan_to_num(np.abs(was.astype(np.float64) - now), nan=0.0).max())
