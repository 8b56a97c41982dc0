"""`qbench rewrite` on small real networks: what is applied and why, what is asked for, the proof, the files."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from rewrite_cases import Array, Line, attention, net, number, resize, weight, whole
from typer.testing import CliRunner

from qbench.cli import main
from qbench.cli.app import app
from qbench.inspection.cures import CURES
from qbench.rewriting import Exactness
from qbench.targets.rewrites import REWRITES, registry
from qbench.workbench.inspecting import inspect_model
from qbench.workbench.rewriting import Rewritten, rewrite_model

TOKENS, WIDTH = 16, 24


def transformer() -> onnx.ModelProto:
    """One block: LayerNormalization without epsilon, attention by Einsum, Gelu in an MLP, two heads that are added."""
    square = [("wq", 1), ("wk", 1), ("wv", 1)]
    constants = {k: weight(WIDTH, WIDTH) for k, _ in square}
    constants |= {"g": 1 + weight(WIDTH), "b": weight(WIDTH), "up": weight(WIDTH, 2 * WIDTH), "down": weight(2 * WIDTH, WIDTH), "scale": number(0.2),
                  "h1": weight(WIDTH, 5), "h2": weight(WIDTH, 5), "c1": weight(5), "c2": weight(5), "axes": whole(1)}
    lines: list[Line] = [
        ("LayerNormalization", ["x", "g", "b"], ["n"], {}), *(("MatMul", ["n", k], [k[1]], {}) for k, _ in square),
        ("Einsum", ["q", "k"], ["s"], {"equation": "bid,bjd->bij"}), ("Mul", ["s", "scale"], ["sm"], {}), ("Softmax", ["sm"], ["a"], {"axis": -1}),
        ("Einsum", ["a", "v"], ["o"], {"equation": "bij,bjd->bid"}), ("Add", ["x", "o"], ["r"], {}), ("MatMul", ["r", "up"], ["u"], {}), ("Gelu", ["u"], ["ge"], {}),
        ("MatMul", ["ge", "down"], ["d"], {}), ("Add", ["r", "d"], ["e"], {}), ("ReduceMean", ["e", "axes"], ["m"], {"keepdims": 0}),
        ("Gemm", ["m", "h1", "c1"], ["p1"], {}), ("Gemm", ["m", "h2", "c2"], ["p2"], {}), ("Add", ["p1", "p2"], ["y"], {})]
    return net(lines, {"x": (1, TOKENS, WIDTH)}, constants, opset=20)


def segmentation() -> onnx.ModelProto:
    """A small encoder and decoder: GroupNormalization, a mirror Pad, a step-2 Slice, linear Resize, classes as bytes."""
    constants = {"w0": weight(8, 3, 3, 3), "b0": weight(8), "gs": 1 + weight(4), "gb": weight(4), "p": whole(0, 0, 1, 1, 0, 0, 1, 1), "w1": weight(8, 8, 3, 3), "b1": weight(8),
                 "zero": whole(0, 0), "end": whole(99, 99), "axes": whole(2, 3), "two": whole(2, 2), "f": np.array([1, 1, 2, 2], np.float32), "w2": weight(4, 8, 1, 1),
                 "b2": weight(4)}
    lines: list[Line] = [
        ("Conv", ["x", "w0", "b0"], ["c0"], {"pads": [1] * 4}), ("GroupNormalization", ["c0", "gs", "gb"], ["n"], {"num_groups": 4}), ("Relu", ["n"], ["r"], {}),
        ("Pad", ["r", "p"], ["m"], {"mode": "edge"}), ("Conv", ["m", "w1", "b1"], ["c1"], {}), ("Slice", ["c1", "zero", "end", "axes", "two"], ["s"], {}),
        ("Resize", ["s", "", "f"], ["u"], {"mode": "linear"}), ("Conv", ["u", "w2", "b2"], ["logits"], {}),
        ("ArgMax", ["logits"], ["i"], {"axis": 1, "keepdims": 0}), ("Cast", ["i"], ["classes"], {"to": onnx.TensorProto.UINT8})]
    return net(lines, {"x": (1, 3, 16, 20)}, constants, ["logits", "classes"], opset=18)


def saved(proto: onnx.ModelProto, folder: Path) -> Path:
    onnx.save(proto, folder / "net.onnx")
    return folder / "net.onnx"


def outputs(models: Sequence[Path], feeds: dict[str, Array]) -> dict[str, Array]:
    have = dict(feeds)
    for path in models:
        session = ort.InferenceSession(path)
        have |= dict(zip([o.name for o in session.get_outputs()], session.run(None, {i.name: have[i.name] for i in session.get_inputs()}), strict=True))
    return have


def rewritten(proto: onnx.ModelProto, folder: Path, target: str = "rk3588", allow: Sequence[str] = (), only: Sequence[str] = (), data: str | None = None) -> Rewritten:
    return rewrite_model(saved(proto, folder), target, folder / "out.onnx", allow=allow, only=only, data=data)


def kept(done: Rewritten) -> set[str]:
    return {s.rewrite for s in done.steps if s.kept}


@pytest.mark.parametrize(("build", "wanted"), [
    (transformer, {"layernorm-epsilon", "einsum-to-matmul", "gelu-to-erf", "merge-gemms", "lower-operator-set"}),
    (segmentation, {"groupnorm-to-instancenorm", "widen-outputs"})])
def test_a_network_is_rewritten_with_the_same_answers(build: Callable[[], onnx.ModelProto], wanted: set[str], tmp_path: Path) -> None:
    proto = build()
    done = rewritten(proto, tmp_path)
    assert wanted <= kept(done)
    after = onnx.load(tmp_path / "out.onnx")
    assert not {"Einsum", "Gelu", "GroupNormalization"} & {n.op_type for n in after.graph.node}
    feeds = {"x": np.random.default_rng(5).standard_normal([d.dim_value for d in proto.graph.input[0].type.tensor_type.shape.dim]).astype(np.float32)}
    one, other = outputs([tmp_path / "net.onnx"], feeds), outputs([tmp_path / "out.onnx"], feeds)
    for name in (o.name for o in proto.graph.output):
        if one[name].dtype.kind == "f":
            np.testing.assert_allclose(one[name], other[name], rtol=0, atol=1e-5 * np.abs(one[name]).max())
        else:
            assert np.mean(one[name] != other[name]) <= 0.01
    for step in done.steps:
        assert step.why and (not step.kept or (step.error is not None and step.changes and step.ms_before is not None))
        assert not step.kept or step.limit is None or (step.error is not None and step.error <= step.limit)
    names = {n.name for n in after.graph.node}
    last = {n for s in done.steps if s.kept for c in s.changes for n in c.old} - names
    assert last and done.error <= 1e-5


def test_what_changes_the_result_waits_for_consent(tmp_path: Path) -> None:
    proto = resize((1, 3, 8, 8), [2, 2], mode="cubic")
    done = rewritten(proto, tmp_path)
    step = next(s for s in done.steps if s.rewrite == "resize-cubic-to-linear")
    assert not step.kept and "needs consent: --allow resize-cubic-to-linear" in step.why and step.exactness == Exactness.C
    assert [(x.op, x.placement) for x in done.left] == [("Resize", "refused")]
    done = rewritten(proto, tmp_path, allow=["resize-cubic-to-linear"])
    assert kept(done) >= {"resize-cubic-to-linear"} and done.error > 1e-3 and not done.left


def test_zero_weights_are_proven_with_random_ones(tmp_path: Path) -> None:
    lines: list[Line] = [("Conv", ["x", "w"], ["c"], {}), ("HardSwish", ["c"], ["h"], {}), ("Neg", ["h"], ["y"], {})]
    done = rewritten(net(lines, {"x": (1, 8, 6, 6)}, {"w": np.zeros((16, 8, 3, 3), np.float32)}), tmp_path, only=["neg-to-mul"])
    assert kept(done) == {"neg-to-mul"} and any("weights are zeros" in n for n in done.notes)
    written = {i.name: onnx.numpy_helper.to_array(i) for i in onnx.load(tmp_path / "out.onnx").graph.initializer}
    assert not written["w"].any()                                # random weights serve the proof only


def test_post_processing_goes_to_a_second_model(tmp_path: Path) -> None:
    lines: list[Line] = [("Conv", ["x", "w"], ["c"], {}), ("Flatten", ["c"], ["f"], {}), ("TopK", ["f", "k"], ["v", "i"], {})]
    done = rewritten(net(lines, {"x": (1, 3, 6, 6)}, {"w": weight(4, 3, 3, 3), "k": whole(5)}, ["v", "i"]), tmp_path, only=["post-processing-to-host"])
    assert done.host == str(tmp_path / "out.host.onnx") and done.error == 0.0
    assert "TopK" not in {n.op_type for n in onnx.load(done.output).graph.node}
    feeds = {"x": np.random.default_rng(5).standard_normal((1, 3, 6, 6)).astype(np.float32)}
    one, other = outputs([tmp_path / "net.onnx"], feeds), outputs([tmp_path / "out.onnx", tmp_path / "out.host.onnx"], feeds)
    assert np.array_equal(one["v"], other["v"]) and np.array_equal(one["i"], other["i"])


def test_a_rewrite_that_errs_is_caught_by_the_proof(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "REWRITES", {})
    wrong = registry.rewrite("wrong-abs", "Abs", becomes="Relu", exactness=Exactness.N)(lambda op, y: op.Relu(y.producer().inputs[0]))
    made = registry.REWRITES["wrong-abs"]
    monkeypatch.setitem(REWRITES, "wrong-abs", made)
    done = rewritten(net([("Abs", ["x"], ["y"], {})], {"x": (1, 8)}), tmp_path, only=["wrong-abs"])
    assert callable(wrong) and not kept(done) and "not kept: the answers differ by" in done.steps[0].why
    assert [n.op_type for n in onnx.load(done.output).graph.node] == ["Abs"]


def test_calibration_data_is_part_of_the_proof(tmp_path: Path) -> None:
    np.savez(tmp_path / "data.npz", x=np.ones((2, 3, 16, 20), np.float32))
    done = rewritten(segmentation(), tmp_path, data=str(tmp_path / "data.npz"))
    assert done.notes[0] == "proven on 4 inputs: random ones and calibration data"


def test_the_command_prints_a_table_and_json(tmp_path: Path) -> None:
    model, runner = str(saved(transformer(), tmp_path)), CliRunner()
    shown = runner.invoke(app, ["rewrite", model, "-t", "rk3588", "-o", str(tmp_path / "o.onnx")])
    assert shown.exit_code == 0, shown.output
    for words in ("einsum-to-matmul", "ms before", "written:", "proven on 2 inputs"):
        assert words in shown.stdout
    found = json.loads(runner.invoke(app, ["rewrite", model, "-o", str(tmp_path / "o.onnx"), "--json"]).stdout)
    assert {"rewrite", "exactness", "changes", "error", "ms_before", "ms_after", "kept", "why"} <= found["steps"][0].keys()


@pytest.mark.parametrize("proto", [segmentation, transformer])
def test_prices_are_those_of_inspect_with_what_the_chip_leaves_to_the_cpu(proto: Callable[[], onnx.ModelProto], tmp_path: Path) -> None:
    """A rewrite that takes an operator off the CPU gains what its round trip costs: the price must hold it."""
    done = rewritten(proto(), tmp_path)
    before, after = (inspect_model(p, ["rk3588"])[0].found for p in (tmp_path / "net.onnx", Path(done.output)))
    assert before is not None and after is not None and before.fallback.segments
    assert done.ms_before == pytest.approx(before.latency_ms, rel=1e-9) and done.ms_after == pytest.approx(after.latency_ms, rel=1e-9)


def test_inspect_names_the_rewrite_and_the_pattern_that_stops_the_toolchain(tmp_path: Path) -> None:
    assert {c.rewrite for c in CURES if c.rewrite} <= set(REWRITES)
    for cure in CURES:
        if cure.rewrite:
            assert set(cure.ops) & set(REWRITES[cure.rewrite].ops) and cure.exactness == REWRITES[cure.rewrite].exactness, cure
    on = inspect_model(saved(attention(2, 8), tmp_path), ["rk3588"])[0].found
    assert on is not None
    assert next((o.exactness, "attention-values-right" in o.note) for o in on.rewrites) == ("N", True)
    found = inspect_model(saved(segmentation(), tmp_path), ["rk3588"])[0].found
    assert found is not None and any("qbench rewrite: groupnorm-to-instancenorm" in o.note for o in found.rewrites)


@pytest.mark.parametrize(("arguments", "words"), [
    (["--only", "gelu-to-magic"], "no rewrite 'gelu-to-magic'; known:"), (["--target", "abacus"], "abacus"), (["--precision", "int7"], "no precision 'int7'")])
def test_wrong_names_are_refused(arguments: list[str], words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = saved(transformer(), tmp_path)
    with pytest.raises(SystemExit) as stopped:
        main(["rewrite", str(model), "-o", str(tmp_path / "o.onnx"), *arguments])
    assert stopped.value.code == 2 and not (tmp_path / "o.onnx").exists()
    assert words in capsys.readouterr().err
