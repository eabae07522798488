# `make` lists the targets. Each one sets up .venv first, once.
PYTHON ?= python3
BIN := .venv/bin
INSTALLED := .venv/.installed

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-all lint bench clean

help: ## this list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1|\2/p' $(firstword $(MAKEFILE_LIST)) | column -t -s '|' 2>/dev/null \
	  || grep -E '^[a-z-]+:.*##' $(firstword $(MAKEFILE_LIST))

setup: $(INSTALLED) ## make .venv with the pinned versions; does nothing the second time

demo: $(INSTALLED) ## compress a trained ResNet-20 end to end; results in runs/quickstart/
	$(BIN)/msc-gym compress experiments/quickstart.yaml

test: $(INSTALLED) ## the tests, doctests included, without the slow ones
	$(BIN)/python -m pytest -n auto --maxprocesses 4 --dist worksteal

test-all: $(INSTALLED) ## all the tests
	$(BIN)/python -m pytest -n auto --maxprocesses 4 --dist worksteal -m ""

lint: $(INSTALLED) ## format check, ruff and mypy
	$(BIN)/ruff format --check
	$(BIN)/ruff check
	$(BIN)/mypy msc_core msc_gym

bench: $(INSTALLED) ## measure what the README states
	$(BIN)/python -m experiments.bench

clean: ## remove runs, caches and build output, not .venv
	rm -rf runs build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -name __pycache__ -not -path './.venv/*' -prune -exec rm -rf {} +

$(INSTALLED): pyproject.toml constraints.txt tests/zoo/requirements.txt
	$(PYTHON) -c 'import sys; sys.exit("Python 3.11 or later is needed: make setup PYTHON=python3.11" if sys.version_info < (3, 11) else 0)'
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install -q -c constraints.txt -e '.[dev,zoo]'
	$(BIN)/python -m pip install -q --no-deps -r tests/zoo/requirements.txt
	touch $@
