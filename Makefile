# Everything is set up in .venv; pip's own settings (a mirror, a wheel folder) apply.
# PYTHONSAFEPATH keeps the root off sys.path, where the folders kernels and models would shadow other packages.

export PYTHONSAFEPATH := 1
.DEFAULT_GOAL := help
.PHONY: help venv demo inspect serve test check lint types bench clean

SUPPORTED := import sys; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 14))
PYTHON ?= $(firstword $(shell for p in python3 python3.12 python3.11 python3.13; do \
	$$p -c '$(SUPPORTED)' 2>/dev/null && echo $$p; done; true))
BIN := .venv/bin
READY := .venv/.ready
ARGS ?=
WORKERS ?= 2  # processes that tests run in: a file's tests stay in one, and fixtures of a session are made in each
PYTEST := $(BIN)/python -P -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder

help: ## this list
	@sed -n 's/^\([a-z]*\):.*## \(.*\)/  make \1 \t\2/p' $(firstword $(MAKEFILE_LIST)) | expand -t 16

venv: $(READY) ## the environment in .venv, with the tested versions

$(READY): pyproject.toml constraints.txt
	@test -n "$(PYTHON)" || { echo "no Python 3.11 to 3.13 found: name one with make PYTHON=/path/to/python3" >&2; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --no-input --disable-pip-version-check -c constraints.txt -e '.[test]'
	mkdir -p .venv/src && ln -sfn "$(CURDIR)" .venv/src/nanolens
	touch $@

demo: $(READY) ## a real model answers eight questions, with each sequence's life read back from the journal
	$(BIN)/python -P -m nanolens.benchmarks.demo $(ARGS)

inspect: $(READY) ## nano-inspect on a small engine under load, or on what ARGS names; ? shows its keys
	$(BIN)/nano-inspect $(or $(ARGS),--demo)

serve: $(READY) ## the embedded model over HTTP, with OpenAI's API, on port 8000; flags in ARGS
	$(BIN)/nano-serve smollm2 $(ARGS)

test: lint types ## ruff, mypy and the whole suite
	$(PYTEST) $(ARGS)

check: lint types ## what to run while working: the suite without its slow and model tests
	$(PYTEST) -q -x -m 'not slow and not model' $(ARGS)

lint: $(READY) ## ruff
	$(BIN)/ruff check

types: $(READY) ## mypy
	$(BIN)/mypy

bench: $(READY) ## nano-bench offline; flags in ARGS
	$(BIN)/nano-bench offline $(ARGS)

clean: ## remove what make has made, .venv too
	rm -rf .venv build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
