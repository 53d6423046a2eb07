# Every target makes what it needs in .venv; a first run needs only python3 (3.11 or later), make and a network.

PYTHON  ?= python3
OUT     ?= demo
CASE    ?= motorcycle
WORKERS ?= 2
VENV    := .venv
BIN     := $(VENV)/bin
LOWEST  := .venv-lowest
WHEEL   := .venv-wheel

# The lowest versions of NumPy and others were built for Python 3.11 and 3.12 only.
FOR_LOWEST := import ensurepip, sys; sys.exit(not (3, 11) <= sys.version_info < (3, 13))
LOWEST_PYTHON ?= $(shell for each in python3.11 $(PYTHON) python3.12; do \
    if $$each -c '$(FOR_LOWEST)' 2>/dev/null; then echo $$each; break; fi; done)

PYTEST := -m pytest -n $(WORKERS) --dist worksteal --durations=25 --durations-min=5

# Which tests `make test` runs, and which of them `make test-lowest`.
ifdef SLOW
MARKS := not thorough
else
MARKS := not slow
endif
LOWEST_MARKS ?= not slow

# Processes share what Python has compiled of the sources, whatever the caller's settings.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help demo reproduce test test-slow test-lowest lowest-python test-thorough coverage lint format docs wheel bench clean
.NOTPARALLEL:

help:
	@echo "make demo           three data sets from start to end; writes $(OUT)/report/index.html"
	@echo "make reproduce      a case study of the paper: CASE=motorcycle (or product, gprn), ARGS='--folds 1'"
	@echo "make test           tests and doctests without the slow ones (SLOW=1: with them)"
	@echo "make test-slow      the slow tests only, without the thorough ones"
	@echo "make test-thorough  tests that repeat with other choices what the others show; takes an hour or so"
	@echo "make test-lowest    make test with the lowest versions that pyproject.toml allows, in $(LOWEST)"
	@echo "make coverage       make test, with the lines that no test runs; writes coverage.xml"
	@echo "make lint           ruff check, ruff format --check, pyright"
	@echo "make format         let ruff fix and format"
	@echo "make docs           build the documentation in site/"
	@echo "make wheel          build the wheel and the sdist in dist/, and try the wheel in $(WHEEL)"
	@echo "make bench          run the scripts in benchmarks/"
	@echo "make clean          remove everything that was built, and the environments"

demo: $(VENV)/.installed-plot
	$(BIN)/python examples/demo.py --out $(OUT)

reproduce: $(VENV)/.installed-plot
	$(BIN)/python -m reproduction $(CASE) $(ARGS)

test: $(VENV)/.installed-test
	$(BIN)/python $(PYTEST) -m "$(MARKS)"

# pytest's exit code 5 says that no test was selected.
test-slow: $(VENV)/.installed-test
	$(BIN)/python $(PYTEST) -m "slow and not thorough" || [ $$? -eq 5 ]

test-lowest: $(LOWEST)/.installed-test
	$(LOWEST)/bin/python $(PYTEST) -m "$(LOWEST_MARKS)"

lowest-python:
	@echo $(LOWEST_PYTHON)

test-thorough: $(VENV)/.installed-test
	$(BIN)/python $(PYTEST) -m thorough

coverage: $(VENV)/.installed-coverage
	$(BIN)/python $(PYTEST) -m "$(MARKS)" --cov --cov-report=term --cov-report=xml

lint: $(VENV)/.installed-lint
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/pyright

format: $(VENV)/.installed-lint
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

docs: $(VENV)/.installed-docs
	$(BIN)/mkdocs build --strict

wheel: $(VENV)/.installed-build
	rm -rf dist $(WHEEL)
	$(BIN)/python -m build
	$(BIN)/python tests/repository/check_wheel.py dist
	$(PYTHON) -m venv $(WHEEL)
	$(WHEEL)/bin/python -m pip install --quiet dist/*.whl
	$(WHEEL)/bin/python -I -c 'import newtongp as ng; x, y = ng.datasets.motorcycle(); print(ng.__version__, ng.infer(ng.Model(ng.MarkovGP("matern32"), "gaussian"), x, y).status.name)'
	$(WHEEL)/bin/newtongp --version

bench: $(VENV)/.installed-test
	@set -e; for script in benchmarks/*.py; do \
	    if [ -e "$$script" ]; then echo "== $$script"; $(BIN)/python "$$script"; else echo "no scripts in benchmarks/"; fi; \
	done

clean:
	rm -rf $(VENV) $(LOWEST) $(WHEEL) site dist build demo reproduced
	rm -rf .pytest_cache .ruff_cache .hypothesis .coverage* coverage.xml
	find src tests -name __pycache__ -type d -prune -exec rm -rf {} +

# The environment. A stamp is newer than pyproject.toml once what it stands for is installed.

$(VENV)/.created:
	@command -v $(PYTHON) >/dev/null || { echo "$(PYTHON) not found: install Python 3.11 or later, or run make PYTHON=/path/to/python3"; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	    echo "newtongp needs Python 3.11 or later, but $(PYTHON) is $$($(PYTHON) --version 2>&1): run make PYTHON=python3.11"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade "pip>=25.1"
	@touch $@

PIP_INSTALL = $(BIN)/python -m pip install --quiet --editable '.[plot]'

$(VENV)/.installed-plot: $(VENV)/.created pyproject.toml
	$(PIP_INSTALL)
	@touch $@

$(VENV)/.installed-test: $(VENV)/.created pyproject.toml
	$(PIP_INSTALL) --group test --group examples
	@touch $@

$(VENV)/.installed-lint: $(VENV)/.created pyproject.toml
	$(PIP_INSTALL) --group test --group lint
	@touch $@

$(VENV)/.installed-coverage: $(VENV)/.created pyproject.toml
	$(PIP_INSTALL) --group test --group coverage
	@touch $@

$(VENV)/.installed-build: $(VENV)/.created pyproject.toml
	$(PIP_INSTALL) --group build
	@touch $@

$(LOWEST)/.created:
	@test -n "$(LOWEST_PYTHON)" || { \
	    echo "the lowest versions need Python 3.11 or 3.12: install one, or run make test-lowest LOWEST_PYTHON=/path/to/it"; exit 1; }
	$(LOWEST_PYTHON) -m venv $(LOWEST)
	$(LOWEST)/bin/python -m pip install --quiet --upgrade "pip>=25.1"
	@touch $@

$(LOWEST)/.installed-test: $(LOWEST)/.created pyproject.toml tests/repository/lowest_versions.py
	$(LOWEST)/bin/python tests/repository/lowest_versions.py > $(LOWEST)/constraints.txt
	$(LOWEST)/bin/python -m pip install --quiet --constraint $(LOWEST)/constraints.txt --editable '.[plot]' --group test
	@touch $@

$(VENV)/.installed-docs: $(VENV)/.created pyproject.toml
	$(PIP_INSTALL) --group docs
	@touch $@
