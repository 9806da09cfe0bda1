# The targets for developers and CI. `make` without a target lists them.

PYTHON ?= python3
VENV ?= .venv
# Extra arguments for the command of a target, for example: make test ARGS='--backend cuda'
ARGS ?=
# The version of torch for `make test-version`.
TORCH ?= newest
# Number of parallel test processes.
JOBS ?= auto

BIN := $(VENV)/bin
# What runs beside the tests. CI sets it to `true` in all rows but one, so that the lints run once.
LINTS ?= $(MAKE) --no-print-directory lint

include npu.mk xpu.mk

# Runs a command, and `make lint` meanwhile, which would use one processor only. The output of lints that fail is shown at
# once and again at the end. The exit status is that of the command, or that of the lints if the command succeeds.
define beside-lint
@log=$$(mktemp); trap 'rm -f "$$log"' EXIT; \
{ $(LINTS) >"$$log" 2>&1 || { cat "$$log" >&2; exit 1; }; } & lint=$$!; \
$(1); status=$$?; \
if wait $$lint; then tail -n 1 "$$log"; else echo "make lint failed:"; cat "$$log"; [ $$status != 0 ] || status=1; fi; \
exit $$status
endef

.DEFAULT_GOAL := help
.PHONY: help demo test test-all test-rocm test-version lint format bench docs check-docs dist clean
.DELETE_ON_ERROR:

help:
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/make \1|\2/p' $(MAKEFILE_LIST) | awk -F'|' '{ printf "%-18s%s\n", $$1, $$2 }'

demo:  ## install, check this device, and train a small model with and without tridal
	@echo "1. Install tridal with its requirements into $(VENV), which takes several minutes the first time."
	@echo "2. Compare the kernels with float64:  tridal check"
	@echo "3. Train a small model with and without tridal, and compare the losses:  examples/compare_a_model.py"
	@echo "Steps 2 and 3 take about half a minute without a GPU. Nothing outside $(VENV) is changed, except caches."
	@$(MAKE) --no-print-directory $(VENV)/.has-interpreter
	$(BIN)/tridal check $(ARGS)
	$(BIN)/python examples/compare_a_model.py

test: $(VENV)/.has-dev  ## install, and run all tests, lints and type checks
	$(call beside-lint,$(BIN)/python -m pytest -n $(JOBS) --dist loadfile $(ARGS))

test-all: $(VENV)/.has-dev $(VENV)/.has-trainers  ## run the tests with every case of the conformance suite, and new random examples
	$(call beside-lint,$(BIN)/python -m pytest -n $(JOBS) --dist loadfile --matrix --hypothesis-profile default $(ARGS))

test-rocm: $(VENV)/.has-dev  ## compile every kernel that is planned for AMD GPUs; needs no GPU
	$(BIN)/python -m pytest -n $(JOBS) --all-kernels tests/backends/test_backend_rocm_kernels.py $(ARGS)

test-version:  ## run the tests with TORCH, a version of torch, "newest" or "nightly", in its own environment
	PYTHON=$(PYTHON) JOBS=$(JOBS) scripts/test-version $(TORCH) -- $(ARGS)

lint: $(VENV)/.has-dev  ## check style, types and import rules
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo

format: $(VENV)/.has-dev  ## format the code as `make lint` expects it
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

bench: $(VENV)/.has-dev  ## run the benchmarks; ARGS are passed to `tridal bench`
	$(BIN)/tridal bench $(ARGS)

docs: $(VENV)/.has-docs  ## build the documentation site in site/; a warning is an error
	rm -rf site
	$(BIN)/python -m sphinx --fail-on-warning --keep-going --fresh-env --quiet docs site

check-docs: docs  ## check the site in a headless browser, after `playwright install chromium`
	$(BIN)/python scripts/check_site.py site $(ARGS)

dist: $(VENV)/.has-release  ## build the sdist and the wheel in dist/, and check their metadata
	rm -rf dist
	$(BIN)/python -m build
	$(BIN)/python -m twine check --strict dist/*

clean:  ## remove generated files, including environments; keep bench-results/
	rm -rf $(VENV) .venv-npu .venv-xpu .venv-torch-* build dist site docs/generated
	rm -rf .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# Installs one of the extras of pyproject.toml into the environment.
$(VENV)/.has-%: pyproject.toml constraints.txt | $(VENV)/.made
	@echo "Installing tridal[$*] and its requirements into $(VENV)."
	@echo "pip's default build of torch for Linux includes CUDA and takes several gigabytes. On a machine without a GPU,"
	@echo "set PIP_EXTRA_INDEX_URL to PyTorch's index of CPU builds (pytorch.org, Get Started)."
	@$(BIN)/python -m pip install --disable-pip-version-check --editable '.[$*]' --constraint constraints.txt
	@$(BIN)/python -m compileall -q src backends  # pip does not compile editable installs
	@touch $@

$(VENV)/.made:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || \
		{ echo "$(PYTHON) is not a Python of 3.10 or newer: name one, as in  make PYTHON=python3.12 ..." >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || \
		{ echo "$(PYTHON) can't make virtual environments: on Debian and Ubuntu,  apt install python3-venv" >&2; exit 1; }
	@$(PYTHON) -m venv --clear $(VENV)
	@touch $@
