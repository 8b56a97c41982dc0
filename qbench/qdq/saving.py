"""Models to bytes and to files."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import onnx_ir as ir

from qbench.errors import InputError, ModelError
from qbench.files import make_folder, replacing

BIG_MODEL_BYTES = 1_500_000_000
"""Above this the weights go to a file beside the model: one protobuf holds 2 GB at most."""


def save(model: ir.Model, path: Path) -> None:
    """Checked by onnx.checker, then renamed into place. Weights above the protobuf limit go to `NAME.data` beside it.

    Raises InputError when that file is one that the model's own weights lie in.
    """
    import onnx

    size = sum(v.const_value.nbytes for v in model.graph.initializers.values() if v.const_value is not None)
    if size > BIG_MODEL_BYTES:
        _save_beside(model, path, path.with_name(path.name + ".data"))
        return
    data = to_bytes(model)
    try:
        onnx.checker.check_model(data)
    except onnx.checker.ValidationError as error:
        raise ModelError(f"{path}: what would be written does not pass onnx's checker: {str(error).splitlines()[0][:200]}. Does the model as you gave it? "
                         "Export it anew, with opset 21 where an operator is deprecated") from error
    with replacing(path) as temporary:
        temporary.write_bytes(data)


def _save_beside(model: ir.Model, path: Path, data: Path) -> None:
    """Both files under their names in a temporary folder first: the model names its data file."""
    import onnx

    for graph in model.graphs():
        for value in graph.initializers.values():
            if isinstance(value.const_value, ir.ExternalTensor) and Path(value.const_value.path).resolve() == data.resolve():
                raise InputError(f"{path}: its weights would go to {data}, which holds weights of the model itself; write to another folder or name")
    make_folder(path.parent)
    with tempfile.TemporaryDirectory(prefix=".qbench-", dir=path.parent) as folder:
        ir.save(model, Path(folder) / path.name, external_data=data.name)
        onnx.checker.check_model(str(Path(folder) / path.name))
        os.replace(Path(folder) / data.name, data)
        os.replace(Path(folder) / path.name, path)


def to_bytes(model: ir.Model) -> bytes:
    """One protobuf with everything inside: weights that still lie in files of their own are read."""
    if any(isinstance(v.const_value, ir.ExternalTensor) for g in model.graphs() for v in g.initializers.values()):
        model = model.clone()
        ir.external_data.load_to_model(model)
    data: bytes = ir.to_proto(model).SerializeToString(deterministic=True)
    return data
