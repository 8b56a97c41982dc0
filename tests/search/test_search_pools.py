"""The Dask pool on a real network: the same accuracies as in this process, errors as values, a worker that dies."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from qbench.cli.app import app
from qbench.errors import InputError, NonFinite, QbenchError, ToolError
from qbench.evaluation import OnnxEvaluator
from qbench.network import Precision
from qbench.plan import Granularity, Plan
from qbench.protocols import Accuracy
from qbench.targets import load
from qbench.workbench.case import Case, open_case
from qbench.workbench.plans import Plans, schemes_of, statistics_of
from qbench.workbench.pools import DaskPool, Executor, collected, connected
from qbench.workbench.stations import Station, evaluate


@pytest.mark.parametrize(("text", "expected"), [
    ("dask://local", Executor("", 2, 1)), ("dask://local?workers=3&threads=2", Executor("", 3, 2)), ("dask://box:8786", Executor("box:8786"))])
def test_executors_are_read(text: str, expected: Executor) -> None:
    assert Executor.parse(text) == expected


@pytest.mark.parametrize("text", ["ray://x:1", "dask://box", "dask://", "dask://local?workers=0", "dask://local?colour=red", "dask://box:1?workers=2", "local"])
def test_others_are_refused_with_an_example(text: str) -> None:
    with pytest.raises(InputError, match="executor"):
        Executor.parse(text)


def test_nobody_at_the_address_is_told_with_the_commands_that_help() -> None:
    with pytest.raises(ToolError, match="dask scheduler"), connected(Executor("127.0.0.1:9")):
        pass


@pytest.fixture(scope="module")
def case() -> Case:
    return open_case(sample="fashion", limit=64)


@pytest.fixture(scope="module")
def plans(case: Case) -> list[Plan]:
    """Uniform INT8 under two calibrators, and one with every second unit in FP16."""
    target = load("rk3588")
    make = Plans(case.network, statistics_of(case.prepared, case.calibration), schemes_of(target, target.toolkit(None)), target.name, target.toolkit(None))
    units = [u.name for u in case.network.units if u.quantizable]
    even = {u.name: Precision.INT8 if u.quantizable else Precision.FP16 for u in case.network.units}
    mixed = even | dict.fromkeys(units[::2], Precision.FP16)
    return [make(p, c, Granularity.PER_CHANNEL, "1000MHz") for p, c in ((even, "minmax"), (even, "kl"), (mixed, "minmax"))]


@pytest.fixture(scope="module")
def evaluator(case: Case) -> OnnxEvaluator:
    return OnnxEvaluator(case.prepared, case.evaluation, case.metric, threads=1)


@pytest.fixture(scope="module")
def client() -> Iterator[Any]:
    with connected(Executor("", 2, 1)) as made:
        yield made


def same(a: Accuracy | QbenchError, b: Accuracy) -> bool:
    assert isinstance(a, Accuracy), a
    return replace(a, seconds=0.0) == replace(b, seconds=0.0)


def test_workers_find_what_this_process_finds(case: Case, plans: list[Plan], evaluator: OnnxEvaluator, client: Any) -> None:
    pool = DaskPool(client, Station.of(case, evaluator, 0, "stop", threads=1))
    tasks = [(p, n) for p in plans for n in (None, 16)]
    found = {i: (a, passes) for i, a, passes in pool.evaluate(tasks)}
    assert sorted(found) == list(range(len(tasks)))
    for i, (plan, samples) in enumerate(tasks):
        assert same(found[i][0], evaluator.evaluate(plan, samples))
        assert 0.0 < found[i][1] <= 2.0


def test_a_worker_that_dies_has_its_plan_given_to_another(case: Case, plans: list[Plan], evaluator: OnnxEvaluator, client: Any) -> None:
    """Killed from outside, as a machine that loses power."""
    pool = DaskPool(client, Station.of(case, evaluator, 0, "stop", threads=1))
    going = pool.evaluate([(p, n) for n in (None, 40, 48, 56) for p in plans])
    first = next(going)
    pids = client.run(os.getpid)
    os.kill(next(iter(pids.values())), signal.SIGKILL)
    found = [first, *going]
    assert sorted(i for i, _, _ in found) == list(range(12))
    assert all(isinstance(a, Accuracy) for _, a, _ in found)


def test_a_plan_that_does_not_fit_comes_back_as_the_reason(case: Case, plans: list[Plan], evaluator: OnnxEvaluator) -> None:
    found, passes = evaluate(Station.of(case, evaluator, 0, "stop", 1), replace(plans[0], model_key="another"), None)
    assert isinstance(found, QbenchError) and "another" in str(found) and passes == 0.0


def test_data_made_in_code_cannot_travel(case: Case, plans: list[Plan], evaluator: OnnxEvaluator) -> None:
    found, _ = evaluate(Station.of(Case(case.prepared, case.calibration, case.evaluation, case.metric), evaluator, 0, "stop", 1), plans[0], None)
    assert isinstance(found, InputError) and "name a file" in str(found)


def test_a_model_of_ones_own_travels_with_its_data(tmp_path: Path, case: Case, plans: list[Plan], evaluator: OnnxEvaluator, monkeypatch: pytest.MonkeyPatch) -> None:
    """The path is absolute: a worker runs in another folder."""
    from qbench.samples import load_sample

    sample = load_sample("fashion", 32)
    batches = list(sample.evaluation.batches(1))
    arrays: dict[str, Any] = {case.network.inputs[0]: np.concatenate([b.feeds[case.network.inputs[0]] for b in batches])}
    np.savez(tmp_path / "d.npz", **arrays, labels=np.concatenate([b.labels for b in batches if b.labels is not None]))
    monkeypatch.chdir(tmp_path)
    own = open_case(sample.model, "d.npz", metric="top1")
    monkeypatch.chdir("/")
    there, _ = evaluate(Station.of(own, evaluator, 0, "stop", 1), plans[0], 32)
    assert same(there, OnnxEvaluator(own.prepared, own.evaluation, own.metric, threads=1).evaluate(plans[0], 32))


@pytest.mark.parametrize("workers", [1, 2, 5])
def test_shards_count_what_one_pass_counts(case: Case, client: Any, workers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Histograms, extremes, per-sample extremes and the samples that set them: equal to the last bit, sums but for the order of additions."""
    monkeypatch.setattr(client, "nthreads", lambda: {"w": workers})
    shared = collected(client, Station.at(case.prepared, case.opened, "stop"), case.calibration)
    whole = statistics_of(case.prepared, case.calibration)
    assert shared.key == whole.key and shared.sources == whole.sources and list(shared) == list(whole)
    for name, t in whole.items():
        s = shared[name]
        assert (s.minimum, s.maximum, s.count, s.zeros, s.low_sample, s.high_sample) == (t.minimum, t.maximum, t.count, t.zeros, t.low_sample, t.high_sample)
        np.testing.assert_array_equal(s.sample_low, t.sample_low)
        np.testing.assert_array_equal(s.histogram()[1], t.histogram()[1])


def test_a_fault_in_a_shard_is_told_as_in_one_pass(tmp_path: Path, client: Any) -> None:
    from qbench.samples import load_sample

    network = load_sample("fashion", 1).model
    images = np.zeros((6, 1, 28, 28), np.float32)
    images[4, 0, 3, 3] = np.nan
    name = open_case(sample="fashion", limit=1).network.inputs[0]
    arrays: dict[str, Any] = {name: images}
    np.savez(tmp_path / "d.npz", **arrays)
    run = CliRunner().invoke(app, ["stats", str(network), "-d", str(tmp_path / "d.npz"), "-o", str(tmp_path / "s.npz"), "--executor", "dask://local?workers=2"])
    assert run.exit_code == 2 or isinstance(run.exception, NonFinite)
    assert not (tmp_path / "s.npz").exists()
