"""The names that `import qbench` offers: listed, importable, and free of charge until used."""

import subprocess
import sys

import qbench


def test_the_list_is_what_can_be_imported() -> None:
    assert sorted(qbench.__all__) == sorted(qbench._WHERE)
    assert 10 <= len(qbench.__all__) <= 25
    for name in qbench.__all__:
        assert getattr(qbench, name) is not None
        assert name in dir(qbench)


def test_an_unknown_name_is_an_attribute_error() -> None:
    assert not hasattr(qbench, "nothing_of_the_kind")


def test_import_is_light() -> None:
    code = "import sys, qbench; print([m for m in ('torch', 'onnxruntime', 'mlflow', 'optuna', 'numba', 'numpy') if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip() == "[]"
