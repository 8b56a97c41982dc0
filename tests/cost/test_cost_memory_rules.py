"""The [memory] table of a target file: what it may say, and what it is refused for."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from cost_networks import conv, network
from memory_networks import plain

from qbench.cost import CostTable
from qbench.cost.sharing import WAYS
from qbench.errors import TargetError
from qbench.network import Precision
from qbench.target import MemoryRules
from qbench.targets import load, names
from qbench.targets.loader import FOLDER, load_file


def edited(folder: Path, table: str) -> Path:
    text = (FOLDER / "stm32h7.toml").read_text(encoding="utf-8")
    start, end = text.index("\n[memory]\n") + 1, text.index("\n[cost]\n") + 1
    path = folder / "stm32h7.toml"
    path.write_text(text[:start] + table + text[end:], encoding="utf-8")
    return path


@pytest.mark.parametrize(("table", "words"), [
    ('[memory]\nallocator = { value = "buddy", source = "s" }\n', "memory.allocator.value is 'buddy'; expected one of rknn-toolkit2, or no such key"),
    ('[memory]\nshares = { value = ["all"], source = "s" }\n', "memory.shares.value is .*; expected a list out of view, in place, concat, split, input"),
    ('[memory]\nram_bytes = { value = 1.5, source = "s" }\n', "memory.ram_bytes.value is 1.5; expected a whole number"),
    ('[memory]\nram_bytes = { value = 1024 }\n', "memory.ram_bytes.source is missing; expected text"),
    ('[memory]\nram_kib = { value = 1, source = "s" }\n', "memory.ram_kib is .*; this key is unknown here")])
def test_impossible_entries_are_refused(tmp_path: Path, table: str, words: str) -> None:
    with pytest.raises(TargetError, match=words):
        load_file(edited(tmp_path, table))


def test_a_target_without_the_table_knows_nothing(tmp_path: Path) -> None:
    assert load_file(edited(tmp_path, "")).memory == MemoryRules()


def test_what_the_file_says_decides_what_shares_bytes_and_what_the_runtime_takes() -> None:
    net = network([conv("k", "x", "a", 16, 16, 8), plain("r", "Relu", "activation", ("a",), ("b",))],
                  {t: (1, 16, 8, 8) for t in "xab"}, ("x",), ("b",))
    target = load("stm32h7")
    table = CostTable.build(net, target)
    plan = table.memory(table.uniform(Precision.INT8))
    assert (plan.arena_bytes, plan.ram_bytes, plan.aliases) == (2048, 2048 + 16384, {"b": "a"})
    assert plan.peak_bytes == plan.ram_bytes + plan.weight_bytes
    alone = CostTable.build(net, replace(target, memory=MemoryRules(shares=())))
    assert alone.memory(alone.uniform(Precision.INT8)).aliases == {}


@pytest.mark.parametrize("name", names())
def test_every_entry_has_its_source(name: str) -> None:
    rules = load(name).memory
    said = {k for k in ("allocator", "runtime_ram_bytes", "ram_bytes", "flash_bytes", "shares") if getattr(rules, k) not in ("", 0, None)}
    assert said <= set(rules.sources)
    assert rules.shares is None or set(rules.shares) <= set(WAYS)
