# What a person types. Needs only Python 3.11+ (with venv and pip) and make.
#
# The environment lives in .venv and is installed from the lock files in requirements/. A stamp
# file records each finished step, so that a second run of any target starts at once.

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
PACKAGES := nbrt kernels tests benchmarks tools
# Each install checks the hashes in the lock, and the project itself is built by the backend that
# the lock pins: nothing is resolved or downloaded unpinned.
INSTALL := $(PIP) install --quiet --only-binary=:all: --require-hashes -r
INSTALL_PROJECT := $(PIP) install --quiet --no-deps --no-build-isolation --editable .
# For example: make stress STRESS="--times 1 tests/unit/distributed"
STRESS ?=
# For example: make bench PARTS="simt random"; the default is all parts, half an hour
PARTS ?=
# Tests start hundreds of processes, each of which would compile the same sources.
unexport PYTHONDONTWRITEBYTECODE
UV ?= uv
COMPILE := UV_CUSTOM_COMPILE_COMMAND="make lock" $(UV) pip compile --quiet --universal \
	--python-version 3.11 --generate-hashes

.DEFAULT_GOAL := help
.PHONY: help env demo collect test stress fuzz shardings randtest lint format docs bench lock clean
.DELETE_ON_ERROR:

help:  ## Show this list
	@grep -E '^[a-z]+:.*## ' $(firstword $(MAKEFILE_LIST)) \
		| sed -E 's/^([a-z]+):.*## /make \1\t/' | expand -t 16

env: $(VENV)/.dev  ## Create .venv with everything that tests, lint and docs need

demo: $(VENV)/.demo  ## Run the main job on a photograph; results in demo-output/
	@echo "==> nbrt demo: noise, denoise and histogram of a photograph on two streams"
	$(BIN)/nbrt demo

collect: $(VENV)/.dev  ## Import every test; the bytecode is kept for the next run
	@echo "==> pytest --collect-only: every test imports"
	@found=$$($(BIN)/pytest --collect-only -qq 2>&1) || { echo "$$found"; exit 1; }

test: $(VENV)/.dev  ## Run every test; what cannot run here is skipped by name
	@echo "==> pytest: every test (without a GPU, CUDA tests run on a simulated driver)"
	@# A worker that runs out of tests takes some of another one's.
	$(BIN)/pytest -n auto --dist worksteal

stress: $(VENV)/.dev  ## Run every test three times, 4 workers and 2 busy loops on 2 cores
	@echo "==> pytest beside busy loops: no test may depend on the load"
	$(BIN)/python tools/stress.py $(STRESS)

fuzz: $(VENV)/.dev  ## Run 10,000 random kernels through every lowering; for the night
	@echo "==> pytest: differential fuzzing of the SIMT compiler"
	NBRT_FUZZ_PROGRAMS=10000 $(BIN)/pytest tests/fuzz

shardings: $(VENV)/.dev  ## Hold every distribution to every sharding; for the night
	@echo "==> pytest: every mesh of up to 8 ranks, placement, shape, distribution and dtype"
	NBRT_ALL_SHARDINGS=1 $(BIN)/pytest -n auto tests/distributed

randtest: $(VENV)/.dev  ## Put random words through statistical batteries; about an hour
	@echo "==> SmallCrush, PractRand and dieharder, one after the other"
	$(BIN)/python tools/randtest.py --out docs/rng_quality.json --page docs/rng_quality.md

lint: $(VENV)/.dev  ## Check style, types, import rules and sizes
	@echo "==> ruff check"
	$(BIN)/ruff check .
	@echo "==> ruff format --check"
	$(BIN)/ruff format --check .
	@echo "==> codespell, and the vocabulary of CONTRIBUTING.md"
	$(BIN)/codespell
	$(BIN)/python tools/prose_check.py $(wildcard $(PACKAGES)) docs README.md CONTRIBUTING.md
	@echo "==> mypy (strict)"
	$(BIN)/mypy
	@echo "==> lint-imports: who may import whom"
	@# Its cache is by file: it still says of a module added since that it is not there.
	$(BIN)/lint-imports --no-logo --no-cache
	@echo "==> size check: 500 lines a file, 60 lines a function without its docstring"
	$(BIN)/python tools/size_check.py $(wildcard $(PACKAGES))

format: $(VENV)/.dev  ## Rewrite the code in the house format
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: $(VENV)/.dev  ## Build the documentation site into site/
	@echo "==> mkdocs build --strict"
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict

bench: $(VENV)/.bench  ## Run the benchmarks, or PARTS="simt random" of them, with their peers
	$(BIN)/python -m benchmarks $(PARTS)

lock:  ## Resolve the lock files again (needs uv)
	$(COMPILE) --extra dev -o requirements/dev.txt pyproject.toml
	$(COMPILE) --extra viz -c requirements/dev.txt -o requirements/demo.txt \
		pyproject.toml requirements/build.in
	$(COMPILE) --group bench -c requirements/dev.txt -o requirements/bench.txt

clean:  ## Remove .venv and everything that was built or cached
	rm -rf $(VENV) build dist site demo-output .mypy_cache .ruff_cache .pytest_cache \
		.import_linter_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(VENV)/.created:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
		echo "nbrt needs Python 3.11 or newer; '$(PYTHON)' is $$($(PYTHON) --version 2>&1)." \
			"Name another one: make PYTHON=python3.12 ..." >&2; exit 1; }
	@echo "==> creating $(VENV) with $$($(PYTHON) --version)"
	@$(PYTHON) -m venv $(VENV) || { \
		echo "'$(PYTHON) -m venv' failed; on Debian and Ubuntu, install python3-venv" >&2; exit 1; }
	@touch $@

$(VENV)/.demo: $(VENV)/.created requirements/demo.txt pyproject.toml nbrt/_version.py
	@echo "==> installing the pinned dependencies of the demo (requirements/demo.txt)"
	@$(INSTALL) requirements/demo.txt
	@$(INSTALL_PROJECT)
	@touch $@

$(VENV)/.dev: $(VENV)/.demo requirements/dev.txt
	@echo "==> installing the pinned development tools (requirements/dev.txt), about 610 MB"
	@$(INSTALL) requirements/dev.txt
	@touch $@

$(VENV)/.bench: $(VENV)/.dev requirements/bench.txt
	@echo "==> installing the pinned benchmark peers (requirements/bench.txt), about 480 MB"
	@$(INSTALL) requirements/bench.txt
	@touch $@
