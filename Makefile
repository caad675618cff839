# Every target makes what it needs. PYTHON may name another interpreter (3.11 or newer).
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: run test e2e check format bench clean

$(VENV)/.made: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade 'pip>=25.1'
	$(BIN)/python -m pip install --quiet --group dev --editable .
	touch $@

check: $(VENV)/.made
	$(BIN)/ruff format --check daemon policies tests
	$(BIN)/ruff check daemon policies tests
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/pytest -q tests/unit

format: $(VENV)/.made
	$(BIN)/ruff format daemon policies tests
	$(BIN)/ruff check --fix daemon policies tests
