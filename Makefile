# make demo | test | lint | bench | soak | tables | calibration | accuracy. Everything runs from .venv, made on first
# use with the python3 on PATH
# (another one: make PYTHON=python3.12 test). Setup runs again only after pyproject.toml changed.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
RUNTIME := $(VENV)/.installed-runtime
DEV := $(VENV)/.installed-dev
PIP := PIP_ROOT_USER_ACTION=ignore PIP_DISABLE_PIP_VERSION_CHECK=1 $(BIN)/python -m pip install --quiet
SEED ?= $(shell date +%s)

.NOTPARALLEL:
.PHONY: help demo test lint bench soak tables calibration accuracy clean

help:
	@echo "make demo    plan GPT-3 175B on 1,024 GPUs"
	@echo "make test    lint and the fast tests"
	@echo "make lint    ruff, mypy, import-linter"
	@echo "make bench   speed and memory of the planner"
	@echo "make tables  distil measured operators to time_model/data/operators (downloads a wheel of 82 MB)"
	@echo "make calibration  fit the shipped calibration and bands on the published runs"
	@echo "make accuracy     write docs/accuracy.md"
	@echo "make soak    long random tests (make soak SEED=1 repeats a run)"

demo: $(RUNTIME)
	$(BIN)/autoconfig search --model 175b --gpus 1024

test: lint
	$(BIN)/python -m pytest -n 2

lint: $(DEV)
	$(BIN)/python -m ruff check .
	$(BIN)/python -m mypy
	$(BIN)/lint-imports

bench: $(DEV)
	$(BIN)/python benchmarks/bench.py

tables: $(DEV)
	$(BIN)/python -m tools.distil_operator_tables

calibration: $(DEV)
	$(BIN)/python tools/fit_published.py

accuracy: $(DEV)
	$(BIN)/autoconfig validate --docs docs/accuracy.md

soak: $(DEV)
	@echo "soak: seed $(SEED) (make soak SEED=$(SEED) repeats this run)"
	AUTOCONFIG_SOAK=1 AUTOCONFIG_SOAK_SEED=$(SEED) $(BIN)/python -m pytest -m soak --hypothesis-seed=$(SEED)

clean:
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis

$(RUNTIME): pyproject.toml
	@$(call ensure_venv)
	$(PIP) --editable .
	@touch $@

$(DEV): pyproject.toml
	@$(call ensure_venv)
	$(PIP) --editable '.[dev]'
	@touch $(RUNTIME) $@

# A virtual environment that works: the one that is there, or a new one.
define ensure_venv
if ! $(BIN)/python -c 'import pip, sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; then \
	if ! command -v $(PYTHON) >/dev/null 2>&1; then \
		echo "$(PYTHON) is not on PATH; install Python 3.11 or newer, or say make PYTHON=/path/to/python3" >&2; exit 1; \
	elif ! $(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then \
		echo "Python 3.11 or newer is needed, this is $$($(PYTHON) -V 2>&1); say make PYTHON=python3.11 (or newer)" >&2; exit 1; \
	elif ! $(PYTHON) -m venv --clear $(VENV); then \
		rm -rf $(VENV); \
		echo "$(PYTHON) cannot make a virtual environment; install the venv module (Debian, Ubuntu: python3-venv)" >&2; exit 1; \
	fi; \
fi
endef
