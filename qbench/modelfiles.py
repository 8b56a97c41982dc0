"""The files that a model consists of: its own, and those beside it that hold its weights."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from qbench.errors import InputError, ModelError
from qbench.files import sha256

if TYPE_CHECKING:
    import onnx_ir as ir


def refuse_overwriting(output: Path, **inputs: Path | str | None) -> None:
    """Raises InputError when `output` is one of the files that the job reads, those with a model's weights among them; `inputs` by what the
    user calls them."""
    goal = Path(output).resolve()
    for name, source in inputs.items():
        if source is None:
            continue
        if Path(source).resolve() == goal:
            raise InputError(f"the output {output} is the {name.replace('_', ' ')} itself and would destroy it; give another name")
        if goal.is_file() and goal in weight_files(Path(source)):
            raise InputError(f"the output {output} holds weights of {source} and would destroy them; give another name")


def weight_files(model: Path) -> list[Path]:
    """Files beside a model that hold its weights, those of bodies and attributes too; none for what is no ONNX model."""
    if model.suffix.lower() == ".pt2" or not model.is_file():
        return []
    import onnx_ir as ir

    try:
        read = ir.load(model)
    except Exception:      # noqa: BLE001  whatever protobuf raises: who reads the model says what is wrong with it
        return []
    return sorted({(model.parent / str(t.location)).resolve() for _, t in tensors(read) if isinstance(t, ir.ExternalTensor)})


def external_files(model: ir.Model, folder: Path) -> list[Path]:
    """Files that hold the weights. Raises ModelError for one that is missing, too short, or not inside `folder`."""
    import onnx_ir as ir

    found: dict[Path, None] = {}
    for name, tensor in tensors(model):
        if not isinstance(tensor, ir.ExternalTensor):
            continue
        location = str(tensor.location)
        if PurePosixPath(location).is_absolute() or Path(location).is_absolute() or ".." in PurePosixPath(location).parts:
            raise ModelError(f"{name} keeps its data in {location!r}, outside the model's folder; "
                             "external data must lie beside the model under a relative name")
        path = folder / location
        if not path.resolve().is_relative_to(folder.resolve()):
            raise ModelError(f"{name}: {location!r} is a link that leaves the model's folder")
        if not path.is_file():
            raise ModelError(f"{name}: its data file {path} is missing; copy it beside the model")
        end = (tensor.offset or 0) + tensor.nbytes
        if end > path.stat().st_size:
            raise ModelError(f"{name}: its data should reach to byte {end} of {path}, which has {path.stat().st_size}; "
                             "the copy is not complete, copy it again")
        found[path] = None
    return list(found)


def tensors(model: ir.Model) -> Iterator[tuple[str, ir.TensorProtocol]]:
    """Words for a constant, and its data: initializers and attributes, in bodies and functions too."""
    import onnx_ir as ir

    for graph in model.graphs():
        for value in graph.initializers.values():
            if value.const_value is not None:
                yield f"initializer {value.name!r}", value.const_value
    for node in (*model.graph.all_nodes(), *(n for f in model.functions.values() for n in f.all_nodes())):
        for attribute in node.attributes.values():
            if attribute.type == ir.AttributeType.TENSOR and not attribute.is_ref():
                yield f"attribute {attribute.name!r} of node {node.name!r}", attribute.as_tensor()


def file_key(path: Path, external: Sequence[Path]) -> str:
    """Hex SHA-256 over a model's file and those with its weights."""
    if not external:
        return sha256(path)
    digest = hashlib.sha256(sha256(path).encode())
    for other in sorted(external):
        digest.update(sha256(other).encode())
    return digest.hexdigest()
