# Overline. Every target first installs what it needs into .venv, and needs nothing but
# Python 3.11 or newer (set PYTHON to choose one) and make.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

PYTHON ?= python3
BENCH ?= chain
ARGS ?=

VENV := .venv
BIN := $(VENV)/bin
# On a terminal uv shows its progress; elsewhere the lines of these targets are enough.
UV := $(BIN)/uv $(shell test -t 2 || echo --quiet) pip
# Every process of a stack imports some thousand modules. Compiling them takes as long as the rest
# of its start, and where Python may not keep the result (PYTHONDONTWRITEBYTECODE) each one does.
SYNC := sync --compile-bytecode --require-hashes
PACKAGES := activities api deploy inference migrations observability safety settings.py store workflows
# The models under Triton have an environment of their own, shared by all state folders here.
export OVERLINE_ENGINE_ENV ?= $(CURDIR)/$(VENV)/engine
# Tests and tools see this checkout's packages, and nothing from the caller's own Python setup.
unexport PYTHONPATH PYTHONHOME VIRTUAL_ENV

# They wait for processes that die and come back more than they compute: four shares side by side,
# each with stacks of its own, take a third of the time on two cores.
CALLS := tests/chaos tests/integration/openai_surface tests/integration/stack
TASKS := tests/integration/tasks
LAST := $(wildcard $(TASKS)/test_[p-z]*.py)

.PHONY: help demo up down test test-unit bench check install install-dev engine frameworks compiled clean

help: ## Show this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /\1\t/' | \
	    awk -F'\t' '{printf "  make %-10s %s\n", $$1, $$2}'

demo: engine compiled ## One durable task through every layer, a worker killed on the way
	@$(BIN)/python -P -m deploy.demo $(ARGS)

up: engine compiled ## Start the embedded stack in the foreground (ARGS="--detach" leaves it running)
	@$(BIN)/overline up $(ARGS)

down: install ## Stop the embedded stack
	@$(BIN)/overline down $(ARGS)

test: install-dev engine frameworks compiled ## Lint, types and every test, on the real parts
	@if [ -n "$(ARGS)" ]; then $(MAKE) --no-print-directory check; exec $(BIN)/pytest $(ARGS); fi; \
	echo '· lint, types, and pytest in four shares side by side, each on stacks of its own' >&2; \
	logs=$$(mktemp -d); \
	$(MAKE) --no-print-directory check >$$logs/0 2>&1 & others=$$!; \
	$(BIN)/pytest $(CALLS) >$$logs/1 2>&1 & others="$$others $$!"; \
	$(BIN)/pytest $(TASKS) $(addprefix --ignore=,$(LAST)) >$$logs/2 2>&1 & others="$$others $$!"; \
	$(BIN)/pytest $(LAST) >$$logs/3 2>&1 & others="$$others $$!"; \
	trap 'kill $$others 2>/dev/null; exit 130' INT TERM; \
	failed=0; $(BIN)/pytest $(addprefix --ignore=,$(CALLS) $(TASKS)) || failed=1; \
	for other in $$others; do wait $$other || failed=1; done; \
	cat $$logs/*; rm -r $$logs; exit $$failed

test-unit: install-dev ## The tests that need no server (seconds)
	@$(BIN)/pytest tests/unit $(ARGS)

bench: install-dev engine compiled ## Measure (BENCH=chain); prints one JSON object
	@$(BIN)/python -P -m tests.benchmarks.$(BENCH) $(ARGS)

check: install-dev ## ruff, mypy --strict, import-linter
	@echo '· ruff' && $(BIN)/ruff check . && $(BIN)/ruff format --check .
	@echo '· mypy --strict' && $(BIN)/mypy
	@echo '· import-linter' && $(BIN)/lint-imports

install: $(VENV)/.installed-harness
install-dev: $(VENV)/.installed-dev
engine: install $(VENV)/.installed-engine
frameworks: $(VENV)/.installed-frameworks
compiled: install
	@$(BIN)/python -m compileall -q $(PACKAGES)

clean: ## Remove .venv and caches (the state folder stays)
	@rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .import_linter_cache

$(VENV)/.installed-uv: requirements/bootstrap.txt
	@$(PYTHON) -c 'import sys; v = sys.version_info; sys.exit(0 if (3, 11) <= v < (3, 14) else \
	    f"Overline needs Python 3.11, 3.12 or 3.13; {sys.executable} is {v[0]}.{v[1]}. " \
	    "Name another with: make PYTHON=python3.12 ...")'
	@echo '[1/3] Making $(VENV) with $(PYTHON)' >&2
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes \
	    -r requirements/bootstrap.txt
	@touch $@

$(VENV)/.installed-harness: $(VENV)/.installed-uv requirements/harness.txt pyproject.toml
	@if [ -e $(VENV)/.installed-dev ] && ! [ requirements/dev.txt -nt $(VENV)/.installed-dev ]; then \
	    echo '[2/3] The development packages include the harness' >&2; \
	else \
	    echo '[2/3] Installing the harness (requirements/harness.txt)' >&2; \
	    $(UV) $(SYNC) --python $(BIN)/python requirements/harness.txt; \
	    rm -f $(VENV)/.installed-dev; \
	    $(UV) install --quiet --python $(BIN)/python --no-deps --no-build-isolation --editable .; \
	fi
	@touch $@

$(VENV)/.installed-dev: $(VENV)/.installed-uv requirements/dev.txt pyproject.toml
	@echo '[2/3] Installing the harness and its tests (requirements/dev.txt)' >&2
	@$(UV) $(SYNC) --python $(BIN)/python requirements/dev.txt
	@$(UV) install --quiet --python $(BIN)/python --no-deps --no-build-isolation --editable .
	@touch $@ $(VENV)/.installed-harness

$(VENV)/.installed-engine: $(VENV)/.installed-uv deploy/local/engine-requirements.txt | install
	@echo '[3/3] Installing the engine: Triton, llama.cpp and the models (some 600 MB)' >&2
	@$(BIN)/python -P -m deploy.local.engine_env $(OVERLINE_ENGINE_ENV)
	@touch $@

# LangChain's and LlamaIndex's OpenAI classes, which want an older `openai` than the other tests.
$(VENV)/.installed-frameworks: $(VENV)/.installed-uv requirements/frameworks.txt
	@test -x $(VENV)/frameworks/bin/python || $(BIN)/uv venv --quiet $(VENV)/frameworks
	@$(UV) $(SYNC) --python $(VENV)/frameworks/bin/python requirements/frameworks.txt
	@touch $@
