"""A plan is the whole recipe: written, saved, loaded and written again it gives the same bytes; and the file gives back its numbers."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from models import NPU, Array, model, node, observe, plan, prepare

from qbench import qdq
from qbench.affine import Affine, Range, Scheme, affine, dequantize, quantize
from qbench.network import Precision
from qbench.packed import Packed
from qbench.plan import BIAS_GUARD, Granularity, Plan, make_plan
from qbench.runtime import Session
from qbench.target import QuantScheme

RNG = np.random.default_rng(0)
WEIGHTS = {"w0": RNG.normal(0, 0.5, (4, 3, 3, 3)).astype(np.float32), "b0": RNG.normal(0, 0.5, 4).astype(np.float32),
           "w1": RNG.normal(0, 0.5, (4, 4, 1, 1)).astype(np.float32), "w2": RNG.normal(0, 0.5, (4, 2, 2, 2)).astype(np.float32),
           "k": RNG.normal(0, 0.5, (1, 4, 1, 1)).astype(np.float32), "w3": RNG.normal(0, 0.5, (8, 5)).astype(np.float32)}


def network() -> onnx.ModelProto:
    nodes = [node("Conv", ["x", "w0", "b0"], ["a"], "conv", pads=[1, 1, 1, 1]), node("Relu", ["a"], ["r"], "relu"),
             node("Conv", ["r", "w1"], ["c"], "one"), node("Add", ["c", "k"], ["d"], "add"), node("Concat", ["r", "d"], ["e"], "cat", axis=1),
             node("MaxPool", ["e"], ["p"], "pool", kernel_shape=[2, 2], strides=[2, 2]),
             node("Split", ["p"], ["s", "t"], "split", axis=1), node("ConvTranspose", ["s", "w2"], ["u"], "up", group=2),
             node("Sigmoid", ["u"], ["z"], "sigmoid"), node("GlobalAveragePool", ["p"], ["g"], "gap"), node("Flatten", ["g"], ["f"], "flat"),
             node("MatMul", ["f", "w3"], ["y"], "fc")]
    return model(nodes, {"x": ["N", 3, 8, 8]}, {"y": None, "z": None, "t": None}, WEIGHTS)


PREPARED = prepare(network())
RANGES = observe(PREPARED, [{"x": RNG.normal(size=(4, 3, 8, 8)).astype(np.float32)}])
TWIN = prepare(network())
flags = (st.booleans(), st.booleans(), st.booleans(), st.booleans())


def quant_schemes(*bits: int) -> st.SearchStrategy[QuantScheme]:
    """Activations of one of `bits`, weights of any width."""
    activation = st.builds(Scheme, st.sampled_from(bits), *flags)
    weight = st.builds(Scheme, st.sampled_from([3, 4, 8, 10, 16]), *flags)
    return st.builds(QuantScheme, activation, weight, st.booleans(), st.sampled_from([32, 32, 16]), st.sampled_from([2, 4]))


floats = st.floats(-4, 4, width=32)


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    precision = {u.name: draw(st.sampled_from(list(Precision))) if u.quantizable else Precision.FP16 for u in PREPARED.network.units}
    ranges = {g: Range(r.low * draw(st.floats(0.3, 1.5)), r.high * draw(st.floats(0.3, 1.5))) for g, r in RANGES.items()}
    arrays: dict[str, Array] = {}
    if draw(st.booleans()):
        arrays["constant:w1"] = np.array(draw(st.lists(floats, min_size=16, max_size=16)), np.float32).reshape(4, 4, 1, 1)
    if draw(st.booleans()):
        arrays["bias:fc"] = np.array(draw(st.lists(floats, min_size=5, max_size=5)), np.float32)
    if draw(st.booleans()):
        arrays["bias:up"] = np.array(draw(st.lists(floats, min_size=4, max_size=4)), np.float32)
    if draw(st.booleans()):
        arrays["round:w0"] = np.random.default_rng(draw(st.integers(0, 9))).integers(-1, 2, (4, 3, 3, 3)).astype(np.int8)
    made = make_plan(PREPARED.network, precision, ranges, {"int8": draw(quant_schemes(4, 8)), "int16": draw(quant_schemes(10, 16))}, calibrator="minmax",
                     granularity=draw(st.sampled_from(Granularity)), corrections=draw(st.sampled_from([(), (BIAS_GUARD,), ("mask", BIAS_GUARD)])),
                     tensors={k: Packed.of(v) for k, v in arrays.items()}, notes={"conv": "a remark"})
    masked = "mask" in made.corrections and "constant:w1" in arrays          # a step that gave the network new constants is part of its key
    return replace(made, model_key=made.model_key + "+mask") if masked else made


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(made=plans())
def test_any_plan_is_rebuilt_bit_for_bit(made: Plan, tmp_path: Path) -> None:
    """Through JSON and on another reading of the model; the file passes the checker and runs, with integer kernels too."""
    first = qdq.to_bytes(qdq.write(PREPARED, made).model)
    made.save(tmp_path / "plan.json")
    loaded = Plan.load(tmp_path / "plan.json")
    assert loaded == made and loaded.key == made.key
    assert qdq.to_bytes(qdq.write(TWIN, loaded).model) == first
    onnx.checker.check_model(first, full_check=True)
    for simulate in (True, False):
        found = Session(first, 1, simulate).run({"x": np.ones((2, 3, 8, 8), np.float32)})
        assert all(np.isfinite(v).all() for v in found.values())


def test_another_process_writes_the_same_file(tmp_path: Path) -> None:
    """Nothing depends on hash seeds or on what was written before."""
    made = plan(PREPARED, RANGES)
    made.save(tmp_path / "plan.json")
    onnx.save(network(), tmp_path / "net.onnx")
    script = ("import sys; from pathlib import Path; from qbench import qdq; from qbench.graph import load_network; from qbench.plan import Plan; "
              "p = load_network(Path(sys.argv[1])); plan = Plan.load(Path(sys.argv[2])); qdq.save(qdq.write(p, plan).model, Path(sys.argv[3]))")
    files = []
    prepared = prepare(tmp_path / "net.onnx")
    Plan(**{f: getattr(made, f) for f in made.__dataclass_fields__} | {"model_key": prepared.network.model_key}).save(tmp_path / "plan.json")
    for seed in ("1", "2"):
        files.append(tmp_path / f"q{seed}.onnx")
        subprocess.run([sys.executable, "-c", script, str(tmp_path / "net.onnx"), str(tmp_path / "plan.json"), str(files[-1])], check=True,
                       env={"PYTHONHASHSEED": seed, "PATH": ""})
    assert files[0].read_bytes() == files[1].read_bytes()


@pytest.mark.parametrize("granularity", [Granularity.GLOBAL, Granularity.PER_CHANNEL])
@pytest.mark.parametrize("scheme", [Scheme(8, False, False), Scheme(8, True, False), Scheme(8, True, True), Scheme(8, True, True, True), Scheme(16, True, True),
                                    Scheme(16, False, False), Scheme(8, False, True), Scheme(8, True, True, True, True)])
def test_scales_and_zero_points_in_the_file_are_those_of_the_ranges(scheme: Scheme, granularity: Granularity, tmp_path: Path) -> None:
    """B11: bit for bit, read back with onnx; and through the offsets of formats that count codes from 0."""
    base = Precision.INT8 if scheme.bits == 8 else Precision.INT16
    made = plan(PREPARED, RANGES, base, granularity=granularity, schemes={str(base): QuantScheme(scheme, NPU[str(base)].weight, True)})
    qdq.save(qdq.write(PREPARED, made).model, tmp_path / "q.onnx")
    proto = onnx.load(tmp_path / "q.onnx")
    held = {i.name: onnx.numpy_helper.to_array(i) for i in proto.graph.initializer}
    whole = Range(min(r.low for r in made.ranges.values()), max(r.high for r in made.ranges.values()))
    expected = {affine(r, scheme) for r in ([whole] if granularity is Granularity.GLOBAL else made.ranges.values())}
    found: set[Affine] = set()
    for n in proto.graph.node:
        if n.op_type == "QuantizeLinear":
            assert held[n.input[1]].dtype == np.float32 and held[n.input[2]].dtype == scheme.dtype
            found.add(Affine(float(held[n.input[1]]), int(held[n.input[2]]), scheme))
    assert found == expected


def test_quantizelinear_gives_the_codes_of_the_affine_module() -> None:
    """The pair in the file, run by onnxruntime, against quantize and dequantize, clipping values included."""
    proto = model([node("Relu", ["x"], ["y"], "relu")], {"x": [1, 1000]}, {"y": None}, {})
    prepared = prepare(proto)
    x = np.linspace(-3, 9, 1000, dtype=np.float32).reshape(1, -1)
    wide = (Scheme(8, False, False), Scheme(8, True, False), Scheme(16, False, False))
    for scheme in (*wide, Scheme(4, False, False), Scheme(5, True, True), Scheme(12, True, False)):
        made = plan(prepared, {"x": Range(-2.5, 7.0), "y": Range(0.0, 6.0)}, schemes={"int8": QuantScheme(scheme, NPU["int8"].weight, True)})
        after = Session(qdq.to_bytes(qdq.write(prepared, made).model), 1, True).run({"x": x})["y"]
        a, b = affine(Range(-2.5, 7.0), scheme), affine(Range(0.0, 6.0), scheme)
        inner = np.maximum(dequantize(quantize(x, a), a), 0)
        assert np.array_equal(after, dequantize(quantize(inner, b), b))


def test_a_correction_that_rewrites_the_model_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plans with cross-layer equalization are written into the rewritten model, others without asking."""
    import qbench.corrections

    seen: list[Any] = []

    def rewritten(prepared: Any, made: Plan) -> Any:
        seen.append((prepared, made))
        return prepared

    monkeypatch.setattr(qbench.corrections, "rewritten", rewritten, raising=False)
    made = plan(PREPARED, RANGES)
    qdq.write(PREPARED, made)
    assert not seen
    equalized = Plan(**{f: getattr(made, f) for f in made.__dataclass_fields__} | {"corrections": ("cle:sweeps=3", BIAS_GUARD)})
    qdq.write(PREPARED, equalized)
    assert seen == [(PREPARED, equalized)]
