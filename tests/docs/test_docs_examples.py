"""Every example of every help text is run, in a folder that holds what it names."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from command_lines import examples, leaves
from desk import OUTSIDE, codes, lay, needs, run_line, without_toolchains

LINES = list(dict.fromkeys(e for name, command in leaves() if name != "init" for e in examples(command)))


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("desk")
    with without_toolchains(), pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        lay(folder, 224, 3)
        yield folder


@pytest.mark.parametrize("line", [e for e in LINES if not needs(e)])
def test_examples_run(line: str, desk: Path, capfd: pytest.CaptureFixture[str]) -> None:
    code, run = run_line(line)
    said = capfd.readouterr()
    assert code in codes(run), f"{run}: exit code {code}\n{said.err}"
    assert (said.out + said.err).strip()


def test_init_writes_what_a_search_then_takes(desk: Path) -> None:
    try:
        [line] = next(examples(command) for name, command in leaves() if name == "init")
        assert run_line(line)[0] == 0 and run_line("qbench search")[0] in (0, 1)
    finally:
        (desk / "qbench.toml").unlink(missing_ok=True)


def test_few_examples_are_left_out() -> None:
    assert {needs(e) for e in LINES} <= {"", OUTSIDE["toolchain install"]}
