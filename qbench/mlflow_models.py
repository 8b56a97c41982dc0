"""Q/DQ models in MLflow: logged beside the run of their plan, with their signature; the chosen one in the model registry."""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path
from typing import Any

import onnx


def log_model(path: Path, run_id: str, name: str, tags: dict[str, str]) -> Any:
    """MLflow's record of the model, an ONNX file at `path`; the tracking URI is the process's."""
    import mlflow.onnx
    from mlflow.models import Model

    model = onnx.load(path)
    needs = [f"{p}=={version(p)}" for p in ("onnx", "onnxruntime")]
    return Model.log(None, mlflow.onnx, name=name, run_id=run_id, tags=tags, onnx_model=model, signature=signature(model), pip_requirements=needs)


def signature(model: onnx.ModelProto) -> Any:
    """Names, types and shapes of inputs and outputs; open axes are -1. None where a value is no tensor of numbers."""
    from mlflow.models import ModelSignature
    from mlflow.types import Schema, TensorSpec

    def schema(values: Any) -> Any:
        return Schema([TensorSpec(onnx.helper.tensor_dtype_to_np_dtype(v.type.tensor_type.elem_type),
                                  tuple(d.dim_value or -1 for d in v.type.tensor_type.shape.dim), v.name) for v in values])

    weights = {w.name for w in model.graph.initializer}
    values = [v for v in model.graph.input if v.name not in weights], list(model.graph.output)
    if any(not v.type.HasField("tensor_type") for side in values for v in side):
        return None
    return ModelSignature(inputs=schema(values[0]), outputs=schema(values[1]))


def promote(client: Any, name: str, alias: str, logged: Any, run_id: str, note: str) -> str:
    """Makes a logged model the newest version of the registered model `name`; `alias` then names it. Returns what was done."""
    from mlflow.exceptions import MlflowException

    try:
        client.create_registered_model(name)
    except MlflowException as error:
        if error.error_code != "RESOURCE_ALREADY_EXISTS":
            raise
    made = client.create_model_version(name, logged.model_uri, run_id, description=note, model_id=logged.model_id)
    client.set_registered_model_alias(name, alias, made.version)
    return f"{name} version {made.version}, models:/{name}@{alias}"
