# Every target sets up what it needs on a machine with Python 3.11 and make.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin

.PHONY: demo test check bench prove-exactness format clean

$(VENV)/.ready: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --editable '.[dev]'
	touch $@

demo: $(VENV)/.ready
	$(BIN)/headgate demo

test: $(VENV)/.ready
	$(BIN)/pytest $(ARGS)

check: $(VENV)/.ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/basedpyright

bench: $(VENV)/.ready
	$(BIN)/python -m bench $(SCENARIO)

prove-exactness: $(VENV)/.ready
	HEADGATE_PROOF=full $(BIN)/pytest -s tests/exactness tests/conformance $(ARGS)

format: $(VENV)/.ready
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf $(VENV) build dist .pytest_cache .ruff_cache
