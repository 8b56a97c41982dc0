"""Docstrings of qbench as Markdown: "name   what it is" becomes a list item, where a page would run such lines together."""

from __future__ import annotations

import re
from typing import Any

from griffe import Extension

_FIELD = re.compile(r"^(\w[\w *,.]*?) {2,}(\S.*)$")


class Fields(Extension):
    """Rewrites each docstring as it is read."""

    def on_instance(self, *, obj: Any, **_: Any) -> None:
        if obj.docstring is None:
            return
        told: list[str] = []
        for line in obj.docstring.value.splitlines():
            if found := _FIELD.match(line):
                told += ["", f"* `{found[1]}` {found[2]}"]
            elif line.startswith(("Raises ", "Source: ")):
                told += ["", line]
            else:
                told.append(line.strip() if told and told[-1].startswith(("* ", "  ")) and line.startswith(" ") else line)
        obj.docstring.value = "\n".join(told)
