"""Writes docs/targets: one page and, where latencies were published, one drawing for each target, and the table of all.

    python experiments/target_pages.py           writes what changed, and says what
    python experiments/target_pages.py --check   writes nothing; exit code 1 when a file is not what it should be

To run after a fit. Everything comes from targets/*.toml, the docstrings of targets/rules and data/validation.csv.xz; the same input gives the
same bytes.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import onnx.defs
import validation

from qbench.files import write_text
from qbench.placement.record import Operator
from qbench.report.held_out_svg import svg
from qbench.report.target_page import Operators, RuleText, index, page
from qbench.target import Target
from qbench.targets import aliases, load, names
from qbench.targets.rules import rules_of
from qbench.targets.rules.registry import Book, Case

FOLDER = Path(__file__).parent.parent / "docs" / "targets"


def operators(target: Target) -> Operators:
    """What the target's rule set says; the table of the set itself where the file has no list."""
    book = rules_of(target)
    if not isinstance(book, Book):
        return Operators()
    said = [RuleText(r.ops, r.text, str(r.puts), r.source, r.toolkits) for r in book.rules]
    return Operators(said, placements(book, target) if target.rules and target.operators is None else None)


def placements(book: Book, target: Target) -> dict[str, list[str]]:
    """Where the default toolkit puts each ONNX operator that the set's table knows, by precision where that matters."""
    found = defaultdict[str, list[str]](list)
    for op in sorted({s.name for s in onnx.defs.get_all_schemas() if not s.domain}):
        where = {str(p): str(book.listed(Operator(op, op, (), ()), Case(target, p, target.toolkit(None))).placement) for p in target.available()}
        if set(where.values()) != {"unknown"}:
            found[next(iter(where.values())) if len(set(where.values())) == 1 else ", ".join(f"{w} in {p.upper()}" for p, w in where.items())].append(op)
    return dict(sorted(found.items(), key=lambda item: -len(item[1])))


def files() -> dict[str, str]:
    """Name -> text of everything in docs/targets."""
    every, found = validation.read(), dict[str, str]()
    targets = [(load(n), [r for r in every if r.target == n]) for n in names()]
    for target, rows in targets:
        found[f"{target.name}.md"] = page(target, rows, operators(target), [a for a, n in aliases().items() if n == target.name])
        if rows:
            found[f"{target.name}.svg"] = svg(rows, target.latency_factor_low, target.latency_factor_high, f"{target.name}: published against predicted latency")
    return {**found, "index.md": index(targets)}


def main(argv: Sequence[str]) -> int:
    wanted = files()
    there = {p.name: p.read_text(encoding="utf-8") for p in FOLDER.glob("*")}
    changed = [n for n, body in wanted.items() if there.get(n) != body]
    stale = sorted(there.keys() - wanted.keys())
    if "--check" not in argv:
        for name in changed:
            write_text(FOLDER / name, wanted[name])
        for name in stale:
            (FOLDER / name).unlink()
    print(f"{len(wanted)} files, {len(changed)} changed: {', '.join(changed) or 'none'}; not a target's: {', '.join(stale) or 'none'}")
    return 1 if "--check" in argv and (changed or stale) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
