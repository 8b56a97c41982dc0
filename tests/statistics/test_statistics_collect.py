"""The pass over the data: BUG cases B01 to B06 and what surrounds them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper
from test_sketch import same
from watched_models import InMemory, conv_relu, info, model, one_node, two_branches

from qbench.errors import DataError, InputError, ModelError, NonFinite
from qbench.statistics import TensorStatistics, collect

RNG = np.random.default_rng(6)
X = RNG.normal(size=(6, 3, 5, 8)).astype(np.float32)

MEMORY = """
import sys
import numpy as np
from qbench.protocols import Batch
from qbench.statistics import collect
sys.path.insert(0, {here!r})
from watched_models import conv_relu
class Noise:
    name = key = "noise"
    def __len__(self): return {samples}
    def batches(self, size=1):
        rng = np.random.default_rng(0)
        for first in range({samples}):
            yield Batch({{"x": rng.normal(size=(1, 3, 128, 128)).astype(np.float32)}}, None, first)
found = collect(conv_relu(32, [1, 3, 128, 128]), ["x", "c", "y"], Noise(), threads=2)
assert found["c"].count == {samples} * 32 * 128 * 128
print(next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM")))
"""


def peak_kb(samples: int) -> int:
    """Peak resident memory of a fresh process that collects over that many samples.

    Not ru_maxrss: Linux hands the parent's peak, that of the test run, on to the child.
    """
    script = MEMORY.format(here=str(Path(__file__).parent), samples=samples)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return int(done.stdout)


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="peak memory is read from /proc")
def test_b01_memory_does_not_grow_with_samples() -> None:
    few, many = peak_kb(8), peak_kb(256)
    assert many <= 1.2 * few
    assert many - few <= 24 * 1024      # holding the raw activations would add 248 samples x 4 MB


def test_b02_unequal_shapes_count_each_value_once() -> None:
    shapes = [(1, 3, 8, 8), (3, 3, 12, 8), (2, 3, 5, 8)]
    feeds = [{"x": RNG.normal(size=s).astype(np.float32)} for s in shapes]
    found = collect(conv_relu(), ["x", "c", "y"], InMemory(*feeds))
    oracle = ort.InferenceSession(conv_relu())
    flat = np.concatenate([oracle.run(["y"], f)[0].ravel() for f in feeds])
    y, want = found["y"], TensorStatistics.of(flat[None], "y")
    assert y.count == flat.size and (y.minimum, y.maximum, y.zeros) == (want.minimum, want.maximum, want.zeros)
    assert np.array_equal(y.codes, want.codes) and np.array_equal(y.counts, want.counts)
    assert y.mean == pytest.approx(want.mean, rel=1e-12)
    assert found.samples == 6 and y.samples.tolist() == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize("value", [0.0, 3.5, -2.0])
def test_b04_a_constant_tensor_is_warned_about(value: float) -> None:
    found = collect(one_node("Identity"), ["x", "y"], InMemory({"x": np.full((3, 4), value, np.float32)}))
    assert found["y"].constant and (found["y"].minimum, found["y"].maximum) == (value, value)
    assert found["y"].quantile(0.3) == value
    assert [w for w in found.warnings() if w.startswith("tensor y: constant over the whole calibration set")]


def thousand(element: float) -> InMemory:
    x = np.random.default_rng(0).normal(size=(1, 1000)).astype(np.float32)
    x[0, 3] = element
    return InMemory({"x": np.zeros((2, 1000), np.float32)}, {"x": x})


@pytest.mark.parametrize(("element", "named"), [(np.nan, "1 NaN"), (np.inf, r"1 \+Inf"), (-np.inf, "1 -Inf")])
@pytest.mark.parametrize("threads", [1, 2])
def test_b05_non_finite_values_stop_with_tensor_node_sample_and_counts(element: float, named: str, threads: int) -> None:
    with pytest.raises(NonFinite, match=rf"tensor 'y' from node 'it' \(Identity\) is not finite at sample 2 of data set 'numbers': .*{named}\."):
        collect(one_node("Identity", shape=("N", 1000)), ["y"], thousand(element), threads=threads)


def test_b05_ignoring_covers_the_finite_values_and_says_so() -> None:
    found = collect(one_node("Identity", shape=("N", 1000)), ["x", "y"], thousand(np.inf), policy="ignore")
    y = found["y"]
    assert -4 < y.minimum < -2.5 and 2.5 < y.maximum < 4 and (y.count, y.positive_inf) == (2999, 1)
    assert "tensor y: 1 +Inf ignored; the range covers the finite values only" in found.warnings()


@pytest.mark.parametrize(("op", "inputs", "named"), [("Log", ("x",), r"2 -Inf"), ("Div", ("x", "x"), r"2 NaN")])
def test_b05_non_finite_values_that_the_model_makes(op: str, inputs: tuple[str, ...], named: str) -> None:
    x = np.array([[1, 2, 3, 4], [0, 1, 0, 2]], np.float32)
    with pytest.raises(NonFinite, match=rf"tensor 'y' from node 'it' \({op}\) is not finite at sample 1 .*{named}"):
        collect(one_node(op, inputs), ["x", "y"], InMemory({"x": x}))


def test_b05_of_several_faults_the_first_sample_is_named() -> None:
    x = np.ones((40, 4), np.float32)
    x[[17, 18, 30], 1] = np.nan
    data = InMemory(*({"x": row[None]} for row in x))
    with pytest.raises(NonFinite, match="at sample 17 of data set"):
        collect(one_node("Identity"), ["y"], data, threads=4)


EXPECTED = r"The model expects x: float32 \[N, 3, H, 8\]"


@pytest.mark.parametrize(("data", "fault"), [
    (InMemory(), "data set 'numbers' is empty"),
    (InMemory({"z": X}), "sample 0: input 'x' is missing; the sample holds 'z'"),
    (InMemory({"x": X, "z": X}), "sample 0: 'z' is not an input of the model"),
    (InMemory({"x": X.astype(np.float64)}), "sample 0: input 'x' has dtype float64"),
    (InMemory({"x": X[:, :2]}), r"sample 0: input 'x' has shape \[6, 2, 5, 8\]"),
    (InMemory({"x": X[0]}), r"sample 0: input 'x' has shape \[3, 5, 8\]"),
    (InMemory({"x": X}, {"x": X[:, :, :, :7]}), r"sample 6: input 'x' has shape \[6, 3, 5, 7\]"),
])
def test_b06_data_that_do_not_fit_are_refused_with_what_is_expected(data: InMemory, fault: str) -> None:
    with pytest.raises(DataError, match=f"{fault}.*{EXPECTED}"):
        collect(conv_relu(), ["y"], data)


def test_b06_nothing_runs_before_the_data_are_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    from qbench.statistics import collect as module_function
    from qbench.statistics.collect import _Pass

    ran = []
    monkeypatch.setattr(_Pass, "_run", lambda *_: ran.append(1))
    for data in (InMemory(), InMemory({"z": X})):
        with pytest.raises(DataError):
            module_function(conv_relu(), ["y"], data)
    assert not ran


def test_b06_a_branch_that_no_sample_takes_is_listed_as_never_observed() -> None:
    x = RNG.normal(size=(1, 4)).astype(np.float32)
    found = collect(two_branches(), ["x", "t", "e", "y", "r"], InMemory(*[{"x": x, "flag": np.array([True])}] * 3))
    assert found.unobserved == {"e": "never observed: no sample reached it"}
    assert "tensor e: never observed: no sample reached it" in found.warnings()
    assert (found["t"].minimum, found["t"].maximum) == (2 * x.min(), 2 * x.max()) and found["e"].count == 0
    both = collect(two_branches(), ["t", "e"], InMemory(*({"x": x, "flag": np.array([f])} for f in (True, False))))
    assert both["e"].count == both["t"].count == 4 and not both.unobserved


def test_a_tensor_in_a_loop_body_is_listed_with_the_reason() -> None:
    body = helper.make_graph([helper.make_node("Identity", ["c"], ["d"]), helper.make_node("Add", ["v", "v"], ["w2"], "grow")], "body",
                             [info("i", [], TensorProto.INT64), info("c", [], TensorProto.BOOL), info("v", ["N", 4])],
                             [info("d", [], TensorProto.BOOL), info("w2", ["N", 4])])
    weights = {"three": np.array(3, np.int64), "yes": np.array(True)}
    looped = model([helper.make_node("Loop", ["three", "yes", "x"], ["y"], "again", body=body)], [info("x", ["N", 4])], [info("y", None)], weights)
    found = collect(looped, ["y", "w2"], InMemory({"x": np.ones((1, 4), np.float32)}))
    assert found["y"].maximum == 8.0
    assert found.unobserved == {"w2": "inside the body of Loop node 'again', whose tensors cannot be watched"}


def test_batch_and_thread_count_do_not_change_an_answer() -> None:
    samples = InMemory(*({"x": x[None]} for x in X))
    one = collect(conv_relu(), ["x", "c", "y"], samples, threads=1)
    for other in (collect(conv_relu(), ["x", "c", "y"], samples, batch=4, threads=1),
                  collect(conv_relu(), ["x", "c", "y"], samples, threads=3)):
        assert other.key == one.key
        for name in one:
            # a larger batch may take other kernels in onnxruntime, so activations agree to their last bits
            assert other[name].count == one[name].count
            assert other[name].maximum == pytest.approx(one[name].maximum, rel=1e-5)
        assert same(other["x"], one["x"])


def test_the_limit_cuts_inside_a_batch() -> None:
    found = collect(conv_relu(), ["x"], InMemory({"x": X[:4]}, {"x": X[4:]}), limit=5)
    assert found.samples == 5 and same(found["x"], TensorStatistics.of(X[:5], "x"))


def test_progress_counts_samples() -> None:
    calls: list[tuple[str, int, int]] = []
    collect(conv_relu(), ["x"], InMemory(*({"x": x[None]} for x in X)), threads=1, progress=lambda *a: calls.append(a))
    assert calls == [("statistics", n, 6) for n in range(1, 7)]


@pytest.mark.parametrize(("names", "text"), [(["conv"], "no tensor 'conv'"), (["w"], "'w' is a weight")])
def test_unknown_tensors_are_refused(names: list[str], text: str) -> None:
    with pytest.raises(InputError, match=text):
        collect(conv_relu(), names, InMemory({"x": X}))


def test_integer_tensors_are_listed_and_not_sketched() -> None:
    found = collect(model([helper.make_node("Shape", ["x"], ["y"], "s")], [info("x", ["N", 4])], [info("y", None, TensorProto.INT64)]),
                    ["x", "y"], InMemory({"x": np.ones((2, 4), np.float32)}))
    assert list(found) == ["x"] and found.unobserved == {"y": "holds int64, which is not a float type"}


def test_options_out_of_range_are_refused() -> None:
    with pytest.raises(InputError, match="policy 'skip'"):
        collect(conv_relu(), ["y"], InMemory({"x": X}), policy="skip")
    with pytest.raises(InputError, match="must be 1 or more"):
        collect(conv_relu(), ["y"], InMemory({"x": X}), batch=0)
    with pytest.raises(ModelError, match="not a readable ONNX file"):
        collect(b"\xff\xff", ["y"], InMemory({"x": X}))


def test_a_model_in_memory_is_left_as_it_is_and_a_file_may_keep_its_weights_outside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    proto = onnx.load_model_from_string(conv_relu())
    (tmp_path / "net").mkdir()
    onnx.save_model(proto, tmp_path / "net" / "m.onnx", save_as_external_data=True, location="w.bin", size_threshold=0)
    held = ir.from_proto(onnx.load_model_from_string(conv_relu()))
    before = [v.name for v in held.graph.outputs]
    monkeypatch.chdir(tmp_path)
    three = [collect(m, ["c"], InMemory({"x": X}), model_key="m") for m in (held, Path("net/m.onnx"), conv_relu())]
    assert [v.name for v in held.graph.outputs] == before
    assert same(three[0]["c"], three[1]["c"]) and same(three[0]["c"], three[2]["c"])
