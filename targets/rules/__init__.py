"""What each toolchain does with operators. A target file names its rule set: `rules = "rknn"`; one without is read off its lists.

    rules_of(target)   the `qbench.placement.record.Rules` of a target
"""

from __future__ import annotations

from collections.abc import Mapping

from qbench.placement.record import Rules
from qbench.target import Target
from qbench.targets.rules.coreml import BOOK as COREML
from qbench.targets.rules.lists import BOOK as LISTS
from qbench.targets.rules.qnn import BOOK as QNN
from qbench.targets.rules.rknn import BOOK as RKNN

BOOKS: Mapping[str, Rules] = {"rknn": RKNN, "qnn": QNN, "coreml": COREML, "": LISTS}
"""Rule set -> its rules; "" for targets that name none."""


def rules_of(target: Target) -> Rules:
    return BOOKS[target.rules]


__all__ = ["BOOKS", "rules_of"]
