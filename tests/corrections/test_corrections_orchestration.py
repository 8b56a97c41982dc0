"""All steps together: their order, what they gained, and that a saved plan makes the same file again, bit for bit."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from learned_layers import four_bits
from masked_attention import attention, data, feeds_of
from models import NPU, Array, model, node, prepare, sqnr_db

from qbench import qdq, targets
from qbench.data import ArrayDataset
from qbench.errors import InputError
from qbench.graph import PreparedModel
from qbench.network import Precision
from qbench.plan import Granularity, Plan
from qbench.protocols import silent
from qbench.qdq import to_bytes
from qbench.runtime import Session
from qbench.workbench import Plans, statistics_of
from qbench.workbench.auto import choose_on
from qbench.workbench.correcting import Corrected, Recipe, _Work, corrected

ADAROUND = "adaround:iterations=60,positions=512,batch=128"
STEPS = {"nothing": ("none",), "defaults": (), "cle": ("none", "cle"), "mask": ("none", "mask"), "fixed-outputs": ("none", "fixed-outputs"),
         "bias-guard": ("none", "bias-guard"), "bias": ("none", "bias"), "analytic": ("none", "bias:how=analytic"), "adaround": ("none", ADAROUND),
         "all": ("cle", ADAROUND, "bias")}


def classifier() -> tuple[onnx.ModelProto, ArrayDataset]:
    """Convolutions with uneven channels, a bias that int32 cannot hold without the guard, and a Softmax."""
    rng = np.random.default_rng(0)

    def w(*shape: int) -> Array:
        uneven = 10.0 ** rng.uniform(-1, 0.3, (shape[0], *[1] * (len(shape) - 1)))
        return np.asarray(rng.normal(size=shape) * uneven / np.sqrt(np.prod(shape[1:])), np.float32)

    weights = {"w0": w(8, 3, 3, 3), "b0": w(8), "w1": w(8, 1, 3, 3), "b1": w(8), "w2": w(6, 8, 1, 1), "b2": np.array([0, 0, 0, 0, 0, 1], np.float32), "w3": 20 * w(6, 4)}
    weights["w2"][5] = 1e-9
    nodes = [node("Conv", ["x", "w0", "b0"], ["a"], "first", pads=[1, 1, 1, 1]), node("Relu", ["a"], ["ar"], "relu0"),
             node("Conv", ["ar", "w1", "b1"], ["b"], "second", group=8), node("Relu", ["b"], ["br"], "relu1"),
             node("Conv", ["br", "w2", "b2"], ["c"], "third"), node("GlobalAveragePool", ["c"], ["p"], "pool"), node("Flatten", ["p"], ["f"], "flat"),
             node("Gemm", ["f", "w3"], ["z"], "head"), node("Softmax", ["z"], ["y"], "scores")]
    x = rng.normal(size=(24, 3, 8, 8)).astype(np.float32)
    return model(nodes, {"x": ["N", 3, 8, 8]}, {"y": ["N", 4]}, weights), ArrayDataset({"x": x}, None, "pictures")


def case(name: str) -> tuple[PreparedModel, ArrayDataset]:
    if name == "attention":
        return prepare(attention("add", -np.inf)), ArrayDataset(feeds_of("add", data(0, 16)), None, "tokens")
    proto, dataset = classifier()
    return prepare(proto), dataset


def recipe(**changes: object) -> Recipe:
    target = targets.load("rk3588")
    made = Recipe(target, target.toolkit(None), four_bits(), Precision.INT8, "minmax", Granularity.PER_LAYER, "half-open")
    return replace(made, **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize("steps", STEPS.values(), ids=STEPS)
@pytest.mark.parametrize("name", ["classifier", "attention"])
def test_a_saved_plan_makes_the_same_file_again(name: str, steps: tuple[str, ...], tmp_path: Path) -> None:
    prepared, dataset = case(name)
    found = corrected(prepared, recipe(), steps, dataset=dataset, threads=1)
    first = to_bytes(qdq.write(found.prepared, found.plan).model)
    found.plan.save(tmp_path / "plan.json")
    again, loaded = case(name)[0], Plan.load(tmp_path / "plan.json")
    assert loaded.key == found.plan.key
    assert to_bytes(qdq.write(again, loaded).model) == first
    onnx.checker.check_model(first, full_check=True)
    feeds = dict(next(iter(dataset.batches(4))).feeds)
    assert np.isfinite(Session(first, 1).run(feeds)["y"]).all()


def after_each(found: Corrected) -> list[float | None]:
    return [g.sqnr_after_db for g in found.gains]


def test_each_step_starts_where_the_last_one_ended() -> None:
    prepared, dataset = case("classifier")
    found = corrected(prepared, recipe(), STEPS["all"], dataset=dataset, threads=1)
    assert [g.step for g in found.gains] == ["cle", "mask", "fixed-outputs", "bias-guard", ADAROUND, "bias"]
    assert found.plan.corrections == ("cle", "fixed-outputs", "bias-guard", ADAROUND, "bias")          # no mask in this network
    for one, two in zip(found.gains, found.gains[1:], strict=False):
        assert one.sqnr_after_db == two.sqnr_before_db
    feeds = {"x": np.concatenate([b.feeds["x"] for b in dataset.batches(24)])}
    float_, int_ = (Session(to_bytes(m), 1).run(feeds)["y"] for m in (prepared.model, qdq.write(found.prepared, found.plan).model))
    assert found.gains[-1].sqnr_after_db == pytest.approx(sqnr_db(float_, int_), abs=0.3)
    plain = corrected(prepared, recipe(), ("none",), dataset=dataset, threads=1)
    assert not plain.gains and not plain.plan.corrections
    before, after = found.gains[0].sqnr_before_db, found.gains[-1].sqnr_after_db
    assert before is not None and after is not None and after > before + 6
    assert all(g.remarks for g in found.gains if g.step not in (ADAROUND, "bias"))


def test_the_guard_names_what_it_widened_and_fixed_outputs_what_they_fixed() -> None:
    prepared, dataset = case("classifier")
    gains = {g.step: g for g in corrected(prepared, recipe(granularity=Granularity.PER_CHANNEL), dataset=dataset, threads=1).gains}
    assert any("weight w2: scale widened" in r for r in gains["bias-guard"].remarks)
    assert gains["fixed-outputs"].remarks == ("y: [0, 0.996094]",)
    bare = {g.step: g for g in corrected(prepared, recipe(fixed_outputs=""), dataset=dataset, threads=1).gains}
    assert bare["fixed-outputs"].remarks == ("the target prescribes none",)


def test_a_step_that_loses_is_said_to() -> None:
    """Uneven by chance rather than by training: equalization then costs this network more in activations than it gains in weights."""
    prepared, dataset = case("classifier")
    gain = corrected(prepared, recipe(schemes=NPU), ("none", "cle"), dataset=dataset, threads=1).gains[0]
    assert gain.sqnr_before_db is not None and gain.sqnr_after_db is not None
    lost = gain.sqnr_before_db - gain.sqnr_after_db
    assert lost > 0.5 and gain.remarks[-1] == f"the output is {lost:.1f} dB worse with this step than without: leave it out here"


def test_precisions_may_be_given_unit_by_unit() -> None:
    prepared, dataset = case("classifier")
    wanted = {u.name: Precision.FP16 if u.name == "second" else Precision.INT8 for u in prepared.network.units}
    found = corrected(prepared, recipe(precision=wanted), ("bias",), dataset=dataset, threads=1)
    assert found.plan.precision["second"] is Precision.FP16
    assert "bias:second" not in found.plan.tensors and "bias:first" in found.plan.tensors


@pytest.mark.parametrize("step", ["cle", "bias", "adaround"])
def test_steps_that_learn_need_samples(step: str) -> None:
    prepared, dataset = case("classifier")
    seen = statistics_of(prepared, dataset)
    with pytest.raises(InputError, match=f"correction '{step}' needs calibration data .*: add --data"):
        corrected(prepared, recipe(), (step,), statistics=seen)
    with pytest.raises(InputError, match="--stats FILE or --data D"):
        corrected(prepared, recipe())


def test_statistics_alone_make_the_same_ranges_without_gains() -> None:
    prepared, dataset = case("classifier")
    alone = corrected(prepared, recipe(), statistics=statistics_of(prepared, dataset), threads=1)
    assert alone.plan.key == corrected(prepared, recipe(), dataset=dataset, threads=1).plan.key
    assert after_each(alone) == [None, None, None]


def test_auto_chooses_by_what_lies_behind_each_tensor() -> None:
    """The plan has the ranges that `auto` chooses on the equalized network, and stays rebuildable."""
    prepared, dataset = case("classifier")
    spec = "auto:among=minmax/percentile:p=90.0"
    found = corrected(prepared, recipe(calibrator=spec), ("none", "cle"), dataset=dataset, threads=1)
    plans = Plans(found.prepared.network, found.statistics, four_bits())
    expected = choose_on(dataset, found.prepared, plans, found.plan.precision, Granularity.PER_LAYER, spec=spec).by_group
    assert set(expected) == set(found.plan.ranges)
    for group, candidate in expected.items():
        assert found.plan.ranges[group] == plans(found.plan.precision, candidate, Granularity.PER_LAYER, "").ranges[group]
    assert found.plan.calibrator == spec


def test_samples_come_from_all_of_a_sorted_set() -> None:
    """Thirty-two dark pictures, then as many bright ones: a bias learned on the dark alone would not fit."""
    prepared, dataset = case("classifier")
    x = next(iter(dataset.batches(24))).feeds["x"]
    many = np.concatenate([x[:16], x[:16] + 0.01, x[16:] + 3, x[16:] + 3.01, x[16:] + 3.02, x[16:] + 3.03])
    work = _Work(prepared, recipe(), ArrayDataset({"x": many}, None, "sorted"), "stop", 1, silent)
    assert [float(s["x"].mean()) > 1.5 for s in work.samples[32]] == [False] * 16 + [True] * 16


def test_a_network_that_no_step_fits_is_told_so() -> None:
    proto = model([node("Relu", ["x"], ["y"], "only")], {"x": ["N", 3]}, {"y": ["N", 3]}, {})
    prepared = prepare(proto)
    dataset = ArrayDataset({"x": np.random.default_rng(0).normal(size=(8, 3)).astype(np.float32)}, None, "x")
    found = corrected(prepared, recipe(), ("cle", "bias", ADAROUND), dataset=dataset, threads=1)
    told = {g.step: g.remarks for g in found.gains}
    assert told["cle"] == ("no two layers of this network can be equalized",)
    assert told["bias"] == told[ADAROUND] == ("nothing was found to correct",) and told["mask"] == ("no attention mask",)
    assert found.plan.corrections == ("bias-guard",)
