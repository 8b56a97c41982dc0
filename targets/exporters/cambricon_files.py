"""The two JSON files that MagicMind's build takes: its own configuration, and our ranges and precisions for the script.

Sources: public samples of Cambricon/magicmind_cloud (2023: gen_model.py, builder_config.json) for archs, opt_config, precision_config,
graph_shape_mutable; Cambricon's C++ sample of quantization (2020-2023) for SetDynamicRange, SetDynamicRangePerAxis, SetPrecision, SetOutputType and
for what a range is: symmetric 8 bits of scale 1/127 are the range -1 to 1. Python's names are those of the C++ calls in the style of the samples.
"""

from __future__ import annotations

import json
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from qbench.errors import ToolError

Mode = Literal["force_float32", "force_float16", "qint8_mixed_float16", "qint16_mixed_float16", "qint8_mixed_float32", "qint16_mixed_float32"]
Type = Literal["QINT8", "QINT16", "FLOAT16", "FLOAT32"]
BITS = {"QINT8": 8, "QINT16": 16}


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class PrecisionConfig(_Strict):
    precision_mode: Mode
    activation_quant_algo: Literal["symmetric", "asymmetric"]
    weight_quant_granularity: Literal["per_tensor", "per_axis"]


class OptConfig(_Strict):
    type64to32_conversion: bool
    conv_scale_fold: bool


class BuilderConfig(_Strict):
    """builder_config.json. archs   chip -> numbers of cores that it is built for"""

    archs: list[dict[Literal["mtp_220", "mtp_270", "mtp_290", "tp_322", "mtp_372", "mtp_592"], list[int]]] = Field(min_length=1)
    graph_shape_mutable: bool
    precision_config: PrecisionConfig
    opt_config: OptConfig


class Tensor(_Strict):
    """One input or output of a node. ranges   low and high, one pair or one per channel; key  what the plan calls it, "" none; None ranges: float"""

    index: int = Field(ge=0)
    type: Type
    key: str = ""
    ranges: list[tuple[float, float]] | None = None


class Node(_Strict):
    name: str
    layer: str
    inputs: list[Tensor]
    outputs: list[Tensor]


class Layers(_Strict):
    """layers.json, for build.py. inputs   ranges of the network's inputs, index among them"""

    nodes: list[Node]
    inputs: list[Tensor]


def text(body: BaseModel) -> str:
    return json.dumps(body.model_dump(mode="json"), indent=1, ensure_ascii=False) + "\n"


def read_builder(content: str) -> BuilderConfig:
    """Raises ToolError that names the entry, for JSON that MagicMind's samples do not allow."""
    try:
        return BuilderConfig.model_validate_json(content)
    except ValidationError as error:
        raise ToolError(f"builder_config.json: {_first(error)}") from None


def read_layers(content: str) -> Layers:
    """Raises ToolError that names the entry."""
    try:
        found = Layers.model_validate_json(content)
    except ValidationError as error:
        raise ToolError(f"layers.json: {_first(error)}") from None
    for node in found.nodes:
        for tensor in (*node.inputs, *node.outputs):
            if any(low != -high or not high > 0.0 for low, high in tensor.ranges or ()):
                raise ToolError(f"layers.json: node {node.name!r}, {tensor.key or tensor.index}: a symmetric range is -x to x with x above 0")
    return found


def _first(error: ValidationError) -> str:
    one = error.errors()[0]
    return f"{'.'.join(map(str, one['loc'])) or 'the whole'}: {one['msg']}"
