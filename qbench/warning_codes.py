"""Codes of the warnings that users meet most; docs/troubleshooting.md has a section for each.

A warning is a sentence that the place that found it writes; its code is told from the words that do not change.
"""

from __future__ import annotations

CODES = {
    "QB201": "calibrated and evaluated on the same samples",
    "QB202": "evaluation samples: their accuracy says little",
    "QB203": "no --metric given",
    "QB204": "constant over the whole calibration set",
    "QB205": "the finite values only",
    "QB206": "evaluation samples hold NaN or infinity",
    "QB207": "is the same for every evaluation sample",
    "QB208": "not verified on silicon",
    "QB209": "the toolchain refuses",
    "QB210": "not in the latency",
    "QB211": "the search found no others within the budgets",
    "QB212": "FP16 could overflow",
}


def code_of(warning: str) -> str:
    """"QB202", or "" for a warning without a section of its own."""
    return next((code for code, words in CODES.items() if words in warning), "")
