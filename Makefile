# Every target makes what it needs in .venv; a first run needs only python3 (3.11 or later), make and a network.

PYTHON  ?= python3
OUT     ?= demo
CASE    ?= motorcycle
WORKERS ?= 2
VENV    := .venv
BIN     := $(VENV)/bin
LOWEST  := .venv-lowest

# The lowest versions of NumPy and others were built for Python 3.11 and 3.12 only.
FOR_LOWEST := import ensurepip, sys; sys.exit(not (3, 11) <= sys.version_info < (3, 13))
LOWEST_PYTHON ?= $(shell for each in python3.11 $(PYTHON) python3.12; do \
    if $$each -c '$(FOR_LOWEST)' 2>/dev/null; then echo $$each; break; fi; done)

ifdef SLOW
MARKS :=
else
MARKS := -m "not slow"
endif

.PHONY: help demo reproduce test test-slow test-lowest lowest-python test-thorough lint format docs bench clean
.NOTPARALLEL:

help:
	@echo "make demo       three data sets from start to end; writes $(OUT)/report/index.html"
	@echo "make reproduce CASE=motorcycle  a case study of the paper (or product, gprn; ARGS='--folds 1')"
	@echo "make test       tests and doctests without the slow ones (SLOW=1: all)"
	@echo "make test-slow  the slow tests only"
	@echo "make test-lowest  make test with the lowest versions that pyproject.toml allows, in $(LOWEST)"
	@echo "make test-thorough  every method and kernel on every prior"
	@echo "make lint       ruff check, ruff format --check, pyright"
	@echo "make format     let ruff fix and format"
	@echo "make docs       build the documentation in site/"
	@echo "make bench      run the scripts in benchmarks/"
	@echo "make clean      remove everything that was built, and the environments"

demo: $(VENV)/.installed-plot
	$(BIN)/python examples/demo.py --out $(OUT)

reproduce: $(VENV)/.installed-plot
	$(BIN)/python -m reproduction $(CASE) $(ARGS)

test: $(VENV)/.installed-test
	$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal $(MARKS)

# pytest's exit code 5 says that no test was selected.
test-slow: $(VENV)/.installed-test
	$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal -m "slow and not thorough" || [ $$? -eq 5 ]

test-lowest: $(LOWEST)/.installed-test
	$(LOWEST)/bin/python -m pytest -n $(WORKERS) --dist worksteal -m "not slow"

lowest-python:
	@echo $(LOWEST_PYTHON)

test-thorough: $(VENV)/.installed-test
	$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal -m thorough

lint: $(VENV)/.installed-lint
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/pyright

format: $(VENV)/.installed-lint
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

docs: $(VENV)/.installed-docs
	$(BIN)/mkdocs build --strict

bench: $(VENV)/.installed-test
	@set -e; for script in benchmarks/*.py; do \
	    if [ -e "$$script" ]; then echo "== $$script"; $(BIN)/python "$$script"; else echo "no scripts in benchmarks/"; fi; \
	done

clean:
	rm -rf $(VENV) $(LOWEST) site dist build demo reproduced .pytest_cache .ruff_cache .hypothesis
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
	$(PIP_INSTALL) --group test
	@touch $@

$(VENV)/.installed-lint: $(VENV)/.created pyproject.toml
	$(PIP_INSTALL) --group test --group lint
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
