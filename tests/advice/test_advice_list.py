"""The list: what it says about savings is what pricing the changed thing says, whatever the target."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from advice_models import branches, prepare, setup_of
from models import model, node

from qbench.advice import STEPS, Advice, Advisory, State, advised, claims, claims_about, priced
from qbench.advice.records import Consent, Inapplicable, Step, Trial, Unpriced
from qbench.cost import CostTable
from qbench.network import Precision
from qbench.plan import Granularity, Plan
from qbench.targets import load, names
from qbench.workbench import CostOptions, cost_of
from qbench.workbench.advising import AdviceOptions, advise, as_json

ORDER = [State.DO, State.CONSENT, State.TRADE, State.HOST, State.COSTS, State.ALREADY, State.CONTRADICTED, State.NONE, State.UNPRICED, State.INAPPLICABLE]


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("advice") / "net.onnx"
    onnx.save(branches(size=(64, 64)), str(path))
    return path


@pytest.fixture(scope="module")
def rk3588(file: Path) -> Advisory:
    return advise(file, "rk3588")


def of(found: Advisory, step: str) -> Advice:
    return next(a for a in found.advice if a.step == step)


@pytest.mark.parametrize("target", names())
def test_every_step_answers_on_every_target(file: Path, target: str) -> None:
    offered = load(target).available()
    found = advise(file, target, AdviceOptions("int8" if Precision.INT8 in offered else str(offered[0])))
    assert {a.step for a in found.advice} == {s.key for s in STEPS}
    for a in found.advice:
        assert a.note or a.do
        if a.saved_ms is None:
            assert a.state in (State.UNPRICED, State.INAPPLICABLE, State.CONTRADICTED) and a.note
        elif a.saved_ms_low is not None and a.saved_ms_high is not None:
            assert a.saved_ms_low <= a.saved_ms <= a.saved_ms_high
    assert found.together.latency_ms <= found.subject.now.latency_s * 1e3 * (1 + 1e-12)


def test_the_best_savings_come_first(rk3588: Advisory) -> None:
    groups = [(State.DO, State.CONSENT), (State.NONE, State.UNPRICED)]
    place = [ORDER.index(next((g[0] for g in groups if a.state in g), a.state)) for a in rk3588.advice]
    assert place == sorted(place)
    for _, rows in itertools.groupby(zip(place, rk3588.advice, strict=True), key=lambda pair: pair[0]):
        saved = [a.saved_ms or 0.0 for _, a in rows]
        assert saved == sorted(saved, reverse=True)


def test_savings_are_those_of_qbench_cost(rk3588: Advisory, file: Path) -> None:
    (int8, fp16) = (cost_of(file, ["rk3588"], [p])[0] for p in ("int8", "fp16"))
    already = of(rk3588, "precision")
    assert already.state is State.ALREADY
    assert already.saved_ms == pytest.approx(fp16["latency_ms"] - int8["latency_ms"], rel=1e-9)
    assert already.saved_mj == pytest.approx(fp16["energy_mj"] - int8["energy_mj"], rel=1e-9)
    assert already.saved_memory_bytes == fp16["peak_memory_bytes"] - int8["peak_memory_bytes"]
    three = cost_of(file, ["rk3588"], ["int8"], CostOptions(cores=3))[0]
    assert of(rk3588, "cores").saved_ms == pytest.approx(int8["latency_ms"] - three["latency_ms"], rel=1e-9)
    assert rk3588.together.steps == ("cores",) and rk3588.together.latency_ms == pytest.approx(three["latency_ms"], rel=1e-9)


def test_the_clock_of_least_energy_is_that_of_the_table(rk3588: Advisory, file: Path) -> None:
    rows = cost_of(file, ["rk3588"], ["int8"], CostOptions(("all",)))
    best = min(rows, key=lambda r: r["energy_mj"])
    clock = next(a for a in rk3588.advice if a.step == "operating-point" and a.state is State.TRADE)
    assert best["op_point"] in clock.do
    assert clock.saved_mj == pytest.approx(rows[-1]["energy_mj"] - best["energy_mj"], rel=1e-9)
    slow = advise(file, "rk3588", AdviceOptions(op_point="600MHz"))
    assert slow.together.steps == ("operating-point", "cores")
    faster = next(a for a in slow.advice if a.step == "operating-point" and a.state is State.DO)
    assert faster.saved_ms == pytest.approx(rows[3]["latency_ms"] - rows[-1]["latency_ms"], rel=1e-9)


def test_a_plan_is_advised_on_as_it_is(file: Path, tmp_path: Path) -> None:
    network = prepare(file).network
    precision = {u.name: Precision.FP16 if i % 2 else Precision.INT8 for i, u in enumerate(network.units)}
    Plan(network.model_key, "rk3588", "2.5.0", "1000MHz", "minmax", Granularity.PER_CHANNEL, precision, {}, {}).save(tmp_path / "plan.json")
    found = advise(file, "rk3588", AdviceOptions(plan=tmp_path / "plan.json"))
    row = cost_of(file, ["rk3588"], [], CostOptions(plan=tmp_path / "plan.json"))[0]
    assert found.subject.now.latency_s * 1e3 == pytest.approx(row["latency_ms"], rel=1e-9)
    assert as_json(found)["layers"] == {"int8": sum(p is Precision.INT8 for p in precision.values()), "fp16": sum(p is Precision.FP16 for p in precision.values())}
    converted = of(found, "conversions")
    table = CostTable.build(network, load("rk3588"))
    codes = table.codes(Plan.load(tmp_path / "plan.json"))
    single = [np.where(np.arange(len(codes)) == u, c, codes) for u in range(len(codes)) if network.units[u].quantizable for c in set(codes)]
    assert converted.saved_ms == pytest.approx(row["latency_ms"] - min(p.latency_ms for p in table.price(np.array(single), "1000MHz")), rel=1e-9)
    assert of(found, "precision").state is State.CONSENT


def test_contradicted_steps_name_their_sources_and_are_not_taken(rk3588: Advisory) -> None:
    found = [a for a in rk3588.advice if a.state is State.CONTRADICTED]
    assert [a.step for a in found] == ["input-layout"]
    assert all(any(c.source and not c.holds for c in a.claims) for a in found)
    assert not {a.step for a in found} & set(rk3588.together.steps)
    mcu = next(a for a in advise_toy("stm32h7").advice if a.step == "overlap")
    assert mcu.state is State.CONTRADICTED and {c.number for c in mcu.claims} == {26, 33}


def advise_toy(target: str) -> Advisory:
    prepared = prepare(branches())
    return advised(setup_of(prepared.network, target, Precision.INT8), prepared, {})


def test_claims_belong_to_steps_and_concern_targets_by_prefix() -> None:
    steps = {s.key for s in STEPS}
    assert all(c.step in steps and c.source and c.found and c.verdict in ("right", "partly right", "doubtful", "wrong", "unsourced") for c in claims())
    assert len({(c.step, c.number) for c in claims()}) == len(claims())
    prefixes = {p for c in claims() for p in c.targets}
    assert all(any(n.startswith(p) for n in names()) for p in prefixes)
    assert {c.number for c in claims_about("alignment", "xdna2")} == {6, 7} and {c.number for c in claims_about("alignment", "rk3566")} == {7, 8}


def test_a_trial_is_taken_with_the_others_only_when_exact_and_cheaper() -> None:
    prepared = prepare(branches())
    setup = setup_of(prepared.network, "rk3588", Precision.FP16)
    slow = replace(setup, point=setup.target.operating_point("300MHz"))

    def steps(consent: Consent, together: bool = True, counted: bool = False) -> tuple[Step, ...]:
        fast = Trial("faster", consent, lambda s: replace(s, point=setup.point), together=together, counted=counted)
        return (Step("fast", "fast", lambda _: iter([fast])), Step("no", "no", lambda _: iter([Inapplicable("nothing")])),
                Step("some", "some", lambda _: iter([Unpriced("try", Consent.RESULT, "no figure")])))
    found = advised(slow, prepared, {}, steps(Consent.EXACT))
    assert [a.state for a in found.advice] == [State.DO, State.UNPRICED, State.INAPPLICABLE]
    assert found.together.latency_ms == pytest.approx(priced(setup).latency_s * 1e3)
    for given, state in ((steps(Consent.RETRAIN), State.CONSENT), (steps(Consent.EXACT, together=False), State.DO),
                         (steps(Consent.EXACT, counted=True), State.ALREADY)):
        found = advised(slow, prepared, {}, given)
        assert found.advice[0].state is state and found.together.steps == ()
        assert found.together.latency_ms == pytest.approx(priced(slow).latency_s * 1e3)


def test_json_holds_every_step_with_its_state_and_claims(rk3588: Advisory) -> None:
    body = as_json(rk3588)
    assert [s["step"] for s in body["steps"]] == [a.step for a in rk3588.advice]
    assert all(isinstance(s["state"], str) and {"saved_ms", "saved_mj", "saved_memory_bytes", "consent", "claims"} <= set(s) for s in body["steps"])
    assert body["exact_together"]["latency_ms"] <= body["latency_ms"]


def test_nodes_that_undo_one_another_are_the_first_step_of_what_is_done_together(tmp_path: Path) -> None:
    """Found at posenet: 57 Transposes that cost 17 of 22 ms were named by no step."""
    rng = np.random.default_rng(0)
    weights = {"w": rng.normal(0, 0.1, (40, 3, 3, 3)).astype(np.float32), "v": rng.normal(0, 0.1, (8, 40, 3, 3)).astype(np.float32)}

    def built(*between: onnx.NodeProto) -> onnx.ModelProto:
        nodes = [node("Conv", ["x", "w"], ["a"], "conv1"), *between, node("Conv", [between[-1].output[0] if between else "a", "v"], ["y"], "conv2")]
        return model(nodes, {"x": [1, 3, 64, 64]}, {"y": None}, weights)
    onnx.save(built(node("Transpose", ["a"], ["t"], "there", perm=[0, 2, 3, 1]), node("Transpose", ["t"], ["u"], "back", perm=[0, 3, 1, 2])), tmp_path / "turned.onnx")
    onnx.save(built(), tmp_path / "plain.onnx")
    turned, plain = (advise(tmp_path / f, "rk3588") for f in ("turned.onnx", "plain.onnx"))
    step = of(turned, "needless")
    assert step.state is State.DO and step.saved_ms is not None
    assert step.saved_ms == pytest.approx((turned.subject.now.latency_s - plain.subject.now.latency_s) * 1e3, rel=1e-9)
    assert turned.together.steps[0] == "needless" and turned.together.latency_ms == pytest.approx(plain.together.latency_ms, rel=1e-9)
    assert of(plain, "needless").state is State.INAPPLICABLE
