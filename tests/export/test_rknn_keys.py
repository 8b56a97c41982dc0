"""Which key of the toolkit's hybrid configuration is which tensor: by name, by log, by the values that both saw."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx_ir as ir
from export_cases import job

from qbench import qdq
from qbench.runtime import Session
from qbench.targets.exporters.rknn_keys import Range, keyed, observed
from qbench.targets.exporters.rknn_model import Ranged, ranged_form

MINE: dict[str, Range] = {"a": (-1.0, 2.0), "b": (0.5, 3.0), "c": (-4.0, 4.0), "d": (-4.0, 4.0)}


def ranged(ranges: dict[str, Range], layers: dict[str, str] | None = None) -> Ranged:
    empty = ir.Model(ir.Graph([], [], nodes=[], opset_imports={"": 17}), ir_version=8)
    return Ranged(empty, {}, ranges, {"w": ([-1.0], [1.0]), "table": ([-1.0], [1.0])}, layers or {}, {})


def test_a_name_is_enough_and_only_weights_of_layers_take_a_range() -> None:
    found = keyed(ranged({"a": (-1.1, 2.1)}), {"a_int8": [-9.0, 9.0]}, MINE, {}, {"w"})
    assert found.ranges == {"w": ([-1.0], [1.0]), "a_int8": ([-1.1], [2.1])} and found.aliases == {"a": ("a_int8",)} and found.unknown == ()


def test_reshaped_twins_are_known_by_their_names_where_the_values_agree() -> None:
    """c and d have the same extremes and ranges of their own, so that values alone tell nothing."""
    seen = {"c-rs": [-4.0, 4.0], "d_rs": [-4.0, 4.0], "a-rs": [-9.0, 9.0]}
    found = keyed(ranged({"a": (-1.1, 2.1), "c": (-4.0, 4.5), "d": (-5.0, 4.0)}), seen, MINE, {}, ())
    assert found.ranges == {"c-rs": ([-4.0], [4.5]), "d_rs": ([-5.0], [4.0])} and found.unknown == ("a-rs",)


def test_what_the_log_says_counts_only_where_the_values_agree() -> None:
    """The optimizer swaps nodes, and the log then calls a tensor the child of another: its range must not go there."""
    seen = {"a_tp": [-1.0, 2.0], "other_tp": [-7.0, 1.0]}
    found = keyed(ranged({"a": (-1.1, 2.1)}), seen, MINE, {"a": ["other_tp", "a_tp"]}, ())
    assert set(found.ranges) == {"a_tp"} and found.unknown == ("other_tp",)


def test_values_alone_decide_where_they_are_of_one_range_of_ours() -> None:
    seen = {"b_sw": [0.0, 3.0], "x": [-4.0, 4.0]}                     # the toolkit's range holds 0
    assert keyed(ranged({"b": (0.0, 3.1)}), seen, MINE, {}, ()).ranges == {"b_sw": ([0.0], [3.1])}
    apart = keyed(ranged({"c": (-4.0, 4.5), "d": (-5.0, 4.0)}), seen, MINE, {}, ())
    assert apart.ranges == {} and apart.unknown == ("b_sw", "x")
    together = keyed(ranged({"c": (-5.0, 5.0), "d": (-5.0, 5.0)}, {"c": "int16", "d": "int16"}), seen, MINE, {}, ())
    assert together.layers == {"x": "int16"} and together.ranges == {"x": ([-5.0], [5.0])}


def test_keys_with_a_range_per_channel_are_nobodys() -> None:
    assert keyed(ranged({"a": (-1.0, 2.0)}), {"k": []}, MINE, {}, ()).unknown == ("k",)


def test_observed_ranges_are_those_of_the_float_model(tmp_path: Path) -> None:
    """Against onnxruntime with every tensor as an output."""
    made = job({"b": "int16"})
    form = ranged_form(made)
    qdq.save(form.model, tmp_path / "m.onnx")
    found = observed(tmp_path / "m.onnx", made.samples)
    assert {"x", form.names["a1"]} <= set(found)
    values = [np.asarray(s["x"]) for s in made.samples]
    assert found["x"] == (min(float(v.min()) for v in values), max(float(v.max()) for v in values))
    outputs = [Session(qdq.to_bytes(form.model), 1, simulate=True).run(s)["y"] for s in made.samples]
    assert found["y"] == (min(float(v.min()) for v in outputs), max(float(v.max()) for v in outputs))
