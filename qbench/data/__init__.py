"""Data sets: a `.npz`, a folder, or `module:function`, behind one protocol (`qbench.protocols.Dataset`).

    open_dataset("samples.npz", inputs=[("image", (None, 3, 224, 224), "float32")])

    `.npz`            keys are the model's input names, first axis samples, `labels` beside them
    folder            one .npy, .npz or picture a sample, shapes may differ; sub-folders are classes
    module:function   (or file.py:function) yields dicts of input name -> array, `labels` beside them
"""

from __future__ import annotations

from pathlib import Path

from qbench.data.arrays import ArrayDataset, Transform, open_npz, take
from qbench.data.inputs import Inputs, InputSpec
from qbench.data.preprocessing import Preprocessing
from qbench.data.preprocessing import parse as parse_preprocessing
from qbench.data.streams import FunctionDataset, open_folder
from qbench.errors import DataError
from qbench.protocols import Dataset
from qbench.userfunction import is_function_spec, load_function

FORMS = "a .npz, a folder of .npy, .npz or pictures, or module:function"


def open_dataset(spec: str, *, inputs: Inputs, preprocessing: Preprocessing | None = None, limit: int | None = None) -> Dataset:
    """The data set that `spec` names, checked against the model's inputs.

    inputs   (name, shape, dtype) of each model input; shape with the batch axis first, None where an axis is free
    limit    use the first that many samples
    Raises DataError that says what is missing or does not fit. A folder's and a function's samples are checked when read.
    """
    if limit is not None and limit < 1:
        raise DataError(f"data {spec!r}: a limit of {limit} samples; at least 1 is needed")
    if flat := [name for name, shape, _ in inputs if not shape]:
        raise DataError(f"data {spec!r}: the model's input {flat[0]!r} is a single number without a batch axis, "
                        f"which no data set can feed; fix it to a constant: --input-value {flat[0]}=VALUE")
    if several := [i for i in inputs if i[1][0] is not None and i[1][0] > 1]:
        raise DataError(f"data {spec!r}: the model's input {InputSpec(*several[0])} takes {several[0][1][0]} samples at a time, and data sets are fed one by one: "
                        "export it with an open first axis, or one of 1 (`qbench cost` needs no data and takes it as it is)")
    path = Path(spec).expanduser()
    if path.is_dir():
        return open_folder(path, inputs, preprocessing, limit)
    if path.is_file() and path.suffix.lower() == ".npz":
        opened = open_npz(path, inputs, preprocessing)
        return opened if limit is None else take(opened, limit)
    if not path.exists() and is_function_spec(spec):
        return FunctionDataset(spec, load_function(spec), inputs, limit)
    what = f"is a {path.suffix or 'plain'} file" if path.exists() else "does not exist"
    raise DataError(f"data {spec!r} {what}; a data set is {FORMS}")


__all__ = ["ArrayDataset", "Dataset", "InputSpec", "Inputs", "Preprocessing", "Transform", "open_dataset", "parse_preprocessing", "take"]
