"""What `qbench calibrators` shows."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from qbench.calibrators import names
from qbench.cli.app import app


def shown(*arguments: str) -> str:
    done = CliRunner().invoke(app, ["calibrators", *arguments])
    assert done.exit_code == 0, done.output
    return done.output


def test_every_calibrator_is_listed_with_options_and_source() -> None:
    rows = {row["name"]: row for row in json.loads(shown("--json"))}
    assert tuple(rows) == names()
    assert rows["sqnr"]["options"] == {"bits": 0, "clip": 1.0} and all("Source:" in row["about"] for row in rows.values())
    text = shown()
    assert all(f"\n{name}" in "\n" + text for name in names()) and "(MAE)" in text and "sides  " in text


@pytest.mark.parametrize("name", ["kl", "auto"])
def test_one_calibrator_is_shown_alone(name: str) -> None:
    assert [row["name"] for row in json.loads(shown(name, "--json"))] == [name]
    assert shown(name).startswith(name + "  ")


def test_an_unknown_name_is_refused() -> None:
    done = CliRunner().invoke(app, ["calibrators", "medn"])
    assert done.exit_code != 0 and "no calibrator 'medn'" in str(done.exception) + done.output
