"""Labels that are not those of the model are told before, or beside, the figures that they spoil."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from models import model, node

from qbench.errors import DataError
from qbench.graph import load_network
from qbench.metrics import make
from qbench.protocols import Accuracy
from qbench.workbench.case import open_case
from qbench.workbench.labels import at_chance, class_notes, classes_of

RNG = np.random.default_rng(0)


def classifier(folder: Path, classes: int, shape: tuple[int, ...] = ()) -> Path:
    nodes = [node("Gemm", ["x", "w"], ["s"], "head"), node("Reshape", ["s", "shape"], ["y"], "last")]
    shape = (-1, classes, *shape)
    proto = model(nodes, {"x": ["N", 4]}, {"y": ["N", *shape[1:]]},
                  {"w": RNG.normal(size=(4, classes)).astype(np.float32), "shape": np.array(shape, np.int64)})
    onnx.save(proto, str(folder / "net.onnx"))
    return folder / "net.onnx"


def samples(folder: Path, *names: str, empty: tuple[str, ...] = ()) -> str:
    for name in names + empty:
        (folder / "val" / name).mkdir(parents=True)
        if name not in empty:
            np.save(folder / "val" / name / "0.npy", RNG.normal(size=4).astype(np.float32))
    return str(folder / "val")


def notes(folder: Path, classes: int, *names: str, metric: str = "top1", empty: tuple[str, ...] = ()) -> list[str]:
    case = open_case(classifier(folder, classes), samples(folder, *names, empty=empty), metric=metric)
    return [w for w in case.warnings if "sub-folders" in w]


def test_folders_for_some_of_the_classes_are_refused_with_the_cure(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"val: 3 sub-folders, and the model has 1000 classes.*so '129' would be class 0: make one for each class.*\(000, 001, \.\.\.\)"):
        notes(tmp_path, 1000, "129", "22", "990")
    (tmp_path / "two").mkdir()
    with pytest.raises(DataError, match=r"2 sub-folders, and the model has 3 classes\. Sub-folders are numbered in the order of their names as text: make one"):
        notes(tmp_path / "two", 3, "ant", "cat")


def test_empty_folders_stand_for_classes_without_samples(tmp_path: Path) -> None:
    assert notes(tmp_path, 4, "0", "3", empty=("1", "2")) == []


def test_numbers_as_names_in_the_order_of_text_are_told(tmp_path: Path) -> None:
    [said] = notes(tmp_path, 11, *(str(i) for i in range(11)))
    assert "so '10' is class 2" in said and "leading zeros" in said


@pytest.mark.parametrize("names", [("ant", "bee"), ("00", "01"), ("0", "1")])
def test_folders_that_fit_are_not_talked_about(tmp_path: Path, names: tuple[str, ...]) -> None:
    assert notes(tmp_path, 2, *names) == []


def test_metrics_without_classes_do_not_mind(tmp_path: Path) -> None:
    assert notes(tmp_path, 1000, "a", "b", metric="cosine") == []


@pytest.mark.parametrize(("shape", "metric", "count"), [((), "top1", 7), ((1, 1), "topk:k=2", 7), ((2,), "top1", 0), ((), "cosine", 0)])
def test_classes_are_read_from_the_output(tmp_path: Path, shape: tuple[int, ...], metric: str, count: int) -> None:
    network = load_network(classifier(tmp_path, 14 if shape == (2,) else 7) if shape != (1, 1) else classifier(tmp_path, 7, shape)).network
    if shape == (2,):
        network = replace(network, tensors={**network.tensors, "y": replace(network.tensors["y"], shape=(1, 7, 2))})
    assert classes_of(network, make(metric)) == count


@pytest.mark.parametrize(("value", "count", "metric", "told"), [
    (0.0, 200, "top1", True), (0.25, 200, "top1", True), (0.26, 200, "top1", False), (0.0, 19, "top1", False), (0.5, 200, "topk:k=2", True), (0.0, 200, "cosine", False)])
def test_a_float_model_that_only_guesses_is_told(tmp_path: Path, value: float, count: int, metric: str, told: bool) -> None:
    network = load_network(classifier(tmp_path, 4)).network
    found = at_chance(Accuracy(metric, value, value, value, count, 0.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0), network, make(metric))
    assert len(found) == told and all("no better than guessing among 4 classes" in w for w in found)
    assert class_notes(open_case(tmp_path / "net.onnx", samples(tmp_path, "a", "b", "c", "d")).evaluation, network, make(metric)) == ()
