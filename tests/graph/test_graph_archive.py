"""A .pt2 archive that brings code is refused before torch reads it; nothing of it runs."""

from __future__ import annotations

import io
import json
import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from qbench.errors import ModelError
from qbench.graph import load_network
from qbench.graph.archive import _check_sizes, refuse_code

Members = dict[str, bytes]


class Touch:
    """Unpickling it writes a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.write_text, (self.path, "ran")


class Scaled(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.layer(x)) + torch.tensor([1.0, 2.0, 3.0])


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Members:
    path = tmp_path_factory.mktemp("saved") / "m.pt2"
    torch.export.save(torch.export.export(Scaled().eval(), (torch.ones(2, 4),)), str(path))
    refuse_code(path)
    with zipfile.ZipFile(path) as archive:
        return {n: archive.read(n) for n in archive.namelist()}


def evil(marker: Path) -> bytes:
    held = io.BytesIO()
    torch.save(Touch(marker), held)
    return held.getvalue()


def pickled_weight(members: Members, marker: Path) -> None:
    name = next((n for n in members if n.endswith("weights_config.json")), "")
    if not name:                                                # torch 2.7
        members["serialized_state_dict.pt"] = evil(marker)
        return
    config = json.loads(members[name])
    entry = next(iter(config["config"].values()))
    entry["use_pickle"] = True
    members[name] = json.dumps(config).encode()
    members["m/data/weights/" + entry["path_name"]] = evil(marker)


def opaque_constant(members: Members, marker: Path) -> None:
    members["m/data/constants/opaque_obj_0"] = pickle.dumps(Touch(marker))


def sample_inputs(members: Members, marker: Path) -> None:
    members[next(n for n in members if "sample_inputs" in n or "example_inputs" in n)] = evil(marker)


def legacy_weights(members: Members, marker: Path) -> None:
    members["m/data/weights/model.pt"] = evil(marker)


def compiled_library(members: Members, marker: Path) -> None:
    members["m/data/aotinductor/model/model.so"] = b"\x7fELF"


def evaluated_size(members: Members, marker: Path) -> None:
    """sympy evaluates the text of a size."""
    name = next(n for n in members if n.endswith("/model.json") or n == "serialized_exported_program.json")
    body = json.loads(members[name])
    body["planted"] = {"expr_str": f"Integer(2).__class__.__mro__ or open('{marker}', 'w')"}
    members[name] = json.dumps(body).encode()


def called_function(members: Members, marker: Path) -> None:
    name = next(n for n in members if n.endswith("/model.json") or n == "serialized_exported_program.json")
    body = json.loads(members[name])
    next(n for n in body["graph_module"]["graph"]["nodes"])["target"] = "torch.hub.load"
    members[name] = json.dumps(body).encode()


@pytest.mark.parametrize("spoil", [evaluated_size, called_function, pickled_weight, opaque_constant, sample_inputs, legacy_weights, compiled_library])
def test_what_would_run_is_refused_by_its_name_and_does_not_run(tmp_path: Path, saved: Members, spoil: Callable[[Members, Path], None]) -> None:
    members, marker = dict(saved), tmp_path / "marker"
    spoil(members, marker)
    with zipfile.ZipFile(tmp_path / "m.pt2", "w") as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    with pytest.raises(ModelError, match=r"member '.*' .*it is not read"):
        load_network(tmp_path / "m.pt2")
    assert not marker.exists()


def test_the_payload_of_these_tests_does_run_when_it_is_let_in(tmp_path: Path) -> None:
    torch.load(io.BytesIO(evil(tmp_path / "marker")), weights_only=False)
    assert (tmp_path / "marker").read_text() == "ran"


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_two_members_of_one_name_are_refused(tmp_path: Path, saved: Members) -> None:
    with zipfile.ZipFile(tmp_path / "m.pt2", "w") as archive:
        for name, data in [*saved.items(), next(iter(saved.items()))]:
            archive.writestr(name, data)
    with pytest.raises(ModelError, match="two members have one name"):
        refuse_code(tmp_path / "m.pt2")


@pytest.mark.parametrize("body", [b"", b"no zip", b"PK\x05\x06" + bytes(18)])
def test_what_is_no_archive_is_said(tmp_path: Path, body: bytes) -> None:
    (tmp_path / "m.pt2").write_bytes(body)
    with pytest.raises(ModelError, match=r"m\.pt2: .*torch\.export"):
        load_network(tmp_path / "m.pt2")


@pytest.mark.parametrize("text", ["Mul(Integer(6), Max(Integer(1), Add(Symbol('s53', positive=True, integer=True), Integer(-2))))", "s0*24 - 2", "FloorDiv(s0 + 1, 2)",
                                  "Eq(Mod(s0, 8), 0)", "L['x'].size()[0] >= 2", "Float('1.5', precision=53)", "-s0 <= 4 and s1 > 2"])
def test_sizes_and_guards_are_arithmetic(text: str) -> None:
    _check_sizes(Path("m.pt2"), "models/model.json", [text])


@pytest.mark.parametrize("text", ["__import__('os').system('true')", "open('a')", "Integer(2).__class__", "(lambda: 0)()", "[x for x in s0]", "sympify('2')", "Symbol('a b')",
                                  "eval(chr(97))", "L['x'].tolist()", "Integer.size.mro()"])
def test_anything_else_is_not(text: str) -> None:
    with pytest.raises(ModelError, match="no arithmetic"):
        _check_sizes(Path("m.pt2"), "models/model.json", [text])


def test_an_archive_with_open_axes_is_read(tmp_path: Path) -> None:
    sizes = {0: torch.export.Dim("batch"), 1: None}
    torch.export.save(torch.export.export(Scaled().eval(), (torch.ones(2, 4),), dynamic_shapes=(sizes,)), str(tmp_path / "m.pt2"))
    refuse_code(tmp_path / "m.pt2")
