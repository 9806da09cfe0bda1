# What a person types and what CI runs are the same. `make` alone lists it.

PYTHON ?= python3
VENV ?= .venv
# More arguments for what a target runs, as in: make test ARGS='--backend cuda'
ARGS ?=
# Test processes at once.
JOBS ?= auto

BIN := $(VENV)/bin

include npu.mk

.DEFAULT_GOAL := help
.PHONY: help demo test lint format bench clean
.DELETE_ON_ERROR:

help:
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/make \1|\2/p' $(MAKEFILE_LIST) | awk -F'|' '{ printf "%-16s%s\n", $$1, $$2 }'

demo: $(VENV)/.has-interpreter  ## install, and check the device that the settings choose
	$(BIN)/tridal check $(ARGS)

test: lint  ## install, and run all tests and checks of the code
	$(BIN)/python -m pytest -n $(JOBS) $(ARGS)

lint: $(VENV)/.has-dev  ## style, types, and who imports whom
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo

format: $(VENV)/.has-dev  ## put the code in the form that `make lint` expects
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

bench: $(VENV)/.has-dev  ## measure softmaxes; ARGS are those of `tridal bench`
	$(BIN)/tridal bench $(ARGS)

clean:  ## remove what was made here, environments included; keep bench-results/
	rm -rf $(VENV) .venv-npu build dist
	rm -rf .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# The environment, with one of the extras in pyproject.toml.
$(VENV)/.has-%: pyproject.toml constraints.txt | $(VENV)/.made
	@echo "Installing tridal[$*] into $(VENV)"
	@$(BIN)/python -m pip install --quiet --editable '.[$*]' --constraint constraints.txt
	@$(BIN)/python -m compileall -q src backends  # as pip does for what it copies
	@touch $@

$(VENV)/.made:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || \
		{ echo "$(PYTHON) is not a Python of 3.10 or newer: name one, as in  make PYTHON=python3.12 ..." >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || \
		{ echo "$(PYTHON) can't make virtual environments: on Debian and Ubuntu,  apt install python3-venv" >&2; exit 1; }
	@$(PYTHON) -m venv --clear $(VENV)
	@touch $@
