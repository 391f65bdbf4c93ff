# Byre. `make help` lists what can be done. Needs Python 3.11 or later and git; everything else goes into .venv.

PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && { echo $$p; break; }; done)
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet
# Tests run in this many processes. They wait a lot: one more than the cores of a small machine.
JOBS ?= 3
# Further arguments for the program that a target runs: make dev ARGS='--port 9000', make test ARGS='tests/log -k seam'
ARGS ?=

.DEFAULT_GOAL := help
.PHONY: help needs setup dev test lint agents bench chaos lock clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "  make %-8s %s\n", $$1, $$2}' $(MAKEFILE_LIST)
	@echo "  ARGS='...' hands arguments on: make dev ARGS='--port 9000', make test ARGS='-k settings'"

needs:
	@test -n "$(PYTHON)" || { echo "Byre needs Python 3.11 or later: install it, or say where it is: make PYTHON=/path/to/python3"; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || \
		{ echo "$(PYTHON) can't make virtual environments: install its venv package (Debian: python3-venv)"; exit 1; }
	@command -v git >/dev/null || { echo "Byre needs git: install it"; exit 1; }

$(BIN)/python:
	@$(MAKE) --no-print-directory needs
	$(PYTHON) -m venv $(VENV)

# A stamp is newer than what it was made from when nothing is to be done.
$(VENV)/.installed: requirements.txt pyproject.toml | $(BIN)/python
	$(PIP) install --require-hashes -r requirements.txt
	$(PIP) install --no-deps --no-build-isolation --editable .
	@touch $@

$(VENV)/.installed-dev: requirements-dev.txt $(VENV)/.installed
	$(PIP) install --require-hashes -r requirements-dev.txt
	@touch $@

setup: $(VENV)/.installed ## install what running it needs; .venv/bin/byre works afterwards

dev: setup ## run everything on this machine: API, worker, Redis, object store
	@exec $(BIN)/byre dev $(ARGS)

test: $(VENV)/.installed-dev ## run the tests, but for the long ones
	$(BIN)/python -m pytest -n $(JOBS) -m "not chaos and not bench and not agents" $(ARGS)

lint: $(VENV)/.installed-dev ## style, types and the direction of imports
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

agents: $(VENV)/.installed-dev ## further tests with real agent programs (from npm, with a scripted model)
	$(BIN)/python -m pytest -n 0 -rs -m "agents and not chaos" $(ARGS)

bench: $(VENV)/.installed-dev ## measure, each figure against the bare thing in the same run
	$(BIN)/python -m pytest -n 0 -s -m bench $(ARGS)

chaos: $(VENV)/.installed-dev ## the long fault tests
	$(BIN)/python -m pytest -n 0 -m chaos $(ARGS)

COMPILE = $(BIN)/pip-compile --quiet --allow-unsafe --generate-hashes --strip-extras --no-header --annotation-style=line \
	--no-emit-index-url --no-emit-trusted-host --no-emit-find-links --extra build

lock: $(VENV)/.installed-dev ## resolve the dependencies anew and write the lock files
	$(COMPILE) --upgrade -o requirements.txt pyproject.toml
	$(COMPILE) --upgrade --extra dev -c requirements.txt -o requirements-dev.txt pyproject.toml

clean: ## remove the virtual environment and what tools have left
	rm -rf $(VENV) build *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find app workers tests -name __pycache__ -prune -exec rm -rf {} +
