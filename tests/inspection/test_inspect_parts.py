"""Padding, input sizes, layouts, on-chip memory, fusion and rewrites of an inspection, against references."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from models import Array, model, node
from onnx import helper

from qbench import targets
from qbench.cost import CostTable
from qbench.cost.fits import fits
from qbench.cost.npu import NpuModel
from qbench.cost.residency import residency
from qbench.graph import load_network
from qbench.inspection.cures import CURES, MEANING
from qbench.inspection.record import OnTarget
from qbench.inspection.sizes import neighbours
from qbench.network import Precision
from qbench.report import inspect_text
from qbench.workbench.inspecting import inspect_model

RNG = np.random.default_rng(0)


def noise(*shape: int) -> Array:
    return RNG.normal(0, 0.1, shape).astype(np.float32)


def stem(channels: int = 16, size: int = 64, head: bool = True, flat: bool = False) -> onnx.ModelProto:
    """Conv + BN + Relu, Conv + Relu, then a pooled classifier, or a flattened one that takes one input size only."""
    w = {"w1": noise(channels, 3, 3, 3), "w2": noise(24, channels, 3, 3), "s": np.abs(noise(channels)), "b": noise(channels), "m": noise(channels),
         "v": np.abs(noise(channels)) + 1, "fc": noise(24 * (size * size if flat else 1), 10)}
    nodes = [node("Conv", ["x", "w1"], ["c1"], "conv1", pads=[1] * 4), node("BatchNormalization", ["c1", "s", "b", "m", "v"], ["n1"], "bn"),
             node("Relu", ["n1"], ["r1"], "relu1"), node("Conv", ["r1", "w2"], ["c2"], "conv2", pads=[1] * 4), node("Relu", ["c2"], ["r2"], "relu2")]
    if not head:
        return model(nodes, {"x": [1, 3, size, size]}, {"r2": None}, w)
    pool = [] if flat else [node("GlobalAveragePool", ["r2"], ["g"], "gap")]
    nodes += [*pool, node("Flatten", ["r2" if flat else "g"], ["f"], "flatten"), node("MatMul", ["f", "fc"], ["y"], "fc")]
    return model(nodes, {"x": [1, 3, size, size]}, {"y": [1, 10]}, w)


def inspected(folder: Path, proto: onnx.ModelProto, target: str = "rk3588", **options: str) -> OnTarget:
    path = folder / "m.onnx"
    onnx.save(proto, path)
    found = inspect_model(path, [target], **options)[0].found   # type: ignore[arg-type]
    assert found is not None
    return found


def test_other_input_sizes_are_priced_as_if_the_model_had_been_exported_at_them(tmp_path: Path) -> None:
    found = inspected(tmp_path, stem()).sizes
    assert found.input == "x" and not found.why_not and len(found.trials) == 6          # 64 - 64 and 64 - 32 less what is under 32
    chip = targets.load("rk3588")
    for t in found.trials:
        table = CostTable.build(load_network(ir.serde.deserialize_model(stem(size=t.height))).network, chip)
        codes = table.uniform(Precision.INT8)
        assert t.ms == pytest.approx(table.price(codes[None], chip.operating_points[-1].name)[0].latency_ms)
        assert t.ns_per_pixel == pytest.approx(t.ms * 1e6 / (t.height * t.width))
    assert [t.height for t in found.trials if t.given] == [64]
    assert found.best is min(found.trials, key=lambda t: t.ns_per_pixel)


def test_a_network_with_one_size_baked_in_says_where(tmp_path: Path) -> None:
    found = inspected(tmp_path, stem(size=32, flat=True)).sizes
    assert [t.given for t in found.trials] == [True]
    assert "not fully convolutional" in found.why_not and "MatMul 'fc'" in found.why_not


def test_a_resize_to_numbers_is_not_fully_convolutional() -> None:
    nodes = [node("Conv", ["x", "w"], ["c"], "conv"), node("Resize", ["c", "", "", "to"], ["y"], "up")]
    proto = model(nodes, {"x": [1, 3, 32, 32]}, {"y": [1, 4, 64, 64]}, {"w": noise(4, 3, 3, 3), "to": np.array([1, 4, 64, 64])})
    found = neighbours(load_network(ir.serde.deserialize_model(proto)))
    assert len(found.networks) == 1 and "Resize 'up' goes to a fixed size" in found.why_not


def test_utilisation_is_that_of_the_cost_table_and_the_worst_come_first(tmp_path: Path) -> None:
    proto = stem(channels=20)
    found = inspected(tmp_path, proto).padding
    table = CostTable.build(load_network(ir.serde.deserialize_model(proto)).network, targets.load("rk3588"))
    rows = [r for r in table.kernel_table(table.uniform(Precision.INT8), "1000MHz") if r.macs]
    assert found.utilisation == pytest.approx(sum(r.macs for r in rows) / sum(r.macs / r.utilisation for r in rows))
    wasted = {r.name: r.macs / r.utilisation - r.macs for r in rows}
    assert [u.kernel for u in found.worst] == sorted(wasted, key=lambda k: -wasted[k])
    assert found.kernels == len(rows)
    better = {u.kernel: u.better for u in found.worst}
    assert "24 output channels are computed as 32" in better["conv2"] or better["conv2"] == ""


def test_fusion_counts_and_what_vanishes(tmp_path: Path) -> None:
    proto = stem()
    proto.graph.node.extend([node("Relu", ["c1"], ["nowhere"], "dead"), helper.make_node("Constant", [], ["k"], value=onnx.numpy_helper.from_array(noise(1), "k")),
                             node("Abs", ["k"], ["k2"], "fixed"), node("Identity", ["c1"], ["same"], "same"), node("Add", ["same", "k2"], ["z"], "add")])
    proto.graph.output.append(onnx.ValueInfoProto(name="z"))
    counts = inspected(tmp_path, proto).graph
    assert counts.before == 12                                   # the Constant is a weight
    assert counts.gone["dead: no output depends on it"] == 1
    assert counts.gone["computes with constants only"] == 1
    assert counts.gone["passes its input on"] == 1
    assert counts.fused["Conv+Relu"] >= 1 and counts.kernels < counts.before
    assert counts.fewer == pytest.approx(1 - counts.kernels / counts.before)


def test_a_folded_batch_normalisation_is_counted(tmp_path: Path) -> None:
    counts = inspected(tmp_path, stem()).graph
    assert counts.gone == {"BatchNormalization folded into weights": 1}
    assert counts.before == counts.after + 1 and counts.fused == {"Conv+Relu": 2}


@pytest.mark.parametrize("target", ["rk3588", "hexagon"])
def test_layout_conversions_are_those_that_the_model_charges(tmp_path: Path, target: str) -> None:
    nodes = [node("Conv", ["x", "w"], ["c"], "conv"), node("Reshape", ["c", "s"], ["r"], "split"), node("Transpose", ["r"], ["t"], "swap", perm=[0, 2, 1, 3]), node("Relu", ["t"], ["y"], "relu")]
    proto = model(nodes, {"x": [1, 3, 32, 32]}, {"y": None}, {"w": noise(12, 3, 1, 1), "s": np.array([1, 12, 32, 32])})
    proto.graph.initializer[1].CopyFrom(onnx.numpy_helper.from_array(np.array([1, 3, 4, 1024]), "s"))
    found = inspected(tmp_path, proto, target).layouts
    chip = targets.load(target)
    table = CostTable.build(load_network(ir.serde.deserialize_model(proto)).network, chip)
    precision = chip.available()[0]
    assert isinstance(table.model, NpuModel)
    moved = {k.name: table.model.work(k, table.network, precision)[1].layout_bytes for k in table.network.kernels}
    assert {c.tensor: c.bytes for c in found.conversions if c.where == "inside"} == {k: int(b) for k, b in moved.items() if b}
    assert {c.tensor for c in found.conversions if c.where != "inside"} == {"x", "y"}
    assert all(c.avoid for c in found.conversions)


def test_layouts_and_padding_of_a_microcontroller_say_why_there_are_none(tmp_path: Path) -> None:
    found = inspected(tmp_path, stem(size=32), "stm32h7")
    assert found.padding.utilisation is None and "no compute array" in found.padding.note
    assert not found.layouts.conversions and found.layouts.note
    assert not found.onchip.states


@pytest.mark.parametrize("target", ["rk3588", "ane"])
def test_memory_counts_the_kernels_as_the_cost_model_tiles_them(tmp_path: Path, target: str) -> None:
    proto = stem()
    found = inspected(tmp_path, proto, target).onchip
    table = CostTable.build(load_network(ir.serde.deserialize_model(proto)).network, targets.load(target))
    precision = table.available[0]
    states = Counter(residency(k, table.network, precision, table.model) for k in table.network.kernels)
    assert found.states == {s: n for s, n in states.items() if s}
    assert {w.state for w in found.worst} <= {"banded", "streamed"}
    whole = fits(table.network, table.target, precision)
    assert (found.memory_bytes, found.largest_batch, found.needed_bytes) == (whole.memory_bytes, whole.batch, whole.needed_bytes)


def test_rewrites_are_named_for_what_leaves_the_npu_and_none_is_applied(tmp_path: Path) -> None:
    nodes = [node("Conv", ["x", "w"], ["c"], "conv"), node("Resize", ["c", "", "s"], ["u"], "up", mode="cubic"), node("Log", ["u"], ["y"], "log")]
    proto = model(nodes, {"x": [1, 3, 32, 32]}, {"y": None}, {"w": noise(4, 3, 3, 3), "s": np.array([1, 1, 2, 2], np.float32)})
    offers = inspected(tmp_path, proto).rewrites
    assert Counter(o.op for o in offers)["Conv"] == 0 and not any(o.applied for o in offers)
    cubic = next(o for o in offers if o.op == "Resize")
    assert cubic.exactness == "C" and cubic.meaning == MEANING["C"] and cubic.nodes == ("up",) and cubic.placement == "refused"
    assert [o.becomes for o in offers if o.op == "Log"] == ["no rewrite is known"]


def test_every_cure_has_a_class() -> None:
    assert {c.exactness for c in CURES} == set(MEANING)
    assert all(c.ops and c.becomes for c in CURES)


def test_a_node_is_judged_at_the_precision_that_it_runs_at(tmp_path: Path) -> None:
    """Source: rknn-toolkit2 2.5.0 runs Sqrt on the NPU in FP16 and on the CPU in INT8. A plan of INT8 leaves it in float, and so does the price."""
    proto = model([node("Conv", ["x", "w"], ["c"], "conv"), node("Sqrt", ["c"], ["y"], "sqrt")], {"x": [1, 3, 32, 32]}, {"y": None}, {"w": noise(4, 3, 3, 3)})
    of = {p: {o.op: o for o in inspected(tmp_path, proto, precision=p).operators}["Sqrt"] for p in ("int8", "fp16")}
    assert of["int8"].placements == of["fp16"].placements == {"NPU": 1}
    assert of["int8"].at == of["fp16"].at == {"int8": "CPU", "int16": "CPU", "fp16": "NPU"}


def test_an_opset_that_the_toolkit_refused_is_remarked(tmp_path: Path) -> None:
    proto = stem()
    proto.opset_import[0].version = 20
    assert "opset 20" in inspected(tmp_path, proto).remarks[0]
    assert not inspected(tmp_path, proto, "hexagon").remarks


def turned_back() -> onnx.ModelProto:
    """As converters from NHWC write it: a Transpose behind each layer, undone in front of the next."""
    there, back = {"perm": [0, 2, 3, 1]}, {"perm": [0, 3, 1, 2]}
    nodes = [node("Conv", ["x", "w"], ["a"], "conv1"), node("Relu", ["a"], ["r"], "relu"), node("Transpose", ["r"], ["t"], "there", **there),
             node("Transpose", ["t"], ["u"], "back", **back), node("Conv", ["u", "v"], ["y"], "conv2")]
    return model(nodes, {"x": [1, 3, 64, 64]}, {"y": None}, {"w": noise(40, 3, 3, 3), "v": noise(8, 40, 3, 3)})


def test_nodes_that_undo_one_another_are_offered_with_the_price_without_them(tmp_path: Path) -> None:
    found = inspected(tmp_path, turned_back())
    offer = next(o for o in found.rewrites if o.becomes == "nothing")
    assert offer.op == "Transpose" and set(offer.nodes) == {"there", "back"} and offer.exactness == "E" and "drop-idle" in offer.note
    nodes = [n for n in turned_back().graph.node if n.op_type != "Transpose"]
    nodes[2].input[0] = "r"
    without = inspected(tmp_path, model(nodes, {"x": [1, 3, 64, 64]}, {"y": None}, {"w": noise(40, 3, 3, 3), "v": noise(8, 40, 3, 3)}))
    assert f"{without.latency_ms:.3g} ms in place of {found.latency_ms:.3g} ms" in offer.note and without.latency_ms < found.latency_ms
    assert not without.rewrites


def test_a_network_that_the_toolkit_was_stopped_on_is_remarked_and_cures_are_for_its_axes(tmp_path: Path) -> None:
    """Source: rknn-toolkit2 2.5.0 on mc3_18 (kernels 1 frame deep) above 14 GB; r3d_18, all kernels 3 deep, is built."""
    def video(depth: int) -> OnTarget:
        nodes = [node("Conv", ["x", "w"], ["y"], "conv", pads=[depth // 2, 1, 1] * 2)]
        return inspected(tmp_path, model(nodes, {"x": [1, 3, 8, 16, 16]}, {"y": None}, {"w": noise(4, 3, depth, 3, 3)}))
    assert any("1 frame deep (conv)" in r for r in video(1).remarks) and not video(3).remarks
    assert {o.becomes for o in video(3).rewrites} == {"sum of 2-D convolutions, for 3-D"}


def test_why_another_precision_is_refused_is_told(tmp_path: Path) -> None:
    """Source: sequencer2d_s: an LSTM is built in FP16, its INT8 build ends with clip_truncate."""
    nodes = [node("LSTM", ["x", "w", "r"], ["", "y"], "lstm", hidden_size=4)]
    found = inspected(tmp_path, model(nodes, {"x": [5, 1, 3]}, {"y": None}, {"w": noise(1, 16, 3), "r": noise(1, 16, 4)}))
    line = next(o for o in found.operators if o.op == "LSTM")
    assert line.at["int8"] == "refused" and "clip_truncate" in line.why_at["int8"]
    assert 'int8: refused (LSTM in int8: the build ends with "clip_truncate < 0"' in inspect_text.operators(found).rows[0][3]
