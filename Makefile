# `make help` lists the targets. Everything runs from .venv, made on first use with the python3 on PATH (another one:
# make PYTHON=python3.12 test). Setup runs again only after pyproject.toml changed.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
RUNTIME := $(VENV)/.installed-runtime
DEV := $(VENV)/.installed-dev
PIP_INSTALL := -m pip install --quiet --root-user-action=ignore --disable-pip-version-check
PIP := $(BIN)/python $(PIP_INSTALL)
TORCH_FOR_CPU := 'torch==2.13.0+cpu'
JUDGE_VENV := .venv-judge
JUDGE_BIN := $(JUDGE_VENV)/bin
JUDGE := $(JUDGE_VENV)/.installed
RAY_VENV := .venv-ray
RAY := $(RAY_VENV)/.installed
DOCS_BIN := .venv-docs/bin
DOCS := .venv-docs/.installed
RAY_BOUND := $(shell sed -n 's/.*"ray>=\([0-9.]*\)".*/\1/p' pyproject.toml)
JUDGE_RL_VENV := .venv-judge-rl
JUDGE_RL := $(JUDGE_RL_VENV)/.installed
# Python sources of serving engines, whose own functions judge memory_model.engines
JUDGE_ENGINES := .judge-engines
JUDGE_PIP := $(JUDGE_BIN)/python $(PIP_INSTALL)
GPU_PYTHON ?= $(PYTHON)
# the tree as it is imported (`autoconfig/specs` -> `specs`), made of links: what type checker and import-linter read
LINKS := build/import
SEED ?= $(shell date +%s)

# Containers set it, and each of the hundreds of processes that tests start would compile every module again.
unexport PYTHONDONTWRITEBYTECODE

.NOTPARALLEL:
.PHONY: help demo fast test ray services lint hooks docs bounds judge families bench soak mutants lock release figures tables calibration accuracy profiling-docs gpu clean

help:
	@echo "make demo    plan GPT-3 175B on 1,024 GPUs"
	@echo "make fast    tests of formulas, lanes, structure and edges: no server, database, browser, torch or Slurm (make fast ROOM=formats: of that folder)"
	@echo "make test    lint and all tests but the judge's and the long ones (services and a browser are installed as root)"
	@echo "make ray     studies on a real Ray cluster of three nodes on this machine (300 MB on first use)"
	@echo "make lint    ruff, mypy, import-linter"
	@echo "make hooks   let git run ruff and the other quick checks of .pre-commit-config.yaml before each commit"
	@echo "make docs    build the docs site in build/site/html, links checked (40 MB on first use)"
	@echo "make bounds  the main commands and quick tests with every dependency at its lower bound (3 minutes)"
	@echo "make judge   our rules and exports against the real megatron-core 0.19.2 (Python 3.12; 5 GB on first use)"
	@echo "make families  write docs/families.md and what tests know of transformers' classes (after another release of it)"
	@echo "make bench   speed and memory of the planner (make bench BASE=REVISION: the search's wall time beside another revision's)"
	@echo "make tables  distil measured operators to time_model/data/operators and data/serving (downloads a wheel of 82 MB)"
	@echo "make calibration  fit the shipped calibration and bands on the published runs"
	@echo "make accuracy     write docs/accuracy.md"
	@echo "make profiling-docs  replay recorded sweeps, write docs/profiling.md's table (with Optuna's GP where torch is installed)"
	@echo "make gpu PART=kernels    measure on a GPU with torch's own Python (GPU_PYTHON=...); each part 8 minutes or less, resumable"
	@echo "make mutants share of small mutations of the formulas that survive the tests (SAMPLE=50: a try)"
	@echo "make figures write tests/planning/figures.txt anew, after a change that was meant"
	@echo "make lock    write deploy/requirements.txt anew: the image's packages with their hashes"
	@echo "make release sdist and wheel in dist/, checked and installed on Python 3.11, 3.12 and 3.13; uploads nothing"
	@echo "make soak    long random tests (make soak SEED=1 repeats a run)"

demo: $(RUNTIME)
	$(BIN)/autoconfig search --model 175b --gpus 1024

PYTEST := $(BIN)/python -m pytest --dist loadgroup --durations=15
# The vocabulary and the formulas, the lanes, the edges, the structure. `make fast ROOM=formats`, or ROOM="maps runs": these folders
# of tests instead, whichever they are.
FAST := specs memory_model time_model planning training serving post_training sizing core cli render notebook test_structure.py \
	test_docs.py test_project.py test_deploy.py
fast: $(DEV)
	$(PYTEST) -n 2 -m 'not (service or browser or torch or slurm or ray or judge or soak or long)' $(addprefix tests/,$(or $(ROOM),$(FAST)))

test: lint services
	tools/install_browser.sh $(BIN)/python
	$(PYTEST) -n 3

# Studies on a Ray cluster, with ray at its lower bound, in an environment of its own: ray alone is 280 MB. What Ray's daemons and
# threads leave open is no failure.
ray: $(RAY)
	$(RAY_VENV)/bin/python -m pytest -n 0 -m ray -p no:unraisableexception -p no:threadexception --durations=5 tests/profiler/test_ray.py

# Slurm and PostgreSQL for the tests of profiling: Debian's packages as root; elsewhere it names what is missing.
services:
	tools/install_services.sh

lint: $(DEV)
	$(BIN)/python -m ruff check .
	$(BIN)/python -m ruff format --check .
	@PYTHONPATH=. $(BIN)/python -P specs/import_path.py >/dev/null
	@ln -sfn ../../tools ../../validation ../../benchmarks $(LINKS)/
	cd $(LINKS) && $(abspath $(BIN))/python -m mypy -n 2 --config-file $(CURDIR)/pyproject.toml
	cd $(LINKS) && PYTHONPATH=. $(abspath $(BIN))/lint-imports --config $(CURDIR)/pyproject.toml

hooks: $(DEV)
	$(BIN)/pre-commit install

# The pages of the repository with what commands print and the references; a warning (a link to nothing, a page outside the
# navigation) is an error.
docs: $(DOCS)
	@PYTHONPATH=. $(DOCS_BIN)/python -P specs/import_path.py >/dev/null
	$(DOCS_BIN)/python -m tools.docs_site pages
	NO_MKDOCS_2_WARNING=1 $(DOCS_BIN)/python -m mkdocs build --quiet --strict
	$(DOCS_BIN)/python -m tools.docs_site check

# Every dependency at the lower bound of pyproject.toml, in an environment of its own.
bounds: $(RUNTIME)
	$(BIN)/python -m tools.lower_bounds

# The real megatron-core as judge of exports and rules, the training core on it, and the longer tests of the others that
# are marked `judge`; writes docs/legality.md. No GPU is needed. The two longest files begin, one on each process.
JUDGED = tests/validation/test_sheets.py tests/trainer/test_agreement.py tests/judge $(shell grep -rl 'mark\.judge' tests --include='test_*.py')
judge: $(JUDGE) $(JUDGE_RL) $(JUDGE_ENGINES)/.unpacked
	$(JUDGE_BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder -m 'judge and not soak' $(JUDGED)
	$(JUDGE_BIN)/python -m validation.judge.page

# What transformers' classes count, after another release of it: its tests in `make judge` say when.
families: $(JUDGE)
	$(JUDGE_BIN)/python -m validation.judge.families

# With BASE, a revision: the wall time of a whole search beside that revision's.
bench: $(DEV)
ifdef BASE
	$(BIN)/python -m benchmarks.against_base $(BASE)
else
	$(BIN)/python -m benchmarks.bench
	$(BIN)/python -m benchmarks.service_load
	$(BIN)/python -m tools.modules_used
endif

tables: $(DEV)
	$(BIN)/python -m validation.distil.operator_tables
	$(BIN)/python -m validation.distil.serving

calibration: $(DEV)
	$(BIN)/python -m validation.fit.fit_published

profiling-docs: $(DEV)
	$(BIN)/python -m validation.replay.docs

accuracy: $(DEV)
	$(BIN)/python -m validation.sheets.pages
	$(BIN)/python -m validation.fit.published_errors

# Measurements on a GPU, with a Python that has torch (GPU_PYTHON), not .venv: a container's torch and Transformer Engine stay in
# use. Stopped at 8 minutes or by Ctrl-C, the same command goes on. FLAGS='--device cpu --set tiny' tries it without a GPU.
gpu:
	@if ! $(GPU_PYTHON) -c 'import torch, numpy, scipy' >/dev/null 2>&1; then \
		echo "make gpu needs a Python with torch, numpy and scipy (a pip install of '.[train,gpu]', or a container's):" \
			"make gpu PART=kernels GPU_PYTHON=/path/to/python3" >&2; exit 2; \
	fi
	@PYTHONPATH="$(CURDIR)" $(GPU_PYTHON) -P specs/import_path.py >/dev/null
	@PYTHONPATH="$(CURDIR)/$(LINKS):$(CURDIR)$${PYTHONPATH:+:$$PYTHONPATH}" $(GPU_PYTHON) -P -m tools.gpu --part "$(PART)" $(FLAGS)

soak: $(DEV)
	@echo "soak: seed $(SEED) (make soak SEED=$(SEED) repeats this run)"
	AUTOCONFIG_SOAK=1 AUTOCONFIG_SOAK_SEED=$(SEED) $(BIN)/python -m pytest -n 2 --dist loadgroup -m 'soak or judge' --hypothesis-seed=$(SEED)
	@[ -e $(JUDGE) ] || echo "the judge's random plans are left out: run make judge first"
	@[ ! -e $(JUDGE) ] || AUTOCONFIG_SOAK_SEED=$(SEED) $(JUDGE_BIN)/python -m pytest -n 2 --dist loadgroup -m soak tests/judge

# What small searches, plans and deployments take today, after a change that was meant.
figures: $(DEV)
	AUTOCONFIG_RECORD=1 $(BIN)/python -m pytest -q -n 0 tests/planning/test_figures.py

# Small mutations of memory_model and time_model by mutmut, each against the tests that reach it. SAMPLE=0: all of them;
# FLAGS='--seed 38': the same ones again.
SAMPLE ?= 200
mutants: $(DEV)
	nice -n 10 $(BIN)/python -m tools.mutants --sample $(SAMPLE) $(FLAGS)

# Versions and hashes of what the image installs, with what builds our wheel.
lock:
	$(PYTHON) -m venv build/uv
	build/uv/bin/python $(PIP_INSTALL) uv
	$(PYTHON) -c 'import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["build-system"]["requires"], sep="\n")' > build/requires.txt
	build/uv/bin/uv pip compile --quiet --upgrade --generate-hashes --no-header --no-annotate --extra serve --python-version 3.12 \
		--python-platform x86_64-manylinux_2_28 --output-file deploy/requirements.txt pyproject.toml build/requires.txt

# dist/ afterwards holds what an owner may upload (CONTRIBUTING.md, releases).
release:
	$(PYTHON) -m tools.release

clean:
	rm -rf $(VENV) $(RAY_VENV) .venv-docs $(JUDGE_VENV) build $(JUDGE_ENGINES) dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis

$(RUNTIME): pyproject.toml setup.py
	@$(call ensure_venv)
	$(PIP) --editable .
	@touch $@

$(DEV): pyproject.toml setup.py
	@$(call ensure_venv)
	@$(PIP) $(TORCH_FOR_CPU) >/dev/null 2>&1 || echo "no wheel $(TORCH_FOR_CPU) here: torch's CUDA build is installed (5 GB)"
	$(PIP) --editable '.[dev,train]'
	@touch $(RUNTIME) $@

$(RAY): $(RUNTIME)
	$(BIN)/python -m venv --clear $(RAY_VENV)
	$(RAY_VENV)/bin/python $(PIP_INSTALL) --editable '.[ray]' ray==$(RAY_BOUND) 'pytest<9.2' pytest-xdist hypothesis
	@touch $@

$(DOCS): pyproject.toml setup.py
	@$(call ensure_venv)
	$(BIN)/python -m venv --clear .venv-docs
	$(DOCS_BIN)/python $(PIP_INSTALL) --editable '.[docs]'
	@touch $@

# megatron-core 0.19.2 needs Python 3.12: the python3.12 on PATH, or that of pyenv. The finished file comes last, so that a
# broken installation is made again.
$(JUDGE): pyproject.toml setup.py
	@set -e; \
	works() { "$$@" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info[:2] != (3, 12))' >/dev/null 2>&1; }; \
	if works $(JUDGE_BIN)/python; then :; \
	elif works python3.12; then python3.12 -m venv --clear $(JUDGE_VENV); \
	elif works env PYENV_VERSION=3.12.1 python3.12; then PYENV_VERSION=3.12.1 python3.12 -m venv --clear $(JUDGE_VENV); \
	else \
		echo "make judge needs Python 3.12 with the venv module (megatron-core 0.19.2): no working python3.12 on PATH," \
			"nor with PYENV_VERSION=3.12.1; install it (pyenv install 3.12.1, or python3.12-venv) and run make judge again" >&2; \
		exit 1; \
	fi
	@$(JUDGE_PIP) $(TORCH_FOR_CPU) >/dev/null 2>&1 || echo "no wheel $(TORCH_FOR_CPU) here: torch's CUDA build is installed (5 GB)"
	$(JUDGE_PIP) --editable '.[judge]'
	$(JUDGE_PIP) --no-deps 'torchtitan==0.2.2'  # the last with TOML; its data loaders and loggers are not needed
	@touch $@

# Real parsers of post-training frameworks, beside the judge's torch and transformers, whose folder its path names.
$(JUDGE_RL): $(JUDGE) validation/judge/post_training.txt
	$(JUDGE_BIN)/python -m venv --clear $(JUDGE_RL_VENV)
	@$(JUDGE_BIN)/python -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])' > \
		"$$($(JUDGE_RL_VENV)/bin/python -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])')/judge.pth"
	$(JUDGE_RL_VENV)/bin/python $(PIP_INSTALL) --no-deps -r validation/judge/post_training.txt
	@touch $@

# Wheels of 10 to 110 MB, fetched one by one, of which 17 MB of sources are kept.
$(JUDGE_ENGINES)/.unpacked: $(JUDGE) validation/judge/engines.txt validation/judge/engine_sources.py
	$(JUDGE_BIN)/python -m validation.judge.engine_sources $(JUDGE_ENGINES)
	@touch $@

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
