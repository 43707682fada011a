# Everything a person types. Nothing is needed before it but Python 3.11 and make.

PYTHON ?= $(firstword $(shell command -v python3.11 python3))
VENV ?= .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --disable-pip-version-check -qq --constraint constraints.txt
PROJECT := pyproject.toml constraints.txt

.PHONY: help demo test lint types layers check docs benchmark clean
.DEFAULT_GOAL := help

help: ## say what can be made
	@grep -hE '^[a-z]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-10s %s\n", $$1, $$2}'

demo: $(VENV)/.runs ## install, pretrain on eleven years of real winds (2 minutes), print the skill
	$(BIN)/hyperslab demo

test: $(VENV)/.tests ## install, then run the tests
	$(BIN)/python -m pytest --numprocesses 2 --dist loadfile

lint: $(VENV)/.develops ## check the style of the code
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.develops ## check types
	$(BIN)/mypy

layers: $(VENV)/.develops ## check that imports run down the layers
	$(BIN)/lint-imports

check: lint types layers test ## all of the above

docs: $(VENV)/.develops ## build the documentation into site/
	$(BIN)/mkdocs build --strict

benchmark: $(VENV)/.runs ## print where the time goes between `hyperslab run` and the first training step
	$(BIN)/python benchmarks/startup.py

clean: ## remove what was installed and built, but no campaign
	rm -rf $(VENV) build dist site *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' || \
	  { echo "Python 3.11 is needed, found $$($(PYTHON) --version 2>&1): make PYTHON=/path/to/python3.11"; exit 1; }
	$(PYTHON) -m venv $(VENV)

# Each level installs on top of the one before; a changed pin installs anew.
$(VENV)/.runs: $(PROJECT) | $(VENV)/bin/python
	@echo "installing into $(VENV): a few minutes the first time"
	$(PIP) --editable .
	@touch $@

$(VENV)/.tests: $(VENV)/.runs
	$(PIP) --editable '.[test]'
	@touch $@

$(VENV)/.develops: $(VENV)/.tests
	$(PIP) --editable '.[dev]'
	@touch $@
