"""Presets for the command line: what the user asked for beside one, and how each shipped one turns out on a target."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from qbench import targets
from qbench.cost import CostTable
from qbench.errors import BudgetError, InputError
from qbench.files import write_text
from qbench.graph import load_network
from qbench.network import Network
from qbench.protocols import Accuracy, Metric
from qbench.search import preset as presets
from qbench.search.budget import MaxDrop, parse_budgets
from qbench.search.derivation import Derivation, Given, derive
from qbench.target import Target
from qbench.workbench.case import Shapes, open_case
from qbench.workbench.placing import placed
from qbench.workbench.precisions import precision_of
from qbench.workbench.readings import calibrated

TARGET = "rk3588"
OFF = "none"
"""What --max-drop and --max-class-drop say to switch the preset's floor off."""
FREE_SCALES = ("sqnr", "kl")
"""Metrics that do not lie in 0..1: points mean nothing there."""


def given(budgets: Sequence[str] = (), max_drop: str | None = None, max_class_drop: str | None = None, precisions: Sequence[str] = (),
          op_points: Sequence[str] = ()) -> Given:
    """What the options say. Raises BudgetError and InputError for texts that cannot be read."""
    floors = {"max-drop": max_drop, "max-class-drop": max_class_drop}
    read = {name: MaxDrop.parse(text) for name, text in floors.items() if text is not None and text != OFF}
    return Given(parse_budgets(budgets), read.get("max-drop"), read.get("max-class-drop"), tuple(n for n, t in floors.items() if t == OFF),
                 tuple(precision_of(p) for p in precisions), tuple(op_points))


def derivation(name: str, target: Target, toolkit: str, network: Network, metric: Metric, asked: Given) -> Derivation:
    """The limits of a preset for a network on a target, as `placed` gives it. Raises what loading and `derive` raise, and BudgetError for a metric without points."""
    found = derive(presets.load(name), target, CostTable.build(network, target, toolkit), asked)
    if metric.name.partition(":")[0] in FREE_SCALES and "max-drop" not in asked.off and asked.max_drop is None:
        raise BudgetError(f"preset {found.preset.name} limits the loss in points of a metric in 0..1, and {metric.name} is not one: "
                          "give its own limit with --max-drop, switch the floor off with --max-drop none, or choose another --metric")
    return found


def check_classes(floor: MaxDrop | None, reference: Accuracy) -> None:
    """Raises InputError where each class shall be judged and the metric has none."""
    if floor is not None and not reference.classes:
        raise InputError(f"every class shall keep max-class-drop {floor.text}, and metric {reference.metric} has no classes: choose dice, miou, top1, "
                         "topk or accuracy (with labels), or leave this floor out: --max-class-drop none")


def loose(floor: MaxDrop | None, reference: Accuracy) -> list[str]:
    """A warning where the drop that is allowed is more than a metric in 0..1 can lose: percent without its sign, most likely."""
    if floor is None or floor.relative or floor.limit <= 1.0 or not 0.0 <= reference.value <= 1.0:
        return []
    return [(f"max-drop {floor.text} is in the metric's own unit, and {reference.metric} is {reference.value:.4g}: that limits nothing. "
             f"{floor.text.split()[0]}% are {floor.text.split()[0]} points")]


def preset_rows(name: str | None = None, target: str | None = None, model: Path | None = None, power: Path | None = None, toolkit: str | None = None,
                input_shapes: Shapes | None = None) -> list[dict[str, Any]]:
    """JSON-ready: all presets, or one of them; with its derivation where one or a target is named.

    target   default: rk3588; model   default: the network of the built-in sample
    A preset whose derivation fails on this target carries the reason in `refused`, unless it is the one that was named.
    """
    if name is None and target is None:
        return [_told(presets.load(n)) for n in presets.names()]
    prepared = load_network(model, input_shapes) if model else open_case().prepared
    network, chip = prepared.network, placed(target_of(target or TARGET, power, toolkit), prepared, toolkit)
    table = CostTable.build(network, chip, toolkit)
    if name is not None:
        return [_told(p := presets.load(name)) | _derived(p, chip, table)]
    rows = []
    for p in map(presets.load, presets.names()):
        try:
            rows.append(_told(p) | _derived(p, chip, table))
        except InputError as error:
            rows.append(_told(p) | {"target": chip.name, "network": network.name, "refused": str(error)})
    return rows


def _told(p: presets.Preset) -> dict[str, Any]:
    return {"name": p.name, "title": p.title, "story": p.story, "goal": str(p.goal)}


def _derived(p: presets.Preset, target: Target, table: CostTable) -> dict[str, Any]:
    return derive(p, target, table).to_dict() | {"target": target.name, "network": table.network.name}


def target_of(name: str, power: Path | None = None, toolkit: str | None = None) -> Target:
    """The target by name, in the watts of the user's readings where there are some."""
    target = targets.load(name)
    return calibrated(target, power, toolkit) if power else target


def copy_preset(name: str, path: Path) -> None:
    """Writes the file of a preset to `path`. Raises InputError for one that is there already."""
    presets.load(name)
    if path.exists():
        raise InputError(f"{path} is there already: choose another name, or remove it")
    source = presets.FOLDER / f"{name}.toml" if name in presets.names() else Path(name)
    write_text(path, source.read_text(encoding="utf-8"))
