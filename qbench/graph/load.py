"""Read a model: ONNX file, exported torch program, or torch module. An ONNX file brings no code; a .pt2 is looked through before torch reads it."""

from __future__ import annotations

import hashlib
import logging
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx_ir as ir

from qbench.errors import ModelError
from qbench.files import sha256
from qbench.graph.archive import refuse_code
from qbench.modelfiles import external_files, file_key

if TYPE_CHECKING:
    import torch

EXPORT_OPSET = 18
ONE_PROTOBUF_BYTES = 1_500_000_000
"""Models with more weights are hashed piece by piece: one protobuf holds 2 GB at most."""
SMALL_BYTES = 1024


def read(source: Path | str | ir.Model) -> tuple[ir.Model, str, str]:
    """The model, its name and its content key (SHA-256 over the file and its external data, hex).

    Raises ModelError for what cannot be read, also when external data lies outside the model's folder.
    """
    if isinstance(source, ir.Model):
        return source, source.graph.name or "model", _key_of_model(source)
    path = Path(source)
    if path.is_dir():
        raise ModelError(f"{path} is a folder; give an .onnx or a .pt2 model")
    if not path.is_file():
        raise ModelError(f"{path}: no such file; give an .onnx or a .pt2 model")
    if path.suffix == ".pt2":
        return from_exported_program(path), path.stem, sha256(path)
    if path.suffix in (".pt", ".pth", ".ckpt", ".bin"):
        raise ModelError(f"{path}: a pickled checkpoint can run code on load, so it is never opened. Export it: "
                         "torch.onnx.export(model, ...) to .onnx, or torch.export.save(...) to .pt2")
    try:
        model = ir.load(path)
    except Exception as error:                       # protobuf and onnx_ir raise many kinds here
        raise ModelError(f"{path}: not a readable ONNX file ({type(error).__name__}: {_first_line(error)})") from error
    if len(model.graph) == 0 and not model.graph.outputs:
        raise ModelError(f"{path}: the file holds no graph; is it an ONNX model?")
    return model, path.stem, file_key(path, external_files(model, path.parent))


def from_exported_program(path: Path) -> ir.Model:
    """The ONNX form of a torch.export archive (.pt2). Raises ModelError for one that would run code when it is read."""
    import torch

    refuse_code(path)
    try:
        program = torch.export.load(str(path))
    except Exception as error:
        raise ModelError(f"{path}: torch.export.load fails ({_first_line(error)}); "
                         "was it written by torch.export.save?") from error
    return _export(program, None)


def from_module(module: torch.nn.Module, example: tuple[Any, ...]) -> ir.Model:
    """The ONNX form of `module` in eval mode, traced with the tensors of `example`; the first axis stays dynamic.

    Raises ModelError with torch's reason when it cannot be exported.
    """
    import torch

    training = module.training
    try:
        batch = torch.export.Dim("batch")
        shapes = tuple({0: batch} if x.dim() > 0 and x.shape[0] > 1 else None for x in example)
        dynamic = shapes if any(shapes) else None
        program = torch.export.export(module.eval(), example, dynamic_shapes=dynamic)
        return _export(program, example)
    except Exception as error:
        raise ModelError(f"{type(module).__name__} cannot be exported by torch.export: {_first_line(error)}") from error
    finally:
        module.train(training)


def _export(program: Any, example: tuple[Any, ...] | None) -> ir.Model:
    import warnings

    import torch

    with warnings.catch_warnings(), tempfile.TemporaryDirectory() as folder, _no_word_of("torch.onnx"):
        warnings.simplefilter("ignore")              # torch's own deprecations: nothing that a user could mend
        path = Path(folder) / "model.onnx"
        torch.onnx.export(program, example or (), str(path), dynamo=True, opset_version=EXPORT_OPSET, verbose=False,
                          external_data=False)
        model = ir.load(path)
    return model


@contextmanager
def _no_word_of(package: str) -> Iterator[None]:
    """Warnings of a package's logs are left out, such as that torchvision, which nothing here needs, is not installed."""
    log = logging.getLogger(package)
    before = log.level
    log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        log.setLevel(before)


def _key_of_model(model: ir.Model) -> str:
    if weight_bytes(model) <= ONE_PROTOBUF_BYTES:
        return hashlib.sha256(ir.to_proto(model).SerializeToString(deterministic=True)).hexdigest()
    digest = hashlib.sha256()
    shell = model.clone()
    for graph in shell.graphs():
        for name, value in graph.initializers.items():
            held = value.const_value
            if held is not None and held.nbytes > SMALL_BYTES:
                digest.update(f"{name}/{held.dtype.name}/".encode())
                digest.update(np.ascontiguousarray(held.numpy()).view(np.uint8).reshape(-1).data)
                value.const_value = ir.ExternalTensor("hashed", 0, held.nbytes, held.dtype, name=name, shape=ir.Shape(held.numpy().shape), base_dir="")
    digest.update(ir.to_proto(shell).SerializeToString(deterministic=True))
    return digest.hexdigest()


def weight_bytes(model: ir.Model) -> int:
    """Bytes of all weights, those of bodies too."""
    return sum(v.const_value.nbytes for g in model.graphs() for v in g.initializers.values() if v.const_value is not None)


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:300]
