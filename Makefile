# `make` lists the targets. Everything happens in .venv, which the first target that needs it creates.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.lightkit-installed
# Beside it, that the extras are there too: training needs none of them.
EVERYTHING := $(VENV)/.lightkit-extras
EXTRAS ?= dev,vision,sweep,ray,graph,wandb,mlflow,onnx,text,optim,hf,detection
# Arguments for the command behind a target: make train ARGS="data=wine", make test ARGS="-k loader"
ARGS ?=
# The tests of a file share what is expensive to make, so one process runs them all; long files come first.
PYTEST := -q -n auto --dist loadfile --no-loadscope-reorder
# Compiled modules are kept whatever the shell says: hundreds of processes start in the tests.
export PYTHONDONTWRITEBYTECODE =
export PIP_DISABLE_PIP_VERSION_CHECK = 1
export PIP_ROOT_USER_ACTION = ignore
# An advertisement of mkdocs-material, printed as a warning.
export NO_MKDOCS_2_WARNING = 1

.DEFAULT_GOAL := help
.PHONY: help install train test test-all test-fast test-gpu check format conf docs board clean

help: ## this list
	@awk 'BEGIN {FS = ":.*## "} /^[a-z-]+:.*## / {printf "  make %-9s %s\n", $$1, $$2}' $(firstword $(MAKEFILE_LIST))

install: $(EVERYTHING) ## create .venv with everything in it

train: $(STAMP) ## train the default run on data that comes with scikit-learn
	@$(BIN)/lightkit train $(ARGS)

test: $(EVERYTHING) ## run the tests; of those that take longest one case or none
	@$(BIN)/python -m pytest $(PYTEST) $(ARGS)

test-all: $(EVERYTHING) ## run all of them
	@$(BIN)/python -m pytest $(PYTEST) --all $(ARGS)

test-fast: $(EVERYTHING) ## run one case of each test that starts no run and no process: two minutes
	@$(BIN)/python -m pytest $(PYTEST) --fast $(ARGS)

test-gpu: $(EVERYTHING) ## run those that need an NVIDIA GPU
	@$(BIN)/python -m pytest -q -n 4 tests/gpu $(ARGS)

check: $(EVERYTHING) ## format, lint and types, without changing anything
	@$(BIN)/ruff format --check --quiet . || { echo "not formatted: run \`make format\`"; exit 1; }
	@$(BIN)/ruff check --quiet .
	@$(BIN)/mypy

format: $(EVERYTHING) ## format and sort imports in place
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

conf: $(EVERYTHING) ## write the files of conf/ and the pages of docs/ that say what the source says
	@$(BIN)/python -m lightkit.config.pages
	@$(BIN)/python -m lightkit.cli.reference

docs: $(EVERYTHING) ## build the manual as a site in build/site
	@$(BIN)/python -c 'import mkdocs' 2>/dev/null || $(BIN)/python -m pip install --quiet -c constraints.txt -e '.[$(EXTRAS),docs]'
	@$(BIN)/mkdocs build --quiet --strict $(ARGS)

board: $(STAMP) ## TensorBoard over outputs/
	@$(BIN)/lightkit board $(ARGS)

dist: $(EVERYTHING) ## build the wheel and the source archive in dist/, and check them
	@$(BIN)/python -m pytest -q --all tests/test_packaging.py
	@$(BIN)/python -m build --no-isolation --outdir dist . >/dev/null
	@ls dist/*

clean: ## remove .venv, caches and builds; outputs/ stays
	@rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache *.egg-info
	@find . -name __pycache__ -type d -not -path './.git/*' -prune -exec rm -rf {} +

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null || { \
	  echo "lightkit needs Python 3.10 or newer; $(PYTHON) is: $$($(PYTHON) --version 2>&1)"; \
	  echo "name another one: make $(firstword $(MAKECMDGOALS)) PYTHON=python3.12"; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV) || { \
	  echo "could not create $(VENV); on Debian and Ubuntu: apt install python3-venv"; exit 1; }
	@echo "installing lightkit and what it needs into $(VENV) (the first time takes some minutes: PyTorch is large)"
	@$(BIN)/python -m pip install --quiet -c constraints.txt -e .
	@touch $@

$(EVERYTHING): $(STAMP)
	@echo "installing what tests and optional parts need: $(EXTRAS)"
	@$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[$(EXTRAS)]'
	@touch $@
