"""How MLflow shows an experiment of qbench: the columns of its table in their order, the names of runs, the notes beside them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from qbench.report import text
from qbench.result import result_from_dict

VIEW = "qbench"
"""Key of the shared view; an address ends in `?viewStateShareKey=` and this."""
_COLUMNS = ("tags.`qbench.chosen`", "tags.`qbench.on_front`", "tags.`qbench.feasible`", "metrics.`accuracy`", "metrics.`drop`", "metrics.`latency_ms`", "metrics.`measured.latency_ms`",
            "metrics.`energy_mj`", "metrics.`peak_memory_bytes`", "metrics.`weight_bytes`", "tags.`qbench.op_point`", "params.`calibrator`",
            "attributes.`Models`")
_WIDTHS = {"tags.`qbench.on_front`": 130, "tags.`qbench.feasible`": 130, "metrics.`peak_memory_bytes`": 160, "metrics.`measured.latency_ms`": 170, "metrics.`weight_bytes`": 120,
           "tags.`qbench.op_point`": 130, "params.`calibrator`": 140, "tags.`qbench.chosen`": 120, "metrics.`drop`": 110}
_ABOUT = """One run per search, below it one run per plan that was built and run on the evaluation data.

* **accuracy**, **drop**: measured, with the ends of their 95 % interval as `_low` and `_high`
* **latency_ms**, **energy_mj**, **power_w**, **peak_memory_bytes**: predicted for the target; **measured.** what a board said
* **weight_bytes**: weights as the plan stores them; **model_bytes**: the written file, of plans on the front
* tags `qbench.on_front`, `qbench.feasible`, `qbench.chosen` filter: ``tags.`qbench.on_front` = 'yes'``

Each plan's `plan.json` rebuilds its model bit for bit (`qbench quantize MODEL --plan plan.json`); `report.html` of the search shows everything at once."""


def experiment_tags() -> dict[str, str]:
    """Of a new experiment: its description, and the shared view."""
    state = {"selectedColumns": list(_COLUMNS), "columnOrder": list(_COLUMNS), "columnWidths": _WIDTHS, "orderByKey": "metrics.`accuracy`", "orderByAsc": False,
             "runsHiddenMode": "SHOWALL", "runsPinned": []}                # MLflow 3.13 and older: an error page without it
    return {"mlflow.note.content": _ABOUT, "mlflow.experimentKind": "custom_model_development", f"mlflow.sharedViewState.{VIEW}": json.dumps(state)}


def search_name(target: str, params: Mapping[str, str]) -> str:
    """ "rk3588, 20ms": what tells one search of a network from another."""
    return ", ".join(p for p in (target, params.get("preset", "none"), params.get("limits", "none")) if p != "none")


def candidate_name(told: Mapping[str, Any]) -> str:
    """ "c017: 14 INT8, 6 FP16". """
    return f"{told['name']}: {text.layers(told['layers'])}"


def search_note(body: Mapping[str, Any], command: str) -> str:
    """A finished search in Markdown: what was asked and found, its side-by-side table, its warnings, how to repeat it."""
    result = result_from_dict(body)
    plans = [label for label, _ in text.side_by_side(result)]
    rows = [f"| {q.short} {q.unit} | " + " | ".join(f"{c.value} {c.interval}".strip() for c in q.cells) + " |" for q in text.comparison(result)]
    parts = [f"**{_quoted(text.asked(result))}**", _quoted(text.verdict(result)), _quoted(text.found(result)),
             "\n".join(["|  | " + " | ".join(plans) + " |", "| --- |" + " ---: |" * len(plans), *rows]), _quoted(text.basis(result)),
             "\n".join(f"* {_quoted(text.plain(w))}" for w in result.warnings), f"```\n{text.plain(command)}\n```" if command else ""]
    return "\n\n".join(p for p in parts if p)


def _quoted(said: str) -> str:
    """Text that Markdown leaves as it is: names come from the user's files."""
    return "".join(f"\\{c}" if c in "\\`*_[]<>#|" else c for c in said)
